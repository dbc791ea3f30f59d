/* What the operations should compute, in plain fp64, for tests/ops: the shortest formulas, on whole
 * arrays. Operands come as t[0], t[1], ... and shapes as p[0], p[1], ...; each function says which
 * is which. Derivatives are central differences of the forward formulas, or for attention (whose
 * differences would take too long) formulas that test_reference.c holds to them.
 */
#ifndef UP_TESTS_OPS_REFERENCE_H
#define UP_TESTS_OPS_REFERENCE_H

#include "ops/ops_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef void reference_fn(const int64_t *p, double *const *t);

#define STEP         1e-5 // of central differences
#define NORM_EPSILON 1e-5f

/* gradient[i] += derivative of sum_j cotangent[j] t[output][j] by t[input][i]. */
static inline void differentiate(reference_fn *forward, const int64_t *p, double *const *t,
                                 int input, int64_t inputs, int output, int64_t outputs,
                                 const double *cotangent, double *gradient)
{
    for (int64_t i = 0; i < inputs; i++) {
        double x = t[input][i], sum[2] = {0};
        for (int side = 0; side < 2; side++) {
            t[input][i] = side ? x + STEP : x - STEP;
            forward(p, t);
            for (int64_t j = 0; j < outputs; j++) sum[side] += cotangent[j] * t[output][j];
        }
        t[input][i] = x;
        gradient[i] += (sum[1] - sum[0]) / (2 * STEP);
    }
}

/* Ids and targets: some masked, some repeated, the first and the last among them. */
static inline int32_t id_at(int64_t i, int64_t vocab)
{
    if (i % 7 == 3) return -100;
    return (int32_t)(i % 5 == 0 ? vocab - 1 : (i * 31) % vocab);
}

static inline int32_t *make_ids(int64_t rows, int64_t vocab)
{
    int32_t *ids = malloc((size_t)up_max(rows, 1) * sizeof *ids);
    for (int64_t i = 0; i < rows; i++) ids[i] = id_at(i, vocab);
    return ids;
}

/* p: m, n, k, transpose_a, transpose_b, beta (0, 1, or 2 for 0.5), padding of each row.
 * t: A, B, C, whose padding is not touched. */
struct matmul_shape {
    int64_t m, n, k, lda, ldb, ldc;
    bool transpose_a, transpose_b;
    double beta;
};

static inline struct matmul_shape matmul_shape(const int64_t *p)
{
    struct matmul_shape s = {.m = p[0], .n = p[1], .k = p[2]};
    s.transpose_a = p[3];
    s.transpose_b = p[4];
    s.beta = p[5] == 2 ? 0.5 : (double)p[5];
    s.lda = (s.transpose_a ? s.m : s.k) + p[6];
    s.ldb = (s.transpose_b ? s.k : s.n) + p[6];
    s.ldc = s.n + p[6];
    return s;
}

static inline void reference_matmul(const int64_t *p, double *const *t)
{
    struct matmul_shape s = matmul_shape(p);
    for (int64_t i = 0; i < s.m; i++)
        for (int64_t j = 0; j < s.n; j++) {
            double sum = 0;
            for (int64_t l = 0; l < s.k; l++)
                sum += t[0][s.transpose_a ? l * s.lda + i : i * s.lda + l] *
                       t[1][s.transpose_b ? j * s.ldb + l : l * s.ldb + j];
            double *c = &t[2][i * s.ldc + j];
            *c = sum + (s.beta == 0 ? 0 : s.beta * *c);
        }
}

/* p: rows, width, vocab. t: table, out. */
static inline void reference_embed_forward(const int64_t *p, double *const *t)
{
    for (int64_t i = 0; i < p[0]; i++)
        for (int64_t j = 0; j < p[1]; j++) {
            int32_t id = id_at(i, p[2]);
            t[1][i * p[1] + j] = id < 0 ? 0 : t[0][id * p[1] + j];
        }
}

/* t: d_out, d_table (added to). */
static inline void reference_embed_backward(const int64_t *p, double *const *t)
{
    for (int64_t i = 0; i < p[0]; i++)
        for (int64_t j = 0; j < p[1]; j++) {
            int32_t id = id_at(i, p[2]);
            if (id >= 0) t[1][id * p[1] + j] += t[0][i * p[1] + j];
        }
}

