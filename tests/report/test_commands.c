/* upipe-report as a program: exit statuses, messages, what the JSON holds and adds up to, what fits
 * on a screen, and how long a large trace takes. */
#include "tests/report/run.h"

#include <jansson.h>
#include <stdbool.h>
#include <sys/resource.h>

static int enter(void **state)
{
    static struct fixture_count count;
    struct fixture f;
    *state = folder_enter();
    fixture_open(&f, "run.db");
    fixture_train(&f, &count);
    fixture_indexes(&f);
    fixture_close(&f);
    return 0;
}

/* --- Refusals ----------------------------------------------------------------------------------
 */

// Exit 2, one line on stderr that holds `names`, nothing on stdout.
static void refused(const char *words, const char *names)
{
    struct outcome o = report("", words);
    if (o.status != 2 || count_lines(o.err) != 1 || *o.out || !strstr(o.err, names) ||
        strncmp(o.err, "upipe-report: ", 14) != 0)
        fail_msg("upipe-report %s: exit %d, \"%s\", expected exit 2 and '%s'; stdout \"%s\"", words,
                 o.status, o.err, names, o.out);
    outcome_release(&o);
}

static void test_refusals(void **state)
{
    (void)state;
    assert_int_equal(
        system("echo text >text.db; mkdir folder.db; printf 'SQLite format 3' >short.db"), 0);
    refused("", "run.db");
    refused("nowhere.db", "nowhere.db");
    refused("text.db", "text.db");
    refused("folder.db", "folder.db");
    refused("short.db", "short.db");
    refused("peek run.db", "'peek' and 'run.db' (--help lists the commands)");
    refused("run.db run.db", "one run.db");
    refused("run.db --jsn", "--json");
    refused("run.db --step 1", "--step");
    refused("peak run.db --json=yes", "--json");
    refused("peak run.db --rank", "--rank");
    refused("peak run.db --rank 1", "ranks in it: 0");
    refused("peak run.db --rank -1", "--rank");
    refused("peak run.db --step 10", "steps with rows: 0-2");
    refused("peak run.db --step 99999999999999999999", "--step");
    refused("peak run.db --limit 0", "--limit");
    refused("timeline run.db --step 12", "--step");
    refused("timeline run.db --rows none", "--rows");
    refused("timeline run.db --space disk", "device|host");
    refused("tensors run.db --category nonsense", "|comm|workspace|data, not 'nonsense'\n");
    refused("tensors run.db --step 12", "steps with rows: 0-2");
    refused("tensors run.db --alive-at soon", "--alive-at");
}

// Every table must be there; a file that breaks off in the middle is refused or read, never a
// crash.
static void test_damage(void **state)
{
    (void)state;
    assert_int_equal(system("size=$(stat -c %s run.db); for at in 1000 5000 20000; do"
                            " head -c $at run.db >cut.$at.db; done;"
                            "cp run.db holes.db; dd if=/dev/zero of=holes.db bs=4096 seek=6 count=4"
                            " conv=notrunc status=none"),
                     0);
    refused("cut.1000.db", "cut.1000.db");
    refused("cut.5000.db", "cut.5000.db");
    refused("cut.20000.db", "cut.20000.db");
    struct outcome o = report("", "holes.db");
    assert_true(o.status == 0 || (o.status == 2 && strstr(o.err, "holes.db") && !*o.out));
    outcome_release(&o);
}

static void test_steps_without_rows(void **state)
{
    (void)state;
    struct fixture f = {0};
    assert_int_equal(sqlite3_open("run.db", &f.db), SQLITE_OK);
    // As with --trace-steps 1:1.
    fixture_sql(&f, "DELETE FROM tensor WHERE step IN (0, 2);"
                    "UPDATE step SET peak_seq = NULL, same_as_step = NULL WHERE step <> 1");
    sqlite3_close(f.db);
    refused("peak run.db --step 2", "no rows of step 2; steps with rows: 1");
    struct outcome o = report("", "peak run.db --step 1");
    assert_int_equal(o.status, 0);
    outcome_release(&o);
}

