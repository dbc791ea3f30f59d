#include "trainer/step_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int64_t up_trainer_tokens(const struct up_trainer *trainer)
{
    return trainer->config->batch * up_config_tokens(trainer->config, 0);
}

// The arrays of what blocks keep: six kinds per layer, one entry per stage, and the backward's d_o.
static enum up_status init_kept(struct up_trainer *trainer, struct up_error *err)
{
    size_t layers = (size_t)trainer->config->model.layers;
    size_t stages = (size_t)up_config_stages(trainer->config);
    trainer->kept = calloc(layers, sizeof *trainer->kept);
    trainer->slots = calloc((layers * 5 + 1) * stages, sizeof(struct up_tensor *));
    if (!trainer->kept || !trainer->slots) return up_fail(err, UP_FAILED, "out of host memory");
    struct up_tensor **slot = trainer->slots;
    for (size_t layer = 0; layer < layers; layer++) {
        struct up_kept *kept = &trainer->kept[layer];
        struct up_tensor ***arrays[] = {&kept->q, &kept->k, &kept->v, &kept->o, &kept->lse};
        for (int i = 0; i < UP_COUNT(arrays); i++, slot += stages) *arrays[i] = slot;
    }
    trainer->stage_scratch = slot;
    return UP_OK;
}

enum up_status up_trainer_init(struct up_trainer *trainer, struct up_rank *rank,
                               const struct up_config *config, struct up_error *err)
{
    enum up_status rc = UP_OK;
    *trainer = (struct up_trainer){.rank = rank, .config = config};
    struct up_shape scalars = UP_SHAPE(UP_SCALAR_COUNT);
    rank->phase = UP_PHASE_INIT;
    UP_TRY(init_kept(trainer, err));
    UP_TRY(up_units_init(&trainer->units, rank, config, err));
    trainer->scalars = up_alloc(rank, UP_TAG(WORKSPACE, "step.scalars"), UP_F64, scalars);
    trainer->scalars_host = up_alloc_on(rank, UP_SPACE_HOST, UP_STREAM_COMPUTE,
                                        UP_TAG(WORKSPACE, "step.scalars"), UP_F64, scalars);
    trainer->tokens_host =
        up_alloc_on(rank, UP_SPACE_HOST, UP_STREAM_COPY_IN, UP_TAG(DATA, "data.staging"), UP_I32,
                    UP_SHAPE(2, config->batch, up_config_tokens(config, 0)));
    if (up_rank_failed(rank)) UP_TRY(up_fail(err, rank->error.status, "%s", rank->error.text));
out:
    if (rc) up_trainer_release(trainer);
    return rc;
}

void up_trainer_release(struct up_trainer *trainer)
{
    up_units_release(&trainer->units);
    free(trainer->kept);
    free(trainer->slots);
    trainer->kept = NULL;
    trainer->slots = NULL;
}

void up_step_progress(struct up_trainer *trainer, double amount)
{
    struct up_rank *rank = trainer->rank;
    trainer->progress_done += amount;
    if (trainer->progress && !up_rank_failed(rank))
        trainer->progress->tell(trainer->progress, trainer->progress_done,
                                (double)(3 * trainer->config->model.layers));
    if (trainer->stop && *trainer->stop) up_rank_fail(rank, UP_FAILED, "interrupted");
}

// Inputs and targets to the device: i32 [2, batch, local seq].
static struct up_tensor *load_tokens(struct up_trainer *trainer)
{
    struct up_rank *rank = trainer->rank;
    struct up_tensor *tokens =
        up_alloc_on(rank, UP_SPACE_DEVICE, UP_STREAM_COPY_IN, UP_TAG(DATA, "data.tokens"), UP_I32,
                    trainer->tokens_host->shape);
    up_copy(rank, UP_STREAM_COPY_IN, tokens, trainer->tokens_host);
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
    for (int64_t layer = 0; layer < trainer->config->model.layers; layer++)
        x = up_block_forward(trainer, layer, x);
    // A sequence without a target that counts has no loss, and its gradients are zero.
    up_loss(trainer, x, tokens, counted ? 1.0 / (double)counted : 0);
    up_range_end(rank);
    return x;
}

static void backward(struct up_trainer *trainer, struct up_tensor *d, const struct up_tensor *tokens)
{
    struct up_rank *rank = trainer->rank;
    rank->phase = UP_PHASE_BACKWARD;
    up_range_begin(rank, "backward", UP_NO_LAYER);
    up_retag(rank, d, UP_TAG(GRADIENT, "dx"), d->shape);
    for (int64_t layer = trainer->config->model.layers - 1; layer >= 0; layer--)
        up_block_backward(trainer, layer, d);
    up_embed_backward(trainer, tokens, d);
    up_range_end(rank);
}

static void clear(struct up_trainer *trainer)
{
    up_op_fill(trainer->rank, UP_STREAM_COMPUTE,
               &(struct up_fill_args){trainer->scalars->data, trainer->scalars->bytes});
    up_units_zero_grads(&trainer->units, trainer->rank);
    trainer->progress_done = 0;
}

static void forward_backward(struct up_trainer *trainer, int64_t counted)
{
    struct up_rank *rank = trainer->rank;
    rank->phase = UP_PHASE_FORWARD;
    clear(trainer);
    struct up_tensor *tokens = load_tokens(trainer);
    struct up_tensor *d = forward(trainer, tokens, counted);
    backward(trainer, d, tokens);
    up_free(rank, &d);
    up_free(rank, &tokens);
}

// Waits for the step and reads its scalars.
static enum up_status finish(struct up_trainer *trainer, int64_t counted,
                             struct up_step_result *result, struct up_error *err)
{
    struct up_rank *rank = trainer->rank;
    up_copy(rank, UP_STREAM_COMPUTE, trainer->scalars_host, trainer->scalars);
    for (int stream = 0; stream < UP_STREAM_COUNT; stream++)
        up_stream_synchronize(rank, (enum up_stream)stream);
    *result = (struct up_step_result){NAN, NAN};
    if (up_rank_failed(rank)) return up_fail(err, rank->error.status, "%s", rank->error.text);
    if (rank->device->kind == UP_DEVICE_DRY) return UP_OK;
    const double *scalars = trainer->scalars_host->data;
    result->loss = scalars[UP_SCALAR_LOSS] / (double)counted;
    result->grad_norm = sqrt(scalars[UP_SCALAR_NORM]);
    return UP_OK;
}

enum up_status up_trainer_gradients(struct up_trainer *trainer, int64_t counted,
                                    struct up_step_result *result, struct up_error *err)
{
    forward_backward(trainer, counted);
    up_optimizer_norm(trainer);
    return finish(trainer, counted, result, err);
}

enum up_status up_trainer_step(struct up_trainer *trainer, int64_t step, int64_t counted,
                               const struct up_hyper *hyper, struct up_step_result *result,
                               struct up_error *err)
{
    struct up_rank *rank = trainer->rank;
    up_rank_step_begin(rank, step);
    forward_backward(trainer, counted);
    rank->phase = UP_PHASE_OPTIMIZER;
    up_range_begin(rank, "optimizer", UP_NO_LAYER);
    up_optimizer_norm(trainer);
    up_optimizer_update(trainer, hyper, step + 1);
    up_range_end(rank);
    enum up_status rc = finish(trainer, counted, result, err);
    if (!rc) up_rank_step_end(rank, result->loss, result->grad_norm, counted);
    return rc;
}
