/* The words and the status of a failure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/base.h"

#include <errno.h>
#include <string.h>

// What a user typed, or a file holds, is repeated in messages: it stays one line that a terminal
// may see.
static void messages_are_one_line(void **state)
{
    (void)state;
    struct up_error err = {0};
    assert_int_equal(up_fail(&err, UP_USAGE, "--data %s: no", "a\nb\x1b[31m\x7f\t\xc3\xa9"),
                     UP_USAGE);
    assert_string_equal(err.text, "--data a?b?[31m??\xc3\xa9: no");
    up_error_prefix(&err, "in\r%s", "\n");
    assert_string_equal(err.text, "in??: --data a?b?[31m??\xc3\xa9: no");
    assert_int_equal(err.status, UP_USAGE);
}

static void long_messages_are_cut(void **state)
{
    (void)state;
    struct up_error err = {0};
    char long_text[4096];
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = 0;
    up_fail(&err, UP_FAILED, "%s", long_text);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    up_error_prefix(&err, "file");
    assert_memory_equal(err.text, "file: xxx", 9);
    assert_true(strlen(err.text) < sizeof err.text);
}

static void errno_tells_whose_fault_it_is(void **state)
{
    (void)state;
    static const int users[] = {ENOENT, EACCES, EISDIR, ENOTDIR, EROFS, ENAMETOOLONG};
    static const int systems[] = {EIO, ENOMEM, ENOSPC, EMFILE, ENFILE, EDQUOT, ESTALE, 0};
    for (int i = 0; i < UP_COUNT(users); i++) assert_int_equal(up_errno_status(users[i]), UP_USAGE);
    for (int i = 0; i < UP_COUNT(systems); i++)
        assert_int_equal(up_errno_status(systems[i]), UP_FAILED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_are_one_line),
        cmocka_unit_test(long_messages_are_cut),
        cmocka_unit_test(errno_tells_whose_fault_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
