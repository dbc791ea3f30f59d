/* Files of all of a model's parameters; see param_file.h. The data: the sets one after the other,
 * the parameters of each in the model's order, so the place of any element is a sum. */
#define _GNU_SOURCE // fallocate
#include "model/param_file.h"
#include "model/safetensors_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LENGTH_BYTES = 8, ALIGNMENT = 8, ELEMENT_BYTES = 4, NAME_SIZE = 128 };

static const char *stored_name(char out[NAME_SIZE], const char *prefix,
                               const struct up_param *param)
{
    snprintf(out, NAME_SIZE, "%.16s%s", prefix, param->hf_name);
    return out;
}

/* --- The header ------------------------------------------------------------------------------ */

static json_t *param_entry(const struct up_param *param, int64_t begin, int64_t end)
{
    json_t *shape = param->dims == 1
                        ? json_pack("[I]", (json_int_t)param->rows)
                        : json_pack("[I,I]", (json_int_t)param->rows, (json_int_t)param->cols);
    return json_pack("{s:s,s:o,s:[I,I]}", "dtype", "F32", "shape", shape, "data_offsets",
                     (json_int_t)begin, (json_int_t)end);
}

// Adds a set that begins `at` bytes into the data. False when memory is short.
static bool add_set(json_t *header, const struct up_model *model, const char *prefix, int64_t at)
{
    int count = up_model_param_count(model);
    for (int i = 0; i < count; i++) {
        char name[NAME_SIZE];
        struct up_param param = up_model_param(model, i);
        int64_t end = at + param.rows * param.cols * ELEMENT_BYTES;
        json_t *entry = param_entry(&param, at, end);
        if (json_object_set_new(header, stored_name(name, prefix, &param), entry)) return false;
        at = end;
    }
    return true;
}

/* The header's text, for free(); NULL when memory is short. "format": Hugging Face loads no file
 * that does not say which framework's tensors these are. */
static char *header_text(const struct up_model *model, const char *const *prefixes)
{
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    int64_t set_bytes = up_model_parameters(model) * ELEMENT_BYTES;
    bool whole = header;
    for (int set = 0; whole && prefixes[set]; set++)
        whole = add_set(header, model, prefixes[set], set * set_bytes);
    char *text = whole ? json_dumps(header, JSON_COMPACT) : NULL;
    json_decref(header);
    return text;
}

// Spaces behind the header let the tensors begin at a multiple of their element.
static int64_t padded_length(const char *header)
{
    return up_ceil_div((int64_t)strlen(header), ALIGNMENT) * ALIGNMENT;
}

/* --- Writing --------------------------------------------------------------------------------- */

struct up_param_writer {
    char *path;
    int fd;
    int64_t data_offset; // of the first set in the file, bytes
    int64_t set_elements;
    int sets, count;
    int64_t first[]; // per parameter: elements of its set before it; count + 1 entries
};

static enum up_status cannot_write(const char *path, struct up_error *err)
{
    return up_fail(err, UP_FAILED, "%s: cannot be written: %s", path, strerror(errno));
}

static enum up_status write_at(const struct up_param_writer *writer, const void *bytes,
                               int64_t count, int64_t offset, struct up_error *err)
{
    const char *from = bytes;
    while (count > 0) {
        ssize_t put = pwrite(writer->fd, from, (size_t)count, offset);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return cannot_write(writer->path, err);
        from += put;
        offset += put;
        count -= put;
    }
    return UP_OK;
}

/* A file system that knows how reserves the space now, and says at once if there is too little. */
static enum up_status set_size(const struct up_param_writer *writer, struct up_error *err)
{
    int64_t size =
        writer->data_offset + writer->sets * writer->set_elements * (int64_t)ELEMENT_BYTES;
    int failed;
    while ((failed = fallocate(writer->fd, 0, 0, size)) && errno == EINTR)
        ;
    if (failed && (errno == EOPNOTSUPP || errno == ENOSYS)) failed = ftruncate(writer->fd, size);
    return failed ? cannot_write(writer->path, err) : UP_OK;
}

static enum up_status write_header(const struct up_param_writer *writer, const char *header,
                                   struct up_error *err)
{
    enum up_status rc = UP_OK;
    uint64_t length = (uint64_t)padded_length(header);
    char *padded = malloc(length + 1);
    if (!padded) return up_fail(err, UP_FAILED, "%s: out of memory", writer->path);
    snprintf(padded, length + 1, "%-*s", (int)length, header);
    UP_TRY(set_size(writer, err));
    UP_TRY(write_at(writer, &length, LENGTH_BYTES, 0, err));
    UP_TRY(write_at(writer, padded, (int64_t)length, LENGTH_BYTES, err));
out:
    free(padded);
    return rc;
}

