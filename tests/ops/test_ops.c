/* Every operation against plain fp64 (reference.h). The table at the end has the cases; to test an
 * operation on more shapes, add a row; to add an operation, add an `operands`, a `run` and a
 * reference.
 *
 * Each case is run with 1, 2 and 3 threads. Outputs hold NaN before the call where they are to be
 * written, and numbers where they are to be added to; inputs must come back unchanged; the results
 * must be close to the reference and equal, bit for bit, whatever the number of threads.
 */
#include "reference.h"

#include <omp.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <cmocka.h>

enum { MAX_OPERANDS = 7, MAX_SHAPE = 8, CONSTANT = -1 };

enum role {
    NONE,
    IN,
    OUT, // written
    ADD, // added to, or changed in place
};

struct operand {
    int64_t count;
    enum role role;
    bool positive;
};

struct op_case {
    const char *name;
    void (*operands)(const int64_t *p, struct operand *operands);
    void (*run)(const int64_t *p, float *const *t);
    reference_fn *reference;
    double tolerance; // norm of the difference over norm, for each output
    int64_t p[MAX_SHAPE];
    int alias[3][2]; // {output, input}: the output takes the input's place; {0} for none
};

static const double FORWARD = 2e-6, GRADIENT = 1e-5;

static void operands_matmul(const int64_t *p, struct operand *o)
{
    struct matmul_shape s = matmul_shape(p);
    o[0] = (struct operand){(s.transpose_a ? s.k : s.m) * s.lda, IN, false};
    o[1] = (struct operand){(s.transpose_b ? s.n : s.k) * s.ldb, IN, false};
    /* Padding must stay as it is, so C is a thing in place wherever it has some. */
    o[2] = (struct operand){s.m * s.ldc, s.beta == 0 && !p[6] ? OUT : ADD, false};
}

static void run_matmul(const int64_t *p, float *const *t)
{
    struct matmul_shape s = matmul_shape(p);
    up_cpu_matmul(&(struct up_matmul_args){.a = t[0],
                                           .b = t[1],
                                           .c = t[2],
                                           .m = s.m,
                                           .n = s.n,
                                           .k = s.k,
                                           .lda = s.lda,
                                           .ldb = s.ldb,
                                           .ldc = s.ldc,
                                           .transpose_a = s.transpose_a,
                                           .transpose_b = s.transpose_b,
                                           .beta = (float)s.beta});
}

static void operands_embed_forward(const int64_t *p, struct operand *o)
{
    o[0] = (struct operand){p[2] * p[1], IN, false};
    o[1] = (struct operand){p[0] * p[1], OUT, false};
}

static void run_embed_forward(const int64_t *p, float *const *t)
{
    int32_t *ids = make_ids(p[0], p[2]);
    up_cpu_embed_forward(&(struct up_embed_forward_args){
        .ids = ids, .table = t[0], .out = t[1], .rows = p[0], .width = p[1], .vocab = p[2]});
    free(ids);
}

static void operands_embed_backward(const int64_t *p, struct operand *o)
{
    o[0] = (struct operand){p[0] * p[1], IN, false};
    o[1] = (struct operand){p[2] * p[1], ADD, false};
}

static void run_embed_backward(const int64_t *p, float *const *t)
{
    int32_t *ids = make_ids(p[0], p[2]);
    up_cpu_embed_backward(&(struct up_embed_backward_args){
        .ids = ids, .d_out = t[0], .d_table = t[1], .rows = p[0], .width = p[1], .vocab = p[2]});
    free(ids);
}

static void operands_rmsnorm_forward(const int64_t *p, struct operand *o)
{
    o[0] = (struct operand){p[0] * p[1], IN, false};
    o[1] = (struct operand){p[1], IN, false};
    o[2] = (struct operand){p[0] * p[1], OUT, false};
}

