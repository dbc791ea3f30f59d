/* What the attention half of a block is made of: attention.c has the order of things, projection.c
 * the products before and after attention. Layouts are those of exchange.h. */
#ifndef UP_TRAINER_PROJECTION_H
#define UP_TRAINER_PROJECTION_H

#include "trainer/step/parts.h"

/* Room for what projections gather, for the whole of a pass: parts of one tensor, NULL where
 * nothing is. A stage's own would be taken where something is being sent, and wait for it. */
enum { UP_PARTS = 3 }; // Wq (or Wo), Wk and Wv
struct up_part_room {
    void *slice;  // [rows, width]
    void *weight; // of a stage, [width, hidden] (of Wo [hidden, width])
    float *grad;  // backward only
};

/* What a pass over the layer needs at hand. */
struct up_attention {
    struct up_trainer *trainer;
    struct up_rank *rank;
    const struct up_config *config;
    const struct up_model *model;
    struct up_unit *unit;
    struct up_kept *kept;
    int layer;
    int64_t stages, slots;   // slot = pass * stages + stage
    int64_t rows;            // local tokens of a pass
    int64_t batch;           // sequences in a call of the attention kernel
    struct up_tiles tiles;   // of a pass's rows, for norm and projections
    struct up_tensor *h;     // [tile, hidden], a normalised slice
    int64_t h_row;           // the local token that it begins with; -1: it holds none
    struct up_tensor *parts; // what follows is in it
    struct up_part_room room[UP_PARTS];
    const struct up_tensor *x;
};

/* One stage of one pass. Tensors in either layout; lse [batch, heads, seq] fp32. */
struct up_stage {
    int64_t slot, index;
    int64_t row; // the pass's first local token
    const struct up_layout *kv;
    struct up_tensor *q, *k, *v; // as attention takes them: after norm and RoPE, in head layout
    struct up_tensor *o, *lse;
    struct up_tensor *d_o; // becomes dq
    struct up_tensor *dk, *dv;
    struct up_tensor *raw_q, *raw_k; // with q/k norm: what q and k were made of, where it is kept
    struct up_moment arrives;        // when what was sent last for this stage is there
};

/* A projection to be made or gone back through: y in sequence layout. */
struct up_projection {
    enum up_param_kind kind; // WQ, WK or WV
    struct up_tensor *y;
};

static inline const struct up_layout *
up_layout_of(const struct up_attention *a, const struct up_stage *s, enum up_param_kind kind)
{
    return kind == UP_PARAM_WK || kind == UP_PARAM_WV ? s->kv : &a->trainer->layouts.query;
}

/* The heads of rank r that a projection has in the stage; Wo's are those of Wq. */
static inline struct up_heads up_heads_of(const struct up_attention *a, const struct up_stage *s,
                                          enum up_param_kind kind, int64_t r)
{
    return kind == UP_PARAM_WK || kind == UP_PARAM_WV
               ? up_config_kv_heads(a->config, r, s->index)
               : up_config_query_heads(a->config, r, s->index);
}

/* Row `row` of the part of a tensor in sequence layout that is bound for (or comes from) rank r. */
static inline void *up_slot_row(const struct up_attention *a, const struct up_tensor *tensor,
                                const struct up_layout *layout, int64_t r, int64_t heads,
                                int64_t row)
{
    // With one rank a pass is the whole batch and the layout's offsets, all 0, are not asked.
    int64_t at = (r ? layout->slot_at[r] : 0) + row * heads * a->model->head_dim;
    return (char *)tensor->data + at * up_dtype_bytes[tensor->dtype];
}

/* Before the first product of a pass (one that has gradients, `backward`), and after the last. */
void up_parts_take(struct up_attention *a, bool backward);
void up_parts_drop(struct up_attention *a);

/* y = norm(x) W^T for each of them. */
void up_stage_project(struct up_attention *a, const struct up_stage *s,
                      const struct up_projection *p, int count);
/* From the gradients y to those of the weights, and through the norm into dx. */
void up_stage_project_back(struct up_attention *a, const struct up_stage *s,
                           const struct up_projection *p, int count, struct up_tensor *dx);
/* The stage's part of out = x + attention; o in sequence layout. */
void up_stage_add_to_out(struct up_attention *a, const struct up_stage *s,
                         const struct up_tensor *o, struct up_tensor *out);
/* The stage's d_o from d, and its part of Wo's gradient. */
void up_stage_out_back(struct up_attention *a, const struct up_stage *s, const struct up_tensor *d,
                       const struct up_tensor *o, struct up_tensor *d_o);

#endif
