/* Where arithmetic is delicate: rounding to bf16, exp over its range, logits far apart, clipping,
 * RoPE's frequencies; and what operations cost. */
#include "ops/cpu/cpu_impl.h"
#include "ops/ops_impl.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void test_rounding_to_bf16(void **state)
{
    (void)state;
    static const struct {
        uint32_t from;
        uint16_t to;
    } cases[] = {
        {0x3f800000, 0x3f80}, {0x3f808000, 0x3f80}, // a tie goes to the even neighbour below
        {0x3f818000, 0x3f82},                       // and above
        {0x3f808001, 0x3f81}, {0x3f807fff, 0x3f80}, {0xbf818000, 0xbf82}, {0x80000000, 0x8000},
        {0x00000001, 0x0000}, {0x7f7fffff, 0x7f80}, // the largest fp32 becomes infinity
        {0x7f800000, 0x7f80}, {0xff800000, 0xff80},
    };
    for (int i = 0; i < UP_COUNT(cases); i++) {
        float x = float_of(cases[i].from);
        uint16_t y = 0;
        up_cpu_cast(&(struct up_cast_args){&x, &y, 1, UP_F32, UP_BF16});
        assert_int_equal(y, cases[i].to);
    }
}

/* Also NaNs whose payload is in the lower half only, which cutting it off would make infinite. */
static void test_nan_stays_nan(void **state)
{
    (void)state;
    static const uint32_t nans[] = {0x7fc00000, 0x7f800001, 0xff800001, 0x7fffffff, 0xffffffff};
    for (int i = 0; i < UP_COUNT(nans); i++) {
        float x = float_of(nans[i]), back = 0;
        uint16_t y = 0;
        up_cpu_cast(&(struct up_cast_args){&x, &y, 1, UP_F32, UP_BF16});
        up_cpu_cast(&(struct up_cast_args){&y, &back, 1, UP_BF16, UP_F32});
        assert_true(isnan(back));
        assert_int_equal(bits_of(back) >> 31, nans[i] >> 31);
        assert_true(isnan(up_cpu_exp(x)));
    }
}

static void test_exp(void **state)
{
    (void)state;
    double worst = 0;
    for (int64_t i = 0; i <= 1750000; i++) {
        float x = (float)(-87 + (double)i * 1e-4);
        worst = fmax(worst, fabs((double)up_cpu_exp(x) / exp((double)x) - 1));
    }
    if (!(worst < 1e-7)) fail_msg("relative error of exp is %g", worst);
    assert_true(up_cpu_exp(0) == 1);
    assert_true(up_cpu_exp(-INFINITY) < 2e-38f);
    assert_true(isfinite(up_cpu_exp(INFINITY)));
}

/* The loss of one row, and its gradient in place. */
static double loss_of(float *logits, int64_t vocab, int32_t target)
{
    double loss = 0;
    up_cpu_cross_entropy(&(struct up_cross_entropy_args){.logits = logits,
                                                         .targets = &target,
                                                         .loss_sum = &loss,
                                                         .scale = 1,
                                                         .rows = 1,
                                                         .vocab = vocab});
    return loss;
}

static void test_loss_of_a_large_vocabulary(void **state)
{
    (void)state;
    enum { VOCAB = 151936 };
    float *x = malloc(VOCAB * sizeof *x);
    double sum = 0;
    for (int i = 0; i < VOCAB; i++) {
        x[i] = 3 * up_random_normal(5, 0, (uint64_t)i);
        sum += exp((double)x[i]);
    }
    double expected = log(sum) - (double)x[77];
    double loss = loss_of(x, VOCAB, 77), total = 0;
    for (int i = 0; i < VOCAB; i++) total += (double)x[i];
    free(x);
    if (!(fabs(loss / expected - 1) < 1e-7)) fail_msg("loss %.10g, expected %.10g", loss, expected);
    assert_true(fabs(total) < 1e-6); // gradients of a row sum to nothing
}

