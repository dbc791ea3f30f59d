/* Global-norm clipping and AdamW over the units' shards. */
#include "trainer/step_impl.h"

static double *norm_scalar(struct up_trainer *trainer)
{
    return (double *)trainer->scalars->data + UP_SCALAR_NORM;
}

void up_optimizer_norm(struct up_trainer *trainer)
{
    for (int i = 0; i < trainer->units.count; i++) {
        const struct up_unit *unit = &trainer->units.unit[i];
        up_op_sum_squares(trainer->rank, UP_STREAM_COMPUTE,
                          &(struct up_sum_squares_args){.x = unit->grads->data,
                                                        .sum = norm_scalar(trainer),
                                                        .count = unit->elements});
    }
}

// One tensor of the unit: matrices decay, vectors do not.
static void update_param(struct up_trainer *trainer, const struct up_unit *unit,
                         const struct up_param *param, const struct up_hyper *hyper, int64_t t)
{
    int64_t at = unit->at[param->kind];
    up_op_adamw(trainer->rank, UP_STREAM_COMPUTE,
                &(struct up_adamw_args){.weight = (float *)unit->weights->data + at,
                                        .m = (float *)unit->m->data + at,
                                        .v = (float *)unit->v->data + at,
                                        .gradient = (const float *)unit->grads->data + at,
                                        .norm_squared = norm_scalar(trainer),
                                        .count = param->rows * param->cols,
                                        .t = t,
                                        .lr = hyper->lr,
                                        .beta1 = hyper->beta1,
                                        .beta2 = hyper->beta2,
                                        .epsilon = hyper->epsilon,
                                        .decay = param->dims > 1 ? hyper->decay : 0,
                                        .clip = hyper->clip});
}

void up_optimizer_update(struct up_trainer *trainer, const struct up_hyper *hyper, int64_t t)
{
    const struct up_model *model = &trainer->config->model;
    int count = up_model_param_count(model);
    for (int i = 0; i < count; i++) {
        struct up_param param = up_model_param(model, i);
        update_param(trainer, up_units_of(&trainer->units, &param), &param, hyper, t);
    }
}
