/* Norm of the gradients, and AdamW. */
#include "ops/cpu/cpu_impl.h"
#include "ops/ops_impl.h"

#include <math.h>

UP_CPU_HOT static double squares(const float *x, int64_t count)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < count; i++) sum += (double)x[i] * x[i];
    return sum;
}

void up_cpu_sum_squares(const void *args)
{
    const struct up_sum_squares_args *a = args;
    double partial[UP_CPU_PARTIALS];
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < UP_CPU_PARTIALS; p++) {
        struct up_cpu_span piece = up_cpu_piece(a->count, UP_CPU_PARTIALS, p);
        partial[p] = squares(a->x + piece.first, piece.count);
    }
    for (int64_t p = 0; p < UP_CPU_PARTIALS; p++) *a->sum += partial[p];
}

/* What is the same for all elements; formed in fp64. */
struct factors {
    float clip, keep, beta1, rest1, beta2, rest2, step, root_correction, epsilon;
};

static struct factors find_factors(const struct up_adamw_args *a)
{
    double clip = 1;
    if (a->clip != 0) {
        clip = a->clip / (sqrt(*a->norm_squared) + 1e-6);
        clip = clip > 1 ? 1 : clip; // NaN stays NaN
    }
    double t = (double)a->t;
    return (struct factors){
        .clip = (float)clip,
        .keep = (float)(1 - a->lr * a->decay),
        .beta1 = (float)a->beta1,
        .rest1 = (float)(1 - a->beta1),
        .beta2 = (float)a->beta2,
        .rest2 = (float)(1 - a->beta2),
        .step = (float)(a->lr / (1 - pow(a->beta1, t))),
        .root_correction = (float)sqrt(1 - pow(a->beta2, t)),
        .epsilon = (float)a->epsilon,
    };
}

UP_CPU_HOT static void adamw(const struct factors *factors, const float *gradient, float *weight,
                             float *m, float *v, int64_t count)
{
    const struct factors f = *factors;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float g = gradient[i] * f.clip;
        m[i] = f.beta1 * m[i] + f.rest1 * g;
        v[i] = f.beta2 * v[i] + f.rest2 * (g * g);
        float denominator = sqrtf(v[i]) / f.root_correction + f.epsilon;
        weight[i] = weight[i] * f.keep - f.step * (m[i] / denominator);
    }
}

void up_cpu_adamw(const void *args)
{
    const struct up_adamw_args *a = args;
    UP_ASSERT(a->t >= 1);
    struct factors factors = find_factors(a);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < a->count; i += UP_CPU_CHUNK)
        adamw(&factors, a->gradient + i, a->weight + i, a->m + i, a->v + i,
              up_min(UP_CPU_CHUNK, a->count - i));
}
