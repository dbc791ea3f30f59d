/* The attention half of a block: norm, projections, RoPE, attention, out-projection, over stages of
 * query heads (headwise chunking) and slices of tokens.
 *
 * A stage handles the config's stage heads; with all heads in one stage (--upipe off) this is plain
 * attention. Stages use the same buffers one after the other: q, k, v and o of one stage are all that
 * exists beside x and the output. K and V are made in the stages where their heads change and stay
 * for those that share them.
 *
 * In the backward the incoming gradient first gives every stage's d_o and the out-projection's
 * gradient, in one go; then it becomes the accumulator of dx, to which each stage adds its own share
 * (RMSNorm's backward is linear in its incoming gradient).
 */
#include "trainer/step_impl.h"

// What a stretch of work in one layer needs at hand.
struct attention {
    struct up_trainer *trainer;
    struct up_rank *rank;
    const struct up_config *config;
    const struct up_model *model;
    const struct up_unit *unit;
    struct up_kept *kept;
    int layer;
    int64_t rows;           // local tokens
    int64_t batch, seq;     // of the attention kernel's calls
    int64_t stages;
    struct up_tiles tiles;  // of the rows, for norm and projections
    struct up_tensor *h;    // [tile, hidden], the normalised slice
    bool h_is_normed;       // h holds the only slice, normalised
    const struct up_tensor *x;
};

// One stage's tensors. [rows, heads, head_dim] each; lse [batch, heads, seq] fp32.
struct stage {
    int64_t index;
    struct up_heads query, kv;
    struct up_tensor *q, *k, *v; // as attention takes them: after norm and RoPE
    struct up_tensor *o, *lse;
    struct up_tensor *d_o;       // becomes dq
    struct up_tensor *dk, *dv;
};

static struct attention attention_of(struct up_trainer *trainer, int64_t layer,
                                     const struct up_tensor *x)
{
    const struct up_config *config = trainer->config;
    int64_t rows = up_trainer_tokens(trainer);
    return (struct attention){.trainer = trainer,
                              .rank = trainer->rank,
                              .config = config,
                              .model = &config->model,
                              .unit = up_units_block(&trainer->units, layer),
                              .kept = &trainer->kept[layer],
                              .layer = (int)layer,
                              .rows = rows,
                              .batch = config->batch,
                              .seq = config->seq,
                              .stages = up_config_stages(config),
                              .tiles = up_tiles_of(rows, config->tile_attn),
                              .x = x};
}

static void take_h(struct attention *a)
{
    a->h = up_alloc(a->rank, UP_TAG_LAYER(NORM, "attn.h", a->layer), a->config->dtype,
                    UP_SHAPE(a->tiles.tile, a->model->hidden));
    a->h_is_normed = false;
}

static struct up_tensor *alloc_heads(struct attention *a, const char *name, int64_t stage,
                                     int64_t heads)
{
    return up_alloc(a->rank, UP_TAG_INDEX(ATTENTION, name, a->layer, a->stages > 1 ? stage : -1),
                    a->config->dtype, UP_SHAPE(a->rows, heads, a->model->head_dim));
}

static struct stage stage_of(const struct attention *a, int64_t index)
{
    return (struct stage){.index = index,
                          .query = up_config_query_heads(a->config, 0, index),
                          .kv = up_config_kv_heads(a->config, 0, index)};
}

// Whether K and V of this stage are not those of the next.
static bool kv_ends(const struct attention *a, int64_t stage)
{
    return stage + 1 == a->stages || up_config_kv_changes(a->config, stage + 1);
}

static void normalise(struct attention *a, struct up_tile tile)
{
    if (a->h_is_normed) return;
    up_norm(a->trainer, up_row(a->x, tile.first), up_unit_weight(a->unit, UP_PARAM_ATTN_NORM),
            a->h->data, tile.rows);
    a->h_is_normed = tile.rows == a->rows;
}

/* --- Heads of a projection ---------------------------------------------------------------------- */

// The weight rows [first, first + count) x head_dim of Wq, Wk or Wv, and their gradient.
static const void *head_rows(const struct attention *a, enum up_param_kind kind, struct up_heads heads)
{
    int64_t width = a->model->head_dim * a->model->hidden * up_dtype_bytes[a->config->dtype];
    return (const char *)up_unit_weight(a->unit, kind) + heads.first * width;
}

