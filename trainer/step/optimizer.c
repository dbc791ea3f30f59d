/* Global-norm clipping and AdamW over this rank's shares.
 *
 * With --optimizer host the fp32 weights and moments come through the device in pieces: while one
 * piece is updated the next is on its way in and the one before on its way out, so two are there at
 * a time. */
#include "trainer/step/parts.h"

enum { PIECE_ELEMENTS = 1 << 24 }; // 64 MiB each of weights and both moments

static double *scalar(struct up_trainer *trainer, int index)
{
    return (double *)trainer->scalars->data + index;
}

void up_optimizer_norm(struct up_trainer *trainer)
{
    struct up_rank *rank = trainer->rank;
    struct up_units *units = &trainer->units;
    up_stream_wait(rank, UP_STREAM_COMPUTE, UP_STREAM_COMM);
    for (int i = 0; i < units->count; i++) {
        const struct up_unit *unit = &units->unit[i];
        up_op_sum_squares(rank, UP_STREAM_COMPUTE,
                          &(struct up_sum_squares_args){.x = unit->grads->data,
                                                        .sum = scalar(trainer, UP_SCALAR_NORM),
                                                        .count = unit->own});
    }
    // Every rank has its tokens' loss; the norm is whole already where gradients are.
    up_stream_wait(rank, UP_STREAM_COMM, UP_STREAM_COMPUTE);
    up_comm_all_reduce(rank, trainer->world, UP_STREAM_COMM, scalar(trainer, UP_SCALAR_LOSS), 1,
                       UP_F64);
    if (units->sharded)
        up_comm_all_reduce(rank, trainer->world, UP_STREAM_COMM, scalar(trainer, UP_SCALAR_NORM), 1,
                           UP_F64);
    up_stream_wait(rank, UP_STREAM_COMPUTE, UP_STREAM_COMM);
}

/* What is updated at a time: elements [first, first + count) of a unit's share, wherever they are.
 */
struct piece {
    const struct up_unit *unit;
    int64_t first, count;
    struct up_tensor *weights, *m,
        *v; // fp32 on the device; the first element is `base` of the share
    int64_t base;
};

// One parameter's part of the piece: matrices decay, vectors do not.
static void update_param(struct up_trainer *trainer, const struct piece *piece,
                         const struct up_param *param, const struct up_hyper *hyper, int64_t t)
{
    struct up_part part = up_unit_part(piece->unit, param);
    int64_t first = up_max(part.at, piece->first);
    int64_t last = up_min(part.at + part.count, piece->first + piece->count);
    if (!part.count || last <= first) return;
    up_op_adamw(
        trainer->rank, UP_STREAM_COMPUTE,
        &(struct up_adamw_args){.weight = (float *)piece->weights->data + first - piece->base,
                                .m = (float *)piece->m->data + first - piece->base,
                                .v = (float *)piece->v->data + first - piece->base,
                                .gradient = (const float *)piece->unit->grads->data + first,
                                .norm_squared = scalar(trainer, UP_SCALAR_NORM),
                                .count = last - first,
                                .t = t,
                                .lr = hyper->lr,
                                .beta1 = hyper->beta1,
                                .beta2 = hyper->beta2,
                                .epsilon = hyper->epsilon,
                                .decay = param->dims > 1 ? hyper->decay : 0,
                                .clip = hyper->clip});
}

static void update_piece(struct up_trainer *trainer, const struct piece *piece,
                         const struct up_hyper *hyper, int64_t t)
{
    const struct up_param *params = trainer->units.params + piece->unit->first_param;
    for (int i = 0; i < piece->unit->params; i++)
        update_param(trainer, piece, &params[i], hyper, t);
}

/* --- Host optimizer
 * ------------------------------------------------------------------------------- */

// A view of the piece's elements of a share, for copying.
static struct up_tensor share_view(const struct piece *piece, const struct up_tensor *share)
{
    struct up_tensor view = *share;
    view.data = (float *)view.data + piece->first;
    view.bytes = piece->count * (int64_t)sizeof(float);
    return view;
}

