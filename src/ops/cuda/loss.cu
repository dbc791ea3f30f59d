/* Cross entropy: a block has a row at a time. One pass over the logits keeps a running maximum and
 * the sum of exponentials relative to it; the second writes the gradient. As many rows are worked
 * on at once as leave the second pass its logits in the L2 cache.
 *
 * The rows' losses are added up in fp64 by block, then over the blocks in order.
 *
 * A target that is neither masked nor in the vocabulary is a broken invariant: the kernel traps.
 */
#include "ops/cuda/cuda_impl.cuh"
#include "ops/loss.h"

#include <float.h>

enum {
    THREADS = 1024,  // of a block, at most
    RESIDENT = 1024, // threads of a multiprocessor, in all
};

/* Of the exponentials of some logits: their sum is `sum` e^max. */
struct softmax {
    float max, sum;
};

/* The running maximum begins finite, so that a difference of two such is 0 and not NaN. With WHOLE
 * the row is made of whole vectors. */
template <bool WHOLE, typename T>
static __device__ inline struct softmax part_of_row(const T *x, int64_t vocab)
{
    struct softmax s = {-FLT_MAX, 0};
    for (int64_t j = UP_VEC * threadIdx.x; j < vocab; j += UP_VEC * blockDim.x) {
        struct up_vec v = up_read<WHOLE>(x + j, vocab - j);
        float max = s.max;
#pragma unroll
        for (int e = 0; e < UP_VEC; e++)
            if (WHOLE || j + e < vocab) max = fmaxf(max, v.at[e]);
        s.sum *= __expf(s.max - max);
        s.max = max;
#pragma unroll
        for (int e = 0; e < UP_VEC; e++)
            if (WHOLE || j + e < vocab) s.sum += __expf(v.at[e] - max);
    }
    return s;
}

template <bool WHOLE, typename T>
static __device__ inline struct softmax softmax_of_row(const T *x, int64_t vocab)
{
    struct softmax s = part_of_row<WHOLE>(x, vocab);
    float max[1] = {s.max};
    up_block_reduce(max, up_larger());
    float sum[1] = {s.sum * __expf(s.max - max[0])};
    up_block_reduce(sum, up_plus());
    return {max[0], sum[0]};
}

/* x = scale (softmax(x) - onehot(target)) */
template <bool WHOLE, typename T>
static __device__ inline void write_gradient(T *x, int64_t vocab, int32_t target, float scale,
                                             struct softmax s)
{
    float factor = scale / s.sum;
    for (int64_t j = UP_VEC * threadIdx.x; j < vocab; j += UP_VEC * blockDim.x) {
        struct up_vec v = up_read<WHOLE>(x + j, vocab - j);
#pragma unroll
        for (int e = 0; e < UP_VEC; e++) {
            v.at[e] = __expf(v.at[e] - s.max) * factor;
            if (j + e == target) v.at[e] -= scale;
        }
        up_write<WHOLE>(x + j, vocab - j, v);
    }
}

template <bool WHOLE, typename T> static __device__ inline void write_zeros(T *x, int64_t vocab)
{
    struct up_vec zeros = {};
    for (int64_t j = UP_VEC * threadIdx.x; j < vocab; j += UP_VEC * blockDim.x)
        up_write<WHOLE>(x + j, vocab - j, zeros);
}

template <typename T, bool WHOLE>
static __global__ void __launch_bounds__(THREADS)
    cross_entropy(const struct up_cross_entropy_args a, double *partial)
{
    double loss = 0;
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        T *x = (T *)a.logits + row * a.vocab;
        int32_t target = a.targets[row];
        if (target == UP_MASKED) {
            write_zeros<WHOLE>(x, a.vocab);
            continue;
        }
        if (target < 0 || target >= a.vocab) __trap();
        float at_target = up_widen(x[target]); // before anybody writes
        struct softmax s = softmax_of_row<WHOLE>(x, a.vocab);
        if (threadIdx.x == 0) loss += (double)s.max - at_target + log((double)s.sum);
        write_gradient<WHOLE>(x, a.vocab, target, a.scale, s);
    }
    if (threadIdx.x == 0) partial[blockIdx.x] = loss;
}

void up_cuda_cross_entropy(const void *args, struct up_cuda *cuda)
{
    const struct up_cross_entropy_args *a = (const struct up_cross_entropy_args *)args;
    UP_ASSERT(up_is_float(a->dtype));
    bool whole = a->vocab % UP_VEC == 0 && up_aligned(a->logits);
    int threads = up_row_threads(a->vocab, THREADS);
    int64_t blocks = up_blocks(cuda, a->rows, RESIDENT / threads);
    const int64_t most = up_cuda_scratch_bytes(cuda) / (int64_t)sizeof(double);
    if (blocks > most) blocks = most;
    double *partial = (double *)up_cuda_scratch(cuda);
    struct up_grid grid = {blocks, threads, 0};
    up_cuda_launch(cuda, "cross_entropy", UP_CUDA_PICK(cross_entropy, a->dtype, whole), grid, *a,
                   partial);
    up_cuda_add_sum(cuda, partial, blocks, a->loss_sum);
}
