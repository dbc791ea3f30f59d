/* Token files: windows and their targets, llm.c's headers, and what is refused. */
#include "tests/model/scratch.h"
#include "model/data.h"

#include <sys/stat.h>

static enum up_status open_named(const char *folder, const char *name, enum up_data_format format,
                                 int64_t seq, int64_t vocab, struct up_data **data,
                                 struct up_error *err)
{
    char path[300];
    scratch_path(path, folder, name);
    return up_data_open(path, format, seq, vocab, data, err);
}

static struct up_data *opened(const char *folder, enum up_data_format format, int64_t seq,
                              int64_t vocab, const void *bytes, size_t count)
{
    struct up_data *data;
    struct up_error err = {0};
    scratch_write(folder, "tokens", bytes, count);
    if (open_named(folder, "tokens", format, seq, vocab, &data, &err) != UP_OK)
        fail_msg("%s", err.text);
    return data;
}

static void refused(const char *folder, enum up_data_format format, int64_t seq, const void *bytes,
                    size_t count, const char *named)
{
    struct up_data *data;
    struct up_error err = {0};
    scratch_write(folder, "tokens", bytes, count);
    assert_refused(open_named(folder, "tokens", format, seq, 256, &data, &err), &err, named);
    assert_non_null(strstr(err.text, "/tokens: "));
    assert_null(data);
}

static const int32_t ten[10] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 250};

// ten[] in a format; the number of bytes.
static size_t store(enum up_data_format format, char out[40])
{
    static const size_t widths[] = {1, 2, 4, 4};
    for (int i = 0; i < 10; i++) memcpy(out + widths[format] * (size_t)i, &ten[i], widths[format]);
    return 10 * widths[format];
}

static void windows_are_the_same_in_every_format(void **state)
{
    for (int format = 0; format < UP_DATA_FORMAT_COUNT; format++) {
        char bytes[40];
        struct up_data *data = opened(*state, format, 3, 256, bytes, store(format, bytes));
        assert_int_equal(up_data_tokens(data), 10);
        assert_int_equal(up_data_windows(data), 3);
        for (int64_t k = 0; k < 7; k++) {
            int32_t inputs[4] = {0, 0, 0, 77}, targets[4] = {0, 0, 0, 77};
            int64_t counted = 0, from = k % 3 * 3;
            assert_int_equal(up_data_window(data, k, inputs, targets, &counted, NULL), UP_OK);
            assert_memory_equal(inputs, ten + from, 3 * sizeof *ten);
            assert_memory_equal(targets, ten + from + 1, 3 * sizeof *ten);
            assert_true(inputs[3] == 77 && targets[3] == 77);
            assert_int_equal(counted, 3);
        }
        up_data_close(data);
    }
}

static void whole_windows_are_counted(void **state)
{
    char bytes[100] = {0};
    static const struct {
        size_t tokens;
        int64_t seq, windows;
    } cases[] = {{2, 1, 1}, {10, 3, 3}, {9, 3, 2}, {10, 9, 1}, {100, 10, 9}, {100, 33, 3}};
    for (int i = 0; i < UP_COUNT(cases); i++) {
        struct up_data *data =
            opened(*state, UP_DATA_BYTES, cases[i].seq, 256, bytes, cases[i].tokens);
        assert_int_equal(up_data_windows(data), cases[i].windows);
        up_data_close(data);
    }
}

// Slices of any cut make up the window.
static void slices_make_up_the_window(void **state)
{
    char bytes[40];
    struct up_data *data = opened(*state, UP_DATA_U16, 4, 256, bytes, store(UP_DATA_U16, bytes));
    int32_t inputs[4], targets[4], part_inputs[4], part_targets[4];
    int64_t all, some;
    for (int64_t k = 0; k < 2; k++) {
        assert_int_equal(up_data_window(data, k, inputs, targets, &all, NULL), UP_OK);
        for (int64_t first = 0; first <= 4; first++)
            for (int64_t count = 0; count <= 4 - first; count++) {
                assert_int_equal(
                    up_data_slice(data, k, first, count, part_inputs, part_targets, &some, NULL),
                    UP_OK);
                assert_int_equal(some, count);
                assert_memory_equal(part_inputs, inputs + first, (size_t)count * 4);
                assert_memory_equal(part_targets, targets + first, (size_t)count * 4);
            }
    }
    up_data_close(data);
}

