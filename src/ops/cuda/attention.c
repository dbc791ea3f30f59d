/* Attention on cuda: cuDNN where it serves the shape, our own kernels elsewhere, and what a device
 * keeps for it between launches.
 *
 * For cuDNN a call is cut into sequences and runs of query heads (attention_runs_impl.h), each a
 * plan's run over a slice of the caller's tensors. Runs that share a KV head, and calls that
 * accumulate, add dk and dv up: cuDNN writes them to scratch, and a kernel adds them to what is
 * there.
 *
 * dq may take d_o's place because of the order of cuDNN's kernels in a backward run: rowsum(do o),
 * then the kernel that makes dk and dv and sums dq up in fp32, then the one that converts that sum,
 * and it alone writes dq, when nothing reads d_o any more. Runs are of different heads.
 */
#include "ops/cuda/attention_cuda.h"
#include "ops/cuda/attention_impl.h"
#include "ops/cuda/attention_own.h"
#include "ops/cuda/attention_runs_impl.h"
#include "ops/ops_impl.h"

#include <stdlib.h>

struct state {
    bool opened, own;   // own: forced
    int64_t block_rows; // of forward calls, forced; 0: as up_attention_block_rows says
    struct up_cudnn *cudnn;
    struct up_error absent; // why there is no cuDNN
    struct up_error why;    // why our own kernels served the last shape that they served
};

static const char state_key; // its address is the key

static void destroy_state(void *kept)
{
    struct state *state = kept;
    up_cudnn_close(state->cudnn);
    free(state);
}

static struct state *state_of(struct up_cuda *cuda)
{
    void **slot = up_cuda_slot(cuda, &state_key, destroy_state);
    if (!*slot) *slot = calloc(1, sizeof(struct state));
    if (!*slot) up_cuda_fail(cuda, "attention: host memory is short");
    return *slot;
}

static struct up_cudnn *cudnn_of(struct state *state, struct up_cuda *cuda)
{
    if (!state->opened) state->cudnn = up_cudnn_open(cuda, &state->absent);
    state->opened = true;
    if (!state->cudnn) state->why = state->absent;
    return state->cudnn;
}

/* --- Slices ----------------------------------------------------------------------------------- */

struct call {
    const struct up_attention_shape *shape;
    struct up_cudnn *cudnn;
    struct up_cuda *cuda;
    int64_t block_rows; // as in struct state
};

/* Query rows [first, first + rows) of a run, and the keys up to their end. */
struct block {
    int64_t first, rows;
};

static struct block block_at(const struct call *call, const struct up_attention_run *run,
                             int64_t first)
{
    int64_t seq = call->shape->seq;
    int64_t rows = call->block_rows ? call->block_rows : up_attention_block_rows(seq, run->heads);
    return (struct block){first, up_min(rows, seq - first)};
}

static struct up_attention_view view_of(const struct up_attention_shape *s,
                                        const struct up_attention_run *run,
                                        const struct block *block)
{
    return (struct up_attention_view){.queries = block->rows,
                                      .keys = block->first + block->rows,
                                      .heads = run->heads,
                                      .kv_heads = run->kv_heads,
                                      .head_dim = s->head_dim,
                                      .q_row = s->heads * s->head_dim,
                                      .o_row = s->heads * s->head_dim,
                                      .kv_row = s->kv_heads * s->head_dim,
                                      .lse_head = s->seq};
}

static struct up_attention_view backward_view(const struct up_attention_shape *s,
                                              const struct up_attention_run *run,
                                              const struct up_attention_scratch *scratch)
{
    struct up_attention_view view = view_of(s, run, &(struct block){0, s->seq});
    view.backward = 1;
    view.dkv_row = (scratch->dk < 0 ? s->kv_heads : run->kv_heads) * s->head_dim;
    if (scratch->o >= 0) view.o_row = run->heads * s->head_dim;
    return view;
}

