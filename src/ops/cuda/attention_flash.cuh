/* Flash attention (Dao 2023): kernels over tiles of 64 queries by 64 keys whose scores never leave
 * the registers. One warp has 16 rows of a tile.
 *
 *   forward   a block of threads per tile of queries: over the keys up to the diagonal, with the
 * running maximum and sum of an online softmax row dots  delta = rowsum(do o) keys      a block per
 * tile of keys: dk and dv, over the queries from the diagonal on, of all heads that share the KV
 * head. It forms scores transposed, [keys, queries], so that they are left operands as they come
 *   queries   a block per tile of queries: dq, over the keys up to the diagonal. It reads d_o's
 * tile before it writes dq, the last reader, so dq may take d_o's place
 *
 * Exponentials are base 2: scores are multiplied by scale * log2(e).
 */
#ifndef UP_OPS_CUDA_ATTENTION_FLASH_CUH
#define UP_OPS_CUDA_ATTENTION_FLASH_CUH

#include "ops/attention.h"
#include "ops/cuda/attention_tile.cuh"

#define UP_LOG2_E 1.44269504f
#define UP_LN_2   0.693147181f

enum { UP_FLASH_WARPS = UP_TILE_ROWS / 16 }; // that cover a tile

/* How a kernel is cut for heads of WIDTH (head_dim, rounded up). Where dk and dv of a warp's 16
 * keys would not fit the registers, two warps share the keys and have half of the columns each. */
template <int WIDTH> struct up_flash {
    static constexpr int FORWARD_THREADS = 32 * UP_FLASH_WARPS;
    static constexpr int QUERY_THREADS = 32 * UP_FLASH_WARPS;
    static constexpr int SHARERS = WIDTH > 128 ? 2 : 1;
    static constexpr int KEY_THREADS = 32 * UP_FLASH_WARPS * SHARERS;
    static constexpr int STAGES = WIDTH <= 64 ? 2 : 1; // of tiles that are passed over
    static constexpr int TILE = up_tile<WIDTH>::ELEMENTS;
    static constexpr int FORWARD_BYTES = 3 * TILE * 2;
    static constexpr int QUERY_BYTES = (2 + 2 * STAGES) * TILE * 2;
    static constexpr int KEY_BYTES = QUERY_BYTES + 2 * STAGES * UP_TILE_ROWS * 4;
};

extern __shared__ __align__(16) unsigned char up_shared[];

static __device__ inline struct up_head_rows up_rows_of(const struct up_attention_shape &s,
                                                        const void *tensor, int64_t heads,
                                                        int64_t b, int64_t head)
{
    struct up_head_rows rows;
    rows.stride = heads * s.head_dim;
    rows.base = (const up_bf16 *)tensor + b * s.seq * rows.stride + head * s.head_dim;
    rows.rows = s.seq;
    rows.width = s.head_dim;
    return rows;
}

static __device__ inline struct up_tile_target up_target_of(const struct up_attention_shape &s,
                                                            void *tensor, int64_t heads, int64_t b,
                                                            int64_t head, int64_t row)
{
    struct up_head_rows rows = up_rows_of(s, tensor, heads, b, head);
    struct up_tile_target to;
    to.base = (up_bf16 *)rows.base;
    to.stride = rows.stride;
    to.rows = rows.rows;
    to.width = rows.width;
    to.row = row;
    to.column = 0;
    to.add = false;
    return to;
}

static __device__ inline float up_scale_of(const struct up_attention_shape &s)
{
    return 1 / sqrtf((float)s.head_dim);
}

/* --- Forward ---------------------------------------------------------------------------------- */

/* Of the two rows that a thread holds a part of. max: base 2, of the whole row; sum: of the
 * thread's own part. */
struct up_online {
    float max[2], sum[2];
};

/* On a diagonal tile: row i of the warp's 16 sees columns up to first + i. */
static __device__ inline void up_mask(float s[8][4], int first)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = lane / 4 + i / 2 * 8, column = n * 8 + lane % 4 * 2 + i % 2;
            if (column > first + row) s[n][i] = -INFINITY;
        }
}

