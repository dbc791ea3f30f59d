/* The dry device's clock. */
#include "device/device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static struct up_device *device_of(double link_bytes_per_s)
{
    const struct up_machine machine = {.name = "test",
                                       .flops = {[UP_COST_MATMUL] = 1e12},
                                       .memory_bytes_per_s = 1e12,
                                       .pace = {[UP_COST_ADAMW] = 5e11},
                                       .to_host_bytes_per_s = 1e10,
                                       .from_host_bytes_per_s = 1e10,
                                       .link_bytes_per_s = link_bytes_per_s,
                                       .launch_s = 1e-6};
    struct up_error error = {0};
    struct up_device *device = up_device_dry_create(UP_DEVICE_CUDA, &machine, &error);
    assert_non_null(device);
    return device;
}

static struct up_interval work(struct up_device *device, enum up_cost_class class, double flops,
                               double bytes)
{
    const struct up_cost cost = {.class = class, .flops = flops, .bytes = bytes};
    return device->ops->launch(device, UP_STREAM_COMPUTE, (union up_call){0}, NULL, 0, &cost);
}

static void test_rates(void **state)
{
    (void)state;
    struct up_device *device = device_of(1e9);
    struct up_interval first = work(device, UP_COST_MATMUL, 2e12, 0);
    assert_int_equal(first.begin_ns, 0);
    assert_int_equal(first.end_ns, 2000001000);
    assert_int_equal(work(device, UP_COST_POINTWISE, 0, 1e9).end_ns, 2001002000);
    assert_int_equal(work(device, UP_COST_POINTWISE, 0, 0).end_ns, 2001003000);
    assert_int_equal(work(device, UP_COST_COLLECTIVE, 0, 1e9).end_ns, 3001004000);
    assert_int_equal(work(device, UP_COST_ADAMW, 0, 1e9).end_ns, 3003005000); // a pace of its own
    up_device_destroy(device);
}

// Narrow heads go at their own rate where the machine has one, and so does what upipe's own kernels
// have to do; what is no attention never does.
static void test_head_dims(void **state)
{
    (void)state;
    static const struct {
        double narrow;
        enum up_cost_class class;
        int64_t head_dim;
        double seconds;
        bool own;
    } rows[] = {{5e11, UP_COST_ATTENTION_FORWARD, 128, 1, false},
                {5e11, UP_COST_ATTENTION_FORWARD, 96, 1, false},
                {5e11, UP_COST_ATTENTION_FORWARD, 64, 2, false},
                {5e11, UP_COST_ATTENTION_FORWARD, 16, 2, false},
                {5e11, UP_COST_ATTENTION_BACKWARD, 64, 4, false},
                {5e11, UP_COST_MATMUL, 0, 1, false},
                {0, UP_COST_ATTENTION_FORWARD, 64, 1, false},
                {0, UP_COST_ATTENTION_BACKWARD, 64, 4, false},
                {5e11, UP_COST_ATTENTION_FORWARD, 32, 20, true},
                {5e11, UP_COST_ATTENTION_FORWARD, 256, 10, true},
                {0, UP_COST_ATTENTION_BACKWARD, 32, 4, true}};
    for (int i = 0; i < UP_COUNT(rows); i++) {
        struct up_error error = {0};
        const struct up_machine machine = {
            .name = "test",
            .flops = {1e12, 1e12, 2.5e11},
            .narrow_flops = {[UP_COST_ATTENTION_FORWARD] = rows[i].narrow},
            .own_flops = {[UP_COST_ATTENTION_FORWARD] = 1e11},
            .own_narrow_flops = {[UP_COST_ATTENTION_FORWARD] = 5e10},
            .memory_bytes_per_s = 1e12};
        const struct up_cost cost = {.class = rows[i].class,
                                     .flops = 1e12,
                                     .head_dim = rows[i].head_dim,
                                     .own = rows[i].own};
        struct up_device *device = up_device_dry_create(UP_DEVICE_CUDA, &machine, &error);
        assert_non_null(device);
        struct up_interval ran =
            device->ops->launch(device, UP_STREAM_COMPUTE, (union up_call){0}, NULL, 0, &cost);
        if (ran.end_ns != (int64_t)(rows[i].seconds * 1e9))
            fail_msg("row %d: %lld ns", i, (long long)ran.end_ns);
        up_device_destroy(device);
    }
}

