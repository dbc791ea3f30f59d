/* Rates learnt from timed work: by themselves, on work whose machine is known; from dry runs, which
 * must give their own machine back; from a cpu run; and what a run cannot tell. */
#include "base/base.h"
#include "report/calibration/calibration.h"
#include "tests/report/run.h"

#include <jansson.h>
#include <math.h>

/* --- Numbers -----------------------------------------------------------------------------------
 */

// A machine of round figures, as the dry device would have it.
enum { FLOPS = 1000, BYTES = 100 };
static const double launch_s = 1;

static struct up_timed work(int sort, double flops, double bytes)
{
    double seconds = launch_s + fmax(flops / FLOPS, bytes / BYTES);
    return (struct up_timed){.sort = sort, .seconds = seconds, .flops = flops, .bytes = bytes};
}

static struct up_rates learn_list(struct up_timed_list list)
{
    struct up_rates rates;
    struct up_error err = {0};
    assert_int_equal(up_rates_learn(&list, &rates, &err), UP_OK);
    return rates;
}

static struct up_rates learn(struct up_timed *items, int count)
{
    return learn_list((struct up_timed_list){.items = items, .count = count});
}

static void expect_rate(const struct up_rates *rates, enum up_machine_figure figure, double value,
                        int64_t samples)
{
    const struct up_rate *rate = &rates->of[figure];
    if (isnan(value) ? !isnan(rate->value) : fabs(rate->value - value) > 1e-9 * value)
        fail_msg("%s: %g, expected %g", up_figure_name(figure), rate->value, value);
    if (rate->samples != samples)
        fail_msg("%s: %lld samples, expected %lld", up_figure_name(figure),
                 (long long)rate->samples, (long long)samples);
}

// What is bound by launches or by memory says nothing about products.
static void test_what_binds(void **state)
{
    (void)state;
    struct up_timed items[] = {
        work(UP_COST_POINTWISE, 0, 1),           // launch
        work(UP_COST_POINTWISE, 0, 2),           // launch
        work(UP_COST_POINTWISE, 0, 1000),        // memory, 10 s
        work(UP_COST_POINTWISE, 0, 5000),        // memory, 50 s
        work(UP_COST_MATMUL, 10000, 5),          // products, 10 s
        work(UP_COST_MATMUL, 50000, 500),        // products, 50 s
        work(UP_COST_MATMUL, 10000, 9000),       // memory, 90 s
        work(UP_COST_MATMUL, 100, 5),            // launch
        work(UP_COST_ATTENTION_FORWARD, 500, 1), // launch
    };
    struct up_rates rates = learn(items, UP_COUNT(items));
    expect_rate(&rates, UP_FIGURE_MEMORY, BYTES, 2);
    expect_rate(&rates, UP_FIGURE_MATMUL, FLOPS, 2);
    expect_rate(&rates, UP_FIGURE_MATMUL_PACE, BYTES, 1);
    expect_rate(&rates, UP_FIGURE_ATTENTION_FORWARD, NAN, 0);
    expect_rate(&rates, UP_FIGURE_ATTENTION_BACKWARD, NAN, 0);
    expect_rate(&rates, UP_FIGURE_LINK, NAN, 0);
    expect_rate(&rates, UP_FIGURE_LAUNCH, launch_s, 4); // all the small ones
}

// Attention's rates are of its head_dim, and none of the others' is learnt.
static void test_narrow_heads(void **state)
{
    (void)state;
    struct up_timed items[] = {
        work(UP_COST_POINTWISE, 0, 1),
        work(UP_COST_POINTWISE, 0, 1000),
        work(UP_COST_ATTENTION_FORWARD, 10000, 5),
        work(UP_COST_ATTENTION_BACKWARD, 20000, 5),
    };
    static const int64_t head_dims[] = {64, 128};
    for (int i = 0; i < UP_COUNT(head_dims); i++) {
        bool narrow = head_dims[i] == 64;
        struct up_rates rates = learn_list((struct up_timed_list){
            .items = items, .count = UP_COUNT(items), .head_dim = head_dims[i]});
        expect_rate(&rates, UP_FIGURE_ATTENTION_FORWARD_64, narrow ? FLOPS : NAN, narrow);
        expect_rate(&rates, UP_FIGURE_ATTENTION_BACKWARD_64, narrow ? FLOPS : NAN, narrow);
        expect_rate(&rates, UP_FIGURE_ATTENTION_FORWARD, narrow ? NAN : FLOPS, !narrow);
        expect_rate(&rates, UP_FIGURE_ATTENTION_BACKWARD, narrow ? NAN : FLOPS, !narrow);
        expect_rate(&rates, UP_FIGURE_LAUNCH, launch_s, 1);
    }
}

