/* Tiles of rows in shared memory, and a warp's products with them: what the attention kernels are
 * made of. A tile has 64 rows of WIDTH bf16; rows lie WIDTH + 8 apart, so that the eight rows which
 * a matrix load takes at once lie in different banks. Rows and columns outside the tensor are zero.
 */
#ifndef UP_OPS_CUDA_ATTENTION_TILE_CUH
#define UP_OPS_CUDA_ATTENTION_TILE_CUH

#include "ops/cuda/attention_mma.cuh"

enum { UP_TILE_ROWS = 64, UP_TILE_PAD = 8 };

template <int WIDTH> struct up_tile {
    static constexpr int STRIDE = WIDTH + UP_TILE_PAD;
    static constexpr int ELEMENTS = UP_TILE_ROWS * STRIDE;
};

/* Rows of one head in global memory. */
struct up_head_rows {
    const up_bf16 *base; // of row 0
    int64_t stride;      // elements between rows
    int64_t rows;        // in all
    int64_t width;       // elements of a row
};

/* Starts copying rows [64 * block, 64 * block + 64) into the tile; all THREADS of the block take
 * part. */
template <int WIDTH, int THREADS>
static __device__ inline void up_tile_load(up_bf16 *tile, const struct up_head_rows &from,
                                           int64_t block)
{
    constexpr int CHUNKS = WIDTH / 8;
#pragma unroll
    for (int i = threadIdx.x; i < UP_TILE_ROWS * CHUNKS; i += THREADS) {
        int row = i / CHUNKS, column = i % CHUNKS * 8;
        int64_t at = block * UP_TILE_ROWS + row;
        bool valid = at < from.rows && column < from.width;
        const up_bf16 *source = valid ? from.base + at * from.stride + column : from.base;
        up_copy_async(tile + row * up_tile<WIDTH>::STRIDE + column, source, valid);
    }
}

/* c[16, 64] += a[16, WIDTH] b[64, WIDTH]^T; a: the warp's rows of a tile, b: a tile. */
template <int WIDTH>
static __device__ inline void up_multiply_transposed(float c[8][4], const up_bf16 *a,
                                                     const up_bf16 *b)
{
    constexpr int STRIDE = up_tile<WIDTH>::STRIDE;
    int lane = threadIdx.x % 32;
    a += lane % 16 * STRIDE + lane / 16 * 8;
    b += (lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 8;
#pragma unroll
    for (int k = 0; k < WIDTH; k += 16) {
        uint32_t left[4];
        up_load_matrices(left, a + k);
#pragma unroll
        for (int n = 0; n < UP_TILE_ROWS / 16; n++) {
            uint32_t right[4];
            up_load_matrices(right, b + n * 16 * STRIDE + k);
            up_multiply_add(c[2 * n], left, right);
            up_multiply_add(c[2 * n + 1], left, right + 2);
        }
    }
}

/* c[16, COLUMNS] += a[16, 64] b[64, COLUMNS]; a in registers, b: columns of a tile of WIDTH. */
template <int WIDTH, int COLUMNS>
static __device__ inline void up_multiply(float c[COLUMNS / 8][4], const uint32_t a[4][4],
                                          const up_bf16 *b)
{
    constexpr int STRIDE = up_tile<WIDTH>::STRIDE;
    int lane = threadIdx.x % 32;
    b += lane % 16 * STRIDE + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < UP_TILE_ROWS / 16; k++) {
#pragma unroll
        for (int n = 0; n < COLUMNS / 16; n++) {
            uint32_t right[4];
            up_load_matrices_transposed(right, b + k * 16 * STRIDE + n * 16);
            up_multiply_add(c[2 * n], a[k], right);
            up_multiply_add(c[2 * n + 1], a[k], right + 2);
        }
    }
}

static __device__ inline uint32_t up_pack(float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(uint32_t *)&pair;
}

/* [16, 64] from accumulators to a left operand. */
static __device__ inline void up_tile_round(uint32_t a[4][4], const float c[8][4])
{
#pragma unroll
    for (int k = 0; k < 4; k++) {
        a[k][0] = up_pack(c[2 * k][0], c[2 * k][1]);
        a[k][1] = up_pack(c[2 * k][2], c[2 * k][3]);
        a[k][2] = up_pack(c[2 * k + 1][0], c[2 * k + 1][1]);
        a[k][3] = up_pack(c[2 * k + 1][2], c[2 * k + 1][3]);
    }
}

template <int COUNT> static __device__ inline void up_tile_clear(float c[COUNT][4])
{
#pragma unroll
    for (int n = 0; n < COUNT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) c[n][i] = 0;
}

/* Where [16, COLUMNS] of accumulators go: columns from `column` of rows from `row`. */
struct up_tile_target {
    up_bf16 *base; // of row 0, column 0
    int64_t stride, rows, width;
    int64_t row;
    int column;
    bool add; // to what is there
};

/* One row of the two that a thread holds: half 0 or 1. */
template <int COLUMNS>
static __device__ inline void up_tile_store_half(const struct up_tile_target &to,
                                                 const float c[COLUMNS / 8][4], int half,
                                                 float factor)
{
    int lane = threadIdx.x % 32;
    int64_t row = to.row + lane / 4 + 8 * half;
    if (row >= to.rows) return;
#pragma unroll
    for (int n = 0; n < COLUMNS / 8; n++) {
        int column = to.column + n * 8 + lane % 4 * 2;
        if (column >= to.width) break;
        __nv_bfloat162 *at = (__nv_bfloat162 *)(to.base + row * to.stride + column);
        float2 old = to.add ? __bfloat1622float2(*at) : make_float2(0, 0);
        *at = __floats2bfloat162_rn(old.x + c[n][2 * half] * factor,
                                    old.y + c[n][2 * half + 1] * factor);
    }
}

#endif
