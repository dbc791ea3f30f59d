/* Every operation on the GPU against its cpu implementation, on the same numbers, through the
 * launchers that the step calls. The table at the end has the cases: to test an operation on more
 * shapes, add a row; to add an operation, add its operands and its run.
 *
 * In the GPU's memory each operand stands between two stretches of guards, at an address that is
 * aligned for vectors or, in "shifted" cases, is not. Outputs hold NaN before the call where they are
 * to be written, and numbers where they are to be added to; inputs and guards must come back
 * unchanged. An operation that promises it must give the same bits when it is run again.
 */
#include "rig.h"
#include "tests/ops/reference.h"

enum { MAX_OPERANDS = 10, MAX_SHAPE = 8, GUARDS = 128 };

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
    o[3] = o[4] = operand(FLOAT, OUT, p[0]);
}

static void run_swiglu_backward(const int64_t *p, const struct side *side)
{
    RUN(swiglu_backward, .gate = side->t[0], .up = side->t[1], .d_out = side->t[2],
        .d_gate = side->t[3], .d_up = side->t[4], .count = p[0], .dtype = side->dtype);
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
    o[0] = operand(F32, IN, p[0]);
    o[1] = operand(F32, ADD, p[0]);
}

static void run_add(const int64_t *p, const struct side *side)
{
    RUN(add, .x = side->t[0], .y = side->t[1], .count = p[0]);
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

#define OP(name) #name, operands_##name, run_##name

/* Rounding an output to bf16 costs 1.7e-3, the kernels' fp32 arithmetic less than 1e-5. Matrix
 * units add up in fp32 but round their sums towards zero. */
enum {
    MATMUL, EMBED_FORWARD, EMBED_BACKWARD, RMSNORM_FORWARD, RMSNORM_BACKWARD, ROPE, ROPE_BACKWARD,
    ATTENTION_FORWARD, ATTENTION_BACKWARD, SWIGLU_FORWARD, SWIGLU_BACKWARD, CROSS_ENTROPY, FILL, CAST,
    ADD_UP, SUM_SQUARES, ADAMW,
};
static const struct op ops[] = {
    [MATMUL] = {OP(matmul), 4e-3, 1e-5, 1e-4, 0, true},
    [EMBED_FORWARD] = {OP(embed_forward), 0, 0, 0, 0, true},
    [EMBED_BACKWARD] = {OP(embed_backward), 0, 0, 0, 0, true}, // rows are added in the same order
    [RMSNORM_FORWARD] = {OP(rmsnorm_forward), 4e-3, 1e-5, 0, 0, true},
    [RMSNORM_BACKWARD] = {OP(rmsnorm_backward), 4e-3, 1e-5, 1e-5, 0, false},
    [ROPE] = {OP(rope), 4e-3, 1e-5, 0, 0, true},
    [ROPE_BACKWARD] = {OP(rope_backward), 4e-3, 1e-5, 1e-5, 0, true},
    [ATTENTION_FORWARD] = {OP(attention_forward), 4e-3, 1e-5, 1e-4, 0, false},
    [ATTENTION_BACKWARD] = {OP(attention_backward), 4e-3, 1e-5, 1e-5, 1e-3, false},
    [SWIGLU_FORWARD] = {OP(swiglu_forward), 4e-3, 1e-5, 0, 0, true},
    [SWIGLU_BACKWARD] = {OP(swiglu_backward), 4e-3, 1e-5, 0, 0, true},
    [CROSS_ENTROPY] = {OP(cross_entropy), 4e-3, 1e-5, 1e-6, 0, true},
    [FILL] = {OP(fill), 0, 0, 0, 0, true},
    [CAST] = {OP(cast), 0, 0, 0, 0, true},
    [ADD_UP] = {OP(add), 0, 0, 0, 0, true},
    [SUM_SQUARES] = {OP(sum_squares), 0, 0, 1e-12, 0, true},
    [ADAMW] = {OP(adamw), 0, 0, 1e-6, 0, true},
};

struct row {
    int op;
    enum up_dtype dtype;
    int64_t p[MAX_SHAPE];
    int alias[2][2]; // {output, input}: the output takes the input's place; {0} for none
    bool shifted;    // by one element off the alignment that vectors need
};

/* clang-format off */
#define B(op, ...)  {op, UP_BF16, {__VA_ARGS__}, {{0}}, false}
#define F(op, ...)  {op, UP_F32, {__VA_ARGS__}, {{0}}, false}
#define BS(op, ...) {op, UP_BF16, {__VA_ARGS__}, {{0}}, true}
#define FS(op, ...) {op, UP_F32, {__VA_ARGS__}, {{0}}, true}
#define BA(op, aliases, ...) {op, UP_BF16, {__VA_ARGS__}, aliases, false}
#define FA(op, aliases, ...) {op, UP_F32, {__VA_ARGS__}, aliases, false}
#define ONTO(...) {__VA_ARGS__}

static const struct row rows[] = {
    B(MATMUL, 1, 1, 1, 0, 0, 0, 0, 0),
    B(MATMUL, 300, 200, 777, 0, 0, 0, 0, 0),
    B(MATMUL, 2000, 512, 640, 0, 1, 0, 0, 0),
    B(MATMUL, 131, 257, 500, 0, 1, 1, 3, 0),
    B(MATMUL, 70, 90, 1000, 1, 0, 1, 0, 1),
    B(MATMUL, 256, 384, 1500, 1, 0, 1, 8, 1),
    B(MATMUL, 33, 65, 17, 1, 1, 2, 5, 0),
    B(MATMUL, 1100, 30, 40, 0, 1, 0, 7, 1),
    B(MATMUL, 20, 1030, 40, 1, 0, 0, 1, 0),
    B(MATMUL, 40, 50, 0, 0, 0, 0, 0, 0),
    B(MATMUL, 40, 50, 0, 0, 0, 1, 0, 1),
    B(MATMUL, 40, 50, 0, 0, 0, 2, 3, 0),
    B(MATMUL, 0, 50, 30, 0, 0, 1, 0, 0),
    B(MATMUL, 40, 0, 30, 0, 0, 0, 0, 0),
    BS(MATMUL, 65, 40, 129, 0, 1, 0, 0, 0),
    F(MATMUL, 300, 200, 777, 0, 0, 0, 0, 0),
    F(MATMUL, 131, 257, 500, 1, 1, 2, 3, 0),
    F(MATMUL, 40, 50, 0, 0, 0, 2, 3, 0),

    B(EMBED_FORWARD, 100, 33, 11),
    B(EMBED_FORWARD, 3000, 4096, 500),
    B(EMBED_FORWARD, 0, 33, 11),
    BS(EMBED_FORWARD, 50, 64, 11),
    F(EMBED_FORWARD, 101, 36, 11),
    FS(EMBED_FORWARD, 101, 36, 11),
    B(EMBED_BACKWARD, 1000, 75, 11),
    B(EMBED_BACKWARD, 5000, 2056, 300),
    B(EMBED_BACKWARD, 1, 8, 1),
    B(EMBED_BACKWARD, 0, 8, 3),
    BS(EMBED_BACKWARD, 2100, 1032, 7),
    F(EMBED_BACKWARD, 4200, 32, 1000),

    B(RMSNORM_FORWARD, 7, 1031),
    B(RMSNORM_FORWARD, 1, 4096),
    B(RMSNORM_FORWARD, 3000, 4096),
    B(RMSNORM_FORWARD, 2, 20000),
    B(RMSNORM_FORWARD, 0, 8),
    BS(RMSNORM_FORWARD, 9, 512),
    BA(RMSNORM_FORWARD, ONTO({2, 0}), 130, 48),
    F(RMSNORM_FORWARD, 7, 1031),
    FA(RMSNORM_FORWARD, ONTO({2, 0}), 3000, 512),
    B(RMSNORM_BACKWARD, 261, 67, 0),
    B(RMSNORM_BACKWARD, 261, 67, 1),
    B(RMSNORM_BACKWARD, 1, 304, 1),
    B(RMSNORM_BACKWARD, 3000, 4096, 1),
    B(RMSNORM_BACKWARD, 3, 20000, 0),
    B(RMSNORM_BACKWARD, 0, 64, 1),
    BS(RMSNORM_BACKWARD, 33, 256, 0),
    BA(RMSNORM_BACKWARD, ONTO({3, 0}), 140, 130, 0),
    BA(RMSNORM_BACKWARD, ONTO({3, 2}), 140, 136, 0),
    F(RMSNORM_BACKWARD, 261, 67, 1),
    FA(RMSNORM_BACKWARD, ONTO({3, 2}), 700, 1024, 0),

    B(ROPE, 37, 3, 10, 0, 37, 0, 0),
    B(ROPE, 34, 3, 16, 5000000, 17, 1, 1),
    B(ROPE, 1000, 32, 128, 4000000, 500, 1, 0),
    B(ROPE, 5001, 1, 128, 3, 5001, 1, 0),
    B(ROPE, 40, 5, 80, 9, 1, 0, 1),
    B(ROPE, 19, 3, 512, 0, 19, 0, 1),
    B(ROPE, 0, 3, 64, 0, 1, 0, 1),
    BS(ROPE, 50, 4, 64, 0, 50, 1, 0),
    BA(ROPE, ONTO({2, 0}), 20, 2, 130, 7, 20, 1, 0),
    BA(ROPE, ONTO({2, 0}), 200, 8, 128, 7, 100, 0, 1),
    F(ROPE, 37, 3, 10, 0, 37, 0, 0),
    FA(ROPE, ONTO({2, 0}), 34, 3, 64, 5000000, 17, 1, 1),
    B(ROPE_BACKWARD, 37, 3, 10, 0, 37, 0, 0),
    B(ROPE_BACKWARD, 34, 3, 16, 5000000, 17, 1, 1),
    B(ROPE_BACKWARD, 5001, 1, 128, 3, 5001, 1, 1),
    B(ROPE_BACKWARD, 3000, 8, 128, 0, 1500, 0, 1),
    B(ROPE_BACKWARD, 1000, 32, 128, 4000000, 500, 1, 0),
    B(ROPE_BACKWARD, 19, 3, 512, 0, 19, 0, 1),
    B(ROPE_BACKWARD, 0, 3, 64, 0, 1, 0, 1),
    BS(ROPE_BACKWARD, 50, 4, 64, 0, 50, 1, 1),
    BA(ROPE_BACKWARD, ONTO({3, 2}), 20, 2, 64, 7, 10, 1, 0),
    BA(ROPE_BACKWARD, ONTO({3, 2}), 35, 2, 34, 7, 35, 0, 1),
    F(ROPE_BACKWARD, 37, 3, 10, 0, 37, 0, 0),
    FA(ROPE_BACKWARD, ONTO({3, 2}), 100, 5, 64, 5000000, 17, 1, 1),

    B(ATTENTION_FORWARD, 1, 1, 1, 1, 64, 1, 0),
    B(ATTENTION_FORWARD, 2, 150, 4, 2, 128, 2, 0),
    B(ATTENTION_FORWARD, 1, 127, 8, 2, 64, 4, 0),
    B(ATTENTION_FORWARD, 1, 385, 3, 2, 128, 4, 2),
    B(ATTENTION_FORWARD, 2, 129, 1, 1, 64, 8, 5),
    B(ATTENTION_FORWARD, 1, 1000, 2, 1, 128, 2, 0),
    B(ATTENTION_FORWARD, 1, 4097, 2, 2, 128, 1, 0),
    B(ATTENTION_FORWARD, 1, 1, 2, 1, 16, 2, 0),
    B(ATTENTION_FORWARD, 2, 129, 4, 2, 16, 2, 0),
    B(ATTENTION_FORWARD, 1, 1000, 3, 2, 80, 4, 2),
    B(ATTENTION_FORWARD, 1, 127, 2, 2, 96, 1, 0),
    B(ATTENTION_FORWARD, 2, 300, 2, 1, 256, 2, 0),
    B(ATTENTION_FORWARD, 1, 4097, 1, 1, 80, 8, 3),
    B(ATTENTION_BACKWARD, 1, 1, 1, 1, 64, 1, 0, 0),
    B(ATTENTION_BACKWARD, 2, 150, 4, 2, 128, 2, 0, 0),
    B(ATTENTION_BACKWARD, 1, 127, 8, 2, 64, 4, 0, 1),
    B(ATTENTION_BACKWARD, 1, 385, 3, 2, 128, 4, 2, 0),
    B(ATTENTION_BACKWARD, 1, 385, 3, 2, 64, 4, 2, 1),
    B(ATTENTION_BACKWARD, 2, 129, 1, 1, 64, 8, 5, 0),
    B(ATTENTION_BACKWARD, 1, 1000, 2, 1, 128, 2, 0, 1),
    B(ATTENTION_BACKWARD, 1, 4097, 2, 2, 128, 1, 0, 0),
    B(ATTENTION_BACKWARD, 1, 1, 2, 1, 16, 2, 0, 0),
    B(ATTENTION_BACKWARD, 2, 129, 4, 2, 16, 2, 0, 1),
    B(ATTENTION_BACKWARD, 1, 1000, 3, 2, 80, 4, 2, 1),
    B(ATTENTION_BACKWARD, 1, 127, 2, 2, 96, 1, 0, 0),
    B(ATTENTION_BACKWARD, 2, 300, 2, 1, 256, 2, 0, 0),
    B(ATTENTION_BACKWARD, 1, 4097, 1, 1, 80, 8, 3, 0),
    BA(ATTENTION_BACKWARD, ONTO({6, 5}), 1, 1000, 2, 1, 128, 2, 0, 0),
    BA(ATTENTION_BACKWARD, ONTO({6, 5}), 2, 333, 4, 2, 64, 2, 0, 1),
    BA(ATTENTION_BACKWARD, ONTO({6, 5}), 2, 333, 4, 2, 80, 2, 0, 1),

    B(SWIGLU_FORWARD, 50001),
    B(SWIGLU_FORWARD, 5000000),
    B(SWIGLU_FORWARD, 0),
    BS(SWIGLU_FORWARD, 1003),
    BA(SWIGLU_FORWARD, ONTO({2, 0}), 20000),
    BA(SWIGLU_FORWARD, ONTO({2, 1}), 20005),
    F(SWIGLU_FORWARD, 50001),
    FS(SWIGLU_FORWARD, 50001),
    B(SWIGLU_BACKWARD, 50001),
    BS(SWIGLU_BACKWARD, 1003),
    BA(SWIGLU_BACKWARD, ONTO({3, 0}, {4, 1}), 20000),
    FA(SWIGLU_BACKWARD, ONTO({3, 0}, {4, 1}), 20003),

    B(CROSS_ENTROPY, 130, 37),
    B(CROSS_ENTROPY, 1, 2100),
    B(CROSS_ENTROPY, 2000, 504),
    B(CROSS_ENTROPY, 40, 128256),
    B(CROSS_ENTROPY, 0, 10),
    BS(CROSS_ENTROPY, 6, 256),
    F(CROSS_ENTROPY, 130, 37),
    F(CROSS_ENTROPY, 12, 20000),

    B(FILL, 300001),
    B(FILL, 0),
    BS(FILL, 7),
    F(CAST, 40001),
    FS(CAST, 40001),
    F(CAST, 0),
    F(ADD_UP, 100003),
    FS(ADD_UP, 77),
    F(ADD_UP, 0),
    F(SUM_SQUARES, 100003),
    F(SUM_SQUARES, 9000000),
    FS(SUM_SQUARES, 5),
    F(SUM_SQUARES, 0),
    F(ADAMW, 40001, 1, 1),
    FS(ADAMW, 1001, 20, 1),
    F(ADAMW, 3000000, 1000, 0),
    F(ADAMW, 0, 1, 1),
};
/* clang-format on */

struct subject {
    const struct op *op;
    const struct row *row;
    struct rig *rig;
    struct side cpu, gpu;
    int owner[MAX_OPERANDS];                // whose memory an operand uses; itself mostly
    struct up_tensor *tensor[MAX_OPERANDS]; // with guards, of which the last may be a spare
    void *start[MAX_OPERANDS];              // what is in it at first
    void *result[MAX_OPERANDS];             // and after the first run
};

static enum up_dtype dtype_of(enum type type, enum up_dtype tested)
{
    static const enum up_dtype fixed[] = {
        [BF16] = UP_BF16, [F32] = UP_F32, [F64] = UP_F64, [IDS] = UP_I32};
    return type == FLOAT ? tested : fixed[type];
}

static enum up_dtype gpu_dtype(const struct subject *s, int k)
{
    return dtype_of(s->gpu.operands[k].type, s->gpu.dtype);
}

/* Where operand k begins in its tensor; elements. */
static int64_t lead_of(const struct subject *s) { return GUARDS + (s->row->shifted ? 1 : 0); }

static double start_value(const struct operand *o, int k, int64_t i)
{
    if (o->type == IDS) return id_at(i, o->vocab);
    if (o->role == OUT || o->role == WORK) return NAN;
    if (o->fixed != 0) return o->fixed;
    double x = rig_random((uint64_t)k, i);
    return o->positive ? fabs(x) : x;
}

/* The numbers that both sides start from: those that the GPU's dtype has. */
static void start_operand(struct subject *s, int k)
{
    const struct operand *o = &s->gpu.operands[k];
    int64_t count = o->count, lead = lead_of(s), total = lead + count + GUARDS;
    enum up_dtype dtype = gpu_dtype(s, k);
    double *values = malloc((size_t)total * sizeof *values);
    for (int64_t i = 0; i < total; i++) {
        bool guard = i < lead || i >= lead + count;
        values[i] = guard ? (double)(7 + i % 5) : start_value(o, k, i - lead);
    }
    s->tensor[k] = up_alloc(&s->rig->rank, UP_TAG(WORKSPACE, "test.operand"), dtype, UP_SHAPE(total));
    s->start[k] = malloc((size_t)s->tensor[k]->bytes);
    rig_encode(values, total, dtype, s->start[k]);

    int64_t cpu_count = s->cpu.operands[k].count;
    enum up_dtype cpu_dtype = dtype_of(o->type, UP_F32);
    s->cpu.t[k] = malloc((size_t)cpu_count * sizeof(double) + 1);
    if (o->role != WORK) {
        rig_decode(s->start[k], total, dtype, values);
        rig_encode(values + lead, count, cpu_dtype, s->cpu.t[k]);
    }
    free(values);
    s->gpu.t[k] = (char *)s->tensor[k]->data + lead * up_dtype_bytes[dtype];
}

static void subject_init(struct subject *s, struct rig *rig, const struct row *row)
{
    *s = (struct subject){.op = &ops[row->op], .row = row, .rig = rig};
    s->cpu.dtype = UP_F32;
    s->gpu.dtype = row->dtype;
    s->gpu.rank = &rig->rank;
    s->op->operands(row->p, UP_DEVICE_CPU, s->cpu.operands);
    s->op->operands(row->p, UP_DEVICE_CUDA, s->gpu.operands);
    for (int k = 0; k < MAX_OPERANDS; k++) s->owner[k] = k;
    for (int i = 0; i < 2; i++)
        if (row->alias[i][0]) s->owner[row->alias[i][0]] = row->alias[i][1];
    for (int k = 0; k < MAX_OPERANDS; k++)
        if (s->gpu.operands[k].role != NONE && s->owner[k] == k) start_operand(s, k);
    for (int k = 0; k < MAX_OPERANDS; k++) {
        s->cpu.t[k] = s->cpu.t[s->owner[k]];
        s->gpu.t[k] = s->gpu.t[s->owner[k]];
    }
}

static void subject_release(struct subject *s)
{
    for (int k = 0; k < MAX_OPERANDS; k++) {
        if (!s->tensor[k]) continue;
        up_free(&s->rig->rank, &s->tensor[k]);
        free(s->start[k]);
        free(s->result[k]);
        free(s->cpu.t[k]);
    }
}

static void run_on_gpu(struct subject *s)
{
    for (int k = 0; k < MAX_OPERANDS; k++)
        if (s->tensor[k]) rig_upload(s->rig, s->tensor[k]->data, s->start[k], s->tensor[k]->bytes);
    s->op->run(s->row->p, &s->gpu);
    rig_finish(s->rig);
}

static void *fetch(struct subject *s, int k)
{
    void *bytes = malloc((size_t)s->tensor[k]->bytes);
    rig_download(s->rig, bytes, s->tensor[k]->data, s->tensor[k]->bytes);
    return bytes;
}

/* One line about the case; returns 1, for a count of failures. */
static int report(const struct subject *s, int k, const char *what, double figure, double allowed)
{
    const int64_t *p = s->row->p;
    print_error("%s %s%s %lld,%lld,%lld,%lld,%lld,%lld,%lld,%lld: operand %d %s (%g, allowed %g)\n",
                s->op->name, up_dtype_names[s->row->dtype], s->row->shifted ? " shifted" : "",
                (long long)p[0], (long long)p[1], (long long)p[2], (long long)p[3],
                (long long)p[4], (long long)p[5], (long long)p[6], (long long)p[7], k, what, figure,
                allowed);
    return 1;
}

static double allowed_error(const struct subject *s, enum type type)
{
    if (type != FLOAT) return s->op->wide;
    return s->row->dtype == UP_BF16 ? s->op->bf16 : s->op->fp32;
}

/* The memory's guards, which are what comes before and after. */
static int check_guards(const struct subject *s, int k)
{
    size_t size = (size_t)up_dtype_bytes[gpu_dtype(s, k)];
    size_t lead = (size_t)lead_of(s) * size, bytes = (size_t)s->gpu.operands[k].count * size;
    const char *before = s->start[k], *after = s->result[k];
    if (memcmp(before, after, lead) == 0 &&
        memcmp(before + lead + bytes, after + lead + bytes, GUARDS * size) == 0)
        return 0;
    return report(s, k, "was written beyond its end", 0, 0);
}

static bool overwritten(const struct subject *s, int k)
{
    for (int j = 0; j < MAX_OPERANDS; j++)
        if (j != k && s->owner[j] == k) return true;
    return false;
}

static int check_values(const struct subject *s, int k)
{
    const struct operand *o = &s->gpu.operands[k];
    int owner = s->owner[k];
    int64_t lead = lead_of(s);
    enum up_dtype dtype = gpu_dtype(s, k);
    double *actual = malloc((size_t)(lead + o->count) * sizeof *actual);
    double *expected = malloc((size_t)o->count * sizeof *expected + 1);
    rig_decode(s->result[owner], lead + o->count, dtype, actual);
    rig_decode(s->cpu.t[k], o->count, dtype_of(o->type, UP_F32), expected);
    double error = rig_error(actual + lead, expected, o->count, s->op->floor);
    double allowed = allowed_error(s, o->type);
    free(actual);
    free(expected);
    return error <= allowed ? 0 : report(s, k, "is off", error, allowed);
}

static int check_operand(struct subject *s, int k)
{
    enum role role = s->gpu.operands[k].role;
    int failures = 0;
    if (s->tensor[k]) failures += check_guards(s, k);
    if (role == IN && !overwritten(s, k) &&
        memcmp(s->start[k], s->result[k], (size_t)s->tensor[k]->bytes) != 0)
        failures += report(s, k, "is an input and was changed", 0, 0);
    if (role == OUT || role == ADD) failures += check_values(s, k);
    return failures;
}

/* From the same start the same bits must come. */
static int check_again(struct subject *s)
{
    int failures = 0;
    run_on_gpu(s);
    for (int k = 0; k < MAX_OPERANDS; k++) {
        if (!s->tensor[k] || s->gpu.operands[k].role == WORK) continue;
        void *again = fetch(s, k);
        if (memcmp(again, s->result[k], (size_t)s->tensor[k]->bytes) != 0)
            failures += report(s, k, "differs when it is run again", 0, 0);
        free(again);
    }
    return failures;
}

static int run_row(struct rig *rig, const struct row *row)
{
    struct subject s;
    int failures = 0;
    subject_init(&s, rig, row);
    run_on_gpu(&s);
    for (int k = 0; k < MAX_OPERANDS; k++)
        if (s.tensor[k]) s.result[k] = fetch(&s, k);
    s.op->run(row->p, &s.cpu);
    for (int k = 0; k < MAX_OPERANDS; k++) failures += check_operand(&s, k);
    if (s.op->repeatable) failures += check_again(&s);
    subject_release(&s);
    return failures;
}

static void test_rows(void **state)
{
    struct rig *rig = rig_or_skip(state);
    int failures = 0;
    for (int i = 0; i < UP_COUNT(rows); i++) failures += run_row(rig, &rows[i]);
    if (failures) fail_msg("%d of the checks above failed", failures);
}

static void test_every_operation_has_a_row(void **state)
{
    (void)state;
#define UP_OP(name) #name,
    const char *const names[] = {
#include "ops/ops.def"
    };
#undef UP_OP
    for (int i = 0; i < UP_COUNT(names); i++) {
        bool found = false;
        for (int j = 0; j < UP_COUNT(rows); j++)
            found |= strcmp(names[i], ops[rows[j].op].name) == 0;
        if (!found) fail_msg("%s has no row", names[i]);
    }
}

/* Numbers where rounding to bf16 is delicate; a NaN must stay one, also where its payload is in the
 * half that is cut off. */
static void test_rounding_to_bf16(void **state)
{
    static const uint32_t from[] = {0x3f800000, 0x3f808000, 0x3f818000, 0x3f808001, 0x3f807fff,
                                    0xbf818000, 0x80000000, 0x00000001, 0x7f7fffff, 0x7f800000,
                                    0xff800000, 0x7fc00000, 0x7f800001, 0xff800001, 0xffffffff};
    enum { COUNT = UP_COUNT(from), NUMBERS = 11 };
    struct rig *rig = rig_or_skip(state);
    struct up_rank *rank = &rig->rank;
    struct up_tensor *x = up_alloc(rank, UP_TAG(WORKSPACE, "test.x"), UP_F32, UP_SHAPE(COUNT));
    struct up_tensor *y = up_alloc(rank, UP_TAG(WORKSPACE, "test.y"), UP_BF16, UP_SHAPE(COUNT));
    uint16_t actual[COUNT], expected[COUNT];
    rig_upload(rig, x->data, from, x->bytes);
    up_op_cast(rank, UP_STREAM_COMPUTE,
               &(struct up_cast_args){x->data, y->data, COUNT, UP_F32, UP_BF16});
    rig_download(rig, actual, y->data, y->bytes);
    up_cpu_cast(&(struct up_cast_args){from, expected, COUNT, UP_F32, UP_BF16});
    for (int i = 0; i < COUNT; i++) {
        if (i < NUMBERS)
            assert_int_equal(actual[i], expected[i]);
        else
            assert_true((actual[i] & 0x7fff) > 0x7f80);
    }
    up_free(rank, &x);
    up_free(rank, &y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_operation_has_a_row),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_rounding_to_bf16),
    };
    return cmocka_run_group_tests(tests, rig_start, rig_stop);
}