/* Scores of one half become exp2(score * scale - max); the factor by which earlier sums are
 * multiplied. Every row sees a key of every tile, so the maximum is finite. */
static __device__ inline float up_soften(float s[8][4], int half, float scale,
                                         struct up_online &online)
{
    float max = -INFINITY, sum = 0;
#pragma unroll
    for (int n = 0; n < 8; n++) max = fmaxf(max, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    max = fmaxf(online.max[half], up_quad_max(max) * scale);
    float correction = up_exp2(online.max[half] - max);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; i++) {
            s[n][i] = up_exp2(s[n][i] * scale - max);
            sum += s[n][i];
        }
    online.max[half] = max;
    online.sum[half] = online.sum[half] * correction + sum;
    return correction;
}

template <int WIDTH>
static __device__ inline void up_scale_rows(float o[WIDTH / 8][4], float first, float second)
{
#pragma unroll
    for (int n = 0; n < WIDTH / 8; n++) {
        o[n][0] *= first;
        o[n][1] *= first;
        o[n][2] *= second;
        o[n][3] *= second;
    }
}

template <int WIDTH>
static __device__ inline void
up_forward_store(const struct up_attention_forward_args &a, int64_t b, int64_t head, int64_t row,
                 const float o[WIDTH / 8][4], const struct up_online &online)
{
    const struct up_attention_shape &s = a.shape;
    struct up_tile_target to = up_target_of(s, a.o, s.heads, b, head, row);
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = up_quad_sum(online.sum[half]);
        up_tile_store_half<WIDTH>(to, o, half, 1 / sum);
        int64_t at = row + lane / 4 + 8 * half;
        if (lane % 4 == 0 && at < s.seq)
            a.lse[(b * s.heads + head) * s.seq + at] = online.max[half] * UP_LN_2 + logf(sum);
    }
}

/* Grid: tiles of queries (the last, which see most keys, first), query heads, batch. The next tile
 * of keys arrives while values are summed, that of values while scores are formed. */
template <int WIDTH>
__global__ void __launch_bounds__(up_flash<WIDTH>::FORWARD_THREADS)
    up_flash_forward(struct up_attention_forward_args a)
{
    constexpr int THREADS = up_flash<WIDTH>::FORWARD_THREADS, TILE = up_flash<WIDTH>::TILE;
    const struct up_attention_shape &s = a.shape;
    int64_t block = (int64_t)gridDim.x - 1 - blockIdx.x, head = blockIdx.y, b = blockIdx.z;
    int64_t kv_head = (s.first_head_in_group + head) / s.group;
    int warp = threadIdx.x / 32;
    up_bf16 *q = (up_bf16 *)up_shared, *k = q + TILE, *v = k + TILE;
    const up_bf16 *own_q = q + warp * 16 * up_tile<WIDTH>::STRIDE;
    struct up_head_rows k_rows = up_rows_of(s, a.k, s.kv_heads, b, kv_head);
    struct up_head_rows v_rows = up_rows_of(s, a.v, s.kv_heads, b, kv_head);
    float scale = up_scale_of(s) * UP_LOG2_E;
    float o[WIDTH / 8][4];
    struct up_online online = {{-INFINITY, -INFINITY}, {0, 0}};
    up_tile_clear<WIDTH / 8>(o);

    up_tile_load<WIDTH, THREADS>(q, up_rows_of(s, a.q, s.heads, b, head), block);
    up_tile_load<WIDTH, THREADS>(k, k_rows, 0);
    up_copy_async_close();
    for (int64_t tile = 0; tile <= block; tile++) {
        float p[8][4];
        uint32_t left[4][4];
        up_copy_async_wait<0>();
        __syncthreads(); // k is there, and v has been read
        up_tile_load<WIDTH, THREADS>(v, v_rows, tile);
        up_copy_async_close();
        up_tile_clear<8>(p);
        up_multiply_transposed<WIDTH>(p, own_q, k);
        if (tile == block) up_mask(p, warp * 16);
        float first = up_soften(p, 0, scale, online), second = up_soften(p, 1, scale, online);
        up_scale_rows<WIDTH>(o, first, second);
        up_tile_round(left, p);
        up_copy_async_wait<0>();
        __syncthreads(); // v is there, and k has been read
        if (tile < block) up_tile_load<WIDTH, THREADS>(k, k_rows, tile + 1);
        up_copy_async_close();
        up_multiply<WIDTH, WIDTH>(o, left, v);
    }
    up_forward_store<WIDTH>(a, b, head, block * UP_TILE_ROWS + warp * 16, o, online);
}

