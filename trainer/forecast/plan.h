/* The planned arena of a config: a dry run of one step gives every lifetime, mem/plan.h the
 * offsets. */
#ifndef UP_TRAINER_PLAN_H
#define UP_TRAINER_PLAN_H

#include "mem/mem.h"
#include "model/config.h"

/* What a dry run of one step tells before the real one. */
struct up_trainer_plan {
    struct up_step_plan step;
    struct up_rehearsal *rehearsal; // of what libraries do at first use, on cuda
    double layer_s; // what the longest layer takes on an accelerator of no particular make
};

/* Of rank `rank` of the config. Once *stop is set it fails, as dry_rank.h says; NULL: nobody stops
 * it. Release with up_trainer_plan_release, also after a failure. */
enum up_status up_trainer_plan(const struct up_config *config, int rank, volatile const int *stop,
                               struct up_trainer_plan *plan, struct up_error *err);
void up_trainer_plan_release(struct up_trainer_plan *plan);

#endif
