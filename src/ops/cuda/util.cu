/* Zeroing, casting and adding. */
#include "ops/cuda/cuda_impl.cuh"
#include "ops/util.h"

extern "C" void up_cpu_fill(const void *args); // by all threads of the rank

void up_cuda_fill(const void *args, struct up_cuda *cuda)
{
    const struct up_fill_args *a = (const struct up_fill_args *)args;
    if (a->bytes == 0) return;
    if (a->on_host) {
        if (!up_cuda_try(cuda, cudaStreamSynchronize(up_cuda_stream(cuda)), "fill"))
            up_cpu_fill(args);
        return;
    }
    (void)up_cuda_try(cuda, cudaMemsetAsync(a->x, 0, (size_t)a->bytes, up_cuda_stream(cuda)),
                      "fill");
}

/* From T to the other of fp32 and bf16. NaN stays NaN. */
template <typename T> struct other;
template <> struct other<float> {
    typedef __nv_bfloat16 type;
};
template <> struct other<__nv_bfloat16> {
    typedef float type;
};

template <typename T, bool WHOLE> static __global__ void convert(const struct up_cast_args a)
{
    typedef typename other<T>::type U;
    for (int64_t i = up_first_element(); i < a.count; i += up_element_stride())
        up_write<WHOLE>((U *)a.y + i, a.count - i, up_read<WHOLE>((const T *)a.x + i, a.count - i));
}

static void copy(const struct up_cast_args *a, struct up_cuda *cuda)
{
    size_t bytes = (size_t)a->count * (a->to == UP_BF16 ? 2 : 4);
    if (bytes == 0) return;
    (void)up_cuda_try(
        cuda, cudaMemcpyAsync(a->y, a->x, bytes, cudaMemcpyDefault, up_cuda_stream(cuda)), "cast");
}

void up_cuda_cast(const void *args, struct up_cuda *cuda)
{
    const struct up_cast_args *a = (const struct up_cast_args *)args;
    UP_ASSERT(up_is_float(a->from) && up_is_float(a->to));
    if (a->from == a->to) {
        copy(a, cuda);
        return;
    }
    up_cuda_launch(cuda, "cast", UP_CUDA_PICK(convert, a->from, up_aligned(a->x, a->y)),
                   up_pointwise_grid(cuda, a->count), *a);
}

template <typename T, bool WHOLE> static __global__ void add(const struct up_add_args a)
{
    for (int64_t i = up_first_element(); i < a.count; i += up_element_stride()) {
        struct up_vec x = up_read<WHOLE>((const T *)a.x + i, a.count - i);
        struct up_vec y = up_read<WHOLE>((const T *)a.y + i, a.count - i);
#pragma unroll
        for (int e = 0; e < UP_VEC; e++) y.at[e] += x.at[e];
        up_write<WHOLE>((T *)a.y + i, a.count - i, y);
    }
}

void up_cuda_add(const void *args, struct up_cuda *cuda)
{
    const struct up_add_args *a = (const struct up_add_args *)args;
    UP_ASSERT(up_is_float(a->dtype));
    up_cuda_launch(cuda, "add", UP_CUDA_PICK(add, a->dtype, up_aligned(a->x, a->y)),
                   up_pointwise_grid(cuda, a->count), *a);
}

/* A vector at a time; rows are cut into vectors, the last of which may be short. */
template <typename T, bool WHOLE> static __global__ void regroup(const struct up_regroup_args a)
{
    int64_t vectors = (a.width + UP_VEC - 1) / UP_VEC, pieces = a.blocks * a.rows * vectors;
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < pieces; i += step) {
        int64_t column = i % vectors * UP_VEC, row = i / vectors % a.rows,
                block = i / vectors / a.rows;
        const T *from = (const T *)a.from + block * a.from_block + row * a.from_ld + column;
        T *to = (T *)a.to + block * a.to_block + row * a.to_ld + column;
        struct up_vec x = up_read<WHOLE>(from, a.width - column);
        if (a.add) {
            struct up_vec y = up_read<WHOLE>(to, a.width - column);
#pragma unroll
            for (int e = 0; e < UP_VEC; e++) x.at[e] += y.at[e];
        }
        up_write<WHOLE>(to, a.width - column, x);
    }
}

void up_cuda_regroup(const void *args, struct up_cuda *cuda)
{
    const struct up_regroup_args *a = (const struct up_regroup_args *)args;
    UP_ASSERT(up_is_float(a->dtype));
    bool whole = up_aligned(a->from, a->to) && a->width % UP_VEC == 0 &&
                 a->from_block % UP_VEC == 0 && a->from_ld % UP_VEC == 0 &&
                 a->to_block % UP_VEC == 0 && a->to_ld % UP_VEC == 0;
    up_cuda_launch(
        cuda, "regroup", UP_CUDA_PICK(regroup, a->dtype, whole),
        up_pointwise_grid(cuda, a->blocks * a->rows * up_divide_up(a->width, UP_VEC) * UP_VEC), *a);
}
