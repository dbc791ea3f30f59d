/* What the allocator's files tell each other. */
#ifndef UP_MEM_MEM_IMPL_H
#define UP_MEM_MEM_IMPL_H

#include "mem/mem.h"

/* A tensor's life begins, or ends, in the record of the step (if one is kept). */
void up_record_begin(struct up_rank *rank, const struct up_tensor *tensor);
void up_record_end(struct up_rank *rank, const struct up_tensor *tensor);

#endif
