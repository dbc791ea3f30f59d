/* One .safetensors file: conversion, and every way that a header can lie. */
#include "tests/model/scratch.h"
#include "model/safetensors_impl.h"

#include <math.h>
#include <sys/stat.h>

static enum up_status open_named(const char *folder, const char *name, struct up_safetensors **file,
                                 struct up_error *err)
{
    char path[300];
    scratch_path(path, folder, name);
    return up_safetensors_open(path, file, err);
}

static struct up_safetensors *opened(const char *folder, const char *header, const void *data,
                                     size_t bytes)
{
    struct up_safetensors *file;
    struct up_error err = {0};
    scratch_write_tensors(folder, "x.safetensors", header, data, bytes);
    if (open_named(folder, "x.safetensors", &file, &err) != UP_OK) fail_msg("%s", err.text);
    return file;
}

static void refused(const char *folder, const char *header, size_t bytes, const char *named)
{
    struct up_safetensors *file;
    struct up_error err = {0};
    void *data = calloc(1, bytes + 1);
    scratch_write_tensors(folder, "x.safetensors", header, data, bytes);
    assert_refused(open_named(folder, "x.safetensors", &file, &err), &err, named);
    assert_non_null(strstr(err.text, "x.safetensors"));
    assert_null(file);
    free(data);
}

// All 65536 halves, by the definition of the format.
static double half_value(unsigned half)
{
    double sign = half & 0x8000 ? -1 : 1, fraction = half & 0x3ff;
    int exponent = half >> 10 & 0x1f;
    if (exponent == 31) return fraction != 0 ? NAN : sign * INFINITY;
    return sign * (exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24));
}

static void every_fp16_value_converts(void **state)
{
    enum { ALL = 65536 };
    uint16_t *halves = malloc(ALL * sizeof *halves);
    float *out = malloc(ALL * sizeof *out);
    struct up_error err = {0};
    struct up_stored stored;
    for (int i = 0; i < ALL; i++) halves[i] = (uint16_t)i;
    struct up_safetensors *file = opened(
        *state, "{\"t\":{\"dtype\":\"F16\",\"shape\":[256,256],\"data_offsets\":[0,131072]}}",
        halves, ALL * sizeof *halves);
    assert_true(up_safetensors_find(file, "t", &stored));
    assert_string_equal(up_stored_dtype(&stored), "fp16");
    assert_int_equal(up_safetensors_read(file, &stored, 0, ALL, out, &err), UP_OK);
    for (int i = 0; i < ALL; i++) {
        double expected = half_value((unsigned)i);
        assert_true(isnan(expected) ? isnan(out[i]) : out[i] == expected);
        assert_int_equal(!!signbit(out[i]), i >> 15);
    }
    up_safetensors_close(file);
    free(halves);
    free(out);
}

static void ranges_of_each_dtype_are_read(void **state)
{
    // Three tensors of 1.5, -2, 0.25, 3 in bf16, fp32 and fp16, after one that stays unread.
    const float f32[] = {1.5f, -2, 0.25f, 3};
    const uint16_t bf16[] = {0x3fc0, 0xc000, 0x3e80, 0x4040};
    const uint16_t f16[] = {0x3e00, 0xc000, 0x3400, 0x4200};
    char data[2 + sizeof bf16 + sizeof f32 + sizeof f16] = {0};
    memcpy(data + 2, bf16, sizeof bf16);
    memcpy(data + 10, f32, sizeof f32);
    memcpy(data + 26, f16, sizeof f16);
    struct up_safetensors *file =
        opened(*state,
               "{\"fp32\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[10,26]},"
               "\"later\":{\"dtype\":\"F4_NEW\",\"shape\":[3],\"data_offsets\":[0,2]},"
               "\"bf16\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[2,10]},"
               "\"fp16\":{\"dtype\":\"F16\",\"shape\":[4,1],\"data_offsets\":[26,34]},"
               "\"none\":{\"dtype\":\"I64\",\"shape\":[0],\"data_offsets\":[26,26]}}   ",
               data, sizeof data);
    struct up_stored stored;
    struct up_error err = {0};
    static const char *const names[] = {"fp32", "bf16", "fp16"};
    for (int i = 0; i < UP_COUNT(names); i++)
        for (int first = 0; first <= 4; first++)
            for (int count = 0; count <= 4 - first; count++) {
                float out[5] = {7, 7, 7, 7, 7};
                assert_true(up_safetensors_find(file, names[i], &stored));
                assert_string_equal(up_stored_dtype(&stored), names[i]);
                assert_int_equal(up_safetensors_read(file, &stored, first, count, out, &err),
                                 UP_OK);
                assert_memory_equal(out, f32 + first, (size_t)count * sizeof *out);
                assert_true(out[count] == 7);
            }
    assert_true(up_safetensors_find(file, "later", &stored));
    assert_int_equal(up_stored_width(&stored), 0);
    assert_true(up_safetensors_find(file, "none", &stored));
    assert_int_equal(up_stored_width(&stored), 0);
    assert_false(up_safetensors_find(file, "absent", &stored));
    up_safetensors_close(file);
}