static float *head_rows_grad(const struct attention *a, enum up_param_kind kind,
                             struct up_heads heads)
{
    return up_unit_grad(a->unit, kind) + heads.first * a->model->head_dim * a->model->hidden;
}

// Wo's columns of these heads. Wo is [hidden, heads x head_dim].
static const void *head_columns(const struct attention *a, struct up_heads heads)
{
    return (const char *)up_unit_weight(a->unit, UP_PARAM_WO) +
           heads.first * a->model->head_dim * up_dtype_bytes[a->config->dtype];
}

static int64_t wo_width(const struct attention *a) { return a->model->heads * a->model->head_dim; }

// A projection to be made or gone back through, slice by slice.
struct projection {
    enum up_param_kind kind;
    struct up_heads heads;
    struct up_tensor *y; // [rows, heads, head_dim]
};

// y = norm(x) W^T for each of them.
static void project_heads(struct attention *a, const struct projection *projections, int count)
{
    int64_t hidden = a->model->hidden;
    for (int64_t i = 0; i < up_tiles_count(a->tiles); i++) {
        struct up_tile tile = up_tile_at(a->tiles, i);
        normalise(a, tile);
        for (const struct projection *p = projections; p < projections + count; p++)
            up_project(a->trainer, a->h->data, head_rows(a, p->kind, p->heads),
                       up_row(p->y, tile.first), tile.rows, p->heads.count * a->model->head_dim,
                       hidden, hidden, 0);
    }
}

// From the gradients y to those of the weights, and through the norm into dx.
static void project_heads_back(struct attention *a, const struct projection *projections, int count,
                               struct up_tensor *dx)
{
    int64_t hidden = a->model->hidden, head_dim = a->model->head_dim;
    for (int64_t i = 0; i < up_tiles_count(a->tiles); i++) {
        struct up_tile tile = up_tile_at(a->tiles, i);
        normalise(a, tile);
        for (const struct projection *p = projections; p < projections + count; p++)
            up_project_grad(a->trainer, up_row(p->y, tile.first), a->h->data,
                            head_rows_grad(a, p->kind, p->heads), tile.rows,
                            p->heads.count * head_dim, hidden, hidden);
        // h has served: its place takes its own gradient.
        a->h_is_normed = false;
        for (const struct projection *p = projections; p < projections + count; p++)
            up_project_back(a->trainer, up_row(p->y, tile.first), head_rows(a, p->kind, p->heads),
                            a->h->data, tile.rows, p->heads.count * head_dim, hidden, hidden,
                            p > projections ? 1 : 0);
        up_norm_back(a->trainer, up_row(a->x, tile.first),
                     up_unit_weight(a->unit, UP_PARAM_ATTN_NORM), a->h->data,
                     up_row(dx, tile.first), up_unit_grad(a->unit, UP_PARAM_ATTN_NORM), tile.rows,
                     true);
    }
}

/* --- Norm and RoPE ------------------------------------------------------------------------------ */

static struct up_rope_config rope_of(const struct up_model *m)
{
    return (struct up_rope_config){.theta = m->rope_theta,
                                   .llama3 = m->rope_llama3,
                                   .factor = m->rope_factor,
                                   .low_freq = m->rope_low_freq,
                                   .high_freq = m->rope_high_freq,
                                   .original_length = m->rope_original_length};
}

// to = RoPE(norm(from)); norm: UP_PARAM_Q_NORM or K_NORM, applied if the model has it. to may be from.
static void rotate(struct attention *a, const struct up_tensor *from, struct up_tensor *to,
                   enum up_param_kind norm)
{
    up_op_rope(a->rank, UP_STREAM_COMPUTE,
               &(struct up_rope_args){
                   .x = from->data,
                   .y = to->data,
                   .weight = a->model->qk_norm ? up_unit_weight(a->unit, norm) : NULL,
                   .epsilon = (float)a->model->norm_epsilon,
                   .rows = a->rows,
                   .heads = from->shape.extent[1],
                   .head_dim = a->model->head_dim,
                   .first_position = up_config_first_token(a->config, 0),
                   .period = up_config_tokens(a->config, 0),
                   .config = rope_of(a->model),
                   .dtype = a->config->dtype});
}