static void ignored_labels_do_not_count(void **state)
{
    const int32_t tokens[] = {5, -100, -100, 7, -100};
    int32_t inputs[4], targets[4];
    int64_t counted;
    struct up_data *data = opened(*state, UP_DATA_I32, 4, 256, tokens, sizeof tokens);
    assert_int_equal(up_data_window(data, 0, inputs, targets, &counted, NULL), UP_OK);
    assert_memory_equal(inputs, tokens, sizeof inputs);
    assert_memory_equal(targets, tokens + 1, sizeof targets);
    assert_int_equal(counted, 1);
    assert_int_equal(up_data_slice(data, 0, 1, 2, inputs, targets, &counted, NULL), UP_OK);
    assert_int_equal(counted, 1);
    up_data_close(data);
}

static void wrong_ids(const char *folder, enum up_data_format format, int64_t vocab,
                      const void *bytes, size_t count, const char *named)
{
    int32_t inputs[2], targets[2];
    int64_t counted;
    struct up_error err = {0};
    struct up_data *data = opened(folder, format, 2, vocab, bytes, count);
    assert_refused(up_data_window(data, 0, inputs, targets, &counted, &err), &err, named);
    assert_non_null(strstr(err.text, "/tokens: "));
    up_data_close(data);
}

static void ids_beyond_the_vocabulary_are_named(void **state)
{
    wrong_ids(*state, UP_DATA_BYTES, 100, "ab\xff", 3, "byte 2: expected a token id below 100");
    wrong_ids(*state, UP_DATA_BYTES, 98, "abc", 3, "found 98 ");
    const uint16_t u16[] = {0, 65535, 1};
    wrong_ids(*state, UP_DATA_U16, 65535, u16, sizeof u16, "byte 2: ");
    wrong_ids(*state, UP_DATA_U16, 65535, u16, sizeof u16, "found 65535 (--data-format u16)");
    const uint32_t u32[] = {0, 1, 4000000000};
    wrong_ids(*state, UP_DATA_U32, 1 << 20, u32, sizeof u32, "byte 8: ");
    wrong_ids(*state, UP_DATA_U32, 1 << 20, u32, sizeof u32, "found 4000000000");
    const int32_t minus_one[] = {0, -1, 1}, minus_101[] = {-101, 0, 0};
    wrong_ids(*state, UP_DATA_I32, 256, minus_one, sizeof minus_one, "byte 4: ");
    wrong_ids(*state, UP_DATA_I32, 256, minus_101, sizeof minus_101, "found -101");
    // -100 in u32 is 4294967196, a token like any other.
    const int32_t minus_100[] = {0, -100, 1};
    wrong_ids(*state, UP_DATA_U32, 256, minus_100, sizeof minus_100, "found 4294967196");
}

static void files_too_small_or_uneven_are_refused(void **state)
{
    refused(*state, UP_DATA_BYTES, 8, "", 0,
            "expected at least 9 tokens (--seq and one more), found 0");
    refused(*state, UP_DATA_BYTES, 1, "x", 1, "expected at least 2 tokens");
    refused(*state, UP_DATA_BYTES, 8, "12345678", 8, "found 8");
    refused(*state, UP_DATA_I32, 2, "12345678", 8, "expected at least 3 tokens");
    refused(*state, UP_DATA_BYTES, INT64_MAX - 1, "12345678", 8, "expected at least");
    refused(*state, UP_DATA_U16, 1, "12345", 5, "5 bytes are not a multiple of 2");
    refused(*state, UP_DATA_U32, 1, "1234567890", 10, "10 bytes are not a multiple of 4");
    refused(*state, UP_DATA_I32, 1, "12345678901", 11, "--data-format i32");
}

