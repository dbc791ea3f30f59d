#include "trainer/stop.h"

enum up_status up_stop_agree(struct up_stop *stop, struct up_comm *world, int64_t step, bool *ends,
                             struct up_error *err)
{
    enum up_status rc = UP_OK;
    *ends = false;
    if (!stop->asked) return UP_OK;
    UP_TRY(up_comm_agree(world, *stop->asked, ends, err));
    if (*ends) stop->before = step;
out:
    return rc;
}
