/* How a call of attention on cuda is cut into runs of query heads, and what scratch a run of the
 * backward pass takes: pure functions of shapes, for the kernels and for ops/cost.c.
 *
 * cuDNN wants whole groups (query heads x group), or some heads of one. Long sequences fill the GPU
 * with a head or two, so a run is as small as still does that: the backward's scratch grows with
 * the heads of a run (8 heads at once would take 8 GiB at a million tokens), smaller runs are no
 * slower there, and cuDNN's 32-bit offsets stay far from their limits. Each run has some 0.1 ms
 * that do not grow with it (H200, cuDNN 9.19: 8K tokens, 8, 16 and 32 heads of 128 at once, forward
 * 501, 573 and 626 TFLOP/s, backward 440, 498 and 531), so short sequences take more heads.
 */
#ifndef UP_OPS_CUDA_ATTENTION_RUNS_IMPL_H
#define UP_OPS_CUDA_ATTENTION_RUNS_IMPL_H

#include "base/base.h"
#include "ops/attention.h"

/* Query rows over the heads of a run. */
enum {
    UP_ATTENTION_FORWARD_ROWS = 1 << 18,
    UP_ATTENTION_FILL_ROWS = 1 << 16, // fill a GPU
};

/* Query heads [head, head + heads) and the KV heads they use: all of one, or whole groups. */
struct up_attention_run {
    int64_t head, heads, kv_head, kv_heads;
    bool shares; // its first KV head is also that of the run before
};

/* What a run's backward takes of the caller's scratch: byte offsets, -1 for what it does not need.
 */
struct up_attention_scratch {
    int64_t dq_sum;      // [heads, seq, head_dim] fp32, where cuDNN sums dq up
    int64_t softmax_sum; // [heads, seq] fp32
    int64_t workspace;   // the plan's
    int64_t dk, dv;      // [seq, kv_heads, head_dim] bf16, where they are to be added
    int64_t o, d_o;      // [seq, heads, head_dim] bf16, where the caller's span too far
    int64_t workspace_bytes, bytes;
};

/* The run from `head` on, of at most `most` query heads. */
static inline struct up_attention_run up_attention_run_at(const struct up_attention_shape *s,
                                                          int64_t head, int64_t most)
{
    int64_t place = (s->first_head_in_group + head) % s->group;
    int64_t here = up_min(s->group - place, s->heads - head); // of this group in this call
    struct up_attention_run run = {.head = head,
                                   .heads = here,
                                   .kv_head = (s->first_head_in_group + head) / s->group,
                                   .kv_heads = 1,
                                   .shares = head > 0 && place > 0};
    if (here > most) {
        run.heads = up_ceil_div(here, up_ceil_div(here, most));
    } else if (here == s->group) {
        run.kv_heads = up_min(most, s->heads - head) / s->group;
        run.heads = run.kv_heads * s->group;
    }
    return run;
}

/* Heads of one KV head share its keys in the cache: they stay together. Forward needs no scratch.
 */
static inline struct up_attention_run up_attention_forward_run(const struct up_attention_shape *s,
                                                               int64_t head)
{
    return up_attention_run_at(s, head, up_max(s->group, UP_ATTENTION_FORWARD_ROWS / s->seq));
}

/* Query rows of a forward call, of `heads` query heads: a long sequence goes in blocks, each over
 * the keys up to its end, which keeps the GPU's multiprocessors on keys that lie close together.
 * Measured alone (H200, cuDNN 9.19), whole and in blocks: 4 heads of 128K tokens 568 and 609
 * TFLOP/s, 8 heads of 256K 531 and 615, one head of 512K 520 and 617; one or two heads of 128K
 * tokens run at 620 whole. Within a step the power limit takes much of the gain. A block has a plan
 * of its own, so there are 64 at most. The backward does not gain. */
