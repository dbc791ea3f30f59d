/* The second stage of sums over everything: what each block has left in the scratch is added up in
 * a fixed order. */
#include "ops/cuda/cuda_impl.cuh"

enum { COLUMNS = 32, STRANDS = 16, SUM_THREADS = 256 };

float *up_cuda_partials(struct up_cuda *cuda, int64_t *blocks, int64_t width)
{
    const int64_t most = up_cuda_scratch_bytes(cuda) / (int64_t)sizeof(float) / width;
    UP_ASSERT(most > 0);
    if (*blocks > most) *blocks = most;
    return (float *)up_cuda_scratch(cuda);
}

/* A block has COLUMNS columns; of each, thread row s adds up partials s, s + STRANDS, ... */
static __global__ void add_partials(const float *partial, int64_t count, int64_t width, float *out)
{
    __shared__ float of_strand[STRANDS][COLUMNS];
    int strand = threadIdx.x / COLUMNS, lane = threadIdx.x % COLUMNS;
    int64_t column = (int64_t)blockIdx.x * COLUMNS + lane;
    float sum = 0;
    if (column < width)
        for (int64_t i = strand; i < count; i += STRANDS) sum += partial[i * width + column];
    of_strand[strand][lane] = sum;
    __syncthreads();
    if (strand != 0 || column >= width) return;
    for (int s = 1; s < STRANDS; s++) sum += of_strand[s][lane];
    out[column] += sum;
}

void up_cuda_add_partials(struct up_cuda *cuda, const float *partial, int64_t count, int64_t width,
                          float *out)
{
    struct up_grid grid = {up_divide_up(width, COLUMNS), COLUMNS * STRANDS, 0};
    up_cuda_launch(cuda, "add_partials", add_partials, grid, partial, count, width, out);
}

static __global__ void add_sum(const double *partial, int64_t count, double *out)
{
    double sum[1] = {0};
    for (int64_t i = threadIdx.x; i < count; i += SUM_THREADS) sum[0] += partial[i];
    up_block_reduce(sum, up_plus());
    if (threadIdx.x == 0) *out += sum[0];
}

void up_cuda_add_sum(struct up_cuda *cuda, const double *partial, int64_t count, double *out)
{
    struct up_grid grid = {count > 0, SUM_THREADS, 0};
    up_cuda_launch(cuda, "add_sum", add_sum, grid, partial, count, out);
}