static void run_rmsnorm_forward(const int64_t *p, float *const *t)
{
    up_cpu_rmsnorm_forward(&(struct up_rmsnorm_forward_args){.x = t[0],
                                                             .weight = t[1],
                                                             .y = t[2],
                                                             .rows = p[0],
                                                             .width = p[1],
                                                             .epsilon = NORM_EPSILON});
}

static void operands_rmsnorm_backward(const int64_t *p, struct operand *o)
{
    o[0] = (struct operand){p[0] * p[1], IN, false};
    o[1] = (struct operand){p[1], IN, false};
    o[2] = (struct operand){p[0] * p[1], IN, false};
    o[3] = (struct operand){p[0] * p[1], p[2] ? ADD : OUT, false};
    o[4] = (struct operand){p[1], ADD, false};
}

static void run_rmsnorm_backward(const int64_t *p, float *const *t)
{
    up_cpu_rmsnorm_backward(&(struct up_rmsnorm_backward_args){.x = t[0],
                                                               .weight = t[1],
                                                               .dy = t[2],
                                                               .dx = t[3],
                                                               .d_weight = t[4],
                                                               .rows = p[0],
                                                               .width = p[1],
                                                               .epsilon = NORM_EPSILON,
                                                               .accumulate = p[2]});
}

static void operands_rope(const int64_t *p, struct operand *o)
{
    int64_t count = p[0] * p[1] * p[2];
    o[0] = (struct operand){count, IN, false};
    o[1] = (struct operand){p[6] ? p[2] : 0, IN, false};
    o[2] = (struct operand){count, OUT, false};
}

static void run_rope(const int64_t *p, float *const *t)
{
    up_cpu_rope(&(struct up_rope_args){.x = t[0],
                                       .y = t[2],
                                       .weight = p[6] ? t[1] : NULL,
                                       .epsilon = NORM_EPSILON,
                                       .rows = p[0],
                                       .heads = p[1],
                                       .head_dim = p[2],
                                       .first_position = p[3],
                                       .period = p[4],
                                       .config = rope_config(p)});
}

static void operands_rope_backward(const int64_t *p, struct operand *o)
{
    int64_t count = p[0] * p[1] * p[2];
    o[0] = (struct operand){count, IN, false};
    o[1] = (struct operand){p[6] ? p[2] : 0, IN, false};
    o[2] = (struct operand){count, IN, false};
    o[3] = (struct operand){count, OUT, false};
    o[4] = (struct operand){p[6] ? p[2] : 0, ADD, false};
}

static void run_rope_backward(const int64_t *p, float *const *t)
{
    up_cpu_rope_backward(&(struct up_rope_backward_args){.dy = t[2],
                                                         .dx = t[3],
                                                         .x = p[6] ? t[0] : NULL,
                                                         .weight = p[6] ? t[1] : NULL,
                                                         .d_weight = p[6] ? t[4] : NULL,
                                                         .epsilon = NORM_EPSILON,
                                                         .rows = p[0],
                                                         .heads = p[1],
                                                         .head_dim = p[2],
                                                         .first_position = p[3],
                                                         .period = p[4],
                                                         .config = rope_config(p)});
}

static void operands_attention_forward(const int64_t *p, struct operand *o)
{
    int64_t count = p[0] * p[1] * p[2] * p[4], kv_count = p[0] * p[1] * p[3] * p[4];
    o[0] = (struct operand){count, IN, false};
    o[1] = o[2] = (struct operand){kv_count, IN, false};
    o[3] = (struct operand){count, OUT, false};
    o[4] = (struct operand){p[0] * p[2] * p[1], OUT, false};
}

static void run_attention_forward(const int64_t *p, float *const *t)
{
    up_cpu_attention_forward(&(struct up_attention_forward_args){
        .q = t[0], .k = t[1], .v = t[2], .o = t[3], .lse = t[4], .shape = attention_shape(p)});
}

