/* Tensors of more than 2^31 elements, whose last bytes lie beyond 2^32: an index that is kept in 32
 * bits anywhere shows.
 *
 * A large tensor repeats PERIOD rows of numbers. The period divides no power of two, so that a row
 * reached by an index that wrapped holds other numbers. Some rows, around the powers of two and at
 * both ends, are compared with the cpu's; sums over everything with what the cpu finds for one
 * period times its repetitions.
 */
#include "rig.h"
#include "tests/ops/reference.h"

enum {
    WIDTH = 4096,
    EDGE = 1 << 19, // the row at which element 2^31 is, and byte 2^32 of a bf16 tensor
    ROWS = EDGE + 5,
    PERIOD = 997,
    SLOTS = 4,
    HEAD_DIM = 128,
};
static const int64_t ELEMENTS = (int64_t)ROWS * WIDTH;
static const int64_t SLOT_BYTES = (int64_t)ROWS * WIDTH * 2;

/* Rows that are looked at: both ends, and where bytes and elements reach powers of two. */
static const int64_t looked_at[] = {0,        1,    EDGE / 4 - 1, EDGE / 4, EDGE / 2 - 1, EDGE / 2,
                                    EDGE - 1, EDGE, EDGE + 1,     ROWS - 2, ROWS - 1};

struct large {
    struct rig *rig;
    struct up_tensor *pool; // SLOTS places for a large bf16 tensor; two of them hold an fp32 one
};

static void *slot(const struct large *large, int i)
{
    return (char *)large->pool->data + i * SLOT_BYTES;
}

static struct large large_or_skip(void **state)
{
    struct rig *rig = rig_or_skip(state);
    if (rig->device->capacity[UP_SPACE_DEVICE] < SLOTS * SLOT_BYTES + (2LL << 30)) {
        print_message("needs 18 GiB of device memory\n");
        skip();
    }
    struct up_tensor *pool =
        up_alloc(&rig->rank, UP_TAG(WORKSPACE, "test.pool"), UP_U8, UP_SHAPE(SLOTS * SLOT_BYTES));
    rig_finish(rig);
    return (struct large){rig, pool};
}

/* The first `have` of `bytes` bytes are repeated to the end. */
static void repeat(struct rig *rig, char *at, int64_t have, int64_t bytes)
{
    for (; have < bytes; have *= 2)
        rig->device->ops->copy(rig->device, UP_STREAM_COMPUTE, at + have, UP_SPACE_DEVICE, at,
                               UP_SPACE_DEVICE, up_min(have, bytes - have));
    rig_finish(rig);
}

/* Random numbers as `dtype` has them, in fp32. Free with free(). */
static float *make_numbers(uint64_t stream, int64_t count, enum up_dtype dtype)
{
    float *numbers = malloc((size_t)count * sizeof *numbers);
    uint16_t *narrow = malloc((size_t)count * sizeof *narrow);
    for (int64_t i = 0; i < count; i++) numbers[i] = (float)rig_random(stream, i);
    if (dtype == UP_BF16) {
        up_cpu_cast(&(struct up_cast_args){numbers, narrow, count, UP_F32, UP_BF16});
        up_cpu_cast(&(struct up_cast_args){narrow, numbers, count, UP_BF16, UP_F32});
    }
    free(narrow);
    return numbers;
}

static void upload_numbers(struct rig *rig, void *to, const float *numbers, int64_t count,
                           enum up_dtype dtype)
{
    void *encoded = malloc((size_t)count * sizeof *numbers);
    up_cpu_cast(&(struct up_cast_args){numbers, encoded, count, UP_F32, dtype});
    rig_upload(rig, to, encoded, count * up_dtype_bytes[dtype]);
    free(encoded);
}

/* Fills a slot (fp32: two) with a period of numbers, repeated; the period's are returned, in fp32.
 */
static float *fill_slot(const struct large *large, int i, uint64_t stream, enum up_dtype dtype)
{
    int64_t count = (int64_t)PERIOD * WIDTH, size = up_dtype_bytes[dtype];
    float *numbers = make_numbers(stream, count, dtype);
    upload_numbers(large->rig, slot(large, i), numbers, count, dtype);
    repeat(large->rig, slot(large, i), count * size, ELEMENTS * size);
    return numbers;
}

/* NaN everywhere, to see what is not written. */
static void poison_slot(const struct large *large, int i)
{
    enum { FIRST = 1 << 16 };
    char *ones = malloc(FIRST);
    memset(ones, 0xff, FIRST);
    rig_upload(large->rig, slot(large, i), ones, FIRST);
    repeat(large->rig, slot(large, i), FIRST, SLOT_BYTES);
    free(ones);
}

