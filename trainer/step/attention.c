/* The attention half of a block: norm, projections, RoPE, attention, out-projection, over stages of
 * query heads (headwise chunking) and slices of tokens, for any number of context-parallel ranks.
 *
 * A stage handles the config's stage heads over the whole group; with all heads in one stage
 * (--upipe off) this is plain Ulysses, with one rank plain attention. Stages use the same buffers
 * one after the other: q, k, v and o of one stage, and o of the one before while it is on its way,
 * are all that exists beside x and the output. K and V are made in the stages where their heads
 * change and stay for those that share them.
 *
 * In the backward the incoming gradient first gives every stage's d_o and the out-projection's
 * gradient, in one go; then it becomes the accumulator of dx, to which each stage adds its own
 * share (RMSNorm's backward is linear in its incoming gradient).
 *
 * Layouts are those of exchange.h: projections live in sequence layout, the attention kernel in
 * head layout. What a block keeps of attention's output is in sequence layout, since the
 * out-projection and its gradients need that; it is exchanged again for the kernel, one stage at a
 * time.
 */
#include "trainer/step/projection.h"

static struct up_attention attention_of(struct up_trainer *trainer, int64_t layer,
                                        const struct up_tensor *x)
{
    const struct up_config *config = trainer->config;
    int64_t passes = up_config_passes(config), stages = up_config_stages(config);
    int64_t rows = up_trainer_tokens(trainer) / passes;
    return (struct up_attention){.trainer = trainer,
                                 .rank = trainer->rank,
                                 .config = config,
                                 .model = &config->model,
                                 .unit = up_units_block(&trainer->units, layer),
                                 .kept = &trainer->kept[layer],
                                 .layer = (int)layer,
                                 .stages = stages,
                                 .slots = stages * passes,
                                 .rows = rows,
                                 .batch = config->batch / passes,
                                 .tiles = up_tiles_of(rows, config->tile_attn),
                                 .x = x};
}

static void take_h(struct up_attention *a)
{
    a->h = up_alloc(a->rank, UP_TAG_LAYER(NORM, "attn.h", a->layer), a->config->dtype,
                    UP_SHAPE(a->tiles.tile, a->model->hidden));
    a->h_row = -1;
}

static struct up_stage stage_at(struct up_attention *a, int64_t slot)
{
    int64_t index = slot % a->stages;
    return (struct up_stage){.slot = slot,
                             .index = index,
                             .row = slot / a->stages * a->rows,
                             .kv = &a->trainer->layouts.kv[index]};
}

// Whether K and V of this stage are not those of the next.
static bool kv_ends(const struct up_attention *a, const struct up_stage *s)
{
    return s->index + 1 == a->stages || up_config_kv_changes(a->config, s->index + 1);
}

// The slot's stage, with K and V (and what is gathered for them) from the stage before if it shares
// them.
static struct up_stage next_stage(struct up_attention *a, const struct up_stage *before,
                                  int64_t slot)
{
    struct up_stage s = stage_at(a, slot);
    if (kv_ends(a, before)) return s;
    s.k = before->k;
    s.v = before->v;
    s.dk = before->dk;
    s.dv = before->dv;
    s.raw_k = before->raw_k;
    return s;
}

/* --- Tensors of heads ----------------------------------------------------------------------------
 */

static struct up_tag tag_of(const struct up_attention *a, const char *name, int64_t slot)
{
    return UP_TAG_INDEX(ATTENTION, name, a->layer, a->slots > 1 ? slot : UP_NO_INDEX);
}

static const struct up_layout *query_layout(const struct up_attention *a)
{
    return &a->trainer->layouts.query;
}

// In sequence layout: [rows, heads of all slots, head_dim] as far as its size goes.
static struct up_tensor *alloc_slots(struct up_attention *a, const char *name, int64_t slot,
                                     const struct up_layout *layout)
{
    return up_alloc(a->rank, tag_of(a, name, slot), a->config->dtype,
                    UP_SHAPE(a->rows, layout->slots_heads, a->model->head_dim));
}

