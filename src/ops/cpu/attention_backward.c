/* Attention backward. With P = exp(S - lse), S the scaled masked scores, and delta = rowsum(do o):
 *
 *   dv = P^T do,   dP = do v^T,   dS = P (dP - delta),   dk = scale dS^T q,   dq = scale dS k
 *
 * The scores of a pair of blocks are formed once, for all three gradients; attention_lanes_impl.h
 * says in which order pairs are taken, so that many threads can take part and sums are always
 * formed in the same order. dq may take the place of d_o: a block of d_o is copied when its first
 * pair (d = 0) is taken, and dq is written only then.
 */
#include "ops/cpu/attention_impl.h"
#include "ops/ops_impl.h"

#include <math.h>

enum { BLOCK = UP_ATTENTION_BLOCK };

/* Query rows [row, row + rows) of a head and key rows [key, key + keys) of its KV head. */
struct block_pair {
    int64_t b, head, kv_head;
    int64_t row, rows, key, keys;
    float *d_o;         // the copy, [rows, head_dim]
    const float *delta; // [rows]
};

/* The caller's scratch. */
struct scratch {
    float *delta; // [batch, heads, seq]
    float *lanes; // [units * window][lane floats]
};

/* What is taken at a time: query heads number `member` of their groups, of the units from `unit`
 * on, and of each the query blocks from `block` on. */
struct window {
    int64_t unit, units, member, block, end_block;
};

UP_CPU_HOT static void dot_rows(const float *x, const float *y, int64_t rows, int64_t stride,
                                int64_t width, float *out)
{
    for (int64_t i = 0; i < rows; i++) {
        float dot = 0;
#pragma omp simd reduction(+ : dot)
        for (int64_t j = 0; j < width; j++) dot += x[i * stride + j] * y[i * stride + j];
        out[i] = dot;
    }
}

/* p: scores [keys, rows] in, P out. ds: dP in, dS out; both have rows BLOCK apart. Key j is seen by
 * rows from j - lead on. */
UP_CPU_HOT static void soften_backward(float *p, float *ds, int64_t keys, int64_t rows,
                                       int64_t lead, const float *lse, const float *delta)
{
    for (int64_t j = 0; j < keys; j++, p += BLOCK, ds += BLOCK) {
        int64_t seen = up_max(0, j - lead);
        for (int64_t i = 0; i < seen; i++) p[i] = ds[i] = 0;
#pragma omp simd
        for (int64_t i = seen; i < rows; i++) {
            p[i] = up_cpu_exp(p[i] - lse[i]);
            ds[i] = p[i] * (ds[i] - delta[i]);
        }
    }
}

static void visit(const struct up_attention_backward_args *a, const struct block_pair *p)
{
    const struct up_attention_shape *s = &a->shape;
    _Alignas(64) float probability[BLOCK * BLOCK];
    _Alignas(64) float ds[BLOCK * BLOCK];
    int64_t width = s->head_dim, stride = s->heads * width, kv_stride = s->kv_heads * width;
    int64_t at = up_attention_at(s, s->heads, p->b, p->row, p->head);
    int64_t kv_at = up_attention_at(s, s->kv_heads, p->b, p->key, p->kv_head);
    const float *q = (const float *)a->q + at, *k = (const float *)a->k + kv_at;
    float scale = 1 / sqrtf((float)width);

    up_attention_gemm(CblasNoTrans, CblasTrans, p->keys, p->rows, width, scale, k, kv_stride, q,
                      stride, 0, probability, BLOCK);
    up_attention_gemm(CblasNoTrans, CblasTrans, p->keys, p->rows, width, 1,
                      (const float *)a->v + kv_at, kv_stride, p->d_o, width, 0, ds, BLOCK);
    soften_backward(probability, ds, p->keys, p->rows, p->row - p->key,
                    a->lse + up_attention_stat_at(s, p->b, p->head, p->row), p->delta);
    up_attention_gemm(CblasNoTrans, CblasNoTrans, p->keys, width, p->rows, 1, probability, BLOCK,
                      p->d_o, width, 1, (float *)a->dv + kv_at, kv_stride);
    up_attention_gemm(CblasNoTrans, CblasNoTrans, p->keys, width, p->rows, scale, ds, BLOCK, q,
                      stride, 1, (float *)a->dk + kv_at, kv_stride);
    up_attention_gemm(CblasTrans, CblasNoTrans, p->rows, width, p->keys, scale, ds, BLOCK, k,
                      kv_stride, p->row != p->key, (float *)a->dq + at, stride);
}

