/* RMSNorm: a block has a row at a time, and each thread the same columns of every row.
 *
 * A row stays in registers from its statistics to the output, and the block's next row is on its
 * way from memory meanwhile, where registers are left for it: with few rows on a multiprocessor at
 * once, memory would otherwise stand still while they are summed.
 *
 * d_weight: a thread adds up its columns in registers. The blocks' sums go through the scratch and
 * are added in order; of wide rows there are as many blocks as it has room for.
 */
#include "ops/cuda/cuda_impl.cuh"
#include "ops/norm.h"

enum {
    THREADS = 512,           // of a block, at most
    HELD_MOST = 8,           // vectors of a row that a thread holds
    AHEAD_MOST = 2,          // with so many or fewer, the next row's too
    FORWARD_RESIDENT = 1536, // threads of a multiprocessor, in all
    BACKWARD_RESIDENT = 1024,
    ROWS_LEAST = 4, // rows that are worth a block and its part of d_weight
};

static_assert(THREADS * HELD_MOST * UP_VEC == UP_RMSNORM_CUDA_WIDTH, "norm.h tells it");

/* The thread's vectors of a row, threadIdx.x + k blockDim.x for each k; zeros beyond the row. */
template <typename T, int HELD> struct part {
    struct up_raw<T> at[HELD];
};

static __device__ inline int column_of(int k)
{
    return UP_VEC * ((int)threadIdx.x + k * (int)blockDim.x);
}

/* With WHOLE, a row is made of whole vectors. */
template <int HELD, bool WHOLE, typename T>
static __device__ inline struct part<T, HELD> read_part(const T *row, int width) {
    struct part<T, HELD> part;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        int column = column_of(k);
        if (column >= width)
            part.at[k] = up_raw<T>();
        else
            part.at[k] = up_load<WHOLE>(row + column, WHOLE ? UP_VEC : width - column);
    }
    return part;
}

template <bool WHOLE, typename T>
static __device__ inline void write_vec(T *row, int width, int column, const struct up_vec &v)
{
    if (column < width) up_write<WHOLE>(row + column, WHOLE ? UP_VEC : width - column, v);
}

template <typename T, bool WHOLE, int HELD>
static __global__ void __launch_bounds__(THREADS) forward(const struct up_rmsnorm_forward_args a)
{
    const bool ahead = HELD <= AHEAD_MOST;
    const int width = (int)a.width;
    const T *x = (const T *)a.x;
    struct part<T, HELD> weight = read_part<HELD, WHOLE>((const T *)a.weight, width);
    struct part<T, HELD> here, next;
    if (ahead) next = read_part<HELD, WHOLE>(x + blockIdx.x * (int64_t)width, width);
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        here = ahead ? next : read_part<HELD, WHOLE>(x + row * width, width);
        if (ahead && row + gridDim.x < a.rows)
            next = read_part<HELD, WHOLE>(x + (row + gridDim.x) * width, width);
        float sum[1] = {0};
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            struct up_vec v = up_unpack(here.at[k]);
#pragma unroll
            for (int e = 0; e < UP_VEC; e++) sum[0] += v.at[e] * v.at[e];
        }
        up_block_reduce(sum, up_plus());
        float r = rsqrtf(sum[0] / (float)width + a.epsilon);
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            struct up_vec v = up_unpack(here.at[k]), w = up_unpack(weight.at[k]);
#pragma unroll
            for (int e = 0; e < UP_VEC; e++) v.at[e] = w.at[e] * (v.at[e] * r);
            write_vec<WHOLE>((T *)a.y + row * width, width, column_of(k), v);
        }
    }
}

/* What the backward pass reads of a row. */
template <typename T, int HELD> struct row {
    struct part<T, HELD> x, dy, dx; // dx: what it is added to, or zeros
};

template <typename T, int HELD, bool WHOLE>
static __device__ inline struct row<T, HELD> read_row(const struct up_rmsnorm_backward_args &a,
                                                      int64_t row) {
    const int width = (int)a.width;
    int64_t at = row * width;
    return {read_part<HELD, WHOLE>((const T *)a.x + at, width),
            read_part<HELD, WHOLE>((const T *)a.dy + at, width),
            read_part<HELD, WHOLE>((const T *)a.dx + at, a.accumulate ? width : 0)};
}

/* {sum of x^2, sum of g x} with g = weight dy. */
template <typename T, int HELD>
static __device__ inline void row_sums(const struct row<T, HELD> &row,
                                       const struct part<T, HELD> &weight, float (&sums)[2])
{
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        struct up_vec x = up_unpack(row.x.at[k]), dy = up_unpack(row.dy.at[k]);
        struct up_vec w = up_unpack(weight.at[k]);
#pragma unroll
        for (int e = 0; e < UP_VEC; e++) {
            sums[0] += x.at[e] * x.at[e];
            sums[1] += w.at[e] * dy.at[e] * x.at[e];
        }
    }
}