static struct up_tensor *alloc_own(struct up_attention *a, const char *name, int64_t slot,
                                   const struct up_layout *layout)
{
    return up_alloc(a->rank, tag_of(a, name, slot), a->config->dtype,
                    UP_SHAPE(a->batch * a->config->seq, layout->own_heads, a->model->head_dim));
}

static void to_heads(struct up_attention *a, struct up_stage *s, struct up_tensor **tensor,
                     const char *name, const struct up_layout *layout)
{
    s->arrives =
        up_to_heads(a->rank, a->trainer->cp, tensor, tag_of(a, name, s->slot), layout, a->config);
}

static void to_sequence(struct up_attention *a, struct up_stage *s, struct up_tensor **tensor,
                        const char *name, const struct up_layout *layout)
{
    s->arrives = up_to_sequence(a->rank, a->trainer->cp, tensor, tag_of(a, name, s->slot), layout,
                                a->config, a->trainer->cp_rank);
}

// For what was sent last, and with it for all before.
static void wait_for_arrivals(struct up_attention *a, const struct up_stage *s)
{
    up_stream_wait_moment(a->rank, UP_STREAM_COMPUTE, s->arrives);
}

/* --- Norm and RoPE
 * -------------------------------------------------------------------------------- */

static struct up_rope_config rope_of(const struct up_model *m)
{
    return (struct up_rope_config){.theta = m->rope_theta,
                                   .llama3 = m->rope_llama3,
                                   .factor = m->rope_factor,
                                   .low_freq = m->rope_low_freq,
                                   .high_freq = m->rope_high_freq,
                                   .original_length = m->rope_original_length};
}

// to = RoPE(norm(from)) in sequence layout, slot by slot; kind: WQ or WK. to may be from.
static void rotate(struct up_attention *a, const struct up_stage *s, const struct up_tensor *from,
                   struct up_tensor *to, enum up_param_kind kind)
{
    enum up_param_kind norm = kind == UP_PARAM_WQ ? UP_PARAM_Q_NORM : UP_PARAM_K_NORM;
    const struct up_layout *layout = up_layout_of(a, s, kind);
    for (int64_t r = 0; r < a->config->cp; r++) {
        int64_t heads = up_heads_of(a, s, kind, r).count;
        up_op_rope(a->rank, UP_STREAM_COMPUTE,
                   &(struct up_rope_args){
                       .x = up_slot_row(a, from, layout, r, heads, 0),
                       .y = up_slot_row(a, to, layout, r, heads, 0),
                       .weight = a->model->qk_norm ? up_unit_weight(a->unit, norm) : NULL,
                       .epsilon = (float)a->model->norm_epsilon,
                       .rows = a->rows,
                       .heads = heads,
                       .head_dim = a->model->head_dim,
                       .first_position = up_config_first_token(a->config, a->trainer->cp_rank),
                       .period = up_config_tokens(a->config, a->trainer->cp_rank),
                       .config = rope_of(a->model),
                       .dtype = a->config->dtype});
    }
}

// d, in place: from after norm and RoPE to before. `raw` is the projection's output, with q/k norm.
static void rotate_back(struct up_attention *a, const struct up_stage *s, struct up_tensor *d,
                        const struct up_tensor *raw, enum up_param_kind kind)
{
    enum up_param_kind norm = kind == UP_PARAM_WQ ? UP_PARAM_Q_NORM : UP_PARAM_K_NORM;
    const struct up_layout *layout = up_layout_of(a, s, kind);
    bool normed = a->model->qk_norm;
    for (int64_t r = 0; r < a->config->cp; r++) {
        int64_t heads = up_heads_of(a, s, kind, r).count;
        void *rows = up_slot_row(a, d, layout, r, heads, 0);
        up_op_rope_backward(
            a->rank, UP_STREAM_COMPUTE,
            &(struct up_rope_backward_args){
                .dy = rows,
                .dx = rows,
                .x = normed ? up_slot_row(a, raw, layout, r, heads, 0) : NULL,
                .weight = normed ? up_unit_weight(a->unit, norm) : NULL,
                .d_weight = normed ? up_unit_grad(a->unit, norm) : NULL,
                .epsilon = (float)a->model->norm_epsilon,
                .rows = a->rows,
                .heads = heads,
                .head_dim = a->model->head_dim,
                .first_position = up_config_first_token(a->config, a->trainer->cp_rank),
                .period = up_config_tokens(a->config, a->trainer->cp_rank),
                .config = rope_of(a->model),
                .dtype = a->config->dtype});
    }
}

