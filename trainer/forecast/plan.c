#include "trainer/forecast/plan.h"
#include "ops/rehearsal.h"
#include "trainer/forecast/dry_rank.h"
#include "trainer/forecast/machine.h"

// The rehearsal takes place where the step's tensors will lie.
static void make_room(struct up_trainer_plan *plan)
{
    int64_t *height = &plan->step.height[UP_SPACE_DEVICE];
    *height = up_max(*height, up_rehearsal_bytes(plan->rehearsal));
}

enum up_status up_trainer_plan(const struct up_config *config, int rank, volatile const int *stop,
                               struct up_trainer_plan *plan, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_machine machine;
    struct up_step_lives lives = {0};
    struct up_dry_rank dry = {0};
    *plan = (struct up_trainer_plan){0};
    UP_TRY(up_machine_find("generic", &machine, err));
    UP_TRY(up_dry_rank_open(&dry, config, &machine, rank, true, err));
    dry.trainer.stop = stop;
    up_rank_record_lives(&dry.rank, &lives);
    UP_TRY(up_dry_rank_step(&dry, 0, err));
    UP_TRY(up_step_plan_make(&dry.rank, &lives, &plan->step, err));
    plan->rehearsal = dry.rehearsal;
    dry.rehearsal = NULL;
    if (config->as == UP_DEVICE_CUDA) make_room(plan);
    plan->layer_s = dry.trainer.longest_s;
out:
    up_dry_rank_close(&dry);
    up_step_lives_release(&lives);
    return rc;
}

void up_trainer_plan_release(struct up_trainer_plan *plan)
{
    up_step_plan_release(&plan->step);
    up_rehearsal_destroy(plan->rehearsal);
    *plan = (struct up_trainer_plan){0};
}
