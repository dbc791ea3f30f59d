/* Reading token files; see data.h. To add a format, add its row to `formats`. */
#include "model/data.h"
#include "model/input_impl.h"

#include <stdlib.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tokens are stored little-endian and are read as they are"
#endif

const char *const up_data_format_names[UP_DATA_FORMAT_COUNT] = {"bytes", "u16", "u32", "i32"};

static const struct {
    int width; // bytes a token
    const char *tokens;
} formats[UP_DATA_FORMAT_COUNT] = {
    [UP_DATA_BYTES] = {1, "1-byte tokens"},
    [UP_DATA_U16] = {2, "2-byte tokens"},
    [UP_DATA_U32] = {4, "4-byte tokens"},
    [UP_DATA_I32] = {4, "4-byte tokens"},
};

/* llm.c's files: 256 int32, of which the first three are magic, version and number of tokens. */
enum { HEADER_WORDS = 256, HEADER_BYTES = HEADER_WORDS * 4, EVAL_MAGIC = 20240522 };

static const struct magic {
    int32_t magic, version;
    enum up_data_format format;
} magics[] = {
    {20240520, 1, UP_DATA_U16},
    {20240801, 7, UP_DATA_U32},
};

struct up_data {
    struct up_input input;
    enum up_data_format format;
    int64_t seq, vocab, tokens;
    int64_t offset; // of the first token in the file, bytes
};

static enum up_status check_header(struct up_data *data, const struct magic *magic,
                                   const int32_t header[3], struct up_error *err)
{
    const char *path = data->input.path, *format = up_data_format_names[magic->format];
    if (data->format != magic->format)
        return up_fail(err, UP_USAGE,
                       "%s: is an llm.c file of %s tokens: expected --data-format %s, not %s", path,
                       format, format, up_data_format_names[data->format]);
    if (data->input.size < HEADER_BYTES)
        return up_fail(err, UP_USAGE, "%s: cut short: expected an llm.c header of %d bytes", path,
                       HEADER_BYTES);
    if (header[1] != magic->version)
        return up_fail(err, UP_USAGE, "%s: expected version %d of llm.c's %s files, found %d", path,
                       magic->version, format, header[1]);
    int64_t bytes = data->input.size - HEADER_BYTES;
    if (header[2] < 0 || (int64_t)header[2] * formats[data->format].width != bytes)
        return up_fail(err, UP_USAGE,
                       "%s: its header speaks of %d tokens of %d bytes, the file has %lld bytes of "
                       "them",
                       path, header[2], formats[data->format].width, (long long)bytes);
    data->offset = HEADER_BYTES;
    return UP_OK;
}

static enum up_status recognise(struct up_data *data, struct up_error *err)
{
    int32_t header[3] = {0};
    int64_t bytes = up_min(data->input.size, sizeof header);
    enum up_status rc = up_input_read(&data->input, header, bytes, 0, err);
    if (rc != UP_OK || bytes < (int64_t)sizeof *header) return rc;
    if (header[0] == EVAL_MAGIC)
        return up_fail(err, UP_USAGE,
                       "%s: is an llm.c evaluation file; expected tokens to train on",
                       data->input.path);
    for (int i = 0; i < UP_COUNT(magics); i++)
        if (header[0] == magics[i].magic) return check_header(data, &magics[i], header, err);
    return UP_OK;
}

static enum up_status count_tokens(struct up_data *data, struct up_error *err)
{
    int width = formats[data->format].width;
    int64_t bytes = data->input.size - data->offset;
    if (bytes % width)
        return up_fail(
            err, UP_USAGE,
            "%s: expected %s (--data-format %s), but its %lld bytes are not a multiple of "
            "%d",
            data->input.path, formats[data->format].tokens, up_data_format_names[data->format],
            (long long)bytes, width);
    data->tokens = bytes / width;
    // One more than the window: the last position's target.
    if (data->tokens > data->seq) return UP_OK;
    return up_fail(err, UP_USAGE,
                   "%s: expected at least %lld tokens (--seq and one more), found %lld "
                   "(--data-format %s)",
                   data->input.path, (long long)data->seq + 1, (long long)data->tokens,
                   up_data_format_names[data->format]);
}

