/* The rules one by one. Each asks of a tensor only what its rows told; a technique whose rule needs
 * what they do not tell is not to be had (up_rule_obstacles). */
#include "report/advice/rules.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const up_rule_assumptions[UP_TECHNIQUE_COUNT] = {
#define UP_RULE(technique, assumption) [UP_TECHNIQUE_##technique] = assumption,
#include "report/advice/rules.def"
#undef UP_RULE
};
#define UP_RULE(technique, assumption) +1
_Static_assert(
#include "report/advice/rules.def"
    == UP_TECHNIQUE_COUNT, "a rule for every technique");
#undef UP_RULE

static bool has(up_rule_set set, enum up_technique technique)
{
    return set & UP_RULE_BIT(technique);
}

static bool checkpoints(up_rule_set set)
{
    return has(set, UP_TECHNIQUE_CHECKPOINT) || has(set, UP_TECHNIQUE_CHECKPOINT_ATTN);
}

static int64_t divide_up(int64_t number, int64_t by)
{
    return number / by + (number % by != 0);
}

/* --- Rows ----------------------------------------------------------------------------------------
 */

// Ranks that would share a sequence beside those that do.
static int64_t wider(const struct up_recorded *r, up_rule_set set)
{
    return has(set, UP_TECHNIQUE_ULYSSES) ? r->ranks / r->cp : 1;
}

static int64_t rows_of(const struct up_recorded *r, up_rule_set set)
{
    int64_t rows = divide_up(r->tokens, wider(r, set));
    return has(set, UP_TECHNIQUE_MICRO_BATCH) ? divide_up(rows, 2) : rows;
}

// The slice that upipe-train's advisor would choose, no more than the rows there are.
static int64_t slice_of(const struct up_recorded *r, up_rule_set set, enum up_technique technique)
{
    struct up_config config = {.as = r->on_cpu ? UP_DEVICE_CPU : UP_DEVICE_CUDA,
                               .seq = rows_of(r, set),
                               .batch = 1,
                               .cp = 1,
                               .dp = 1};
    int64_t usual = technique == UP_TECHNIQUE_TILE_LOSS ? 1024 : 4096;
    return up_min(config.seq, up_technique_tile(&config, usual));
}

/* --- Which tensors -------------------------------------------------------------------------------
 */

static bool is_state(const struct up_recorded_tensor *t)
{
    return t->category == UP_CATEGORY_PARAMETER || t->category == UP_CATEGORY_GRADIENT ||
           t->category == UP_CATEGORY_OPTIMIZER;
}

static bool is_block_activation(const struct up_recorded_tensor *t)
{
    return t->layer >= 0 && (t->category == UP_CATEGORY_ATTENTION ||
                             t->category == UP_CATEGORY_NORM || t->category == UP_CATEGORY_MLP);
}

static bool is_attention_output(const struct up_recorded_tensor *t)
{
    return t->category == UP_CATEGORY_ATTENTION && t->role == UP_ROLE_OUTPUT;
}

// Kept by its block, and neither kept nor waiting any more under `set`.
static bool is_recomputed(const struct up_recorded_tensor *t, up_rule_set set)
{
    if (!t->kept || !is_block_activation(t)) return false;
    return has(set, UP_TECHNIQUE_CHECKPOINT) ||
           (has(set, UP_TECHNIQUE_CHECKPOINT_ATTN) && !is_attention_output(t));
}

static bool is_sent_away(const struct up_recorded_tensor *t, up_rule_set set)
{
    if (!has(set, UP_TECHNIQUE_OFFLOAD) || !t->kept) return false;
    bool output = has(set, UP_TECHNIQUE_CHECKPOINT_ATTN) && is_attention_output(t);
    return (t->layer >= 0 && t->category == UP_CATEGORY_CHECKPOINT) || output;
}

static bool is_transient(const struct up_recorded_tensor *t, up_rule_set set)
{
    return !t->kept || is_recomputed(t, set);
}