// Which kernels do it on a GPU, and in how many runs, is nothing to a processor.
static void test_cpu_has_no_kernels(void **state)
{
    (void)state;
    const struct up_machine machine = {.name = "test",
                                       .flops = {[UP_COST_ATTENTION_FORWARD] = 1e12},
                                       .own_flops = {[UP_COST_ATTENTION_FORWARD] = 1e11},
                                       .run_s = {[UP_COST_ATTENTION_FORWARD] = 1},
                                       .memory_bytes_per_s = 1e12};
    static const int64_t seconds[2][2] = {{1, 1}, {4, 10}}; // of others' kernels, of its own
    for (int i = 0; i < 4; i++) {
        struct up_error error = {0};
        const struct up_cost cost = {.class = UP_COST_ATTENTION_FORWARD,
                                     .flops = 1e12,
                                     .head_dim = 128,
                                     .runs = 3,
                                     .own = i % 2};
        struct up_device *device =
            up_device_dry_create(i / 2 ? UP_DEVICE_CUDA : UP_DEVICE_CPU, &machine, &error);
        assert_non_null(device);
        assert_int_equal(
            device->ops->launch(device, UP_STREAM_COMPUTE, (union up_call){0}, NULL, 0, &cost)
                .end_ns,
            seconds[i / 2][i % 2] * 1000000000);
        up_device_destroy(device);
    }
}

// A run of attention takes something whatever its work, of each class its own.
static void test_runs(void **state)
{
    (void)state;
    static const struct {
        enum up_cost_class class;
        int64_t runs, ns;
    } rows[] = {{UP_COST_ATTENTION_FORWARD, 0, 1000000000},
                {UP_COST_ATTENTION_FORWARD, 3, 1030000000},
                {UP_COST_ATTENTION_BACKWARD, 3, 1060000000},
                {UP_COST_MATMUL, 3, 1000000000}};
    const struct up_machine machine = {
        .name = "test",
        .flops = {1e12, 1e12, 1e12},
        .run_s = {[UP_COST_ATTENTION_FORWARD] = 1e-2, [UP_COST_ATTENTION_BACKWARD] = 2e-2},
        .memory_bytes_per_s = 1e12};
    for (int i = 0; i < UP_COUNT(rows); i++) {
        struct up_error error = {0};
        const struct up_cost cost = {.class = rows[i].class, .flops = 1e12, .runs = rows[i].runs};
        struct up_device *device = up_device_dry_create(UP_DEVICE_CUDA, &machine, &error);
        assert_non_null(device);
        assert_int_equal(
            device->ops->launch(device, UP_STREAM_COMPUTE, (union up_call){0}, NULL, 0, &cost)
                .end_ns,
            rows[i].ns);
        up_device_destroy(device);
    }
}

// Work of centuries ends at the end of time, from where the clock goes neither on nor back.
static void test_end_of_time(void **state)
{
    (void)state;
    static const double flops[] = {5e30, 1e60, INFINITY};
    for (int i = 0; i < UP_COUNT(flops); i++) {
        struct up_device *device = device_of(0);
        struct up_interval before = work(device, UP_COST_MATMUL, 1e12, 0);
        struct up_interval longest = work(device, UP_COST_MATMUL, flops[i], 0);
        struct up_interval after = work(device, UP_COST_COLLECTIVE, 0, 1);
        assert_int_equal(longest.begin_ns, before.end_ns);
        assert_true(longest.end_ns > INT64_C(1) << 61);
        assert_int_equal(after.end_ns, longest.end_ns);
        device->ops->synchronize(device, device->ops->now_in(device, UP_STREAM_COMPUTE));
        assert_int_equal(device->ops->clock_ns(device), longest.end_ns);
        up_device_destroy(device);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rates), cmocka_unit_test(test_head_dims), cmocka_unit_test(test_runs),
        cmocka_unit_test(test_cpu_has_no_kernels), cmocka_unit_test(test_end_of_time)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
