#include "trainer/units.h"
#include "ops/ops.h"

#include <stdlib.h>
#include <string.h>

enum { STAGING_ELEMENTS = 1 << 22 }; // 16 MiB at a time from host to device

struct up_unit *up_units_of(struct up_units *units, const struct up_param *param)
{
    switch (param->unit) {
    case UP_UNIT_EMBED: return up_units_embed(units);
    case UP_UNIT_BLOCK: return up_units_block(units, param->layer);
    case UP_UNIT_HEAD: return up_units_head(units);
    }
    UP_BUG("parameter %s belongs to no unit", param->hf_name);
}

static void lay_out(struct up_units *units, const struct up_model *model)
{
    for (int i = 0; i < units->count; i++) {
        struct up_unit *unit = &units->unit[i];
        unit->kind = i == 0 ? UP_UNIT_EMBED : i == units->count - 1 ? UP_UNIT_HEAD : UP_UNIT_BLOCK;
        unit->layer = unit->kind == UP_UNIT_BLOCK ? i - 1 : UP_NO_LAYER;
        for (int kind = 0; kind < UP_PARAM_KIND_COUNT; kind++) unit->at[kind] = -1;
    }
    int count = up_model_param_count(model);
    for (int i = 0; i < count; i++) {
        struct up_param param = up_model_param(model, i);
        struct up_unit *unit = up_units_of(units, &param);
        unit->at[param.kind] = unit->elements;
        unit->elements += param.rows * param.cols;
    }
}

// The unit's four buffers have names of their own: "layers.3.weights", "embed.adam.m".
static const struct unit_names {
    const char *weights, *grads, *m, *v, *used;
} unit_names[] = {
    [UP_UNIT_EMBED] = {"embed.weights", "embed.grads", "embed.adam.m", "embed.adam.v",
                       "embed.weights.gathered"},
    [UP_UNIT_BLOCK] = {"weights", "grads", "adam.m", "adam.v", "weights.gathered"},
    [UP_UNIT_HEAD] = {"head.weights", "head.grads", "head.adam.m", "head.adam.v",
                      "head.weights.gathered"},
};

enum up_status up_units_init(struct up_units *units, struct up_rank *rank,
                             const struct up_config *config, struct up_error *err)
{
    int count = (int)config->model.layers + 2;
    *units = (struct up_units){.count = count, .dtype = config->dtype};
    units->unit = calloc((size_t)count, sizeof *units->unit);
    if (!units->unit) return up_fail(err, UP_FAILED, "out of host memory");
    lay_out(units, &config->model);
    for (int i = 0; i < count; i++) {
        struct up_unit *unit = &units->unit[i];
        const struct unit_names *name = &unit_names[unit->kind];
        struct up_shape shape = UP_SHAPE(unit->elements);
        int layer = unit->layer;
        unit->weights = up_alloc(rank, UP_TAG_LAYER(PARAMETER, name->weights, layer), UP_F32, shape);
        unit->grads = up_alloc(rank, UP_TAG_LAYER(GRADIENT, name->grads, layer), UP_F32, shape);
        unit->m = up_alloc(rank, UP_TAG_LAYER(OPTIMIZER, name->m, layer), UP_F32, shape);
        unit->v = up_alloc(rank, UP_TAG_LAYER(OPTIMIZER, name->v, layer), UP_F32, shape);
        struct up_tensor *moments[] = {unit->m, unit->v};
        for (int k = 0; k < UP_COUNT(moments); k++)
            up_op_fill(rank, UP_STREAM_COMPUTE,
                       &(struct up_fill_args){moments[k]->data, moments[k]->bytes});
    }
    if (!up_rank_failed(rank)) return UP_OK;
    up_units_release(units);
    return up_fail(err, rank->error.status, "%s", rank->error.text);
}

void up_units_release(struct up_units *units)
{
    free(units->unit);
    *units = (struct up_units){0};
}

/* --- Contents ----------------------------------------------------------------------------------- */

// Where the numbers of a parameter come from: elements [first, first + count) into `out`.
struct source {
    enum up_status (*read)(struct source *source, const struct up_param *param, int index,
                           int64_t first, int64_t count, float *out, struct up_error *err);
    uint64_t seed;
    double std;
    struct up_weights *weights;
};

static enum up_status read_random(struct source *source, const struct up_param *param, int index,
                                  int64_t first, int64_t count, float *out, struct up_error *err)
{
    (void)err;
    float std = (float)source->std;
    bool norm = param->dims == 1;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; i++)
        out[i] = norm ? 1 : std * up_random_normal(source->seed, (uint64_t)index, (uint64_t)(first + i));
    return UP_OK;
}

