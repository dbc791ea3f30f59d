/* The SwiGLU MLP with its norm, over slices of the local tokens.
 *
 * Whatever is not kept is made again slice by slice in the backward, so that without checkpoint
 * "none" neither direction ever holds more than one slice of the [T, ff] tensors. Scratch is taken
 * once, outside the loop over slices. */
#include "trainer/step/parts.h"

// What both directions work with.
struct mlp {
    struct up_trainer *trainer;
    const struct up_unit *unit;
    int64_t hidden, ff;
    struct up_tiles tiles;
    struct up_tensor *h;         // [tile, hidden], the normalised slice
    struct up_tensor *gate, *up; // [tile, ff], or the whole [T, ff] where they are kept
    struct up_tensor *act;       // [tile, ff], in backward its gradient first; NULL: gate's place
    bool kept;
};

static struct up_tensor *scratch(struct mlp *mlp, const char *name, enum up_category category,
                                 int layer, int64_t rows, int64_t width)
{
    return up_alloc(mlp->trainer->rank,
                    (struct up_tag){{name, (int16_t)layer, UP_NO_INDEX}, category},
                    mlp->trainer->config->dtype, UP_SHAPE(rows, width));
}

static struct mlp mlp_of(struct up_trainer *trainer, int64_t layer)
{
    const struct up_config *config = trainer->config;
    return (struct mlp){.trainer = trainer,
                        .unit = up_units_block(&trainer->units, layer),
                        .hidden = config->model.hidden,
                        .ff = config->model.ff,
                        .tiles = up_tiles_of(up_trainer_tokens(trainer), config->tile_mlp)};
}

// The slice's rows of gate or up.
static void *rows_of(const struct mlp *mlp, const struct up_tensor *tensor, struct up_tile tile)
{
    return up_row(tensor, mlp->kept ? tile.first : 0);
}

static void gate_and_up(struct mlp *mlp, struct up_tile tile)
{
    up_project(mlp->trainer, mlp->h->data, up_unit_weight(mlp->unit, UP_PARAM_WGATE),
               rows_of(mlp, mlp->gate, tile), tile.rows, mlp->ff, mlp->hidden, mlp->hidden, 0);
    up_project(mlp->trainer, mlp->h->data, up_unit_weight(mlp->unit, UP_PARAM_WUP),
               rows_of(mlp, mlp->up, tile), tile.rows, mlp->ff, mlp->hidden, mlp->hidden, 0);
}

static void normalise(struct mlp *mlp, const struct up_tensor *x, struct up_tile tile)
{
    up_norm(mlp->trainer, up_row(x, tile.first), up_unit_weight(mlp->unit, UP_PARAM_MLP_NORM),
            mlp->h->data, tile.rows);
}

static void activate(struct mlp *mlp, struct up_tile tile)
{
    void *gate = rows_of(mlp, mlp->gate, tile);
    up_op_swiglu_forward(mlp->trainer->rank, UP_STREAM_COMPUTE,
                         &(struct up_swiglu_forward_args){.gate = gate,
                                                          .up = rows_of(mlp, mlp->up, tile),
                                                          .out = mlp->act ? mlp->act->data : gate,
                                                          .count = tile.rows * mlp->ff,
                                                          .dtype = mlp->trainer->config->dtype});
}

void up_mlp_forward(struct up_trainer *trainer, int64_t layer, const struct up_tensor *x,
                    struct up_tensor *out, bool keep)
{
    struct mlp mlp = mlp_of(trainer, layer);
    struct up_rank *rank = trainer->rank;
    int l = (int)layer;
    mlp.kept = keep;
    mlp.h = scratch(&mlp, "mlp.h", UP_CATEGORY_NORM, l, mlp.tiles.tile, mlp.hidden);
    int64_t rows = keep ? mlp.tiles.rows : mlp.tiles.tile;
    mlp.gate = scratch(&mlp, "mlp.gate", UP_CATEGORY_MLP, l, rows, mlp.ff);
    mlp.up = scratch(&mlp, "mlp.up", UP_CATEGORY_MLP, l, rows, mlp.ff);
    if (keep) mlp.act = scratch(&mlp, "mlp.act", UP_CATEGORY_MLP, l, mlp.tiles.tile, mlp.ff);