// What the runs of attention take besides is no work, and no launch either.
static void test_runs(void **state)
{
    (void)state;
    const double forward_s = 0.5, backward_s = 2;
    struct up_timed items[] = {
        work(UP_COST_POINTWISE, 0, 1),
        work(UP_COST_POINTWISE, 0, 1000),
        {UP_COST_ATTENTION_FORWARD, launch_s + 10 + 8 * forward_s, 10000, 5, 8},
        {UP_COST_ATTENTION_FORWARD, launch_s + 20 + 4 * forward_s, 20000, 5, 4},
        {UP_COST_ATTENTION_FORWARD, launch_s + 1e-5 + forward_s, 1e-3, 1e-3, 1},
        {UP_COST_ATTENTION_FORWARD, launch_s + 3 + 8 * forward_s, 4000, 1, 8}, // mostly its runs
        {UP_COST_ATTENTION_BACKWARD, launch_s + 30 + 14 * backward_s, 30000, 5, 14},
    };
    struct up_timed_list list = {.items = items, .count = UP_COUNT(items), .head_dim = 128};
    list.run_s[UP_COST_ATTENTION_FORWARD] = forward_s;
    list.run_s[UP_COST_ATTENTION_BACKWARD] = backward_s;
    struct up_rates rates = learn_list(list);
    expect_rate(&rates, UP_FIGURE_ATTENTION_FORWARD, FLOPS, 2);
    expect_rate(&rates, UP_FIGURE_ATTENTION_BACKWARD, FLOPS, 1);
    expect_rate(&rates, UP_FIGURE_LAUNCH, launch_s, 2);
    expect_rate(&rates, UP_FIGURE_ATTENTION_FORWARD_RUN, NAN, 0);
}

// Classes of work have their own pace; thin products one that fits them, without a word from those
// that are merely slow.
static void test_paces(void **state)
{
    (void)state;
    struct up_timed items[] = {
        {UP_COST_POINTWISE, launch_s, 0, 1e-9, 0},
        {UP_COST_POINTWISE, launch_s + 10, 0, 1000, 0},
        {UP_COST_NORM_FORWARD, launch_s + 10, 0, 800, 0},
        {UP_COST_NORM_BACKWARD, launch_s + 10, 0, 500, 0},
        {UP_COST_ROPE, launch_s + 10, 0, 700, 0},
        {UP_COST_EMBED_BACKWARD, launch_s + 10, 0, 10, 0},
        {UP_COST_CROSS_ENTROPY, launch_s + 10, 0, 400, 0},
        {UP_COST_ADAMW, launch_s + 10, 0, 600, 0},
        {UP_COST_MATMUL, launch_s + 10, 10000, 50, 0},
        {UP_COST_MATMUL, launch_s + 20, 20000, 70, 0},
        {UP_COST_MATMUL, launch_s + 50, 30000, 3000, 0}, // at 60 bytes a second
        {UP_COST_MATMUL, launch_s + 80, 40000, 4800, 0},
    };
    struct up_rates rates = learn(items, UP_COUNT(items));
    expect_rate(&rates, UP_FIGURE_MEMORY, 100, 1);
    expect_rate(&rates, UP_FIGURE_NORM_FORWARD, 80, 1);
    expect_rate(&rates, UP_FIGURE_NORM_BACKWARD, 50, 1);
    expect_rate(&rates, UP_FIGURE_ROPE, 70, 1);
    expect_rate(&rates, UP_FIGURE_EMBED_BACKWARD, 1, 1);
    expect_rate(&rates, UP_FIGURE_CROSS_ENTROPY, 40, 1);
    expect_rate(&rates, UP_FIGURE_ADAMW, 60, 1);
    expect_rate(&rates, UP_FIGURE_MATMUL, FLOPS, 2);
    expect_rate(&rates, UP_FIGURE_MATMUL_PACE, 60, 2);
    // The thinnest of wide ones is slower than the others, but no memory holds it up.
    struct up_timed wide[] = {
        {UP_COST_POINTWISE, launch_s, 0, 1e-9, 0},
        {UP_COST_POINTWISE, launch_s + 10, 0, 1000, 0},
        {UP_COST_MATMUL, launch_s + 10, 10000, 50, 0},
        {UP_COST_MATMUL, launch_s + 20, 20000, 120, 0},
        {UP_COST_MATMUL, launch_s + 10, 7000, 300, 0},
    };
    rates = learn(wide, UP_COUNT(wide));
    expect_rate(&rates, UP_FIGURE_MATMUL, 37000 / 40.0, 3);
    expect_rate(&rates, UP_FIGURE_MATMUL_PACE, NAN, 0);
}

