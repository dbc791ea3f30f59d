#include "base/base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

// The function itself, with an allocator that can be made to fail.
static bool memory_is_short;

static void *test_reallocarray_or_fail(void *old, size_t count, size_t size)
{
    return memory_is_short ? NULL : reallocarray(old, count, size);
}

#define reallocarray test_reallocarray_or_fail
// NOLINTNEXTLINE(bugprone-suspicious-include): its calls are to reach the one above
#include "base/grow.c"
#undef reallocarray

// All that was put in stays, and there is room for each.
static void test_filled(void **state)
{
    (void)state;
    enum { COUNT = 1000 };
    struct item {
        int64_t number;
        char rest[5];
    } *items = NULL;
    int64_t capacity = 0, moves = 0;
    struct up_error error = {0};
    for (int64_t i = 0; i < COUNT; i++) {
        int64_t before = capacity;
        assert_int_equal(up_grow(&items, i, &capacity, sizeof *items, &error), UP_OK);
        assert_true(capacity > i && capacity <= 64 + 2 * i);
        moves += capacity != before;
        items[i] = (struct item){.number = i, .rest = "rest"};
    }
    assert_in_range(moves, 1, 6);
    for (int64_t i = 0; i < COUNT; i++) {
        assert_int_equal(items[i].number, i);
        assert_string_equal(items[i].rest, "rest");
    }
    free(items);
}

// Nothing is lost, with or without somebody to tell.
static void test_short(void **state)
{
    (void)state;
    struct up_error error = {0};
    char *items = calloc(64, 1), *old = items;
    int64_t capacity = 64;
    assert_non_null(items);
    items[63] = 'x';
    memory_is_short = true;
    assert_int_equal(up_grow(&items, 64, &capacity, 1, NULL), UP_FAILED);
    assert_int_equal(up_grow(&items, 64, &capacity, 1, &error), UP_FAILED);
    memory_is_short = false;
    assert_int_equal(error.status, UP_FAILED);
    assert_string_equal(error.text, "out of host memory");
    assert_ptr_equal(items, old);
    assert_int_equal(capacity, 64);
    assert_int_equal(up_grow(&items, 64, &capacity, 1, &error), UP_OK);
    assert_int_equal(capacity, 128);
    assert_int_equal(items[63], 'x');
    free(items);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_filled), cmocka_unit_test(test_short)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
