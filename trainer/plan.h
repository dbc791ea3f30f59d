/* The planned arena of a config: a dry run of one step gives every lifetime, mem/plan.h the
 * offsets. */
#ifndef UP_TRAINER_PLAN_H
#define UP_TRAINER_PLAN_H

#include "mem/mem.h"
#include "model/config.h"

/* The plan of rank `rank` of the config. Release with up_step_plan_release. *layer_s, unless NULL,
 * is what the longest layer takes on an accelerator of no particular make. */
enum up_status up_trainer_plan(const struct up_config *config, int rank, struct up_step_plan *plan,
                               double *layer_s, struct up_error *err);

#endif
