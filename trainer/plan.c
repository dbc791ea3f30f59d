#include "trainer/plan.h"
#include "ops/rehearsal.h"
#include "trainer/machine.h"
#include "trainer/step.h"

static enum up_status dry_step(struct up_trainer *trainer, struct up_error *err)
{
    static const struct up_hyper hyper = {0};
    struct up_step_result result;
    return up_trainer_step(trainer, 0, 1, &hyper, &result, err);
}

// The rehearsal takes place where the step's tensors will lie.
static void make_room(struct up_trainer_plan *plan)
{
    int64_t *height = &plan->step.height[UP_SPACE_DEVICE];
    *height = up_max(*height, up_rehearsal_bytes(plan->rehearsal));
}

enum up_status up_trainer_plan(const struct up_config *config, int rank,
                               struct up_trainer_plan *plan, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_machine machine;
    struct up_comm *world = NULL, *cp = NULL;
    struct up_step_lives lives = {0};
    struct up_rank dry_rank = {0};
    struct up_trainer trainer = {0};
    struct up_device *device = NULL;
    *plan = (struct up_trainer_plan){0};
    UP_TRY(up_machine_find("generic", &machine, err));
    device = up_device_dry_create(config->as, &machine, err);
    if (!device) UP_TRY(err->status);
    UP_TRY(up_comm_dry_create((int)up_config_ranks(config), rank, &world, err));
    UP_TRY(up_comm_dry_create((int)config->cp, (int)up_config_cp_rank(config, rank), &cp, err));
    UP_TRY(up_rank_init(&dry_rank, rank, device, NULL, NULL, err));
    UP_TRY(up_trainer_init(&trainer, &dry_rank, config, world, cp, err));
    up_rank_record_lives(&dry_rank, &lives);
    dry_rank.rehearsal = plan->rehearsal = up_rehearsal_create();
    if (!plan->rehearsal) UP_TRY(up_fail(err, UP_FAILED, "out of host memory"));
    UP_TRY(dry_step(&trainer, err));
    UP_TRY(up_step_plan_make(&dry_rank, &lives, &plan->step, err));
    if (config->as == UP_DEVICE_CUDA) make_room(plan);
    plan->layer_s = trainer.longest_s;
out:
    up_trainer_release(&trainer);
    if (dry_rank.device) up_rank_release(&dry_rank);
    up_step_lives_release(&lives);
    up_comm_destroy(cp);
    up_comm_destroy(world);
    up_device_destroy(device);
    return rc;
}

void up_trainer_plan_release(struct up_trainer_plan *plan)
{
    up_step_plan_release(&plan->step);
    up_rehearsal_destroy(plan->rehearsal);
    *plan = (struct up_trainer_plan){0};
}
