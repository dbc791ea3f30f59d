/* What attention forward and backward share: addresses of blocks and their products.
 *
 * Both passes keep the scores of a block transposed, [keys, queries]. Statistics are per query, so
 * every loop over a row of scores is elementwise, and none is a reduction.
 */
#ifndef UP_OPS_CPU_ATTENTION_IMPL_H
#define UP_OPS_CPU_ATTENTION_IMPL_H

#include "ops/attention.h"
#include "ops/cpu/attention_lanes_impl.h"
#include "ops/cpu/cpu_impl.h"

#include <cblas.h>

static inline int64_t up_attention_kv_head(const struct up_attention_shape *s, int64_t head)
{
    return (s->first_head_in_group + head) / s->group;
}

/* Element offset of a row in [batch, seq, heads, head_dim], and in [batch, heads, seq]. */
static inline int64_t up_attention_at(const struct up_attention_shape *s, int64_t heads, int64_t b,
                                      int64_t row, int64_t head)
{
    return ((b * s->seq + row) * heads + head) * s->head_dim;
}

static inline int64_t up_attention_stat_at(const struct up_attention_shape *s, int64_t b,
                                           int64_t head, int64_t row)
{
    return (b * s->heads + head) * s->seq + row;
}

void up_attention_check(const struct up_attention_shape *shape, enum up_dtype dtype);

/* C[m, n] = alpha op(A)[m, k] B^T or B + beta C, small enough to stay on this thread. */
static inline void up_attention_gemm(CBLAS_TRANSPOSE transpose_a, CBLAS_TRANSPOSE transpose_b,
                                     int64_t m, int64_t n, int64_t k, float alpha, const float *a,
                                     int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                                     int64_t ldc)
{
    cblas_sgemm(CblasRowMajor, transpose_a, transpose_b, (int)m, (int)n, (int)k, alpha, a, (int)lda,
                b, (int)ldb, beta, c, (int)ldc);
}

#endif
