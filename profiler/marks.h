/* What the calls were for that gave the device its work.
 *
 * Whoever looks at a device tells of a kernel, long after it was asked for, by the number of the
 * call that asked. So each such call leaves a mark under its number, on the thread that makes it (a
 * few stores, no lock), and the recorder's thread looks it up when the kernel is told of. Of marks
 * that nobody asks for the oldest go, UP_MARKS later. */
#ifndef UP_PROFILER_MARKS_H
#define UP_PROFILER_MARKS_H

#include "trace/trace.h"

enum { UP_MARKS = 1 << 18, UP_MARKS_UNREAD = 1 << 16 };

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

/* From any thread. Of two marks of one number, which is not 0, the later counts. Where more than
 * UP_MARKS_UNREAD have been left since somebody looked, it is lost. */
void up_marks_leave(struct up_marks *marks, uint32_t call, const struct up_mark *mark);
/* From one thread. False where there is none, or no longer. */
bool up_marks_find(struct up_marks *marks, uint32_t call, struct up_mark *mark);

#endif
