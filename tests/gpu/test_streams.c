/* The order between a GPU's streams: a stream that waits for another that waits for a third waits
 * for the third, whether or not work was given in between. */
#include "rig.h"

#include <string.h>

#if UPIPE_CUDA

enum { FILLS = 200 };
static const int64_t bytes = 64 << 20;

static void fill(struct rig *rig, enum up_stream stream, struct up_tensor *tensor)
{
    up_op_fill(&rig->rank, stream,
               &(struct up_fill_args){.x = tensor->data, .bytes = tensor->bytes});
}

static struct up_tensor *take(struct rig *rig, const char *name)
{
    struct up_tensor *tensor = up_alloc(&rig->rank, UP_TAG(DATA, name), UP_U8, UP_SHAPE(bytes));
    rig_finish(rig);
    return tensor;
}

// From ones to zeros on the comm stream, after much work; how many ones a copy that waits for the
// compute stream, which waits for the comm stream, still finds.
static int64_t ones_left(struct rig *rig, bool mark)
{
    struct up_device *device = rig->device;
    struct up_tensor *busy = take(rig, "streams.busy"), *data = take(rig, "streams.data");
    unsigned char *host = malloc((size_t)bytes);
    int64_t left = 0;
    assert_non_null(host);
    memset(host, 1, (size_t)bytes);
    rig_upload(rig, data->data, host, bytes);

    // An event of the compute stream's last work exists before that stream waits for anything.
    fill(rig, UP_STREAM_COMPUTE, busy);
    up_stream_wait(&rig->rank, UP_STREAM_COMM, UP_STREAM_COMPUTE);
    for (int i = 0; i < FILLS; i++) fill(rig, UP_STREAM_COMM, busy);
    fill(rig, UP_STREAM_COMM, data);
    struct up_moment there = up_stream_moment(&rig->rank, UP_STREAM_COMM);
    if (mark) // more that nobody waits for
        for (int i = 0; i < FILLS; i++) fill(rig, UP_STREAM_COMM, busy);
    up_stream_wait_moment(&rig->rank, UP_STREAM_COMPUTE, there);
    up_stream_wait(&rig->rank, UP_STREAM_COPY_OUT, UP_STREAM_COMPUTE);
    device->ops->copy(device, UP_STREAM_COPY_OUT, host, UP_SPACE_HOST, data->data, UP_SPACE_DEVICE,
                      bytes);
    up_stream_synchronize(&rig->rank, UP_STREAM_COPY_OUT);
    up_stream_synchronize(&rig->rank, UP_STREAM_COMM);
    rig_finish(rig);
    for (int64_t i = 0; i < bytes; i++) left += host[i];
    free(host);
    up_free(&rig->rank, &data);
    up_free(&rig->rank, &busy);
    return left;
}

static void test_waits_carry_over(void **state)
{
    struct rig *rig = rig_or_skip(state);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ones_left(rig, false), 0);
        assert_int_equal(ones_left(rig, true), 0);
    }
}

int main(void)
{
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_waits_carry_over)};
    return cmocka_run_group_tests(tests, rig_start, rig_stop);
}
#else
static void test_waits_carry_over(void **state)
{
    (void)state;
    gpus_or_skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_waits_carry_over)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
