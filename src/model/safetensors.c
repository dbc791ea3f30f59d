/* Reading one .safetensors file; see safetensors_impl.h. To convert another dtype, give it a widen
 * function in the table. */
#include "model/safetensors_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "tensors are stored little-endian and are read as they are"
#endif

enum { HEADER_LIMIT = 100000000, LENGTH_BYTES = 8 }; // the limit is the format's own

static const char metadata_name[] = "__metadata__";

struct up_safetensors {
    struct up_input input;
    json_t *header;
    int64_t data_offset; // of the data in the file
};

/* The `count` values that stand in the last bytes of `out` become floats from its start on. In
 * place: float i ends where value i + 1 begins, or before. */
typedef void widen(float *out, int64_t count);

static void widen_f32(float *out, int64_t count)
{
    (void)out, (void)count;
}

static void widen_bf16(float *out, int64_t count)
{
    const char *from = (const char *)out + 2 * count;
    for (int64_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, from + 2 * i, sizeof half);
        uint32_t bits = (uint32_t)half << 16;
        memcpy(&out[i], &bits, sizeof bits);
    }
}

// Shifted into fp32's fields, the exponent is off by the difference of the biases: 127 - 15.
static float from_f16(uint16_t half)
{
    uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13, sign = (uint32_t)(half & 0x8000) << 16;
    float value;
    if (magnitude >= 0x7c00u << 13) { // infinite, or not a number
        magnitude |= 0x7f800000;
    } else {
        memcpy(&value, &magnitude, sizeof value);
        value *= 0x1p112f;
        memcpy(&magnitude, &value, sizeof value);
    }
    magnitude |= sign;
    memcpy(&value, &magnitude, sizeof value);
    return value;
}

static void widen_f16(float *out, int64_t count)
{
    const char *from = (const char *)out + 2 * count;
    for (int64_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, from + 2 * i, sizeof half);
        out[i] = from_f16(half);
    }
}

struct dtype {
    const char *stored, *name; // in the file, and upipe's own
    int width;                 // bytes an element
    widen *widen;              // NULL: known, but not converted
};

static const struct dtype dtypes[] = {
    {"F32", "fp32", 4, widen_f32}, {"BF16", "bf16", 2, widen_bf16}, {"F16", "fp16", 2, widen_f16},
    {"F64", "fp64", 8, NULL},      {"I64", "i64", 8, NULL},         {"U64", "u64", 8, NULL},
    {"I32", "i32", 4, NULL},       {"U32", "u32", 4, NULL},         {"I16", "i16", 2, NULL},
    {"U16", "u16", 2, NULL},       {"I8", "i8", 1, NULL},           {"U8", "u8", 1, NULL},
    {"BOOL", "bool", 1, NULL},     {"F8_E4M3", "fp8", 1, NULL},     {"F8_E5M2", "fp8", 1, NULL},
};

// NULL for a dtype of a later version of the format, which matters only if it must be read.
static const struct dtype *find_dtype(const char *stored)
{
    for (int i = 0; i < UP_COUNT(dtypes); i++)
        if (!strcmp(dtypes[i].stored, stored)) return &dtypes[i];
    return NULL;
}

static enum up_status malformed(const struct up_safetensors *file, const char *tensor,
                                const char *expected, const json_t *found, struct up_error *err)
{
    char name[UP_SHOWN], value[UP_SHOWN];
    return up_fail(err, UP_USAGE, "%s: tensor %s: expected %s, found %s", file->input.path,
                   up_shown(name, tensor), expected, up_json_shown(value, found));
}

// The bytes that the shape and dtype make; false if they do not fit 63 bits.
static bool shape_bytes(const json_t *shape, int width, int64_t *bytes)
{
    const json_t *extent;
    size_t i;
    *bytes = width;
    json_array_foreach(
        shape, i, extent) if (__builtin_mul_overflow(*bytes, (int64_t)json_integer_value(extent),
                                                     bytes)) return false;
    return true;
}

static bool is_shape(const json_t *shape)
{
    const json_t *extent;
    size_t i;
    if (!json_is_array(shape)) return false;
    json_array_foreach(shape, i, extent) if (!json_is_integer(extent) ||
                                             json_integer_value(extent) < 0) return false;
    return true;
}

static bool is_span(const json_t *offsets)
{
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    return json_array_size(offsets) == 2 && json_is_integer(begin) && json_is_integer(end) &&
           json_integer_value(begin) >= 0 && json_integer_value(begin) <= json_integer_value(end);
}

static struct up_stored stored_entry(const char *name, const json_t *entry)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    return (struct up_stored){name, json_string_value(json_object_get(entry, "dtype")),
                              json_object_get(entry, "shape"),
                              json_integer_value(json_array_get(offsets, 0)),
                              json_integer_value(json_array_get(offsets, 1))};
}

