/* What a device was seen to do in a step beside the step's own pieces of work: rows under the names
 * of kernels, of steps that are written whole alone. It may be told before that is known
 * (profiler/steps_impl.h) and then waits. */
#ifndef UP_PROFILER_BESIDE_H
#define UP_PROFILER_BESIDE_H

#include "profiler/steps_impl.h"

/* Zeroed: nothing waits. */
struct up_beside {
    struct up_beside_row *rows; // owned
    int64_t count, room;
    int64_t lost; // too many waited, or memory was short
};

/* `seen`, with its texts, is copied. */
void up_beside_add(struct up_beside *beside, const struct up_step_log *log,
                   const struct up_store_seen *seen);
/* Writes, or forgets, what has waited for its step. */
void up_beside_settle(struct up_beside *beside, const struct up_step_log *log);
int64_t up_beside_bytes(const struct up_beside *beside); // host memory held, without names
void up_beside_release(struct up_beside *beside);

#endif