// What is made of slices of rows by a technique; whatever keeps rows for its block is not.
static bool is_sliced_by(const struct up_recorded_tensor *t, enum up_technique technique)
{
    bool norm = t->category == UP_CATEGORY_NORM;
    switch (technique) {
    case UP_TECHNIQUE_TILE_LOSS:
        return t->category == UP_CATEGORY_LOSS || (norm && t->role == UP_ROLE_LOSS);
    case UP_TECHNIQUE_TILE_MLP:
        return t->category == UP_CATEGORY_MLP || (norm && t->role == UP_ROLE_MLP);
    case UP_TECHNIQUE_TILE_ATTN:
        return norm && t->role == UP_ROLE_ATTN;
    default:
        return false;
    }
}

static bool is_staged(const struct up_recorded_tensor *t)
{
    return t->category == UP_CATEGORY_ATTENTION && t->heads > 1 &&
           (t->role == UP_ROLE_QKV || t->role == UP_ROLE_OUTPUT);
}

/* --- How many bytes ------------------------------------------------------------------------------
 */

static int64_t rows_bytes(const struct up_recorded *r, up_rule_set set,
                          const struct up_recorded_tensor *t)
{
    static const enum up_technique slices[] = {UP_TECHNIQUE_TILE_LOSS, UP_TECHNIQUE_TILE_MLP,
                                               UP_TECHNIQUE_TILE_ATTN};
    int64_t rows = rows_of(r, set);
    if (!t->token_rows || is_state(t)) return t->life.bytes;
    for (int i = 0; i < UP_COUNT(slices); i++)
        if (has(set, slices[i]) && is_sliced_by(t, slices[i]) && is_transient(t, set))
            rows = up_min(rows, slice_of(r, set, slices[i]));
    return t->life.bytes / r->tokens * rows;
}

// fp32 weights that go to host memory leave a copy in the run's dtype.
static int64_t state_bytes(const struct up_recorded *r, up_rule_set set,
                           const struct up_recorded_tensor *t)
{
    int64_t bytes = t->life.bytes;
    if (has(set, UP_TECHNIQUE_OPTIMIZER) && t->category == UP_CATEGORY_PARAMETER &&
        t->dtype_bytes == 4 && r->dtype_bytes == 2)
        bytes /= 2;
    return has(set, UP_TECHNIQUE_FSDP) ? divide_up(bytes, r->ranks) : bytes;
}

// `backward`: of what is alive in the backward, where a stage's output waits for all the others.
static int64_t ruled_bytes(const struct up_recorded *r, up_rule_set set,
                           const struct up_recorded_tensor *t, bool backward)
{
    if (is_state(t)) return state_bytes(r, set, t);
    int64_t bytes = rows_bytes(r, set, t);
    bool waits = backward && t->role == UP_ROLE_OUTPUT;
    if (has(set, UP_TECHNIQUE_UPIPE) && is_staged(t) && is_transient(t, set) && !waits)
        bytes = divide_up(bytes, up_max(1, t->heads / wider(r, set)));
    return bytes;
}

/* --- Buffers that a technique needs --------------------------------------------------------------
 */

struct unit {
    int64_t layer, bytes;
};

static int by_layer(const void *a, const void *b)
{
    const struct unit *x = a, *y = b;
    return (x->layer > y->layer) - (x->layer < y->layer);
}

struct largest {
    int64_t unit, block; // bytes: of any unit, of a block
};

