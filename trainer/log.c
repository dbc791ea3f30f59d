#include "trainer/log.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BAR_WIDTH = 30, LINE_LIMIT = 4096 };
static const int64_t bar_after_ns = 1000000000, bar_every_ns = 200000000;

// "step 3 [#####.....] 45%  1 min 20 s left", over itself.
static void tell_progress(struct up_progress *progress, double done, double all)
{
    struct up_log *log = (struct up_log *)progress;
    int64_t now = up_clock_ns();
    char left[UP_UNITS_TEXT], bar[BAR_WIDTH + 1];
    if (!log->bar || now - log->step_begin_ns < bar_after_ns || now - log->shown_ns < bar_every_ns)
        return;
    log->shown_ns = now;
    double seconds = (double)(now - log->step_begin_ns) / 1e9;
    int filled = (int)(BAR_WIDTH * done / all);
    for (int i = 0; i < BAR_WIDTH; i++) bar[i] = i < filled ? '#' : '.';
    bar[BAR_WIDTH] = 0;
    fprintf(stderr, "\r\033[Kstep %lld [%s] %3.0f%%  %s left", (long long)log->step, bar,
            100 * done / all, up_format_seconds(left, seconds * (all - done) / done));
    fflush(stderr);
}

// Where the path is a name of the program's own output, that: opened anew, each would write over
// the other.
static int share_output(int fd)
{
    struct stat there, own;
    for (int output = STDOUT_FILENO; output <= STDERR_FILENO; output++)
        if (!fstat(fd, &there) && !fstat(output, &own) && there.st_dev == own.st_dev &&
            there.st_ino == own.st_ino)
            return fcntl(output, F_DUPFD_CLOEXEC, 0);
    return -1;
}

// What every line begins with.
static const char line_begin[] = "{\"step\":";

/* --- A log that is there already ----------------------------------------------------------------
 */

// A log of before, or nothing: what else there may be, such as the data, is somebody's.
static enum up_status check_begin(const struct up_log *log, FILE *there, struct up_error *err)
{
    char begin[sizeof line_begin] = "";
    if (there && fread(begin, 1, sizeof begin - 1, there) && !strcmp(begin, line_begin))
        return UP_OK;
    return up_fail(err, UP_USAGE,
                   "--json-log %s: expected a new file or an earlier JSON log to %s: it is "
                   "neither, and is left alone",
                   log->json_path, log->first ? "go on in" : "replace");
}

// The step that the line tells of; -1 if of none.
static int64_t step_of(const char *line)
{
    json_t *root = json_loads(line, 0, NULL), *step = json_object_get(root, "step");
    int64_t value = json_is_integer(step) ? json_integer_value(step) : -1;
    json_decref(root);
    return value;
}

// What a run that was killed, or a full disk, left of its last line.
static bool is_cut_off(const char *line, FILE *there)
{
    size_t length = up_min(strlen(line), strlen(line_begin));
    return !strchr(line, '\n') && feof(there) && !strncmp(line, line_begin, length);
}

// Finds where the lines of steps before the first end: they stay. All lines must be of a log, whose
// steps come in order, or something would be cut off that is none.
static enum up_status find_end(struct up_log *log, FILE *there, struct up_error *err)
{
    char line[LINE_LIMIT];
    int64_t number = 1, before = -1;
    rewind(there);
    for (; fgets(line, sizeof line, there); number++) {
        int64_t step = step_of(line);
        if (step < 0 && is_cut_off(line, there)) break;
        if (step <= before)
            return up_fail(err, UP_USAGE,
                           "--json-log %s: line %lld: expected a JSON object with a \"step\" later "
                           "than the line before's, as in a log to go on in: it is left alone",
                           log->json_path, (long long)number);
        before = step;
        if (step >= log->first) continue;
        log->json_keep = ftell(there);
        log->json_unended = !strchr(line, '\n');
    }
    return ferror(there) ? up_fail(err, UP_FAILED, "--json-log %s: cannot be read: %s",
                                   log->json_path, strerror(errno))
                         : UP_OK;
}

// Nothing is changed yet.
static enum up_status look_at_earlier(struct up_log *log, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct stat status;
    if (fstat(log->json_fd, &status) || !S_ISREG(status.st_mode) || !status.st_size) return UP_OK;
    FILE *there = fopen(log->json_path, "re");
    UP_TRY(check_begin(log, there, err));
    if (log->first) UP_TRY(find_end(log, there, err));
out:
    if (there) fclose(there);
    return rc;
}

/* --- Life --------------------------------------------------------------------------------------
 */

// The trace takes the place of a file that is empty, as the log is when it begins.
static enum up_status check_apart(const struct up_log *log, const char *trace, struct up_error *err)
{
    struct stat own, other;
    if (!trace || fstat(log->json_fd, &own) || stat(trace, &other) || own.st_dev != other.st_dev ||
        own.st_ino != other.st_ino)
        return UP_OK;
    return up_fail(err, UP_USAGE, "--json-log %s: expected another file than --trace's",
                   log->json_path);
}

