/* Attention forward: for each block of query rows, over the blocks of keys that it may see, with
 * the running maximum and sum of Milakov and Gimelshein's online softmax (2018). The output itself
 * is the accumulator. */
#include "ops/cpu/attention_impl.h"
#include "ops/ops_impl.h"

#include <limits.h>
#include <math.h>

enum { BLOCK = UP_ATTENTION_BLOCK };

/* A block of query rows of one head. */
struct query_block {
    int64_t b, head, first, rows;
};

/* Per query row, over the keys so far. */
struct statistics {
    float max[BLOCK], sum[BLOCK];
    float correction[BLOCK]; // exp(maximum before the last block - maximum now)
};

void up_attention_check(const struct up_attention_shape *s, enum up_dtype dtype)
{
    UP_ASSERT(dtype == UP_F32);
    UP_ASSERT(s->group >= 1 && s->first_head_in_group >= 0 && s->first_head_in_group < s->group);
    UP_ASSERT(s->heads == 0 || up_attention_kv_head(s, s->heads - 1) < s->kv_heads);
    UP_ASSERT(s->heads * s->head_dim <= INT_MAX && s->kv_heads * s->head_dim <= INT_MAX);
}

/* scores[keys, rows], rows BLOCK apart, become exp(score - maximum). Key j is seen by rows from
 * j - lead on; what is masked becomes 0. */
UP_CPU_HOT static void soften(float *scores, int64_t keys, int64_t rows, int64_t lead,
                              struct statistics *statistics)
{
    float max[BLOCK], sum[BLOCK];
    memcpy(max, statistics->max, sizeof max);
    memset(sum, 0, sizeof sum);
    for (int64_t j = 0; j < keys; j++) {
        const float *s = scores + j * BLOCK;
#pragma omp simd
        for (int64_t i = up_max(0, j - lead); i < rows; i++) max[i] = s[i] > max[i] ? s[i] : max[i];
    }
    for (int64_t j = 0; j < keys; j++) {
        float *s = scores + j * BLOCK;
        int64_t seen = up_max(0, j - lead);
        for (int64_t i = 0; i < seen; i++) s[i] = 0;
#pragma omp simd
        for (int64_t i = seen; i < rows; i++) {
            s[i] = up_cpu_exp(s[i] - max[i]);
            sum[i] += s[i];
        }
    }
    for (int64_t i = 0; i < rows; i++) {
        float correction = up_cpu_exp(statistics->max[i] - max[i]);
        statistics->sum[i] = statistics->sum[i] * correction + sum[i];
        statistics->correction[i] = correction;
        statistics->max[i] = max[i];
    }
}

UP_CPU_HOT static void scale_rows(float *o, int64_t rows, int64_t stride, int64_t head_dim,
                                  const float *factor)
{
    for (int64_t i = 0; i < rows; i++) {
        if (factor[i] == 1) continue;
#pragma omp simd
        for (int64_t j = 0; j < head_dim; j++) o[i * stride + j] *= factor[i];
    }
}

/* Adds the keys [first_key, first_key + keys) to the block's output and statistics. */
static void add_keys(const struct up_attention_forward_args *a, const struct query_block *q,
                     int64_t first_key, int64_t keys, struct statistics *statistics)
{
    const struct up_attention_shape *s = &a->shape;
    _Alignas(64) float scores[BLOCK * BLOCK];
    int64_t stride = s->heads * s->head_dim, kv_stride = s->kv_heads * s->head_dim;
    int64_t at = up_attention_at(s, s->heads, q->b, q->first, q->head);
    int64_t kv_at =
        up_attention_at(s, s->kv_heads, q->b, first_key, up_attention_kv_head(s, q->head));
    float *o = (float *)a->o + at;

    up_attention_gemm(CblasNoTrans, CblasTrans, keys, q->rows, s->head_dim,
                      1 / sqrtf((float)s->head_dim), (const float *)a->k + kv_at, kv_stride,
                      (const float *)a->q + at, stride, 0, scores, BLOCK);
    soften(scores, keys, q->rows, q->first - first_key, statistics);
    if (first_key > 0) scale_rows(o, q->rows, stride, s->head_dim, statistics->correction);
    up_attention_gemm(CblasTrans, CblasNoTrans, q->rows, s->head_dim, keys, 1, scores, BLOCK,
                      (const float *)a->v + kv_at, kv_stride, first_key > 0, o, stride);
}

static void attend(const struct up_attention_forward_args *a, const struct query_block *q)
{
    const struct up_attention_shape *s = &a->shape;
    struct statistics statistics = {.sum = {0}};
    for (int64_t i = 0; i < q->rows; i++) statistics.max[i] = -INFINITY;
    int64_t visible = q->first + q->rows;
    for (int64_t key = 0; key < visible; key += BLOCK)
        add_keys(a, q, key, up_min(BLOCK, visible - key), &statistics);

    float inverse[BLOCK];
    float *lse = a->lse + up_attention_stat_at(s, q->b, q->head, q->first);
    for (int64_t i = 0; i < q->rows; i++) {
        inverse[i] = 1 / statistics.sum[i];
        lse[i] = statistics.max[i] + logf(statistics.sum[i]);
    }
    scale_rows((float *)a->o + up_attention_at(s, s->heads, q->b, q->first, q->head), q->rows,
               s->heads * s->head_dim, s->head_dim, inverse);
}

/* The last block of a sequence sees most keys; it goes first, so that no thread is left with it. */
void up_cpu_attention_forward(const void *args)
{
    const struct up_attention_forward_args *a = args;
    const struct up_attention_shape *s = &a->shape;
    up_attention_check(s, a->dtype);
    int64_t blocks = up_ceil_div(s->seq, BLOCK), sequences = s->batch * s->heads;
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < blocks * sequences; i++) {
        int64_t block = blocks - 1 - i / sequences, sequence = i % sequences;
        struct query_block q = {
            .b = sequence / s->heads,
            .head = sequence % s->heads,
            .first = block * BLOCK,
            .rows = up_min(BLOCK, s->seq - block * BLOCK),
        };
        attend(a, &q);
    }
}
