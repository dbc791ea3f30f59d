/* Reading files and JSON that may be broken or hostile; see input_impl.h. */
#include "model/input_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum up_status check_regular(struct up_input *input, struct up_error *err)
{
    struct stat status;
    if (fstat(input->fd, &status) != 0)
        return up_fail(err, UP_FAILED, "%s: cannot be read: %s", input->path, strerror(errno));
    if (S_ISDIR(status.st_mode))
        return up_fail(err, UP_USAGE, "%s: expected a file, found a directory", input->path);
    if (!S_ISREG(status.st_mode))
        return up_fail(err, UP_USAGE,
                       "%s: expected a regular file, which can be read at any offset", input->path);
    input->size = status.st_size;
    return UP_OK;
}

enum up_status up_input_open(struct up_input *input, const char *path, struct up_error *err)
{
    // Not blocking: a FIFO would otherwise wait for a writer before it can be refused.
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return up_fail(err, up_errno_status(errno), "%s: cannot be opened: %s", path,
                       strerror(errno));
    *input = (struct up_input){strdup(path), fd, 0};
    if (!input->path) {
        close(fd);
        return up_fail(err, UP_FAILED, "%s: out of memory", path);
    }
    enum up_status rc = check_regular(input, err);
    if (rc != UP_OK) up_input_close(input);
    return rc;
}

void up_input_close(struct up_input *input)
{
    if (!input->path) return;
    close(input->fd);
    free(input->path);
    *input = (struct up_input){0};
}

enum up_status up_input_read(const struct up_input *input, void *out, int64_t bytes, int64_t offset,
                             struct up_error *err)
{
    char *to = out;
    while (bytes > 0) {
        ssize_t got = pread(input->fd, to, (size_t)bytes, offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return up_fail(err, UP_FAILED, "%s: cannot be read at byte %lld: %s", input->path,
                           (long long)offset, strerror(errno));
        if (got == 0)
            return up_fail(err, UP_FAILED,
                           "%s: has no byte %lld, so it is shorter than when it was opened",
                           input->path, (long long)offset);
        to += got;
        offset += got;
        bytes -= got;
    }
    return UP_OK;
}

enum up_status up_input_path(const char *folder, const char *name, char **path,
                             struct up_error *err)
{
    size_t length = strlen(folder), size = length + strlen(name) + 2;
    *path = malloc(size);
    if (!*path) return up_fail(err, UP_FAILED, "%s: out of memory", folder);
    snprintf(*path, size, length && folder[length - 1] == '/' ? "%s%s" : "%s/%s", folder, name);
    return UP_OK;
}

static enum up_status json_failed(const json_error_t *error, const char *path, const char *what,
                                  struct up_error *err)
{
    char text[UP_SHOWN];
    const char *gap = *what ? ": " : "";
    if (json_error_code(error) == json_error_out_of_memory)
        return up_fail(err, UP_FAILED, "%s%s%s: out of memory", path, gap, what);
    return up_fail(err, UP_USAGE, "%s%s%s: expected a JSON object; line %d, column %d: %s", path,
                   gap, what, error->line, error->column, up_shown(text, error->text));
}

enum up_status up_json_parse(const char *text, size_t bytes, const char *path, const char *what,
                             json_t **root, struct up_error *err)
{
    json_error_t error;
    char shown[UP_SHOWN];
    *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!*root) return json_failed(&error, path, what, err);
    if (json_is_object(*root)) return UP_OK;
    up_fail(err, UP_USAGE, "%s%s%s: expected a JSON object, found %s", path, *what ? ": " : "",
            what, up_json_shown(shown, *root));
    json_decref(*root);
    *root = NULL;
    return UP_USAGE;
}

enum up_status up_json_read(const char *path, int64_t limit, json_t **root, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_input input = {0};
    char *text = NULL, most[UP_UNITS_TEXT], size[UP_UNITS_TEXT];
    *root = NULL;
    UP_TRY(up_input_open(&input, path, err));
    if (input.size > limit)
        UP_TRY(up_fail(err, UP_USAGE, "%s: expected at most %s of JSON, found %s", path,
                       up_format_bytes(most, (uint64_t)limit),
                       up_format_bytes(size, (uint64_t)input.size)));
    text = malloc((size_t)input.size + 1);
    if (!text) UP_TRY(up_fail(err, UP_FAILED, "%s: out of memory", path));
    UP_TRY(up_input_read(&input, text, input.size, 0, err));
    UP_TRY(up_json_parse(text, (size_t)input.size, path, "", root, err));
out:
    free(text);
    up_input_close(&input);
    return rc;
}

const char *up_shown(char out[UP_SHOWN], const char *text)
{
    int used = 0;
    for (; text[used] && used < UP_SHOWN - 1; used++)
        out[used] = text[used] >= ' ' && text[used] <= '~' ? text[used] : '?';
    out[used] = 0;
    if (text[used]) memcpy(out + UP_SHOWN - 4, "...", 4);
    return out;
}

const char *up_json_shown(char out[UP_SHOWN], const json_t *value)
{
    char text[UP_SHOWN];
    if (!value) return "nothing";
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    case JSON_NULL:
        return "null";
    case JSON_INTEGER:
        snprintf(out, UP_SHOWN, "%lld", (long long)json_integer_value(value));
        break;
    case JSON_REAL:
        snprintf(out, UP_SHOWN, "%.17g", json_real_value(value));
        break;
    case JSON_STRING:
        snprintf(out, UP_SHOWN, "\"%.60s\"", up_shown(text, json_string_value(value)));
        break;
    }
    return out;
}