// A copy's own start is no launch: a short copy does not tell how fast copies are.
static void test_short_copies(void **state)
{
    (void)state;
    struct up_timed items[] = {
        {UP_COST_POINTWISE, launch_s, 0, 1e-9, 0},
        {UP_COST_POINTWISE, launch_s + 10, 0, 1000, 0},
        {UP_SORT_FROM_HOST, 5, 0, 5, 0},
        {UP_SORT_TO_HOST, 5, 0, 5, 0},
        {UP_SORT_TO_HOST, launch_s + 50, 0, 10000, 0},
    };
    struct up_rates rates = learn(items, UP_COUNT(items));
    expect_rate(&rates, UP_FIGURE_FROM_HOST, NAN, 0);
    expect_rate(&rates, UP_FIGURE_TO_HOST, 200, 1);
}

// Half of the time, not half of the samples: three slow small ones do not outweigh a large one; and
// what was held up counts as those that are alike.
static void test_weighted_by_time(void **state)
{
    (void)state;
    struct up_timed items[] = {
        {UP_COST_POINTWISE, 0.1, 0, 1, 0},
        {UP_COST_COLLECTIVE, 100, 0, 1000, 0},
        {UP_COST_COLLECTIVE, 10, 0, 10, 0},
        {UP_COST_COLLECTIVE, 10, 0, 10, 0},
        {UP_COST_COLLECTIVE, 15, 0, 10, 0}, // waited
        {UP_SORT_TO_HOST, 3, 0, 3000, 0},
        {UP_SORT_TO_HOST, 4, 0, 8000, 0},
        {UP_SORT_TO_HOST, 5, 0, 25000, 0},
        {UP_SORT_FROM_HOST, 0.15, 0, 1000000, 0}, // as short as a launch
        {UP_COST_MATMUL, 1, 1e6, NAN, 0},
        {UP_COST_MATMUL, 1, 1e6, NAN, 0},
        {UP_COST_MATMUL, 1000, 1e6, NAN, 0}, // held up
    };
    struct up_rates rates = learn(items, UP_COUNT(items));
    expect_rate(&rates, UP_FIGURE_LINK, 10, 4);
    expect_rate(&rates, UP_FIGURE_TO_HOST, 2000, 3);
    expect_rate(&rates, UP_FIGURE_FROM_HOST, NAN, 0);
    expect_rate(&rates, UP_FIGURE_MEMORY, NAN, 0);
    expect_rate(&rates, UP_FIGURE_MATMUL, 1e6, 3);
}

static void test_odd_numbers(void **state)
{
    (void)state;
    struct up_timed items[] = {
        {UP_COST_POINTWISE, 1e-9, 0, 1e300, 0}, {UP_COST_POINTWISE, 1e300, NAN, 1, 0},
        {UP_COST_MATMUL, 1e-300, -1, NAN, 0},   {UP_COST_MATMUL, 10, INFINITY, INFINITY, 0},
        {UP_COST_COLLECTIVE, 10, 0, -1e300, 0}, {UP_SORT_TO_HOST, INFINITY, 0, 0, 0},
        {UP_COST_ADAMW, 1e300, 0, 1.7e308, 0},  {UP_COST_ADAMW, 1.1e300, 0, 1.6e308, 0},
    };
    struct up_rates rates = learn(items, UP_COUNT(items));
    for (int i = 0; i < UP_FIGURE_COUNT; i++)
        assert_true(isnan(rates.of[i].value) ||
                    (rates.of[i].value > 0 && isfinite(rates.of[i].value)));
    rates = learn(items, 0);
    for (int i = 0; i < UP_FIGURE_COUNT; i++) expect_rate(&rates, i, NAN, 0);
}

/* --- Runs --------------------------------------------------------------------------------------
 */

static void train(const char *words)
{
    char command[LONG_COMMAND];
    print_to(command, sizeof command, "'%s/upipe-train' %s >log.txt 2>&1", UP_TEST_BUILD, words);
    if (system(command) != 0) fail_msg("%s: %s", command, fixture_read("log.txt"));
}

static json_t *calibrate(const char *words)
{
    char command[512];
    snprintf(command, sizeof command, "calibrate %s --json", words);
    return json_of(command, 0);
}