enum up_status up_log_init(struct up_log *log, const char *json_path, const char *trace,
                           int64_t first, bool dry, struct up_error *err)
{
    enum up_status rc = UP_OK;
    *log = (struct up_log){.progress = {tell_progress},
                           .first = first,
                           .dry = dry,
                           .bar = isatty(STDERR_FILENO),
                           .json_fd = -1,
                           .json_path = json_path};
    if (!json_path) return UP_OK;
    log->json_fd = open(json_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    log->json_created = log->json_fd >= 0;
    if (!log->json_created) log->json_fd = open(json_path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (log->json_fd < 0)
        return up_fail(err, up_errno_status(errno),
                       "--json-log %s: expected a file that can be written: %s", json_path,
                       strerror(errno));
    UP_TRY(check_apart(log, trace, err));
    int shared = share_output(log->json_fd);
    if (shared >= 0) {
        close(log->json_fd);
        log->json_fd = shared;
        log->json_shared = true;
        return UP_OK;
    }
    rc = look_at_earlier(log, err);
out:
    return rc;
}

static enum up_status write_all(struct up_log *log, const char *text, struct up_error *err)
{
    for (size_t left = strlen(text); left;) {
        ssize_t written = write(log->json_fd, text, left);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0)
            return up_fail(err, UP_FAILED, "--json-log %s: %s", log->json_path, strerror(errno));
        text += written;
        left -= (size_t)written;
    }
    return UP_OK;
}

enum up_status up_log_start(struct up_log *log, struct up_error *err)
{
    // What is no regular file (a pipe, /dev/stdout) cannot be cut, and need not be.
    if (log->json_fd < 0 || log->json_shared) return UP_OK;
    if (ftruncate(log->json_fd, log->json_keep)) {
        if (errno == EINVAL) return UP_OK;
        return up_fail(err, up_errno_status(errno), "--json-log %s: %s", log->json_path,
                       strerror(errno));
    }
    lseek(log->json_fd, log->json_keep, SEEK_SET);
    return log->json_unended ? write_all(log, "\n", err) : UP_OK;
}

void up_log_cancel(struct up_log *log)
{
    if (log->json_created && log->json_fd >= 0) unlink(log->json_path);
}

void up_log_release(struct up_log *log)
{
    if (log->json_fd >= 0) close(log->json_fd);
    log->json_fd = -1;
}

void up_log_step_begin(struct up_log *log, int64_t step)
{
    log->step = step;
    log->step_begin_ns = up_clock_ns();
}

static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static enum up_status write_json(struct up_log *log, const struct up_step_log *step,
                                 struct up_error *err)
{
    json_t *root = json_pack("{s:I,s:o,s:o,s:I,s:o,s:o,s:I}", "step", (json_int_t)step->step,
                             "loss", number(step->loss), "grad_norm", number(step->grad_norm),
                             "tokens", (json_int_t)step->tokens, "tokens_per_s",
                             number((double)step->tokens / step->seconds), "seconds",
                             number(step->seconds), "peak_bytes", (json_int_t)step->peak_bytes);
    char *text = root ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    enum up_status rc = UP_OK;
    json_decref(root);
    if (!text) return up_fail(err, UP_FAILED, "out of host memory");
    size_t length = strlen(text);
    char *line = realloc(text, length + 2);
    if (line) {
        strcpy(line + length, "\n");
        rc = write_all(log, line, err);
    }
    free(line ? line : text);
    return line ? rc : up_fail(err, UP_FAILED, "out of host memory");
}

// A NaN may have a sign, which says nothing.
static double shown(double number)
{
    return isnan(number) ? NAN : number;
}

enum up_status up_log_step_end(struct up_log *log, const struct up_step_log *step,
                               struct up_error *err)
{
    char peak[UP_UNITS_TEXT], time[UP_UNITS_TEXT];
    if (log->shown_ns > log->step_begin_ns) fputs("\r\033[K", stderr);
    up_format_bytes(peak, (uint64_t)step->peak_bytes);
    up_format_seconds(time, step->seconds);
    printf("step %5lld", (long long)step->step);
    if (log->dry)
        printf("  forecast %s", time);
    else if (!step->tokens)
        printf("  loss %8s  grad norm %8.4f", "none", shown(step->grad_norm));
    else
        printf("  loss %8.4f  grad norm %8.4f", shown(step->loss), shown(step->grad_norm));
    printf("  %8.0f tokens/s  peak %s\n", (double)step->tokens / step->seconds, peak);
    fflush(stdout);
    return log->json_fd >= 0 ? write_json(log, step, err) : UP_OK;
}