// `category`'s bytes of the largest unit: a block, or a tensor outside blocks. Dtypes as in `to`.
static enum up_status find_largest(const struct up_recorded *r, enum up_category category, int to,
                                   struct largest *largest, struct up_error *err)
{
    struct unit *units = calloc((size_t)r->count + 1, sizeof *units);
    int64_t count = 0, outside = UP_NONE;
    *largest = (struct largest){0};
    if (!units) return up_no_memory(err);
    for (int64_t i = 0; i < r->count; i++) {
        const struct up_recorded_tensor *t = &r->tensors[i];
        if (t->category != (int)category) continue;
        int64_t bytes = t->life.bytes;
        if (to && t->dtype_bytes > to) bytes = bytes / t->dtype_bytes * to;
        units[count++] = (struct unit){t->layer >= 0 ? t->layer : --outside, bytes};
    }
    qsort(units, (size_t)count, sizeof *units, by_layer);
    for (int64_t i = 0, sum = 0; i < count; i++) {
        sum = up_sum(i && units[i - 1].layer == units[i].layer ? sum : 0, units[i].bytes);
        largest->unit = up_max(largest->unit, sum);
        if (units[i].layer >= 0) largest->block = up_max(largest->block, sum);
    }
    free(units);
    return UP_OK;
}

struct output {
    struct up_ruled *items;
    int64_t count;
};

static void put(struct output *out, const struct up_recorded_tensor *of, int64_t bytes,
                int64_t begin, int64_t end)
{
    if (begin >= end) return;
    struct up_ruled *ruled = &out->items[out->count++];
    *ruled = (struct up_ruled){.life = of->life, .of = of};
    ruled->life.bytes = bytes;
    ruled->life.alloc_seq = begin;
    ruled->life.free_seq = end;
}

// Buffers have storages of their own, below those of a file.
static void put_buffer(struct output *out, const char *name, enum up_category category,
                       int64_t bytes, int64_t begin, int64_t end)
{
    if (begin >= end || !bytes) return;
    struct up_ruled *ruled = &out->items[out->count];
    *ruled = (struct up_ruled){.category = category, .name = name};
    ruled->life = (struct up_lifetime){.storage = INT64_MIN + out->count++,
                                       .bytes = bytes,
                                       .alloc_seq = begin,
                                       .free_seq = end,
                                       .step = UP_NONE,
                                       .free_step = UP_NONE};
}

static int64_t after(int64_t seq)
{
    return up_sum(seq, 1);
}

// When the optimizer is at work: in its phase; where the trace has none, at the end of a step that
// got there, whose last event is then a free. INT64_MAX: it did not get there.
static int64_t optimizer_begin(const struct up_recorded *r)
{
    if (r->optimizer_seq != INT64_MAX || r->backward_seq == INT64_MAX) return r->optimizer_seq;
    for (int64_t i = 0; i < r->count; i++)
        if (r->tensors[i].life.free_seq == r->last_seq) return r->last_seq;
    return INT64_MAX;
}

/* Whether blocks' weights were gathered from all ranks, as far as the sizes of what was
 * communicated in blocks tell. */
enum sharding { NOT_SHARDED, CAST, SHARDED, CANNOT_TELL };

static int64_t elements(const struct up_recorded_tensor *t)
{
    return t->dtype_bytes ? t->life.bytes / t->dtype_bytes : 0;
}

static bool about(int64_t a, int64_t b)
{
    double difference = (double)a - (double)b;
    return a > 0 && difference < 0.01 * (double)a && difference > -0.01 * (double)a;
}

// A block's weights in one buffer: as many elements as it has parameters, or as all ranks have.
static enum sharding sharding_of(const struct up_recorded *r)
{
    bool communicates = false, cast = false;
    int64_t weights = 0;
    for (int64_t i = 0; i < r->count; i++) {
        const struct up_recorded_tensor *t = &r->tensors[i];
        if (t->category == UP_CATEGORY_PARAMETER && t->layer >= 0)
            weights = up_max(weights, elements(t));
    }
    for (int64_t i = 0; i < r->count; i++) {
        const struct up_recorded_tensor *t = &r->tensors[i];
        if (t->category != UP_CATEGORY_COMM || t->layer < 0) continue;
        communicates = true;
        int64_t each = r->ranks > 1 ? elements(t) / r->ranks : 0;
        if (weights && about(each, weights)) return SHARDED;
        cast = cast || about(elements(t), weights);
    }
    if (!communicates) return NOT_SHARDED;
    return cast ? CAST : CANNOT_TELL;
}