static json_t *figure_of(const json_t *root, const char *name)
{
    size_t index;
    json_t *row;
    json_array_foreach(
        json_object_get(root, "figures"), index,
        row) if (!strcmp(json_string_value(json_object_get(row, "figure")), name)) return row;
    fail_msg("there is no %s", name);
    return NULL;
}

static bool is_learnt(const json_t *root, const char *name)
{
    return json_is_true(json_object_get(figure_of(root, name), "learnt"));
}

// With memory's pace where the machine has no other for a class of work, and one rate of attention
// where it has none for narrow heads.
static double figure_in_effect(const struct up_figures *machine, int figure)
{
    bool pace = figure >= UP_FIGURE_MATMUL_PACE && figure <= UP_FIGURE_ADAMW;
    enum up_machine_figure twin = up_figure_twin(figure);
    if (machine->of[figure] > 0) return machine->of[figure];
    if (twin < UP_FIGURE_COUNT) return machine->of[twin];
    return pace ? machine->of[UP_FIGURE_MEMORY] : 0;
}

// A file of h200's figures, with a pace for each class of work.
static void write_paces(void)
{
    struct up_figures figures;
    struct up_figure_sources sources = {0};
    struct up_error err = {0};
    assert_int_equal(up_figures_find("h200", &figures, &err), UP_OK);
    strcpy(figures.name, "paces");
    for (int i = UP_FIGURE_MATMUL_PACE; i <= UP_FIGURE_ADAMW; i++)
        figures.of[i] = 2e12 + 2e11 * (i - UP_FIGURE_MATMUL_PACE);
    assert_int_equal(up_figures_write("--output", "paces.json", &figures, "", &sources, &err),
                     UP_OK);
}

// Every figure of a dry run is its machine's, within 1%, and the file says so to upipe-train.
static void test_dry_gives_its_machine(void **state)
{
    (void)state;
    static const struct {
        const char *machine, *options;
        bool links, host, narrow; // host: of a device; of 8 ranks' copies the node's is learnt
        bool own;
    } rows[] = {
        {"h200", "--model llama3-8b --layers 2 --seq 128K --ranks 8 --stack upipe", true, false,
         false, false},
        {"h100-80g-x8", "--model llama3.2-1b --layers 3 --seq 32K --stack checkpoint", false, false,
         true, false},
        {"h200", "--model llama3.2-1b --layers 3 --seq 16K", false, false, true, false},
        {"h200", "--model llama3.2-1b --layers 3 --seq 16K --deterministic", false, false, true,
         true},
        {"h200", "--model llama3-8b --layers 2 --seq 128K --ranks 2 --stack upipe --deterministic",
         true, true, false, true},
        // Too long for cuDNN, which the shapes tell alone.
        {"h200", "--model llama3.2-3b --layers 1 --seq 32M --ranks 8 --stack upipe", true, false,
         false, true},
        {"generic", "--model llama3.2-1b --layers 3 --seq 16K", false, false, true, false},
        {"generic", "--model qwen3-4b --layers 2 --seq 64K --ranks 4 --stack offload", true, true,
         false, false},
        {"paces.json", "--model llama3-8b --layers 2 --seq 128K --ranks 2 --stack upipe", true,
         true, false, false},
    };
    write_paces();
    for (int i = 0; i < UP_COUNT(rows); i++) {
        char words[512];
        struct up_figures machine, learnt;
        struct up_error err = {0};
        snprintf(words, sizeof words, "--device dry --machine %s --steps 2 --trace run.db %s",
                 rows[i].machine, rows[i].options);
        train(words);
        json_t *root = calibrate("run.db -o learnt.json");
        assert_int_equal(up_figures_find(rows[i].machine, &machine, &err), UP_OK);
        assert_int_equal(up_figures_find("learnt.json", &learnt, &err), UP_OK);
        assert_string_equal(learnt.name, "learnt");
        for (int f = 0; f < UP_FIGURE_COUNT; f++)
            if (!(fabs(figure_in_effect(&learnt, f) - figure_in_effect(&machine, f)) <=
                  0.01 * figure_in_effect(&machine, f)))
                fail_msg("%s of %s: %g, expected %g", up_figure_name(f), rows[i].machine,
                         figure_in_effect(&learnt, f), figure_in_effect(&machine, f));
        static const char *const always[] = {"matmul_flops_per_s", "memory_bytes_per_s",
                                             "launch_s"};
        for (int f = 0; f < UP_COUNT(always); f++) assert_true(is_learnt(root, always[f]));
        const char *attention =
            up_figure_name(up_figure_of_attention(false, rows[i].narrow ? 64 : 128, rows[i].own));
        assert_true(is_learnt(root, attention));
        if (rows[i].narrow || rows[i].own)
            assert_false(is_learnt(root, "attention_forward_flops_per_s"));
        assert_int_equal(is_learnt(root, "link_bytes_per_s"), rows[i].links);
        assert_int_equal(is_learnt(root, "to_host_bytes_per_s"), rows[i].host);
        if (i == 0) assert_true(is_learnt(root, "node_to_host_bytes_per_s"));
        if (i == 0) assert_true(is_learnt(root, "node_from_host_bytes_per_s"));
        double off = json_real_value(json_object_get(json_object_get(root, "check"), "relative"));
        assert_true(fabs(off) < 1e-3);
        json_decref(root);
    }
}