// *tensor, a projection's output in sequence layout, becomes what attention takes, in head layout.
// With `keep`, *keep is what the backward needs of it: with q/k norm the output itself (then a copy
// is rotated), without the result.
static void rotate_to_heads(struct up_attention *a, struct up_stage *s, struct up_tensor **tensor,
                            struct up_tensor **keep, enum up_param_kind kind)
{
    const char *name = kind == UP_PARAM_WQ ? "attn.q" : "attn.k";
    struct up_tensor *from = *tensor;
    bool copy = keep && a->model->qk_norm;
    if (copy) {
        *keep = from;
        *tensor = alloc_slots(a, kind == UP_PARAM_WQ ? "attn.q.rotated" : "attn.k.rotated", s->slot,
                              up_layout_of(a, s, kind));
    }
    rotate(a, s, from, *tensor, kind);
    to_heads(a, s, tensor, name, up_layout_of(a, s, kind));
    if (keep && !copy) *keep = *tensor;
}

/* --- Forward
 * -------------------------------------------------------------------------------------- */

// Takes the places of q, and of k and v where they change. This comes before the stage before sends
// anything: in the bytes of what is being sent, projections would wait for it.
static void place_qkv(struct up_attention *a, struct up_stage *s)
{
    s->q = alloc_slots(a, "attn.q", s->slot, query_layout(a));
    if (!up_config_kv_changes(a->config, s->index)) return;
    s->k = alloc_slots(a, "attn.k", s->slot, s->kv);
    s->v = alloc_slots(a, "attn.v", s->slot, s->kv);
}

// Makes what has been placed, and sends it. With `keep`, what the backward needs of it goes to
// kept.
static void make_qkv(struct up_attention *a, struct up_stage *s, bool keep)
{
    bool kv = up_config_kv_changes(a->config, s->index);
    struct up_kept *kept = a->kept;
    struct up_projection p[] = {{UP_PARAM_WQ, s->q}, {UP_PARAM_WK, s->k}, {UP_PARAM_WV, s->v}};
    up_stage_project(a, s, p, kv ? 3 : 1);
    rotate_to_heads(a, s, &s->q, keep ? &kept->q[s->slot] : NULL, UP_PARAM_WQ);
    if (!kv) return;
    rotate_to_heads(a, s, &s->k, keep ? &kept->k[s->slot] : NULL, UP_PARAM_WK);
    to_heads(a, s, &s->v, "attn.v", s->kv);
    if (keep) kept->v[s->slot] = s->v;
}

// Gives up q, and k and v with their last stage; what is kept (with `all`) stays for the backward.
static void drop_qkv(struct up_attention *a, struct up_stage *s, bool all)
{
    // With q/k norm what is kept are the raw projections: q and k themselves may go.
    bool made_of_raw = a->model->qk_norm;
    if (!all || made_of_raw) up_free(a->rank, &s->q);
    if (!kv_ends(a, s)) return;
    if (!all || made_of_raw) up_free(a->rank, &s->k);
    if (!all) up_free(a->rank, &s->v);
    s->k = s->v = NULL;
}

static struct up_attention_shape kernel_shape(const struct up_attention *a,
                                              const struct up_stage *s)
{
    const struct up_config *config = a->config;
    struct up_heads query = up_config_query_heads(config, a->trainer->cp_rank, s->index);
    struct up_heads kv = up_config_kv_heads(config, a->trainer->cp_rank, s->index);
    int64_t group = config->model.heads / config->model.kv_heads;
    return (struct up_attention_shape){.batch = a->batch,
                                       .seq = config->seq,
                                       .heads = query.count,
                                       .kv_heads = kv.count,
                                       .head_dim = config->model.head_dim,
                                       .group = group,
                                       .first_head_in_group = query.first - kv.first * group};
}

