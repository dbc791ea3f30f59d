/* What collectives tell the trace of themselves. */
#include "comm/comm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

enum { RING = 64 };

// A rank of a dry group, which tells its trace what it would send.
struct place {
    struct up_device *device;
    struct up_trace *trace;
    struct up_rank rank;
    struct up_comm *comm;
};

static void open_place(struct place *place, int size, int rank)
{
    const struct up_machine machine = {
        .name = "test", .memory_bytes_per_s = 1e12, .link_bytes_per_s = 1e11, .launch_s = 1e-6};
    struct up_error error = {0};
    place->device = up_device_dry_create(UP_DEVICE_CPU, &machine, &error);
    place->trace = up_trace_create(rank, RING);
    assert_non_null(place->device);
    assert_non_null(place->trace);
    assert_int_equal(up_rank_init(&place->rank, rank, place->device, place->trace, NULL, &error),
                     UP_OK);
    assert_int_equal(up_comm_dry_create(size, rank, &place->comm, &error), UP_OK);
}

static void close_place(struct place *place)
{
    up_comm_destroy(place->comm);
    up_rank_release(&place->rank);
    up_trace_destroy(place->trace);
    up_device_destroy(place->device);
}

// Of the one collective since the last call.
static int64_t bytes_told(struct place *place)
{
    struct up_event event;
    int64_t bytes = -1;
    while (up_trace_take(place->trace, &event, 1))
        if (event.kind == UP_EVENT_COLLECTIVE) {
            assert_int_equal(bytes, -1);
            bytes = event.work.bytes;
        }
    return bytes;
}

// Numbers of elements that do not divide by the ranks, down to one.
static void test_bytes(void **state)
{
    (void)state;
    static const int64_t counts[] = {1, 2, 3, 1000, (INT64_C(1) << 40) + 1};
    for (int size = 2; size <= 5; size++) {
        struct place place;
        open_place(&place, size, 1);
        for (int i = 0; i < UP_COUNT(counts); i++) {
            int64_t bytes = 8 * counts[i];
            void *buffer = place.rank.base[UP_SPACE_DEVICE];
            up_comm_all_reduce(&place.rank, place.comm, UP_STREAM_COMM, buffer, counts[i], UP_F64);
            assert_int_equal(bytes_told(&place), 2 * bytes * (size - 1) / size);
            up_comm_all_gather(&place.rank, place.comm, UP_STREAM_COMM, buffer, counts[i], UP_F64);
            assert_int_equal(bytes_told(&place), bytes * (size - 1));
            up_comm_reduce_scatter(&place.rank, place.comm, UP_STREAM_COMM, buffer, counts[i]);
            assert_int_equal(bytes_told(&place), bytes / 2 * (size - 1));
            for (int root = 0; root < 2; root++) {
                up_comm_broadcast(&place.rank, place.comm, UP_STREAM_COMM, buffer, counts[i],
                                  UP_F64, root);
                assert_int_equal(bytes_told(&place), root == 1 ? bytes : 0);
            }
        }
        close_place(&place);
    }
}

// Uneven parts; what stays at home is not sent.
static void test_bytes_of_an_exchange(void **state)
{
    (void)state;
    static const int64_t send_at[] = {2, 5, 12, 13}, receive_at[] = {0, 1, 8, 9};
    struct place place;
    open_place(&place, 3, 1);
    char *buffer = place.rank.base[UP_SPACE_DEVICE];
    up_comm_all_to_all(&place.rank, place.comm, UP_STREAM_COMM, buffer, buffer + 4096,
                       &(struct up_exchange){send_at, receive_at}, UP_BF16);
    assert_int_equal(bytes_told(&place), 2 * (3 + 1));
    close_place(&place);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_bytes),
                                       cmocka_unit_test(test_bytes_of_an_exchange)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