/* A small tensor on the GPU that holds the numbers. */
static struct up_tensor *small_tensor(const struct large *large, const float *numbers,
                                      int64_t count, enum up_dtype dtype)
{
    struct up_tensor *tensor =
        up_alloc(&large->rig->rank, UP_TAG(WORKSPACE, "test.small"), dtype, UP_SHAPE(count));
    upload_numbers(large->rig, tensor->data, numbers, count, dtype);
    return tensor;
}

static struct up_tensor *bytes_tensor(const struct large *large, const void *bytes, int64_t count)
{
    struct up_tensor *tensor =
        up_alloc(&large->rig->rank, UP_TAG(WORKSPACE, "test.small"), UP_U8, UP_SHAPE(count));
    rig_upload(large->rig, tensor->data, bytes, count);
    return tensor;
}

static const float *row_of(const float *period, int64_t row)
{
    return period + row % PERIOD * WIDTH;
}

/* A row of a large tensor, in fp32. */
static void download_row(const struct large *large, const void *tensor, int64_t row, int64_t width,
                         enum up_dtype dtype, float *to)
{
    int64_t bytes = width * up_dtype_bytes[dtype];
    void *encoded = malloc((size_t)bytes);
    rig_download(large->rig, encoded, (const char *)tensor + row * bytes, bytes);
    up_cpu_cast(&(struct up_cast_args){encoded, to, width, dtype, UP_F32});
    free(encoded);
}

static double error_of(const float *actual, const float *expected, int64_t count)
{
    double *wide = malloc((size_t)count * 2 * sizeof *wide);
    rig_decode(actual, count, UP_F32, wide);
    rig_decode(expected, count, UP_F32, wide + count);
    double error = rig_error(wide, wide + count, count, 0);
    free(wide);
    return error;
}

/* Row `row` of the tensor, which has that width, must be `expected`. */
static void check_row(const struct large *large, const void *tensor, int64_t row, int64_t width,
                      enum up_dtype dtype, const float *expected, double allowed, const char *what)
{
    float *actual = malloc((size_t)width * sizeof *actual);
    download_row(large, tensor, row, width, dtype, actual);
    double error = error_of(actual, expected, width);
    free(actual);
    if (!(error <= allowed)) fail_msg("%s: row %lld is off by %g", what, (long long)row, error);
}

static const double NARROW = 4e-3; // what rounding to bf16 may cost, as in test_ops.c

static void test_swiglu(void **state)
{
    struct large large = large_or_skip(state);
    float *gate = fill_slot(&large, 0, 1, UP_BF16), *up = fill_slot(&large, 1, 2, UP_BF16);
    float *d_out = fill_slot(&large, 3, 3, UP_BF16), expected[3][WIDTH];
    poison_slot(&large, 2);
    up_op_swiglu_forward(&large.rig->rank, UP_STREAM_COMPUTE,
                         &(struct up_swiglu_forward_args){slot(&large, 0), slot(&large, 1),
                                                          slot(&large, 2), ELEMENTS, UP_BF16});
    up_op_swiglu_backward(&large.rig->rank, UP_STREAM_COMPUTE,
                          &(struct up_swiglu_backward_args){.gate = slot(&large, 0),
                                                            .up = slot(&large, 1),
                                                            .d_out = slot(&large, 3),
                                                            .d_gate = slot(&large, 0),
                                                            .d_up = slot(&large, 1),
                                                            .out = slot(&large, 3),
                                                            .count = ELEMENTS,
                                                            .dtype = UP_BF16});
    for (int i = 0; i < UP_COUNT(looked_at); i++) {
        int64_t row = looked_at[i];
        const float *g = row_of(gate, row), *u = row_of(up, row);
        up_cpu_swiglu_forward(&(struct up_swiglu_forward_args){g, u, expected[0], WIDTH, UP_F32});
        check_row(&large, slot(&large, 2), row, WIDTH, UP_BF16, expected[0], NARROW, "swiglu");
        check_row(&large, slot(&large, 3), row, WIDTH, UP_BF16, expected[0], NARROW, "made again");
        up_cpu_swiglu_backward(&(struct up_swiglu_backward_args){.gate = g,
                                                                 .up = u,
                                                                 .d_out = row_of(d_out, row),
                                                                 .d_gate = expected[0],
                                                                 .d_up = expected[1],
                                                                 .out = expected[2],
                                                                 .count = WIDTH});
        check_row(&large, slot(&large, 0), row, WIDTH, UP_BF16, expected[0], NARROW, "d_gate");
        check_row(&large, slot(&large, 1), row, WIDTH, UP_BF16, expected[1], NARROW, "d_up");
    }
    free(gate);
    free(up);
    free(d_out);
    up_free(&large.rig->rank, &large.pool);
}