static void what_is_no_file_is_refused(void **state)
{
    struct up_data *data;
    struct up_error err = {0};
    char path[300];
    assert_refused(open_named(*state, "absent", UP_DATA_U16, 8, 256, &data, &err), &err,
                   "absent: cannot be opened");
    assert_refused(open_named(*state, ".", UP_DATA_U16, 8, 256, &data, &err), &err,
                   "found a directory");
    scratch_path(path, *state, "fifo");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_refused(open_named(*state, "fifo", UP_DATA_U16, 8, 256, &data, &err), &err,
                   "regular file");
}

/* An llm.c file: 1024 bytes of header, then ten[]; the number of bytes. */
static size_t store_llmc(int32_t magic, int32_t version, int32_t count, enum up_data_format format,
                         char out[1064])
{
    const int32_t header[256] = {magic, version, count};
    memcpy(out, header, sizeof header);
    return sizeof header + store(format, out + sizeof header);
}

static void llmc_headers_are_skipped(void **state)
{
    static const struct {
        int32_t magic, version;
        enum up_data_format format;
    } kinds[] = {{20240520, 1, UP_DATA_U16}, {20240801, 7, UP_DATA_U32}};
    for (int i = 0; i < UP_COUNT(kinds); i++) {
        char bytes[1064], named[64];
        int32_t inputs[9], targets[9];
        int64_t counted;
        size_t count = store_llmc(kinds[i].magic, kinds[i].version, 10, kinds[i].format, bytes);
        struct up_data *data = opened(*state, kinds[i].format, 9, 256, bytes, count);
        assert_int_equal(up_data_tokens(data), 10);
        assert_int_equal(up_data_window(data, 0, inputs, targets, &counted, NULL), UP_OK);
        assert_memory_equal(inputs, ten, sizeof inputs);
        assert_memory_equal(targets, ten + 1, sizeof targets);
        up_data_close(data);

        for (int format = 0; format < UP_DATA_FORMAT_COUNT; format++) {
            if (format == (int)kinds[i].format) continue;
            snprintf(named, sizeof named, "expected --data-format %s, not %s",
                     up_data_format_names[kinds[i].format], up_data_format_names[format]);
            refused(*state, format, 9, bytes, count, named);
        }
        // The offset that a wrong id is reported at counts the header.
        struct up_error err = {0};
        data = opened(*state, kinds[i].format, 9, 250, bytes, count);
        snprintf(named, sizeof named, "byte %d: ", kinds[i].format == UP_DATA_U16 ? 1042 : 1060);
        assert_refused(up_data_window(data, 0, inputs, targets, &counted, &err), &err, named);
        up_data_close(data);
    }
}

static void llmc_headers_that_lie_are_refused(void **state)
{
    char bytes[1064];
    size_t count = store_llmc(20240520, 1, 11, UP_DATA_U16, bytes);
    refused(*state, UP_DATA_U16, 9, bytes, count, "speaks of 11 tokens");
    count = store_llmc(20240520, 1, 9, UP_DATA_U16, bytes);
    refused(*state, UP_DATA_U16, 8, bytes, count, "speaks of 9 tokens");
    count = store_llmc(20240520, 1, -1, UP_DATA_U16, bytes);
    refused(*state, UP_DATA_U16, 8, bytes, count, "speaks of -1 tokens");
    count = store_llmc(20240520, 1, 10, UP_DATA_U16, bytes);
    refused(*state, UP_DATA_U16, 9, bytes, count - 1, "speaks of 10 tokens");
    refused(*state, UP_DATA_U16, 10, bytes, count, "expected at least 11 tokens");
    refused(*state, UP_DATA_U16, 1, bytes, 1023, "cut short");
    refused(*state, UP_DATA_U16, 1, bytes, 4, "cut short");
    count = store_llmc(20240520, 2, 10, UP_DATA_U16, bytes);
    refused(*state, UP_DATA_U16, 9, bytes, count, "expected version 1");
    count = store_llmc(20240801, 1, 10, UP_DATA_U32, bytes);
    refused(*state, UP_DATA_U32, 9, bytes, count, "expected version 7");
    count = store_llmc(20240522, 1, 10, UP_DATA_U16, bytes);
    refused(*state, UP_DATA_U16, 9, bytes, count, "evaluation file");
}

