/* Forecasts held against measurements: on rows made by hand, whose errors are known, and on a dry
 * run and the cpu run that it forecasts, where there are none. */
#include "base/base.h"
#include "tests/report/run.h"

#include <jansson.h>
#include <math.h>

enum { MIB = 1 << 20 };

// A run of 100 MiB (60 of mlp, 40 of parameters), 10 of host memory, a step of 2 s; of a second
// rank there is so much host memory.
static void make_run_of(const char *path, const char *hash, const char *sql, int64_t other_host)
{
    struct fixture f;
    fixture_open(&f, path);
    fixture_describe(&f);
    fixture_meta(&f, "config_hash", hash);
    fixture_alloc(&f,
                  (struct fixture_tensor){
                      .name = "embed", .category = "parameter", .layer = -1, .bytes = 40 * MIB});
    fixture_alloc(
        &f,
        (struct fixture_tensor){
            .name = "tokens", .category = "data", .space = "host", .layer = -1, .bytes = 10 * MIB});
    fixture_step_begin(&f, 0);
    f.phase = "forward";
    fixture_alloc(&f, (struct fixture_tensor){
                          .name = "mlp.gate", .category = "mlp", .layer = 0, .bytes = 60 * MIB});
    fixture_step_end(&f, 1, 1024, 100 * MIB, f.seq, -1);
    fixture_sql(&f, "UPDATE step SET end_ns = begin_ns + 2000000000");
    if (sql) fixture_sql(&f, sql, 0);
    if (other_host) {
        fixture_sql(&f, "INSERT INTO rank VALUES (1, 'node', 'cpu', NULL, NULL)");
        f.rank = 1;
        fixture_alloc(&f, (struct fixture_tensor){.name = "tokens",
                                                  .category = "data",
                                                  .space = "host",
                                                  .layer = -1,
                                                  .bytes = other_host});
    }
    fixture_close(&f);
}

static void make_run(const char *path, const char *hash, const char *sql)
{
    make_run_of(path, hash, sql, 0);
}

#define FORECASTS                                                                                  \
    "INSERT INTO prediction VALUES"                                                                \
    " (1, '', 'aaaaaaaaaaaaaaaa', 104857600, 'forward', 'mlp', 2.0, 10485760),"                    \
    " (2, '--tile-mlp 512', 'bbbbbbbbbbbbbbbb', 94371840, 'forward', 'mlp', 1.8, NULL),"           \
    " (3, '--upipe 8', 'cccccccccccccccc', 1, NULL, NULL, NULL, NULL);"                            \
    "INSERT INTO prediction_category VALUES (1, 'mlp', 62914560), (1, 'parameter', 41943040),"     \
    " (1, 'beside', 104857600),"                                                                   \
    " (2, 'mlp', 41943040), (2, 'parameter', 41943040), (2, 'loss', 10485760)"

static int enter(void **state)
{
    *state = folder_enter();
    make_run("old.db", "aaaaaaaaaaaaaaaa", FORECASTS);
    return 0;
}

static json_t *scores_of(const char *words)
{
    json_t *root = json_of(words, 0);
    json_t *scores = json_incref(json_object_get(root, "scores"));
    assert_true(json_is_array(scores));
    json_decref(root);
    return scores;
}

static json_t *line_of(const json_t *scores, const char *name)
{
    size_t index;
    json_t *row;
    json_array_foreach(
        scores, index,
        row) if (!strcmp(json_string_value(json_object_get(row, "name")), name)) return row;
    fail_msg("there is no line about %s", name);
    return NULL;
}

static void expect_line(const json_t *scores, const char *name, int64_t forecast, int64_t measured)
{
    const json_t *row = line_of(scores, name);
    assert_int_equal(json_integer_value(json_object_get(row, "forecast_value")), forecast);
    assert_int_equal(json_integer_value(json_object_get(row, "measured")), measured);
    assert_int_equal(json_integer_value(json_object_get(row, "error")), forecast - measured);
}