/* The first element of a run's heads: bf16 in [batch, seq, heads, head_dim]. */
static void *slice(const struct up_attention_shape *s, const void *tensor, int64_t heads, int64_t b,
                   int64_t head)
{
    return (uint16_t *)tensor + (b * s->seq * heads + head) * s->head_dim;
}

static float *lse_of(const struct up_attention_shape *s, const float *lse, int64_t b, int64_t head)
{
    return (float *)lse + (b * s->heads + head) * s->seq;
}

/* --- Forward ---------------------------------------------------------------------------------- */

enum { FORWARD_WORKSPACE_BYTES = 256 };

static const struct up_cudnn_plan *forward_plan(const struct call *call,
                                                const struct up_attention_run *run,
                                                const struct block *block, struct up_error *err)
{
    struct up_attention_view view = view_of(call->shape, run, block);
    return up_cudnn_plan(call->cudnn, &view, FORWARD_WORKSPACE_BYTES, err);
}

static bool has_forward_plans(const struct call *call, struct up_error *err)
{
    struct up_attention_run run;
    struct block block;
    for (int64_t head = 0; head < call->shape->heads; head += run.heads) {
        run = up_attention_forward_run(call->shape, head);
        for (int64_t row = 0; row < call->shape->seq; row += block.rows) {
            block = block_at(call, &run, row);
            if (!forward_plan(call, &run, &block, err)) return false;
        }
    }
    return true;
}

static void run_block(const struct call *call, const struct up_attention_forward_args *a, int64_t b,
                      const struct up_attention_run *run, const struct block *block)
{
    const struct up_attention_shape *s = &a->shape;
    int64_t skipped = block->first * s->heads * s->head_dim;
    void *bound[UP_ATTENTION_IDS] = {
        [UP_ATTENTION_Q] = (uint16_t *)slice(s, a->q, s->heads, b, run->head) + skipped,
        [UP_ATTENTION_K] = slice(s, a->k, s->kv_heads, b, run->kv_head),
        [UP_ATTENTION_V] = slice(s, a->v, s->kv_heads, b, run->kv_head),
        [UP_ATTENTION_O] = (uint16_t *)slice(s, a->o, s->heads, b, run->head) + skipped,
        [UP_ATTENTION_LSE] = lse_of(s, a->lse, b, run->head) + block->first,
    };
    up_cudnn_run(call->cudnn, forward_plan(call, run, block, NULL), bound,
                 up_cuda_scratch(call->cuda), call->cuda);
}

static void forward_on_cudnn(const struct call *call, const struct up_attention_forward_args *a)
{
    struct up_attention_run run;
    struct block block;
    for (int64_t b = 0; b < a->shape.batch; b++)
        for (int64_t head = 0; head < a->shape.heads; head += run.heads) {
            run = up_attention_forward_run(&a->shape, head);
            for (int64_t row = 0; row < a->shape.seq; row += block.rows) {
                block = block_at(call, &run, row);
                run_block(call, a, b, &run, &block);
            }
        }
}

/* --- Backward --------------------------------------------------------------------------------- */

static const struct up_cudnn_plan *backward_plan(const struct call *call,
                                                 const struct up_attention_run *run,
                                                 const struct up_attention_scratch *scratch,
                                                 struct up_error *err)
{
    struct up_attention_view view = backward_view(call->shape, run, scratch);
    return up_cudnn_plan(call->cudnn, &view, scratch->workspace_bytes, err);
}

static bool has_backward_plans(const struct call *call, bool accumulate, struct up_error *err)
{
    struct up_attention_run run;
    for (int64_t head = 0; head < call->shape->heads; head += run.heads) {
        run = up_attention_backward_run(call->shape, head);
        struct up_attention_scratch scratch =
            up_attention_scratch_of(call->shape, &run, accumulate || run.shares);
        if (!backward_plan(call, &run, &scratch, err)) return false;
    }
    return true;
}