/* dx (+)= r g - x along, for the k-th vector; its part of d_weight, dy x r, is added to `sum`. */
template <typename T, int HELD>
static __device__ inline struct up_vec back_through(const struct row<T, HELD> &row,
                                                    const struct part<T, HELD> &weight, int k,
                                                    float r, float along, struct up_vec *sum)
{
    struct up_vec x = up_unpack(row.x.at[k]), dy = up_unpack(row.dy.at[k]);
    struct up_vec w = up_unpack(weight.at[k]), dx = up_unpack(row.dx.at[k]);
#pragma unroll
    for (int e = 0; e < UP_VEC; e++) {
        dx.at[e] += w.at[e] * dy.at[e] * r - x.at[e] * along;
        sum->at[e] += dy.at[e] * (x.at[e] * r);
    }
    return dx;
}

/* The sums of the thread's columns, to the block's row of `partial`. */
template <int HELD>
static __device__ inline void give_sums(const struct up_vec (&sum)[HELD], int width, float *partial)
{
#pragma unroll
    for (int k = 0; k < HELD; k++)
#pragma unroll
        for (int e = 0; e < UP_VEC; e++) {
            int column = column_of(k) + e;
            if (column < width) partial[blockIdx.x * (int64_t)width + column] = sum[k].at[e];
        }
}

template <typename T, bool WHOLE, int HELD>
static __global__ void __launch_bounds__(THREADS, HELD == 1 ? 2 : 1)
    backward(const struct up_rmsnorm_backward_args a, float *partial)
{
    const bool ahead = HELD <= AHEAD_MOST;
    const int width = (int)a.width;
    struct part<T, HELD> weight = read_part<HELD, WHOLE>((const T *)a.weight, width);
    struct row<T, HELD> here, next;
    if (ahead) next = read_row<T, HELD, WHOLE>(a, blockIdx.x);
    struct up_vec sum[HELD] = {};
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        here = ahead ? next : read_row<T, HELD, WHOLE>(a, row);
        if (ahead && row + gridDim.x < a.rows) next = read_row<T, HELD, WHOLE>(a, row + gridDim.x);
        float sums[2] = {0, 0};
        row_sums(here, weight, sums);
        up_block_reduce(sums, up_plus());
        float r = rsqrtf(sums[0] / (float)width + a.epsilon);
        float along = sums[1] / (float)width * r * r * r;
#pragma unroll
        for (int k = 0; k < HELD; k++) {
            struct up_vec dx = back_through(here, weight, k, r, along, sum + k);
            write_vec<WHOLE>((T *)a.dx + row * width, width, column_of(k), dx);
        }
    }
    give_sums(sum, width, partial);
}

/* The fewest vectors a thread, a power of two, with which a block holds a row. */
static int held_of(int64_t width)
{
    UP_ASSERT(width <= UP_RMSNORM_CUDA_WIDTH); // model/config.c has checked it
    int held = 1;
    while (width > (int64_t)THREADS * held * UP_VEC) held *= 2;
    return held;
}

#define PICK_HELD(kernel, dtype, whole, held)                                                      \
    ((held) == 1   ? UP_CUDA_PICK(kernel, dtype, whole, 1)                                         \
     : (held) == 2 ? UP_CUDA_PICK(kernel, dtype, whole, 2)                                         \
     : (held) == 4 ? UP_CUDA_PICK(kernel, dtype, whole, 4)                                         \
                   : UP_CUDA_PICK(kernel, dtype, whole, HELD_MOST))

void up_cuda_rmsnorm_forward(const void *args, struct up_cuda *cuda)
{
    const struct up_rmsnorm_forward_args *a = (const struct up_rmsnorm_forward_args *)args;
    UP_ASSERT(up_is_float(a->dtype));
    if (a->width == 0) return;
    int held = held_of(a->width);
    bool whole = a->width % UP_VEC == 0 && up_aligned(a->x, a->weight, a->y);
    int threads = up_row_threads(up_divide_up(a->width, held), THREADS);
    struct up_grid grid = {up_blocks(cuda, a->rows, FORWARD_RESIDENT / threads), threads, 0};
    up_cuda_launch(cuda, "rmsnorm_forward", PICK_HELD(forward, a->dtype, whole, held), grid, *a);
}

void up_cuda_rmsnorm_backward(const void *args, struct up_cuda *cuda)
{
    const struct up_rmsnorm_backward_args *a = (const struct up_rmsnorm_backward_args *)args;
    UP_ASSERT(up_is_float(a->dtype));
    if (a->rows == 0 || a->width == 0) return;
    int held = held_of(a->width);
    bool whole = a->width % UP_VEC == 0 && up_aligned(a->x, a->weight, a->dy, a->dx);
    void (*kernel)(struct up_rmsnorm_backward_args, float *) =
        PICK_HELD(backward, a->dtype, whole, held);
    int threads = up_row_threads(up_divide_up(a->width, held), THREADS);
    int64_t pieces = up_divide_up(a->rows, ROWS_LEAST);
    struct up_grid grid = {up_blocks(cuda, pieces, BACKWARD_RESIDENT / threads), threads, 0};
    float *partial = up_cuda_partials(cuda, &grid.blocks, a->width);
    up_cuda_launch(cuda, "rmsnorm_backward", kernel, grid, *a, partial);
    up_cuda_add_partials(cuda, partial, grid.blocks, a->width, a->d_weight);
}