static void operands_attention_backward(const int64_t *p, struct operand *o)
{
    int64_t count = p[0] * p[1] * p[2] * p[4], kv_count = p[0] * p[1] * p[3] * p[4];
    o[0] = o[3] = (struct operand){count, IN, false};
    o[1] = o[2] = (struct operand){kv_count, IN, false};
    o[4] = (struct operand){count, OUT, false};
    o[5] = o[6] = (struct operand){kv_count, p[7] ? ADD : OUT, false};
}

/* Output and log-sum-exp come from the forward pass; scratch starts as NaN. */
static void run_attention_backward(const int64_t *p, float *const *t)
{
    size_t rows = (size_t)(p[0] * p[1] * p[2]);
    struct up_attention_shape shape = attention_shape(p);
    size_t bytes = (size_t)up_scratch_attention_backward(UP_DEVICE_CPU, &shape, p[7]);
    float *o = malloc(rows * (size_t)p[4] * sizeof *o + 1), *lse = malloc(rows * sizeof *lse + 1);
    void *scratch = malloc(bytes + 1);
    memset(scratch, 0xff, bytes);
    run_attention_forward(p, (float *[]){t[0], t[1], t[2], o, lse});
    up_cpu_attention_backward(&(struct up_attention_backward_args){.q = t[0],
                                                                   .k = t[1],
                                                                   .v = t[2],
                                                                   .o = o,
                                                                   .d_o = t[3],
                                                                   .lse = lse,
                                                                   .dq = t[4],
                                                                   .dk = t[5],
                                                                   .dv = t[6],
                                                                   .scratch = scratch,
                                                                   .accumulate = p[7],
                                                                   .shape = attention_shape(p)});
    free(scratch);
    free(lse);
    free(o);
}

static void operands_swiglu_forward(const int64_t *p, struct operand *o)
{
    o[0] = o[1] = (struct operand){p[0], IN, false};
    o[2] = (struct operand){p[0], OUT, false};
}

static void run_swiglu_forward(const int64_t *p, float *const *t)
{
    up_cpu_swiglu_forward(
        &(struct up_swiglu_forward_args){.gate = t[0], .up = t[1], .out = t[2], .count = p[0]});
}

static void operands_swiglu_backward(const int64_t *p, struct operand *o)
{
    o[0] = o[1] = o[2] = (struct operand){p[0], IN, false};
    o[3] = o[4] = o[5] = (struct operand){p[0], OUT, false};
}

static void run_swiglu_backward(const int64_t *p, float *const *t)
{
    up_cpu_swiglu_backward(&(struct up_swiglu_backward_args){.gate = t[0],
                                                             .up = t[1],
                                                             .d_out = t[2],
                                                             .d_gate = t[3],
                                                             .d_up = t[4],
                                                             .out = t[5],
                                                             .count = p[0]});
}

static void operands_cross_entropy(const int64_t *p, struct operand *o)
{
    o[0] = (struct operand){p[0] * p[1], ADD, false};
    o[1] = (struct operand){1, ADD, false};
}

static void run_cross_entropy(const int64_t *p, float *const *t)
{
    int32_t *targets = make_ids(p[0], p[1]);
    double sum = (double)t[1][0];
    up_cpu_cross_entropy(&(struct up_cross_entropy_args){.logits = t[0],
                                                         .targets = targets,
                                                         .loss_sum = &sum,
                                                         .scale = 0.01f,
                                                         .rows = p[0],
                                                         .vocab = p[1]});
    t[1][0] = (float)sum;
    free(targets);
}

static void operands_sum_squares(const int64_t *p, struct operand *o)
{
    o[0] = (struct operand){p[0], IN, false};
    o[1] = (struct operand){1, ADD, false};
}

static void run_sum_squares(const int64_t *p, float *const *t)
{
    double sum = (double)t[1][0];
    up_cpu_sum_squares(&(struct up_sum_squares_args){.x = t[0], .sum = &sum, .count = p[0]});
    t[1][0] = (float)sum;
}