/* Rows of a run's heads from one stride to another. */
static void copy_rows(const struct call *call, const struct up_attention_run *run, void *to,
                      int64_t to_heads, const void *from, int64_t from_heads)
{
    size_t head_bytes = (size_t)call->shape->head_dim * 2;
    cudaError_t status =
        cudaMemcpy2DAsync(to, (size_t)to_heads * head_bytes, from, (size_t)from_heads * head_bytes,
                          (size_t)run->heads * head_bytes, (size_t)call->shape->seq,
                          cudaMemcpyDeviceToDevice, up_cuda_stream(call->cuda));
    up_cuda_try(call->cuda, status, "attention: copying rows");
}

static void bind_scratch(void *bound[UP_ATTENTION_IDS], char *base,
                         const struct up_attention_scratch *scratch)
{
    bound[UP_ATTENTION_DQ_SUM] = base + scratch->dq_sum;
    bound[UP_ATTENTION_SOFTMAX_SUM] = base + scratch->softmax_sum;
    if (scratch->dk >= 0) {
        bound[UP_ATTENTION_DK] = base + scratch->dk;
        bound[UP_ATTENTION_DV] = base + scratch->dv;
    }
    if (scratch->o >= 0) {
        bound[UP_ATTENTION_O] = base + scratch->o;
        bound[UP_ATTENTION_D_O] = bound[UP_ATTENTION_DQ] = base + scratch->d_o;
    }
}

static void add_to(const struct call *call, const struct up_attention_run *run, void *sum,
                   const void *part)
{
    int64_t width = call->shape->head_dim;
    cudaError_t status =
        up_attention_add_rows(sum, call->shape->kv_heads * width, part, run->kv_heads * width,
                              call->shape->seq, up_cuda_stream(call->cuda));
    up_cuda_try(call->cuda, status, "attention: adding gradients");
}

static void run_backward(const struct call *call, const struct up_attention_backward_args *a,
                         int64_t b, const struct up_attention_run *run)
{
    const struct up_attention_shape *s = &a->shape;
    struct up_attention_scratch scratch =
        up_attention_scratch_of(s, run, a->accumulate || run->shares);
    void *o = slice(s, a->o, s->heads, b, run->head),
         *d_o = slice(s, a->d_o, s->heads, b, run->head);
    void *dq = slice(s, a->dq, s->heads, b, run->head);
    void *dk = slice(s, a->dk, s->kv_heads, b, run->kv_head);
    void *dv = slice(s, a->dv, s->kv_heads, b, run->kv_head);
    void *bound[UP_ATTENTION_IDS] = {
        [UP_ATTENTION_Q] = slice(s, a->q, s->heads, b, run->head),
        [UP_ATTENTION_K] = slice(s, a->k, s->kv_heads, b, run->kv_head),
        [UP_ATTENTION_V] = slice(s, a->v, s->kv_heads, b, run->kv_head),
        [UP_ATTENTION_O] = o,
        [UP_ATTENTION_LSE] = lse_of(s, a->lse, b, run->head),
        [UP_ATTENTION_D_O] = d_o,
        [UP_ATTENTION_DQ] = dq,
        [UP_ATTENTION_DK] = dk,
        [UP_ATTENTION_DV] = dv,
    };
    bind_scratch(bound, a->scratch, &scratch);
    bool gathers = scratch.o >= 0;
    if (gathers) {
        copy_rows(call, run, bound[UP_ATTENTION_O], run->heads, o, s->heads);
        copy_rows(call, run, bound[UP_ATTENTION_D_O], run->heads, d_o, s->heads);
    }
    up_cudnn_run(call->cudnn, backward_plan(call, run, &scratch, NULL), bound,
                 (char *)a->scratch + scratch.workspace, call->cuda);
    if (gathers) copy_rows(call, run, dq, s->heads, bound[UP_ATTENTION_DQ], run->heads);
    if (scratch.dk < 0) return;
    add_to(call, run, dk, bound[UP_ATTENTION_DK]);
    add_to(call, run, dv, bound[UP_ATTENTION_DV]);
}