/* --- Backward: the row dots ------------------------------------------------------------------- */

enum { UP_DOT_THREADS = 256 };

/* A warp per row of a head, in the order of memory; delta: [heads, seq]. */
static __global__ void __launch_bounds__(UP_DOT_THREADS)
    up_flash_row_dots(struct up_attention_backward_args a, int64_t b, float *delta)
{
    const struct up_attention_shape &s = a.shape;
    int64_t i = (int64_t)blockIdx.x * (UP_DOT_THREADS / 32) + threadIdx.x / 32;
    if (i >= s.seq * s.heads) return;
    int64_t row = i / s.heads, head = i % s.heads, at = (b * s.seq * s.heads + i) * s.head_dim;
    float sum = 0;
    for (int64_t column = threadIdx.x % 32 * 2; column < s.head_dim; column += 64) {
        float2 o =
            __bfloat1622float2(*(const __nv_bfloat162 *)((const up_bf16 *)a.o + at + column));
        float2 d_o =
            __bfloat1622float2(*(const __nv_bfloat162 *)((const up_bf16 *)a.d_o + at + column));
        sum += o.x * d_o.x + o.y * d_o.y;
    }
    for (int distance = 16; distance > 2; distance /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, distance);
    sum = up_quad_sum(sum);
    if (threadIdx.x % 32 == 0) delta[head * s.seq + row] = sum;
}

/* --- Backward: keys --------------------------------------------------------------------------- */

/* A tile of queries as the keys pass over it. Of rows beyond the sequence lse is infinite, so that
 * their probabilities are 0. */
struct up_query_tile {
    up_bf16 *q, *d_o;
    float *lse, *delta; // [64], lse base 2
};

template <int WIDTH>
static __device__ inline void
up_query_tile_load(const struct up_query_tile &tile, const struct up_attention_backward_args &a,
                   int64_t b, int64_t head, int64_t block, const float *delta)
{
    constexpr int THREADS = up_flash<WIDTH>::KEY_THREADS;
    const struct up_attention_shape &s = a.shape;
    up_tile_load<WIDTH, THREADS>(tile.q, up_rows_of(s, a.q, s.heads, b, head), block);
    up_tile_load<WIDTH, THREADS>(tile.d_o, up_rows_of(s, a.d_o, s.heads, b, head), block);
    up_copy_async_close();
    if (threadIdx.x >= UP_TILE_ROWS) return;
    int64_t row = block * UP_TILE_ROWS + threadIdx.x;
    bool valid = row < s.seq;
    tile.lse[threadIdx.x] =
        valid ? a.lse[(b * s.heads + head) * s.seq + row] * UP_LOG2_E : INFINITY;
    tile.delta[threadIdx.x] = valid ? delta[head * s.seq + row] : 0;
}

/* p[16 keys, 64 queries]: scores in, probabilities out. On a diagonal tile key i of the warp's is
 * seen by queries from first + i on. */
static __device__ inline void up_key_probabilities(float p[8][4], const float *lse, float scale,
                                                   bool diagonal, int first)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int key = first + lane / 4 + i / 2 * 8, query = n * 8 + lane % 4 * 2 + i % 2;
            p[n][i] = diagonal && query < key ? 0 : up_exp2(p[n][i] * scale - lse[query]);
        }
}

