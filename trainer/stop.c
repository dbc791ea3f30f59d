#include "trainer/stop.h"

// Rank 0 decides, before all meet. A rank that is slow to look may find what was decided of a later
// step, to which it comes in its turn: hence the step's number.
enum up_status up_stop_agree(struct up_stop *stop, struct up_comm *world, int64_t step, bool *ends,
                             struct up_error *err)
{
    enum up_status rc = UP_OK;
    *ends = false;
    if (!stop->asked) return UP_OK;
    if (up_comm_rank(world) == 0 && *stop->asked) atomic_store(&stop->before, step);
    UP_TRY(up_comm_barrier(world, err));
    *ends = atomic_load(&stop->before) == step;
out:
    return rc;
}
