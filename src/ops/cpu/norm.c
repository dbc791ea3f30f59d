/* RMSNorm. */
#include "ops/cpu/norm_impl.h"
#include "ops/ops_impl.h"

enum {
    ROWS = 128,  // of the backward pass at a time: a share that stays in cache
    STRIPE = 64, // columns of the weight's gradient that one piece owns
};

UP_CPU_HOT static void forward_row(const float *x, const float *weight, float *y, int64_t width,
                                   float epsilon)
{
    up_cpu_norm_row(x, weight, up_cpu_inverse_rms(x, width, epsilon), y, width);
}

UP_CPU_HOT static float inverse_rms(const float *x, int64_t width, float epsilon)
{
    return up_cpu_inverse_rms(x, width, epsilon);
}

UP_CPU_HOT static void backward_row(const float *x, const float *weight, const float *dy, float r,
                                    bool accumulate, float *dx, int64_t width)
{
    up_cpu_norm_row_backward(x, weight, dy, r, accumulate, dx, width);
}

/* Columns [0, count) of `rows` rows: d_weight += the rows' sum, which is formed first. */
UP_CPU_HOT static void add_d_weight(const float *x, const float *dy, const float *r, int64_t rows,
                                    int64_t width, int64_t count, float *d_weight)
{
    float sum[STRIPE] = {0};
    for (int64_t i = 0; i < rows; i++)
#pragma omp simd
        for (int64_t j = 0; j < count; j++) sum[j] += dy[i * width + j] * (x[i * width + j] * r[i]);
    for (int64_t j = 0; j < count; j++) d_weight[j] += sum[j];
}

void up_cpu_rmsnorm_forward(const void *args)
{
    const struct up_rmsnorm_forward_args *a = args;
    UP_ASSERT(a->dtype == UP_F32);
    const float *x = a->x;
    float *y = a->y;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < a->rows; i++)
        forward_row(x + i * a->width, a->weight, y + i * a->width, a->width, a->epsilon);
}

/* Some rows at a time, in order: their statistics; their part of d_weight, column by column; only
 * then dx, which may take the place of x or dy. The loops end in barriers. */
void up_cpu_rmsnorm_backward(const void *args)
{
    const struct up_rmsnorm_backward_args *a = args;
    UP_ASSERT(a->dtype == UP_F32);
    int64_t width = a->width;
    float r[ROWS];
#pragma omp parallel
    for (int64_t first = 0; first < a->rows; first += ROWS) {
        int64_t rows = up_min(ROWS, a->rows - first);
        const float *x = (const float *)a->x + first * width;
        const float *dy = (const float *)a->dy + first * width;
        float *dx = (float *)a->dx + first * width;
#pragma omp for schedule(static)
        for (int64_t i = 0; i < rows; i++) r[i] = inverse_rms(x + i * width, width, a->epsilon);
#pragma omp for schedule(static)
        for (int64_t j = 0; j < width; j += STRIPE)
            add_d_weight(x + j, dy + j, r, rows, width, up_min(STRIPE, width - j), a->d_weight + j);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < rows; i++)
            backward_row(x + i * width, a->weight, dy + i * width, r[i], a->accumulate,
                         dx + i * width, width);
    }
}
