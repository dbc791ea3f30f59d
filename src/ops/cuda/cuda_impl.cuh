/* What the kernels share: launches, vectors of eight elements, reductions in a fixed order.
 *
 * A kernel takes its operation's args struct by value and is a template over the element type and
 * over WHOLE: whether every vector may be read and written by 16-byte accesses, which needs aligned
 * pointers and, for rows, a width that is a multiple of UP_VEC. Without it, and at the end of a
 * range, elements go one by one through the same code.
 *
 * Blocks take pieces of work in turns (grid-stride), so that a launch has at most as many blocks as
 * run at once. Indices into tensors are int64_t.
 */
#ifndef UP_OPS_CUDA_CUDA_IMPL_CUH
#define UP_OPS_CUDA_CUDA_IMPL_CUH

#include "device/cuda/cuda.h"

#include <cuda_bf16.h>
#include <stdint.h>

extern "C" {
#define UP_OP(name) void up_cuda_##name(const void *args, struct up_cuda *cuda);
#include "ops/ops.def"
#undef UP_OP
}

enum {
    UP_WARP = 32,
    UP_VEC = 8,       // elements: 16 bytes of bf16, 32 of fp32
    UP_MASKED = -100, // the token id of a row that does not count
};

/* ---- Launches ---- */

struct up_grid {
    int64_t blocks; // 0: nothing is launched
    int threads;
    size_t shared; // bytes of dynamic shared memory
};

template <typename... P, typename... A>
static void up_cuda_launch(struct up_cuda *cuda, const char *name, void (*kernel)(P...),
                           struct up_grid grid, A... args)
{
    if (grid.blocks == 0) return;
    kernel<<<(unsigned)grid.blocks, grid.threads, grid.shared, up_cuda_stream(cuda)>>>(args...);
    (void)up_cuda_try(cuda, cudaGetLastError(), name);
}