static void operands_adamw(const int64_t *p, struct operand *o)
{
    o[0] = o[1] = (struct operand){p[0], ADD, false};
    o[2] = (struct operand){p[0], ADD, true};
    o[3] = (struct operand){p[0], IN, false};
}

static void run_adamw(const int64_t *p, float *const *t)
{
    struct up_adamw_args a = adamw_settings(p);
    a.weight = t[0];
    a.m = t[1];
    a.v = t[2];
    a.gradient = t[3];
    a.norm_squared = &adamw_norm_squared;
    up_cpu_adamw(&a);
}

/* p: bytes, a multiple of 4. */
static void operands_fill(const int64_t *p, struct operand *o)
{
    o[0] = (struct operand){p[0] / 4, OUT, false};
}

static void run_fill(const int64_t *p, float *const *t)
{
    up_cpu_fill(&(struct up_fill_args){.x = t[0], .bytes = p[0]});
}

static void reference_fill(const int64_t *p, double *const *t)
{
    memset(t[0], 0, (size_t)p[0] / 4 * sizeof(double));
}

/* fp32 to bf16 and back; numbers between are in test_edges.c. */
static void operands_cast(const int64_t *p, struct operand *o)
{
    o[0] = (struct operand){p[0], IN, false};
    o[1] = o[2] = (struct operand){p[0], OUT, false};
}

static void run_cast(const int64_t *p, float *const *t)
{
    uint16_t *narrow = malloc((size_t)p[0] * sizeof *narrow + 1);
    up_cpu_cast(&(struct up_cast_args){t[0], narrow, p[0], UP_F32, UP_BF16});
    up_cpu_cast(&(struct up_cast_args){narrow, t[1], p[0], UP_BF16, UP_F32});
    up_cpu_cast(&(struct up_cast_args){t[0], t[2], p[0], UP_F32, UP_F32});
    free(narrow);
}

/* p: count. */
static void operands_add(const int64_t *p, struct operand *o)
{
    o[0] = (struct operand){p[0], IN, false};
    o[1] = (struct operand){p[0], ADD, false};
}

static void run_add(const int64_t *p, float *const *t)
{
    up_cpu_add(&(struct up_add_args){t[0], t[1], p[0], UP_F32});
}

static void reference_add(const int64_t *p, double *const *t)
{
    for (int64_t i = 0; i < p[0]; i++) t[1][i] += t[0][i];
}

static void operands_regroup(const int64_t *p, struct operand *o)
{
    int64_t together = p[0] * p[1] * p[2], apart = p[0] * (p[1] * p[2] + p[3]);
    o[0] = (struct operand){p[4] ? together : apart, IN, false};
    o[1] = (struct operand){p[4] ? apart : together, ADD, false};
}

static void run_regroup(const int64_t *p, float *const *t)
{
    struct up_regroup_args a = regroup_settings(p);
    a.from = t[0];
    a.to = t[1];
    up_cpu_regroup(&a);
}

static void reference_regroup(const int64_t *p, double *const *t)
{
    struct up_regroup_args a = regroup_settings(p);
    for (int64_t b = 0; b < a.blocks; b++)
        for (int64_t i = 0; i < a.rows; i++)
            for (int64_t j = 0; j < a.width; j++) {
                double *to = &t[1][b * a.to_block + i * a.to_ld + j];
                *to = (a.add ? *to : 0) + t[0][b * a.from_block + i * a.from_ld + j];
            }
}

/* Rounded to 8 significant bits, ties to even. */
static void reference_cast(const int64_t *p, double *const *t)
{
    for (int64_t i = 0; i < p[0]; i++) {
        int exponent;
        double mantissa = frexp(t[0][i], &exponent);
        t[1][i] = ldexp(nearbyint(mantissa * 256), exponent - 8);
        t[2][i] = t[0][i];
    }
}