/* The sum over all rows of what the cpu makes of dy and x: so many whole periods, and some rows. */
static void expect_d_weight(const float *x, const float *weight, const float *dy, float *d_weight)
{
    float *dx = malloc((size_t)PERIOD * WIDTH * sizeof *dx), part[2][WIDTH] = {{0}, {0}};
    const int64_t rows[] = {PERIOD, ROWS % PERIOD};
    for (int i = 0; i < 2; i++)
        up_cpu_rmsnorm_backward(&(struct up_rmsnorm_backward_args){.x = x,
                                                                   .weight = weight,
                                                                   .dy = dy,
                                                                   .dx = dx,
                                                                   .d_weight = part[i],
                                                                   .rows = rows[i],
                                                                   .width = WIDTH,
                                                                   .epsilon = NORM_EPSILON});
    for (int j = 0; j < WIDTH; j++)
        d_weight[j] = (float)((double)(ROWS / PERIOD) * (double)part[0][j] + (double)part[1][j]);
    free(dx);
}

static void check_norm_backward_row(const struct large *large, int64_t row, const float *x,
                                    const float *weight, const float *dy)
{
    float expected[WIDTH], d_weight[WIDTH] = {0};
    up_cpu_rmsnorm_backward(&(struct up_rmsnorm_backward_args){.x = row_of(x, row),
                                                               .weight = weight,
                                                               .dy = row_of(dy, row),
                                                               .dx = expected,
                                                               .d_weight = d_weight,
                                                               .rows = 1,
                                                               .width = WIDTH,
                                                               .epsilon = NORM_EPSILON});
    check_row(large, slot(large, 2), row, WIDTH, UP_BF16, expected, NARROW, "rmsnorm dx");
}

static void test_rmsnorm(void **state)
{
    struct large large = large_or_skip(state);
    struct up_rank *rank = &large.rig->rank;
    float *x = fill_slot(&large, 0, 1, UP_BF16), *dy = fill_slot(&large, 1, 2, UP_BF16);
    float *weight = make_numbers(3, WIDTH, UP_BF16), expected[WIDTH] = {0};
    struct up_tensor *w = small_tensor(&large, weight, WIDTH, UP_BF16);
    struct up_tensor *d_weight = small_tensor(&large, expected, WIDTH, UP_F32);
    poison_slot(&large, 2);
    poison_slot(&large, 3);
    up_op_rmsnorm_forward(rank, UP_STREAM_COMPUTE,
                          &(struct up_rmsnorm_forward_args){slot(&large, 0), w->data,
                                                            slot(&large, 3), ROWS, WIDTH,
                                                            NORM_EPSILON, UP_BF16});
    up_op_rmsnorm_backward(rank, UP_STREAM_COMPUTE,
                           &(struct up_rmsnorm_backward_args){
                               slot(&large, 0), w->data, slot(&large, 1), slot(&large, 2),
                               d_weight->data, ROWS, WIDTH, NORM_EPSILON, false, UP_BF16});
    for (int i = 0; i < UP_COUNT(looked_at); i++) {
        up_cpu_rmsnorm_forward(&(struct up_rmsnorm_forward_args){
            row_of(x, looked_at[i]), weight, expected, 1, WIDTH, NORM_EPSILON, UP_F32});
        check_row(&large, slot(&large, 3), looked_at[i], WIDTH, UP_BF16, expected, NARROW,
                  "rmsnorm");
        check_norm_backward_row(&large, looked_at[i], x, weight, dy);
    }
    expect_d_weight(x, weight, dy, expected);
    check_row(&large, d_weight->data, 0, WIDTH, UP_F32, expected, 1e-4, "rmsnorm d_weight");
    up_free(rank, &w);
    up_free(rank, &d_weight);
    free(x);
    free(dy);
    free(weight);
    up_free(rank, &large.pool);
}