static void test_full_disk(void **state)
{
    (void)state;
    static const char *const words[] = {"run.db >/dev/full", "--help >/dev/full",
                                        "peak --help >/dev/full"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        struct outcome o = report("", words[i]);
        assert_int_equal(o.status, 1);
        assert_int_equal(count_lines(o.err), 1);
        outcome_release(&o);
    }
}

/* --- Help --------------------------------------------------------------------------------------
 */

static void test_help(void **state)
{
    (void)state;
    static const struct {
        const char *words, *told[4];
    } helps[] = {{"--help", {"peak", "tensors", "timeline", "--json"}},
                 {"peak --help", {"--rank", "--step", "--limit N|all", "--json"}},
                 {"tensors --help", {"--category", "--layer", "--alive-at", "--limit N|all"}},
                 {"timeline --help", {"--rank", "--step", "--rows N|all", "--json"}}};
    for (size_t i = 0; i < sizeof helps / sizeof *helps; i++) {
        struct outcome o = report("", helps[i].words);
        assert_int_equal(o.status, 0);
        assert_string_equal(o.err, "");
        for (int j = 0; j < 4; j++) assert_non_null(strstr(o.out, helps[i].told[j]));
        outcome_release(&o);
    }
}

/* --- JSON --------------------------------------------------------------------------------------
 */

static int64_t whole(const json_t *object, const char *key)
{
    assert_true(json_is_integer(json_object_get(object, key)));
    return json_integer_value(json_object_get(object, key));
}

static int64_t total(const json_t *rows, const char *key)
{
    int64_t sum = 0;
    size_t i;
    const json_t *row;
    json_array_foreach(rows, i, row) sum += whole(row, key);
    return sum;
}

static void has_keys(const json_t *object, const char *const *keys)
{
    for (; *keys; keys++)
        if (!json_object_get(object, *keys)) fail_msg("the JSON has no \"%s\"", *keys);
}

static void test_json_adds_up(void **state)
{
    (void)state;
    static const char *const sections[] = {"notes",          "run",     "peak",  "categories",
                                           "reconciliation", "largest", "kinds", "time",
                                           "training",       NULL};
    static const char *const peak_keys[] = {"peak_bytes", "peak_seq", "rank",       "step", "phase",
                                            "layer",      "range",    "allocation", NULL};
    json_t *root = json_of("run.db --json", 0);
    const json_t *peak = json_object_get(root, "peak");
    const json_t *sums = json_object_get(root, "reconciliation");
    has_keys(root, sections);
    has_keys(peak, peak_keys);
    assert_int_equal(json_array_size(json_object_get(root, "notes")), 0);
    assert_int_equal(total(json_object_get(root, "categories"), "bytes"),
                     whole(peak, "peak_bytes"));
    assert_int_equal(json_array_size(json_object_get(root, "largest")), 10);
    int64_t last = whole(json_array_get(sums, json_array_size(sums) - 1), "bytes");
    assert_int_equal(total(sums, "bytes"), 2 * last);
    json_decref(root);

    root = json_of("peak run.db --limit all --json", 0);
    assert_int_equal(total(json_object_get(root, "largest"), "bytes"),
                     whole(json_object_get(root, "peak"), "peak_bytes"));
    json_decref(root);
}

// The sum says so when the step's own figure is another one.
static void test_json_tells_a_lie(void **state)
{
    (void)state;
    struct fixture f = {0};
    assert_int_equal(sqlite3_open("run.db", &f.db), SQLITE_OK);
    fixture_sql(&f, "UPDATE step SET peak_bytes = peak_bytes + 1");
    sqlite3_close(f.db);
    json_t *root = json_of("run.db --json", 0);
    const json_t *notes = json_object_get(root, "notes");
    assert_int_equal(json_array_size(notes), 1);
    assert_non_null(strstr(json_string_value(json_array_get(notes, 0)), "add up"));
    json_decref(root);
}