enum up_status up_data_open(const char *path, enum up_data_format format, int64_t seq,
                            int64_t vocab, struct up_data **data, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_data *opened = calloc(1, sizeof *opened);
    UP_ASSERT(seq > 0 && seq < INT64_MAX && vocab > 0);
    *data = NULL;
    if (!opened) return up_fail(err, UP_FAILED, "%s: out of memory", path);
    opened->format = format;
    opened->seq = seq;
    opened->vocab = vocab;
    UP_TRY(up_input_open(&opened->input, path, err));
    UP_TRY(recognise(opened, err));
    UP_TRY(count_tokens(opened, err));
    *data = opened;
    opened = NULL;
out:
    up_data_close(opened);
    return rc;
}

void up_data_close(struct up_data *data)
{
    if (!data) return;
    up_input_close(&data->input);
    free(data);
}

int64_t up_data_tokens(const struct up_data *data)
{
    return data->tokens;
}

int64_t up_data_windows(const struct up_data *data)
{
    return (data->tokens - 1) / data->seq;
}

static int64_t stored_token(enum up_data_format format, const char *at)
{
    uint16_t u16;
    uint32_t u32;
    int32_t i32;
    switch (format) {
    case UP_DATA_BYTES:
        return (unsigned char)*at;
    case UP_DATA_U16:
        return memcpy(&u16, at, sizeof u16), u16;
    case UP_DATA_U32:
        return memcpy(&u32, at, sizeof u32), u32;
    case UP_DATA_I32:
        return memcpy(&i32, at, sizeof i32), i32;
    case UP_DATA_FORMAT_COUNT:
        break;
    }
    UP_BUG("no data format %d", (int)format);
}

static enum up_status bad_token(const struct up_data *data, int64_t index, int64_t token,
                                struct up_error *err)
{
    int64_t byte = data->offset + index * formats[data->format].width;
    return up_fail(err, UP_USAGE,
                   "%s: byte %lld: expected a token id below %lld (the vocabulary), found %lld "
                   "(--data-format %s)",
                   data->input.path, (long long)byte, (long long)data->vocab, (long long)token,
                   up_data_format_names[data->format]);
}

/* Tokens [first, first + count) of the file. They are read into the end of `out` and widened from
 * its start on, in place: token i ends where stored token i + 1 begins, or before. */
static enum up_status read_tokens(const struct up_data *data, int64_t first, int64_t count,
                                  int32_t *out, struct up_error *err)
{
    int width = formats[data->format].width;
    char *stored = (char *)out + count * ((int64_t)sizeof *out - width);
    enum up_status rc =
        up_input_read(&data->input, stored, count * width, data->offset + first * width, err);
    if (rc != UP_OK) return rc;
    for (int64_t i = 0; i < count; i++) {
        int64_t token = stored_token(data->format, stored + i * width);
        bool ignored = token == UP_DATA_IGNORED && data->format == UP_DATA_I32;
        if ((token < 0 || token >= data->vocab) && !ignored)
            return bad_token(data, first + i, token, err);
        out[i] = (int32_t)token;
    }
    return UP_OK;
}

enum up_status up_data_slice(const struct up_data *data, int64_t k, int64_t first, int64_t count,
                             int32_t *inputs, int32_t *targets, int64_t *counted,
                             struct up_error *err)
{
    enum up_status rc = UP_OK;
    UP_ASSERT(k >= 0 && first >= 0 && count >= 0 && first <= data->seq - count);
    *counted = 0;
    if (!count) goto out;
    int64_t from = k % up_data_windows(data) * data->seq + first;
    UP_TRY(read_tokens(data, from, count, inputs, err));
    memcpy(targets, inputs + 1, (size_t)(count - 1) * sizeof *targets);
    UP_TRY(read_tokens(data, from + count, 1, targets + count - 1, err));
    for (int64_t i = 0; i < count; i++) *counted += targets[i] != UP_DATA_IGNORED;
out:
    return rc;
}

enum up_status up_data_window(const struct up_data *data, int64_t k, int32_t *inputs,
                              int32_t *targets, int64_t *counted, struct up_error *err)
{
    return up_data_slice(data, k, 0, data->seq, inputs, targets, counted, err);
}
