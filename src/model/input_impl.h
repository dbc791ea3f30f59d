/* What the readers of this folder share: files that strangers made, read without trusting them. */
#ifndef UP_MODEL_INPUT_IMPL_H
#define UP_MODEL_INPUT_IMPL_H

#include "base/base.h"

#include <jansson.h>
#include <sys/types.h>

/* A regular file, open for reading at any offset. All zero is a closed one. */
struct up_input {
    char *path; // owned; NULL when closed
    int fd;
    int64_t size; // bytes, when it was opened
};

/* `path` is copied. UP_USAGE naming the path if it cannot be opened or is no regular file. */
enum up_status up_input_open(struct up_input *input, const char *path, struct up_error *err);
void up_input_close(struct up_input *input);

/* Exactly `bytes` from `offset` on; UP_FAILED if the device fails or the file has shrunk. Safe from
 * several threads at once. */
enum up_status up_input_read(const struct up_input *input, void *out, int64_t bytes, int64_t offset,
                             struct up_error *err);

/* "folder/name", for free(). */
enum up_status up_input_path(const char *folder, const char *name, char **path,
                             struct up_error *err);

/* A JSON object, of which no name is there twice. `path` and `what` ("header", or "" for the whole
 * file) are for messages. The caller decrefs *root. */
enum up_status up_json_parse(const char *text, size_t bytes, const char *path, const char *what,
                             json_t **root, struct up_error *err);
/* The same from a file of at most `limit` bytes. */
enum up_status up_json_read(const char *path, int64_t limit, json_t **root, struct up_error *err);

enum { UP_SHOWN = 100 };

/* Text from a file made safe for a terminal and a line: whatever is not printable ASCII becomes
 * '?', and what is long is cut, ending in "...". */
const char *up_shown(char out[UP_SHOWN], const char *text);
/* A JSON value as a message shows it: `12`, `"text"`, `an object`, `nothing` for NULL. */
const char *up_json_shown(char out[UP_SHOWN], const json_t *value);

#endif