// The learnt machine stands in for the one it was learnt from.
static void test_file_is_read(void **state)
{
    (void)state;
    train("--device dry --machine h200 --model llama3-8b --layers 2 --seq 64K --steps 2 --trace "
          "run.db");
    // What libraries ran beside the step's work does not come between it and the dry step's.
    struct fixture f = {0};
    assert_int_equal(sqlite3_open("run.db", &f.db), SQLITE_OK);
    fixture_sql(&f, "INSERT INTO kernel SELECT (1 << 62) + step, 0, 'void k()', step, 'stream 7',"
                    " NULL, begin_ns, begin_ns + 5, NULL FROM step");
    sqlite3_close(f.db);
    json_t *root = calibrate("run.db --output m.json");
    assert_true(is_learnt(root, "memory_bytes_per_s"));
    json_decref(root);
    train("--device dry --machine m.json --model llama3-8b --layers 2 --seq 64K --steps 2 --trace "
          "again.db");
    struct outcome outcome = report("", "check again.db --baseline run.db --time 0.1%");
    expect_status(&outcome, 0);
    outcome_release(&outcome);
    json_error_t error;
    json_t *file = json_load_file("m.json", 0, &error), *figure;
    assert_non_null(file);
    figure = json_object_get(file, "matmul_flops_per_s");
    const char *source = json_string_value(json_object_get(figure, "source"));
    assert_non_null(strstr(source, "run.db"));
    assert_non_null(strstr(source, "mean by time of "));
    source =
        json_string_value(json_object_get(json_object_get(file, "link_bytes_per_s"), "source"));
    assert_non_null(strstr(source, "taken from h200"));
    json_decref(file);
}

// On cpu: the rates that the run has work for, and a capacity. Its copies are short, and whether
// they tell a rate is up to the machine. How near the forecast then comes is a figure of
// BENCHMARKS.md, and machines are shared: here it only has to be there.
static void test_cpu(void **state)
{
    (void)state;
    assert_int_equal(system("seq 3000 > text"), 0);
    train(
        "--data text --seq 512 --layers 2 --threads 1 --steps 3 --checkpoint block --offload host "
        "--trace run.db");
    json_t *root = calibrate("run.db -o cpu.json");
    static const char *const learnt[] = {"matmul_flops_per_s", "attention_forward_64_flops_per_s",
                                         "memory_bytes_per_s", "attention_backward_64_flops_per_s",
                                         "device_bytes"};
    for (int i = 0; i < UP_COUNT(learnt); i++)
        if (!is_learnt(root, learnt[i])) fail_msg("%s was not learnt", learnt[i]);
    assert_false(is_learnt(root, "link_bytes_per_s"));
    double forecast =
        json_real_value(json_object_get(json_object_get(root, "check"), "forecast_s"));
    assert_true(forecast > 0);
    print_message("cpu: a step forecast with what was learnt is %+.0f%% off\n",
                  100 *
                      json_real_value(json_object_get(json_object_get(root, "check"), "relative")));
    json_decref(root);
    train("--device dry --as cpu --machine cpu.json --seq 512 --layers 2");
}

/* --- What cannot be told -----------------------------------------------------------------------
 */

// Kernels of nobody's configuration: products have their rate, memory has not.
static void make_foreign(const char *path, const char *sql)
{
    struct fixture f;
    fixture_open(&f, path);
    fixture_describe(&f);
    fixture_step_begin(&f, 0);
    fixture_alloc(
        &f, (struct fixture_tensor){.name = "x", .category = "mlp", .layer = -1, .bytes = 1 << 20});
    int64_t begin = f.ns;
    fixture_sql(&f,
                "INSERT INTO kernel VALUES (1, 0, 'fill', 0, 'compute', NULL, %lld, %lld, 0),"
                " (2, 0, 'matmul', 0, 'compute', NULL, %lld, %lld, 5e9),"
                " (3, 0, 'fill', 0, 'compute', NULL, %lld, %lld, 0)",
                begin, begin + 1000, begin + 1000, begin + 1001000, begin + 2000000,
                begin + 2500000);
    fixture_sql(&f,
                "INSERT INTO collective VALUES (1, 0, 'all_gather', 0, 'comm', NULL, %lld, %lld,"
                " 7000000)",
                begin, begin + 1000000);
    fixture_step_end(&f, 1, 1024, 1 << 20, f.seq, -1);
    if (sql) fixture_sql(&f, sql, 0);
    fixture_close(&f);
}