static enum up_status check_bytes(const struct up_safetensors *file, const struct up_stored *stored,
                                  struct up_error *err)
{
    const struct dtype *dtype = find_dtype(stored->dtype);
    int64_t bytes;
    char name[UP_SHOWN], shape[UP_SHOWN];
    if (!dtype) return UP_OK;
    if (!shape_bytes(stored->shape, dtype->width, &bytes))
        return up_fail(err, UP_USAGE, "%s: tensor %s: shape %s is larger than any file",
                       file->input.path, up_shown(name, stored->name),
                       up_stored_shape(shape, stored));
    if (bytes == stored->end - stored->begin) return UP_OK;
    return up_fail(err, UP_USAGE,
                   "%s: tensor %s: expected %lld bytes for %s of shape %s, data_offsets span %lld",
                   file->input.path, up_shown(name, stored->name), (long long)bytes, dtype->stored,
                   up_stored_shape(shape, stored), (long long)(stored->end - stored->begin));
}

static enum up_status check_entry(const struct up_safetensors *file, const char *name,
                                  const json_t *entry, struct up_stored *stored,
                                  struct up_error *err)
{
    const json_t *dtype = json_object_get(entry, "dtype");
    const json_t *shape = json_object_get(entry, "shape");
    const json_t *offsets = json_object_get(entry, "data_offsets");
    if (!json_is_object(entry)) return malformed(file, name, "an object", entry, err);
    if (!json_is_string(dtype)) return malformed(file, name, "a dtype", dtype, err);
    if (!is_shape(shape))
        return malformed(file, name, "a shape of whole numbers from 0", shape, err);
    if (!is_span(offsets))
        return malformed(file, name, "data_offsets [begin, end], begin from 0 to end", offsets,
                         err);
    *stored = stored_entry(name, entry);
    return check_bytes(file, stored, err);
}

static int compare_spans(const void *left, const void *right)
{
    const struct up_stored *a = left, *b = right;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    return (a->end > b->end) - (a->end < b->end);
}

static enum up_status check_fit(const struct up_safetensors *file, int64_t end,
                                struct up_error *err)
{
    int64_t bytes = file->input.size - file->data_offset;
    if (end == bytes) return UP_OK;
    return up_fail(
        err, UP_USAGE, "%s: %s: the header speaks of %lld bytes of tensors, the file has %lld",
        file->input.path, end > bytes ? "cut short" : "too long", (long long)end, (long long)bytes);
}

/* Sorted, each tensor must begin where the one before ended: the format forbids holes, and in a
 * file with either fault no offset can be believed. */
static enum up_status check_spans(const struct up_safetensors *file, struct up_stored *spans,
                                  size_t count, struct up_error *err)
{
    int64_t end = 0, last = 0;
    char name[UP_SHOWN];
    for (size_t i = 0; i < count; i++) last = up_max(last, spans[i].end);
    enum up_status rc = check_fit(file, last, err);
    if (rc != UP_OK) return rc;
    qsort(spans, count, sizeof *spans, compare_spans);
    for (size_t i = 0; i < count; i++) {
        if (spans[i].begin != end)
            return up_fail(
                err, UP_USAGE,
                "%s: tensor %s: begins at byte %lld of the data, %s byte %lld, where the "
                "tensors before it end",
                file->input.path, up_shown(name, spans[i].name), (long long)spans[i].begin,
                spans[i].begin < end ? "overlapping up to" : "leaving a hole from", (long long)end);
        end = spans[i].end;
    }
    return UP_OK;
}

static enum up_status check_header(const struct up_safetensors *file, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const char *name;
    json_t *entry;
    size_t count = 0;
    struct up_stored *spans = calloc(json_object_size(file->header) + 1, sizeof *spans);
    if (!spans) return up_fail(err, UP_FAILED, "%s: out of memory", file->input.path);
    json_object_foreach(file->header, name, entry) if (strcmp(name, metadata_name) != 0)
        UP_TRY(check_entry(file, name, entry, &spans[count++], err));
    UP_TRY(check_spans(file, spans, count, err));
out:
    free(spans);
    return rc;
}

