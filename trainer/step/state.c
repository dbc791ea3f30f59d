#include "trainer/step/state.h"
#include "mem/arena.h"
#include "ops/ops.h"

enum {
    STAGING_ELEMENTS = 1 << 22, // 16 MiB
    FILL_ELEMENTS = 1 << 14     // that one thread makes at a time
};

static struct up_tensor *tensor_of(const struct up_unit *unit, enum up_state_kind kind)
{
    return kind == UP_STATE_WEIGHTS ? unit->weights : kind == UP_STATE_M ? unit->m : unit->v;
}

// A view of `count` elements of an fp32 tensor, for copying.
static struct up_tensor view_of(const struct up_tensor *tensor, int64_t at, int64_t count)
{
    struct up_tensor view = *tensor;
    view.data = (float *)view.data + at;
    view.bytes = count * (int64_t)sizeof(float);
    return view;
}

static void copy(struct up_units *units, struct up_tensor to, struct up_tensor from)
{
    up_copy(units->rank, UP_STREAM_COMPUTE, &to, &from);
    up_stream_synchronize(units->rank, UP_STREAM_COMPUTE);
}

// One piece between the staging buffer and the state, and between it and the visitor.
static enum up_status move_piece(struct up_units *units, struct up_tensor *state, int64_t at,
                                 bool fill, struct up_state_visitor *visitor,
                                 const struct up_param *param, int index, int64_t first,
                                 int64_t count, struct up_tensor *staging, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_tensor there = view_of(state, at, count), here = view_of(staging, 0, count);
    if (!fill) copy(units, here, there);
    UP_TRY(visitor->visit(visitor, param, index, first, count, staging->data, err));
    if (fill) copy(units, there, here);
out:
    return rc;
}

static enum up_status move_all(struct up_units *units, enum up_state_kind kind, bool fill,
                               struct up_state_visitor *visitor, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_rank *rank = units->rank;
    const struct up_model *model = &units->config->model;
    if (rank->device->kind == UP_DEVICE_DRY) return UP_OK; // there is nothing to move
    int64_t room = up_min(STAGING_ELEMENTS, up_model_parameters(model));
    struct up_tensor *staging = up_alloc_on(rank, UP_SPACE_HOST, UP_STREAM_COMPUTE,
                                            UP_TAG(WORKSPACE, "staging"), UP_F32, UP_SHAPE(room));
    // The host writes to it at once: whoever had these bytes must be done with them.
    up_stream_synchronize(rank, UP_STREAM_COMPUTE);
    int count = up_model_param_count(model);
    for (int i = 0; i < count && !up_rank_failed(rank); i++) {
        struct up_param param = up_model_param(model, i);
        const struct up_unit *unit = up_units_of(units, &param);
        struct up_part part = up_unit_part(unit, &param);
        for (int64_t done = 0; done < part.count; done += room)
            UP_TRY(move_piece(units, tensor_of(unit, kind), part.at + done, fill, visitor, &param,
                              i, part.first + done, up_min(room, part.count - done), staging, err));
    }
    if (up_rank_failed(rank)) rc = up_fail(err, rank->error.status, "%s", rank->error.text);
out:
    up_free(rank, &staging);
    return rc;
}

int64_t up_state_device_staging(const struct up_units *units)
{
    int64_t most = 0;
    for (int i = 0; i < units->count && units->config->optimizer_host; i++)
        most = up_max(most, up_min(STAGING_ELEMENTS, units->unit[i].share));
    return up_ceil_div(most * (int64_t)sizeof(float), UP_ARENA_ALIGN) * UP_ARENA_ALIGN;
}

// --optimizer host: the device's shares in the compute dtype, from the host's weights.
static void refresh_shards(struct up_units *units)
{
    struct up_rank *rank = units->rank;
    if (!units->config->optimizer_host || rank->device->kind == UP_DEVICE_DRY) return;
    for (int i = 0; i < units->count; i++) {
        struct up_unit *unit = &units->unit[i];
        int64_t room = up_min(STAGING_ELEMENTS, unit->share),
                bytes = up_dtype_bytes[unit->shard->dtype];
        struct up_tensor *piece =
            up_alloc(rank, UP_TAG(WORKSPACE, "shard.staging"), UP_F32, UP_SHAPE(room));
        for (int64_t at = 0; at < unit->share; at += room) {
            int64_t count = up_min(room, unit->share - at);
            copy(units, view_of(piece, 0, count), view_of(unit->weights, at, count));
            up_op_cast(rank, UP_STREAM_COMPUTE,
                       &(struct up_cast_args){piece->data, (char *)unit->shard->data + at * bytes,
                                              count, UP_F32, unit->shard->dtype});
        }
        up_free(rank, &piece);
    }
}

enum up_status up_state_fill(struct up_units *units, enum up_state_kind kind,
                             struct up_state_visitor *from, struct up_error *err)
{
    enum up_status rc = move_all(units, kind, true, from, err);
    if (!rc && kind == UP_STATE_WEIGHTS) refresh_shards(units);
    return rc;
}

enum up_status up_state_read(struct up_units *units, enum up_state_kind kind,
                             struct up_state_visitor *to, struct up_error *err)
{
    return move_all(units, kind, false, to, err);
}

/* --- Sources -------------------------------------------------------------------------------------
 */

struct random_source {
    struct up_state_visitor visitor;
    uint64_t seed;
    float std;
};

static enum up_status visit_random(struct up_state_visitor *visitor, const struct up_param *param,
                                   int index, int64_t first, int64_t count, float *elements,
                                   struct up_error *err)
{
    const struct random_source *source = (const struct random_source *)visitor;
    (void)err;
    bool norm = param->dims == 1;
#pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < count; at += FILL_ELEMENTS) {
        int64_t here = up_min(FILL_ELEMENTS, count - at);
        if (!norm)
            up_random_normals(source->seed, (uint64_t)index, (uint64_t)(first + at), source->std,
                              here, elements + at);
        for (int64_t i = at; norm && i < at + here; i++) elements[i] = 1;
    }
    return UP_OK;
}

enum up_status up_state_randomise(struct up_units *units, uint64_t seed, struct up_error *err)
{
    struct random_source source = {{visit_random}, seed, (float)units->config->model.init_std};
    return up_state_fill(units, UP_STATE_WEIGHTS, &source.visitor, err);
}

struct file_source {
    struct up_state_visitor visitor;
    struct up_weights *weights;
};

static enum up_status visit_file(struct up_state_visitor *visitor, const struct up_param *param,
                                 int index, int64_t first, int64_t count, float *elements,
                                 struct up_error *err)
{
    (void)index;
    return up_weights_read(((struct file_source *)visitor)->weights, param, first, count, elements,
                           err);
}

enum up_status up_state_load(struct up_units *units, struct up_weights *weights,
                             struct up_error *err)
{
    struct file_source source = {{visit_file}, weights};
    return up_state_fill(units, UP_STATE_WEIGHTS, &source.visitor, err);
}