static void test_timeline_and_tensors_agree(void **state)
{
    (void)state;
    json_t *timeline = json_of("timeline run.db --step 1 --rows all --json", 0);
    const json_t *points = json_object_get(timeline, "timeline");
    int64_t highest = 0;
    size_t i;
    const json_t *point;
    json_array_foreach(points, i, point) if (whole(point, "live_bytes") > highest) highest =
        whole(point, "live_bytes");
    assert_int_equal(json_array_size(points), whole(timeline, "events"));
    assert_int_equal(highest, whole(timeline, "peak_bytes"));
    char words[128];
    snprintf(words, sizeof words, "tensors run.db --space device --alive-at %lld --json",
             (long long)whole(timeline, "peak_seq"));
    json_t *tensors = json_of(words, 0);
    assert_int_equal(whole(json_object_get(tensors, "matches"), "bytes"), highest);
    // By category as at the peak, which is that moment.
    json_t *peak = json_of("peak run.db --step 1 --json", 0);
    const json_t *parts = json_object_get(tensors, "categories");
    const json_t *wanted = json_object_get(peak, "categories");
    assert_true(json_array_size(parts) > 4);
    assert_true(json_equal((json_t *)parts, (json_t *)wanted));
    json_decref(peak);
    json_decref(tensors);
    // Few rows still show the peak.
    json_t *coarse = json_of("timeline run.db --step 1 --rows 2 --json", 0);
    assert_int_equal(json_array_size(json_object_get(coarse, "timeline")), 2);
    assert_int_equal(whole(coarse, "peak_bytes"), highest);
    json_decref(coarse);
    json_decref(timeline);
}

// The device was at a moment when the ranges around it say: here it is 5 ms behind the host, and
// takes 1 ms more for each range.
static void test_device_time(void **state)
{
    (void)state;
    struct fixture f = {0};
    assert_int_equal(sqlite3_open("run.db", &f.db), SQLITE_OK);
    fixture_sql(&f, "UPDATE range SET device_begin_ns = begin_ns + 5000000,"
                    " device_end_ns = end_ns + 6000000 WHERE step = 1");
    sqlite3_close(f.db);
    json_t *timeline = json_of("timeline run.db --step 1 --rows all --json", 0);
    const json_t *points = json_object_get(timeline, "timeline"), *point;
    int64_t before = 0;
    size_t i;
    json_array_foreach(points, i, point)
    {
        assert_true(whole(point, "device_ns") >= before);
        before = whole(point, "device_ns");
    }
    // The first is 1 us and one of three events into its range.
    point = json_array_get(points, 0);
    assert_int_equal(whole(point, "device_ns") - whole(point, "ns"), 5000000 - 1000 + 1002000 / 3);
    json_t *peak = json_of("peak run.db --step 1 --json", 0);
    assert_true(whole(json_object_get(peak, "peak"), "device_ns") >
                whole(json_object_get(peak, "peak"), "ns") + 5000000);
    json_decref(peak);
    json_decref(timeline);
    struct outcome o = report("", "timeline run.db --step 1");
    assert_non_null(strstr(o.out, "by host     device      alive"));
    outcome_release(&o);
    o = report("", "peak run.db --step 1");
    assert_non_null(strstr(o.out, " after the step began, the device "));
    outcome_release(&o);
    // Of other steps it is not known.
    timeline = json_of("timeline run.db --step 0 --rows 1 --json", 0);
    point = json_array_get(json_object_get(timeline, "timeline"), 0);
    assert_true(json_is_null(json_object_get(point, "device_ns")));
    json_decref(timeline);
}

// Host memory that nothing was taken from or given back to in the step was alive all the same.
static void test_timeline_of_what_was_there_before(void **state)
{
    (void)state;
    struct fixture f = {0};
    json_t *none = json_of("timeline run.db --space host --json", 0);
    assert_true(json_is_null(json_object_get(none, "peak_bytes")));
    json_decref(none);
    assert_int_equal(sqlite3_open("run.db", &f.db), SQLITE_OK);
    // One of its tensors outlives steps, from their first moment on.
    fixture_sql(&f, "UPDATE tensor SET space = 'host', alloc_seq = 0, free_seq = NULL, bytes = 4096"
                    " WHERE id = (SELECT min(id) FROM tensor WHERE step IS NULL)");
    sqlite3_close(f.db);
    json_t *timeline = json_of("timeline run.db --step 1 --space host --json", 0);
    const json_t *notes = json_object_get(timeline, "notes");
    assert_int_equal(whole(timeline, "events"), 0);
    assert_int_equal(whole(timeline, "peak_bytes"), 4096);
    assert_int_equal(whole(timeline, "peak_seq"), 0);
    assert_non_null(strstr(json_string_value(json_array_get(notes, 0)), "was there before"));
    json_decref(timeline);
}