static void metadata_is_never_a_tensor(void **state)
{
    static const char *const sound[] = {
        "{}",
        "{\"__metadata__\":{}}",
        "{\"__metadata__\":{\"format\":\"mlx\"}}",
        "{\"__metadata__\":null}",
        "{\"__metadata__\":{\"twin\":\"embed\",\"n\":[1,{}]}}",
    };
    for (int i = 0; i < UP_COUNT(sound); i++) {
        struct up_safetensors *file = opened(*state, sound[i], "", 0);
        struct up_stored stored;
        assert_false(up_safetensors_find(file, "__metadata__", &stored));
        const char *twin = up_safetensors_metadata(file, "twin");
        if (i == 4)
            assert_string_equal(twin, "embed");
        else
            assert_null(twin);
        assert_null(up_safetensors_metadata(file, "n"));
        up_safetensors_close(file);
    }
    refused(*state, "{},\"__metadata__\":{\"format\":\"pt\"}}", 0,
            "header: expected a JSON object");
}

#define TENSOR(name, dtype, shape, begin, end)                                                     \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end   \
    "]}"

static void headers_that_lie_are_refused(void **state)
{
    static const struct {
        const char *header;
        size_t bytes;
        const char *named;
    } lies[] = {
        // The data is shorter or longer than the header says.
        {"{" TENSOR("a", "F32", "[2]", "0", "8") "}", 7, "cut short"},
        {"{" TENSOR("a", "F32", "[2]", "0", "8") "}", 0, "8 bytes of tensors, the file has 0"},
        {"{" TENSOR("a", "F32", "[2]", "0", "8") "}", 9, "too long"},
        {"{}", 1, "too long"},
        // Offsets that overlap, leave a hole, or leave the file.
        {"{" TENSOR("a", "F32", "[2]", "0", "8") "," TENSOR("b", "F32", "[2]", "4", "12") "}", 12,
         "tensor b: begins at byte 4 of the data, overlapping up to byte 8"},
        {"{" TENSOR("a", "F32", "[2]", "0", "8") "," TENSOR("b", "F32", "[2]", "0", "8") "}", 8,
         "overlapping"},
        {"{" TENSOR("a", "F32", "[4]", "0", "16") "," TENSOR("b", "F32", "[1]", "4", "8") "}", 16,
         "tensor b"},
        {"{" TENSOR("a", "F32", "[1]", "0", "4") "," TENSOR("b", "F32", "[1]", "8", "12") "}", 12,
         "tensor b: begins at byte 8 of the data, leaving a hole from byte 4"},
        {"{" TENSOR("a", "F32", "[1]", "4", "8") "}", 8, "hole"},
        {"{" TENSOR("a", "F32", "[2305843009213693951]", "0", "9223372036854775804") "}", 8,
         "cut short"},
        {"{" TENSOR("a", "U8", "[0]", "9000000000000000000", "9000000000000000000") "}", 8,
         "cut short"},
        // Shape, dtype and offsets that disagree.
        {"{" TENSOR("a", "F32", "[3]", "0", "8") "}", 8, "expected 12 bytes for F32 of shape [3]"},
        {"{" TENSOR("a", "F16", "[2]", "0", "8") "}", 8, "tensor a: expected 4 bytes"},
        {"{" TENSOR("a", "BF16", "[]", "0", "4") "}", 4, "of shape []"},
        {"{" TENSOR("a", "F32", "[4294967296,4294967296,2]", "0", "8") "}", 8, "larger than any"},
        {"{" TENSOR("a", "F32", "[4611686018427387904]", "0", "0") "}", 0, "larger than any"},
        // Entries that are none.
        {"{" TENSOR("a", "F32", "[2]", "8", "0") "}", 8, "begin from 0 to end"},
        {"{" TENSOR("a", "F32", "[2]", "-8", "0") "}", 8, "begin from 0 to end"},
        {"{" TENSOR("a", "F32", "[2]", "0", "8.0") "}", 8, "data_offsets"},
        {"{" TENSOR("a", "F32", "[2]", "0", "4,8") "}", 8, "data_offsets"},
        {"{" TENSOR("a", "F32", "[-2]", "0", "8") "}", 8, "a shape of whole numbers"},
        {"{" TENSOR("a", "F32", "[2.0]", "0", "8") "}", 8, "a shape of whole numbers"},
        {"{" TENSOR("a", "F32", "{\\\"x\\\":2}", "0", "8") "}", 8, "header"},
        {"{" TENSOR("a", "F32", "{}", "0", "8") "}", 8, "a shape of whole numbers"},
        {"{\"a\":3}", 0, "tensor a: expected an object, found 3"},
        {"{\"a\":{}}", 0, "tensor a: expected a dtype, found nothing"},
        {"{\"a\":{\"dtype\":1}}", 0, "tensor a: expected a dtype, found 1"},
        {"{\"a\":{\"dtype\":\"F32\"}}", 0, "shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 0, "data_offsets"},
        {"{\"\\u001b[2J\\n\":3}", 0, "tensor ?[2J?: expected an object"},
        // Names twice, and JSON that is none.
        {"{" TENSOR("a", "F32", "[1]", "0", "4") "," TENSOR("a", "F32", "[1]", "4", "8") "}", 8,
         "duplicate"},
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F16\"}}", 0, "duplicate"},
        {"[]", 0, "header: expected a JSON object, found an array"},
        {"", 0, "header"},
        {"{\"a\\u0000b\":{}}", 0, "header"},
        {"{\"a\":", 0, "header"},
    };
    for (int i = 0; i < UP_COUNT(lies); i++)
        refused(*state, lies[i].header, lies[i].bytes, lies[i].named);
}