/* The instance of a kernel template for a dtype; more template arguments may follow. */
#define UP_CUDA_PICK(kernel, dtype, whole, ...)                                                    \
    ((dtype) == UP_BF16 ? (whole) ? kernel<__nv_bfloat16, true, ##__VA_ARGS__>                     \
                                  : kernel<__nv_bfloat16, false, ##__VA_ARGS__>                    \
     : (whole) ? kernel<float, true, ##__VA_ARGS__>                                                \
                        : kernel<float, false, ##__VA_ARGS__>)

static inline bool up_is_float(enum up_dtype dtype)
{
    return dtype == UP_BF16 || dtype == UP_F32;
}

static inline int64_t up_divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Blocks for so many pieces, of which each multiprocessor holds `resident` at once. */
static inline int64_t up_blocks(const struct up_cuda *cuda, int64_t pieces, int resident)
{
    int64_t most = (int64_t)up_cuda_multiprocessors(cuda) * resident;
    return pieces < most ? pieces : most;
}

/* For pointwise work on `count` elements, a vector per thread at a time. */
static inline struct up_grid up_pointwise_grid(const struct up_cuda *cuda, int64_t count)
{
    enum { THREADS = 256, RESIDENT = 8 };
    return {up_blocks(cuda, up_divide_up(count, UP_VEC * THREADS), RESIDENT), THREADS, 0};
}

/* Threads of a block that has a row of `width` elements: one per vector, in whole warps. */
static inline int up_row_threads(int64_t width, int most)
{
    int64_t threads = up_divide_up(up_divide_up(width, UP_VEC), UP_WARP) * UP_WARP;
    return threads < UP_WARP ? UP_WARP : threads < most ? (int)threads : most;
}

/* Whether all of them can be accessed by 16 bytes. */
template <typename... Pointer> static bool up_aligned(Pointer... pointers)
{
    return ((... | (uintptr_t)pointers) & 15) == 0;
}

/* ---- Vectors, in fp32 once they are in registers ---- */

struct up_vec {
    float at[UP_VEC];
};

static __device__ inline float up_widen(float x)
{
    return x;
}
static __device__ inline float up_widen(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}
static __device__ inline void up_narrow(float x, float *y)
{
    *y = x;
}
static __device__ inline void up_narrow(float x, __nv_bfloat16 *y)
{
    *y = __float2bfloat16_rn(x);
}

/* A vector as it is in memory, for what waits in registers. */
template <typename T> struct up_raw;
template <> struct up_raw<float> {
    float at[UP_VEC];
};
template <> struct up_raw<__nv_bfloat16> {
    unsigned pair[UP_VEC / 2];
};

static __device__ inline struct up_raw<float> up_load_whole(const float *x) {
    float4 low = ((const float4 *)x)[0], high = ((const float4 *)x)[1];
    return {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
}

static __device__ inline struct up_raw<__nv_bfloat16>
up_load_whole(const __nv_bfloat16 *x) {
    uint4 two = *(const uint4 *)x;
    return {two.x, two.y, two.z, two.w};
}

static __device__ inline struct up_vec
up_unpack(const struct up_raw<float> &raw)
{
    struct up_vec v;
#pragma unroll
    for (int i = 0; i < UP_VEC; i++) v.at[i] = raw.at[i];
    return v;
}

/* bf16 is the upper half of an fp32. */
static __device__ inline struct up_vec up_unpack(const struct up_raw<__nv_bfloat16> &raw)
{
    struct up_vec v;
#pragma unroll
    for (int i = 0; i < UP_VEC / 2; i++) {
        v.at[2 * i] = __uint_as_float(raw.pair[i] << 16);
        v.at[2 * i + 1] = __uint_as_float(raw.pair[i] & 0xffff0000u);
    }
    return v;
}

static __device__ inline void up_write_whole(float *y, const struct up_vec &v)
{
    ((float4 *)y)[0] = make_float4(v.at[0], v.at[1], v.at[2], v.at[3]);
    ((float4 *)y)[1] = make_float4(v.at[4], v.at[5], v.at[6], v.at[7]);
}

static __device__ inline unsigned up_pair_bits(float low, float high)
{
    return (unsigned)__bfloat16_as_ushort(__float2bfloat16_rn(high)) << 16 |
           __bfloat16_as_ushort(__float2bfloat16_rn(low));
}

static __device__ inline void up_write_whole(__nv_bfloat16 *y, const struct up_vec &v)
{
    *(uint4 *)y = make_uint4(up_pair_bits(v.at[0], v.at[1]), up_pair_bits(v.at[2], v.at[3]),
                             up_pair_bits(v.at[4], v.at[5]), up_pair_bits(v.at[6], v.at[7]));
}

static __device__ inline struct up_raw<float> up_pack(const struct up_vec &v, const float *) {
    struct up_raw<float> raw;
#pragma unroll
    for (int i = 0; i < UP_VEC; i++) raw.at[i] = v.at[i];
    return raw;
}

static __device__ inline struct up_raw<__nv_bfloat16>
up_pack(const struct up_vec &v, const __nv_bfloat16 *) {
    struct up_raw<__nv_bfloat16> raw;
#pragma unroll
    for (int i = 0; i < UP_VEC / 2; i++) raw.pair[i] = up_pair_bits(v.at[2 * i], v.at[2 * i + 1]);
    return raw;
}

/* x[0] to x[7], of which the first `count` exist (any number; beyond them zeros are read). */
template <bool WHOLE, typename T>
static __device__ inline struct up_vec up_read(const T *x, int64_t count)
{
    if (WHOLE && count >= UP_VEC) return up_unpack(up_load_whole(x));
    struct up_vec v;
#pragma unroll
    for (int i = 0; i < UP_VEC; i++) v.at[i] = i < count ? up_widen(x[i]) : 0;
    return v;
}

template <bool WHOLE, typename T>
static __device__ inline struct up_raw<T> up_load(const T *x, int64_t count) {
    if (WHOLE && count >= UP_VEC) return up_load_whole(x);
    return up_pack(up_read<false>(x, count), x);
}

template <bool WHOLE, typename T>
static __device__ inline void up_write(T *y, int64_t count, const struct up_vec &v)
{
    if (WHOLE && count >= UP_VEC) {
        up_write_whole(y, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < UP_VEC; i++)
        if (i < count) up_narrow(v.at[i], y + i);
}

/* Where the thread's vectors of pointwise work begin, and the distance between them; elements. */
static __device__ inline int64_t up_first_element()
{
    return UP_VEC * ((int64_t)blockIdx.x * blockDim.x + threadIdx.x);
}

static __device__ inline int64_t up_element_stride()
{
    return UP_VEC * (int64_t)gridDim.x * blockDim.x;
}

/* ---- Reductions ---- */

struct up_plus {
    template <typename T> __device__ T operator()(T a, T b) const { return a + b; }
};

struct up_larger {
    template <typename T> __device__ T operator()(T a, T b) const { return a > b ? a : b; }
};

/* Over aligned groups of `lanes` (a power of two) lanes of a warp; each gets the result. */
template <typename T, typename Op> static __device__ inline T up_lanes_reduce(T x, int lanes, Op op)
{
    for (int distance = lanes / 2; distance > 0; distance /= 2)
        x = op(x, __shfl_xor_sync(0xffffffffu, x, distance));
    return x;
}

/* Each of the N values over all threads of the block, whose size is a multiple of the warp's; every
 * thread gets the results. A barrier for the block. */
template <int N, typename T, typename Op>
static __device__ inline void up_block_reduce(T (&x)[N], Op op)
{
    __shared__ T of_warp[N][UP_WARP];
    __syncthreads(); // others may still read what the call before left
#pragma unroll
    for (int n = 0; n < N; n++) {
        x[n] = up_lanes_reduce(x[n], UP_WARP, op);
        if (threadIdx.x % UP_WARP == 0) of_warp[n][threadIdx.x / UP_WARP] = x[n];
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < N; n++) {
        x[n] = of_warp[n][0];
        for (int warp = 1; warp < blockDim.x / UP_WARP; warp++) x[n] = op(x[n], of_warp[n][warp]);
    }
}

/* The scratch as partial[*blocks][width]; *blocks becomes what it has room for, where that is less.
 * A row at least must fit. */
float *up_cuda_partials(struct up_cuda *cuda, int64_t *blocks, int64_t width);

/* out[j] += sum over i of partial[i][j], in order. */
void up_cuda_add_partials(struct up_cuda *cuda, const float *partial, int64_t count, int64_t width,
                          float *out);

/* *out += sum of partial[count], in order. */
void up_cuda_add_sum(struct up_cuda *cuda, const double *partial, int64_t count, double *out);

#endif