/* --- Text --------------------------------------------------------------------------------------
 */

// All categories at once, long names, many layers.
static void make_wide(struct fixture *f)
{
    static const char *const categories[] = {"parameter", "gradient",  "optimizer", "checkpoint",
                                             "attention", "norm",      "mlp",       "loss",
                                             "comm",      "workspace", "data"};
    char name[64];
    fixture_describe(f);
    fixture_step_begin(f, 0);
    for (int i = 0; i < 11; i++)
        for (int layer = 0; layer < 64; layer++) {
            snprintf(name, sizeof name, "layers.%d.attention.k_norm.weight.%s", layer,
                     categories[i]);
            fixture_alloc(f, (struct fixture_tensor){.name = name,
                                                     .category = categories[i],
                                                     .shape = "[5242880,64,128]",
                                                     .dtype = "bf16",
                                                     .layer = layer,
                                                     .bytes = (INT64_C(1) << 33) + i});
        }
    fixture_step_end(f, 1, 1, 64 * (11 * (INT64_C(1) << 33) + 55), f->seq, -1);
}

static void fits_screen(const char *text)
{
    assert_true(count_lines(text) <= 45);
    for (const char *line = text; *line; line = strchr(line, '\n') + 1)
        assert_true(strcspn(line, "\n") <= 100);
}

static void one_screen(const char *path, const char *sql)
{
    struct fixture f = {0};
    assert_int_equal(sqlite3_open(path, &f.db), SQLITE_OK);
    fixture_sql(&f, sql, 0);
    sqlite3_close(f.db);
    struct outcome o = report("LC_ALL=C", path);
    expect_status(&o, 0);
    fits_screen(o.out);
    outcome_release(&o);
}

static void test_one_screen(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open(&f, "wide.db");
    make_wide(&f);
    fixture_close(&f);
    one_screen("run.db", "");
    one_screen("wide.db", "");
    // Where more is to be told beside them, there are fewer rows of tables.
    one_screen("wide.db", "UPDATE tensor SET category = substr(category, 1, 6) || (layer %% 4)");
    one_screen("wide.db", "UPDATE meta SET value = 0 WHERE key = 'complete';"
                          "UPDATE meta SET value = 'out of memory' WHERE key = 'outcome';"
                          "INSERT INTO meta VALUES ('out_of_memory', '{\"rank\": 0, \"space\":"
                          " \"device\", \"name\": \"x\", \"bytes\": 9, \"seq\": 700}');"
                          "INSERT INTO diagnostic VALUES (1, 0, 1, 'out_of_memory',"
                          " replace(hex(zeroblob(60)), '00', 'no room ')), (2, 0, 1, 'run', 'no')");
    // However far down ranges go.
    one_screen("wide.db",
               "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 12)"
               "INSERT INTO range SELECT i, 0, i - 1, 'layers.' || i || '.attention.backward', 0,"
               " i, 'forward', 0, NULL, NULL, NULL, 'compute', i - 20, NULL FROM n;"
               "UPDATE tensor SET range_id = 12");
}

// Tables of the JSON alone, of more rows than any run of upipe's has.
static void test_many_categories(void **state)
{
    (void)state;
    struct fixture f;
    fixture_open(&f, "wide.db");
    make_wide(&f);
    fixture_close(&f);
    one_screen("wide.db", "UPDATE tensor SET category = substr(category, 1, 6) || layer");
    json_t *root = json_of("wide.db --json", 0);
    assert_int_equal(json_array_size(json_object_get(root, "categories")), 11 * 64);
    json_decref(root);
}

