/* Matrix products through cuBLAS, whose matrices are column-major: a row-major matrix is its own
 * transpose to it, so it is asked for C^T = op(B)^T op(A)^T. Accumulation is fp32, also where
 * cuBLAS adds up parts of a product. */
#include "ops/cuda/cuda_impl.cuh"
#include "ops/matmul.h"

static cudaDataType data_type(enum up_dtype dtype)
{
    return dtype == UP_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

static cublasOperation_t operation(bool transpose)
{
    return transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
}

/* C = beta C, the product without terms; beta 0 does not read C. */
template <typename T> static __global__ void scale(const struct up_matmul_args a)
{
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < a.m * a.n; i += step) {
        T *c = (T *)a.c + i / a.n * a.ldc + i % a.n;
        up_narrow(a.beta == 0 ? 0 : a.beta * up_widen(*c), c);
    }
}

static void multiply(const struct up_matmul_args *a, struct up_cuda *cuda)
{
    const float one = 1;
    cublasHandle_t blas = up_cuda_blas(cuda);
    cublasStatus_t status =
        cublasSetMathMode(blas, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasGemmEx_64(blas, operation(a->transpose_b), operation(a->transpose_a), a->n,
                                 a->m, a->k, &one, a->b, data_type(a->dtype), a->ldb, a->a,
                                 data_type(a->dtype), a->lda, &a->beta, a->c, data_type(a->c_dtype),
                                 a->ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    if (status != CUBLAS_STATUS_SUCCESS)
        up_cuda_fail(cuda, "matmul %lld x %lld x %lld: %s", (long long)a->m, (long long)a->n,
                     (long long)a->k, cublasGetStatusString(status));
}

void up_cuda_matmul(const void *args, struct up_cuda *cuda)
{
    const struct up_matmul_args *a = (const struct up_matmul_args *)args;
    UP_ASSERT(up_is_float(a->dtype) && (a->c_dtype == a->dtype || a->c_dtype == UP_F32));
    UP_ASSERT(a->lda >= (a->transpose_a ? a->m : a->k) || a->k == 0);
    UP_ASSERT(a->ldb >= (a->transpose_b ? a->k : a->n) || a->k == 0);
    UP_ASSERT(a->ldc >= a->n);
    if (a->m == 0 || a->n == 0) return;
    if (a->k > 0)
        multiply(a, cuda);
    else
        up_cuda_launch(cuda, "matmul", a->c_dtype == UP_BF16 ? scale<__nv_bfloat16> : scale<float>,
                       up_pointwise_grid(cuda, a->m * a->n), *a);
}