static void test_loss_of_extreme_logits(void **state)
{
    (void)state;
    float far[] = {1e4f, -1e4f, 0};
    assert_true(loss_of(far, 3, 1) == 2e4);
    assert_true(far[0] == 1 && far[1] == -1);
    float low[] = {-1e30f, -1e30f};
    assert_true(fabs(loss_of(low, 2, 0) - log(2)) < 1e-7);
    float lost[] = {0, NAN, 0};
    assert_true(isnan(loss_of(lost, 3, 0)));
}

static float weight_after(double norm_squared, double clip)
{
    float weight = 1, m = 0, v = 0, gradient = 1e-3f;
    up_cpu_adamw(&(struct up_adamw_args){.weight = &weight,
                                         .m = &m,
                                         .v = &v,
                                         .gradient = &gradient,
                                         .norm_squared = &norm_squared,
                                         .count = 1,
                                         .t = 1,
                                         .lr = 0.1,
                                         .beta1 = 0.9,
                                         .beta2 = 0.95,
                                         .epsilon = 1e-3,
                                         .clip = clip});
    return weight;
}

/* With epsilon as large as the gradient the first step tells how the gradient was scaled:
 * w = 1 - lr g / (|g| + epsilon). */
static void test_clipping(void **state)
{
    (void)state;
    assert_true(fabs((double)weight_after(1e6, 0) - 0.95) < 1e-6);
    assert_true(fabs((double)weight_after(0.25, 1) - 0.95) < 1e-6); // within the limit: as it is
    assert_true(fabs((double)weight_after(9, 1) - (1 - 0.1 / 4)) < 1e-6);
    assert_true(isnan(weight_after(NAN, 1)));
}

static void test_rope_frequencies(void **state)
{
    (void)state;
    struct up_rope_config plain = {.theta = 500000};
    struct up_rope_config scaled = {500000, true, 8, 1, 4, 8192};
    assert_true(up_rope_frequency(&plain, 0, 128) == 1);
    assert_true(fabs(up_rope_frequency(&plain, 32, 128) * sqrt(500000) - 1) < 1e-12);
    int kept = 0, divided = 0, between = 0;
    for (int i = 0; i < 64; i++) {
        double ratio = up_rope_frequency(&scaled, i, 128) / up_rope_frequency(&plain, i, 128);
        kept += ratio == 1;
        divided += ratio == 0.125;
        between += ratio > 0.125 && ratio < 1;
    }
    /* Wavelengths below 2048 are those of pairs up to 28, above 8192 those from 35 on. */
    assert_int_equal(kept, 29);
    assert_int_equal(between, 6);
    assert_int_equal(divided, 29);
}

static void test_costs(void **state)
{
    (void)state;
    struct up_cost cost = up_cost_matmul(&(struct up_matmul_args){
        .m = 2, .n = 3, .k = 5, .beta = 1, .dtype = UP_BF16, .c_dtype = UP_F32});
    assert_true(cost.class == UP_COST_MATMUL && cost.flops == 60);
    assert_true(cost.bytes == 2 * (2 * 5 + 5 * 3) + 2 * 4 * 2 * 3);

    struct up_attention_shape shape = {2, 1024, 8, 2, 64, 4, 0};
    cost = up_cost_attention_forward(
        &(struct up_attention_forward_args){.shape = shape, .dtype = UP_BF16});
    assert_true(cost.class == UP_COST_ATTENTION_FORWARD && cost.head_dim == 64);
    assert_true(cost.flops == 2.0 * 2 * 2 * 8 * 64 * 1024 * 1024 / 2);
    assert_true(cost.bytes == 2.0 * 2 * 1024 * 64 * (8 + 8 + 2 + 2) + 4 * 2 * 8 * 1024);
    struct up_cost backward = up_cost_attention_backward(
        &(struct up_attention_backward_args){.shape = shape, .dtype = UP_BF16});
    assert_true(backward.class == UP_COST_ATTENTION_BACKWARD && backward.head_dim == 64);
    assert_true(backward.flops == 2.5 * cost.flops);
    assert_true(cost.runs == 2 && backward.runs == 2); // one for each sequence
    assert_true(!cost.own && !backward.own);
    shape.head_dim = 48; // which cuDNN does not serve
    assert_true(up_cost_attention_forward(
                    &(struct up_attention_forward_args){.shape = shape, .dtype = UP_BF16})
                    .own);

    cost = up_cost_adamw(&(struct up_adamw_args){.count = 10});
    assert_true(cost.class == UP_COST_ADAMW && cost.flops == 0 && cost.bytes == 280);
    cost = up_cost_swiglu_forward(&(struct up_swiglu_forward_args){.count = 10, .dtype = UP_BF16});
    assert_true(cost.class == UP_COST_POINTWISE && cost.flops == 0 && cost.bytes == 60);
    /* Shapes of the largest models must not overflow. */
    cost = up_cost_matmul(&(struct up_matmul_args){
        .m = 1 << 24, .n = 1 << 24, .k = 1 << 24, .dtype = UP_F32, .c_dtype = UP_F32});
    assert_true(cost.flops == 0x1p73);
}

