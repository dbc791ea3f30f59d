/* The books: what the device says is used against what is known of it, which sample is held against
 * which moment, pinned memory; and the post-mortem of a run that was out of memory. */
#include "tests/report/run.h"

#include <jansson.h>

enum { MIB = 1 << 20 };

// "item bytes, item bytes, ..." of a reconciliation, in MiB.
static const char *items_of(const json_t *rows)
{
    static char text[1024];
    size_t i, used = 0;
    const json_t *row;
    text[0] = 0;
    json_array_foreach(rows, i, row) used +=
        (size_t)snprintf(text + used, sizeof text - used, "%s%s %g", i ? ", " : "",
                         json_string_value(json_object_get(row, "item")),
                         (double)json_integer_value(json_object_get(row, "bytes")) / MIB);
    return text;
}

/* 100 MiB of tensors in an arena of 120, of which 110 are reserved; libraries with 60; 7 were there
 * before. `used` is what the device says, at the moment of the peak. */
static void make_books(struct fixture *f, int64_t used)
{
    fixture_describe(f);
    fixture_meta(f, "device", "cuda");
    f->ns = 1000000;
    fixture_sql(
        f, "UPDATE rank SET baseline_used_bytes = 7 * 1048576;"
           "INSERT INTO device_alloc VALUES (1, 0, 'context', 'device', 30 * 1048576, 10, NULL),"
           " (2, 0, 'nccl', 'device', 20 * 1048576, 20, NULL),"
           " (3, 0, 'arena', 'device', 120 * 1048576, 30, NULL),"
           " (4, 0, 'nccl', 'device', 10 * 1048576, 900000, NULL),"
           " (5, 0, 'gone.so', 'device', 99 * 1048576, 10, 40),"
           " (6, 0, 'late.so', 'device', 99 * 1048576, 1002000, NULL),"
           " (7, 0, 'arena', 'host', 50 * 1048576, 30, NULL),"
           " (8, 0, 'libcudart.so.13', 'host', 2 * 1048576, 30, NULL)");
    fixture_alloc(f, (struct fixture_tensor){.name = "staging",
                                             .category = "data",
                                             .space = "host",
                                             .layer = -1,
                                             .bytes = 40 * MIB,
                                             .reserved = 41 * MIB});
    f->ns = 1000000;
    fixture_step_begin(f, 0);
    f->ns = 1000000;
    fixture_alloc(f, (struct fixture_tensor){.name = "embed",
                                             .category = "parameter",
                                             .layer = -1,
                                             .bytes = 100 * MIB,
                                             .reserved = 110 * MIB});
    // At 1001000: the nearest sample is from after another library came, the next from before
    // NCCL's last buffers; the one that speaks of this moment is further away.
    fixture_sql(f,
                "INSERT INTO usage VALUES (0, 800000, 1, NULL), (0, 900500, %lld, NULL),"
                " (0, 1002500, 2, NULL), (0, 1001000, NULL, 5), (1, 1001000, 3, NULL)",
                (long long)used);
    fixture_step_end(f, 1, 1024, 100 * MIB, f->seq, -1);
}

static json_t *books(int64_t used)
{
    struct fixture f;
    fixture_open(&f, "books.db");
    make_books(&f, used);
    fixture_close(&f);
    return json_of("--json books.db", 0);
}

static void test_books_balance(void **state)
{
    (void)state;
    char *folder = folder_enter();
    json_t *root = books(INT64_C(190) * MIB);
    assert_string_equal(items_of(json_object_get(root, "reconciliation")),
                        "categories 100, arena slack 10, arena free 10, context 30, nccl 30, "
                        "before the run 7, unattributed 3, device used 190");
    const json_t *host = json_object_get(root, "host");
    assert_int_equal(json_integer_value(json_object_get(host, "pinned_bytes")), 52 * MIB);
    assert_string_equal(items_of(json_object_get(host, "reconciliation")),
                        "categories 40, arena slack 1, arena free 9, libcudart.so.13 2");
    json_decref(root);
    folder_remove(folder);
}

// Less used than is known of: said as it is.
static void test_books_do_not_balance(void **state)
{
    (void)state;
    char *folder = folder_enter();
    json_t *root = books(INT64_C(180) * MIB);
    assert_non_null(strstr(items_of(json_object_get(root, "reconciliation")),
                           "unattributed -7, device used 180"));
    json_decref(root);
    struct outcome outcome = report("LC_ALL=C.UTF-8", "books.db");
    assert_non_null(strstr(outcome.out, "52.0 MiB pinned,"));
    assert_non_null(strstr(outcome.out, "of it libcudart.so.13 2.00 MiB"));
    outcome_release(&outcome);
    folder_remove(folder);
}