/* ds = p (dp - delta), in dp's place. */
static __device__ inline void up_key_ds(float dp[8][4], const float p[8][4], const float *delta)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            dp[n][i] = p[n][i] * (dp[n][i] - delta[n * 8 + lane % 4 * 2 + i % 2]);
}

/* Adds one tile of queries to the warp's dk and dv. k, v: the warp's rows. */
template <int WIDTH, int COLUMNS>
static __device__ inline void
up_key_add(float dk[COLUMNS / 8][4], float dv[COLUMNS / 8][4], const up_bf16 *k, const up_bf16 *v,
           const struct up_query_tile &tile, int column, float scale, bool diagonal, int first)
{
    float p[8][4], ds[8][4];
    uint32_t left[4][4];
    up_tile_clear<8>(p);
    up_multiply_transposed<WIDTH>(p, k, tile.q);
    up_key_probabilities(p, tile.lse, scale, diagonal, first);
    up_tile_round(left, p);
    up_multiply<WIDTH, COLUMNS>(dv, left, tile.d_o + column);
    up_tile_clear<8>(ds);
    up_multiply_transposed<WIDTH>(ds, v, tile.d_o);
    up_key_ds(ds, p, tile.delta);
    up_tile_round(left, ds);
    up_multiply<WIDTH, COLUMNS>(dk, left, tile.q + column);
}

template <int COLUMNS>
static __device__ inline void up_key_store(const struct up_attention_backward_args &a, void *tensor,
                                           int64_t b, int64_t kv_head, int64_t row, int column,
                                           const float c[COLUMNS / 8][4], float factor)
{
    struct up_tile_target to = up_target_of(a.shape, tensor, a.shape.kv_heads, b, kv_head, row);
    to.column = column;
    to.add = a.accumulate;
    up_tile_store_half<COLUMNS>(to, c, 0, factor);
    up_tile_store_half<COLUMNS>(to, c, 1, factor);
}

/* Shared memory of the keys kernel: k, v, then STAGES tiles of queries. */
template <int WIDTH> static __device__ inline struct up_query_tile up_query_tile_at(int stage)
{
    constexpr int TILE = up_flash<WIDTH>::TILE, STAGES = up_flash<WIDTH>::STAGES;
    up_bf16 *tiles = (up_bf16 *)up_shared + 2 * TILE;
    float *rows = (float *)(tiles + 2 * STAGES * TILE) + 2 * stage * UP_TILE_ROWS;
    struct up_query_tile tile = {tiles + 2 * stage * TILE, tiles + (2 * stage + 1) * TILE, rows,
                                 rows + UP_TILE_ROWS};
    return tile;
}