#define CASE(op, tolerance, ...)                                                                   \
    {                                                                                              \
#op, operands_##op, run_##op, reference_##op, tolerance, {__VA_ARGS__ },                   \
        {                                                                                          \
            {                                                                                      \
                0                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }
#define CASE_IN_PLACE(op, tolerance, aliases, ...)                                                 \
    {                                                                                              \
#op, operands_##op, run_##op, reference_##op, tolerance, {__VA_ARGS__ }, aliases           \
    }
#define ONTO(...)                                                                                  \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* Shapes are in the order that reference.h tells for the operation. */
static const struct op_case cases[] = {
    CASE(matmul, FORWARD, 1, 1, 1, 0, 0, 0, 0),
    CASE(matmul, FORWARD, 300, 200, 777, 0, 0, 0, 0),
    CASE(matmul, FORWARD, 131, 257, 500, 0, 1, 1, 3),
    CASE(matmul, FORWARD, 70, 90, 1000, 1, 0, 1, 0),
    CASE(matmul, FORWARD, 33, 65, 17, 1, 1, 2, 5),
    CASE(matmul, FORWARD, 1100, 30, 40, 0, 1, 0, 7),
    CASE(matmul, FORWARD, 20, 1030, 40, 1, 0, 0, 1),
    CASE(matmul, FORWARD, 40, 50, 0, 0, 0, 0, 0),
    CASE(matmul, FORWARD, 40, 50, 0, 0, 0, 1, 0),
    CASE(matmul, FORWARD, 40, 50, 0, 0, 0, 2, 3),
    CASE(matmul, FORWARD, 0, 50, 30, 0, 0, 1, 0),
    CASE(matmul, FORWARD, 40, 0, 30, 0, 0, 0, 0),
    CASE(embed_forward, 0, 100, 33, 11),
    CASE(embed_forward, 0, 0, 33, 11),
    CASE(embed_backward, FORWARD, 1000, 75, 11),
    CASE(embed_backward, FORWARD, 4, 32, 300),
    CASE(rmsnorm_forward, FORWARD, 7, 1031),
    CASE(rmsnorm_forward, FORWARD, 0, 8),
    CASE_IN_PLACE(rmsnorm_forward, FORWARD, ONTO({2, 0}), 130, 48),
    CASE(rmsnorm_backward, GRADIENT, 261, 67, 0),
    CASE(rmsnorm_backward, GRADIENT, 261, 67, 1),
    CASE(rmsnorm_backward, GRADIENT, 1, 300, 1),
    CASE_IN_PLACE(rmsnorm_backward, GRADIENT, ONTO({3, 0}), 140, 130, 0),
    CASE_IN_PLACE(rmsnorm_backward, GRADIENT, ONTO({3, 2}), 140, 130, 0),
    CASE(rope, FORWARD, 37, 3, 10, 0, 37, 0, 0),
    CASE(rope, FORWARD, 34, 3, 16, 5000000, 17, 1, 1),
    CASE_IN_PLACE(rope, FORWARD, ONTO({2, 0}), 20, 2, 130, 7, 20, 1, 0),
    CASE_IN_PLACE(rope, FORWARD, ONTO({2, 0}), 20, 2, 64, 7, 10, 0, 1),
    CASE(rope_backward, GRADIENT, 37, 3, 10, 0, 37, 0, 0),
    CASE(rope_backward, GRADIENT, 34, 3, 16, 5000000, 17, 1, 1),
    CASE_IN_PLACE(rope_backward, GRADIENT, ONTO({3, 2}), 20, 2, 64, 7, 10, 1, 0),
    CASE_IN_PLACE(rope_backward, GRADIENT, ONTO({3, 2}), 35, 2, 34, 7, 35, 0, 1),
    CASE(attention_forward, FORWARD, 1, 1, 1, 1, 4, 1, 0),
    CASE(attention_forward, FORWARD, 2, 150, 4, 2, 16, 2, 0),
    CASE(attention_forward, FORWARD, 1, 385, 3, 2, 20, 4, 2),
    CASE(attention_forward, FORWARD, 1, 128, 2, 2, 256, 1, 0),
    CASE(attention_forward, FORWARD, 3, 129, 1, 1, 7, 8, 5),
    CASE(attention_forward, FORWARD, 1, 0, 2, 1, 8, 2, 0),
    CASE(attention_backward, GRADIENT, 1, 1, 1, 1, 4, 1, 0, 0),
    CASE(attention_backward, GRADIENT, 2, 150, 4, 2, 16, 2, 0, 0),
    CASE(attention_backward, GRADIENT, 1, 385, 3, 2, 20, 4, 2, 1),
    CASE(attention_backward, GRADIENT, 1, 257, 2, 2, 128, 1, 0, 0),
    CASE(attention_backward, GRADIENT, 5, 260, 8, 4, 8, 2, 0, 1),
    CASE(attention_backward, GRADIENT, 1, 2500, 1, 1, 4, 8, 5, 0),
    CASE(attention_backward, GRADIENT, 1, 140, 1, 3, 8, 2, 3 - 2, 0),
    CASE_IN_PLACE(attention_backward, GRADIENT, ONTO({4, 3}), 1, 2500, 2, 1, 4, 2, 0, 0),
    CASE_IN_PLACE(attention_backward, GRADIENT, ONTO({4, 3}), 5, 300, 8, 4, 12, 2, 0, 1),
    CASE(swiglu_forward, FORWARD, 50001),
    CASE_IN_PLACE(swiglu_forward, FORWARD, ONTO({2, 0}), 20000),
    CASE_IN_PLACE(swiglu_forward, FORWARD, ONTO({2, 1}), 20000),
    CASE(swiglu_backward, GRADIENT, 50001),
    CASE_IN_PLACE(swiglu_backward, GRADIENT, ONTO({3, 0}, {4, 1}, {5, 2}), 20000),
    CASE(cross_entropy, GRADIENT, 130, 37),
    CASE(cross_entropy, GRADIENT, 5, 2100),
    CASE(cross_entropy, GRADIENT, 0, 10),
    CASE(sum_squares, FORWARD, 100003),
    CASE(sum_squares, FORWARD, 0),
    CASE(adamw, FORWARD, 40001, 1, 1),
    CASE(adamw, FORWARD, 100, 1000, 0),
    CASE(fill, 0, 300000),
    CASE(fill, 0, 0),
    CASE(cast, 0, 40001),
    CASE(add, FORWARD, 40001),
    CASE(add, FORWARD, 0),
    CASE(regroup, 0, 4, 33, 16, 0, 0, 0),
    CASE(regroup, FORWARD, 3, 7, 5, 11, 0, 1),
    CASE(regroup, 0, 4, 33, 16, 8, 1, 0),
    CASE(regroup, FORWARD, 2, 50, 9, 3, 1, 1),
    CASE(regroup, 0, 1, 20, 24, 0, 1, 0),
    CASE(regroup, 0, 3, 0, 8, 0, 0, 0),
};

/* A case's operands: as fp32, and the reference's. Aliased outputs share the input's fp32 memory.
 */
struct tensors {
    struct operand operands[MAX_OPERANDS];
    int alias[MAX_OPERANDS]; // whose memory an operand uses; itself mostly
    float *actual[MAX_OPERANDS];
    double *expected[MAX_OPERANDS];
    float *first[MAX_OPERANDS]; // what one thread gave
};

static float start_value(const struct operand *operand, int index, int64_t i)
{
    if (operand->role == OUT) return NAN;
    float x = up_random_normal(7, (uint64_t)index, (uint64_t)i);
    return operand->positive ? fabsf(x) : x;
}

static void fill_actual(struct tensors *t)
{
    for (int k = 0; k < MAX_OPERANDS; k++)
        for (int64_t i = 0; t->alias[k] == k && i < t->operands[k].count; i++)
            t->actual[k][i] = start_value(&t->operands[k], k, i);
}

static void tensors_init(struct tensors *t, const struct op_case *c)
{
    memset(t, 0, sizeof *t);
    c->operands(c->p, t->operands);
    for (int k = 0; k < MAX_OPERANDS; k++) t->alias[k] = k;
    for (int k = 0; k < 2; k++)
        if (c->alias[k][0]) t->alias[c->alias[k][0]] = c->alias[k][1];
    for (int k = 0; k < MAX_OPERANDS; k++) {
        size_t count = (size_t)t->operands[k].count;
        if (t->alias[k] == k) t->actual[k] = malloc(count * sizeof(float));
        t->first[k] = malloc(count * sizeof(float));
        t->expected[k] = malloc(count * sizeof(double));
        for (size_t i = 0; i < count; i++)
            t->expected[k][i] = (double)start_value(&t->operands[k], k, (int64_t)i);
    }
    for (int k = 0; k < MAX_OPERANDS; k++) t->actual[k] = t->actual[t->alias[k]];
    c->reference(c->p, t->expected);
}

static void tensors_release(struct tensors *t)
{
    for (int k = 0; k < MAX_OPERANDS; k++) {
        if (t->alias[k] == k) free(t->actual[k]);
        free(t->first[k]);
        free(t->expected[k]);
    }
}

/* Norm of the difference over norm; where nothing is expected but zeroes, the norm itself. */
static double relative_error(const float *actual, const double *expected, int64_t count)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        double d = (double)actual[i] - expected[i];
        difference += d * d;
        norm += expected[i] * expected[i];
    }
    return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}

