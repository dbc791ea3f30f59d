#ifndef UP_OPS_MATMUL_H
#define UP_OPS_MATMUL_H

#include "trace/names.h"

#include <stdbool.h>

/* C[m, n] = op(A)[m, k] op(B)[k, n] + beta C, accumulated in fp32.
 * op(A) is A [m, k], or with transpose_a the transpose of A [k, m]; B likewise [k, n] or [n, k]. */
struct up_matmul_args {
    const void *a, *b;
    void *c;
    int64_t m, n, k;
    int64_t lda, ldb, ldc;
    bool transpose_a, transpose_b;
    float beta;            // 0: C is not read
    enum up_dtype dtype;   // of A and B
    enum up_dtype c_dtype; // of C: dtype, or UP_F32 for weight gradients
};

#endif