// Of the options changed, in another run: forecast 90 MiB and 1.8 s where 100 and 2 came.
static void test_against_another(void **state)
{
    (void)state;
    make_run("new.db", "bbbbbbbbbbbbbbbb", NULL);
    json_t *scores = scores_of("score old.db new.db --json");
    assert_int_equal(json_array_size(scores), 5);
    expect_line(scores, "peak", 90 * MIB, 100 * MIB);
    expect_line(scores, "mlp", 40 * MIB, 60 * MIB);
    expect_line(scores, "parameter", 40 * MIB, 40 * MIB);
    expect_line(scores, "loss", 10 * MIB, 0);
    json_t *peak = line_of(scores, "peak"), *time = line_of(scores, "step time");
    assert_true(fabs(json_real_value(json_object_get(peak, "relative")) + 0.1) < 1e-12);
    assert_true(fabs(json_real_value(json_object_get(time, "error")) + 0.2) < 1e-9);
    assert_true(fabs(json_real_value(json_object_get(time, "relative")) + 0.1) < 1e-9);
    assert_string_equal(json_string_value(json_object_get(peak, "options")), "--tile-mlp 512");
    json_decref(scores);
    struct outcome outcome = report("LC_ALL=C.UTF-8", "score old.db new.db");
    expect_status(&outcome, 0);
    golden_check("score", outcome.out);
    outcome_release(&outcome);
}

// One file scores the run's own forecast, which was right.
static void test_against_itself(void **state)
{
    (void)state;
    json_t *scores = scores_of("score old.db --json");
    assert_int_equal(json_array_size(scores), 5);
    expect_line(scores, "peak", 100 * MIB, 100 * MIB);
    expect_line(scores, "host memory", 10 * MIB, 10 * MIB);
    assert_true(json_real_value(json_object_get(line_of(scores, "peak"), "relative")) == 0);
    json_decref(scores);
}

// 220 MiB of the device were in use, 10 of them before the run, where 100 + 100 were forecast.
static void test_device(void **state)
{
    (void)state;
    make_run("used.db", "aaaaaaaaaaaaaaaa",
             FORECASTS "; UPDATE rank SET baseline_used_bytes = 10485760;"
                       "INSERT INTO usage SELECT 0, max(begin_ns), 230686720, NULL FROM step");
    json_t *scores = scores_of("score used.db --json");
    assert_int_equal(json_array_size(scores), 6);
    expect_line(scores, "device in all", 200 * MIB, 210 * MIB);
    json_decref(scores);
}

// Host memory is that of the rank with most of it, which need not be where the device is fullest.
static void test_host_of_another_rank(void **state)
{
    (void)state;
    make_run_of("two.db", "aaaaaaaaaaaaaaaa", FORECASTS, 12 * MIB);
    json_t *scores = scores_of("score two.db --json");
    expect_line(scores, "host memory", 10 * MIB, 12 * MIB);
    json_decref(scores);
}

static void test_cannot_tell(void **state)
{
    (void)state;
    make_run("new.db", "dddddddddddddddd", NULL);
    expect_refusal("score old.db new.db", "expected a forecast for the configuration of new.db");
    expect_refusal("score old.db new.db", "--tile-mlp 512 (bbbbbbbbbbbbbbbb)");
    expect_refusal("score new.db old.db", "it holds none");
    make_run("new.db", "bbbbbbbbbbbbbbbb", "UPDATE meta SET value = '0' WHERE key = 'complete'");
    expect_refusal("score old.db new.db", "INCOMPLETE");
    make_run("new.db", "bbbbbbbbbbbbbbbb",
             "UPDATE meta SET value = 'out of memory' WHERE key = 'outcome'");
    expect_refusal("score old.db new.db", "out of memory");
    make_run("new.db", "bbbbbbbbbbbbbbbb",
             "UPDATE meta SET value = 'failed' WHERE key = 'outcome'");
    expect_refusal("score old.db new.db", "failed");
    make_run("new.db", "bbbbbbbbbbbbbbbb", "DELETE FROM tensor; DELETE FROM step");
    expect_refusal("score old.db new.db", "expected a run with recorded tensors");
    make_run("new.db", "", "DELETE FROM meta WHERE key = 'config_hash'");
    expect_refusal("score old.db new.db", "new.db: expected a run that tells its configuration");
    expect_refusal("score new.db", "new.db: expected a run that tells its configuration");
    expect_refusal("score", "score: expected");
    expect_refusal("score old.db new.db old.db", "not 3");
}

