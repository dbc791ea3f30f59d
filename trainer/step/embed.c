#include "trainer/step/parts.h"

struct up_tensor *up_embed_forward(struct up_trainer *trainer, const struct up_tensor *tokens)
{
    const struct up_config *config = trainer->config;
    int64_t rows = up_trainer_tokens(trainer);
    struct up_unit *unit = up_units_embed(&trainer->units);
    up_range_begin(trainer->rank, "embed", UP_NO_LAYER);
    up_unit_acquire(&trainer->units, unit);
    // The first block's input.
    struct up_tensor *x = up_alloc(trainer->rank, UP_TAG_LAYER(CHECKPOINT, "x", 0), config->dtype,
                                   UP_SHAPE(rows, config->model.hidden));
    up_op_embed_forward(
        trainer->rank, UP_STREAM_COMPUTE,
        &(struct up_embed_forward_args){.ids = up_row(tokens, 0),
                                        .table = up_unit_weight(unit, UP_PARAM_EMBED),
                                        .out = x->data,
                                        .rows = rows,
                                        .width = config->model.hidden,
                                        .vocab = config->model.vocab,
                                        .dtype = config->dtype});
    up_unit_drop(&trainer->units, unit);
    up_range_end(trainer->rank);
    return x;
}

void up_embed_backward(struct up_trainer *trainer, const struct up_tensor *tokens,
                       const struct up_tensor *d)
{
    const struct up_config *config = trainer->config;
    struct up_unit *unit = up_units_embed(&trainer->units);
    up_range_begin(trainer->rank, "embed", UP_NO_LAYER);
    up_unit_grads_begin(&trainer->units, unit);
    up_op_embed_backward(
        trainer->rank, UP_STREAM_COMPUTE,
        &(struct up_embed_backward_args){.ids = up_row(tokens, 0),
                                         .d_out = d->data,
                                         .d_table = up_unit_grad(unit, UP_PARAM_EMBED),
                                         .rows = up_trainer_tokens(trainer),
                                         .width = config->model.hidden,
                                         .vocab = config->model.vocab,
                                         .dtype = config->dtype});
    up_unit_grads_end(&trainer->units, unit);
    up_range_end(trainer->rank);
}