static void refused_bytes(const char *folder, const void *bytes, size_t count, const char *named)
{
    struct up_safetensors *file;
    struct up_error err = {0};
    scratch_write(folder, "x.safetensors", bytes, count);
    assert_refused(open_named(folder, "x.safetensors", &file, &err), &err, named);
}

static void header_lengths_that_lie_are_refused(void **state)
{
    static const uint64_t lengths[] = {3, 1000, 100000000, 100000001, INT64_MAX, UINT64_MAX};
    char bytes[8 + 2] = "        {}";
    for (int i = 0; i < UP_COUNT(lengths); i++) {
        memcpy(bytes, &lengths[i], 8);
        refused_bytes(*state, bytes, sizeof bytes,
                      lengths[i] > 100000000 ? "at most" : "cut short");
    }
    for (size_t count = 0; count < 8; count++)
        refused_bytes(*state, bytes, count, "expected a safetensors file");
}

// A sound file cut at any byte is refused, as is one with a byte more.
static void every_truncation_is_refused(void **state)
{
    const char *header = "{" TENSOR("a", "F32", "[2]", "0", "8") "}";
    uint64_t length = strlen(header);
    char bytes[256] = {0};
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, length);
    size_t whole = 8 + length + 8;
    for (size_t count = 0; count < whole; count++)
        refused_bytes(*state, bytes, count, "x.safetensors");
    refused_bytes(*state, bytes, whole + 1, "too long");
    struct up_safetensors *file;
    scratch_write(*state, "x.safetensors", bytes, whole);
    assert_int_equal(open_named(*state, "x.safetensors", &file, NULL), UP_OK);
    up_safetensors_close(file);
}