static inline int64_t up_attention_block_rows(int64_t seq, int64_t heads)
{
    enum { LEAST = 8192, MOST_BLOCKS = 64 };
    int64_t rows =
        up_max(up_max(UP_ATTENTION_FILL_ROWS / 2 / heads, LEAST), up_ceil_div(seq, MOST_BLOCKS));
    if (seq * heads <= UP_ATTENTION_FORWARD_ROWS || seq <= 8 * rows) return seq;
    // Equal blocks, but for the last, of whole 128 rows.
    return up_ceil_div(up_ceil_div(seq, up_ceil_div(seq, rows)), 128) * 128;
}

/* Scores of a run that make what does not grow with it small. */
static inline struct up_attention_run up_attention_backward_run(const struct up_attention_shape *s,
                                                                int64_t head)
{
    const int64_t enough = INT64_C(1) << 31;
    int64_t heads = up_max(UP_ATTENTION_FILL_ROWS / s->seq, enough / s->seq / s->seq);
    return up_attention_run_at(s, head, up_max(1, heads));
}

/* Into how many runs, and of those blocks of rows, a call is cut. */
static inline int64_t up_attention_forward_runs(const struct up_attention_shape *s)
{
    struct up_attention_run run;
    int64_t runs = 0;
    for (int64_t head = 0; head < s->heads && s->seq > 0; head += run.heads) {
        run = up_attention_forward_run(s, head);
        runs += up_ceil_div(s->seq, up_attention_block_rows(s->seq, run.heads));
    }
    return s->batch * runs;
}

static inline int64_t up_attention_backward_runs(const struct up_attention_shape *s)
{
    struct up_attention_run run;
    int64_t runs = 0;
    for (int64_t head = 0; head < s->heads && s->seq > 0; head += run.heads, runs++)
        run = up_attention_backward_run(s, head);
    return s->batch * runs;
}

/* cuDNN finds a row of do and o by a 32-bit offset in elements, and says nothing when it overflows.
 */
static inline bool up_attention_spans_too_far(const struct up_attention_shape *s,
                                              const struct up_attention_run *run)
{
    int64_t span = ((s->seq - 1) * s->heads + run->heads) * s->head_dim;
    return span > INT32_MAX;
}

/* What cuDNN was checked with: these head dimensions, sequences that a run of one head can span,
 * and rows of K and V over which gradients of shared KV heads (32-bit offsets again; a run has such
 * up to 32K tokens) span less than 2^32. The rest is our own kernels', whose backward needs one
 * fp32 number per query row. */
static inline bool up_attention_fits_cudnn(const struct up_attention_shape *s)
{
    return up_attention_on_cudnn(s->head_dim) && s->seq >= 64 &&
           s->seq * s->head_dim <= INT32_MAX && s->kv_heads * s->head_dim < 1 << 16;
}

static inline int64_t up_attention_take(struct up_attention_scratch *scratch, int64_t bytes)
{
    int64_t at = scratch->bytes;
    scratch->bytes += up_ceil_div(bytes, 256) * 256;
    return at;
}

/* `adds`: dk and dv are to be added to what is there. With several query heads per KV head the
 * workspace holds bf16 dk and dv of each. */
static inline struct up_attention_scratch
up_attention_scratch_of(const struct up_attention_shape *s, const struct up_attention_run *run,
                        bool adds)
{
    struct up_attention_scratch scratch = {.dk = -1, .dv = -1, .o = -1, .d_o = -1};
    int64_t rows = run->heads * s->seq;
    int64_t elements = rows * s->head_dim, kv_elements = run->kv_heads * s->seq * s->head_dim;
    scratch.workspace_bytes = 256 + (run->heads != run->kv_heads ? 2 * 2 * elements : 0);
    scratch.dq_sum = up_attention_take(&scratch, 4 * elements);
    scratch.softmax_sum = up_attention_take(&scratch, 4 * rows);
    scratch.workspace = up_attention_take(&scratch, scratch.workspace_bytes);
    if (adds) {
        scratch.dk = up_attention_take(&scratch, 2 * kv_elements);
        scratch.dv = up_attention_take(&scratch, 2 * kv_elements);
    }
    if (up_attention_spans_too_far(s, run)) {
        scratch.o = up_attention_take(&scratch, 2 * elements);
        scratch.d_o = up_attention_take(&scratch, 2 * elements);
    }
    return scratch;
}

#endif