static inline void norm_row(const double *x, const double *weight, double *y, int64_t width)
{
    double sum = 0;
    for (int64_t j = 0; j < width; j++) sum += x[j] * x[j];
    double r = 1 / sqrt(sum / (double)width + (double)NORM_EPSILON);
    for (int64_t j = 0; j < width; j++) y[j] = weight[j] * x[j] * r;
}

/* p: rows, width. t: x, weight, y. */
static inline void reference_rmsnorm_forward(const int64_t *p, double *const *t)
{
    for (int64_t i = 0; i < p[0]; i++) norm_row(t[0] + i * p[1], t[1], t[2] + i * p[1], p[1]);
}

/* p[2]: accumulate. t: x, weight, dy, dx, d_weight (added to). */
static inline void reference_rmsnorm_backward(const int64_t *p, double *const *t)
{
    int64_t count = p[0] * p[1];
    double *y = calloc((size_t)count, sizeof *y);
    double *forward[] = {t[0], t[1], y};
    if (!p[2]) memset(t[3], 0, (size_t)count * sizeof *y);
    /* Rows do not meet: each is differentiated by itself. */
    for (int64_t i = 0; i < count; i += p[1]) {
        double *row[] = {t[0] + i, t[1], y};
        differentiate(reference_rmsnorm_forward, (int64_t[]){1, p[1]}, row, 0, p[1], 2, p[1],
                      t[2] + i, t[3] + i);
    }
    differentiate(reference_rmsnorm_forward, p, forward, 1, p[1], 2, count, t[2], t[4]);
    free(y);
}

/* p: rows, heads, head_dim, first position, period, llama3, with weight. */
static inline struct up_rope_config rope_config(const int64_t *p)
{
    return (struct up_rope_config){.theta = 500000,
                                   .llama3 = p[5],
                                   .factor = 8,
                                   .low_freq = 1,
                                   .high_freq = 4,
                                   .original_length = 64};
}

/* t: x, weight, y. */
static inline void reference_rope(const int64_t *p, double *const *t)
{
    struct up_rope_config config = rope_config(p);
    int64_t width = p[2], pairs = width / 2;
    double n[512];
    for (int64_t i = 0; i < p[0] * p[1]; i++) {
        const double *x = t[0] + i * width;
        double *y = t[2] + i * width;
        if (p[6])
            norm_row(x, t[1], n, width);
        else
            memcpy(n, x, (size_t)width * sizeof *n);
        for (int64_t j = 0; j < pairs; j++) {
            double angle = (double)(p[3] + i / p[1] % p[4]) * up_rope_frequency(&config, j, width);
            y[j] = n[j] * cos(angle) - n[j + pairs] * sin(angle);
            y[j + pairs] = n[j + pairs] * cos(angle) + n[j] * sin(angle);
        }
    }
}

/* t: x, weight, dy, dx, d_weight (added to, with weight only). */
static inline void reference_rope_backward(const int64_t *p, double *const *t)
{
    int64_t count = p[0] * p[1] * p[2], width = p[1] * p[2];
    double *y = calloc((size_t)count, sizeof *y);
    memset(t[3], 0, (size_t)count * sizeof *y);
    for (int64_t i = 0; i < p[0]; i++) {
        double *row[] = {t[0] + i * width, t[1], y};
        int64_t one[] = {1, p[1], p[2], p[3] + i % p[4], p[4], p[5], p[6]};
        differentiate(reference_rope, one, row, 0, width, 2, width, t[2] + i * width,
                      t[3] + i * width);
    }
    double *forward[] = {t[0], t[1], y};
    if (p[6]) differentiate(reference_rope, p, forward, 1, p[2], 2, count, t[2], t[4]);
    free(y);
}

static inline double gated(double gate, double up)
{
    return gate / (1 + exp(-gate)) * up;
}

/* p: count. t: gate, up, out. */
static inline void reference_swiglu_forward(const int64_t *p, double *const *t)
{
    for (int64_t i = 0; i < p[0]; i++) t[2][i] = gated(t[0][i], t[1][i]);
}

