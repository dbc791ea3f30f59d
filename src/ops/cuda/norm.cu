/* RMSNorm: a block has a row at a time, and each thread the same columns of every row.
 *
 * A row is read twice, for its statistics and for the output; the second time it comes from the
 * cache, where it costs less than the registers to keep it in would.
 *
 * d_weight: a block adds up its rows in shared memory, where each column belongs to one thread. The
 * blocks' sums go through the scratch and are added in order if they fit there. If not, blocks add
 * theirs to d_weight atomically, in any order: the last bits of d_weight then differ between runs.
 */
#include "ops/cuda/cuda_impl.cuh"
#include "ops/norm.h"

enum {
    FORWARD_THREADS = 256,   // of a block, at most
    FORWARD_RESIDENT = 2048, // threads of a multiprocessor, in all
    BACKWARD_THREADS = 512,
    BACKWARD_RESIDENT = 1024,
    ROWS_LEAST = 4, // rows that are worth a block and its part of d_weight
};

template <typename T, bool WHOLE>
static __global__ void forward(const struct up_rmsnorm_forward_args a)
{
    const T *weight = (const T *)a.weight;
    const int64_t first = UP_VEC * threadIdx.x, step = UP_VEC * blockDim.x;
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const T *x = (const T *)a.x + row * a.width;
        T *y = (T *)a.y + row * a.width;
        float sum[1] = {0};
        for (int64_t j = first; j < a.width; j += step) {
            struct up_vec v = up_read<WHOLE>(x + j, a.width - j);
#pragma unroll
            for (int e = 0; e < UP_VEC; e++) sum[0] += v.at[e] * v.at[e];
        }
        up_block_reduce(sum, up_plus());
        float r = rsqrtf(sum[0] / (float)a.width + a.epsilon);
        for (int64_t j = first; j < a.width; j += step) {
            struct up_vec v = up_read<WHOLE>(x + j, a.width - j);
            struct up_vec w = up_read<WHOLE>(weight + j, a.width - j);
#pragma unroll
            for (int e = 0; e < UP_VEC; e++) v.at[e] = w.at[e] * (v.at[e] * r);
            up_write<WHOLE>(y + j, a.width - j, v);
        }
    }
}

/* A row of the backward pass; `width` is that of the row. */
template <typename T> struct row {
    const T *x, *weight, *dy;
    T *dx;
    int width;
};

/* {sum of x^2, sum of g x} with g = weight dy. */
template <bool WHOLE, typename T>
static __device__ inline void row_sums(const struct row<T> &row, float (&sums)[2])
{
    for (int j = UP_VEC * threadIdx.x; j < row.width; j += UP_VEC * blockDim.x) {
        struct up_vec x = up_read<WHOLE>(row.x + j, row.width - j);
        struct up_vec w = up_read<WHOLE>(row.weight + j, row.width - j);
        struct up_vec dy = up_read<WHOLE>(row.dy + j, row.width - j);
#pragma unroll
        for (int e = 0; e < UP_VEC; e++) {
            sums[0] += x.at[e] * x.at[e];
            sums[1] += w.at[e] * dy.at[e] * x.at[e];
        }
    }
}

/* sum[0] holds the first half of each vector and sum[count] the second, so that the lanes of a warp
 * access shared memory without conflicts. */
static __device__ inline void add_to_sum(float4 *sum, int count, const struct up_vec &v)
{
    float4 low = sum[0], high = sum[count];
    sum[0] = make_float4(low.x + v.at[0], low.y + v.at[1], low.z + v.at[2], low.w + v.at[3]);
    sum[count] =
        make_float4(high.x + v.at[4], high.y + v.at[5], high.z + v.at[6], high.w + v.at[7]);
}

/* dx (+)= r g - x along; and the row's part of d_weight, dy x r, goes to `sum`. */
template <bool WHOLE, typename T>
static __device__ inline void write_row(const struct row<T> &row, float r, float along,
                                        bool accumulate, float4 *sum)
{
    int count = (row.width + UP_VEC - 1) / UP_VEC;
    for (int u = threadIdx.x; u < count; u += blockDim.x) {
        int j = UP_VEC * u, left = row.width - j;
        struct up_vec x = up_read<WHOLE>(row.x + j, left);
        struct up_vec w = up_read<WHOLE>(row.weight + j, left);
        struct up_vec dy = up_read<WHOLE>(row.dy + j, left);
        struct up_vec dx = {};
        if (accumulate) dx = up_read<WHOLE>(row.dx + j, left);
#pragma unroll
        for (int e = 0; e < UP_VEC; e++) {
            dx.at[e] += w.at[e] * dy.at[e] * r - x.at[e] * along;
            dy.at[e] *= x.at[e] * r;
        }
        up_write<WHOLE>(row.dx + j, left, dx);
        add_to_sum(sum + u, count, dy);
    }
}