// d, in place: from after norm and RoPE to before. `raw` is the projection's output, with q/k norm.
static void rotate_back(struct attention *a, struct up_tensor *d, const struct up_tensor *raw,
                        enum up_param_kind norm)
{
    bool normed = a->model->qk_norm;
    up_op_rope_backward(a->rank, UP_STREAM_COMPUTE,
                        &(struct up_rope_backward_args){
                            .dy = d->data,
                            .dx = d->data,
                            .x = normed ? raw->data : NULL,
                            .weight = normed ? up_unit_weight(a->unit, norm) : NULL,
                            .d_weight = normed ? up_unit_grad(a->unit, norm) : NULL,
                            .epsilon = (float)a->model->norm_epsilon,
                            .rows = a->rows,
                            .heads = d->shape.extent[1],
                            .head_dim = a->model->head_dim,
                            .first_position = up_config_first_token(a->config, 0),
                            .period = up_config_tokens(a->config, 0),
                            .config = rope_of(a->model),
                            .dtype = a->config->dtype});
}

// *slot, which holds a projection's output, becomes what attention takes. The output itself is what
// is kept where the model has q/k norm (its backward needs it): then it goes to *raw if that is asked
// for, and a copy is rotated.
static void rotate_keeping(struct attention *a, struct up_tensor **slot, struct up_tensor **raw,
                           enum up_param_kind norm, const char *name, int64_t stage)
{
    struct up_tensor *from = *slot;
    if (raw && a->model->qk_norm) {
        *raw = from;
        *slot = alloc_heads(a, name, stage, from->shape.extent[1]);
    }
    rotate(a, from, *slot, norm);
    if (raw && !a->model->qk_norm) *raw = *slot;
}

/* --- Forward ------------------------------------------------------------------------------------ */

// Projects and rotates the stage's q, and k and v where they change. With `keep`, what the backward
// needs of them goes to kept.
static void make_qkv(struct attention *a, struct stage *s, bool keep)
{
    int64_t i = s->index;
    bool kv = up_config_kv_changes(a->config, i);
    s->q = alloc_heads(a, "attn.q", i, s->query.count);
    if (kv) {
        s->k = alloc_heads(a, "attn.k", i, s->kv.count);
        s->v = alloc_heads(a, "attn.v", i, s->kv.count);
    }
    struct projection p[] = {{UP_PARAM_WQ, s->query, s->q},
                             {UP_PARAM_WK, s->kv, s->k},
                             {UP_PARAM_WV, s->kv, s->v}};
    project_heads(a, p, kv ? 3 : 1);
    rotate_keeping(a, &s->q, keep ? &a->kept->q[i] : NULL, UP_PARAM_Q_NORM, "attn.q.rotated", i);
    if (!kv) return;
    rotate_keeping(a, &s->k, keep ? &a->kept->k[i] : NULL, UP_PARAM_K_NORM, "attn.k.rotated", i);
    if (keep) a->kept->v[i] = s->v;
}

// Frees a tensor unless it is the one kept.
static void free_unless(struct attention *a, struct up_tensor **slot, const struct up_tensor *kept)
{
    if (*slot == kept)
        *slot = NULL;
    else
        up_free(a->rank, slot);
}

static struct up_attention_shape kernel_shape(const struct attention *a, const struct stage *s)
{
    int64_t group = a->model->heads / a->model->kv_heads;
    return (struct up_attention_shape){.batch = a->batch,
                                       .seq = a->seq,
                                       .heads = s->query.count,
                                       .kv_heads = s->kv.count,
                                       .head_dim = a->model->head_dim,
                                       .group = group,
                                       .first_head_in_group = s->query.first - s->kv.first * group};
}

static void attend(struct attention *a, struct stage *s)
{
    s->o = alloc_heads(a, "attn.o", s->index, s->query.count);
    s->lse = up_alloc(a->rank,
                      UP_TAG_INDEX(ATTENTION, "attn.lse", a->layer, a->stages > 1 ? s->index : -1),
                      UP_F32, UP_SHAPE(a->batch, s->query.count, a->seq));
    up_op_attention_forward(a->rank, UP_STREAM_COMPUTE,
                            &(struct up_attention_forward_args){.q = s->q->data,
                                                                .k = s->k->data,
                                                                .v = s->v->data,
                                                                .o = s->o->data,
                                                                .lse = s->lse->data,
                                                                .shape = kernel_shape(a, s),
                                                                .dtype = a->config->dtype});
}

