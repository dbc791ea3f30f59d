/* What the calls were for that gave the device its work.
 *
 * Whoever looks at a device tells of a kernel, long after it was asked for, by the number of the
 * call that asked. So each such call leaves a mark under its number, on the thread that makes it,
 * and the recorder's thread looks it up when the kernel is told of. Marks lie where the low bits of
 * their number say: leaving one is a few stores, with no lock and no search, and the oldest go when
 * their place is taken (UP_MARKS calls later). */
#ifndef UP_PROFILER_MARKS_H
#define UP_PROFILER_MARKS_H

#include "trace/trace.h"

enum { UP_MARKS = 1 << 17 };

struct up_mark {
    int rank;
    int32_t step;            // -1: outside steps
    enum up_event_kind kind; // KERNEL, COPY or COLLECTIVE
    uint64_t work_id;        // of the piece of work; 0: it belongs to none
    uint64_t range_id;       // the innermost open range; 0: none
};

struct up_marks;
struct up_marks *up_marks_create(void);        // NULL when memory is short
void up_marks_destroy(struct up_marks *marks); // NULL is fine
int64_t up_marks_bytes(void);

/* From any thread; no two calls have the same number, which is not 0. */
void up_marks_leave(struct up_marks *marks, uint32_t call, const struct up_mark *mark);
/* False where there is none, or no longer. */
bool up_marks_find(const struct up_marks *marks, uint32_t call, struct up_mark *mark);

#endif
