#include "trainer/step/trainer.h"

#include <stdatomic.h>
#include <stdlib.h>

/* --- Life
 * ----------------------------------------------------------------------------------------- */

// The arrays of what blocks keep, an entry per slot and layer, and the backward's d_o.
static enum up_status init_kept(struct up_trainer *trainer, struct up_error *err)
{
    size_t layers = (size_t)trainer->config->model.layers;
    size_t slots = (size_t)(up_config_stages(trainer->config) * up_config_passes(trainer->config));
    trainer->kept = calloc(layers, sizeof *trainer->kept);
    trainer->slots = calloc((layers * 3 + 1) * slots, sizeof *trainer->slots);
    trainer->stored = calloc(layers * 2 * slots, sizeof *trainer->stored);
    if (!trainer->kept || !trainer->slots || !trainer->stored)
        return up_fail(err, UP_FAILED, "out of host memory");
    struct up_tensor **slot = trainer->slots;
    struct up_stored *stored = trainer->stored;
    for (size_t layer = 0; layer < layers; layer++) {
        struct up_kept *kept = &trainer->kept[layer];
        kept->q = slot;
        kept->k = slot + slots;
        kept->v = slot + 2 * slots;
        kept->o = stored;
        kept->lse = stored + slots;
        slot += 3 * slots;
        stored += 2 * slots;
    }
    trainer->stage_scratch = slot;
    return UP_OK;
}

static void init_workspace(struct up_trainer *trainer)
{
    struct up_rank *rank = trainer->rank;
    struct up_device *device = rank->device;
    int64_t bytes = up_device_workspace_bytes(trainer->config->as);
    if (!bytes) return;
    trainer->workspace =
        up_alloc(rank, UP_TAG(WORKSPACE, "device.workspace"), UP_U8, UP_SHAPE(bytes));
    if (device->ops->give_workspace && !up_rank_failed(rank))
        device->ops->give_workspace(device, trainer->workspace->data);
}

enum up_status up_trainer_init(struct up_trainer *trainer, struct up_rank *rank,
                               const struct up_config *config, struct up_comm *world,
                               struct up_comm *cp, struct up_error *err)
{
    enum up_status rc = UP_OK;
    int64_t number = up_comm_rank(world);
    *trainer = (struct up_trainer){.rank = rank,
                                   .config = config,
                                   .world = world,
                                   .cp = cp,
                                   .cp_rank = up_config_cp_rank(config, number),
                                   .dp_rank = up_config_dp_rank(config, number)};
    struct up_shape scalars = UP_SHAPE(UP_SCALAR_COUNT);
    rank->phase = UP_PHASE_INIT;
    UP_TRY(init_kept(trainer, err));
    UP_TRY(up_layouts_init(&trainer->layouts, config, trainer->cp_rank, err));
    init_workspace(trainer);
    UP_TRY(up_units_init(&trainer->units, rank, config, world, err));
    trainer->scalars = up_alloc(rank, UP_TAG(WORKSPACE, "step.scalars"), UP_F64, scalars);
    trainer->scalars_host = up_alloc_on(rank, UP_SPACE_HOST, UP_STREAM_COMPUTE,
                                        UP_TAG(WORKSPACE, "step.scalars"), UP_F64, scalars);
    trainer->ticks =
        up_alloc_on(rank, UP_SPACE_HOST, UP_STREAM_COMPUTE, UP_TAG(WORKSPACE, "step.ticks"), UP_F64,
                    UP_SHAPE(1)); // the bytes of a uint64_t
    trainer->tokens_host = up_alloc_on(
        rank, UP_SPACE_HOST, UP_STREAM_COPY_IN, UP_TAG(DATA, "data.staging"), UP_I32,
        UP_SHAPE(config->accum, 2, config->batch, up_config_tokens(config, trainer->cp_rank)));
    if (up_rank_failed(rank)) UP_TRY(up_fail(err, rank->error.status, "%s", rank->error.text));
    if (rank->device->kind != UP_DEVICE_DRY) atomic_init(up_trainer_ticks(trainer), 0);
    // The first step begins as the others do, beside nothing else.
    for (int stream = 0; stream < UP_STREAM_COUNT; stream++)
        up_stream_synchronize(rank, (enum up_stream)stream);
out:
    if (rc) up_trainer_release(trainer);
    return rc;
}

void up_trainer_release(struct up_trainer *trainer)
{
    up_units_release(&trainer->units);
    up_layouts_release(&trainer->layouts);
    free(trainer->kept);
    free(trainer->slots);
    free(trainer->stored);
    trainer->kept = NULL;
    trainer->slots = NULL;
    trainer->stored = NULL;
}

/* --- Tokens
 * --------------------------------------------------------------------------------------- */

int64_t up_trainer_tokens(const struct up_trainer *trainer)
{
    return trainer->config->batch * up_config_tokens(trainer->config, trainer->cp_rank);
}

// Row `row` of the staging's [accum, 2, batch] rows.
static int32_t *staging_row(const struct up_trainer *trainer, int64_t row)
{
    return (int32_t *)trainer->tokens_host->data +
           row * up_config_tokens(trainer->config, trainer->cp_rank);
}

int32_t *up_trainer_inputs(const struct up_trainer *trainer, int64_t a, int64_t b)
{
    return staging_row(trainer, 2 * a * trainer->config->batch + b);
}

int32_t *up_trainer_targets(const struct up_trainer *trainer, int64_t a, int64_t b)
{
    return staging_row(trainer, (2 * a + 1) * trainer->config->batch + b);
}

/* --- How far it is
 * -------------------------------------------------------------------------------- */

// One more layer, as the device gets through it.
static void tick(struct up_trainer *trainer)
{
    struct up_device *device = trainer->rank->device;
    int64_t now = device->ops->clock_ns(device);
    double since = (double)(now - trainer->last_tick_ns) / 1e9;
    if (since > trainer->longest_s) trainer->longest_s = since;
    trainer->last_tick_ns = now;
    if (up_rank_failed(trainer->rank) || device->kind == UP_DEVICE_DRY) return;
    trainer->ticks_given++;
    if (device->ops->tick)
        device->ops->tick(device, UP_STREAM_COMPUTE, up_trainer_ticks(trainer),
                          trainer->ticks_given);
    else
        atomic_store(up_trainer_ticks(trainer), trainer->ticks_given);
}

_Atomic uint64_t *up_trainer_ticks(const struct up_trainer *trainer)
{
    return trainer->ticks->data;
}

void up_trainer_advance(struct up_trainer *trainer, double amount)
{
    struct up_rank *rank = trainer->rank;
    tick(trainer);
    struct up_error error;
    const struct up_config *config = trainer->config;
    trainer->progress_done += amount;
    if (trainer->progress && !up_rank_failed(rank))
        trainer->progress->tell(trainer->progress, trainer->progress_done,
                                (double)(3 * up_config_layers(config) * config->accum));
    if (trainer->stop && *trainer->stop) up_rank_fail(rank, UP_FAILED, "interrupted");
    // One that fails would leave the others waiting for it; one whose group has failed need not go
    // on.
    if (up_rank_failed(rank)) up_comm_abort(trainer->world, rank->error.text);
    if (up_rank_failed(rank) && trainer->cp != trainer->world)
        up_comm_abort(trainer->cp, rank->error.text);
    else if (up_comm_check(trainer->world, &error) || up_comm_check(trainer->cp, &error))
        up_rank_fail(rank, error.status, "%s", error.text);
}