static int64_t first_loss(const struct up_recorded *r)
{
    for (int64_t i = 0; i < r->count; i++)
        if (r->tensors[i].category == UP_CATEGORY_LOSS) return r->tensors[i].life.alloc_seq;
    return r->backward_seq;
}

static int64_t first_forward(const struct up_recorded *r)
{
    for (int64_t i = 0; i < r->count; i++)
        if (r->tensors[i].phase == UP_PHASE_FORWARD) return r->tensors[i].life.alloc_seq;
    return r->first_seq;
}

static enum up_status put_gathered(const struct up_recorded *r, struct output *out,
                                   struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct largest weights, gradients;
    int64_t end = optimizer_begin(r);
    UP_TRY(find_largest(r, UP_CATEGORY_PARAMETER, r->dtype_bytes, &weights, err));
    UP_TRY(find_largest(r, UP_CATEGORY_GRADIENT, 0, &gradients, err));
    if (sharding_of(r) == NOT_SHARDED)
        put_buffer(out, "weights.gathered", UP_CATEGORY_COMM, up_sum(weights.unit, weights.block),
                   first_forward(r), end);
    put_buffer(out, "grads.full", UP_CATEGORY_COMM, gradients.unit,
               up_min(first_loss(r), r->backward_seq), end);
out:
    return rc;
}

static enum up_status put_update(const struct up_recorded *r, up_rule_set set, struct output *out,
                                 struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct largest state, weights;
    int64_t ranks = has(set, UP_TECHNIQUE_FSDP) ? r->ranks : 1, begin = optimizer_begin(r);
    UP_TRY(find_largest(r, UP_CATEGORY_OPTIMIZER, 0, &state, err));
    UP_TRY(find_largest(r, UP_CATEGORY_PARAMETER, 0, &weights, err));
    put_buffer(out, "update", UP_CATEGORY_OPTIMIZER,
               divide_up(up_sum(state.unit, weights.unit), ranks), begin, after(r->last_seq));
out:
    return rc;
}

/* --- All of them ---------------------------------------------------------------------------------
 */

static void apply_on_device(const struct up_recorded *r, up_rule_set set,
                            const struct up_recorded_tensor *t, struct output *out)
{
    int64_t begin = t->life.alloc_seq, end = t->life.free_seq;
    if (has(set, UP_TECHNIQUE_OPTIMIZER) && t->category == UP_CATEGORY_OPTIMIZER) return;
    if (is_recomputed(t, set) || is_sent_away(t, set)) {
        put(out, t, ruled_bytes(r, set, t, false), begin, up_min(t->forward_end, end));
        put(out, t, ruled_bytes(r, set, t, true), up_max(t->backward_begin, t->forward_end), end);
    } else {
        put(out, t, ruled_bytes(r, set, t, t->phase == UP_PHASE_BACKWARD), begin, end);
    }
}

static void apply_on_host(const struct up_recorded *r, up_rule_set set,
                          const struct up_recorded_tensor *t, struct output *out)
{
    bool state = t->category == UP_CATEGORY_OPTIMIZER ||
                 (t->category == UP_CATEGORY_PARAMETER && t->dtype_bytes == 4);
    int64_t ranks = has(set, UP_TECHNIQUE_FSDP) ? r->ranks : 1;
    if (has(set, UP_TECHNIQUE_OPTIMIZER) && state)
        put(out, t, divide_up(t->life.bytes, ranks), t->life.alloc_seq, t->life.free_seq);
    else if (is_sent_away(t, set))
        put(out, t, ruled_bytes(r, set, t, false), t->forward_end, t->backward_begin);
}

