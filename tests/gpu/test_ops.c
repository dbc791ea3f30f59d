/* Every operation on the GPU against its cpu implementation, on the same numbers, through the
 * launchers that the step calls. The table has the cases: to test an operation on more shapes, add
 * a row; to add an operation, add its operands and its run to operations.h, and a row.
 *
 * In the GPU's memory each operand stands between two stretches of guards, at an address that is
 * aligned for vectors or, in "shifted" cases, is not. Outputs hold NaN before the call where they
 * are to be written, and numbers where they are to be added to; inputs and guards must come back
 * unchanged. An operation that promises it must give the same bits when it is run again.
 */
#include "operations.h"

enum { MAX_SHAPE = 8, GUARDS = 128 };

struct row {
    enum op_index op;
    enum up_dtype dtype;
    int64_t p[MAX_SHAPE];
    int alias[3][2]; // {output, input}: the output takes the input's place; {0} for none
    bool shifted;    // by one element off the alignment that vectors need
};

/* clang-format off */
#define B(op, ...)  {OP_##op, UP_BF16, {__VA_ARGS__}, {{0}}, false}
#define F(op, ...)  {OP_##op, UP_F32, {__VA_ARGS__}, {{0}}, false}
#define BS(op, ...) {OP_##op, UP_BF16, {__VA_ARGS__}, {{0}}, true}
#define FS(op, ...) {OP_##op, UP_F32, {__VA_ARGS__}, {{0}}, true}
#define BA(op, aliases, ...) {OP_##op, UP_BF16, {__VA_ARGS__}, aliases, false}
#define FA(op, aliases, ...) {OP_##op, UP_F32, {__VA_ARGS__}, aliases, false}
#define ONTO(...) {__VA_ARGS__}