/* t: gate, up, d_out, d_gate, d_up, out. */
static inline void reference_swiglu_backward(const int64_t *p, double *const *t)
{
    for (int64_t i = 0; i < p[0]; i++) {
        double g = t[0][i], u = t[1][i], d = t[2][i] / (2 * STEP);
        t[3][i] = d * (gated(g + STEP, u) - gated(g - STEP, u));
        t[4][i] = d * (gated(g, u + STEP) - gated(g, u - STEP));
        t[5][i] = gated(g, u);
    }
}

static inline double row_loss(const double *x, int64_t vocab, int32_t target)
{
    double max = x[0], sum = 0;
    for (int64_t j = 0; j < vocab; j++) max = x[j] > max ? x[j] : max;
    for (int64_t j = 0; j < vocab; j++) sum += exp(x[j] - max);
    return max + log(sum) - x[target];
}

/* p: rows, vocab. t: logits (their gradient comes out), loss sum (added to). Scale is 0.01. */
static inline void reference_cross_entropy(const int64_t *p, double *const *t)
{
    double *gradient = calloc((size_t)p[1], sizeof *gradient);
    for (int64_t i = 0; i < p[0]; i++) {
        double *x = t[0] + i * p[1];
        int32_t target = id_at(i, p[1]);
        memset(gradient, 0, (size_t)p[1] * sizeof *gradient);
        if (target >= 0) t[1][0] += row_loss(x, p[1], target);
        for (int64_t j = 0; target >= 0 && j < p[1]; j++) {
            double before = x[j];
            x[j] = before + STEP;
            gradient[j] = row_loss(x, p[1], target);
            x[j] = before - STEP;
            gradient[j] = 0.01f * (gradient[j] - row_loss(x, p[1], target)) / (2 * STEP);
            x[j] = before;
        }
        memcpy(x, gradient, (size_t)p[1] * sizeof *gradient);
    }
    free(gradient);
}

/* p: batch, seq, heads, kv_heads, head_dim, group, first_head_in_group, accumulate. */
static inline struct up_attention_shape attention_shape(const int64_t *p)
{
    return (struct up_attention_shape){.batch = p[0],
                                       .seq = p[1],
                                       .heads = p[2],
                                       .kv_heads = p[3],
                                       .head_dim = p[4],
                                       .group = p[5],
                                       .first_head_in_group = p[6]};
}

/* Where a row of a tensor of `heads` heads begins. */
static inline double *attention_row(double *t, const int64_t *p, int64_t heads, int64_t b,
                                    int64_t row, int64_t head)
{
    return t + ((b * p[1] + row) * heads + head) * p[4];
}

static inline double dot(const double *x, const double *y, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += x[i] * y[i];
    return sum;
}

/* w[j] = softmax of query row i over keys j <= i; the log-sum-exp is returned. */
static inline double attention_weights(const int64_t *p, double *q, double *k, int64_t b,
                                       int64_t head, int64_t i, double *w)
{
    int64_t kv = (p[6] + head) / p[5];
    const double *query = attention_row(q, p, p[2], b, i, head);
    double sum = 0;
    for (int64_t j = 0; j <= i; j++) {
        w[j] = exp(dot(query, attention_row(k, p, p[3], b, j, kv), p[4]) / sqrt((double)p[4]));
        sum += w[j];
    }
    for (int64_t j = 0; j <= i; j++) w[j] /= sum;
    return log(sum);
}

/* t: q, k, v, o, lse. */
static inline void reference_attention_forward(const int64_t *p, double *const *t)
{
    double *w = calloc((size_t)p[1], sizeof *w);
    for (int64_t r = 0; r < p[0] * p[2] * p[1]; r++) {
        int64_t b = r / p[1] / p[2], head = r / p[1] % p[2], i = r % p[1];
        t[4][r] = attention_weights(p, t[0], t[1], b, head, i, w);
        double *o = attention_row(t[3], p, p[2], b, i, head);
        memset(o, 0, (size_t)p[4] * sizeof *o);
        for (int64_t j = 0; j <= i; j++) {
            const double *v = attention_row(t[2], p, p[3], b, j, (p[6] + head) / p[5]);
            for (int64_t d = 0; d < p[4]; d++) o[d] += w[j] * v[d];
        }
    }
    free(w);
}