static void backward_on_cudnn(const struct call *call, const struct up_attention_backward_args *a)
{
    struct up_attention_run run;
    for (int64_t b = 0; b < a->shape.batch; b++)
        for (int64_t head = 0; head < a->shape.heads; head += run.heads) {
            run = up_attention_backward_run(&a->shape, head);
            run_backward(call, a, b, &run);
        }
}

/* --- The operations --------------------------------------------------------------------------- */

/* What both implementations rely on; a broken caller otherwise. */
static void check(const struct up_attention_shape *s, enum up_dtype dtype)
{
    UP_ASSERT(dtype == UP_BF16);
    UP_ASSERT(s->group >= 1 && s->first_head_in_group >= 0 && s->first_head_in_group < s->group);
    UP_ASSERT((s->first_head_in_group + s->heads - 1) / s->group == s->kv_heads - 1);
}

static bool is_empty(const struct up_attention_shape *s)
{
    return s->batch == 0 || s->seq == 0 || s->heads == 0;
}

/* Whether cuDNN may be asked for plans of the shape; sets call->cudnn. */
static bool may_use_cudnn(struct call *call, struct state *state)
{
    const struct up_attention_shape *s = call->shape;
    if (state->own)
        up_fail(&state->why, UP_FAILED, "our own kernels were asked for");
    else if (!up_attention_fits_cudnn(s))
        up_fail(&state->why, UP_FAILED, "cuDNN: not used for head_dim %lld and %lld tokens",
                (long long)s->head_dim, (long long)s->seq);
    else
        call->cudnn = cudnn_of(state, call->cuda);
    call->block_rows = state->block_rows;
    return call->cudnn != NULL;
}

/* Of our own kernels; says what they do not serve rather than that they failed. */
static void try_own(struct up_cuda *cuda, const struct up_attention_shape *s, cudaError_t status)
{
    const char *refused = up_attention_own_refuses(s->head_dim);
    if (refused)
        up_cuda_fail(cuda, "attention: %s", refused);
    else
        up_cuda_try(cuda, status, "attention");
}

void up_cuda_attention_forward(const void *args, struct up_cuda *cuda)
{
    const struct up_attention_forward_args *a = args;
    struct call call = {.shape = &a->shape, .cuda = cuda};
    struct state *state = is_empty(&a->shape) ? NULL : state_of(cuda);
    if (!state) return;
    check(&a->shape, a->dtype);
    if (may_use_cudnn(&call, state) && has_forward_plans(&call, &state->why))
        forward_on_cudnn(&call, a);
    else
        try_own(cuda, &a->shape, up_attention_own_forward(a, up_cuda_stream(cuda)));
}

void up_cuda_attention_backward(const void *args, struct up_cuda *cuda)
{
    const struct up_attention_backward_args *a = args;
    struct call call = {.shape = &a->shape, .cuda = cuda};
    struct state *state = is_empty(&a->shape) ? NULL : state_of(cuda);
    if (!state) return;
    check(&a->shape, a->dtype);
    if (may_use_cudnn(&call, state) && has_backward_plans(&call, a->accumulate, &state->why))
        backward_on_cudnn(&call, a);
    else
        try_own(cuda, &a->shape, up_attention_own_backward(a, up_cuda_stream(cuda)));
}

/* --- Which kernels ---------------------------------------------------------------------------- */

const char *up_cuda_attention_why_own(struct up_cuda *cuda, const struct up_attention_shape *shape)
{
    struct call call = {.shape = shape, .cuda = cuda};
    struct state *state = state_of(cuda);
    if (!state) return "host memory is short";
    bool cudnn = may_use_cudnn(&call, state) && has_forward_plans(&call, &state->why) &&
                 has_backward_plans(&call, false, &state->why) &&
                 has_backward_plans(&call, true, &state->why);
    return cudnn ? NULL : state->why.text;
}

void up_cuda_attention_force_own(struct up_cuda *cuda, bool own)
{
    struct state *state = state_of(cuda);
    if (state) state->own = own;
}

void up_cuda_attention_force_block_rows(struct up_cuda *cuda, int64_t rows)
{
    struct state *state = state_of(cuda);
    if (state) state->block_rows = rows;
}