static void test_malformed(void **state)
{
    (void)state;
    static const char *const lies[] = {
        "UPDATE prediction SET peak_bytes = 9223372036854775807, host_bytes = -9223372036854775807",
        "UPDATE prediction SET peak_bytes = 'much', step_s = 'long', host_bytes = 1e300",
        "UPDATE prediction SET peak_bytes = -9223372036854775807 - 1, step_s = -1e308",
        "UPDATE prediction SET options = char(27) || '[31m', step_s = 9e999",
        "UPDATE prediction_category SET bytes = -9223372036854775807 - 1",
        "UPDATE prediction_category SET category = 'x' || category, bytes = 'all'",
        "DELETE FROM prediction_category",
    };
    for (int i = 0; i < UP_COUNT(lies); i++) {
        char sql[4096];
        snprintf(sql, sizeof sql, FORECASTS "; %s", lies[i]);
        make_run("lying.db", "aaaaaaaaaaaaaaaa", sql);
        struct outcome outcome = report("LC_ALL=C.UTF-8", "score lying.db");
        expect_status(&outcome, 0);
        assert_null(strchr(outcome.out, '\033'));
        outcome_release(&outcome);
    }
}

/* --- A forecast that comes true ----------------------------------------------------------------
 */

static void train(const char *words)
{
    char command[LONG_COMMAND];
    print_to(command, sizeof command, "'%s/upipe-train' --steps 2 --seq 64 %s >log.txt 2>&1",
             UP_TEST_BUILD, words);
    if (system(command) != 0) fail_msg("%s: %s", command, fixture_read("log.txt"));
}

static void test_dry_forecasts_cpu(void **state)
{
    (void)state;
    static const char *const options[] = {"", "--ranks 2 --stack upipe",
                                          "--checkpoint attn:2 --offload host --tile-loss 16"};
    assert_int_equal(system("seq 2000 > text"), 0);
    for (int i = 0; i < UP_COUNT(options); i++) {
        char words[512];
        size_t index;
        json_t *row;
        snprintf(words, sizeof words, "--device dry --as cpu --trace dry.db %s", options[i]);
        train(words);
        snprintf(words, sizeof words, "--threads 1 --data text --trace cpu.db %s", options[i]);
        train(words);
        json_t *scores = scores_of("score dry.db cpu.db --json");
        assert_true(json_array_size(scores) > 4);
        json_array_foreach(scores, index, row)
        {
            json_t *error = json_object_get(row, "error");
            if (json_integer_value(error) != 0)
                fail_msg("%s: %s is %lld bytes off", options[i],
                         json_string_value(json_object_get(row, "name")),
                         (long long)json_integer_value(error));
        }
        json_decref(scores);
    }
}

// A dry run takes the time that it stores as its forecast: where the plan has its tensors decides
// that, too.
static void test_dry_forecasts_itself(void **state)
{
    (void)state;
    static const char *const options[] = {
        "--model llama3.2-1b --seq 8K --stack upipe --checkpoint attn --upipe 8",
        "--model llama3-8b --layers 2 --seq 32K --ranks 4 --stack upipe --optimizer host",
        "--model tiny --seq 2K --ranks 4 --cp 2 --accum 2 --stack offload",
        "--model tiny --seq 512K"}; // whose tokens take longer to come than the step to begin
    for (int i = 0; i < UP_COUNT(options); i++) {
        char words[512];
        snprintf(words, sizeof words, "--device dry --machine h200 --trace run.db %s", options[i]);
        train(words);
        json_t *scores = scores_of("score run.db --json"), *time = line_of(scores, "step time");
        assert_true(json_real_value(json_object_get(time, "measured")) > 0);
        if (!(fabs(json_real_value(json_object_get(time, "relative"))) < 1e-6))
            fail_msg("%s: off by %g", options[i],
                     json_real_value(json_object_get(time, "relative")));
        json_decref(scores);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, enter, folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_against_another),      TEST(test_against_itself),      TEST(test_device),
        TEST(test_host_of_another_rank), TEST(test_cannot_tell),         TEST(test_malformed),
        TEST(test_dry_forecasts_cpu),    TEST(test_dry_forecasts_itself)};
    return cmocka_run_group_tests_name("score", tests, NULL, NULL);
}