static const struct row rows[] = {
    B(matmul, 1, 1, 1, 0, 0, 0, 0, 0),
    B(matmul, 300, 200, 777, 0, 0, 0, 0, 0),
    B(matmul, 2000, 512, 640, 0, 1, 0, 0, 0),
    B(matmul, 131, 257, 500, 0, 1, 1, 3, 0),
    B(matmul, 70, 90, 1000, 1, 0, 1, 0, 1),
    B(matmul, 256, 384, 1500, 1, 0, 1, 8, 1),
    B(matmul, 33, 65, 17, 1, 1, 2, 5, 0),
    B(matmul, 1100, 30, 40, 0, 1, 0, 7, 1),
    B(matmul, 20, 1030, 40, 1, 0, 0, 1, 0),
    B(matmul, 40, 50, 0, 0, 0, 0, 0, 0),
    B(matmul, 40, 50, 0, 0, 0, 1, 0, 1),
    B(matmul, 40, 50, 0, 0, 0, 2, 3, 0),
    B(matmul, 0, 50, 30, 0, 0, 1, 0, 0),
    B(matmul, 40, 0, 30, 0, 0, 0, 0, 0),
    BS(matmul, 65, 40, 129, 0, 1, 0, 0, 0),
    F(matmul, 300, 200, 777, 0, 0, 0, 0, 0),
    F(matmul, 131, 257, 500, 1, 1, 2, 3, 0),
    F(matmul, 40, 50, 0, 0, 0, 2, 3, 0),

    B(embed_forward, 100, 33, 11),
    B(embed_forward, 3000, 4096, 500),
    B(embed_forward, 0, 33, 11),
    BS(embed_forward, 50, 64, 11),
    F(embed_forward, 101, 36, 11),
    FS(embed_forward, 101, 36, 11),
    B(embed_backward, 1000, 75, 11),
    B(embed_backward, 5000, 2056, 300),
    B(embed_backward, 1, 8, 1),
    B(embed_backward, 0, 8, 3),
    BS(embed_backward, 2100, 1032, 7),
    F(embed_backward, 4200, 32, 1000),

    B(rmsnorm_forward, 7, 1031),
    B(rmsnorm_forward, 1, 4096),
    B(rmsnorm_forward, 3000, 4096),
    B(rmsnorm_forward, 900, 5120),
    B(rmsnorm_forward, 500, 8200),
    B(rmsnorm_forward, 300, 16384),
    B(rmsnorm_forward, 2, 20000),
    B(rmsnorm_forward, 3, 32768),
    B(rmsnorm_forward, 0, 8),
    BS(rmsnorm_forward, 9, 512),
    BA(rmsnorm_forward, ONTO({2, 0}), 130, 48),
    F(rmsnorm_forward, 7, 1031),
    F(rmsnorm_forward, 700, 8192),
    FA(rmsnorm_forward, ONTO({2, 0}), 3000, 512),
    B(rmsnorm_backward, 261, 67, 0),
    B(rmsnorm_backward, 261, 67, 1),
    B(rmsnorm_backward, 1, 304, 1),
    B(rmsnorm_backward, 3000, 4096, 1),
    B(rmsnorm_backward, 2000, 5120, 0),
    B(rmsnorm_backward, 900, 5120, 1),
    B(rmsnorm_backward, 600, 16384, 1),
    B(rmsnorm_backward, 1040, 16384, 0),
    B(rmsnorm_backward, 3, 20000, 0),
    B(rmsnorm_backward, 9, 32768, 1),
    B(rmsnorm_backward, 0, 64, 1),
    BS(rmsnorm_backward, 33, 256, 0),
    BA(rmsnorm_backward, ONTO({3, 0}), 140, 130, 0),
    BA(rmsnorm_backward, ONTO({3, 2}), 140, 136, 0),
    F(rmsnorm_backward, 261, 67, 1),
    F(rmsnorm_backward, 1500, 4096, 1),
    F(rmsnorm_backward, 400, 16384, 0),
    FA(rmsnorm_backward, ONTO({3, 2}), 700, 1024, 0),

    B(rope, 37, 3, 10, 0, 37, 0, 0),
    B(rope, 34, 3, 16, 5000000, 17, 1, 1),
    B(rope, 1000, 32, 128, 4000000, 500, 1, 0),
    B(rope, 5001, 1, 128, 3, 5001, 1, 0),
    B(rope, 40, 5, 80, 9, 1, 0, 1),
    B(rope, 19, 3, 512, 0, 19, 0, 1),
    B(rope, 0, 3, 64, 0, 1, 0, 1),
    BS(rope, 50, 4, 64, 0, 50, 1, 0),
    BA(rope, ONTO({2, 0}), 20, 2, 130, 7, 20, 1, 0),
    BA(rope, ONTO({2, 0}), 200, 8, 128, 7, 100, 0, 1),
    F(rope, 37, 3, 10, 0, 37, 0, 0),
    FA(rope, ONTO({2, 0}), 34, 3, 64, 5000000, 17, 1, 1),
    B(rope_backward, 37, 3, 10, 0, 37, 0, 0),
    B(rope_backward, 34, 3, 16, 5000000, 17, 1, 1),
    B(rope_backward, 5001, 1, 128, 3, 5001, 1, 1),
    B(rope_backward, 3000, 8, 128, 0, 1500, 0, 1),
    B(rope_backward, 1000, 32, 128, 4000000, 500, 1, 0),
    B(rope_backward, 19, 3, 512, 0, 19, 0, 1),
    B(rope_backward, 0, 3, 64, 0, 1, 0, 1),
    BS(rope_backward, 50, 4, 64, 0, 50, 1, 1),
    BA(rope_backward, ONTO({3, 2}), 20, 2, 64, 7, 10, 1, 0),
    BA(rope_backward, ONTO({3, 2}), 35, 2, 34, 7, 35, 0, 1),
    F(rope_backward, 37, 3, 10, 0, 37, 0, 0),
    FA(rope_backward, ONTO({3, 2}), 100, 5, 64, 5000000, 17, 1, 1),

    B(attention_forward, 1, 1, 1, 1, 64, 1, 0),
    B(attention_forward, 2, 150, 4, 2, 128, 2, 0),
    B(attention_forward, 1, 127, 8, 2, 64, 4, 0),
    B(attention_forward, 1, 385, 3, 2, 128, 4, 2),
    B(attention_forward, 2, 129, 1, 1, 64, 8, 5),
    B(attention_forward, 1, 1000, 2, 1, 128, 2, 0),
    B(attention_forward, 1, 4097, 2, 2, 128, 1, 0),
    B(attention_forward, 1, 700, 32, 8, 64, 4, 0),
    B(attention_forward, 1, 1, 2, 1, 16, 2, 0),
    B(attention_forward, 2, 129, 4, 2, 16, 2, 0),
    B(attention_forward, 1, 1000, 3, 2, 80, 4, 2),
    B(attention_forward, 1, 127, 2, 2, 96, 1, 0),
    B(attention_forward, 2, 300, 2, 1, 256, 2, 0),
    B(attention_forward, 1, 4097, 1, 1, 80, 8, 3),
    B(attention_forward, 65539, 2, 2, 1, 16, 2, 0),
    B(attention_backward, 1, 1, 1, 1, 64, 1, 0, 0),
    B(attention_backward, 2, 150, 4, 2, 128, 2, 0, 0),
    B(attention_backward, 1, 127, 8, 2, 64, 4, 0, 1),
    B(attention_backward, 1, 385, 3, 2, 128, 4, 2, 0),
    B(attention_backward, 1, 385, 3, 2, 64, 4, 2, 1),
    B(attention_backward, 2, 129, 1, 1, 64, 8, 5, 0),
    B(attention_backward, 1, 1000, 2, 1, 128, 2, 0, 1),
    B(attention_backward, 1, 4097, 2, 2, 128, 1, 0, 0),
    B(attention_backward, 1, 700, 32, 8, 64, 4, 0, 1),
    B(attention_backward, 1, 1, 2, 1, 16, 2, 0, 0),
    B(attention_backward, 2, 129, 4, 2, 16, 2, 0, 1),
    B(attention_backward, 1, 1000, 3, 2, 80, 4, 2, 1),
    B(attention_backward, 1, 127, 2, 2, 96, 1, 0, 0),
    B(attention_backward, 2, 300, 2, 1, 256, 2, 0, 0),
    B(attention_backward, 1, 4097, 1, 1, 80, 8, 3, 0),
    BA(attention_backward, ONTO({6, 5}), 1, 1000, 2, 1, 128, 2, 0, 0),
    BA(attention_backward, ONTO({6, 5}), 2, 333, 4, 2, 64, 2, 0, 1),
    BA(attention_backward, ONTO({6, 5}), 2, 333, 4, 2, 80, 2, 0, 1),

    B(swiglu_forward, 50001),
    B(swiglu_forward, 5000000),
    B(swiglu_forward, 0),
    BS(swiglu_forward, 1003),
    BA(swiglu_forward, ONTO({2, 0}), 20000),
    BA(swiglu_forward, ONTO({2, 1}), 20005),
    F(swiglu_forward, 50001),
    FS(swiglu_forward, 50001),
    B(swiglu_backward, 50001),
    BS(swiglu_backward, 1003),
    BA(swiglu_backward, ONTO({3, 0}, {4, 1}, {5, 2}), 20000),
    FA(swiglu_backward, ONTO({3, 0}, {4, 1}), 20003),

    B(cross_entropy, 130, 37),
    B(cross_entropy, 1, 2100),
    B(cross_entropy, 2000, 504),
    B(cross_entropy, 40, 128256),
    B(cross_entropy, 0, 10),
    BS(cross_entropy, 6, 256),
    F(cross_entropy, 130, 37),
    F(cross_entropy, 12, 20000),

    B(fill, 300001),
    B(fill, 0),
    BS(fill, 7),
    F(cast, 40001),
    FS(cast, 40001),
    F(cast, 0),
    F(add, 100003),
    B(add, 100003),
    BS(add, 1001),
    FS(add, 77),
    F(add, 0),
    B(regroup, 4, 1000, 128, 0, 0, 0),
    B(regroup, 4, 1000, 128, 0, 1, 0),
    F(regroup, 8, 300, 64, 32, 1, 1),
    F(regroup, 2, 77, 256, 0, 0, 1),
    B(regroup, 3, 101, 20, 5, 0, 1),
    BS(regroup, 4, 50, 64, 0, 1, 0),
    FS(regroup, 3, 33, 40, 8, 0, 0),
    B(regroup, 2, 0, 8, 0, 0, 0),
    F(sum_squares, 100003),
    F(sum_squares, 9000000),
    FS(sum_squares, 5),
    F(sum_squares, 0),
    F(adamw, 40001, 1, 1),
    FS(adamw, 1001, 20, 1),
    F(adamw, 3000000, 1000, 0),
    F(adamw, 0, 1, 1),
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
static int64_t lead_of(const struct subject *s)
{
    return GUARDS + (s->row->shifted ? 1 : 0);
}

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
    s->tensor[k] =
        up_alloc(&s->rig->rank, UP_TAG(WORKSPACE, "test.operand"), dtype, UP_SHAPE(total));
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
                (long long)p[0], (long long)p[1], (long long)p[2], (long long)p[3], (long long)p[4],
                (long long)p[5], (long long)p[6], (long long)p[7], k, what, figure, allowed);
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
