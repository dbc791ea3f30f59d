/* Rotary position embedding, after an RMSNorm of each head where there is a weight. */
#define _GNU_SOURCE // sincos
#include "ops/cpu/norm_impl.h"
#include "ops/ops_impl.h"

#include <math.h>

enum {
    HEAD_DIM_MAX = 512,
    PARTIALS = 16, // pieces that the rows are cut into for the weight's gradient
};

/* Per call: the frequency of each pair. */
struct frequencies {
    double of[HEAD_DIM_MAX / 2];
};

/* Per row: cosine and sine of each pair's angle. */
struct rotation {
    float cosine[HEAD_DIM_MAX / 2], sine[HEAD_DIM_MAX / 2];
};

static void find_frequencies(const struct up_rope_config *config, int64_t head_dim,
                             struct frequencies *frequencies)
{
    UP_ASSERT(head_dim % 2 == 0 && head_dim <= HEAD_DIM_MAX);
    for (int64_t i = 0; i < head_dim / 2; i++)
        frequencies->of[i] = up_rope_frequency(config, i, head_dim);
}

static void find_rotation(const struct frequencies *frequencies, int64_t position, int64_t pairs,
                          struct rotation *rotation)
{
    for (int64_t i = 0; i < pairs; i++) {
        double sine, cosine;
        sincos((double)position * frequencies->of[i], &sine, &cosine);
        rotation->cosine[i] = (float)cosine;
        rotation->sine[i] = (float)sine;
    }
}

/* direction 1 rotates as forward does, -1 back; y may be x. */
UP_CPU_INLINE void rotate(const float *x, const struct rotation *rotation, float direction,
                          int64_t pairs, float *y)
{
#pragma omp simd
    for (int64_t i = 0; i < pairs; i++) {
        float a = x[i], b = x[i + pairs];
        float cosine = rotation->cosine[i], sine = direction * rotation->sine[i];
        y[i] = a * cosine - b * sine;
        y[i + pairs] = b * cosine + a * sine;
    }
}

UP_CPU_HOT static void forward_row(const struct up_rope_args *a, const struct rotation *rotation,
                                   const float *x, float *y)
{
    float normed[HEAD_DIM_MAX];
    for (int64_t h = 0; h < a->heads; h++, x += a->head_dim, y += a->head_dim) {
        const float *from = x;
        if (a->weight) {
            float r = up_cpu_inverse_rms(x, a->head_dim, a->epsilon);
            up_cpu_norm_row(x, a->weight, r, normed, a->head_dim);
            from = normed;
        }
        rotate(from, rotation, 1, a->head_dim / 2, y);
    }
}

/* x and d_weight are used with a weight only; d_weight [head_dim] is added to. */
UP_CPU_HOT static void backward_row(const struct up_rope_backward_args *a,
                                    const struct rotation *rotation, const float *x,
                                    const float *dy, float *dx, double *d_weight)
{
    float d_normed[HEAD_DIM_MAX];
    int64_t width = a->head_dim;
    for (int64_t h = 0; h < a->heads; h++, dy += width, dx += width) {
        if (!a->weight) {
            rotate(dy, rotation, -1, width / 2, dx);
            continue;
        }
        rotate(dy, rotation, -1, width / 2, d_normed);
        float r = up_cpu_inverse_rms(x, width, a->epsilon);
#pragma omp simd
        for (int64_t i = 0; i < width; i++) d_weight[i] += d_normed[i] * (x[i] * r);
        up_cpu_norm_row_backward(x, a->weight, d_normed, r, false, dx, width);
        x += width;
    }
}

void up_cpu_rope(const void *args)
{
    const struct up_rope_args *a = args;
    UP_ASSERT(a->dtype == UP_F32);
    struct frequencies frequencies;
    find_frequencies(&a->config, a->head_dim, &frequencies);
    int64_t width = a->heads * a->head_dim;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < a->rows; i++) {
        struct rotation rotation;
        find_rotation(&frequencies, a->first_position + i % a->period, a->head_dim / 2, &rotation);
        forward_row(a, &rotation, (const float *)a->x + i * width, (float *)a->y + i * width);
    }
}

static void backward_rows(const struct up_rope_backward_args *a,
                          const struct frequencies *frequencies, struct up_cpu_span rows,
                          double *d_weight)
{
    int64_t width = a->heads * a->head_dim;
    for (int64_t i = rows.first; i < rows.first + rows.count; i++) {
        struct rotation rotation;
        find_rotation(frequencies, a->first_position + i % a->period, a->head_dim / 2, &rotation);
        backward_row(a, &rotation, a->weight ? (const float *)a->x + i * width : NULL,
                     (const float *)a->dy + i * width, (float *)a->dx + i * width, d_weight);
    }
}

void up_cpu_rope_backward(const void *args)
{
    const struct up_rope_backward_args *a = args;
    UP_ASSERT(a->dtype == UP_F32);
    UP_ASSERT(!a->weight || (a->x && a->d_weight));
    struct frequencies frequencies;
    find_frequencies(&a->config, a->head_dim, &frequencies);
    double partial[PARTIALS][HEAD_DIM_MAX];
#pragma omp parallel for schedule(static)
    for (int64_t p = 0; p < PARTIALS; p++) {
        memset(partial[p], 0, sizeof partial[p]);
        backward_rows(a, &frequencies, up_cpu_piece(a->rows, PARTIALS, p), partial[p]);
    }
    if (!a->weight) return;
    for (int64_t i = 0; i < a->head_dim; i++) {
        double sum = 0;
        for (int64_t p = 0; p < PARTIALS; p++) sum += partial[p][i];
        a->d_weight[i] += (float)sum;
    }
}
