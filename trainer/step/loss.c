/* Final norm, logits, cross entropy and the way back, over slices: a slice's logits become their
 * own gradient and are gone before the next slice's exist. */
#include "trainer/step/parts.h"

static struct up_unit *head_unit(struct up_trainer *trainer, enum up_param_kind *kind)
{
    bool tied = trainer->config->model.tied;
    *kind = tied ? UP_PARAM_EMBED : UP_PARAM_HEAD;
    return tied ? up_units_embed(&trainer->units) : up_units_head(&trainer->units);
}

// Weights to be used and gradients to be added to.
static void begin_unit(struct up_trainer *trainer, struct up_unit *unit)
{
    up_unit_acquire(&trainer->units, unit);
    up_unit_grads_begin(&trainer->units, unit);
}

static void end_unit(struct up_trainer *trainer, struct up_unit *unit)
{
    up_unit_grads_end(&trainer->units, unit);
    up_unit_drop(&trainer->units, unit);
}

// The slice's loss is added to the scalars, logits become their gradient.
static void cross_entropy(struct up_trainer *trainer, struct up_tensor *logits,
                          const int32_t *targets, int64_t rows, double scale)
{
    up_op_cross_entropy(trainer->rank, UP_STREAM_COMPUTE,
                        &(struct up_cross_entropy_args){
                            .logits = logits->data,
                            .targets = targets,
                            .loss_sum = (double *)trainer->scalars->data + UP_SCALAR_LOSS,
                            .scale = (float)scale,
                            .rows = rows,
                            .vocab = trainer->config->model.vocab,
                            .dtype = trainer->config->dtype});
}

void up_loss(struct up_trainer *trainer, struct up_tensor *x, const struct up_tensor *tokens,
             double scale)
{
    const struct up_model *model = &trainer->config->model;
    struct up_rank *rank = trainer->rank;
    struct up_unit *norm_unit = up_units_head(&trainer->units);
    enum up_param_kind head;
    struct up_unit *unit = head_unit(trainer, &head);
    const int32_t *targets = up_row(tokens, 1);
    struct up_tiles tiles = up_tiles_of(up_trainer_tokens(trainer), trainer->config->tile_loss);

    up_range_begin(rank, "loss", UP_NO_LAYER);
    begin_unit(trainer, norm_unit);
    if (unit != norm_unit) begin_unit(trainer, unit);
    struct up_tensor *h = up_alloc(rank, UP_TAG(NORM, "loss.h"), trainer->config->dtype,
                                   UP_SHAPE(tiles.tile, model->hidden));
    struct up_tensor *logits = up_alloc(rank, UP_TAG(LOSS, "loss.logits"), trainer->config->dtype,
                                        UP_SHAPE(tiles.tile, model->vocab));
    for (int64_t i = 0; i < up_tiles_count(tiles); i++) {
        struct up_tile tile = up_tile_at(tiles, i);
        void *x_rows = up_row(x, tile.first);
        const void *norm_weight = up_unit_weight(norm_unit, UP_PARAM_FINAL_NORM);
        const void *weight = up_unit_weight(unit, head);
        up_norm(trainer, x_rows, norm_weight, h->data, tile.rows);
        up_project(trainer, h->data, weight, logits->data, tile.rows, model->vocab, model->hidden,
                   model->hidden, 0);
        cross_entropy(trainer, logits, targets + tile.first, tile.rows, scale);
        up_project_grad(trainer, logits->data, h->data, up_unit_grad(unit, head), tile.rows,
                        model->vocab, model->hidden, model->hidden);
        up_project_back(trainer, logits->data, weight, h->data, tile.rows, model->vocab,
                        model->hidden, model->hidden, 0);
        up_norm_back(trainer, x_rows, norm_weight, h->data, x_rows,
                     up_unit_grad(norm_unit, UP_PARAM_FINAL_NORM), tile.rows, false);
    }
    up_free(rank, &logits);
    up_free(rank, &h);
    if (unit != norm_unit) end_unit(trainer, unit);
    end_unit(trainer, norm_unit);
    up_range_end(rank);
}