enum { BUFFERS = 4 };

enum up_status up_rules_apply(const struct up_recorded *recorded, up_rule_set set,
                              enum up_space space, struct up_ruled **ruled, int64_t *count,
                              struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct output out = {calloc(2 * (size_t)recorded->count + BUFFERS, sizeof *out.items), 0};
    *ruled = NULL;
    *count = 0;
    if (!out.items) return up_no_memory(err);
    for (int64_t i = 0; i < recorded->count; i++) {
        if (space == UP_SPACE_DEVICE)
            apply_on_device(recorded, set, &recorded->tensors[i], &out);
        else
            apply_on_host(recorded, set, &recorded->tensors[i], &out);
    }
    if (space == UP_SPACE_DEVICE && has(set, UP_TECHNIQUE_FSDP))
        UP_TRY(put_gathered(recorded, &out, err));
    if (space == UP_SPACE_DEVICE && has(set, UP_TECHNIQUE_OPTIMIZER))
        UP_TRY(put_update(recorded, set, &out, err));
    *ruled = out.items;
    *count = out.count;
    out.items = NULL;
out:
    free(out.items);
    return rc;
}

/* --- What stands in the way ----------------------------------------------------------------------
 */

struct seen {
    bool state, state_layers, kept, kept_more, kept_outputs, inputs, blockless, phaseless,
        sliced[3], staged;
    bool by_head, by_token, activations, headless, unnamed_attention, unnamed_norm, uncategorised;
    int64_t query_heads; // the most heads of a q or o
};

static void look_at(const struct up_recorded_tensor *t, up_rule_set set, struct seen *seen)
{
    bool attention = t->category == UP_CATEGORY_ATTENTION;
    bool block = attention || t->category == UP_CATEGORY_NORM || t->category == UP_CATEGORY_MLP;
    bool by_head = attention && (t->role == UP_ROLE_QKV || t->role == UP_ROLE_OUTPUT);
    bool transient = is_transient(t, set);
    seen->uncategorised |= t->category == UP_NONE;
    seen->state |= is_state(t);
    seen->state_layers |= is_state(t) && t->layer >= 0;
    seen->activations |= block;
    seen->blockless |= block && t->layer < 0;
    seen->phaseless |= block && t->phase == UP_NONE;
    seen->kept |= t->kept && is_block_activation(t);
    seen->kept_more |= t->kept && is_block_activation(t) && !is_attention_output(t);
    seen->kept_outputs |= t->kept && is_attention_output(t);
    seen->inputs |= t->kept && t->layer >= 0 && t->category == UP_CATEGORY_CHECKPOINT;
    for (int i = 0; i < 3; i++)
        seen->sliced[i] |= t->token_rows && transient &&
                           is_sliced_by(t, (enum up_technique)(UP_TECHNIQUE_TILE_LOSS + i));
    seen->staged |= is_staged(t) && transient;
    seen->by_head |= by_head;
    seen->headless |= by_head && !t->heads;
    seen->by_token |= t->token_rows && !is_state(t);
    seen->unnamed_attention |= attention && t->role == UP_ROLE_UNKNOWN;
    seen->unnamed_norm |= t->category == UP_CATEGORY_NORM && t->role == UP_ROLE_UNKNOWN;
    if (by_head) seen->query_heads = up_max(seen->query_heads, t->heads);
}
_Static_assert(UP_TECHNIQUE_TILE_MLP == UP_TECHNIQUE_TILE_LOSS + 1 &&
                   UP_TECHNIQUE_TILE_ATTN == UP_TECHNIQUE_TILE_LOSS + 2,
               "slices lie together");

static const char nothing[] = "nothing that it would shrink was recorded";
static const char no_tokens[] =
    "how many tokens a rank has was not recorded (seq_len, cp and ranks in meta)";