static void deep_headers_are_refused(void **state)
{
    enum { DEEP = 100000 };
    char *header = malloc(DEEP + 6);
    memcpy(header, "{\"a\":", 5);
    memset(header + 5, '[', DEEP);
    header[DEEP + 5] = 0;
    refused(*state, header, 0, "depth");
    free(header);
}

static void what_is_no_file_is_refused(void **state)
{
    struct up_safetensors *file;
    struct up_error err = {0};
    char path[300];
    assert_refused(open_named(*state, "absent", &file, &err), &err, "absent: cannot be opened");
    assert_refused(open_named(*state, ".", &file, &err), &err, "found a directory");
    scratch_path(path, *state, "fifo");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_refused(open_named(*state, "fifo", &file, &err), &err, "expected a regular file");
}

// The file that shrinks under the reader is the run's misfortune, not the user's mistake.
static void a_file_that_shrinks_is_an_error(void **state)
{
    float data[2] = {1, 2}, out[2];
    char path[300];
    struct up_error err = {0};
    struct up_stored stored;
    const char *header = "{" TENSOR("a", "F32", "[2]", "0", "8") "}";
    struct up_safetensors *file = opened(*state, header, data, sizeof data);
    scratch_path(path, *state, "x.safetensors");
    assert_int_equal(truncate(path, (off_t)(8 + strlen(header) + 4)), 0);
    assert_true(up_safetensors_find(file, "a", &stored));
    assert_int_equal(up_safetensors_read(file, &stored, 0, 2, out, &err), UP_FAILED);
    assert_non_null(strstr(err.text, "x.safetensors: has no byte "));
    up_safetensors_close(file);
}

static void text_is_made_safe_to_show(void **state)
{
    (void)state;
    char out[UP_SHOWN], text[300];
    assert_string_equal(up_shown(out, "a\x1b[31m\n\xc3\xa9"), "a?[31m???");
    memset(text, 'x', sizeof text);
    text[UP_SHOWN - 1] = 0;
    assert_string_equal(up_shown(out, text), text);
    text[UP_SHOWN - 1] = 'x';
    text[UP_SHOWN] = 0;
    assert_int_equal(strlen(up_shown(out, text)), UP_SHOWN - 1);
    assert_string_equal(out + UP_SHOWN - 4, "...");
}

static void long_shapes_are_cut(void **state)
{
    (void)state;
    char out[UP_SHOWN];
    json_t *shape = json_array();
    struct up_stored stored = {"t", "F32", shape, 0, 0};
    assert_string_equal(up_stored_shape(out, &stored), "[]");
    json_array_append_new(shape, json_integer(4096));
    json_array_append_new(shape, json_integer(1024));
    assert_string_equal(up_stored_shape(out, &stored), "[4096, 1024]");
    for (int i = 0; i < 100; i++) {
        json_array_append_new(shape, json_integer(i % 2 ? INT64_MAX : i));
        size_t length = strlen(up_stored_shape(out, &stored));
        assert_in_range(length, 12, UP_SHOWN - 1);
        assert_int_equal(out[length - 1], ']');
    }
    assert_non_null(strstr(out, ", ...]"));
    json_decref(shape);
}

#define CASE(function) cmocka_unit_test_setup_teardown(function, scratch_create, scratch_destroy)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(every_fp16_value_converts),
        CASE(ranges_of_each_dtype_are_read),
        CASE(metadata_is_never_a_tensor),
        CASE(headers_that_lie_are_refused),
        CASE(header_lengths_that_lie_are_refused),
        CASE(every_truncation_is_refused),
        CASE(deep_headers_are_refused),
        CASE(what_is_no_file_is_refused),
        CASE(a_file_that_shrinks_is_an_error),
        CASE(text_is_made_safe_to_show),
        CASE(long_shapes_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
