/* What the allocator's files tell each other. */
#ifndef UP_MEM_MEM_IMPL_H
#define UP_MEM_MEM_IMPL_H

#include "mem/mem.h"

/* A tensor's life begins, or ends, in the record of the step (if one is kept). */
void up_record_begin(struct up_rank *rank, const struct up_tensor *tensor);
void up_record_end(struct up_rank *rank, const struct up_tensor *tensor);

/* The first `bytes` of the space's range are about to be used (ops->back); what that takes from the
 * system is told to the trace, and so, when there is not enough, is what wanted `asked` bytes of
 * it. */
enum up_status up_back(struct up_rank *rank, enum up_space space, int64_t bytes, bool for_good,
                       const struct up_tag *tag, int64_t asked, struct up_error *err);
/* Where the arenas are, and what making the device took of it, to the trace. */
void up_tell_start(struct up_rank *rank);

/* What was asked for and not had, to the trace; the rank waits until it is written. */
struct up_shortage {
    const struct up_tag *tag;
    enum up_space space;
    int64_t bytes, free_bytes, largest_free_bytes;
};
void up_tell_shortage(struct up_rank *rank, const struct up_shortage *shortage);

/* An event of this rank with what all kinds have. */
struct up_event up_event_now(struct up_rank *rank, enum up_event_kind kind);

#endif