static const char no_ranks[] = "how many ranks there are was not recorded (ranks in meta)";
static const char no_layers[] = "which tensors belong to which layer was not recorded";
static const char no_phases[] = "which tensors are of the forward was not recorded (phase)";
static const char no_categories[] = "what the tensors are was not recorded (category)";
static const char no_names[] = "which tensors are q, k, v and o was not recorded (name)";

// Nothing was found: for want of what was not recorded, or because there is nothing.
static const char *nothing_or(bool lacking, const char *what, const struct seen *seen)
{
    if (lacking) return what;
    return seen->uncategorised ? no_categories : nothing;
}

static const char *obstacle_to_fsdp(const struct up_recorded *r, const struct seen *seen)
{
    if (!r->ranks) return no_ranks;
    if (r->ranks == 1) return "there is one rank";
    if (!seen->state) return nothing_or(false, NULL, seen);
    if (!seen->state_layers) return no_layers;
    enum sharding sharding = sharding_of(r);
    if (sharding == SHARDED) return "model state is split over the ranks already";
    return sharding == CANNOT_TELL ? "whether model state is split already was not recorded" : NULL;
}

static const char *obstacle_to_ulysses(const struct up_recorded *r, const struct seen *seen)
{
    if (!r->ranks || !r->cp) return no_ranks;
    if (r->ranks == 1) return "there is one rank";
    if (r->cp >= r->ranks || r->ranks % r->cp) return "all ranks share a sequence already";
    if (!r->tokens) return no_tokens;
    if (!seen->by_token) return nothing_or(false, NULL, seen);
    if (seen->query_heads < 1)
        return seen->by_head ? "how many heads there are was not recorded (shape)" : no_names;
    return seen->query_heads % (r->ranks / r->cp) ? "the ranks do not divide the heads" : NULL;
}

static const char *obstacle_to_checkpoint(const struct seen *seen, up_rule_set set, bool attn)
{
    if (checkpoints(set)) return "blocks keep little already";
    if (!seen->kept)
        return nothing_or(seen->activations && (seen->blockless || seen->phaseless),
                          seen->blockless ? no_layers : no_phases, seen);
    if (!seen->inputs)
        return "which tensors are the blocks' inputs was not recorded (category checkpoint)";
    if (attn && !seen->kept_more) return "blocks keep little already";
    return attn && !seen->kept_outputs ? nothing_or(seen->unnamed_attention, no_names, seen) : NULL;
}

static const char *obstacle_to_offload(const struct seen *seen, up_rule_set set)
{
    if (!seen->inputs) return nothing_or(seen->blockless, no_layers, seen);
    return seen->kept && !checkpoints(set) ? "it comes after checkpointing: blocks keep more than "
                                             "their inputs"
                                           : NULL;
}

static const char *obstacle_to_slices(const struct up_recorded *r, const struct seen *seen,
                                      up_rule_set set, enum up_technique technique)
{
    if (!r->tokens) return no_tokens;
    bool unnamed = technique == UP_TECHNIQUE_TILE_ATTN && seen->unnamed_norm;
    if (!seen->sliced[technique - UP_TECHNIQUE_TILE_LOSS])
        return nothing_or(unnamed, "which tensors are attention's input was not recorded (name)",
                          seen);
    return slice_of(r, set, technique) < rows_of(r, set) ? NULL
                                                         : "the sequence is no longer than a slice";
}

static const char *obstacle_to_upipe(const struct seen *seen)
{
    if (seen->staged) return NULL;
    if (seen->headless) return "how many heads there are was not recorded (shape)";
    return nothing_or(seen->unnamed_attention && !seen->by_head, no_names, seen);
}

