/* Failure, in three classes.
 *
 *   UP_BUG()            a broken invariant of upipe's own: prints and aborts.
 *   UP_FAILED  (1)      something went wrong while running: returned, told in a struct up_error.
 *   UP_USAGE   (2)      the user's options or files are at fault: returned likewise.
 *
 * The numbers are the programs' exit statuses. A library never exits and never prints; it fills the
 * caller's struct up_error with one line that names the option or file and what was expected.
 */
#ifndef UP_BASE_ERROR_H
#define UP_BASE_ERROR_H

#include <stdarg.h>
#include <stddef.h>

enum up_status { UP_OK = 0, UP_FAILED = 1, UP_USAGE = 2 };

struct up_error {
    enum up_status status;
    char text[1024]; // one line, no control characters; longer messages are cut
};

/* Fills `err` (which may be NULL) and returns `status`, so that a function can end with
 * `return up_fail(err, UP_USAGE, "%s: expected ...", path);`. A message replaces an earlier one. */
enum up_status up_fail(struct up_error *err, enum up_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Puts "context: " before the message already in `err`. */
void up_error_prefix(struct up_error *err, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Whose fault a failed call on a file is, by errno: UP_USAGE for what the user can put right (no
 * such file, no permission, a folder), UP_FAILED for a disk or a system that fails. */
enum up_status up_errno_status(int error);

/* For a function with `enum up_status rc = UP_OK;` and one `out:` label that releases what it
 * holds. */
#define UP_TRY(call)                                                                               \
    do {                                                                                           \
        rc = (call);                                                                               \
        if (rc != UP_OK) goto out;                                                                 \
    } while (0)

void up_bug(const char *file, int line, const char *format, ...)
    __attribute__((noreturn, format(printf, 3, 4)));

#define UP_BUG(...) up_bug(__FILE__, __LINE__, __VA_ARGS__)
#define UP_ASSERT(condition)                                                                       \
    do {                                                                                           \
        if (__builtin_expect(!(condition), 0)) UP_BUG("expected %s", #condition);                  \
    } while (0)

#endif
