/* SwiGLU's gate. The loops are marked simd because outputs may be inputs, element for element. */
#include "ops/cpu/cpu_impl.h"
#include "ops/ops_impl.h"

UP_CPU_HOT static void forward(const float *gate, const float *up, float *out, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) out[i] = gate[i] / (1 + up_cpu_exp(-gate[i])) * up[i];
}

/* With s = 1 / (1 + exp(-gate)): silu' = s (1 + gate (1 - s)). */
UP_CPU_HOT static void backward(const float *gate, const float *up, const float *d_out,
                                float *d_gate, float *d_up, float *out, int64_t count)
{
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float g = gate[i], u = up[i], d = d_out[i];
        float e = up_cpu_exp(-g);
        float s = 1 / (1 + e);
        d_gate[i] = d * u * s * (1 + g * (e * s)); // e s = 1 - s without cancellation
        d_up[i] = d * g * s;
        out[i] = g / (1 + e) * u;
    }
}

void up_cpu_swiglu_forward(const void *args)
{
    const struct up_swiglu_forward_args *a = args;
    UP_ASSERT(a->dtype == UP_F32);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < a->count; i += UP_CPU_CHUNK)
        forward((const float *)a->gate + i, (const float *)a->up + i, (float *)a->out + i,
                up_min(UP_CPU_CHUNK, a->count - i));
}

void up_cpu_swiglu_backward(const void *args)
{
    const struct up_swiglu_backward_args *a = args;
    UP_ASSERT(a->dtype == UP_F32);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < a->count; i += UP_CPU_CHUNK)
        backward((const float *)a->gate + i, (const float *)a->up + i, (const float *)a->d_out + i,
                 (float *)a->d_gate + i, (float *)a->d_up + i, (float *)a->out + i,
                 up_min(UP_CPU_CHUNK, a->count - i));
}
