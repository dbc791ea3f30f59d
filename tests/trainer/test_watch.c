/* The watch for hangs: quiet while anyone gets on or all are done, loud once nobody does. */
#include "trainer/watch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

struct heard {
    atomic_int times;
    char text[512];
};

static void hear(void *context, const char *reason)
{
    struct heard *heard = context;
    snprintf(heard->text, sizeof heard->text, "%s", reason);
    heard->times++;
}

static void nap(double seconds)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)(seconds * 1e9)}, NULL);
}

static void test_progress_is_quiet(void **state)
{
    (void)state;
    _Atomic uint64_t counters[3] = {5, 5, 5};
    struct up_error error = {0};
    struct heard heard = {0};
    _Atomic uint64_t *const at[] = {&counters[0], &counters[1], &counters[2]};
    struct up_watch *watch = up_watch_start(at, 0, 3, 0.5, hear, &heard, &error);
    assert_non_null(watch);
    for (int i = 0; i < 20; i++) {
        nap(0.05);
        counters[1]++; // one that gets on is enough
    }
    for (int i = 0; i < 3; i++) counters[i] = UP_WATCH_DONE;
    nap(0.8);
    up_watch_stop(watch);
    assert_int_equal(heard.times, 0);
}

static void test_hang_is_told_once(void **state)
{
    (void)state;
    _Atomic uint64_t counters[4] = {7, 3, UP_WATCH_DONE, 3};
    struct up_error error = {0};
    struct heard heard = {0};
    _Atomic uint64_t *const at[] = {&counters[0], &counters[1], &counters[2], &counters[3]};
    struct up_watch *watch = up_watch_start(at, 4, 4, 0.1, hear, &heard, &error);
    nap(0.9);
    up_watch_stop(watch);
    // Nor while it is told to wait.
    watch = up_watch_start(at, 4, 4, 0.1, hear, &heard, &error);
    up_watch_pause(watch, true);
    nap(0.4);
    up_watch_stop(watch);
    assert_int_equal(heard.times, 1);
    assert_non_null(strstr(heard.text, "rank 5, 7"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_progress_is_quiet),
                                       cmocka_unit_test(test_hang_is_told_once)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