static void change_run(const char *path, const char *sql)
{
    sqlite3 *db;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, NULL)) fail_msg("%s", sqlite3_errmsg(db));
    sqlite3_close(db);
}

// What runs of attention take that is more than attention took is another machine's. On a processor
// there are none, nor kernels of two kinds.
static void test_runs_of_another_machine(void **state)
{
    (void)state;
    static const struct {
        const char *options, *learnt;
        bool stays;
    } rows[] = {
        {"--model llama3.2-1b --layers 2 --seq 16K", "attention_forward_64_flops_per_s", false},
        {"--model llama3.2-1b --layers 2 --seq 16K --deterministic",
         "attention_forward_own_64_flops_per_s", true},
        {"--as cpu --model tiny --seq 64K", "attention_forward_64_flops_per_s", true}};
    for (int i = 0; i < UP_COUNT(rows); i++) {
        char words[512];
        snprintf(words, sizeof words,
                 "--device dry --machine h200 --steps 2 --trace-steps 0:0 --trace run.db %s",
                 rows[i].options);
        train(words);
        change_run("run.db",
                   "UPDATE meta SET value = json_set(value, '$.machine.attention_forward_run_s',"
                   " 100, '$.machine.attention_backward_run_s', 100) WHERE key = 'config'");
        json_t *root = calibrate("run.db -o m.json");
        assert_true(is_learnt(root, rows[i].learnt));
        double off = json_real_value(json_object_get(json_object_get(root, "check"), "relative"));
        if (!(fabs(off) < 1e-2)) fail_msg("%s: off by %g", rows[i].options, off);
        json_decref(root);
        char *machine = fixture_read("m.json");
        assert_int_equal(strstr(machine, "attention_forward_run_s") != NULL, rows[i].stays);
        free(machine);
        unlink("m.json");
    }
}

static void test_foreign(void **state)
{
    (void)state;
    make_foreign("run.db", NULL);
    json_t *root = calibrate("run.db -o m.json");
    assert_true(
        fabs(json_real_value(json_object_get(figure_of(root, "matmul_flops_per_s"), "value")) /
                 5e12 -
             1) < 1e-6);
    assert_true(
        fabs(json_real_value(json_object_get(figure_of(root, "link_bytes_per_s"), "value")) / 7e9 -
             1) < 1e-6);
    assert_false(is_learnt(root, "memory_bytes_per_s"));
    assert_true(json_is_null(json_object_get(json_object_get(root, "check"), "forecast_s")));
    const char *note = json_string_value(json_array_get(json_object_get(root, "notes"), 0));
    assert_non_null(strstr(note, "how many bytes kernels moved is not known"));
    json_decref(root);
}

