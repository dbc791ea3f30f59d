#include "trainer/step/step_impl.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

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

void up_step_progress(struct up_trainer *trainer, double amount)
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

/* --- A micro-batch
 * -------------------------------------------------------------------------------- */

// Inputs and targets to the device: i32 [2, batch, local seq].
static struct up_tensor *load_tokens(struct up_trainer *trainer, int64_t a)
{
    struct up_rank *rank = trainer->rank;
    const struct up_config *config = trainer->config;
    struct up_tensor *tokens =
        up_alloc_on(rank, UP_SPACE_DEVICE, UP_STREAM_COPY_IN, UP_TAG(DATA, "data.tokens"), UP_I32,
                    UP_SHAPE(2, config->batch, up_config_tokens(config, trainer->cp_rank)));
    struct up_tensor staging = *trainer->tokens_host;
    staging.data = up_trainer_inputs(trainer, a, 0);
    staging.bytes = tokens->bytes;
    up_copy(rank, UP_STREAM_COPY_IN, tokens, &staging);
    up_stream_wait(rank, UP_STREAM_COMPUTE, UP_STREAM_COPY_IN);
    return tokens;
}

static struct up_tensor *forward(struct up_trainer *trainer, const struct up_tensor *tokens,
                                 int64_t counted)
{
    struct up_rank *rank = trainer->rank;
    rank->phase = UP_PHASE_FORWARD;
    up_range_begin(rank, "forward", UP_NO_LAYER);
    struct up_tensor *x = up_embed_forward(trainer, tokens);
    for (int64_t layer = 0; layer < up_config_layers(trainer->config) && !up_rank_failed(rank);
         layer++)
        x = up_block_forward(trainer, layer, x);
    // A step without a target that counts has no loss, and its gradients are zero.
    up_loss(trainer, x, tokens, counted ? 1.0 / (double)counted : 0);
    up_range_end(rank);
    return x;
}

static void backward(struct up_trainer *trainer, struct up_tensor *d,
                     const struct up_tensor *tokens)
{
    struct up_rank *rank = trainer->rank;
    rank->phase = UP_PHASE_BACKWARD;
    up_range_begin(rank, "backward", UP_NO_LAYER);
    up_retag(rank, d, UP_TAG(CHECKPOINT, "dx"), d->shape);
    for (int64_t layer = up_config_layers(trainer->config) - 1; layer >= 0 && !up_rank_failed(rank);
         layer--)
        up_block_backward(trainer, layer, d);
    up_embed_backward(trainer, tokens, d);
    up_range_end(rank);
}

static void micro_batch(struct up_trainer *trainer, int64_t a, int64_t counted)
{
    struct up_rank *rank = trainer->rank;
    int64_t begin = rank->device->ops->clock_ns(rank->device);
    rank->phase = UP_PHASE_FORWARD;
    struct up_tensor *tokens = load_tokens(trainer, a);
    struct up_tensor *d = forward(trainer, tokens, counted);
    backward(trainer, d, tokens);
    up_free(rank, &d);
    up_free(rank, &tokens);
    trainer->micro_batch_ns = rank->device->ops->clock_ns(rank->device) - begin;
}

/* --- A step
 * --------------------------------------------------------------------------------------- */

static void gradients(struct up_trainer *trainer, int64_t counted)
{
    struct up_rank *rank = trainer->rank;
    rank->phase = UP_PHASE_FORWARD;
    trainer->progress_done = 0;
    up_op_fill(
        rank, UP_STREAM_COMPUTE,
        &(struct up_fill_args){.x = trainer->scalars->data, .bytes = trainer->scalars->bytes});
    up_units_zero_grads(&trainer->units);
    for (int64_t a = 0; a < trainer->config->accum && !up_rank_failed(rank); a++)
        micro_batch(trainer, a, counted);
    rank->phase = UP_PHASE_OPTIMIZER;
    up_range_begin(rank, "optimizer", UP_NO_LAYER);
    up_units_reduce_grads(&trainer->units);
    up_optimizer_norm(trainer);
}

// Waits for the step and reads its scalars.
static enum up_status finish(struct up_trainer *trainer, int64_t counted,
                             struct up_step_result *result, struct up_error *err)
{
    struct up_rank *rank = trainer->rank;
    up_copy(rank, UP_STREAM_COMPUTE, trainer->scalars_host, trainer->scalars);
    up_range_end(rank);
    for (int stream = 0; stream < UP_STREAM_COUNT; stream++)
        up_stream_synchronize(rank, (enum up_stream)stream);
    struct up_device *device = rank->device;
    if (device->ops->check && device->ops->check(device, err))
        up_rank_fail(rank, err->status, "%s", err->text);
    up_step_progress(trainer, 0); // a failure anywhere ends the step
    *result = (struct up_step_result){NAN, NAN};
    if (up_rank_failed(rank)) return up_fail(err, rank->error.status, "%s", rank->error.text);
    if (rank->device->kind == UP_DEVICE_DRY) return UP_OK;
    const double *scalars = trainer->scalars_host->data;
    if (counted) result->loss = scalars[UP_SCALAR_LOSS] / (double)counted;
    result->grad_norm = sqrt(scalars[UP_SCALAR_NORM]);
    return UP_OK;
}

enum up_status up_trainer_gradients(struct up_trainer *trainer, int64_t counted,
                                    struct up_step_result *result, struct up_error *err)
{
    up_rank_step_begin(trainer->rank, 0);
    gradients(trainer, counted);
    enum up_status rc = finish(trainer, counted, result, err);
    if (!rc) up_rank_step_end(trainer->rank, result->loss, result->grad_norm, counted);
    return rc;
}

enum up_status up_trainer_step(struct up_trainer *trainer, int64_t step, int64_t counted,
                               const struct up_hyper *hyper, struct up_step_result *result,
                               struct up_error *err)
{
    struct up_rank *rank = trainer->rank;
    up_rank_step_begin(rank, step);
    gradients(trainer, counted);
    up_optimizer_update(trainer, hyper, step + 1);
    enum up_status rc = finish(trainer, counted, result, err);
    if (!rc) up_rank_step_end(rank, result->loss, result->grad_norm, counted);
    return rc;
}
