#include "trainer/forecast/dry_rank.h"
#include "mem/arena.h"
#include "ops/rehearsal.h"
#include "trainer/forecast/machine.h"

enum up_status up_dry_rank_open(struct up_dry_rank *dry, const struct up_config *config,
                                const struct up_machine *machine, int rank, bool rehearse,
                                struct up_error *err)
{
    enum up_status rc = UP_OK;
    *dry = (struct up_dry_rank){.config = *config};
    config = &dry->config;
    dry->device = up_machine_dry_device(machine, config, err);
    if (!dry->device) UP_TRY(err->status);
    UP_TRY(up_comm_dry_create((int)up_config_ranks(config), rank, &dry->world, err));
    UP_TRY(
        up_comm_dry_create((int)config->cp, (int)up_config_cp_rank(config, rank), &dry->cp, err));
    UP_TRY(up_rank_init(&dry->rank, rank, dry->device, NULL, NULL, err));
    UP_TRY(up_trainer_init(&dry->trainer, &dry->rank, config, dry->world, dry->cp, err));
    for (int space = 0; space < UP_SPACE_COUNT; space++)
        dry->kept_high[space] = up_arena_high(dry->rank.arena[space]);
    if (rehearse) {
        dry->rank.rehearsal = dry->rehearsal = up_rehearsal_create();
        if (!dry->rehearsal) UP_TRY(up_fail(err, UP_FAILED, "out of host memory"));
    }
out:
    return rc;
}

enum up_status up_dry_rank_step(struct up_dry_rank *dry, int64_t step, struct up_error *err)
{
    static const struct up_hyper hyper = {0};
    struct up_step_result result;
    enum up_status rc = up_trainer_step(&dry->trainer, step, 1, &hyper, &result, err);
    volatile const int *stop = dry->trainer.stop;
    if (rc != UP_FAILED || !stop || !*stop) return rc;
    return up_fail(err, UP_FAILED, "interrupted before its first step");
}

void up_dry_rank_close(struct up_dry_rank *dry)
{
    up_trainer_release(&dry->trainer);
    if (dry->rank.device) up_rank_release(&dry->rank);
    up_rehearsal_destroy(dry->rehearsal);
    up_comm_destroy(dry->cp);
    up_comm_destroy(dry->world);
    up_device_destroy(dry->device);
    *dry = (struct up_dry_rank){0};
}