/* Positions go on beyond those of the longest sequences. */
static void test_rope(void **state)
{
    struct large large = large_or_skip(state);
    const int64_t shape[] = {ROWS, WIDTH / HEAD_DIM, HEAD_DIM, 4000000, ROWS, 1, 0};
    struct up_rope_args a = {.rows = ROWS,
                             .heads = shape[1],
                             .head_dim = HEAD_DIM,
                             .first_position = shape[3],
                             .period = ROWS,
                             .config = rope_config(shape),
                             .dtype = UP_BF16};
    float *x = fill_slot(&large, 0, 1, UP_BF16), expected[WIDTH];
    poison_slot(&large, 1);
    a.x = slot(&large, 0);
    a.y = slot(&large, 1);
    up_op_rope(&large.rig->rank, UP_STREAM_COMPUTE, &a);
    for (int i = 0; i < UP_COUNT(looked_at); i++) {
        struct up_rope_args one = a;
        one.x = row_of(x, looked_at[i]);
        one.y = expected;
        one.rows = 1;
        one.first_position += looked_at[i];
        one.dtype = UP_F32;
        up_cpu_rope(&one);
        check_row(&large, a.y, looked_at[i], WIDTH, UP_BF16, expected, NARROW, "rope");
    }
    free(x);
    up_free(&large.rig->rank, &large.pool);
}

/* To fp32 and back; between the two the narrow tensor is zeroed. */
static void test_cast_and_fill(void **state)
{
    struct large large = large_or_skip(state);
    struct up_rank *rank = &large.rig->rank;
    float *x = fill_slot(&large, 0, 1, UP_BF16), zeros[WIDTH] = {0};
    void *narrow = slot(&large, 0), *wide = slot(&large, 2);
    poison_slot(&large, 2);
    poison_slot(&large, 3);
    up_op_cast(rank, UP_STREAM_COMPUTE,
               &(struct up_cast_args){narrow, wide, ELEMENTS, UP_BF16, UP_F32});
    up_op_fill(rank, UP_STREAM_COMPUTE, &(struct up_fill_args){.x = narrow, .bytes = SLOT_BYTES});
    for (int i = 0; i < UP_COUNT(looked_at); i++) {
        const float *expected = row_of(x, looked_at[i]);
        check_row(&large, wide, looked_at[i], WIDTH, UP_F32, expected, 0, "cast to fp32");
        check_row(&large, narrow, looked_at[i], WIDTH, UP_BF16, zeros, 0, "fill");
    }
    up_op_cast(rank, UP_STREAM_COMPUTE,
               &(struct up_cast_args){wide, narrow, ELEMENTS, UP_F32, UP_BF16});
    for (int i = 0; i < UP_COUNT(looked_at); i++)
        check_row(&large, narrow, looked_at[i], WIDTH, UP_BF16, row_of(x, looked_at[i]), 0,
                  "cast to bf16");
    free(x);
    up_free(rank, &large.pool);
}

/* Many rows out of a small table, and few out of a large one. */
static void test_embed_forward(void **state)
{
    struct large large = large_or_skip(state);
    struct up_rank *rank = &large.rig->rank;
    enum { FEW = UP_COUNT(looked_at) };
    float *table = fill_slot(&large, 0, 1, UP_BF16);
    int32_t *ids = malloc(ROWS * sizeof *ids), rows[FEW];
    for (int64_t i = 0; i < ROWS; i++) ids[i] = id_at(i, PERIOD);
    for (int i = 0; i < FEW; i++) rows[i] = (int32_t)looked_at[i];
    struct up_tensor *many = bytes_tensor(&large, ids, ROWS * (int64_t)sizeof *ids);
    struct up_tensor *few = bytes_tensor(&large, rows, sizeof rows);
    poison_slot(&large, 1);
    poison_slot(&large, 2);
    up_op_embed_forward(rank, UP_STREAM_COMPUTE,
                        &(struct up_embed_forward_args){many->data, slot(&large, 0),
                                                        slot(&large, 1), ROWS, WIDTH, PERIOD,
                                                        UP_BF16});
    up_op_embed_forward(rank, UP_STREAM_COMPUTE,
                        &(struct up_embed_forward_args){few->data, slot(&large, 0), slot(&large, 2),
                                                        FEW, WIDTH, ROWS, UP_BF16});
    for (int i = 0; i < FEW; i++) {
        int32_t id = ids[looked_at[i]];
        const float zeros[WIDTH] = {0}, *expected = id < 0 ? zeros : row_of(table, id);
        check_row(&large, slot(&large, 1), looked_at[i], WIDTH, UP_BF16, expected, 0, "embed");
        check_row(&large, slot(&large, 2), i, WIDTH, UP_BF16, row_of(table, rows[i]), 0,
                  "embed from a large table");
    }
    free(table);
    free(ids);
    up_free(rank, &many);
    up_free(rank, &few);
    up_free(rank, &large.pool);
}

