/* Text that a test puts together for itself: it must fit. (How long the tree's own path is, which
 * UP_TEST_BUILD and its like begin with, a compiler knows and a reader does not: snprintf there is
 * fine on one machine and an error on the next.) */
#ifndef UP_TESTS_PRINT_H
#define UP_TESTS_PRINT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>

enum { LONG_PATH = 4096, LONG_COMMAND = 8 * LONG_PATH };

__attribute__((format(printf, 3, 4))) static inline void print_to(char *to, size_t size,
                                                                  const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(to, size, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length >= size)
        fail_msg("%d characters in %zu: %s", length, size, to);
}

#endif
