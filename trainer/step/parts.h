/* The step's parts, as they call each other. Tensors are [T, hidden] in the compute dtype unless
 * said; gradients are passed and returned in place. */
#ifndef UP_TRAINER_PARTS_H
#define UP_TRAINER_PARTS_H

#include "ops/ops.h"
#include "trainer/step/trainer.h"

/* Slices of a stretch of rows: `tile` rows each (0: one slice), the last one shorter. */
struct up_tiles {
    int64_t rows, tile;
};
struct up_tile {
    int64_t first, rows;
};
static inline struct up_tiles up_tiles_of(int64_t rows, int64_t tile)
{
    return (struct up_tiles){rows, tile && tile < rows ? tile : rows};
}
static inline int64_t up_tiles_count(struct up_tiles tiles)
{
    return tiles.rows ? up_ceil_div(tiles.rows, tiles.tile) : 0;
}
static inline struct up_tile up_tile_at(struct up_tiles tiles, int64_t i)
{
    return (struct up_tile){i * tiles.tile, up_min(tiles.tile, tiles.rows - i * tiles.tile)};
}

/* Products with a weight W [n, k] whose rows are `ldw` apart; A and C have no gaps.
 *   up_project:      C[m, n] = A[m, k] W^T + beta C      activations through the weight
 *   up_project_back: C[m, k] = A[m, n] W + beta C        a gradient back through it
 *   up_project_grad: G[n, k] += A[m, n]^T B[m, k]        its own gradient, fp32, rows `ldw` apart
 */
void up_project(struct up_trainer *trainer, const void *a, const void *w, void *c, int64_t m,
                int64_t n, int64_t k, int64_t ldw, float beta);
void up_project_back(struct up_trainer *trainer, const void *a, const void *w, void *c, int64_t m,
                     int64_t n, int64_t k, int64_t ldw, float beta);
void up_project_grad(struct up_trainer *trainer, const void *a, const void *b, float *grad,
                     int64_t m, int64_t n, int64_t k, int64_t ldw);

void up_norm(struct up_trainer *trainer, const void *x, const void *weight, void *y, int64_t rows);
void up_norm_back(struct up_trainer *trainer, const void *x, const void *weight, const void *dy,
                  void *dx, float *d_weight, int64_t rows, bool accumulate);

/* tokens: i32 [2, T] on the device. Returns x. */
struct up_tensor *up_embed_forward(struct up_trainer *trainer, const struct up_tensor *tokens);
void up_embed_backward(struct up_trainer *trainer, const struct up_tensor *tokens,
                       const struct up_tensor *d);

/* Takes the block's input `x` (kept, not freed), returns its output. */
struct up_tensor *up_block_forward(struct up_trainer *trainer, int64_t layer, struct up_tensor *x);
/* Turns d, the gradient of the block's output, into that of its input; frees all that was kept. */
void up_block_backward(struct up_trainer *trainer, int64_t layer, struct up_tensor *d);

/* out = x + attention(norm(x)) of the layer; keeps what `keep` says in trainer->kept[layer]. In the
 * forward (not `rebuild`) what the layer offloads is sent away; x then, when it has been read for
 * the last time. */
void up_attention_forward(struct up_trainer *trainer, int64_t layer, const struct up_tensor *x,
                          struct up_tensor *out, enum up_checkpoint keep, bool rebuild);
/* out = x + out-projection of what kept[layer].o holds. */
void up_attention_residual(struct up_trainer *trainer, int64_t layer, const struct up_tensor *x,
                           struct up_tensor *out);
/* d: in the gradient of attention's residual sum, out that of x. Uses and frees kept's q to lse. */
void up_attention_backward(struct up_trainer *trainer, int64_t layer, const struct up_tensor *x,
                           struct up_tensor *d);

/* out += mlp(norm(x)); out may be x. With `keep` gate and up go to kept[layer]. */
void up_mlp_forward(struct up_trainer *trainer, int64_t layer, const struct up_tensor *x,
                    struct up_tensor *out, bool keep);
/* d: in the gradient of the MLP's residual sum, out that of x. Frees kept's gate and up. */
void up_mlp_backward(struct up_trainer *trainer, int64_t layer, const struct up_tensor *x,
                     struct up_tensor *d);

/* Final norm, logits, loss and back: x becomes its own gradient. `scale` is 1 / counted targets. */
void up_loss(struct up_trainer *trainer, struct up_tensor *x, const struct up_tensor *tokens,
             double scale);

/* Clips by scalars' squared norm, which it computes first, and updates all weights. `t` from 1. */
void up_optimizer_norm(struct up_trainer *trainer);
void up_optimizer_update(struct up_trainer *trainer, const struct up_hyper *hyper, int64_t t);

/* Begins to fetch the input and the weights of the block below, if there is one. */
void up_prefetch_below(struct up_trainer *trainer, int64_t layer);

#endif
