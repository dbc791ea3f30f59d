/* How attention's backward pass is cut on cpu; its scratch (ops/cost.c) follows from that. */
#ifndef UP_OPS_CPU_ATTENTION_LANES_IMPL_H
#define UP_OPS_CPU_ATTENTION_LANES_IMPL_H

#include "base/base.h"

enum {
    UP_ATTENTION_BLOCK = 128, // query rows, and key rows, of a block
    UP_ATTENTION_LANES = 16,  // pairs of blocks that the backward pass has in hand at a time
};

/* The backward pass takes `units` pairs of (batch row, KV head), and of each a window of `window`
 * blocks of query rows. Within the window it goes along diagonals: at distance d, query block i
 * meets key block i - d, so that no two pairs of blocks of a diagonal add to the same dq, dk or dv.
 */
struct up_attention_lanes {
    int64_t units, window;
};

static inline struct up_attention_lanes up_attention_lanes(int64_t batch, int64_t seq,
                                                           int64_t kv_heads)
{
    int64_t units = up_max(1, up_min(batch * kv_heads, UP_ATTENTION_LANES));
    int64_t blocks = up_ceil_div(seq, UP_ATTENTION_BLOCK);
    int64_t window = up_max(1, up_min(UP_ATTENTION_LANES / units, blocks));
    return (struct up_attention_lanes){units, window};
}

/* Floats of the copy of d_o that one lane keeps, because dq may take its place. */
static inline int64_t up_attention_lane_floats(int64_t seq, int64_t head_dim)
{
    return up_min(seq, UP_ATTENTION_BLOCK) * head_dim;
}

#endif