/* t: q, k, v, d_o, dq, dk, dv; p[7] says whether dk and dv are added to. */
static inline void reference_attention_backward(const int64_t *p, double *const *t)
{
    size_t kv_count = (size_t)(p[0] * p[1] * p[3] * p[4]);
    double *w = calloc((size_t)p[1], sizeof *w), *dw = calloc((size_t)p[1], sizeof *dw);
    if (!p[7]) memset(t[5], 0, kv_count * sizeof *w), memset(t[6], 0, kv_count * sizeof *w);
    memset(t[4], 0, (size_t)(p[0] * p[1] * p[2] * p[4]) * sizeof *w);
    for (int64_t r = 0; r < p[0] * p[2] * p[1]; r++) {
        int64_t b = r / p[1] / p[2], head = r / p[1] % p[2], i = r % p[1],
                kv = (p[6] + head) / p[5];
        attention_weights(p, t[0], t[1], b, head, i, w);
        const double *q = attention_row(t[0], p, p[2], b, i, head);
        const double *d_o = attention_row(t[3], p, p[2], b, i, head);
        double mean = 0;
        for (int64_t j = 0; j <= i; j++) {
            dw[j] = dot(d_o, attention_row(t[2], p, p[3], b, j, kv), p[4]);
            mean += w[j] * dw[j];
        }
        for (int64_t j = 0; j <= i; j++) {
            double ds = w[j] * (dw[j] - mean) / sqrt((double)p[4]);
            const double *k = attention_row(t[1], p, p[3], b, j, kv);
            for (int64_t d = 0; d < p[4]; d++) {
                attention_row(t[4], p, p[2], b, i, head)[d] += ds * k[d];
                attention_row(t[5], p, p[3], b, j, kv)[d] += ds * q[d];
                attention_row(t[6], p, p[3], b, j, kv)[d] += w[j] * d_o[d];
            }
        }
    }
    free(w);
    free(dw);
}

/* p: count. t: x, sum (added to). */
static inline void reference_sum_squares(const int64_t *p, double *const *t)
{
    for (int64_t i = 0; i < p[0]; i++) t[1][0] += t[0][i] * t[0][i];
}

/* p: count, t, whether to clip. t: weight, m, v, gradient. */
static inline struct up_adamw_args adamw_settings(const int64_t *p)
{
    return (struct up_adamw_args){.count = p[0],
                                  .t = p[1],
                                  .lr = 1e-2,
                                  .beta1 = 0.9,
                                  .beta2 = 0.95,
                                  .epsilon = 1e-8,
                                  .decay = 0.1,
                                  .clip = p[2] ? 0.5 : 0};
}
static const double adamw_norm_squared = 2.25;

static inline void reference_adamw(const int64_t *p, double *const *t)
{
    struct up_adamw_args a = adamw_settings(p);
    double clip = a.clip != 0 ? fmin(1, a.clip / (sqrt(adamw_norm_squared) + 1e-6)) : 1;
    for (int64_t i = 0; i < p[0]; i++) {
        double g = t[3][i] * clip;
        t[1][i] = a.beta1 * t[1][i] + (1 - a.beta1) * g;
        t[2][i] = a.beta2 * t[2][i] + (1 - a.beta2) * g * g;
        double m = t[1][i] / (1 - pow(a.beta1, (double)a.t));
        double v = t[2][i] / (1 - pow(a.beta2, (double)a.t));
        t[0][i] = t[0][i] * (1 - a.lr * a.decay) - a.lr * m / (sqrt(v) + a.epsilon);
    }
}

/* p: blocks, rows, width, elements between blocks; whether from side by side (a row of all blocks
 * after the other) to blocks; whether to add. */
static inline struct up_regroup_args regroup_settings(const int64_t *p)
{
    int64_t blocks = p[0], rows = p[1], width = p[2], apart = rows * width + p[3];
    struct up_regroup_args a = {
        .blocks = blocks, .rows = rows, .width = width, .dtype = UP_F32, .add = p[5] != 0};
    a.from_block = p[4] ? width : apart;
    a.from_ld = p[4] ? blocks * width : width;
    a.to_block = p[4] ? apart : width;
    a.to_ld = p[4] ? width : blocks * width;
    return a;
}

#endif