static struct up_tensor *bring(struct up_rank *rank, const struct piece *piece,
                               const struct up_tensor *share, const char *name)
{
    struct up_tag tag = UP_TAG_LAYER(OPTIMIZER, name, piece->unit->layer);
    struct up_tensor from = share_view(piece, share);
    struct up_tensor *to =
        up_alloc_on(rank, UP_SPACE_DEVICE, UP_STREAM_COPY_IN, tag, UP_F32, UP_SHAPE(piece->count));
    up_copy(rank, UP_STREAM_COPY_IN, to, &from);
    return to;
}

static struct piece begin_piece(struct up_rank *rank, const struct up_unit *unit, int64_t first)
{
    struct piece piece = {.unit = unit,
                          .first = first,
                          .base = first,
                          .count = up_min(PIECE_ELEMENTS, unit->share - first)};
    piece.weights = bring(rank, &piece, unit->weights, "update.weights");
    piece.m = bring(rank, &piece, unit->m, "update.m");
    piece.v = bring(rank, &piece, unit->v, "update.v");
    return piece;
}

static void send_back(struct up_rank *rank, const struct piece *piece, struct up_tensor **from,
                      const struct up_tensor *share)
{
    struct up_tensor to = share_view(piece, share);
    up_copy(rank, UP_STREAM_COPY_OUT, &to, *from);
    up_free_on(rank, from, UP_STREAM_COPY_OUT);
}

static void end_piece(struct up_trainer *trainer, struct piece *piece)
{
    struct up_rank *rank = trainer->rank;
    const struct up_unit *unit = piece->unit;
    enum up_dtype dtype = unit->shard->dtype;
    up_op_cast(
        rank, UP_STREAM_COMPUTE,
        &(struct up_cast_args){piece->weights->data,
                               (char *)unit->shard->data + piece->first * up_dtype_bytes[dtype],
                               piece->count, UP_F32, dtype});
    up_stream_wait(rank, UP_STREAM_COPY_OUT, UP_STREAM_COMPUTE);
    send_back(rank, piece, &piece->weights, unit->weights);
    send_back(rank, piece, &piece->m, unit->m);
    send_back(rank, piece, &piece->v, unit->v);
}

// The piece after this one, in this unit or the next.
static bool next_piece(struct up_units *units, int *unit, int64_t *first)
{
    *first += PIECE_ELEMENTS;
    if (*first < units->unit[*unit].share) return true;
    *first = 0;
    return ++*unit < units->count;
}

static void update_from_host(struct up_trainer *trainer, const struct up_hyper *hyper, int64_t t)
{
    struct up_rank *rank = trainer->rank;
    struct up_units *units = &trainer->units;
    int unit = 0;
    int64_t first = 0;
    struct piece piece = begin_piece(rank, &units->unit[0], 0), next = {0};
    for (bool more = true; more; piece = next) {
        struct up_moment here = up_stream_moment(rank, UP_STREAM_COPY_IN);
        more = next_piece(units, &unit, &first);
        if (more) next = begin_piece(rank, &units->unit[unit], first);
        up_stream_wait_moment(rank, UP_STREAM_COMPUTE, here);
        update_piece(trainer, &piece, hyper, t);
        end_piece(trainer, &piece);
    }
    // The next step's gathers read the shares.
    up_stream_wait(rank, UP_STREAM_COMM, UP_STREAM_COMPUTE);
}

void up_optimizer_update(struct up_trainer *trainer, const struct up_hyper *hyper, int64_t t)
{
    struct up_units *units = &trainer->units;
    if (trainer->config->optimizer_host) {
        update_from_host(trainer, hyper, t);
        return;
    }
    for (int i = 0; i < units->count; i++) {
        const struct up_unit *unit = &units->unit[i];
        struct piece all = {.unit = unit,
                            .count = unit->share,
                            .weights = unit->weights,
                            .m = unit->m,
                            .v = unit->v};
        update_piece(trainer, &all, hyper, t);
    }
    up_stream_wait(trainer->rank, UP_STREAM_COMM, UP_STREAM_COMPUTE);
}