    for (int64_t i = 0; i < up_tiles_count(mlp.tiles); i++) {
        struct up_tile tile = up_tile_at(mlp.tiles, i);
        normalise(&mlp, x, tile);
        gate_and_up(&mlp, tile);
        activate(&mlp, tile);
        up_project(trainer, mlp.act ? mlp.act->data : mlp.gate->data,
                   up_unit_weight(mlp.unit, UP_PARAM_WDOWN), up_row(out, tile.first), tile.rows,
                   mlp.hidden, mlp.ff, mlp.ff, 1);
    }
    up_free(rank, &mlp.h);
    up_free(rank, &mlp.act);
    if (keep) {
        trainer->kept[layer].gate = mlp.gate;
        trainer->kept[layer].up = mlp.up;
        return;
    }
    up_free(rank, &mlp.gate);
    up_free(rank, &mlp.up);
}

// From d's slice to the gradients of gate and up, in their places, and of the down projection.
static void back_to_gate_and_up(struct mlp *mlp, const void *d, struct up_tile tile)
{
    void *gate = rows_of(mlp, mlp->gate, tile), *up = rows_of(mlp, mlp->up, tile);
    up_project_back(mlp->trainer, d, up_unit_weight(mlp->unit, UP_PARAM_WDOWN), mlp->act->data,
                    tile.rows, mlp->hidden, mlp->ff, mlp->ff, 0);
    up_op_swiglu_backward(mlp->trainer->rank, UP_STREAM_COMPUTE,
                          &(struct up_swiglu_backward_args){.gate = gate,
                                                            .up = up,
                                                            .d_out = mlp->act->data,
                                                            .d_gate = gate,
                                                            .d_up = up,
                                                            .out = mlp->act->data,
                                                            .count = tile.rows * mlp->ff,
                                                            .dtype = mlp->trainer->config->dtype});
    up_project_grad(mlp->trainer, d, mlp->act->data, up_unit_grad(mlp->unit, UP_PARAM_WDOWN),
                    tile.rows, mlp->hidden, mlp->ff, mlp->ff);
}

// From the gradients of gate and up to that of h, in h's place, and of their weights.
static void back_to_h(struct mlp *mlp, struct up_tile tile)
{
    static const enum up_param_kind kinds[] = {UP_PARAM_WGATE, UP_PARAM_WUP};
    const struct up_tensor *source[] = {mlp->gate, mlp->up};
    for (int i = 0; i < 2; i++)
        up_project_grad(mlp->trainer, rows_of(mlp, source[i], tile), mlp->h->data,
                        up_unit_grad(mlp->unit, kinds[i]), tile.rows, mlp->ff, mlp->hidden,
                        mlp->hidden);
    for (int i = 0; i < 2; i++)
        up_project_back(mlp->trainer, rows_of(mlp, source[i], tile),
                        up_unit_weight(mlp->unit, kinds[i]), mlp->h->data, tile.rows, mlp->ff,
                        mlp->hidden, mlp->hidden, i ? 1 : 0);
}

void up_mlp_backward(struct up_trainer *trainer, int64_t layer, const struct up_tensor *x,
                     struct up_tensor *d)
{
    struct mlp mlp = mlp_of(trainer, layer);
    struct up_kept *kept = &trainer->kept[layer];
    struct up_rank *rank = trainer->rank;
    int l = (int)layer;
    mlp.kept = kept->gate != NULL;
    mlp.h = scratch(&mlp, "mlp.h", UP_CATEGORY_NORM, l, mlp.tiles.tile, mlp.hidden);
    mlp.act = scratch(&mlp, "mlp.act", UP_CATEGORY_MLP, l, mlp.tiles.tile, mlp.ff);
    mlp.gate = mlp.kept ? kept->gate
                        : scratch(&mlp, "mlp.gate", UP_CATEGORY_MLP, l, mlp.tiles.tile, mlp.ff);
    mlp.up =
        mlp.kept ? kept->up : scratch(&mlp, "mlp.up", UP_CATEGORY_MLP, l, mlp.tiles.tile, mlp.ff);

    for (int64_t i = 0; i < up_tiles_count(mlp.tiles); i++) {
        struct up_tile tile = up_tile_at(mlp.tiles, i);
        void *d_rows = up_row(d, tile.first);
        normalise(&mlp, x, tile);
        if (!mlp.kept) gate_and_up(&mlp, tile);
        back_to_gate_and_up(&mlp, d_rows, tile);
        back_to_h(&mlp, tile);
        up_norm_back(trainer, up_row(x, tile.first), up_unit_weight(mlp.unit, UP_PARAM_MLP_NORM),
                     mlp.h->data, d_rows, up_unit_grad(mlp.unit, UP_PARAM_MLP_NORM), tile.rows,
                     true);
    }
    up_free(rank, &mlp.h);
    up_free(rank, &mlp.act);
    up_free(rank, &mlp.gate);
    up_free(rank, &mlp.up);
    kept->gate = kept->up = NULL;
}