// out += o Wo^T over the stage's heads.
static void project_out(struct attention *a, const struct stage *s, struct up_tensor *out)
{
    up_project(a->trainer, s->o->data, head_columns(a, s->query), out->data, a->rows, a->model->hidden,
               s->query.count * a->model->head_dim, wo_width(a), 1);
}

void up_attention_forward(struct up_trainer *trainer, int64_t layer, const struct up_tensor *x,
                          struct up_tensor *out, enum up_checkpoint keep)
{
    struct attention a = attention_of(trainer, layer, x);
    struct up_kept *kept = a.kept;
    struct stage s = {0};
    bool all = keep == UP_CHECKPOINT_NONE;
    take_h(&a);
    for (int64_t i = 0; i < a.stages; i++) {
        struct stage next = stage_of(&a, i);
        next.k = s.k;
        next.v = s.v;
        s = next;
        make_qkv(&a, &s, all);
        if (i + 1 == a.stages) up_free(a.rank, &a.h);
        attend(&a, &s);
        free_unless(&a, &s.q, all ? kept->q[i] : NULL);
        if (kv_ends(&a, i)) {
            // The stage in which they were made holds what is kept.
            struct up_tensor *kept_k = NULL, *kept_v = NULL;
            for (int64_t j = i; all && !kept_v; j--) {
                kept_k = kept->k[j];
                kept_v = kept->v[j];
            }
            free_unless(&a, &s.k, kept_k);
            free_unless(&a, &s.v, kept_v);
        }
        project_out(&a, &s, out);
        if (keep == UP_CHECKPOINT_BLOCK) {
            up_free(a.rank, &s.o);
            up_free(a.rank, &s.lse);
        }
        kept->o[i] = s.o;
        kept->lse[i] = s.lse;
    }
}

void up_attention_residual(struct up_trainer *trainer, int64_t layer, struct up_tensor *x_mid)
{
    struct attention a = attention_of(trainer, layer, NULL);
    for (int64_t i = 0; i < a.stages; i++) {
        struct stage s = stage_of(&a, i);
        s.o = a.kept->o[i];
        project_out(&a, &s, x_mid);
    }
}

/* --- Backward ----------------------------------------------------------------------------------- */

// d_o of every stage, and Wo's gradient.
static void project_out_back(struct attention *a, const struct up_tensor *d, struct up_tensor **d_o)
{
    int64_t hidden = a->model->hidden;
    for (int64_t i = 0; i < a->stages; i++) {
        struct stage s = stage_of(a, i);
        int64_t width = s.query.count * a->model->head_dim;
        d_o[i] = alloc_heads(a, "attn.do", i, s.query.count);
        up_project_back(a->trainer, d->data, head_columns(a, s.query), d_o[i]->data, a->rows, hidden,
                        width, wo_width(a), 0);
        up_project_grad(a->trainer, d->data, a->kept->o[i]->data,
                        up_unit_grad(a->unit, UP_PARAM_WO) + s.query.first * a->model->head_dim,
                        a->rows, hidden, width, wo_width(a));
    }
}

// Takes what the forward kept of the stage's q, k and v.
static void take_kept_qkv(struct attention *a, struct stage *s)
{
    int64_t i = s->index;
    s->q = a->kept->q[i];
    if (a->kept->v[i]) {
        s->k = a->kept->k[i];
        s->v = a->kept->v[i];
    }
    if (!a->model->qk_norm) return;
    struct up_tensor *raw = s->q;
    s->q = alloc_heads(a, "attn.q.rotated", i, s->query.count);
    rotate(a, raw, s->q, UP_PARAM_Q_NORM);
    if (!a->kept->v[i]) return;
    raw = s->k;
    s->k = alloc_heads(a, "attn.k.rotated", i, s->kv.count);
    rotate(a, raw, s->k, UP_PARAM_K_NORM);
}

