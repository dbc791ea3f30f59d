/* RMSNorm of one row, forward and backward, for RMSNorm itself and for the norm of each head that
 * goes before RoPE. Row statistics are summed in fp64. */
#ifndef UP_OPS_CPU_NORM_IMPL_H
#define UP_OPS_CPU_NORM_IMPL_H

#include "ops/cpu/cpu_impl.h"

#include <math.h>

/* 1 / sqrt(mean(x^2) + epsilon) */
UP_CPU_INLINE float up_cpu_inverse_rms(const float *x, int64_t width, float epsilon)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; i++) sum += (double)x[i] * x[i];
    return (float)(1 / sqrt(sum / (double)width + epsilon));
}

/* y = weight x r; y may be x. */
UP_CPU_INLINE void up_cpu_norm_row(const float *x, const float *weight, float r, float *y,
                                   int64_t width)
{
#pragma omp simd
    for (int64_t i = 0; i < width; i++) y[i] = weight[i] * (x[i] * r);
}

/* dx = keep dx + r g - x r^3 mean(g x) with g = weight dy, where dx is not read if keep is 0 and
 * may then be x or dy. */
UP_CPU_INLINE void up_cpu_norm_row_backward(const float *x, const float *weight, const float *dy,
                                            float r, bool keep, float *dx, int64_t width)
{
    double dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < width; i++) dot += (double)(weight[i] * dy[i]) * x[i];
    float along = (float)(dot / (double)width * r * r * r);
#pragma omp simd
    for (int64_t i = 0; i < width; i++)
        dx[i] = (keep ? dx[i] : 0) + weight[i] * dy[i] * r - x[i] * along;
}

#endif