// What is learnt of attention at one head_dim is not left beside another machine's at others: these
// follow, in the ratio that the run's machine has.
static void test_other_head_dims(void **state)
{
    (void)state;
    make_foreign("run.db",
                 "UPDATE kernel SET name = 'attention_forward' WHERE name = 'matmul';"
                 "UPDATE meta SET value = '{\"options\": {\"machine\": \"h200\"}}' WHERE key = "
                 "'config'");
    struct up_figures h200, learnt;
    struct up_error err = {0};
    json_t *root = calibrate("run.db -o m.json");
    assert_int_equal(up_figures_find("h200", &h200, &err), UP_OK);
    assert_int_equal(up_figures_find("m.json", &learnt, &err), UP_OK);
    double ratio = learnt.of[UP_FIGURE_ATTENTION_FORWARD] / h200.of[UP_FIGURE_ATTENTION_FORWARD];
    assert_true(fabs(learnt.of[UP_FIGURE_ATTENTION_FORWARD] / 5e12 - 1) < 1e-5);
    assert_true(fabs(learnt.of[UP_FIGURE_ATTENTION_FORWARD_64] /
                         h200.of[UP_FIGURE_ATTENTION_FORWARD_64] / ratio -
                     1) < 1e-5);
    assert_true(learnt.of[UP_FIGURE_ATTENTION_BACKWARD_64] ==
                h200.of[UP_FIGURE_ATTENTION_BACKWARD_64]);
    assert_true(is_learnt(root, "attention_forward_flops_per_s"));
    assert_false(is_learnt(root, "attention_forward_64_flops_per_s"));
    const json_t *narrow = figure_of(root, "attention_forward_64_flops_per_s");
    assert_string_equal(json_string_value(json_object_get(narrow, "source")),
                        "from attention_forward_flops_per_s, in the ratio of h200: run.db does not "
                        "tell");
    json_decref(root);
    // Which of the two a run has is known where its step cannot be run again, too.
    make_foreign("run.db",
                 "UPDATE kernel SET name = 'attention_forward' WHERE name = 'matmul';"
                 "UPDATE meta SET value = '{\"options\": {\"machine\": \"h200\"}, \"config\":"
                 " {\"model\": {\"head_dim\": 64}}}' WHERE key = 'config'");
    root = calibrate("run.db -o m.json");
    assert_int_equal(up_figures_find("m.json", &learnt, &err), UP_OK);
    assert_true(fabs(learnt.of[UP_FIGURE_ATTENTION_FORWARD_64] / 5e12 - 1) < 1e-5);
    assert_true(is_learnt(root, "attention_forward_64_flops_per_s"));
    assert_false(is_learnt(root, "attention_forward_flops_per_s"));
    json_decref(root);
}

// Of the rank with most in all, as the step began; NCCL's less what ranks beyond the second add.
static void test_libraries(void **state)
{
    (void)state;
    make_foreign("run.db", "UPDATE meta SET value = '4' WHERE key = 'ranks';"
                           "INSERT INTO device_alloc VALUES"
                           " (1, 0, 'context', 'device', 500000000, 0, NULL),"
                           " (2, 1, 'context', 'device', 600000000, 0, NULL),"
                           " (3, 0, 'cublas', 'device', 40000000, 0, NULL),"
                           " (4, 0, 'cublas', 'device', 30000000, 0, NULL),"
                           " (5, 0, 'cublas', 'device', 7000000, 0, 1),"
                           " (6, 0, 'cublas', 'host', 5000000, 0, NULL),"
                           " (7, 0, 'nccl', 'device', 3000000000, 0, NULL)");
    struct up_figures generic;
    struct up_error err = {0};
    assert_int_equal(up_figures_find("generic", &generic, &err), UP_OK);
    json_t *root = calibrate("run.db -o m.json");
    const struct {
        const char *name;
        double bytes;
    } rows[] = {{"context_bytes", 5e8},
                {"cublas_bytes", 7e7},
                {"nccl_bytes", 3e9 - 2 * generic.of[UP_FIGURE_NCCL_RANK]}};
    for (int i = 0; i < UP_COUNT(rows); i++) {
        assert_true(is_learnt(root, rows[i].name));
        assert_true(json_number_value(json_object_get(figure_of(root, rows[i].name), "value")) ==
                    rows[i].bytes);
    }
    assert_false(is_learnt(root, "cudnn_bytes"));
    assert_false(is_learnt(root, "nccl_rank_bytes"));
    json_decref(root);
}

// NCCL's figures are those of its usual buffers, whatever the run had: a run that has less of them
// is forecast so by its own options.
static void test_smaller_buffers(void **state)
{
    (void)state;
    struct up_figures h200;
    struct up_error err = {0};
    assert_int_equal(up_figures_find("h200", &h200, &err), UP_OK);
    train("--device dry --as cuda --machine h200 --model tiny --seq 1K --ranks 2 --steps 1 "
          "--nccl-buffers 1M --trace run.db");
    json_t *root = calibrate("run.db -o m.json");
    assert_true(json_number_value(json_object_get(figure_of(root, "nccl_bytes"), "value")) ==
                h200.of[UP_FIGURE_NCCL]);
    assert_true(json_number_value(json_object_get(figure_of(root, "nccl_rank_bytes"), "value")) ==
                h200.of[UP_FIGURE_NCCL_RANK]);
    json_decref(root);
    make_foreign("run.db",
                 "UPDATE meta SET value = '2' WHERE key = 'ranks';"
                 "UPDATE meta SET value = '{\"options\": {\"nccl-buffers\": \"1048576\"}}'"
                 " WHERE key = 'config';"
                 "INSERT INTO device_alloc VALUES"
                 " (7, 0, 'nccl', 'device', 700000000, 0, NULL)");
    root = calibrate("run.db -o m.json");
    const json_t *nccl = figure_of(root, "nccl_bytes");
    assert_true(json_number_value(json_object_get(nccl, "value")) == 1.4e9);
    assert_non_null(strstr(json_string_value(json_object_get(nccl, "source")), "--nccl-buffers"));
    json_decref(root);
}

