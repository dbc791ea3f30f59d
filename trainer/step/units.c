#include "trainer/step/units.h"
#include "ops/ops.h"

#include <stdlib.h>

struct up_unit *up_units_of(struct up_units *units, const struct up_param *param)
{
    switch (param->unit) {
    case UP_UNIT_EMBED:
        return up_units_embed(units);
    case UP_UNIT_BLOCK:
        return up_units_block(units, param->layer);
    case UP_UNIT_HEAD:
        return up_units_head(units);
    }
    UP_BUG("parameter %s belongs to no unit", param->hf_name);
}

struct up_part up_unit_part(const struct up_unit *unit, const struct up_param *param)
{
    int64_t at = unit->at[param->kind], elements = param->rows * param->cols;
    int64_t first = up_max(at, unit->first);
    int64_t last = up_min(at + elements, unit->first + unit->own);
    if (last <= first) return (struct up_part){0};
    return (struct up_part){first - at, last - first, first - unit->first};
}

static void lay_out(struct up_units *units)
{
    const struct up_model *model = &units->config->model;
    int count = up_model_param_count(model);
    for (int i = 0; i < count; i++) units->params[i] = up_model_param(model, i);
    for (int i = 0; i < units->count; i++) {
        struct up_unit *unit = &units->unit[i];
        unit->kind = i == 0 ? UP_UNIT_EMBED : i == units->count - 1 ? UP_UNIT_HEAD : UP_UNIT_BLOCK;
        unit->layer = unit->kind == UP_UNIT_BLOCK ? i - 1 : UP_NO_LAYER;
        for (int kind = 0; kind < UP_PARAM_KIND_COUNT; kind++) unit->at[kind] = -1;
    }
    for (int i = 0; i < count; i++) {
        const struct up_param *param = &units->params[i];
        struct up_unit *unit = up_units_of(units, param);
        if (!unit->params++) unit->first_param = i;
        unit->at[param->kind] = unit->elements;
        unit->elements += param->rows * param->cols;
    }
    int64_t ranks = units->sharded ? up_comm_size(units->world) : 1;
    int64_t rank = units->sharded ? up_comm_rank(units->world) : 0;
    for (int i = 0; i < units->count; i++) {
        struct up_unit *unit = &units->unit[i];
        unit->share = up_ceil_div(unit->elements, ranks);
        unit->first = up_min(rank * unit->share, unit->elements);
        unit->own = up_min(unit->share, unit->elements - unit->first);
    }
}

// The names of a unit's buffers: "layers.3.weights", "embed.adam.m".
static const struct unit_names {
    const char *weights, *grads, *m, *v, *shard, *used, *full_grads;
} unit_names[] = {
    [UP_UNIT_EMBED] = {"embed.weights", "embed.grads", "embed.adam.m", "embed.adam.v",
                       "embed.shard", "embed.weights.gathered", "embed.grads.full"},
    [UP_UNIT_BLOCK] = {"weights", "grads", "adam.m", "adam.v", "shard", "weights.gathered",
                       "grads.full"},
    [UP_UNIT_HEAD] = {"head.weights", "head.grads", "head.adam.m", "head.adam.v", "head.shard",
                      "head.weights.gathered", "head.grads.full"},
};

static struct up_tensor *alloc_share(struct up_units *units, const struct up_unit *unit,
                                     enum up_space space, const char *name,
                                     enum up_category category, enum up_dtype dtype)
{
    struct up_tag tag = {{name, (int16_t)unit->layer, UP_NO_INDEX}, category};
    return up_alloc_on(units->rank, space, UP_STREAM_COMPUTE, tag, dtype, UP_SHAPE(unit->share));
}

static void zero(struct up_units *units, struct up_tensor *tensor)
{
    up_op_fill(units->rank, UP_STREAM_COMPUTE,
               &(struct up_fill_args){.x = tensor->data,
                                      .bytes = tensor->bytes,
                                      .on_host = tensor->space == UP_SPACE_HOST});
}

static void alloc_unit(struct up_units *units, struct up_unit *unit)
{
    const struct unit_names *name = &unit_names[unit->kind];
    bool on_host = units->config->optimizer_host;
    enum up_space space = on_host ? UP_SPACE_HOST : UP_SPACE_DEVICE;
    unit->weights = alloc_share(units, unit, space, name->weights, UP_CATEGORY_PARAMETER, UP_F32);
    unit->grads =
        alloc_share(units, unit, UP_SPACE_DEVICE, name->grads, UP_CATEGORY_GRADIENT, UP_F32);
    unit->m = alloc_share(units, unit, space, name->m, UP_CATEGORY_OPTIMIZER, UP_F32);
    unit->v = alloc_share(units, unit, space, name->v, UP_CATEGORY_OPTIMIZER, UP_F32);
    if (on_host)
        unit->shard = alloc_share(units, unit, UP_SPACE_DEVICE, name->shard, UP_CATEGORY_PARAMETER,
                                  units->config->dtype);
    // Padding is 0 from the start and stays so: weights and gradients of nothing.
    zero(units, unit->weights);
    zero(units, unit->m);
    zero(units, unit->v);
    if (unit->shard) zero(units, unit->shard);
}

