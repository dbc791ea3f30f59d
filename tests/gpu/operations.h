/* What the operations' operands are, how each is run on either side, and how far apart the two
 * sides' results may be. Shapes come as p[0], p[1], ...: each pair of functions says which is
 * which, where tests/ops/reference.h does not.
 */
#ifndef UP_TESTS_GPU_OPERATIONS_H
#define UP_TESTS_GPU_OPERATIONS_H

#include "rig.h"
#include "tests/ops/reference.h"

enum { MAX_OPERANDS = 10 };

enum role {
    NONE,
    IN,
    OUT,  // written
    ADD,  // added to, or changed in place
    WORK, // written, of no interest
};

/* FLOAT: the dtype that the operation is run with; on cpu fp32. */
enum type { FLOAT, BF16, F32, F64, IDS };

struct operand {
    enum type type;
    enum role role;
    int64_t count;
    int64_t vocab; // of ids
    double fixed;  // all elements are this; 0: random
    bool positive;
};

/* One side of a test, cpu or GPU. */
struct side {
    struct up_rank *rank; // NULL: cpu
    enum up_dtype dtype;
    struct operand operands[MAX_OPERANDS];
    void *t[MAX_OPERANDS]; // the operands' memory
};

struct op {
    const char *name;
    void (*operands)(const int64_t *p, enum up_device_kind kind, struct operand *o);
    void (*run)(const int64_t *p, const struct side *side);
    double bf16, fp32; // what rig_error may be for outputs of that dtype when they are FLOAT,
    double wide;       // and for outputs whose dtype does not depend on what is tested
    double floor;      // of rig_error
    bool repeatable;   // the same bits whenever it is run
};

static struct operand operand(enum type type, enum role role, int64_t count)
{
    return (struct operand){.type = type, .role = role, .count = count};
}

static struct operand ids(int64_t count, int64_t vocab)
{
    return (struct operand){.type = IDS, .role = IN, .count = count, .vocab = vocab};
}

#define RUN(op, ...)                                                                               \
    do {                                                                                           \
        struct up_##op##_args args = {__VA_ARGS__};                                                \
        if (side->rank)                                                                            \
            up_op_##op(side->rank, UP_STREAM_COMPUTE, &args);                                      \
        else                                                                                       \
            up_cpu_##op(&args);                                                                    \
    } while (0)

/* p as in reference.h, and p[7]: C is fp32 whatever A and B are. */
static void operands_matmul(const int64_t *p, enum up_device_kind kind, struct operand *o)
{
    (void)kind;
    struct matmul_shape s = matmul_shape(p);
    o[0] = operand(FLOAT, IN, (s.transpose_a ? s.k : s.m) * s.lda);
    o[1] = operand(FLOAT, IN, (s.transpose_b ? s.n : s.k) * s.ldb);
    /* Padding must stay as it is, so C is a thing in place wherever it has some. */
    o[2] = operand(p[7] ? F32 : FLOAT, s.beta == 0 && !p[6] ? OUT : ADD, s.m * s.ldc);
}

static void run_matmul(const int64_t *p, const struct side *side)
{
    struct matmul_shape s = matmul_shape(p);
    RUN(matmul, .a = side->t[0], .b = side->t[1], .c = side->t[2], .m = s.m, .n = s.n, .k = s.k,
        .lda = s.lda, .ldb = s.ldb, .ldc = s.ldc, .transpose_a = s.transpose_a,
        .transpose_b = s.transpose_b, .beta = (float)s.beta, .dtype = side->dtype,
        .c_dtype = p[7] ? UP_F32 : side->dtype);
}

/* p: rows, width, vocab. */
static void operands_embed_forward(const int64_t *p, enum up_device_kind kind, struct operand *o)
{
    (void)kind;
    o[0] = ids(p[0], p[2]);
    o[1] = operand(FLOAT, IN, p[2] * p[1]);
    o[2] = operand(FLOAT, OUT, p[0] * p[1]);
}

static void run_embed_forward(const int64_t *p, const struct side *side)
{
    RUN(embed_forward, .ids = side->t[0], .table = side->t[1], .out = side->t[2], .rows = p[0],
        .width = p[1], .vocab = p[2], .dtype = side->dtype);
}

static void operands_embed_backward(const int64_t *p, enum up_device_kind kind, struct operand *o)
{
    (void)kind;
    o[0] = ids(p[0], p[2]);
    o[1] = operand(FLOAT, IN, p[0] * p[1]);
    o[2] = operand(F32, ADD, p[2] * p[1]);
}