// A cell of two parts, one of which is empty, is no reason for a blank.
static void test_no_blanks_at_the_end(void **state)
{
    (void)state;
    struct fixture f = {0};
    assert_int_equal(sqlite3_open("run.db", &f.db), SQLITE_OK);
    fixture_sql(&f, "DELETE FROM range; UPDATE tensor SET shape = ''", 0);
    sqlite3_close(f.db);
    static const char *const words[] = {"run.db", "peak run.db", "tensors run.db",
                                        "timeline run.db"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        struct outcome o = report("", words[i]);
        expect_status(&o, 0);
        if (strstr(o.out, " \n")) fail_msg("a blank ends a line of: %s", o.out);
        outcome_release(&o);
    }
}

static bool is_ascii(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text >= 0x7f || (*text < ' ' && *text != '\n')) return false;
    return true;
}

// Pieces of a line are followed by a comma where the line goes on below: it has room, too.
static void test_lines_end_within_the_page(void **state)
{
    (void)state;
    struct fixture f = {0};
    for (int length = 1; length < 40; length++) {
        assert_int_equal(sqlite3_open("run.db", &f.db), SQLITE_OK);
        fixture_sql(&f,
                    "UPDATE meta SET value = '{\"options\": {\"fsdp\": \"on\", \"offload\":"
                    " \"host\", \"checkpoint\": \"block\", \"tile-mlp\": \"%.*q\","
                    " \"tile-loss\": \"1024\", \"upipe\": \"8\"}}' WHERE key = 'config'",
                    length, "4096409640964096409640964096409640964096");
        sqlite3_close(f.db);
        struct outcome o = report("LC_ALL=C.UTF-8", "run.db");
        assert_int_equal(o.status, 0);
        for (char *line = strtok(o.out, "\n"); line; line = strtok(NULL, "\n"))
            if (strncmp(line, "  options", 9) == 0 && strlen(line) > 100)
                fail_msg("%zu columns: %s", strlen(line), line);
        outcome_release(&o);
    }
}

static void test_locale_and_colour(void **state)
{
    (void)state;
    struct outcome plain = report("LC_ALL=C", "run.db"),
                   blocks = report("LC_ALL=C.UTF-8", "run.db");
    assert_true(is_ascii(plain.out));
    assert_non_null(strstr(plain.out, "####"));
    assert_non_null(strstr(blocks.out, "\xe2\x96\x88"));
    assert_null(strchr(blocks.out, '\033'));
    outcome_release(&plain);
    outcome_release(&blocks);
    // On a terminal, in colour unless NO_COLOR asks otherwise.
    char command[LONG_COMMAND];
    for (int none = 0; none < 2; none++) {
        print_to(command, sizeof command,
                 "env -u NO_COLOR %s script -qec \"'%s/upipe-report' run.db\" /dev/null "
                 "</dev/null >terminal.txt",
                 none ? "NO_COLOR=1" : "", UP_TEST_BUILD);
        assert_int_equal(system(command), 0);
        char *text = fixture_read("terminal.txt");
        assert_non_null(strstr(text, "Peak"));
        assert_int_equal(strchr(text, '\033') != NULL, !none);
        free(text);
    }
}

/* --- A run that is still going -----------------------------------------------------------------
 */

static void test_live_run(void **state)
{
    (void)state;
    struct fixture f = {0};
    assert_int_equal(sqlite3_open("run.db", &f.db), SQLITE_OK);
    fixture_sql(&f, "PRAGMA journal_mode = WAL; UPDATE meta SET value = '0' WHERE key = 'complete';"
                    "BEGIN; DELETE FROM tensor");
    struct outcome o = report("", "run.db");
    assert_int_equal(o.status, 0);
    assert_non_null(strstr(o.out, "INCOMPLETE"));
    assert_non_null(strstr(o.out, "Peak 13.5 MiB"));
    outcome_release(&o);
    // What any page tells of it may not be all.
    static const char *const pages[] = {"peak", "timeline", "tensors", "advise", "history"};
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        char command[64];
        snprintf(command, sizeof command, "%s run.db", pages[i]);
        o = report("", command);
        assert_int_equal(o.status, 0);
        assert_non_null(strstr(o.out, "INCOMPLETE"));
        outcome_release(&o);
    }
    fixture_sql(&f, "ROLLBACK");
    sqlite3_close(f.db);
}