// dq takes d_o's place; dk and dv gather the stages that share K and V.
static void attend_back(struct attention *a, struct stage *s)
{
    bool first = s->dk == NULL;
    if (first) {
        s->dk = alloc_heads(a, "attn.dk", s->index, s->kv.count);
        s->dv = alloc_heads(a, "attn.dv", s->index, s->kv.count);
    }
    int64_t scratch_bytes =
        up_scratch_attention_backward(a->config->as, a->batch, a->seq, s->query.count, s->kv.count,
                                      a->model->head_dim);
    struct up_tensor *scratch =
        up_alloc(a->rank, UP_TAG_LAYER(WORKSPACE, "attn.backward.scratch", a->layer), UP_U8,
                 UP_SHAPE(scratch_bytes));
    up_op_attention_backward(a->rank, UP_STREAM_COMPUTE,
                             &(struct up_attention_backward_args){.q = s->q->data,
                                                                  .k = s->k->data,
                                                                  .v = s->v->data,
                                                                  .o = s->o->data,
                                                                  .d_o = s->d_o->data,
                                                                  .lse = s->lse->data,
                                                                  .dq = s->d_o->data,
                                                                  .dk = s->dk->data,
                                                                  .dv = s->dv->data,
                                                                  .scratch = scratch->data,
                                                                  .accumulate = !first,
                                                                  .shape = kernel_shape(a, s),
                                                                  .dtype = a->config->dtype});
    up_free(a->rank, &scratch);
}

// The projection's output of q or k, for the backward of its norm: as kept, or made again.
static struct up_tensor *raw_heads(struct attention *a, struct up_tensor *kept, const char *name,
                                   int64_t stage, enum up_param_kind kind, struct up_heads heads)
{
    if (kept || !a->model->qk_norm) return kept;
    struct up_tensor *raw = alloc_heads(a, name, stage, heads.count);
    project_heads(a, &(struct projection){kind, heads, raw}, 1);
    return raw;
}

// From the stage's dq (and dk, dv when their last stage is done) into dx and the weights' gradients.
static void stage_back_to_x(struct attention *a, struct stage *s, struct up_tensor *kept_q,
                            struct up_tensor *kept_k, struct up_tensor *dx)
{
    bool kv = kv_ends(a, s->index);
    struct up_tensor *raw =
        raw_heads(a, kept_q, "attn.q.raw", s->index, UP_PARAM_WQ, s->query);
    rotate_back(a, s->d_o, raw, UP_PARAM_Q_NORM);
    up_free(a->rank, &raw);
    if (kv) {
        raw = raw_heads(a, kept_k, "attn.k.raw", s->index, UP_PARAM_WK, s->kv);
        rotate_back(a, s->dk, raw, UP_PARAM_K_NORM);
        up_free(a->rank, &raw);
    }
    struct projection p[] = {{UP_PARAM_WQ, s->query, s->d_o},
                             {UP_PARAM_WK, s->kv, s->dk},
                             {UP_PARAM_WV, s->kv, s->dv}};
    project_heads_back(a, p, kv ? 3 : 1, dx);
    up_free(a->rank, &s->d_o);
    if (!kv) return;
    up_free(a->rank, &s->dk);
    up_free(a->rank, &s->dv);
}

void up_attention_backward(struct up_trainer *trainer, int64_t layer, const struct up_tensor *x,
                           struct up_tensor *d)
{
    struct attention a = attention_of(trainer, layer, x);
    struct up_kept *kept = a.kept;
    struct up_tensor **d_o = trainer->stage_scratch;
    struct up_tensor *kept_k = NULL;
    struct stage s = {0};
    project_out_back(&a, d, d_o);
    take_h(&a);
    for (int64_t i = 0; i < a.stages; i++) {
        bool was_kept = kept->q[i] != NULL;
        struct stage next = stage_of(&a, i);
        next.k = s.k;
        next.v = s.v;
        next.dk = s.dk;
        next.dv = s.dv;
        s = next;
        s.d_o = d_o[i];
        s.o = kept->o[i];
        s.lse = kept->lse[i];
        if (was_kept)
            take_kept_qkv(&a, &s);
        else
            make_qkv(&a, &s, false);
        attend_back(&a, &s);
        up_free(a.rank, &s.o);
        up_free(a.rank, &s.lse);
        // With q/k norm what was kept is the raw projection, and q and k were made of it.
        struct up_tensor *kept_q = was_kept && a.model->qk_norm ? kept->q[i] : NULL;
        if (kept->k[i] && a.model->qk_norm) kept_k = kept->k[i];
        up_free(a.rank, &s.q);
        if (kv_ends(&a, i)) {
            up_free(a.rank, &s.k);
            up_free(a.rank, &s.v);
        }
        stage_back_to_x(&a, &s, kept_q, kept_k, d);
        if (kv_ends(&a, i)) kept_k = NULL;
        kept->q[i] = kept->k[i] = kept->v[i] = kept->o[i] = kept->lse[i] = NULL;
    }
    up_free(a.rank, &a.h);
}