static void run_embed_backward(const int64_t *p, const struct side *side)
{
    RUN(embed_backward, .ids = side->t[0], .d_out = side->t[1], .d_table = side->t[2], .rows = p[0],
        .width = p[1], .vocab = p[2], .dtype = side->dtype);
}

/* p: rows, width. */
static void operands_rmsnorm_forward(const int64_t *p, enum up_device_kind kind, struct operand *o)
{
    (void)kind;
    o[0] = operand(FLOAT, IN, p[0] * p[1]);
    o[1] = operand(FLOAT, IN, p[1]);
    o[2] = operand(FLOAT, OUT, p[0] * p[1]);
}

static void run_rmsnorm_forward(const int64_t *p, const struct side *side)
{
    RUN(rmsnorm_forward, .x = side->t[0], .weight = side->t[1], .y = side->t[2], .rows = p[0],
        .width = p[1], .epsilon = NORM_EPSILON, .dtype = side->dtype);
}

/* p: rows, width, accumulate. */
static void operands_rmsnorm_backward(const int64_t *p, enum up_device_kind kind, struct operand *o)
{
    (void)kind;
    o[0] = operand(FLOAT, IN, p[0] * p[1]);
    o[1] = operand(FLOAT, IN, p[1]);
    o[2] = operand(FLOAT, IN, p[0] * p[1]);
    o[3] = operand(FLOAT, p[2] ? ADD : OUT, p[0] * p[1]);
    o[4] = operand(F32, ADD, p[1]);
}

static void run_rmsnorm_backward(const int64_t *p, const struct side *side)
{
    RUN(rmsnorm_backward, .x = side->t[0], .weight = side->t[1], .dy = side->t[2], .dx = side->t[3],
        .d_weight = side->t[4], .rows = p[0], .width = p[1], .epsilon = NORM_EPSILON,
        .accumulate = p[2], .dtype = side->dtype);
}

/* p: rows, heads, head_dim, first position, period, llama3, with weight. */
static void operands_rope(const int64_t *p, enum up_device_kind kind, struct operand *o)
{
    (void)kind;
    o[0] = operand(FLOAT, IN, p[0] * p[1] * p[2]);
    o[1] = operand(FLOAT, IN, p[6] ? p[2] : 0);
    o[2] = operand(FLOAT, OUT, p[0] * p[1] * p[2]);
}

static void run_rope(const int64_t *p, const struct side *side)
{
    RUN(rope, .x = side->t[0], .y = side->t[2], .weight = p[6] ? side->t[1] : NULL,
        .epsilon = NORM_EPSILON, .rows = p[0], .heads = p[1], .head_dim = p[2],
        .first_position = p[3], .period = p[4], .config = rope_config(p), .dtype = side->dtype);
}

static void operands_rope_backward(const int64_t *p, enum up_device_kind kind, struct operand *o)
{
    (void)kind;
    int64_t count = p[0] * p[1] * p[2];
    o[0] = operand(FLOAT, IN, p[6] ? count : 0);
    o[1] = operand(FLOAT, IN, p[6] ? p[2] : 0);
    o[2] = operand(FLOAT, IN, count);
    o[3] = operand(FLOAT, OUT, count);
    o[4] = operand(F32, ADD, p[6] ? p[2] : 0);
}

static void run_rope_backward(const int64_t *p, const struct side *side)
{
    RUN(rope_backward, .dy = side->t[2], .dx = side->t[3], .x = p[6] ? side->t[0] : NULL,
        .weight = p[6] ? side->t[1] : NULL, .d_weight = p[6] ? side->t[4] : NULL,
        .epsilon = NORM_EPSILON, .rows = p[0], .heads = p[1], .head_dim = p[2],
        .first_position = p[3], .period = p[4], .config = rope_config(p), .dtype = side->dtype);
}

/* p as in reference.h: batch, seq, heads, kv_heads, head_dim, group, first head, accumulate. */
static void operands_attention_forward(const int64_t *p, enum up_device_kind kind,
                                       struct operand *o)
{
    (void)kind;
    int64_t rows = p[0] * p[1];
    o[0] = operand(FLOAT, IN, rows * p[2] * p[4]);
    o[1] = o[2] = operand(FLOAT, IN, rows * p[3] * p[4]);
    o[3] = operand(FLOAT, OUT, rows * p[2] * p[4]);
    o[4] = operand(F32, OUT, rows * p[2]);
}

