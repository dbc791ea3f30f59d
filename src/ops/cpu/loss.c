/* Cross entropy. */
#include "ops/cpu/cpu_impl.h"
#include "ops/ops_impl.h"

#include <math.h>

enum {
    MASKED = -100,
    RUN = 1024, // logits whose exps are summed in fp32, before they go to an fp64 sum
};

UP_CPU_INLINE float largest(const float *x, int64_t count)
{
    float max = -INFINITY;
#pragma omp simd reduction(max : max)
    for (int64_t i = 0; i < count; i++) max = x[i] > max ? x[i] : max;
    return max;
}

/* x = exp(x - max), whose sum is returned. */
UP_CPU_INLINE double exponentiate(float *x, int64_t count, float max)
{
    double total = 0;
    for (int64_t first = 0; first < count; first += RUN) {
        int64_t end = up_min(first + RUN, count);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = first; i < end; i++) {
            x[i] = up_cpu_exp(x[i] - max);
            sum += x[i];
        }
        total += (double)sum;
    }
    return total;
}

/* The row's loss; its logits become their gradient. */
UP_CPU_HOT static double row_loss(float *x, int64_t vocab, int32_t target, float scale)
{
    float max = largest(x, vocab);
    double loss = (double)max - x[target];
    double sum = exponentiate(x, vocab, max);
    float factor = (float)(scale / sum);
#pragma omp simd
    for (int64_t i = 0; i < vocab; i++) x[i] *= factor;
    x[target] -= scale;
    return loss + log(sum);
}

static double sum_rows(const struct up_cross_entropy_args *a, struct up_cpu_span rows)
{
    double sum = 0;
    for (int64_t i = rows.first; i < rows.first + rows.count; i++) {
        float *x = (float *)a->logits + i * a->vocab;
        int32_t target = a->targets[i];
        UP_ASSERT(target == MASKED || (target >= 0 && target < a->vocab));
        if (target == MASKED)
            memset(x, 0, (size_t)a->vocab * sizeof *x);
        else
            sum += row_loss(x, a->vocab, target, a->scale);
    }
    return sum;
}

void up_cpu_cross_entropy(const void *args)
{
    const struct up_cross_entropy_args *a = args;
    UP_ASSERT(a->dtype == UP_F32);
    double partial[UP_CPU_PARTIALS];
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < UP_CPU_PARTIALS; p++)
        partial[p] = sum_rows(a, up_cpu_piece(a->rows, UP_CPU_PARTIALS, p));
    for (int64_t p = 0; p < UP_CPU_PARTIALS; p++) *a->loss_sum += partial[p];
}
