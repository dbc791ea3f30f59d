#include "trainer/step/step.h"
#include "trainer/step/parts.h"

#include <math.h>

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
    up_trainer_advance(trainer, 0); // a failure anywhere ends the step
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