static const char *obstacle(const struct up_recorded *r, const struct seen *seen, up_rule_set set,
                            enum up_technique technique)
{
    switch (technique) {
    case UP_TECHNIQUE_FSDP:
        return obstacle_to_fsdp(r, seen);
    case UP_TECHNIQUE_ULYSSES:
        return obstacle_to_ulysses(r, seen);
    case UP_TECHNIQUE_CHECKPOINT:
    case UP_TECHNIQUE_CHECKPOINT_ATTN:
        return obstacle_to_checkpoint(seen, set, technique == UP_TECHNIQUE_CHECKPOINT_ATTN);
    case UP_TECHNIQUE_OFFLOAD:
        return obstacle_to_offload(seen, set);
    case UP_TECHNIQUE_TILE_LOSS:
    case UP_TECHNIQUE_TILE_MLP:
    case UP_TECHNIQUE_TILE_ATTN:
        return obstacle_to_slices(r, seen, set, technique);
    case UP_TECHNIQUE_UPIPE:
        return obstacle_to_upipe(seen);
    case UP_TECHNIQUE_OPTIMIZER:
        return seen->state_layers ? NULL : seen->state ? no_layers : nothing_or(false, NULL, seen);
    case UP_TECHNIQUE_MICRO_BATCH:
        if (r->batch % 2) return "the batch cannot be halved";
        return r->tokens ? NULL : no_tokens;
    default:
        UP_BUG("unknown technique %d", technique);
    }
}

void up_rule_obstacles(const struct up_recorded *recorded, up_rule_set set,
                       const char *obstacles[UP_TECHNIQUE_COUNT])
{
    struct seen seen = {0};
    for (int64_t i = 0; i < recorded->count; i++) look_at(&recorded->tensors[i], set, &seen);
    for (int t = 0; t < UP_TECHNIQUE_COUNT; t++) {
        enum up_technique technique = (enum up_technique)t;
        obstacles[t] =
            has(set, technique) ? "it is on already" : obstacle(recorded, &seen, set, technique);
    }
}

/* --- As options ----------------------------------------------------------------------------------
 */

// A step goes on with as many sequences as before.
static int64_t sequences(int64_t accum, int64_t times)
{
    int64_t more;
    return __builtin_mul_overflow(accum, times, &more) ? INT64_MAX : more;
}

void up_rule_options(const struct up_recorded *recorded, up_rule_set set,
                     enum up_technique technique, char *text, size_t size)
{
    static const char *const fixed[UP_TECHNIQUE_COUNT] = {
        [UP_TECHNIQUE_FSDP] = "--fsdp on",
        [UP_TECHNIQUE_CHECKPOINT] = "--checkpoint block",
        [UP_TECHNIQUE_CHECKPOINT_ATTN] = "--checkpoint attn",
        [UP_TECHNIQUE_OFFLOAD] = "--offload host",
        [UP_TECHNIQUE_OPTIMIZER] = "--optimizer host"};
    static const char *const counted[UP_TECHNIQUE_COUNT] = {
        [UP_TECHNIQUE_TILE_LOSS] = "--tile-loss",
        [UP_TECHNIQUE_TILE_MLP] = "--tile-mlp",
        [UP_TECHNIQUE_TILE_ATTN] = "--tile-attn"};
    char count[UP_UNITS_TEXT];
    set |= UP_RULE_BIT(technique);
    if (fixed[technique])
        snprintf(text, size, "%s", fixed[technique]);
    else if (counted[technique])
        snprintf(text, size, "%s %s", counted[technique],
                 up_format_count(count, slice_of(recorded, set, technique)));
    else if (technique == UP_TECHNIQUE_ULYSSES)
        snprintf(text, size, "--accum %lld --cp %lld --dp 1",
                 (long long)sequences(recorded->accum, recorded->ranks / recorded->cp),
                 (long long)recorded->ranks);
    else if (technique == UP_TECHNIQUE_UPIPE)
        snprintf(text, size, "--upipe %lld",
                 (long long)up_max(1, recorded->cp * wider(recorded, set)));
    else
        snprintf(text, size, "--batch %lld --accum %lld", (long long)(recorded->batch / 2),
                 (long long)sequences(recorded->accum, 2));
}