static void run_attention_forward(const int64_t *p, const struct side *side)
{
    RUN(attention_forward, .q = side->t[0], .k = side->t[1], .v = side->t[2], .o = side->t[3],
        .lse = side->t[4], .shape = attention_shape(p), .dtype = side->dtype);
}

/* o and its log-sum-exp come from each side's own forward pass. */
static void operands_attention_backward(const int64_t *p, enum up_device_kind kind,
                                        struct operand *o)
{
    struct up_attention_shape shape = attention_shape(p);
    int64_t bytes = up_scratch_attention_backward(kind, &shape, p[7]);
    operands_attention_forward(p, kind, o);
    o[3].role = o[4].role = WORK;
    o[5] = operand(FLOAT, IN, o[0].count);
    o[6] = operand(FLOAT, OUT, o[0].count);
    o[7] = o[8] = operand(FLOAT, p[7] ? ADD : OUT, o[1].count);
    o[9] = operand(F32, WORK, up_ceil_div(bytes, (int64_t)sizeof(float)));
}

static void run_attention_backward(const int64_t *p, const struct side *side)
{
    run_attention_forward(p, side);
    RUN(attention_backward, .q = side->t[0], .k = side->t[1], .v = side->t[2], .o = side->t[3],
        .lse = side->t[4], .d_o = side->t[5], .dq = side->t[6], .dk = side->t[7], .dv = side->t[8],
        .scratch = side->t[9], .accumulate = p[7], .shape = attention_shape(p),
        .dtype = side->dtype);
}

/* p: count. */
static void operands_swiglu_forward(const int64_t *p, enum up_device_kind kind, struct operand *o)
{
    (void)kind;
    o[0] = o[1] = operand(FLOAT, IN, p[0]);
    o[2] = operand(FLOAT, OUT, p[0]);
}

static void run_swiglu_forward(const int64_t *p, const struct side *side)
{
    RUN(swiglu_forward, .gate = side->t[0], .up = side->t[1], .out = side->t[2], .count = p[0],
        .dtype = side->dtype);
}

static void operands_swiglu_backward(const int64_t *p, enum up_device_kind kind, struct operand *o)
{
    (void)kind;
    o[0] = o[1] = o[2] = operand(FLOAT, IN, p[0]);
    o[3] = o[4] = o[5] = operand(FLOAT, OUT, p[0]);
}

static void run_swiglu_backward(const int64_t *p, const struct side *side)
{
    RUN(swiglu_backward, .gate = side->t[0], .up = side->t[1], .d_out = side->t[2],
        .d_gate = side->t[3], .d_up = side->t[4], .out = side->t[5], .count = p[0],
        .dtype = side->dtype);
}

/* p: rows, vocab. */
static void operands_cross_entropy(const int64_t *p, enum up_device_kind kind, struct operand *o)
{
    (void)kind;
    o[0] = operand(FLOAT, ADD, p[0] * p[1]);
    o[1] = ids(p[0], p[1]);
    o[2] = operand(F64, ADD, 1);
}

static void run_cross_entropy(const int64_t *p, const struct side *side)
{
    RUN(cross_entropy, .logits = side->t[0], .targets = side->t[1], .loss_sum = side->t[2],
        .scale = 0.01f, .rows = p[0], .vocab = p[1], .dtype = side->dtype);
}

/* p: number of two bytes. */
static void operands_fill(const int64_t *p, enum up_device_kind kind, struct operand *o)
{
    (void)kind;
    o[0] = operand(BF16, OUT, p[0]);
}

static void run_fill(const int64_t *p, const struct side *side)
{
    RUN(fill, .x = side->t[0], .bytes = 2 * p[0]);
}

/* From fp32 to both, and from bf16 to both. */
static void operands_cast(const int64_t *p, enum up_device_kind kind, struct operand *o)
{
    (void)kind;
    o[0] = operand(F32, IN, p[0]);
    o[1] = operand(BF16, IN, p[0]);
    o[2] = o[4] = operand(F32, OUT, p[0]);
    o[3] = o[5] = operand(BF16, OUT, p[0]);
}

static void run_cast(const int64_t *p, const struct side *side)
{
    RUN(cast, side->t[0], side->t[2], p[0], UP_F32, UP_F32);
    RUN(cast, side->t[0], side->t[3], p[0], UP_F32, UP_BF16);
    RUN(cast, side->t[1], side->t[4], p[0], UP_BF16, UP_F32);
    RUN(cast, side->t[1], side->t[5], p[0], UP_BF16, UP_BF16);
}