// The word list of the option and the names used in messages are one list.
static void format_names_are_the_options_words(void **state)
{
    (void)state;
    char words[64] = "";
    for (int i = 0; i < UP_DATA_FORMAT_COUNT; i++) {
        if (i) strcat(words, "|");
        strcat(words, up_data_format_names[i]);
    }
    assert_string_equal(words, UP_DATA_FORMATS);
}

static void fixtures_are_read(void **state)
{
    static const struct {
        const char *file;
        int64_t seq, windows;
    } fixtures[] = {{"tiny-llama3/tokens.i32", 96, 6},
                    {"tiny-llama31-scaled-rope/tokens.i32", 96, 6},
                    {"tiny-qwen3/tokens.i32", 96, 6},
                    {"small-llama3-d128/tokens.i32", 512, 6}};
    (void)state;
    for (int i = 0; i < UP_COUNT(fixtures); i++) {
        struct up_data *data;
        struct up_error err = {0};
        int32_t inputs[512], targets[512];
        int64_t counted;
        assert_int_equal(open_named(UP_TEST_DATA, fixtures[i].file, UP_DATA_I32, fixtures[i].seq,
                                    256, &data, &err),
                         UP_OK);
        assert_int_equal(up_data_windows(data), fixtures[i].windows);
        for (int64_t k = 0; k < fixtures[i].windows; k++) {
            assert_int_equal(up_data_window(data, k, inputs, targets, &counted, &err), UP_OK);
            assert_int_equal(counted, fixtures[i].seq);
        }
        up_data_close(data);
    }
}

// The last window of a file of 5 GiB (a hole, so no bytes on disk): offsets are 64 bits throughout.
static void big_files_are_read_where_asked(void **state)
{
    const int64_t size = INT64_C(5) << 30;
    char path[300];
    struct up_data *data;
    int32_t inputs[16], targets[16];
    int64_t counted;
    scratch_write(*state, "big", "x", 1);
    scratch_path(path, *state, "big");
    assert_int_equal(truncate(path, size), 0);
    assert_int_equal(open_named(*state, "big", UP_DATA_U16, 16, 256, &data, NULL), UP_OK);
    int64_t windows = up_data_windows(data);
    assert_int_equal(windows, (size / 2 - 1) / 16);
    assert_int_equal(up_data_window(data, windows - 1, inputs, targets, &counted, NULL), UP_OK);
    assert_int_equal(inputs[0], 0);
    assert_int_equal(up_data_window(data, windows, inputs, targets, &counted, NULL), UP_OK);
    assert_int_equal(inputs[0], 'x');
    up_data_close(data);
}

#define CASE(function) cmocka_unit_test_setup_teardown(function, scratch_create, scratch_destroy)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(windows_are_the_same_in_every_format),
        CASE(whole_windows_are_counted),
        CASE(slices_make_up_the_window),
        CASE(ignored_labels_do_not_count),
        CASE(ids_beyond_the_vocabulary_are_named),
        CASE(files_too_small_or_uneven_are_refused),
        CASE(what_is_no_file_is_refused),
        CASE(llmc_headers_are_skipped),
        CASE(llmc_headers_that_lie_are_refused),
        CASE(big_files_are_read_where_asked),
        cmocka_unit_test(format_names_are_the_options_words),
        cmocka_unit_test(fixtures_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