/* --- Speed -------------------------------------------------------------------------------------
 */

static double children_cpu_s(void)
{
    struct rusage usage;
    getrusage(RUSAGE_CHILDREN, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

/* 300,000 tensors over three steps, 500,000 kernels, 100,000 ranges, no indexes, the last step
 * unfinished: every query at its slowest. Processor time, so that a busy machine does not fail it.
 */
static void test_large_trace(void **state)
{
    (void)state;
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
    skip(); // timing means nothing there
#endif
    static const char *const words[] = {"large.db", "peak large.db --step 1 --json",
                                        "timeline large.db", "tensors large.db --category mlp"};
    struct fixture f;
    fixture_open(&f, "large.db");
    fixture_describe(&f);
    fixture_sql(
        &f,
        "INSERT INTO step (step, rank, begin_ns, end_ns, peak_bytes, peak_seq) VALUES"
        " (0, 0, 0, 9, 100, 50), (1, 0, 10, 19, 200000, 250000), (2, 0, 20, NULL, NULL, NULL);"
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300000)"
        "INSERT INTO tensor SELECT i, 0, 'device', i, 'layers.' || (i %% 64) || '.mlp.gate',"
        " 'mlp', i %% 64, 'forward', 'bf16', '[4096,14336]', 1000 + i %% 7, 1024, 0, 'compute',"
        " i / 100001, i / 100001, i / 3, 2 * i, 2 * i + 4001, i, i + 2000 FROM n;"
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500000)"
        "INSERT INTO kernel SELECT i, 0, 'matmul', 1, 'compute', i / 5, 10 + i, 10 + i, 1 FROM n;"
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)"
        "INSERT INTO range SELECT i, 0, NULL, 'layers.1.mlp', 0, 1, 'forward', i, i, NULL,"
        " NULL, 'compute', 6 * i, 6 * i + 6 FROM n");
    fixture_close(&f);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        double before = children_cpu_s();
        struct outcome o = report("", words[i]);
        double took = children_cpu_s() - before;
        print_message("upipe-report %s: %.2f s\n", words[i], took);
        assert_int_equal(o.status, 0);
        outcome_release(&o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_refusals, enter, folder_teardown),
        cmocka_unit_test_setup_teardown(test_damage, enter, folder_teardown),
        cmocka_unit_test_setup_teardown(test_steps_without_rows, enter, folder_teardown),
        cmocka_unit_test_setup_teardown(test_full_disk, enter, folder_teardown),
        cmocka_unit_test_setup_teardown(test_help, enter, folder_teardown),
        cmocka_unit_test_setup_teardown(test_json_adds_up, enter, folder_teardown),
        cmocka_unit_test_setup_teardown(test_json_tells_a_lie, enter, folder_teardown),
        cmocka_unit_test_setup_teardown(test_timeline_and_tensors_agree, enter, folder_teardown),
        cmocka_unit_test_setup_teardown(test_timeline_of_what_was_there_before, enter,
                                        folder_teardown),
        cmocka_unit_test_setup_teardown(test_device_time, enter, folder_teardown),
        cmocka_unit_test_setup_teardown(test_one_screen, enter, folder_teardown),
        cmocka_unit_test_setup_teardown(test_many_categories, enter, folder_teardown),
        cmocka_unit_test_setup_teardown(test_no_blanks_at_the_end, enter, folder_teardown),
        cmocka_unit_test_setup_teardown(test_lines_end_within_the_page, enter, folder_teardown),
        cmocka_unit_test_setup_teardown(test_locale_and_colour, enter, folder_teardown),
        cmocka_unit_test_setup_teardown(test_live_run, enter, folder_teardown),
        cmocka_unit_test_setup_teardown(test_large_trace, enter, folder_teardown),
    };
    return cmocka_run_group_tests_name("commands", tests, NULL, NULL);
}