static void attend(struct up_attention *a, struct up_stage *s)
{
    s->o = alloc_own(a, "attn.o", s->slot, query_layout(a));
    s->lse = up_alloc(a->rank, tag_of(a, "attn.lse", s->slot), UP_F32,
                      UP_SHAPE(a->batch, query_layout(a)->own_heads, a->config->seq));
    up_op_attention_forward(a->rank, UP_STREAM_COMPUTE,
                            &(struct up_attention_forward_args){.q = s->q->data,
                                                                .k = s->k->data,
                                                                .v = s->v->data,
                                                                .o = s->o->data,
                                                                .lse = s->lse->data,
                                                                .shape = kernel_shape(a, s),
                                                                .dtype = a->config->dtype});
}

// What is kept of a stage's attention: its output and log-sum-exp. False for nothing.
static bool kept_of(const struct up_attention *a, const struct up_stage *s, enum up_checkpoint keep,
                    struct up_stored *kept[2])
{
    kept[0] = &a->kept->o[s->slot];
    kept[1] = &a->kept->lse[s->slot];
    return keep != UP_CHECKPOINT_BLOCK;
}

// The stage's part of the layer's output. What is kept and sent away (`store`) goes meanwhile.
static void finish_stage(struct up_attention *a, struct up_stage *s, struct up_tensor *out,
                         enum up_checkpoint keep, bool store)
{
    struct up_stored *kept[2];
    bool keeps = kept_of(a, s, keep, kept);
    if (keeps) {
        kept[0]->device = s->o;
        kept[1]->device = s->lse;
    }
    for (int i = 0; i < 2 && keeps && store; i++) up_store_begin(a->rank, kept[i]);
    up_stage_add_to_out(a, s, s->o, out);
    if (keeps) return;
    up_free(a->rank, &s->o);
    up_free(a->rank, &s->lse);
}

// What the stage sent away has gone, or goes while a later kernel runs: given up any earlier, its
// bytes would be taken for that kernel's output, which would wait for them.
static void end_store(struct up_attention *a, const struct up_stage *s, enum up_checkpoint keep,
                      bool store)
{
    struct up_stored *kept[2];
    for (int i = 0; i < 2 && store && kept_of(a, s, keep, kept); i++)
        up_store_end(a->rank, kept[i]);
}

// While a stage's output is on its way back, the next stage's q, k and v are made, and while those
// are on theirs, the output is projected: what is sent is hidden, and no more memory is taken than
// the kernel takes.
void up_attention_forward(struct up_trainer *trainer, int64_t layer, const struct up_tensor *x,
                          struct up_tensor *out, enum up_checkpoint keep, bool rebuild)
{
    struct up_attention a = attention_of(trainer, layer, x);
    bool all = keep == UP_CHECKPOINT_NONE;
    bool store = !rebuild && up_config_offloads_attention(a.config, layer);
    take_h(&a);
    up_parts_take(&a, false);
    struct up_stage s = stage_at(&a, 0), next = {0}, before = {0};
    place_qkv(&a, &s);
    make_qkv(&a, &s, all);
    for (int64_t slot = 0; slot < a.slots; slot++, before = s, s = next) {
        bool last = slot + 1 == a.slots;
        if (last) up_free(a.rank, &a.h);
        wait_for_arrivals(&a, &s);
        attend(&a, &s);
        if (slot) end_store(&a, &before, keep, store);
        drop_qkv(&a, &s, all);
        if (!last) {
            next = next_stage(&a, &s, slot + 1);
            place_qkv(&a, &next);
        }
        to_sequence(&a, &s, &s.o, "attn.o", query_layout(&a));
        if (!last) make_qkv(&a, &next, all);
        wait_for_arrivals(&a, &s);
        finish_stage(&a, &s, out, keep, store);
    }
    end_store(&a, &before, keep, store);
    up_parts_drop(&a);
    // x has been read for the last time.
    if (!rebuild && up_config_offloads_input(a.config, layer)) up_store_end(a.rank, &a.kept->x);
}