/* Into a large table, many rows of which only the last few are not masked. */
static void test_embed_backward(void **state)
{
    struct large large = large_or_skip(state);
    struct up_rank *rank = &large.rig->rank;
    enum { FEW = UP_COUNT(looked_at) };
    float *d_out = fill_slot(&large, 0, 1, UP_BF16), zeros[WIDTH] = {0};
    int32_t *ids = malloc(ROWS * sizeof *ids);
    for (int64_t i = 0; i < ROWS; i++)
        ids[i] = i < ROWS - FEW ? -100 : (int32_t)looked_at[i - (ROWS - FEW)];
    struct up_tensor *many = bytes_tensor(&large, ids, ROWS * (int64_t)sizeof *ids);
    up_op_fill(rank, UP_STREAM_COMPUTE,
               &(struct up_fill_args){.x = slot(&large, 2), .bytes = 2 * SLOT_BYTES});
    up_op_embed_backward(rank, UP_STREAM_COMPUTE,
                         &(struct up_embed_backward_args){many->data, slot(&large, 0),
                                                          slot(&large, 2), ROWS, WIDTH, ROWS,
                                                          UP_BF16});
    for (int i = 0; i < FEW; i++)
        check_row(&large, slot(&large, 2), looked_at[i], WIDTH, UP_F32,
                  row_of(d_out, ROWS - FEW + i), 0, "embed backward");
    check_row(&large, slot(&large, 2), ROWS - 3, WIDTH, UP_F32, zeros, 0, "row without an id");
    free(d_out);
    free(ids);
    up_free(rank, &many);
    up_free(rank, &large.pool);
}

/* Loss and gradient (in the logits' place) of `rows` rows from row `first` of the period on. */
static double expect_loss(const float *logits, int64_t first, int64_t rows, float *gradient)
{
    double loss = 0;
    int32_t *targets = make_ids(PERIOD, WIDTH);
    memcpy(gradient, logits + first * WIDTH, (size_t)(rows * WIDTH) * sizeof *gradient);
    up_cpu_cross_entropy(&(struct up_cross_entropy_args){gradient, targets + first, &loss, 0.01f,
                                                         rows, WIDTH, UP_F32});
    free(targets);
    return loss;
}

static void test_cross_entropy(void **state)
{
    struct large large = large_or_skip(state);
    struct up_rank *rank = &large.rig->rank;
    float *logits = fill_slot(&large, 0, 1, UP_BF16);
    float *gradient = malloc((size_t)PERIOD * WIDTH * sizeof *gradient);
    int32_t *targets = malloc(ROWS * sizeof *targets);
    double actual = 0, loss = (double)(ROWS / PERIOD) * expect_loss(logits, 0, PERIOD, gradient) +
                              expect_loss(logits, 0, ROWS % PERIOD, gradient);
    for (int64_t i = 0; i < ROWS; i++) targets[i] = id_at(i % PERIOD, WIDTH);
    struct up_tensor *many = bytes_tensor(&large, targets, ROWS * (int64_t)sizeof *targets);
    struct up_tensor *sum = bytes_tensor(&large, &actual, sizeof actual);
    up_op_cross_entropy(rank, UP_STREAM_COMPUTE,
                        &(struct up_cross_entropy_args){slot(&large, 0), many->data, sum->data,
                                                        0.01f, ROWS, WIDTH, UP_BF16});
    for (int i = 0; i < UP_COUNT(looked_at); i++) {
        expect_loss(logits, looked_at[i] % PERIOD, 1, gradient);
        check_row(&large, slot(&large, 0), looked_at[i], WIDTH, UP_BF16, gradient, NARROW,
                  "logits");
    }
    rig_download(large.rig, &actual, sum->data, sizeof actual);
    if (!(fabs(actual / loss - 1) < 1e-6)) fail_msg("loss %.12g, expected %.12g", actual, loss);
    free(logits);
    free(gradient);
    free(targets);
    up_free(rank, &many);
    up_free(rank, &sum);
    up_free(rank, &large.pool);
}