/* Grid: tiles of keys (the first, which most queries see, first), KV heads. */
template <int WIDTH>
__global__ void __launch_bounds__(up_flash<WIDTH>::KEY_THREADS)
    up_flash_keys(struct up_attention_backward_args a, int64_t b, const float *delta)
{
    constexpr int THREADS = up_flash<WIDTH>::KEY_THREADS, TILE = up_flash<WIDTH>::TILE;
    constexpr int STAGES = up_flash<WIDTH>::STAGES, COLUMNS = WIDTH / up_flash<WIDTH>::SHARERS;
    const struct up_attention_shape &s = a.shape;
    int64_t block = blockIdx.x, kv_head = blockIdx.y;
    int64_t head = max(kv_head * s.group - s.first_head_in_group, (int64_t)0);
    int64_t end = min((kv_head + 1) * s.group - s.first_head_in_group, s.heads);
    int64_t tiles = gridDim.x - block, count = (end - head) * tiles;
    int first = threadIdx.x / 32 % UP_FLASH_WARPS * 16;
    int column = threadIdx.x / 32 / UP_FLASH_WARPS * COLUMNS;
    up_bf16 *k = (up_bf16 *)up_shared, *v = k + TILE;
    float scale = up_scale_of(s);
    float dk[COLUMNS / 8][4], dv[COLUMNS / 8][4];
    up_tile_clear<COLUMNS / 8>(dk);
    up_tile_clear<COLUMNS / 8>(dv);

    up_tile_load<WIDTH, THREADS>(k, up_rows_of(s, a.k, s.kv_heads, b, kv_head), block);
    up_tile_load<WIDTH, THREADS>(v, up_rows_of(s, a.v, s.kv_heads, b, kv_head), block);
    up_query_tile_load<WIDTH>(up_query_tile_at<WIDTH>(0), a, b, head, block, delta);
    for (int64_t i = 0; i < count; i++) {
        if (STAGES == 1 && i > 0) {
            __syncthreads(); // the tile has been read
            up_query_tile_load<WIDTH>(up_query_tile_at<WIDTH>(0), a, b, head + i / tiles,
                                      block + i % tiles, delta);
        }
        up_copy_async_wait<0>();
        __syncthreads(); // the tile is there, and with two stages the other has been read
        if (STAGES == 2 && i + 1 < count)
            up_query_tile_load<WIDTH>(up_query_tile_at<WIDTH>((i + 1) % 2), a, b,
                                      head + (i + 1) / tiles, block + (i + 1) % tiles, delta);
        up_key_add<WIDTH, COLUMNS>(
            dk, dv, k + first * up_tile<WIDTH>::STRIDE, v + first * up_tile<WIDTH>::STRIDE,
            up_query_tile_at<WIDTH>(i % STAGES), column, scale * UP_LOG2_E, i % tiles == 0, first);
    }
    up_key_store<COLUMNS>(a, a.dk, b, kv_head, block * UP_TILE_ROWS + first, column, dk, scale);
    up_key_store<COLUMNS>(a, a.dv, b, kv_head, block * UP_TILE_ROWS + first, column, dv, 1);
}

/* --- Backward: queries ------------------------------------------------------------------------ */

/* Of the two rows that a thread holds a part of; lse base 2. */
struct up_query_rows {
    float lse[2], delta[2];
};

static __device__ inline struct up_query_rows
up_query_rows_of(const struct up_attention_backward_args &a, int64_t b, int64_t head, int64_t row,
                 const float *delta)
{
    const struct up_attention_shape &s = a.shape;
    struct up_query_rows rows;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t at = row + threadIdx.x % 32 / 4 + 8 * half;
        bool valid = at < s.seq;
        rows.lse[half] = valid ? a.lse[(b * s.heads + head) * s.seq + at] * UP_LOG2_E : INFINITY;
        rows.delta[half] = valid ? delta[head * s.seq + at] : 0;
    }
    return rows;
}

/* Adds one tile of keys to the warp's dq. q, d_o: the warp's rows; k, v: tiles. */
template <int WIDTH>
static __device__ inline void up_query_add(float dq[WIDTH / 8][4], const up_bf16 *q,
                                           const up_bf16 *d_o, const up_bf16 *k, const up_bf16 *v,
                                           const struct up_query_rows &rows, float scale,
                                           bool diagonal, int first)
{
    float p[8][4], ds[8][4];
    uint32_t left[4][4];
    up_tile_clear<8>(p);
    up_multiply_transposed<WIDTH>(p, q, k);
    if (diagonal) up_mask(p, first);
    up_tile_clear<8>(ds);
    up_multiply_transposed<WIDTH>(ds, d_o, v);
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            ds[n][i] = up_exp2(p[n][i] * scale - rows.lse[i / 2]) * (ds[n][i] - rows.delta[i / 2]);
    up_tile_round(left, ds);
    up_multiply<WIDTH, WIDTH>(dq, left, k);
}

/* Shared memory: q, d_o, then STAGES pairs of k and v. */
template <int WIDTH>
static __device__ inline void up_key_tile_load(const struct up_attention_backward_args &a,
                                               int64_t b, int64_t kv_head, int64_t block,
                                               up_bf16 *pair)
{
    constexpr int THREADS = up_flash<WIDTH>::QUERY_THREADS;
    const struct up_attention_shape &s = a.shape;
    up_tile_load<WIDTH, THREADS>(pair, up_rows_of(s, a.k, s.kv_heads, b, kv_head), block);
    up_tile_load<WIDTH, THREADS>(pair + up_flash<WIDTH>::TILE,
                                 up_rows_of(s, a.v, s.kv_heads, b, kv_head), block);
    up_copy_async_close();
}

