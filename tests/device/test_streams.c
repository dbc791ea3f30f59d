/* Streams and events: the stream test mode honours every order that is asked for, shows those that
 * are not, and the dry device's clocks say when things would have run. */
#include "mem/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

struct set_args {
    int *to;
    const int *from; // NULL: `value`
    int value;
};

static void run_set(const void *args)
{
    const struct set_args *set = args;
    *set->to = set->from ? *set->from : set->value;
}

static void set(struct up_device *device, enum up_stream stream, int *to, const int *from,
                int value)
{
    struct set_args args = {to, from, value};
    device->ops->launch(device, stream, (union up_call){.cpu = run_set}, &args, sizeof args,
                        &(struct up_cost){0});
}

// compute: a = seed;  copy-out waits, b = a;  compute waits, a = 0.
static int relay(uint64_t seed, bool wait)
{
    struct up_error error = {0};
    struct up_device *device = up_device_cpu_create(1, seed, &error);
    int a = 0, b = -1;
    assert_non_null(device);
    set(device, UP_STREAM_COMPUTE, &a, NULL, 7);
    if (wait)
        device->ops->wait(device, UP_STREAM_COPY_OUT,
                          device->ops->now_in(device, UP_STREAM_COMPUTE));
    set(device, UP_STREAM_COPY_OUT, &b, &a, 0);
    if (wait)
        device->ops->wait(device, UP_STREAM_COMPUTE,
                          device->ops->now_in(device, UP_STREAM_COPY_OUT));
    set(device, UP_STREAM_COMPUTE, &a, NULL, 0);
    up_device_destroy(device);
    return b;
}

static void test_waits_are_honoured(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 100; seed++) assert_int_equal(relay(seed, true), 7);
}

static void test_missing_waits_show(void **state)
{
    (void)state;
#if defined(__SANITIZE_THREAD__)
    skip(); // the race is the point
#endif
    int wrong = 0;
    for (uint64_t seed = 1; seed <= 100; seed++) wrong += relay(seed, false) != 7;
    assert_true(wrong > 0);
}

// Bytes freed on one stream and taken on another: the taker waits for the last use.
static void test_reuse_across_streams_waits(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        struct up_error error = {0};
        struct up_rank rank;
        int seen = -1, slow = 0;
        struct up_device *device = up_device_cpu_create(1, seed, &error);
        assert_int_equal(up_rank_init(&rank, 0, device, NULL, (int64_t[]){256, 256}, &error),
                         UP_OK);
        struct up_tensor *a = up_alloc(&rank, UP_TAG(MLP, "a"), UP_I32, UP_SHAPE(1));
        set(device, UP_STREAM_COMPUTE, a->data, NULL, 5);
        up_stream_wait(&rank, UP_STREAM_COPY_OUT, UP_STREAM_COMPUTE);
        for (int i = 0; i < 5; i++) set(device, UP_STREAM_COPY_OUT, &slow, NULL, i);
        set(device, UP_STREAM_COPY_OUT, &seen, a->data, 0);
        up_free_on(&rank, &a, UP_STREAM_COPY_OUT);
        struct up_tensor *b = up_alloc(&rank, UP_TAG(MLP, "b"), UP_I32, UP_SHAPE(1));
        set(device, UP_STREAM_COMPUTE, b->data, NULL, 6);
        int *at = b->data;
        for (int s = 0; s < UP_STREAM_COUNT; s++) up_stream_synchronize(&rank, (enum up_stream)s);
        assert_int_equal(seen, 5);
        assert_int_equal(*at, 6); // nor was it poisoned late
        up_free(&rank, &b);
        up_stream_synchronize(&rank, UP_STREAM_COMPUTE);
        assert_int_equal(*at, -1); // poison
        up_rank_release(&rank);
        up_device_destroy(device);
    }
}

static void test_dry_clock(void **state)
{
    (void)state;
    struct up_error error = {0};
    struct up_machine machine = {.name = "test",
                                 .flops = {1e9, 1e9, 1e9, 0},
                                 .memory_bytes_per_s = 1e9,
                                 .to_host_bytes_per_s = 1e9,
                                 .from_host_bytes_per_s = 2e9,
                                 .link_bytes_per_s = 1e8,
                                 .launch_s = 1e-6};
    struct up_device *device = up_device_dry_create(UP_DEVICE_CUDA, &machine, &error);
    const struct up_device_ops *ops = device->ops;
    union up_call nothing = {NULL};
    struct up_cost matmul = {.class = UP_COST_MATMUL, .flops = 5e6, .bytes = 1e3};
    struct up_cost tiny = {.class = UP_COST_POINTWISE, .flops = 1e12, .bytes = 10};
    struct up_interval first = ops->launch(device, UP_STREAM_COMPUTE, nothing, NULL, 0, &matmul);
    assert_int_equal(first.begin_ns, 0);
    assert_int_equal(first.end_ns, 5001000);
    // Pointwise work is bound by memory, and everything takes a launch besides.
    struct up_interval second = ops->launch(device, UP_STREAM_COMPUTE, nothing, NULL, 0, &tiny);
    assert_int_equal(second.end_ns - second.begin_ns, 1010);
    // Another stream runs beside it until told to wait.
    struct up_interval beside =
        ops->copy(device, UP_STREAM_COPY_OUT, NULL, UP_SPACE_HOST, NULL, UP_SPACE_DEVICE, 1000000);
    assert_int_equal(beside.begin_ns, 0);
    assert_int_equal(beside.end_ns, 1001000);
    ops->wait(device, UP_STREAM_COPY_IN, ops->now_in(device, UP_STREAM_COMPUTE));
    struct up_interval after =
        ops->copy(device, UP_STREAM_COPY_IN, NULL, UP_SPACE_DEVICE, NULL, UP_SPACE_HOST, 1000000);
    assert_int_equal(after.begin_ns, second.end_ns);
    assert_int_equal(after.end_ns, second.end_ns + 501000);
    assert_int_equal(ops->clock_ns(device), second.end_ns);
    ops->synchronize(device, ops->now_in(device, UP_STREAM_COPY_IN));
    assert_int_equal(ops->clock_ns(device), after.end_ns);
    up_device_destroy(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_waits_are_honoured),
        cmocka_unit_test(test_missing_waits_show),
        cmocka_unit_test(test_reuse_across_streams_waits),
        cmocka_unit_test(test_dry_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
