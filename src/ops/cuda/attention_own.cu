/* Launching our own attention kernels (attention_flash.cuh), each compiled for a few widths of
 * heads: head_dim is rounded up to the next, and the columns beyond it are zeroes in shared memory.
 */
#include "ops/cuda/attention_flash.cuh"
#include "ops/cuda/attention_own.h"

static dim3 grid_of(const struct up_attention_shape *s, int64_t heads, int64_t batch)
{
    return dim3((unsigned)((s->seq + UP_TILE_ROWS - 1) / UP_TILE_ROWS), (unsigned)heads,
                (unsigned)batch);
}

/* More shared memory than a kernel gets unasked. */
template <typename KERNEL> static cudaError_t allow_bytes(KERNEL kernel, int bytes)
{
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

enum { GRID_BATCH = 65535 }; // the most that a grid has of it

/* Sequences from `b` on, as many as a grid has. */
static struct up_attention_forward_args part_of(const struct up_attention_forward_args *a,
                                                int64_t b)
{
    struct up_attention_forward_args part = *a;
    int64_t rows = b * a->shape.seq, q = rows * a->shape.heads * a->shape.head_dim;
    int64_t k = rows * a->shape.kv_heads * a->shape.head_dim;
    if (part.shape.batch - b < GRID_BATCH)
        part.shape.batch -= b;
    else
        part.shape.batch = GRID_BATCH;
    part.q = (const up_bf16 *)a->q + q;
    part.k = (const up_bf16 *)a->k + k;
    part.v = (const up_bf16 *)a->v + k;
    part.o = (up_bf16 *)a->o + q;
    part.lse = a->lse + rows * a->shape.heads;
    return part;
}

template <int WIDTH> struct forward_launch {
    static cudaError_t run(const struct up_attention_forward_args *a, cudaStream_t stream)
    {
        const struct up_attention_shape *s = &a->shape;
        constexpr int BYTES = up_flash<WIDTH>::FORWARD_BYTES;
        cudaError_t status = allow_bytes(up_flash_forward<WIDTH>, BYTES);
        if (status != cudaSuccess) return status;
        for (int64_t b = 0; b < s->batch; b += GRID_BATCH) {
            struct up_attention_forward_args part = part_of(a, b);
            up_flash_forward<WIDTH><<<grid_of(s, s->heads, part.shape.batch),
                                      up_flash<WIDTH>::FORWARD_THREADS, BYTES, stream>>>(part);
        }
        return cudaGetLastError();
    }
};

template <int WIDTH>
static void launch_row(const struct up_attention_backward_args *a, int64_t b, cudaStream_t stream)
{
    const struct up_attention_shape *s = &a->shape;
    float *delta = (float *)a->scratch; // [heads, seq], of one sequence after the other
    constexpr int DOTS = UP_DOT_THREADS / 32;
    up_flash_row_dots<<<(unsigned)((s->seq * s->heads + DOTS - 1) / DOTS), UP_DOT_THREADS, 0,
                        stream>>>(*a, b, delta);
    up_flash_keys<WIDTH><<<grid_of(s, s->kv_heads, 1), up_flash<WIDTH>::KEY_THREADS,
                           up_flash<WIDTH>::KEY_BYTES, stream>>>(*a, b, delta);
    up_flash_queries<WIDTH><<<grid_of(s, s->heads, 1), up_flash<WIDTH>::QUERY_THREADS,
                              up_flash<WIDTH>::QUERY_BYTES, stream>>>(*a, b, delta);
}

template <int WIDTH> struct backward_launch {
    static cudaError_t run(const struct up_attention_backward_args *a, cudaStream_t stream)
    {
        cudaError_t status = allow_bytes(up_flash_keys<WIDTH>, up_flash<WIDTH>::KEY_BYTES);
        if (status == cudaSuccess)
            status = allow_bytes(up_flash_queries<WIDTH>, up_flash<WIDTH>::QUERY_BYTES);
        if (status != cudaSuccess) return status;
        for (int64_t b = 0; b < a->shape.batch; b++) launch_row<WIDTH>(a, b, stream);
        return cudaGetLastError();
    }
};

/* The most that any of the kernels takes. */
template <int WIDTH> struct shared_bytes {
    static int run(void) { return up_flash<WIDTH>::KEY_BYTES; }
};

/* LAUNCH<width>::run(...) for the width that serves head_dim. */
template <template <int> class LAUNCH, typename... ARGS>
static auto for_width(int64_t head_dim, ARGS... args)
{
    if (head_dim <= 32) return LAUNCH<32>::run(args...);
    if (head_dim <= 64) return LAUNCH<64>::run(args...);
    if (head_dim <= 96) return LAUNCH<96>::run(args...);
    if (head_dim <= 128) return LAUNCH<128>::run(args...);
    if (head_dim <= 192) return LAUNCH<192>::run(args...);
    return LAUNCH<256>::run(args...);
}

extern "C" const char *up_attention_own_refuses(int64_t head_dim)
{
    int device = 0, bytes = 0;
    if (head_dim > UP_ATTENTION_CUDA_WIDTH || head_dim % UP_ATTENTION_CUDA_STEP)
        return "expected a head_dim up to 256, a multiple of 8";
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (for_width<shared_bytes>(head_dim) > bytes)
        return "this GPU has too little shared memory for the head_dim";
    return NULL;
}

extern "C" cudaError_t up_attention_own_forward(const struct up_attention_forward_args *a,
                                                cudaStream_t stream)
{
    return for_width<forward_launch>(a->shape.head_dim, a, stream);
}

extern "C" cudaError_t up_attention_own_backward(const struct up_attention_backward_args *a,
                                                 cudaStream_t stream)
{
    return for_width<backward_launch>(a->shape.head_dim, a, stream);
}

extern "C" cudaError_t up_attention_add_rows(void *y, int64_t stride, const void *x, int64_t width,
                                             int64_t rows, cudaStream_t stream)
{
    int64_t chunks = width / 8, blocks = (rows * chunks + UP_ADD_THREADS - 1) / UP_ADD_THREADS;
    up_flash_add_rows<<<(unsigned)blocks, UP_ADD_THREADS, 0, stream>>>(
        (up_bf16 *)y, stride, (const up_bf16 *)x, chunks, rows);
    return cudaGetLastError();
}