static void test_names_a_lost_machine(void **state)
{
    (void)state;
    make_foreign("run.db", "UPDATE meta SET value = '{\"options\": {\"machine\": \"gone.json\"}}'"
                           " WHERE key = 'config'");
    struct outcome outcome = report("", "calibrate run.db -o m.json");
    expect_status(&outcome, 0);
    assert_non_null(strstr(outcome.out, "gone.json"));
    golden_check("calibrate", outcome.out);
    outcome_release(&outcome);
}

static void test_malformed(void **state)
{
    (void)state;
    static const char *const lies[] = {
        "UPDATE kernel SET begin_ns = -9223372036854775807, end_ns = 9223372036854775807",
        "UPDATE kernel SET end_ns = begin_ns - 5, flops = 'many'",
        "UPDATE kernel SET step = 9223372036854775807, flops = 1e308; UPDATE step SET step ="
        " 9223372036854775807",
        "UPDATE collective SET bytes = -9223372036854775807 - 1",
        "UPDATE rank SET capacity_bytes = 9223372036854775807",
        "UPDATE meta SET value = '{\"config\": {\"model\": {\"layers\": 9223372036854775807}}}'"
        " WHERE key = 'config'",
        "UPDATE meta SET value = '{\"config\": {\"cp\": -1, \"dp\": 0, \"seq\": 1, \"batch\": 1,"
        " \"accum\": 1, \"upipe\": 1, \"model\": {\"family\": \"llama\", \"layers\": 1,"
        " \"hidden\": 8, \"ff\": 8, \"heads\": 1, \"kv_heads\": 1, \"head_dim\": 8, \"vocab\": 8"
        "}}}' WHERE key = 'config'",
        "UPDATE meta SET value = '{\"machine\": {\"name\": \"m\", \"launch_s\": -1}}'"
        " WHERE key = 'config'",
    };
    for (int i = 0; i < UP_COUNT(lies); i++) {
        make_foreign("run.db", lies[i]);
        struct outcome outcome = report("", "calibrate run.db -o m.json");
        if ((outcome.status != 0 && outcome.status != 2) || count_lines(outcome.err) > 1)
            fail_msg("%s: status %d: %s", lies[i], outcome.status, outcome.err);
        outcome_release(&outcome);
        struct up_figures figures;
        struct up_error err = {0};
        if (access("m.json", F_OK) == 0 && up_figures_find("m.json", &figures, &err) != UP_OK)
            fail_msg("%s: wrote what is no machine file: %s", lies[i], err.text);
        unlink("m.json");
    }
}

static void test_refusals(void **state)
{
    (void)state;
    make_foreign("run.db", NULL);
    expect_refusal("calibrate run.db", "--output");
    expect_refusal("calibrate -o m.json", "expected a run.db");
    expect_refusal("calibrate run.db -o none/m.json", "folder");
    expect_refusal("calibrate run.db -o h200", "built in");
    expect_refusal("calibrate run.db -o run.db", "left alone");
    expect_refusal("calibrate run.db -o .", "left alone");
    expect_refusal("calibrate run.db -x m.json", "unknown option -x");
    make_foreign("run.db", "DELETE FROM kernel; DELETE FROM collective");
    expect_refusal("calibrate run.db -o m.json", "expected a run with kernels");
    make_foreign("run.db", "UPDATE step SET end_ns = NULL");
    expect_refusal("calibrate run.db -o m.json", "expected a run with kernels");
    assert_int_equal(access("m.json", F_OK), -1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_setup, folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_binds),
                                       cmocka_unit_test(test_narrow_heads),
                                       cmocka_unit_test(test_runs),
                                       cmocka_unit_test(test_paces),
                                       cmocka_unit_test(test_short_copies),
                                       cmocka_unit_test(test_weighted_by_time),
                                       cmocka_unit_test(test_odd_numbers),
                                       TEST(test_dry_gives_its_machine),
                                       TEST(test_runs_of_another_machine),
                                       TEST(test_file_is_read),
                                       TEST(test_cpu),
                                       TEST(test_foreign),
                                       TEST(test_other_head_dims),
                                       TEST(test_libraries),
                                       TEST(test_smaller_buffers),
                                       TEST(test_names_a_lost_machine),
                                       TEST(test_malformed),
                                       TEST(test_refusals)};
    return cmocka_run_group_tests_name("calibrate", tests, NULL, NULL);
}
