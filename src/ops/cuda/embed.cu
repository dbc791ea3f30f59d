/* The embedding table, read by row and added to by row.
 *
 * Backward: rows with the same id are added in the order of the rows, so the result is the same in
 * every run. The rows are taken CHUNK at a time, a launch each; within a chunk the first row that
 * has an id finds all others with it and adds them up, for STRIP columns a block. Adding atomically
 * would move as many bytes: each id's row of the table is read and written once a chunk instead of
 * once a row.
 *
 * An id that is neither masked nor in the vocabulary is a broken invariant (input is checked where
 * it is read): the kernel traps.
 */
#include "ops/cuda/cuda_impl.cuh"
#include "ops/embed.h"

enum {
    GATHER_THREADS = 256,
    GATHER_RESIDENT = 8, // blocks of a multiprocessor
    CHUNK = 2048,        // rows of the backward pass at a time
    ADD_THREADS = 128,
    BATCH = 8, // rows of one id on their way from memory at once: a common id has thousands
    STRIP = ADD_THREADS * UP_VEC, // columns of a block of the backward pass
};

static __device__ inline bool is_masked(int32_t id, int64_t vocab)
{
    if (id == UP_MASKED) return true;
    if (id < 0 || id >= vocab) __trap();
    return false;
}

/* A warp per row; `units` of Unit make a row. */
template <typename Unit>
static __global__ void gather(const struct up_embed_forward_args a, int64_t units)
{
    const int lane = threadIdx.x % UP_WARP;
    const int64_t step = (int64_t)gridDim.x * (GATHER_THREADS / UP_WARP);
    for (int64_t row = (blockIdx.x * (int64_t)GATHER_THREADS + threadIdx.x) / UP_WARP; row < a.rows;
         row += step) {
        int32_t id = a.ids[row];
        bool masked = is_masked(id, a.vocab);
        const Unit *from = (const Unit *)a.table + (masked ? 0 : id * units);
        Unit *to = (Unit *)a.out + row * units;
#pragma unroll 4
        for (int64_t i = lane; i < units; i += UP_WARP) to[i] = masked ? Unit() : from[i];
    }
}

void up_cuda_embed_forward(const void *args, struct up_cuda *cuda)
{
    const struct up_embed_forward_args *a = (const struct up_embed_forward_args *)args;
    UP_ASSERT(up_is_float(a->dtype));
    int64_t blocks =
        up_blocks(cuda, up_divide_up(a->rows, GATHER_THREADS / UP_WARP), GATHER_RESIDENT);
    struct up_grid grid = {blocks, GATHER_THREADS, 0};
    int64_t element = a->dtype == UP_BF16 ? 2 : 4, bytes = a->width * element;
    if (bytes % (int64_t)sizeof(uint4) == 0 && up_aligned(a->table, a->out))
        up_cuda_launch(cuda, "embed_forward", gather<uint4>, grid, *a,
                       bytes / (int64_t)sizeof(uint4));
    else if (a->dtype == UP_BF16)
        up_cuda_launch(cuda, "embed_forward", gather<uint16_t>, grid, *a, a->width);
    else
        up_cuda_launch(cuda, "embed_forward", gather<uint32_t>, grid, *a, a->width);
}

/* The rows of a chunk that share an id. */
struct group {
    int32_t id[CHUNK]; // of all rows of the chunk
    uint16_t member[CHUNK];
    int members;
};

/* Loads the chunk's ids; whether an earlier row has the id of row `mine`. */
static __device__ inline bool has_earlier(struct group *group, const int32_t *ids, int rows,
                                          int mine)
{
    int32_t id = ids[mine];
    bool earlier = false;
    for (int i = threadIdx.x; i < rows; i += ADD_THREADS) {
        int32_t other = ids[i];
        group->id[i] = other;
        earlier |= i < mine && other == id;
    }
    return __syncthreads_or(earlier);
}

/* Lists the rows from `mine`, the first of them, on that have its id, in order. For one warp. */
static __device__ inline void list_members(struct group *group, int rows, int mine)
{
    const unsigned lane = threadIdx.x, below = (1u << lane) - 1;
    int32_t id = group->id[mine];
    int members = 0;
    for (int first = mine / UP_WARP * UP_WARP; first < rows; first += UP_WARP) {
        int i = first + (int)lane;
        bool same = i < rows && group->id[i] == id;
        unsigned all = __ballot_sync(0xffffffffu, same);
        if (same) group->member[members + __popc(all & below)] = (uint16_t)i;
        members += __popc(all);
    }
    if (lane == 0) group->members = members;
}

static __device__ inline void add(struct up_vec *sum, const struct up_vec &v)
{
#pragma unroll
    for (int e = 0; e < UP_VEC; e++) sum->at[e] += v.at[e];
}

/* A block per row and strip of the chunk that `a` tells; blocks of rows that are not their id's
 * first have nothing to do. */
template <typename T, bool WHOLE>
static __global__ void add_chunk(const struct up_embed_backward_args a, int strips)
{
    __shared__ struct group group;
    int mine = (int)(blockIdx.x / strips), rows = (int)a.rows;
    int64_t column = (int64_t)(blockIdx.x % strips) * STRIP + UP_VEC * threadIdx.x;
    int32_t id = a.ids[mine];
    if (is_masked(id, a.vocab) || has_earlier(&group, a.ids, rows, mine)) return;
    if (threadIdx.x < UP_WARP) list_members(&group, rows, mine);
    __syncthreads();
    if (column >= a.width) return;

    float *to = a.d_table + id * a.width + column;
    const T *from = (const T *)a.d_out + column;
    int64_t left = a.width - column;
    struct up_vec sum = up_read<WHOLE>(to, left);
    for (int first = 0; first < group.members; first += BATCH) {
        struct up_raw<T> d[BATCH];
        const int here = min(group.members - first, (int)BATCH);
#pragma unroll
        for (int m = 0; m < BATCH; m++)
            if (m < here) d[m] = up_load<WHOLE>(from + group.member[first + m] * a.width, left);
#pragma unroll
        for (int m = 0; m < BATCH; m++)
            if (m < here) add(&sum, up_unpack(d[m]));
    }
    up_write<WHOLE>(to, left, sum);
}

void up_cuda_embed_backward(const void *args, struct up_cuda *cuda)
{
    const struct up_embed_backward_args *a = (const struct up_embed_backward_args *)args;
    UP_ASSERT(up_is_float(a->dtype));
    if (a->width == 0) return;
    bool whole = a->width % UP_VEC == 0 && up_aligned(a->d_out, a->d_table);
    int strips = (int)up_divide_up(a->width, STRIP);
    int64_t row_bytes = a->width * (a->dtype == UP_BF16 ? 2 : 4);
    for (int64_t first = 0; first < a->rows; first += CHUNK) {
        struct up_embed_backward_args chunk = *a;
        chunk.rows = CHUNK;
        chunk.ids += first;
        chunk.d_out = (const char *)a->d_out + first * row_bytes;
        if (a->rows - first < CHUNK) chunk.rows = a->rows - first;
        struct up_grid grid = {chunk.rows * strips, ADD_THREADS, 0};
        up_cuda_launch(cuda, "embed_backward", UP_CUDA_PICK(add_chunk, a->dtype, whole), grid,
                       chunk, strips);
    }
}