// Of a program that is not ours what was seen is tensors, and not counted again.
static void test_injected_books(void **state)
{
    (void)state;
    struct fixture f;
    char *folder = folder_enter();
    fixture_open(&f, "books.db");
    fixture_describe(&f);
    fixture_meta(&f, "recorded_by", "injection");
    fixture_alloc(&f, (struct fixture_tensor){.name = "libc10_cuda.so",
                                              .category = "workspace",
                                              .layer = -1,
                                              .bytes = 100 * MIB,
                                              .reserved = 100 * MIB});
    fixture_alloc(&f, (struct fixture_tensor){.name = "context",
                                              .category = "workspace",
                                              .layer = -1,
                                              .bytes = 10 * MIB,
                                              .reserved = 10 * MIB});
    fixture_sql(&f, "INSERT INTO device_alloc SELECT id, rank, name, space, bytes, alloc_ns, NULL"
                    " FROM tensor;"
                    "INSERT INTO device_alloc VALUES (9, 0, 'context', 'device', 500 * 1048576, 5,"
                    " NULL); INSERT INTO device_alloc SELECT 10, rank, 'async pool', space, bytes,"
                    " alloc_ns, NULL FROM tensor WHERE name = 'libc10_cuda.so';"
                    "INSERT INTO usage VALUES (0, 3000, 711 * 1048576, NULL)");
    fixture_close(&f);
    json_t *root = json_of("--json books.db", 0);
    // What a pool keeps is no tensor, though it may be as much as one taken at that moment.
    assert_string_equal(items_of(json_object_get(root, "reconciliation")),
                        "categories 110, arena slack 0, context 500, async pool 100, "
                        "unattributed 1, device used 711");
    json_decref(root);
    // Nor is it what libraries take beside the tensors.
    root = json_of("advise books.db --fit 1GiB --json", 0);
    const json_t *beside = json_object_get(json_object_get(root, "forecast"), "library_bytes");
    assert_int_equal(json_integer_value(beside), 600 * MIB);
    assert_non_null(strstr(json_string_value(json_array_get(json_object_get(root, "notes"), 1)),
                           "its tensors are allocations of the driver"));
    json_decref(root);
    struct outcome outcome = report("", "books.db");
    assert_non_null(strstr(outcome.out, ", recorded by injection\n"));
    assert_null(strstr(outcome.out, "steps done"));
    assert_non_null(strstr(outcome.out, "the program tells of no steps"));
    outcome_release(&outcome);
    folder_remove(folder);
}

// Two threads: within is the range of the one that asked, whatever the other has begun since.
static void test_ranges_of_two_threads(void **state)
{
    (void)state;
    struct fixture f;
    char *folder = folder_enter();
    fixture_open(&f, "threads.db");
    fixture_describe(&f);
    fixture_meta(&f, "recorded_by", "injection");
    fixture_range_begin(&f, "train", -1);
    fixture_range_begin(&f, "forward", -1);
    int64_t forward = f.last_range;
    fixture_range_begin(&f, "loader", -1);
    fixture_sql(&f, "UPDATE range SET parent = NULL WHERE name = 'loader'");
    fixture_alloc(&f,
                  (struct fixture_tensor){
                      .name = "libc10_cuda.so", .category = "workspace", .layer = -1, .bytes = 9});
    fixture_sql(&f, "UPDATE tensor SET range_id = %lld", (long long)forward);
    fixture_close(&f);
    json_t *root = json_of("peak --json threads.db", 0);
    assert_string_equal(json_string_value(json_object_get(json_object_get(root, "peak"), "range")),
                        "train > forward");
    json_decref(root);
    folder_remove(folder);
}

// Sampled before a library took what it has: what was seen in between is counted to it.
static void test_sample_of_another_time(void **state)
{
    (void)state;
    struct fixture f;
    char *folder = folder_enter();
    fixture_open(&f, "books.db");
    fixture_describe(&f);
    fixture_meta(&f, "recorded_by", "injection");
    f.ns = 5000;
    fixture_alloc(&f, (struct fixture_tensor){.name = "libc10_cuda.so",
                                              .category = "workspace",
                                              .layer = -1,
                                              .bytes = 100 * MIB,
                                              .reserved = 100 * MIB});
    fixture_sql(&f, "INSERT INTO device_alloc SELECT id, rank, name, space, bytes, alloc_ns, NULL"
                    " FROM tensor;"
                    "INSERT INTO device_alloc VALUES (9, 0, 'nccl', 'device', 30 * 1048576, 5,"
                    " 4000), (10, 0, 'context', 'device', 500 * 1048576, 5, NULL);"
                    "INSERT INTO usage VALUES (0, 3000, 533 * 1048576, NULL)");
    fixture_close(&f);
    json_t *root = json_of("--json books.db", 0);
    assert_string_equal(items_of(json_object_get(root, "reconciliation")),
                        "categories 100, arena slack 0, context 500, unattributed 3, "
                        "device used 603");
    const char *note = json_string_value(json_array_get(json_object_get(root, "notes"), 1));
    assert_non_null(strstr(note, "and 70.0 MiB that the driver has given"));
    json_decref(root);
    folder_remove(folder);
}

/* --- Out of memory -------------------------------------------------------------------------------
 */

