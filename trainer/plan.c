#include "trainer/plan.h"
#include "trainer/machine.h"
#include "trainer/step.h"

static enum up_status record_step(struct up_trainer *trainer, struct up_step_lives *lives,
                                  struct up_error *err)
{
    static const struct up_hyper hyper = {0};
    struct up_step_result result;
    up_rank_record_lives(trainer->rank, lives);
    return up_trainer_step(trainer, 0, 1, &hyper, &result, err);
}

enum up_status up_trainer_plan(const struct up_config *config, int rank, struct up_step_plan *plan,
                               double *layer_s, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_machine machine;
    struct up_comm *world = NULL, *cp = NULL;
    struct up_step_lives lives = {0};
    struct up_rank dry_rank = {0};
    struct up_trainer trainer = {0};
    struct up_device *device = NULL;
    UP_TRY(up_machine_find("generic", &machine, err));
    device = up_device_dry_create(config->as, &machine, err);
    if (!device) UP_TRY(err->status);
    UP_TRY(up_comm_dry_create((int)up_config_ranks(config), rank, &world, err));
    UP_TRY(up_comm_dry_create((int)config->cp, (int)up_config_cp_rank(config, rank), &cp, err));
    UP_TRY(up_rank_init(&dry_rank, rank, device, NULL, NULL, err));
    UP_TRY(up_trainer_init(&trainer, &dry_rank, config, world, cp, err));
    UP_TRY(record_step(&trainer, &lives, err));
    UP_TRY(up_step_plan_make(&dry_rank, &lives, plan, err));
    if (layer_s) *layer_s = trainer.longest_s;
out:
    up_trainer_release(&trainer);
    if (dry_rank.device) up_rank_release(&dry_rank);
    up_step_lives_release(&lives);
    up_comm_destroy(cp);
    up_comm_destroy(world);
    up_device_destroy(device);
    return rc;
}