static enum up_status header_length(const struct up_safetensors *file, int64_t *length,
                                    struct up_error *err)
{
    const char *path = file->input.path;
    int64_t rest = file->input.size - LENGTH_BYTES;
    uint64_t told = 0;
    if (rest < 0)
        return up_fail(err, UP_USAGE, "%s: expected a safetensors file, found only %lld bytes",
                       path, (long long)file->input.size);
    enum up_status rc = up_input_read(&file->input, &told, sizeof told, 0, err);
    if (rc != UP_OK) return rc;
    if (told > HEADER_LIMIT)
        return up_fail(
            err, UP_USAGE,
            "%s: expected a safetensors header of at most %d bytes, found a length of %llu", path,
            HEADER_LIMIT, (unsigned long long)told);
    if (told > (uint64_t)rest)
        return up_fail(
            err, UP_USAGE,
            "%s: cut short: expected a header of %llu bytes, the file has %lld after its "
            "length",
            path, (unsigned long long)told, (long long)rest);
    *length = (int64_t)told;
    return UP_OK;
}

static enum up_status read_header(struct up_safetensors *file, struct up_error *err)
{
    enum up_status rc = UP_OK;
    int64_t length = 0;
    char *text = NULL;
    UP_TRY(header_length(file, &length, err));
    text = malloc((size_t)length + 1);
    if (!text) UP_TRY(up_fail(err, UP_FAILED, "%s: out of memory", file->input.path));
    UP_TRY(up_input_read(&file->input, text, length, LENGTH_BYTES, err));
    UP_TRY(up_json_parse(text, (size_t)length, file->input.path, "header", &file->header, err));
    file->data_offset = LENGTH_BYTES + length;
out:
    free(text);
    return rc;
}

enum up_status up_safetensors_open(const char *path, struct up_safetensors **file,
                                   struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_safetensors *opened = calloc(1, sizeof *opened);
    *file = NULL;
    if (!opened) return up_fail(err, UP_FAILED, "%s: out of memory", path);
    UP_TRY(up_input_open(&opened->input, path, err));
    UP_TRY(read_header(opened, err));
    UP_TRY(check_header(opened, err));
    *file = opened;
    opened = NULL;
out:
    up_safetensors_close(opened);
    return rc;
}

void up_safetensors_close(struct up_safetensors *file)
{
    if (!file) return;
    json_decref(file->header);
    up_input_close(&file->input);
    free(file);
}

const char *up_safetensors_path(const struct up_safetensors *file)
{
    return file->input.path;
}

json_t *up_safetensors_header(const struct up_safetensors *file)
{
    return file->header;
}

bool up_safetensors_find(const struct up_safetensors *file, const char *name,
                         struct up_stored *stored)
{
    const json_t *entry = json_object_get(file->header, name);
    if (!entry || !strcmp(name, metadata_name)) return false;
    *stored = stored_entry(name, entry);
    return true;
}

const char *up_safetensors_metadata(const struct up_safetensors *file, const char *key)
{
    const json_t *metadata = json_object_get(file->header, metadata_name);
    return json_string_value(json_object_get(metadata, key));
}

int up_stored_width(const struct up_stored *stored)
{
    const struct dtype *dtype = find_dtype(stored->dtype);
    return dtype && dtype->widen ? dtype->width : 0;
}

const char *up_stored_dtype(const struct up_stored *stored)
{
    const struct dtype *dtype = find_dtype(stored->dtype);
    UP_ASSERT(dtype);
    return dtype->name;
}

const char *up_stored_shape(char out[UP_SHOWN], const struct up_stored *stored)
{
    enum { TAIL = sizeof ", ...]" };
    const json_t *extent;
    size_t i;
    int used = snprintf(out, UP_SHOWN, "[");
    json_array_foreach(stored->shape, i, extent)
    {
        char text[24];
        int length = snprintf(text, sizeof text, "%s%lld", i ? ", " : "",
                              (long long)json_integer_value(extent));
        if (used + length + TAIL > UP_SHOWN) {
            snprintf(out + used, (size_t)(UP_SHOWN - used), ", ...]");
            return out;
        }
        memcpy(out + used, text, (size_t)length + 1);
        used += length;
    }
    snprintf(out + used, (size_t)(UP_SHOWN - used), "]");
    return out;
}

enum up_status up_safetensors_read(const struct up_safetensors *file,
                                   const struct up_stored *stored, int64_t first, int64_t count,
                                   float *out, struct up_error *err)
{
    const struct dtype *dtype = find_dtype(stored->dtype);
    UP_ASSERT(dtype && dtype->widen && first >= 0 && count >= 0);
    int64_t elements = (stored->end - stored->begin) / dtype->width;
    UP_ASSERT(count <= elements && first <= elements - count);
    char *last_bytes = (char *)out + count * ((int64_t)sizeof *out - dtype->width);
    int64_t offset = file->data_offset + stored->begin + first * dtype->width;
    enum up_status rc = up_input_read(&file->input, last_bytes, count * dtype->width, offset, err);
    if (rc == UP_OK) dtype->widen(out, count);
    return rc;
}
