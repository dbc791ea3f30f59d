#include "base/error.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Names and values that a message repeats come from anyone: whatever they hold, it stays one line.
 */
static void make_one_line(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 0x7f) *text = '?';
}

enum up_status up_fail(struct up_error *err, enum up_status status, const char *format, ...)
{
    if (err) {
        // The arguments may point into err->text itself.
        char text[sizeof err->text];
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(text, sizeof text, format, arguments);
        va_end(arguments);
        make_one_line(text);
        memcpy(err->text, text, sizeof text);
        err->status = status;
    }
    return status;
}

void up_error_prefix(struct up_error *err, const char *format, ...)
{
    if (!err) return;
    char text[sizeof err->text];
    va_list arguments;
    va_start(arguments, format);
    int used = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (used < 0 || (size_t)used >= sizeof text) return;
    snprintf(text + used, sizeof text - (size_t)used, ": %.*s",
             (int)(sizeof text - (size_t)used - 3), err->text);
    make_one_line(text);
    memcpy(err->text, text, sizeof text);
}

enum up_status up_errno_status(int error)
{
    static const int users[] = {ENOENT, ENOTDIR, EISDIR, EACCES, EPERM,        EROFS,  ELOOP,
                                EEXIST, ENXIO,   EINVAL, ENODEV, ENAMETOOLONG, ETXTBSY};
    for (size_t i = 0; i < sizeof users / sizeof *users; i++)
        if (users[i] == error) return UP_USAGE;
    return UP_FAILED;
}

void up_bug(const char *file, int line, const char *format, ...)
{
    fprintf(stderr, "upipe: internal error at %s:%d: ", file, line);
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    abort();
}