static bool overwritten(const struct tensors *t, int operand)
{
    for (int k = 0; k < MAX_OPERANDS; k++)
        if (k != operand && t->alias[k] == operand) return true;
    return false;
}

static void check_operand(const struct op_case *c, const struct tensors *t, int k, int threads)
{
    const struct operand *o = &t->operands[k];
    if (o->role == NONE || overwritten(t, k)) return;
    double error = relative_error(t->actual[k], t->expected[k], o->count);
    double allowed = o->role == IN ? 0 : c->tolerance;
    if (!(error <= allowed))
        fail_msg("%s %ld,%ld,%ld,...: operand %d is off by %g with %d threads", c->name,
                 (long)c->p[0], (long)c->p[1], (long)c->p[2], k, error, threads);
    size_t bytes = (size_t)o->count * sizeof(float);
    if (threads == 1)
        memcpy(t->first[k], t->actual[k], bytes);
    else if (memcmp(t->first[k], t->actual[k], bytes) != 0)
        fail_msg("%s %ld,%ld,%ld,...: operand %d differs with %d threads", c->name, (long)c->p[0],
                 (long)c->p[1], (long)c->p[2], k, threads);
}

static void run_case(const struct op_case *c)
{
    struct tensors t;
    tensors_init(&t, c);
    for (int threads = 1; threads <= 3; threads++) {
        omp_set_num_threads(threads);
        fill_actual(&t);
        c->run(c->p, t.actual);
        for (int k = 0; k < MAX_OPERANDS; k++) check_operand(c, &t, k, threads);
    }
    tensors_release(&t);
}

static void test_cases(void **state)
{
    (void)state;
    for (int i = 0; i < UP_COUNT(cases); i++) run_case(&cases[i]);
}

static void test_every_operation_has_a_case(void **state)
{
    (void)state;
#define UP_OP(name) #name,
    const char *const names[] = {
#include "ops/ops.def"
    };
#undef UP_OP
    for (int i = 0; i < UP_COUNT(names); i++) {
        bool found = false;
        for (int j = 0; j < UP_COUNT(cases); j++) found |= strcmp(names[i], cases[j].name) == 0;
        if (!found) fail_msg("%s has no case", names[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_operation_has_a_case),
        cmocka_unit_test(test_cases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