void up_attention_residual(struct up_trainer *trainer, int64_t layer, const struct up_tensor *x,
                           struct up_tensor *out)
{
    struct up_attention a = attention_of(trainer, layer, x);
    struct up_stored *o = a.kept->o;
    up_parts_take(&a, false);
    up_fetch_begin(a.rank, &o[0], true);
    for (int64_t slot = 0; slot < a.slots; slot++) {
        struct up_stage s = stage_at(&a, slot);
        up_fetch_end(a.rank);
        if (slot + 1 < a.slots) up_fetch_begin(a.rank, &o[slot + 1], true);
        up_stage_add_to_out(&a, &s, o[slot].device, out);
    }
    up_parts_drop(&a);
}

/* --- Backward
 * ------------------------------------------------------------------------------------- */

// d_o of every stage, and Wo's gradient. Of an output that also waits in host memory the device's
// copy goes: it comes again with its stage.
static void all_d_o(struct up_attention *a, const struct up_tensor *d, struct up_tensor **d_o)
{
    for (int64_t slot = 0; slot < a->slots; slot++) {
        struct up_stage s = stage_at(a, slot);
        struct up_stored *o = &a->kept->o[slot];
        d_o[slot] = alloc_slots(a, "attn.do", slot, query_layout(a));
        up_stage_out_back(a, &s, d, o->device, d_o[slot]);
        if (o->host) up_free(a->rank, &o->device);
    }
}

// A kept projection with q/k norm is normalised and rotated into a new tensor, in head layout.
static struct up_tensor *rotated_copy(struct up_attention *a, struct up_stage *s,
                                      const struct up_tensor *raw, enum up_param_kind kind)
{
    bool query = kind == UP_PARAM_WQ;
    struct up_tensor *copy = alloc_slots(a, query ? "attn.q.rotated" : "attn.k.rotated", s->slot,
                                         up_layout_of(a, s, kind));
    rotate(a, s, raw, copy, kind);
    to_heads(a, s, &copy, query ? "attn.q" : "attn.k", up_layout_of(a, s, kind));
    return copy;
}

// The stage's q, k and v: what the forward kept of them, or, where they have been placed, made
// again. raw_q and raw_k are the kept projections, with q/k norm.
static void take_qkv(struct up_attention *a, struct up_stage *s)
{
    struct up_kept *kept = a->kept;
    int64_t i = s->slot;
    bool kv = kept->v[i] != NULL, normed = a->model->qk_norm;
    if (s->q) {
        make_qkv(a, s, false);
        return;
    }
    s->q = normed ? rotated_copy(a, s, kept->q[i], UP_PARAM_WQ) : kept->q[i];
    if (kv) {
        s->k = normed ? rotated_copy(a, s, kept->k[i], UP_PARAM_WK) : kept->k[i];
        s->v = kept->v[i];
        if (normed) s->raw_k = kept->k[i];
    }
    if (normed) s->raw_q = kept->q[i];
    kept->q[i] = kept->k[i] = kept->v[i] = NULL;
}

// Fetches what the slot's backward needs of attention's output, if it is in host memory.
static void fetch_output(struct up_attention *a, int64_t slot)
{
    up_fetch_begin(a->rank, &a->kept->o[slot], false);
    up_fetch_begin(a->rank, &a->kept->lse[slot], false);
}

static struct up_tensor *take_stored(struct up_stored *stored)
{
    struct up_tensor *device = stored->device;
    stored->device = NULL;
    return device;
}

// dq takes d_o's place; dk and dv gather the stages that share K and V. o, lse, q (and k, v with
// their last stage) are freed.
static void attend_back(struct up_attention *a, struct up_stage *s)
{
    bool first = s->dk == NULL;
    struct up_attention_shape shape = kernel_shape(a, s);
    if (first) {
        s->dk = alloc_own(a, "attn.dk", s->slot, s->kv);
        s->dv = alloc_own(a, "attn.dv", s->slot, s->kv);
    }
    int64_t scratch_bytes = up_scratch_attention_backward(a->config->as, &shape, !first);
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
                                                                  .shape = shape,
                                                                  .dtype = a->config->dtype});
    up_free(a->rank, &scratch);
    up_free(a->rank, &s->o);
    up_free(a->rank, &s->lse);
    drop_qkv(a, s, false);
}

