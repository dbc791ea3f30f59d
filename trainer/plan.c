#include "trainer/plan.h"
#include "trainer/step.h"

// What things cost does not matter here.
static const struct up_machine any_machine = {.name = "any",
                                              .flops = {1e15, 1e15, 1e15, 0, 0},
                                              .memory_bytes_per_s = 1e12,
                                              .to_host_bytes_per_s = 1e12,
                                              .from_host_bytes_per_s = 1e12,
                                              .link_bytes_per_s = 1e12,
                                              .launch_s = 1e-6};

static enum up_status record_step(struct up_trainer *trainer, struct up_step_lives *lives,
                                  struct up_error *err)
{
    static const struct up_hyper hyper = {0};
    struct up_step_result result;
    up_rank_record_lives(trainer->rank, lives);
    return up_trainer_step(trainer, 0, 1, &hyper, &result, err);
}

enum up_status up_trainer_plan(const struct up_config *config, int rank, struct up_step_plan *plan,
                               struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_comm *world = NULL, *cp = NULL;
    struct up_step_lives lives = {0};
    struct up_rank dry_rank = {0};
    struct up_trainer trainer = {0};
    struct up_device *device = up_device_dry_create(config->as, &any_machine, err);
    if (!device) return err->status;
    UP_TRY(up_comm_dry_create((int)up_config_ranks(config), rank, &world, err));
    UP_TRY(up_comm_dry_create((int)config->cp, (int)up_config_cp_rank(config, rank), &cp, err));
    UP_TRY(up_rank_init(&dry_rank, rank, device, NULL, NULL, err));
    UP_TRY(up_trainer_init(&trainer, &dry_rank, config, world, cp, err));
    UP_TRY(record_step(&trainer, &lives, err));
    UP_TRY(up_step_plan_make(&dry_rank, &lives, plan, err));
out:
    up_trainer_release(&trainer);
    if (dry_rank.device) up_rank_release(&dry_rank);
    up_step_lives_release(&lives);
    up_comm_destroy(cp);
    up_comm_destroy(world);
    up_device_destroy(device);
    return rc;
}