enum up_status up_units_init(struct up_units *units, struct up_rank *rank,
                             const struct up_config *config, struct up_comm *world,
                             struct up_error *err)
{
    *units = (struct up_units){.count = (int)config->model.layers + 2,
                               .config = config,
                               .rank = rank,
                               .world = world,
                               .sharded = config->fsdp && up_comm_size(world) > 1};
    units->unit = calloc((size_t)units->count, sizeof *units->unit);
    units->params = calloc((size_t)up_model_param_count(&config->model), sizeof *units->params);
    if (!units->unit || !units->params) {
        up_units_release(units);
        return up_fail(err, UP_FAILED, "out of host memory");
    }
    lay_out(units);
    for (int i = 0; i < units->count; i++) alloc_unit(units, &units->unit[i]);
    if (!up_rank_failed(rank)) return UP_OK;
    up_units_release(units);
    return up_fail(err, rank->error.status, "%s", rank->error.text);
}

void up_units_release(struct up_units *units)
{
    free(units->unit);
    free(units->params);
    *units = (struct up_units){0};
}

/* --- Weights in use ------------------------------------------------------------------------------
 */

// What of the unit's state is used as it is, without a copy; NULL if nothing is.
static struct up_tensor *usable_state(const struct up_units *units, const struct up_unit *unit)
{
    if (units->sharded) return NULL;
    if (unit->shard) return unit->shard;
    return units->config->dtype == UP_F32 ? unit->weights : NULL;
}

void up_unit_prefetch(struct up_units *units, struct up_unit *unit)
{
    struct up_rank *rank = units->rank;
    enum up_dtype dtype = units->config->dtype;
    if (unit->used) return;
    unit->used = usable_state(units, unit);
    unit->ready = (struct up_moment){UP_STREAM_COMPUTE, 0};
    if (unit->used) return;
    int64_t ranks = units->sharded ? up_comm_size(units->world) : 1;
    struct up_tag tag = UP_TAG_LAYER(COMM, unit_names[unit->kind].used, unit->layer);
    unit->used = up_alloc_on(rank, UP_SPACE_DEVICE, UP_STREAM_COMM, tag, dtype,
                             UP_SHAPE(ranks * unit->share));
    const struct up_tensor *source = unit->shard ? unit->shard : unit->weights;
    int64_t rank_index = units->sharded ? up_comm_rank(units->world) : 0;
    char *own = (char *)unit->used->data + rank_index * unit->share * up_dtype_bytes[dtype];
    up_op_cast(rank, UP_STREAM_COMM,
               &(struct up_cast_args){source->data, own, unit->share, source->dtype, dtype});
    if (units->sharded)
        up_comm_all_gather(rank, units->world, UP_STREAM_COMM, unit->used->data, unit->share,
                           dtype);
    unit->ready = up_stream_moment(rank, UP_STREAM_COMM);
}

void up_unit_acquire(struct up_units *units, struct up_unit *unit)
{
    up_unit_prefetch(units, unit);
    up_stream_wait_moment(units->rank, UP_STREAM_COMPUTE, unit->ready);
}

void up_unit_drop(struct up_units *units, struct up_unit *unit)
{
    if (unit->used != usable_state(units, unit)) up_free(units->rank, &unit->used);
    unit->used = NULL;
}

const void *up_unit_weight(const struct up_unit *unit, enum up_param_kind kind)
{
    UP_ASSERT(unit->at[kind] >= 0);
    return (const char *)unit->used->data + unit->at[kind] * up_dtype_bytes[unit->used->dtype];
}

/* --- Gradients -----------------------------------------------------------------------------------
 */

void up_unit_grads_begin(struct up_units *units, struct up_unit *unit)
{
    if (!units->sharded) return;
    unit->full_grads =
        up_alloc(units->rank, UP_TAG_LAYER(COMM, unit_names[unit->kind].full_grads, unit->layer),
                 UP_F32, UP_SHAPE(up_comm_size(units->world) * unit->share));
    zero(units, unit->full_grads);
}

void up_unit_grads_end(struct up_units *units, struct up_unit *unit)
{
    struct up_rank *rank = units->rank;
    if (!units->sharded) return;
    float *full = unit->full_grads->data;
    up_stream_wait(rank, UP_STREAM_COMM, UP_STREAM_COMPUTE);
    up_comm_reduce_scatter(rank, units->world, UP_STREAM_COMM, full, unit->share);
    up_op_add(rank, UP_STREAM_COMM,
              &(struct up_add_args){full + up_comm_rank(units->world) * unit->share,
                                    unit->grads->data, unit->share, UP_F32});
    up_free_on(rank, &unit->full_grads, UP_STREAM_COMM);
}

float *up_unit_grad(const struct up_unit *unit, enum up_param_kind kind)
{
    UP_ASSERT(unit->at[kind] >= 0);
    const struct up_tensor *whole = unit->full_grads ? unit->full_grads : unit->grads;
    return (float *)whole->data + unit->at[kind];
}

void up_units_zero_grads(struct up_units *units)
{
    for (int i = 0; i < units->count; i++) zero(units, units->unit[i].grads);
    // Shares are added to on the comm stream.
    up_stream_wait(units->rank, UP_STREAM_COMM, UP_STREAM_COMPUTE);
}

void up_units_reduce_grads(struct up_units *units)
{
    struct up_rank *rank = units->rank;
    if (units->sharded || up_comm_size(units->world) == 1) return;
    up_stream_wait(rank, UP_STREAM_COMM, UP_STREAM_COMPUTE);
    for (int i = 0; i < units->count; i++)
        up_comm_all_reduce(rank, units->world, UP_STREAM_COMM, units->unit[i].grads->data,
                           units->unit[i].elements, UP_F32);
}
