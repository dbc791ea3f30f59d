/* The ring: everything arrives, once and in order, between two threads; it waits when full; it can
 * be closed and given up. */
#include "trace/trace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { MANY = 300000 };

static struct up_event numbered(uint64_t number)
{
    struct up_event event = {.kind = UP_EVENT_KERNEL, .seq = number, .ns = (int64_t)number * 3};
    event.work.bytes = ~(int64_t)number;
    return event;
}

static void assert_numbered(const struct up_event *event, uint64_t number)
{
    struct up_event expected = numbered(number);
    assert_memory_equal(event, &expected, sizeof expected);
}

static void *push_many(void *trace)
{
    for (uint64_t i = 0; i < MANY; i++) {
        struct up_event event = numbered(i);
        up_trace_push(trace, &event);
    }
    up_trace_close(trace);
    return NULL;
}

// A capacity so small that it wraps and fills all the time, and takes of every size.
static void two_threads_lose_and_reorder_nothing(void **state)
{
    (void)state;
    struct up_event batch[64];
    pthread_t thread;
    struct up_trace *trace = up_trace_create(5, 48); // rounded up to 64
    assert_int_equal(up_trace_rank(trace), 5);
    pthread_create(&thread, NULL, push_many, trace);
    uint64_t next = 0;
    for (int max = 1; !up_trace_closed(trace); max = max % 64 + 1) {
        int taken = up_trace_take(trace, batch, max);
        assert_in_range(taken, 0, max);
        for (int i = 0; i < taken; i++) assert_numbered(&batch[i], next++);
    }
    assert_int_equal(next, MANY);
    pthread_join(thread, NULL);
    assert_int_equal(up_trace_take(trace, batch, 64), 0);
    up_trace_destroy(trace);
}

static void capacity_is_a_power_of_two(void **state)
{
    (void)state;
    struct up_event batch[64];
    struct up_trace *trace = up_trace_create(0, 33);
    for (uint64_t i = 0; i < 64; i++) { // would block if there were room for 33 alone
        struct up_event event = numbered(i);
        up_trace_push(trace, &event);
    }
    assert_int_equal(up_trace_take(trace, batch, 64), 64);
    assert_int_equal(up_trace_waits(trace), 0);
    up_trace_destroy(trace);
}

struct pusher {
    struct up_trace *trace;
    int count;
    atomic_int pushed;
};

static void *push_counted(void *argument)
{
    struct pusher *pusher = argument;
    for (int i = 0; i < pusher->count; i++) {
        struct up_event event = numbered((uint64_t)i);
        up_trace_push(pusher->trace, &event);
        atomic_fetch_add(&pusher->pushed, 1);
    }
    return NULL;
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

// Until it is known to wait: `waits` is counted only then.
static void await_wait(const struct up_trace *trace)
{
    while (!up_trace_waits(trace)) nap();
}

static void full_ring_makes_the_rank_wait(void **state)
{
    (void)state;
    struct up_event event;
    pthread_t thread;
    struct pusher pusher = {.trace = up_trace_create(0, 8), .count = 9};
    pthread_create(&thread, NULL, push_counted, &pusher);
    await_wait(pusher.trace);
    for (int i = 0; i < 20; i++) nap();
    assert_int_equal(atomic_load(&pusher.pushed), 8);
    assert_int_equal(up_trace_take(pusher.trace, &event, 1), 1);
    assert_numbered(&event, 0);
    pthread_join(thread, NULL);
    for (uint64_t i = 1; i < 9; i++) {
        assert_int_equal(up_trace_take(pusher.trace, &event, 1), 1);
        assert_numbered(&event, i);
    }
    assert_int_equal(up_trace_waits(pusher.trace), 1); // once, however many naps
    up_trace_destroy(pusher.trace);
}

static void abandoned_ring_lets_go(void **state)
{
    (void)state;
    pthread_t thread;
    struct pusher pusher = {.trace = up_trace_create(0, 8), .count = 1000};
    pthread_create(&thread, NULL, push_counted, &pusher);
    await_wait(pusher.trace);
    up_trace_abandon(pusher.trace);
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&pusher.pushed), 1000);
    up_trace_destroy(pusher.trace);
}

static void closed_means_closed_and_empty(void **state)
{
    (void)state;
    struct up_event event = numbered(1);
    struct up_trace *trace = up_trace_create(0, 8);
    assert_false(up_trace_closed(trace));
    up_trace_push(trace, &event);
    up_trace_close(trace);
    assert_false(up_trace_closed(trace));
    assert_int_equal(up_trace_take(trace, &event, 1), 1);
    assert_true(up_trace_closed(trace));
    up_trace_destroy(trace);
}

static void no_trace_is_fine(void **state)
{
    (void)state;
    struct up_event event = numbered(1);
    up_trace_push(NULL, &event);
    up_trace_close(NULL);
    up_trace_abandon(NULL);
    up_trace_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_threads_lose_and_reorder_nothing),
        cmocka_unit_test(capacity_is_a_power_of_two),
        cmocka_unit_test(full_ring_makes_the_rank_wait),
        cmocka_unit_test(abandoned_ring_lets_go),
        cmocka_unit_test(closed_means_closed_and_empty),
        cmocka_unit_test(no_trace_is_fine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