static void make_failure(struct fixture *f, const char *story)
{
    static struct fixture_count count;
    memset(&count, 0, sizeof count);
    fixture_describe(f);
    fixture_meta(f, "outcome", "out of memory");
    fixture_step_begin(f, 0);
    f->phase = "forward";
    fixture_range_begin(f, "forward", -1);
    for (int layer = 0; layer < 3; layer++)
        fixture_matrix(f, &count, "mlp", layer, "mlp.gate", 1024, 1024); // 4 MiB each
    int64_t gone = fixture_matrix(f, &count, "norm", 0, "norm", 1024, 2048);
    fixture_give(f, &count, gone);
    fixture_matrix(f, &count, "attention", 3, "attn.q", 1024, 512);
    fixture_meta(f, "out_of_memory", story);
}

static json_t *failure(const char *story)
{
    struct fixture f;
    fixture_open(&f, "oom.db");
    make_failure(&f, story);
    fixture_close(&f);
    return json_of("--json oom.db", 0);
}

// From the fixture's seq: begin of the range 1, allocations 2 to 5, a free 6, an allocation 7.
#define STORY                                                                                      \
    "{\"rank\":0,\"space\":\"device\",\"name\":\"layers.3.mlp.gate\",\"category\":\"mlp\","        \
    "\"layer\":3,\"phase\":\"forward\",\"step\":0,\"seq\":7,\"ns\":9,\"bytes\":4194304,"           \
    "\"live_bytes\":14680064,\"limit_bytes\":16777216,"

static void test_post_mortem(void **state)
{
    (void)state;
    char *folder = folder_enter();
    json_t *root = failure(STORY "\"free_bytes\":2097152,\"largest_free_bytes\":1048576}");
    const json_t *why = json_object_get(root, "out_of_memory");
    assert_string_equal(json_string_value(json_object_get(why, "name")), "layers.3.mlp.gate");
    assert_int_equal(json_integer_value(json_object_get(why, "missing_bytes")), 3 * MIB);
    assert_true(json_is_false(json_object_get(why, "in_pieces")));
    // What is alive when it failed, not at the peak: that was while the norm was there.
    const json_t *first = json_array_get(json_object_get(why, "filled_by"), 0);
    assert_int_equal(json_array_size(json_object_get(why, "filled_by")), 2);
    assert_string_equal(json_string_value(json_object_get(first, "category")), "mlp");
    assert_int_equal(json_integer_value(json_object_get(first, "bytes")), 12 * MIB);
    const json_t *most = json_object_get(why, "dominant");
    assert_string_equal(json_string_value(json_object_get(most, "kind")), "layers.*.mlp.gate");
    assert_int_equal(json_integer_value(json_object_get(most, "tensors")), 3);
    json_decref(root);
    root = failure(STORY "\"free_bytes\":5242880,\"largest_free_bytes\":4000000}");
    why = json_object_get(root, "out_of_memory");
    assert_true(json_is_true(json_object_get(why, "in_pieces")));
    assert_int_equal(json_integer_value(json_object_get(why, "missing_bytes")), 194304);
    json_decref(root);
    // The report opens with it.
    struct outcome outcome = report("LC_ALL=C.UTF-8", "oom.db");
    const char *at = strstr(outcome.out, "Out of memory: layers.3.mlp.gate did not fit");
    assert_non_null(at);
    assert_true(at < strstr(outcome.out, "Peak "));
    outcome_release(&outcome);
    folder_remove(folder);
}

static void test_stories_that_lie(void **state)
{
    (void)state;
    static const char *const stories[] = {
        "",
        "{",
        "[]",
        "7",
        "{\"name\": 5}",
        "{\"name\":\"x\"}",
        "{\"name\":\"x\",\"rank\":-4,\"seq\":1,\"bytes\":1}",
        "{\"name\":\"x\",\"rank\":0,\"seq\":1,\"bytes\":9223372036854775807,"
        "\"free_bytes\":-9223372036854775808}",
        "{\"name\":\"\\u001b[31m\",\"rank\":77,\"seq\":9223372036854775807,\"bytes\":0,"
        "\"largest_free_bytes\":9223372036854775807,\"space\":\"elsewhere\",\"layer\":1e300}"};
    char *folder = folder_enter();
    for (size_t i = 0; i < sizeof stories / sizeof *stories; i++) {
        json_t *root = failure(stories[i]);
        assert_int_equal(json_object_get(root, "out_of_memory") != NULL, i >= 7);
        json_decref(root);
        struct outcome outcome = report("LC_ALL=C.UTF-8", "oom.db");
        assert_int_equal(outcome.status, 0);
        assert_null(strchr(outcome.out, '\033'));
        outcome_release(&outcome);
    }
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_books_balance),          cmocka_unit_test(test_books_do_not_balance),
        cmocka_unit_test(test_injected_books),         cmocka_unit_test(test_ranges_of_two_threads),
        cmocka_unit_test(test_sample_of_another_time), cmocka_unit_test(test_post_mortem),
        cmocka_unit_test(test_stories_that_lie)};
    return cmocka_run_group_tests_name("reconcile", tests, NULL, NULL);
}
