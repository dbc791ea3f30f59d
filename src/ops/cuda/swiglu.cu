/* SwiGLU's gate. Outputs may be inputs, element for element: each vector is read before it is
 * written, by the same thread. */
#include "ops/cuda/cuda_impl.cuh"
#include "ops/swiglu.h"

/* 0 where exp(-x) overflows. */
static __device__ inline float sigmoid(float x)
{
    return __fdividef(1, 1 + __expf(-x));
}

template <typename T, bool WHOLE>
static __global__ void forward(const struct up_swiglu_forward_args a)
{
    for (int64_t i = up_first_element(); i < a.count; i += up_element_stride()) {
        struct up_vec gate = up_read<WHOLE>((const T *)a.gate + i, a.count - i);
        struct up_vec up = up_read<WHOLE>((const T *)a.up + i, a.count - i), out;
#pragma unroll
        for (int e = 0; e < UP_VEC; e++) out.at[e] = gate.at[e] * sigmoid(gate.at[e]) * up.at[e];
        up_write<WHOLE>((T *)a.out + i, a.count - i, out);
    }
}

/* With s = sigmoid(gate): silu' = s (1 + gate (1 - s)). */
template <typename T, bool WHOLE>
static __global__ void backward(const struct up_swiglu_backward_args a)
{
    for (int64_t i = up_first_element(); i < a.count; i += up_element_stride()) {
        struct up_vec gate = up_read<WHOLE>((const T *)a.gate + i, a.count - i);
        struct up_vec up = up_read<WHOLE>((const T *)a.up + i, a.count - i);
        struct up_vec d = up_read<WHOLE>((const T *)a.d_out + i, a.count - i);
        struct up_vec d_gate, d_up, out;
#pragma unroll
        for (int e = 0; e < UP_VEC; e++) {
            float g = gate.at[e], s = sigmoid(g);
            d_gate.at[e] = d.at[e] * up.at[e] * s * (1 + g * (1 - s));
            d_up.at[e] = d.at[e] * g * s;
            out.at[e] = g * s * up.at[e];
        }
        up_write<WHOLE>((T *)a.d_gate + i, a.count - i, d_gate);
        up_write<WHOLE>((T *)a.d_up + i, a.count - i, d_up);
        up_write<WHOLE>((T *)a.out + i, a.count - i, out);
    }
}

void up_cuda_swiglu_forward(const void *args, struct up_cuda *cuda)
{
    const struct up_swiglu_forward_args *a = (const struct up_swiglu_forward_args *)args;
    UP_ASSERT(up_is_float(a->dtype));
    bool whole = up_aligned(a->gate, a->up, a->out);
    up_cuda_launch(cuda, "swiglu_forward", UP_CUDA_PICK(forward, a->dtype, whole),
                   up_pointwise_grid(cuda, a->count), *a);
}

void up_cuda_swiglu_backward(const void *args, struct up_cuda *cuda)
{
    const struct up_swiglu_backward_args *a = (const struct up_swiglu_backward_args *)args;
    UP_ASSERT(up_is_float(a->dtype));
    bool whole = up_aligned(a->gate, a->up, a->d_out, a->d_gate, a->d_up, a->out);
    up_cuda_launch(cuda, "swiglu_backward", UP_CUDA_PICK(backward, a->dtype, whole),
                   up_pointwise_grid(cuda, a->count), *a);
}