static int64_t scratch(enum up_device_kind kind, int64_t batch, int64_t seq, int64_t heads,
                       int64_t group, int64_t head_dim, bool accumulate)
{
    struct up_attention_shape shape = {.batch = batch,
                                       .seq = seq,
                                       .heads = heads,
                                       .kv_heads = up_ceil_div(heads, group),
                                       .head_dim = head_dim,
                                       .group = group};
    return up_scratch_attention_backward(kind, &shape, accumulate);
}

/* cuDNN's figures were measured on an H200: accumulator, softmax sums, workspace; dk and dv where
 * they are to be added. */
static void test_scratch_of_attention(void **state)
{
    (void)state;
    const int64_t K = 1024, M = 1024 * K;
    /* 8192 tokens: 8 query heads of 2 KV heads at once. */
    assert_int_equal(scratch(UP_DEVICE_CUDA, 1, 8 * K, 8, 4, 128, false),
                     32 * M + 256 * K + 32 * M + 256);
    /* One of one, and the same to be added. */
    assert_int_equal(scratch(UP_DEVICE_CUDA, 3, 131072, 1, 1, 128, false), 67108864 + 524288 + 256);
    assert_int_equal(scratch(UP_DEVICE_CUDA, 3, 131072, 1, 1, 128, true),
                     67108864 + 524288 + 256 + 67108864);
    /* Heads of a long sequence go one by one, and those of a group add up. */
    assert_int_equal(scratch(UP_DEVICE_CUDA, 1, M, 8, 1, 128, false), 512 * M + 4 * M + 256);
    assert_int_equal(scratch(UP_DEVICE_CUDA, 1, M, 8, 4, 128, false), 1024 * M + 4 * M + 256);
    /* Beyond 2^31 elements o and d_o are gathered, 1 GiB each. */
    assert_int_equal(scratch(UP_DEVICE_CUDA, 1, 4 * M, 8, 1, 128, false),
                     2048 * M + 16 * M + 256 + 2048 * M);
    /* What cuDNN does not serve: a number per query row. */
    assert_int_equal(scratch(UP_DEVICE_CUDA, 2, 1000, 3, 1, 80, true), 12032);
    assert_int_equal(scratch(UP_DEVICE_CUDA, 1, 77, 8, 1, 128, false),
                     77 * 8 * 128 * 4 + 2560 + 256); // 2464 bytes of sums, rounded up
    /* On cpu a number per query row, and at most 16 blocks of 128 rows. */
    assert_int_equal(scratch(UP_DEVICE_CPU, 1, 1 << 20, 8, 2, 16, false),
                     4 * (8 << 20) + 4 * 16 * 128 * 16);
    assert_int_equal(scratch(UP_DEVICE_CPU, 1, 10, 2, 2, 4, false), 4 * 20 + 4 * 10 * 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounding_to_bf16),
        cmocka_unit_test(test_nan_stays_nan),
        cmocka_unit_test(test_exp),
        cmocka_unit_test(test_loss_of_a_large_vocabulary),
        cmocka_unit_test(test_loss_of_extreme_logits),
        cmocka_unit_test(test_clipping),
        cmocka_unit_test(test_rope_frequencies),
        cmocka_unit_test(test_costs),
        cmocka_unit_test(test_scratch_of_attention),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
