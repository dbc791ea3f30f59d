/* The warp's view of the tensor cores: fragments of bf16 matrices in shared memory and in
 * registers, products of them in fp32 (mma.sync m16n8k16, ldmatrix), and copies into shared memory
 * that run beside the arithmetic (cp.async). Compute capability 8.0.
 *
 * A thread of the warp holds of an accumulator [16, 8] the elements (row, column), (row, column +
 * 1), (row + 8, column), (row + 8, column + 1) with row = lane / 4, column = lane % 4 * 2; a quad
 * is the four lanes that share a row. Two accumulators side by side, rounded to bf16, are a left
 * operand [16, 16].
 */
#ifndef UP_OPS_CUDA_ATTENTION_MMA_CUH
#define UP_OPS_CUDA_ATTENTION_MMA_CUH

#include <cuda_bf16.h>
#include <stdint.h>

typedef __nv_bfloat16 up_bf16;

/* Four 8 x 8 matrices, whose rows lanes 0-7, 8-15, 16-23 and 24-31 point at. */
static __device__ inline void up_load_matrices(uint32_t r[4], const up_bf16 *row)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

static __device__ inline void up_load_matrices_transposed(uint32_t r[4], const up_bf16 *row)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* c[16, 8] += a[16, 16] b[16, 8] */
static __device__ inline void up_multiply_add(float c[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* 16 bytes into shared memory, or zeroes; seen by others after the wait and a barrier. */
static __device__ inline void up_copy_async(void *shared, const void *global, bool valid)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(global),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

static __device__ inline void up_copy_async_close(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most `OPEN` closed groups of copies are still under way. */
template <int OPEN> static __device__ inline void up_copy_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(OPEN) : "memory");
}

static __device__ inline float up_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ inline float up_quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

static __device__ inline float up_quad_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

#endif