// What the stage's kernel takes, into head layout: q, k and v, o, lse and d_o.
static void send_to_heads(struct up_attention *a, struct up_stage *s, struct up_tensor **d_o)
{
    take_qkv(a, s);
    up_fetch_end(a->rank);
    s->o = take_stored(&a->kept->o[s->slot]);
    s->lse = take_stored(&a->kept->lse[s->slot]);
    s->d_o = d_o[s->slot];
    d_o[s->slot] = NULL;
    to_heads(a, s, &s->o, "attn.o", query_layout(a));
    to_heads(a, s, &s->d_o, "attn.do", query_layout(a));
}

// What the kernel made, into sequence layout: dq, and dk and dv when their last stage is done.
static void send_to_sequence(struct up_attention *a, struct up_stage *s)
{
    to_sequence(a, s, &s->d_o, "attn.dq", query_layout(a));
    if (!kv_ends(a, s)) return;
    to_sequence(a, s, &s->dk, "attn.dk", s->kv);
    to_sequence(a, s, &s->dv, "attn.dv", s->kv);
}

// From d_q or d_k to the gradient of its projection, before norm and RoPE; in sequence layout. *raw
// is the kept projection, or made again where the norm's backward needs it; freed.
static void back_to_projection(struct up_attention *a, struct up_stage *s, struct up_tensor *d,
                               struct up_tensor **raw, enum up_param_kind kind)
{
    bool query = kind == UP_PARAM_WQ;
    if (a->model->qk_norm && !*raw) {
        *raw =
            alloc_slots(a, query ? "attn.q.raw" : "attn.k.raw", s->slot, up_layout_of(a, s, kind));
        up_stage_project(a, s, &(struct up_projection){kind, *raw}, 1);
    }
    rotate_back(a, s, d, *raw, kind);
    up_free(a->rank, raw);
}

// From the stage's dq (and dk, dv when their last stage is done) into dx and the weights'
// gradients.
static void back_to_x(struct up_attention *a, struct up_stage *s, struct up_tensor *dx)
{
    bool kv = kv_ends(a, s);
    back_to_projection(a, s, s->d_o, &s->raw_q, UP_PARAM_WQ);
    if (kv) back_to_projection(a, s, s->dk, &s->raw_k, UP_PARAM_WK);
    struct up_projection p[] = {{UP_PARAM_WQ, s->d_o}, {UP_PARAM_WK, s->dk}, {UP_PARAM_WV, s->dv}};
    up_stage_project_back(a, s, p, kv ? 3 : 1, dx);
    up_free(a->rank, &s->d_o);
    if (!kv) return;
    up_free(a->rank, &s->dk);
    up_free(a->rank, &s->dv);
}

// As in the forward: while a stage's gradients are on their way back, what the next stage's kernel
// takes is made, and while that is on its way, they are projected.
void up_attention_backward(struct up_trainer *trainer, int64_t layer, const struct up_tensor *x,
                           struct up_tensor *d)
{
    struct up_attention a = attention_of(trainer, layer, x);
    struct up_tensor **d_o = trainer->stage_scratch;
    up_parts_take(&a, true);
    all_d_o(&a, d, d_o);
    take_h(&a);
    fetch_output(&a, 0);
    struct up_stage s = stage_at(&a, 0), next = {0};
    if (!a.kept->q[0]) place_qkv(&a, &s);
    send_to_heads(&a, &s, d_o);
    for (int64_t slot = 0; slot < a.slots; slot++, s = next) {
        bool last = slot + 1 == a.slots;
        wait_for_arrivals(&a, &s);
        // What comes next arrives while the kernel runs.
        if (last)
            up_prefetch_below(trainer, layer);
        else
            fetch_output(&a, slot + 1);
        attend_back(&a, &s);
        if (!last) {
            next = next_stage(&a, &s, slot + 1);
            if (!a.kept->q[slot + 1]) place_qkv(&a, &next);
        }
        send_to_sequence(&a, &s);
        if (!last) send_to_heads(&a, &next, d_o);
        wait_for_arrivals(&a, &s);
        back_to_x(&a, &s, d);
    }
    up_free(a.rank, &a.h);
    up_parts_drop(&a);
}
