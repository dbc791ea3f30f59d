/* The memory behind a GPU's arena, as it grows. */
#include "rig.h"

#if UPIPE_CUDA

enum { STEPS = 4200 }; // as many as the state of a model of a thousand layers may take
static const int64_t step_bytes = 2 << 20;

// By a step at a time, and all of it can be used.
static void test_grows_in_many_steps(void **state)
{
    struct up_error err = {0};
    (void)state;
    gpus_or_skip();
    struct up_device *device = up_device_cuda_create(0, &err);
    if (!device) fail_msg("%s", err.text);
    const struct up_device_ops *ops = device->ops;
    int64_t bytes = STEPS * step_bytes;
    unsigned char first = 7, last = 0;
    void *base = NULL;
    up_device_bind(device);
    assert_int_equal(ops->reserve(device, UP_SPACE_DEVICE, bytes, &base, &err), UP_OK);
    for (int64_t at = step_bytes; at <= bytes; at += step_bytes)
        if (ops->back(device, UP_SPACE_DEVICE, base, at, false, &err)) fail_msg("%s", err.text);
    assert_int_equal(device->backed[UP_SPACE_DEVICE], bytes);
    char *end = (char *)base + bytes - 1;
    ops->copy(device, UP_STREAM_COMPUTE, base, UP_SPACE_DEVICE, &first, UP_SPACE_HOST, 1);
    ops->copy(device, UP_STREAM_COMPUTE, end, UP_SPACE_DEVICE, base, UP_SPACE_DEVICE, 1);
    ops->copy(device, UP_STREAM_COMPUTE, &last, UP_SPACE_HOST, end, UP_SPACE_DEVICE, 1);
    ops->synchronize(device, ops->now_in(device, UP_STREAM_COMPUTE));
    if (ops->check(device, &err)) fail_msg("%s", err.text);
    assert_int_equal(last, first);
    ops->release(device, UP_SPACE_DEVICE, base, bytes);
    assert_int_equal(device->backed[UP_SPACE_DEVICE], 0);
    up_device_destroy(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_grows_in_many_steps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
static void test_grows_in_many_steps(void **state)
{
    (void)state;
    gpus_or_skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_grows_in_many_steps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