/* Grid: tiles of queries (the last first), query heads. */
template <int WIDTH>
__global__ void __launch_bounds__(up_flash<WIDTH>::QUERY_THREADS)
    up_flash_queries(struct up_attention_backward_args a, int64_t b, const float *delta)
{
    constexpr int THREADS = up_flash<WIDTH>::QUERY_THREADS, TILE = up_flash<WIDTH>::TILE;
    constexpr int STAGES = up_flash<WIDTH>::STAGES;
    const struct up_attention_shape &s = a.shape;
    int64_t block = (int64_t)gridDim.x - 1 - blockIdx.x, head = blockIdx.y;
    int64_t kv_head = (s.first_head_in_group + head) / s.group;
    int first = threadIdx.x / 32 * 16;
    int64_t row = block * UP_TILE_ROWS + first;
    up_bf16 *q = (up_bf16 *)up_shared, *d_o = q + TILE, *pairs = d_o + TILE;
    float scale = up_scale_of(s);
    float dq[WIDTH / 8][4];
    up_tile_clear<WIDTH / 8>(dq);

    up_tile_load<WIDTH, THREADS>(q, up_rows_of(s, a.q, s.heads, b, head), block);
    up_tile_load<WIDTH, THREADS>(d_o, up_rows_of(s, a.d_o, s.heads, b, head), block);
    up_key_tile_load<WIDTH>(a, b, kv_head, 0, pairs);
    struct up_query_rows rows = up_query_rows_of(a, b, head, row, delta);
    for (int64_t i = 0; i <= block; i++) {
        if (STAGES == 1 && i > 0) {
            __syncthreads(); // the tiles have been read
            up_key_tile_load<WIDTH>(a, b, kv_head, i, pairs);
        }
        up_copy_async_wait<0>();
        __syncthreads(); // the tiles are there, and with two stages the others have been read
        if (STAGES == 2 && i < block)
            up_key_tile_load<WIDTH>(a, b, kv_head, i + 1, pairs + (i + 1) % 2 * 2 * TILE);
        const up_bf16 *k = pairs + i % STAGES * 2 * TILE;
        up_query_add<WIDTH>(dq, q + first * up_tile<WIDTH>::STRIDE,
                            d_o + first * up_tile<WIDTH>::STRIDE, k, k + TILE, rows,
                            scale * UP_LOG2_E, i == block, first);
    }
    struct up_tile_target to = up_target_of(s, a.dq, s.heads, b, head, row);
    up_tile_store_half<WIDTH>(to, dq, 0, scale);
    up_tile_store_half<WIDTH>(to, dq, 1, scale);
}

/* --- Adding ----------------------------------------------------------------------------------- */

enum { UP_ADD_THREADS = 256 };

struct __align__(16) up_bf16_chunk
{
    __nv_bfloat162 pair[4];
};

/* A thread per 8 elements of x; chunks: of a row of x. */
static __global__ void __launch_bounds__(UP_ADD_THREADS)
    up_flash_add_rows(up_bf16 *y, int64_t stride, const up_bf16 *x, int64_t chunks, int64_t rows)
{
    int64_t i = (int64_t)blockIdx.x * UP_ADD_THREADS + threadIdx.x;
    if (i >= rows * chunks) return;
    up_bf16_chunk *to = (up_bf16_chunk *)(y + i / chunks * stride + i % chunks * 8);
    up_bf16_chunk sum = *to, part = ((const up_bf16_chunk *)x)[i];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float2 s = __bfloat1622float2(sum.pair[j]), p = __bfloat1622float2(part.pair[j]);
        sum.pair[j] = __floats2bfloat162_rn(s.x + p.x, s.y + p.y);
    }
    *to = sum;
}

#endif