/* The block's sums of its columns, to its row of `partial` or else to d_weight. */
static __device__ inline void give_sums(const float4 *sum, int width, float *partial,
                                        float *d_weight)
{
    int count = (width + UP_VEC - 1) / UP_VEC;
    for (int i = threadIdx.x; i < 2 * count; i += blockDim.x) {
        float4 four = sum[i];
        float of[] = {four.x, four.y, four.z, four.w};
        int column = i < count ? UP_VEC * i : UP_VEC * (i - count) + 4;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            if (column + e >= width) continue;
            if (partial)
                partial[blockIdx.x * (int64_t)width + column + e] = of[e];
            else
                atomicAdd(d_weight + column + e, of[e]);
        }
    }
}

template <typename T, bool WHOLE>
static __global__ void __launch_bounds__(BACKWARD_THREADS)
    backward(const struct up_rmsnorm_backward_args a, float *partial)
{
    extern __shared__ float4 sum[]; // [2][vectors of a row]
    int width = (int)a.width, count = (width + UP_VEC - 1) / UP_VEC;
    for (int i = threadIdx.x; i < 2 * count; i += blockDim.x) sum[i] = make_float4(0, 0, 0, 0);
    for (int64_t i = blockIdx.x; i < a.rows; i += gridDim.x) {
        int64_t at = i * a.width;
        struct row<T> row = {
            (const T *)a.x + at, (const T *)a.weight, (const T *)a.dy + at, (T *)a.dx + at, width
        };
        float sums[2] = {0, 0};
        row_sums<WHOLE>(row, sums);
        up_block_reduce(sums, up_plus()); // also: nobody is still zeroing `sum`
        float r = rsqrtf(sums[0] / (float)width + a.epsilon);
        write_row<WHOLE>(row, r, sums[1] / (float)width * r * r * r, a.accumulate, sum);
    }
    __syncthreads();
    give_sums(sum, width, partial, a.d_weight);
}

void up_cuda_rmsnorm_forward(const void *args, struct up_cuda *cuda)
{
    const struct up_rmsnorm_forward_args *a = (const struct up_rmsnorm_forward_args *)args;
    UP_ASSERT(up_is_float(a->dtype));
    if (a->width == 0) return;
    bool whole = a->width % UP_VEC == 0 && up_aligned(a->x, a->weight, a->y);
    int threads = up_row_threads(a->width, FORWARD_THREADS);
    struct up_grid grid = {up_blocks(cuda, a->rows, FORWARD_RESIDENT / threads), threads, 0};
    up_cuda_launch(cuda, "rmsnorm_forward", UP_CUDA_PICK(forward, a->dtype, whole), grid, *a);
}

/* More shared memory than 48 KiB must be asked for. */
static bool allow_shared(struct up_cuda *cuda, const void *kernel, size_t bytes, int64_t width)
{
    if (bytes <= 48 * 1024) return true;
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes) ==
        cudaSuccess)
        return true;
    (void)cudaGetLastError(); // told here
    up_cuda_fail(cuda,
                 "rmsnorm_backward: a width of %lld needs %lld bytes of shared memory, more "
                 "than the device has",
                 (long long)width, (long long)bytes);
    return false;
}

void up_cuda_rmsnorm_backward(const void *args, struct up_cuda *cuda)
{
    const struct up_rmsnorm_backward_args *a = (const struct up_rmsnorm_backward_args *)args;
    UP_ASSERT(up_is_float(a->dtype));
    if (a->rows == 0 || a->width == 0) return;
    bool whole = a->width % UP_VEC == 0 && up_aligned(a->x, a->weight, a->dy, a->dx);
    void (*kernel)(struct up_rmsnorm_backward_args, float *) =
        UP_CUDA_PICK(backward, a->dtype, whole);
    int threads = up_row_threads(a->width, BACKWARD_THREADS);
    struct up_grid grid = {
        up_blocks(cuda, up_divide_up(a->rows, ROWS_LEAST), BACKWARD_RESIDENT / threads), threads,
        (size_t)up_divide_up(a->width, UP_VEC) * UP_VEC * sizeof(float)};
    if (!allow_shared(cuda, (const void *)kernel, grid.shared, a->width)) return;
    float *partial = up_cuda_partials(cuda, grid.blocks, a->width);
    up_cuda_launch(cuda, "rmsnorm_backward", kernel, grid, *a, partial);
    if (partial) up_cuda_add_partials(cuda, partial, grid.blocks, a->width, a->d_weight);
}