static void copy_d_o(const struct up_attention_backward_args *a, const struct block_pair *p)
{
    const struct up_attention_shape *s = &a->shape;
    size_t bytes = (size_t)s->head_dim * sizeof(float);
    for (int64_t i = 0; i < p->rows; i++)
        memcpy(p->d_o + i * s->head_dim,
               (const float *)a->d_o + up_attention_at(s, s->heads, p->b, p->row + i, p->head),
               bytes);
}

/* The pair of blocks at `distance` of query block `block`, for one unit of the window. */
static void take_pair(const struct up_attention_backward_args *a, const struct scratch *scratch,
                      const struct window *w, int64_t unit, int64_t block, int64_t distance)
{
    const struct up_attention_shape *s = &a->shape;
    int64_t kv_head = unit % s->kv_heads;
    int64_t head = kv_head * s->group + w->member - s->first_head_in_group;
    if (head < 0 || head >= s->heads) return; // a group that begins or ends outside this call

    int64_t lane = (unit - w->unit) * (w->end_block - w->block) + block - w->block;
    struct block_pair p = {.b = unit / s->kv_heads,
                           .head = head,
                           .kv_head = kv_head,
                           .row = block * BLOCK,
                           .key = (block - distance) * BLOCK,
                           .d_o = scratch->lanes +
                                  lane * up_attention_lane_floats(s->seq, s->head_dim)};
    p.rows = up_min(BLOCK, s->seq - p.row);
    p.keys = up_min(BLOCK, s->seq - p.key);
    p.delta = scratch->delta + up_attention_stat_at(s, p.b, head, p.row);
    if (distance == 0) copy_d_o(a, &p);
    visit(a, &p);
}

/* Called by every thread of a team; the loop shares out a diagonal and ends in a barrier. */
static void take_window(const struct up_attention_backward_args *a, const struct scratch *scratch,
                        const struct window *w)
{
    for (int64_t distance = 0; distance < w->end_block; distance++) {
        int64_t first = up_max(w->block, distance); // earlier blocks have no key block so far away
        int64_t blocks = w->end_block - first;
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < w->units * blocks; i++)
            take_pair(a, scratch, w, w->unit + i / blocks, first + i % blocks, distance);
    }
}

/* delta for all rows, and zeroes in dk and dv where they are to be written. Called by every thread
 * of a team. */
static void prepare(const struct up_attention_backward_args *a, float *delta)
{
    const struct up_attention_shape *s = &a->shape;
    int64_t blocks = up_ceil_div(s->seq, BLOCK), sequences = s->batch * s->heads;
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < blocks * sequences; i++) {
        int64_t b = i / blocks / s->heads, head = i / blocks % s->heads, row = i % blocks * BLOCK;
        int64_t at = up_attention_at(s, s->heads, b, row, head);
        dot_rows((const float *)a->d_o + at, (const float *)a->o + at, up_min(BLOCK, s->seq - row),
                 s->heads * s->head_dim, s->head_dim,
                 delta + up_attention_stat_at(s, b, head, row));
    }
    size_t bytes = (size_t)(s->kv_heads * s->head_dim) * sizeof(float);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < (a->accumulate ? 0 : s->batch * s->seq); i++) {
        memset((char *)a->dk + (size_t)i * bytes, 0, bytes);
        memset((char *)a->dv + (size_t)i * bytes, 0, bytes);
    }
}

void up_cpu_attention_backward(const void *args)
{
    const struct up_attention_backward_args *a = args;
    const struct up_attention_shape *s = &a->shape;
    up_attention_check(s, a->dtype);
    struct up_attention_lanes lanes = up_attention_lanes(s->batch, s->seq, s->kv_heads);
    int64_t units = s->batch * s->kv_heads, blocks = up_ceil_div(s->seq, BLOCK);
    struct scratch scratch = {.delta = a->scratch};
    scratch.lanes = scratch.delta + s->batch * s->heads * s->seq;
#pragma omp parallel
    {
        prepare(a, scratch.delta);
        for (int64_t unit = 0; unit < units; unit += lanes.units)
            for (int64_t member = 0; member < s->group; member++)
                for (int64_t block = 0; block < blocks; block += lanes.window) {
                    struct window w = {unit, up_min(lanes.units, units - unit), member, block,
                                       up_min(block + lanes.window, blocks)};
                    take_window(a, &scratch, &w);
                }
    }
}