/* y += x, and the sum of the result's squares: those of one period times its repetitions. */
static void test_fp32(void **state)
{
    struct large large = large_or_skip(state);
    struct up_rank *rank = &large.rig->rank;
    float *x = fill_slot(&large, 0, 1, UP_F32), *y = fill_slot(&large, 2, 2, UP_F32);
    double zero = 0, part[2] = {0}, actual = 0;
    struct up_tensor *sum = bytes_tensor(&large, &zero, sizeof zero);
    up_op_add(rank, UP_STREAM_COMPUTE,
              &(struct up_add_args){slot(&large, 0), slot(&large, 2), ELEMENTS, UP_F32});
    up_op_sum_squares(rank, UP_STREAM_COMPUTE,
                      &(struct up_sum_squares_args){slot(&large, 2), sum->data, ELEMENTS});
    up_cpu_add(&(struct up_add_args){x, y, (int64_t)PERIOD * WIDTH, UP_F32});
    const int64_t rows[] = {PERIOD, ROWS % PERIOD};
    for (int i = 0; i < 2; i++)
        up_cpu_sum_squares(&(struct up_sum_squares_args){y, &part[i], rows[i] * WIDTH});
    double expected = (double)(ROWS / PERIOD) * part[0] + part[1];
    for (int i = 0; i < UP_COUNT(looked_at); i++)
        check_row(&large, slot(&large, 2), looked_at[i], WIDTH, UP_F32, row_of(y, looked_at[i]), 0,
                  "add");
    rig_download(large.rig, &actual, sum->data, sizeof actual);
    if (!(fabs(actual / expected - 1) < 1e-12))
        fail_msg("sum of squares %.17g, expected %.17g", actual, expected);
    free(x);
    free(y);
    up_free(rank, &sum);
    up_free(rank, &large.pool);
}

/* A large A, then a large C: [ROWS, WIDTH] [WIDTH, 8] and [ROWS, 16] [16, WIDTH]. */
static void test_matmul(void **state)
{
    struct large large = large_or_skip(state);
    struct up_rank *rank = &large.rig->rank;
    enum { N = 8, K = 16 };
    float *a = fill_slot(&large, 0, 1, UP_BF16), *b = make_numbers(2, K * WIDTH, UP_BF16);
    struct up_tensor *right = small_tensor(&large, b, K * WIDTH, UP_BF16);
    struct up_matmul_args thin = {.a = slot(&large, 0),
                                  .b = right->data,
                                  .c = slot(&large, 1),
                                  .m = ROWS,
                                  .n = N,
                                  .k = WIDTH,
                                  .lda = WIDTH,
                                  .ldb = WIDTH,
                                  .ldc = N,
                                  .transpose_b = true,
                                  .dtype = UP_BF16,
                                  .c_dtype = UP_BF16};
    struct up_matmul_args wide = {.a = slot(&large, 0),
                                  .b = right->data,
                                  .c = slot(&large, 2),
                                  .m = ROWS,
                                  .n = WIDTH,
                                  .k = K,
                                  .lda = WIDTH,
                                  .ldb = WIDTH,
                                  .ldc = WIDTH,
                                  .dtype = UP_BF16,
                                  .c_dtype = UP_BF16};
    poison_slot(&large, 1);
    poison_slot(&large, 2);
    up_op_matmul(rank, UP_STREAM_COMPUTE, &thin);
    up_op_matmul(rank, UP_STREAM_COMPUTE, &wide);
    for (int i = 0; i < UP_COUNT(looked_at); i++) {
        float expected[WIDTH];
        struct up_matmul_args one[] = {thin, wide};
        for (int k = 0; k < 2; k++) {
            one[k].a = row_of(a, looked_at[i]);
            one[k].b = b;
            one[k].c = expected;
            one[k].m = 1;
            one[k].dtype = one[k].c_dtype = UP_F32;
            up_cpu_matmul(&one[k]);
            check_row(&large, slot(&large, 1 + k), looked_at[i], one[k].n, UP_BF16, expected,
                      NARROW, k ? "wide product" : "thin product");
        }
    }
    free(a);
    free(b);
    up_free(rank, &right);
    up_free(rank, &large.pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_swiglu),        cmocka_unit_test(test_rmsnorm),
        cmocka_unit_test(test_rope),          cmocka_unit_test(test_cast_and_fill),
        cmocka_unit_test(test_embed_forward), cmocka_unit_test(test_embed_backward),
        cmocka_unit_test(test_cross_entropy), cmocka_unit_test(test_fp32),
        cmocka_unit_test(test_matmul),
    };
    return cmocka_run_group_tests(tests, rig_start, rig_stop);
}