static struct up_param_writer *lay_out(const char *path, const struct up_model *model,
                                       const char *const *prefixes, const char *header)
{
    int count = up_model_param_count(model);
    struct up_param_writer *writer =
        calloc(1, sizeof *writer + ((size_t)count + 1) * sizeof writer->first[0]);
    if (!writer) return NULL;
    writer->fd = -1;
    writer->path = strdup(path);
    writer->data_offset = LENGTH_BYTES + padded_length(header);
    writer->count = count;
    for (int i = 0; i < count; i++) {
        struct up_param param = up_model_param(model, i);
        writer->first[i + 1] = writer->first[i] + param.rows * param.cols;
    }
    writer->set_elements = writer->first[count];
    while (prefixes[writer->sets]) writer->sets++;
    UP_ASSERT(writer->sets <= UP_PARAM_SETS_MAX);
    return writer;
}

enum up_status up_param_writer_open(const char *path, const struct up_model *model,
                                    const char *const *prefixes, bool create,
                                    struct up_param_writer **writer, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_param_writer *opened = NULL;
    char *header = header_text(model, prefixes);
    *writer = NULL;
    if (header) opened = lay_out(path, model, prefixes, header);
    if (!opened || !opened->path) UP_TRY(up_fail(err, UP_FAILED, "%s: out of memory", path));
    opened->fd = open(path, O_WRONLY | O_CLOEXEC | (create ? O_CREAT | O_EXCL : 0), 0666);
    if (opened->fd < 0) UP_TRY(cannot_write(path, err));
    if (create) UP_TRY(write_header(opened, header, err));
    *writer = opened;
    opened = NULL;
out:
    up_param_writer_close(opened);
    free(header);
    return rc;
}

enum up_status up_param_writer_write(struct up_param_writer *writer, int set, int index,
                                     int64_t first, int64_t count, const float *elements,
                                     struct up_error *err)
{
    UP_ASSERT(set >= 0 && set < writer->sets && index >= 0 && index < writer->count);
    int64_t at = writer->first[index] + first;
    UP_ASSERT(first >= 0 && count >= 0 && at + count <= writer->first[index + 1]);
    int64_t offset = writer->data_offset + (set * writer->set_elements + at) * ELEMENT_BYTES;
    return write_at(writer, elements, count * ELEMENT_BYTES, offset, err);
}

enum up_status up_param_writer_sync(struct up_param_writer *writer, struct up_error *err)
{
    return fsync(writer->fd) ? cannot_write(writer->path, err) : UP_OK;
}

void up_param_writer_close(struct up_param_writer *writer)
{
    if (!writer) return;
    if (writer->fd >= 0) close(writer->fd);
    free(writer->path);
    free(writer);
}

/* --- Reading --------------------------------------------------------------------------------- */

struct up_param_reader {
    struct up_safetensors *file;
};

static bool is_param(const struct up_stored *stored, const struct up_param *param)
{
    return !strcmp(stored->dtype, "F32") && (int)json_array_size(stored->shape) == param->dims &&
           json_integer_value(json_array_get(stored->shape, 0)) == param->rows &&
           (param->dims == 1 ||
            json_integer_value(json_array_get(stored->shape, 1)) == param->cols);
}

static enum up_status check_param(const struct up_safetensors *file, const char *prefix,
                                  const struct up_param *param, struct up_error *err)
{
    struct up_stored stored;
    char name[NAME_SIZE], shape[UP_SHOWN] = "", dtype[UP_SHOWN] = "nothing", cols[24] = "";
    if (up_safetensors_find(file, stored_name(name, prefix, param), &stored)) {
        if (is_param(&stored, param)) return UP_OK;
        up_shown(dtype, stored.dtype);
        up_stored_shape(shape, &stored);
    }
    if (param->dims > 1) snprintf(cols, sizeof cols, ", %lld", (long long)param->cols);
    return up_fail(err, UP_USAGE, "%s: tensor %s: expected F32 [%lld%s], found %s%s%s",
                   up_safetensors_path(file), name, (long long)param->rows, cols, dtype,
                   *shape ? " " : "", shape);
}

enum up_status up_param_reader_open(const char *path, const struct up_model *model,
                                    const char *const *prefixes, struct up_param_reader **reader,
                                    struct up_error *err)
{
    enum up_status rc = UP_OK;
    int count = up_model_param_count(model);
    struct up_param_reader *opened = calloc(1, sizeof *opened);
    *reader = NULL;
    if (!opened) return up_fail(err, UP_FAILED, "%s: out of memory", path);
    UP_TRY(up_safetensors_open(path, &opened->file, err));
    for (int set = 0; prefixes[set]; set++)
        for (int i = 0; i < count; i++) {
            struct up_param param = up_model_param(model, i);
            UP_TRY(check_param(opened->file, prefixes[set], &param, err));
        }
    *reader = opened;
    opened = NULL;
out:
    up_param_reader_close(opened);
    return rc;
}

enum up_status up_param_reader_read(const struct up_param_reader *reader, const char *prefix,
                                    const struct up_param *param, int64_t first, int64_t count,
                                    float *out, struct up_error *err)
{
    struct up_stored stored;
    char name[NAME_SIZE];
    bool there = up_safetensors_find(reader->file, stored_name(name, prefix, param), &stored);
    UP_ASSERT(there);
    return up_safetensors_read(reader->file, &stored, first, count, out, err);
}

void up_param_reader_close(struct up_param_reader *reader)
{
    if (!reader) return;
    up_safetensors_close(reader->file);
    free(reader);
}
