/* Ending a run between two steps: all its ranks, of all its processes, before the same one. */
#ifndef UP_TRAINER_STOP_H
#define UP_TRAINER_STOP_H

#include "comm/comm.h"

#include <stdatomic.h>

/* The ranks of one process share it. */
struct up_stop {
    volatile const int *asked; // set from a signal handler; NULL: the run ends otherwise
    _Atomic int64_t before;    // the step that is not begun any more; -1: none
};

/* Each rank of `world` comes here before it begins `step`. *ends is the same for all of them, and
 * true once one of their processes has been asked to end. */
enum up_status up_stop_agree(struct up_stop *stop, struct up_comm *world, int64_t step, bool *ends,
                             struct up_error *err);

#endif