static enum up_status read_weights(struct source *source, const struct up_param *param, int index,
                                   int64_t first, int64_t count, float *out, struct up_error *err)
{
    (void)index;
    return up_weights_read(source->weights, param, first, count, out, err);
}

// One parameter, a staging buffer at a time. The copy has ended when this returns.
static enum up_status fill_param(struct up_unit *unit, struct up_rank *rank, struct source *source,
                                 const struct up_param *param, int index, struct up_tensor *staging,
                                 struct up_error *err)
{
    enum up_status rc = UP_OK;
    int64_t elements = param->rows * param->cols, step = staging->shape.extent[0];
    for (int64_t first = 0; first < elements; first += step) {
        int64_t count = up_min(step, elements - first);
        UP_TRY(source->read(source, param, index, first, count, staging->data, err));
        struct up_tensor from = *staging, to = *unit->weights;
        from.bytes = to.bytes = count * (int64_t)sizeof(float);
        to.data = (float *)to.data + unit->at[param->kind] + first;
        up_copy(rank, UP_STREAM_COMPUTE, &to, &from);
        up_stream_synchronize(rank, UP_STREAM_COMPUTE);
    }
out:
    return rc;
}

static enum up_status fill_all(struct up_units *units, struct up_rank *rank,
                               const struct up_model *model, struct source *source,
                               struct up_error *err)
{
    enum up_status rc = UP_OK;
    if (rank->device->kind == UP_DEVICE_DRY) return UP_OK; // there is nothing to put them in
    struct up_tensor *staging =
        up_alloc_on(rank, UP_SPACE_HOST, UP_STREAM_COMPUTE, UP_TAG(WORKSPACE, "init.staging"), UP_F32,
                    UP_SHAPE(up_min(STAGING_ELEMENTS, up_model_parameters(model))));
    int count = up_model_param_count(model);
    for (int i = 0; i < count && !up_rank_failed(rank); i++) {
        struct up_param param = up_model_param(model, i);
        UP_TRY(fill_param(up_units_of(units, &param), rank, source, &param, i, staging, err));
    }
    if (up_rank_failed(rank)) rc = up_fail(err, rank->error.status, "%s", rank->error.text);
out:
    up_free(rank, &staging);
    return rc;
}

enum up_status up_units_randomise(struct up_units *units, struct up_rank *rank,
                                  const struct up_model *model, uint64_t seed, struct up_error *err)
{
    struct source source = {.read = read_random, .seed = seed, .std = model->init_std};
    return fill_all(units, rank, model, &source, err);
}

enum up_status up_units_load(struct up_units *units, struct up_rank *rank,
                             const struct up_model *model, struct up_weights *weights,
                             struct up_error *err)
{
    struct source source = {.read = read_weights, .weights = weights};
    return fill_all(units, rank, model, &source, err);
}

/* --- Use ---------------------------------------------------------------------------------------- */

void up_unit_acquire(struct up_units *units, struct up_unit *unit, struct up_rank *rank)
{
    UP_ASSERT(!unit->used || up_rank_failed(rank));
    if (units->dtype == UP_F32) {
        unit->used = unit->weights;
        return;
    }
    unit->used =
        up_alloc(rank, UP_TAG_LAYER(COMM, unit_names[unit->kind].used, unit->layer), units->dtype,
                 UP_SHAPE(unit->elements));
    up_op_cast(rank, UP_STREAM_COMPUTE,
               &(struct up_cast_args){unit->weights->data, unit->used->data, unit->elements, UP_F32,
                                      units->dtype});
}

void up_unit_drop(struct up_unit *unit, struct up_rank *rank)
{
    if (unit->used != unit->weights) up_free(rank, &unit->used);
    unit->used = NULL;
}

const void *up_unit_weight(const struct up_unit *unit, enum up_param_kind kind)
{
    UP_ASSERT(unit->at[kind] >= 0);
    return (const char *)unit->used->data + unit->at[kind] * up_dtype_bytes[unit->used->dtype];
}

float *up_unit_grad(const struct up_unit *unit, enum up_param_kind kind)
{
    UP_ASSERT(unit->at[kind] >= 0);
    return (float *)unit->grads->data + unit->at[kind];
}

void up_units_zero_grads(struct up_units *units, struct up_rank *rank)
{
    for (int i = 0; i < units->count; i++)
        up_op_fill(rank, UP_STREAM_COMPUTE,
                   &(struct up_fill_args){units->unit[i].grads->data, units->unit[i].grads->bytes});
}