static void operands_add(const int64_t *p, enum up_device_kind kind, struct operand *o)
{
    (void)kind;
    o[0] = operand(FLOAT, IN, p[0]);
    o[1] = operand(FLOAT, ADD, p[0]);
}

static void run_add(const int64_t *p, const struct side *side)
{
    RUN(add, .x = side->t[0], .y = side->t[1], .count = p[0], .dtype = side->dtype);
}

static void operands_regroup(const int64_t *p, enum up_device_kind kind, struct operand *o)
{
    int64_t together = p[0] * p[1] * p[2], apart = p[0] * (p[1] * p[2] + p[3]);
    (void)kind;
    o[0] = operand(FLOAT, IN, p[4] ? together : apart);
    o[1] = operand(FLOAT, ADD, p[4] ? apart : together);
}

static void run_regroup(const int64_t *p, const struct side *side)
{
    struct up_regroup_args a = regroup_settings(p);
    RUN(regroup, .from = side->t[0], .to = side->t[1], .blocks = a.blocks, .rows = a.rows,
        .width = a.width, .from_block = a.from_block, .from_ld = a.from_ld, .to_block = a.to_block,
        .to_ld = a.to_ld, .dtype = side->dtype, .add = a.add);
}

static void operands_sum_squares(const int64_t *p, enum up_device_kind kind, struct operand *o)
{
    (void)kind;
    o[0] = operand(F32, IN, p[0]);
    o[1] = operand(F64, ADD, 1);
}

static void run_sum_squares(const int64_t *p, const struct side *side)
{
    RUN(sum_squares, .x = side->t[0], .sum = side->t[1], .count = p[0]);
}

/* p: count, t, whether to clip. */
static void operands_adamw(const int64_t *p, enum up_device_kind kind, struct operand *o)
{
    (void)kind;
    o[0] = o[1] = operand(F32, ADD, p[0]);
    o[2] = operand(F32, ADD, p[0]);
    o[2].positive = true;
    o[3] = operand(F32, IN, p[0]);
    o[4] = operand(F64, IN, 1);
    o[4].fixed = adamw_norm_squared;
}

static void run_adamw(const int64_t *p, const struct side *side)
{
    struct up_adamw_args a = adamw_settings(p);
    RUN(adamw, .weight = side->t[0], .m = side->t[1], .v = side->t[2], .gradient = side->t[3],
        .norm_squared = side->t[4], .count = a.count, .t = a.t, .lr = a.lr, .beta1 = a.beta1,
        .beta2 = a.beta2, .epsilon = a.epsilon, .decay = a.decay, .clip = a.clip);
}

#define OP(name, ...) [OP_##name] = {#name, operands_##name, run_##name, __VA_ARGS__}

enum op_index {
#define UP_OP(name) OP_##name,
#include "ops/ops.def"
#undef UP_OP
};

/* Rounding an output to bf16 costs 1.7e-3, the kernels' fp32 arithmetic less than 1e-5. Matrix
 * units add up in fp32 but round their sums towards zero. */
static const struct op ops[] = {
    OP(matmul, 4e-3, 1e-5, 1e-4, 0, true),
    OP(embed_forward, 0, 0, 0, 0, true),
    OP(embed_backward, 0, 0, 0, 0, true), // rows are added in the same order
    OP(rmsnorm_forward, 4e-3, 1e-5, 0, 0, true),
    OP(rmsnorm_backward, 4e-3, 1e-5, 1e-5, 0, true),
    OP(rope, 4e-3, 1e-5, 0, 0, true),
    OP(rope_backward, 4e-3, 1e-5, 1e-5, 0, true),
    OP(attention_forward, 4e-3, 1e-5, 1e-4, 0, false),
    OP(attention_backward, 4e-3, 1e-5, 1e-5, 1e-3, false),
    OP(swiglu_forward, 4e-3, 1e-5, 0, 0, true),
    OP(swiglu_backward, 4e-3, 1e-5, 0, 0, true),
    OP(cross_entropy, 4e-3, 1e-5, 1e-6, 0, true),
    OP(fill, 0, 0, 0, 0, true),
    OP(cast, 0, 0, 0, 0, true),
    OP(add, 4e-3, 0, 0, 0, true),
    OP(regroup, 4e-3, 0, 0, 0, true),
    OP(sum_squares, 0, 0, 1e-12, 0, true),
    OP(adamw, 0, 0, 1e-6, 0, true),
};

#endif
