/* Norm of the gradients, and AdamW; fp32. */
#include "ops/cuda/cuda_impl.cuh"
#include "ops/optimizer.h"

#include <math.h>

enum {
    SUM_THREADS = 256,
    SUM_BLOCKS = 1024, // the same on every device, and with it how the sum is rounded
    QUAD = 4,          // elements that a thread updates at a time
    ADAMW_THREADS = 256,
    ADAMW_RESIDENT = 8, // blocks of a multiprocessor
};

template <bool WHOLE>
static __global__ void sum_squares(const struct up_sum_squares_args a, double *partial)
{
    double sum[1] = {0};
    for (int64_t i = up_first_element(); i < a.count; i += up_element_stride()) {
        struct up_vec x = up_read<WHOLE>(a.x + i, a.count - i);
#pragma unroll
        for (int e = 0; e < UP_VEC; e++) sum[0] += (double)x.at[e] * x.at[e];
    }
    up_block_reduce(sum, up_plus());
    if (threadIdx.x == 0) partial[blockIdx.x] = sum[0];
}

void up_cuda_sum_squares(const void *args, struct up_cuda *cuda)
{
    const struct up_sum_squares_args *a = (const struct up_sum_squares_args *)args;
    int64_t blocks = up_divide_up(a->count, UP_VEC * SUM_THREADS);
    if (blocks > SUM_BLOCKS) blocks = SUM_BLOCKS;
    double *partial = (double *)up_cuda_scratch(cuda);
    struct up_grid grid = {blocks, SUM_THREADS, 0};
    up_cuda_launch(cuda, "sum_squares", up_aligned(a->x) ? sum_squares<true> : sum_squares<false>,
                   grid, *a, partial);
    up_cuda_add_sum(cuda, partial, blocks, a->sum);
}

/* What is the same for all elements and known to the host; formed in fp64. */
struct factors {
    float keep, beta1, rest1, beta2, rest2, step, root_correction, epsilon;
};

static struct factors find_factors(const struct up_adamw_args *a)
{
    double t = (double)a->t;
    struct factors f;
    f.keep = (float)(1 - a->lr * a->decay);
    f.beta1 = (float)a->beta1;
    f.rest1 = (float)(1 - a->beta1);
    f.beta2 = (float)a->beta2;
    f.rest2 = (float)(1 - a->beta2);
    f.step = (float)(a->lr / (1 - pow(a->beta1, t)));
    f.root_correction = (float)sqrt(1 - pow(a->beta2, t));
    f.epsilon = (float)a->epsilon;
    return f;
}

/* The norm is not known to the host yet when it gives the work. A NaN stays. */
static __device__ inline float clip_factor(const struct up_adamw_args &a)
{
    if (a.clip == 0) return 1;
    double factor = a.clip / (sqrt(*a.norm_squared) + 1e-6);
    return factor > 1 ? 1 : (float)factor;
}

static __device__ inline void update(float &w, float gradient, float &m, float &v,
                                     const struct factors &f)
{
    m = f.beta1 * m + f.rest1 * gradient;
    v = f.beta2 * v + f.rest2 * (gradient * gradient);
    float denominator = sqrtf(v) / f.root_correction + f.epsilon;
    w = w * f.keep - f.step * (m / denominator);
}

/* Four elements, past the caches: nobody reads them again before they would be gone from there. */
static __device__ inline void update_quad(const struct up_adamw_args &a, int64_t i, float clip,
                                          const struct factors &f)
{
    float4 w = __ldcs((const float4 *)(a.weight + i)), g = __ldcs((const float4 *)(a.gradient + i));
    float4 m = __ldcs((const float4 *)(a.m + i)), v = __ldcs((const float4 *)(a.v + i));
    update(w.x, g.x * clip, m.x, v.x, f);
    update(w.y, g.y * clip, m.y, v.y, f);
    update(w.z, g.z * clip, m.z, v.z, f);
    update(w.w, g.w * clip, m.w, v.w, f);
    __stcs((float4 *)(a.weight + i), w);
    __stcs((float4 *)(a.m + i), m);
    __stcs((float4 *)(a.v + i), v);
}

/* A thread has QUAD elements at a time: with UP_VEC of them a warp would read and write every other
 * 16 bytes, then those between (H200: 3.3 TB/s for 4.2). */
template <bool WHOLE>
static __global__ void adamw(const struct up_adamw_args a, const struct factors f)
{
    __shared__ float clip;
    if (threadIdx.x == 0) clip = clip_factor(a);
    __syncthreads();
    const int64_t step = QUAD * (int64_t)gridDim.x * blockDim.x;
    int64_t i = QUAD * ((int64_t)blockIdx.x * blockDim.x + threadIdx.x);
    for (; i < a.count; i += step) {
        if (WHOLE && i + QUAD <= a.count) {
            update_quad(a, i, clip, f);
            continue;
        }
        for (int64_t j = i; j < i + QUAD && j < a.count; j++)
            update(a.weight[j], a.gradient[j] * clip, a.m[j], a.v[j], f);
    }
}

void up_cuda_adamw(const void *args, struct up_cuda *cuda)
{
    const struct up_adamw_args *a = (const struct up_adamw_args *)args;
    UP_ASSERT(a->t >= 1);
    bool whole = up_aligned(a->weight, a->gradient, a->m, a->v);
    int64_t pieces = up_divide_up(a->count, QUAD * ADAMW_THREADS);
    struct up_grid grid = {up_blocks(cuda, pieces, ADAMW_RESIDENT), ADAMW_THREADS, 0};
    up_cuda_launch(cuda, "adamw", whole ? adamw<true> : adamw<false>, grid, *a, find_factors(a));
}
