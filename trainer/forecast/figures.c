/* Writing a machine file: beside its place under another name, then renamed, so that there is never
 * half of one. */
#include "trainer/forecast/figures.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static json_t *figure_json(const struct up_figures *figures, enum up_machine_figure figure,
                           const char *source)
{
    double value = figures->of[figure];
    json_t *number =
        up_figure_is_whole(figure) ? json_integer((json_int_t)value) : json_real(value);
    return json_pack("{s:o,s:s}", "value", number, "source", *source ? source : "not told");
}

// To be freed; NULL when memory is short.
static char *file_text(const struct up_figures *figures, const char *about,
                       const struct up_figure_sources *sources)
{
    json_t *root = json_pack("{s:s,s:s}", "name", figures->name, "about", about);
    int failed = !root;
    for (int i = 0; i < UP_FIGURE_COUNT; i++) {
        enum up_machine_figure figure = (enum up_machine_figure)i;
        if (!(figures->of[figure] > 0)) continue;
        failed |= json_object_set_new(root, up_figure_name(figure),
                                      figure_json(figures, figure, sources->text[i]));
    }
    // 6 digits are more than a measurement has.
    char *text = failed ? NULL : json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    json_decref(root);
    return text;
}

// Whether a file can be made beside `path`, which is not there; errno's where not.
static int check_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
    int error = !folder ? ENOMEM : faccessat(AT_FDCWD, folder, W_OK | X_OK, AT_EACCESS) ? errno : 0;
    free(folder);
    return error;
}

static enum up_status refuse_folder(const char *option, const char *path, int error,
                                    struct up_error *err)
{
    return up_fail(err, up_errno_status(error),
                   "%s %s: expected a file in a folder that can be written: %s", option, path,
                   strerror(error));
}

enum up_status up_figures_check_path(const char *option, const char *path, struct up_error *err)
{
    struct up_figures there;
    struct up_error why = {0};
    struct stat status;
    if (!*path) return up_fail(err, UP_USAGE, "%s: expected the name of a file", option);
    if (up_machine_built_in(path))
        return up_fail(err, UP_USAGE,
                       "%s %s: expected another name: --machine %s is a machine built in", option,
                       path, path);
    if (stat(path, &status)) {
        if (errno != ENOENT)
            return up_fail(err, up_errno_status(errno), "%s %s: cannot be looked at: %s", option,
                           path, strerror(errno));
        int error = check_folder(path);
        return error ? refuse_folder(option, path, error, err) : UP_OK;
    }
    enum up_status rc = S_ISREG(status.st_mode) ? up_figures_find(path, &there, &why) : UP_USAGE;
    if (rc == UP_OK) return UP_OK;
    if (rc == UP_FAILED) return up_fail(err, rc, "%s", why.text);
    return up_fail(err, UP_USAGE,
                   "%s %s: expected a new file or a machine file to replace: it is neither, and is "
                   "left alone",
                   option, path);
}

static int write_all(int fd, const char *text)
{
    size_t size = strlen(text);
    for (size_t done = 0; done < size;) {
        ssize_t n = write(fd, text + done, size - done);
        if (n < 0 && errno != EINTR) return errno;
        if (n > 0) done += (size_t)n;
    }
    return fsync(fd) ? errno : 0;
}

static int write_file(const char *temporary, const char *text)
{
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return errno;
    int error = write_all(fd, text);
    if (close(fd) && !error) error = errno;
    return error;
}

static enum up_status put(const char *option, const char *path, const char *text,
                          struct up_error *err)
{
    size_t size = strlen(path) + 32;
    char *temporary = malloc(size);
    if (!temporary) return up_fail(err, UP_FAILED, "out of host memory");
    snprintf(temporary, size, "%s.partial-%d", path, (int)getpid());
    int error = write_file(temporary, text);
    if (!error && rename(temporary, path)) error = errno;
    if (error) unlink(temporary);
    free(temporary);
    return error ? refuse_folder(option, path, error, err) : UP_OK;
}

enum up_status up_figures_write(const char *option, const char *path,
                                const struct up_figures *figures, const char *about,
                                const struct up_figure_sources *sources, struct up_error *err)
{
    enum up_status rc = UP_OK;
    char *text = NULL;
    UP_TRY(up_figures_check_path(option, path, err));
    text = file_text(figures, about, sources);
    if (!text) UP_TRY(up_fail(err, UP_FAILED, "out of host memory"));
    rc = put(option, path, text, err);
out:
    free(text);
    return rc;
}
