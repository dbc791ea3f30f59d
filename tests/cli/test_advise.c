/* Know before you run, from outside: what does not fit is refused and leaves nothing behind, and
 * the options that are suggested run; forecasts are in run.db and are what was measured; the
 * command that advise --fit ends with works when pasted. */
#include "tests/cli/program.h"

#include <jansson.h>
#include <math.h>
#include <sqlite3.h>

static struct program program; // large

static char folder[32], data[64], trace[64];

static int enter(void **state)
{
    (void)state;
    folder_make(folder);
    snprintf(data, sizeof data, "%s/it's data", folder); // to be quoted
    snprintf(trace, sizeof trace, "%s/run.db", folder);
    file_write_text(data, 3000);
    return 0;
}

static int leave(void **state)
{
    (void)state;
    folder_remove(folder);
    return 0;
}

// The programs by their names, in the test's folder, as a shell takes `line`.
static int shell(const char *line, char *out, size_t size)
{
    char command[LONG_COMMAND], path[64];
    snprintf(path, sizeof path, "%s/shell.out", folder);
    print_to(command, sizeof command, "cd %s && PATH='%s':$PATH && { %s\n} >%s 2>&1", folder,
             UP_TEST_BUILD, line, path);
    int status = system(command);
    file_read(path, out, size);
    unlink(path);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int64_t ask(const char *path, const char *sql)
{
    sqlite3 *db;
    sqlite3_stmt *statement = NULL;
    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    if (sqlite3_prepare_v2(db, sql, -1, &statement, NULL) != SQLITE_OK)
        fail_msg("%s in: %s", sqlite3_errmsg(db), sql);
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    int64_t number = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    sqlite3_close(db);
    return number;
}

/* --- Admission
 * ------------------------------------------------------------------------------------ */

static void test_refused_and_suggested(void **state)
{
    (void)state;
    static const char *const limits[] = {"24MiB", "17MiB", "13MiB"};
    int most = getenv("UP_TEST_SHORT") ? 1 : 2;
    for (int ranks = 1; ranks <= most; ranks++)
        for (int i = 0; i < UP_COUNT(limits); i++) {
            char count[16], line[1024], out[8192];
            snprintf(count, sizeof count, "%d", ranks);
            program_run(&program, "upipe-train", "--data", data, "--seq", "1K", "--steps", "1",
                        "--ranks", count, "--memory-limit", limits[i], "--trace", trace,
                        "--json-log", "/tmp/upipe-never-written", "--save", "/tmp/upipe-never");
            assert_int_equal(program.status, 1);
            assert_non_null(strstr(program.err, "does not fit device memory: the forecast is 3"));
            assert_non_null(strstr(program.err, "layers.*.mlp.gate (mlp), 5.50 MiB"));
            assert_int_equal(folder_count(folder), 1);
            assert_true(access("/tmp/upipe-never-written", F_OK) != 0);
            assert_true(access("/tmp/upipe-never", F_OK) != 0);
            char *options = strstr(program.err, "it fits with: ");
            assert_non_null(options);
            options += strlen("it fits with: ");
            *strstr(options, " (peak ") = 0;
            snprintf(line, sizeof line,
                     "upipe-train --data \"it's data\" --seq 1K --steps 1 --ranks %d "
                     "--memory-limit %s %s",
                     ranks, limits[i], options);
            if (shell(line, out, sizeof out)) fail_msg("%s: %s", line, out);
        }
}

static void test_nothing_fits(void **state)
{
    (void)state;
    program_run(&program, "upipe-train", "--data", data, "--seq", "1K", "--memory-limit", "4MiB",
                "--trace", trace);
    assert_int_equal(program.status, 1);
    assert_non_null(strstr(program.err, "no techniques make it fit"));
    assert_int_equal(folder_count(folder), 1);
}

// The limit at which it is refused is the arena's very height: one byte more and it runs.
static void test_margin(void **state)
{
    (void)state;
    int64_t low = 1 << 20, high = 64 << 20;
    int64_t near_enough = getenv("UP_TEST_SHORT") ? 1 << 20 : 1;
    while (low + near_enough < high) {
        char limit[32];
        int64_t middle = (low + high) / 2;
        snprintf(limit, sizeof limit, "%lld", (long long)middle);
        program_run(&program, "upipe-train", "--data", data, "--seq", "200", "--steps", "1",
                    "--stack", "checkpoint", "--memory-limit", limit);
        if (program.status == 0)
            high = middle;
        else
            low = middle;
        assert_true(program.status == 0 || strstr(program.err, "does not fit"));
    }
    assert_true(low > 11 << 20); // model state alone is 12.3 MiB
}

// A forecast of what does not fit is what dry runs are for.
static void test_dry_goes_on(void **state)
{
    (void)state;
    if (getenv("UP_TEST_SHORT")) skip(); // large steps, with little of their own to be looked into
    program_run(&program, "upipe-train", "--device", "dry", "--model", "llama3-8b", "--seq", "3M",
                "--ranks", "8", "--stack", "checkpoint", "--machine", "h100-80g-x8", "--steps", "1",
                "--trace", trace);
    assert_int_equal(program.status, 0);
    assert_non_null(strstr(program.out, "peak 213.9 GiB"));
    assert_non_null(strstr(program.err, "does not fit device memory: the forecast is 218.4 GiB"));
    assert_non_null(strstr(program.err, "it fits with: --offload host --tile-loss 1K"));
    assert_int_equal(ask(trace, "SELECT complete FROM (SELECT value AS complete FROM meta WHERE "
                                "key = 'complete')"),
                     1);
    program_run(&program, "upipe-train", "--device", "dry", "--model", "llama3-8b", "--seq", "3M",
                "--ranks", "8", "--stack", "checkpoint", "--machine", "h100-80g-x8", "--steps", "1",
                "--no-admission");
    assert_int_equal(program.status, 0);
    assert_string_equal(program.err, "");
    // Asked about another machine, the command names that one.
    program_run(&program, "upipe-report", "advise", trace, "--machine", "h200", "--fit", "120GiB");
    assert_int_equal(program.status, 0);
    assert_non_null(strstr(program.out, "--machine h200 "));
    assert_null(strstr(program.out, "h100-80g-x8 "));
    // Text fits 100 columns, but for the command.
    program_run(&program, "upipe-report", "advise", trace);
    assert_int_equal(program.status, 0);
    for (char *line = program.out, *end; (end = strchr(line, '\n')); line = end + 1)
        if (end - line > 100 && strncmp(line, "upipe-train", 11) != 0)
            fail_msg("too wide: %.*s", (int)(end - line), line);
    // What libraries take has their names, and what makes the largest less.
    assert_non_null(
        strstr(program.out, "  libraries   context 545.6 MiB, cublas 514.0 MiB, cudnn "));
    assert_non_null(strstr(program.out, "nccl 3.45 GiB (--nccl-buffers 1M makes it less)\n"));
    // Of any machine NCCL takes what the run's buffers make of it, as the run does.
    program_run(&program, "upipe-train", "--device", "dry", "--model", "llama3-8b", "--layers", "2",
                "--seq", "64K", "--ranks", "2", "--machine", "h200", "--nccl-buffers", "1M",
                "--steps", "1", "--trace", trace);
    assert_int_equal(program.status, 0);
    program_run(&program, "upipe-report", "advise", trace);
    const char *libraries = strstr(program.out, "  libraries   ");
    char own[256];
    assert_non_null(libraries);
    snprintf(own, sizeof own, "%.*s", (int)strcspn(libraries, "\n"), libraries);
    program_run(&program, "upipe-report", "advise", trace, "--machine", "h200");
    assert_non_null(strstr(program.out, own));
    // A limit counts as the machine's memory does, and with --no-admission ends the forecast.
    program_run(&program, "upipe-train", "--device", "dry", "--memory-limit", "2GiB");
    assert_int_equal(program.status, 0);
    assert_string_equal(program.err, "");
    program_run(&program, "upipe-train", "--device", "dry", "--memory-limit", "1MiB");
    assert_int_equal(program.status, 0);
    assert_non_null(strstr(program.err, "does not fit"));
    program_run(&program, "upipe-train", "--device", "dry", "--memory-limit", "1MiB",
                "--no-admission");
    assert_int_equal(program.status, 1);
    assert_non_null(strstr(program.err, "out of device memory"));
}

/* --- Predictions
 * ------------------------------------------------------------------------------------ */

static void run_traced(const char *path, const char *options)
{
    char line[1024], out[8192];
    snprintf(line, sizeof line,
             "upipe-train --data \"it's data\" --seq 256 --steps 3 --trace %s %s", path, options);
    if (shell(line, out, sizeof out)) fail_msg("%s: %s", line, out);
}

// The run's own forecast, and, of the neighbour that is then run, that one's.
static void test_predictions_come_true(void **state)
{
    (void)state;
    static const char *const neighbours[] = {"--checkpoint block", "--fsdp on",
                                             "--accum 2 --cp 2 --dp 1", "--optimizer host"};
    char next[64], sql[1024];
    run_traced(trace, "--ranks 2");
    assert_int_equal(ask(trace, "SELECT peak_bytes FROM prediction WHERE options = ''"),
                     ask(trace, "SELECT max(peak_bytes) FROM peak"));
    assert_int_equal(
        ask(trace, "SELECT count(*) FROM prediction_category c JOIN prediction p ON p.id = "
                   "prediction_id LEFT JOIN peak_by_category b ON b.category = c.category AND "
                   "b.rank = 0 WHERE p.options = '' AND c.category <> 'beside' AND b.bytes IS "
                   "NOT c.bytes"),
        0);
    assert_int_equal(ask(trace, "SELECT p.config_hash = m.value FROM prediction p, meta m WHERE "
                                "m.key = 'config_hash' AND p.options = ''"),
                     1);
    for (int i = 0; i < UP_COUNT(neighbours); i++) {
        char options[256];
        snprintf(next, sizeof next, "%s/next.db", folder);
        snprintf(options, sizeof options, "--ranks 2 %s", neighbours[i]);
        run_traced(next, options);
        snprintf(sql, sizeof sql, "ATTACH '%s' AS next; SELECT 1",
                 next); // shown where it fails below
        sqlite3 *db;
        sqlite3_stmt *statement = NULL;
        assert_int_equal(sqlite3_open(trace, &db), SQLITE_OK);
        assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
        snprintf(sql, sizeof sql,
                 "SELECT (SELECT max(peak_bytes) FROM next.peak) = p.peak_bytes AND p.config_hash "
                 "= (SELECT value FROM next.meta WHERE key = 'config_hash') AND p.step_s > 0 FROM "
                 "prediction p WHERE options = '%s'",
                 neighbours[i]);
        assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &statement, NULL), SQLITE_OK);
        if (sqlite3_step(statement) != SQLITE_ROW || sqlite3_column_int(statement, 0) != 1)
            fail_msg("%s: not as forecast", neighbours[i]);
        sqlite3_finalize(statement);
        sqlite3_close(db);
        unlink(next);
    }
}

// Of another machine forecasts are made anew, but for the one that the run began with.
static void test_the_last_forecast_counts(void **state)
{
    (void)state;
    static const char *const machines[] = {"h200", "generic"};
    static const char own[] = "SELECT step_s * 1e9 FROM prediction WHERE options = ''";
    static const char other[] = "SELECT step_s * 1e9 FROM prediction WHERE options LIKE '%host'";
    int64_t first, others[2], count[2];
    run_traced(trace, "");
    first = ask(trace, own);
    for (int i = 0; i < 2; i++) {
        program_run(&program, "upipe-report", "advise", trace, "--machine", machines[i]);
        assert_int_equal(program.status, 0);
        assert_int_equal(ask(trace, own), first);
        others[i] = ask(trace, other);
        count[i] = ask(trace, "SELECT count(*) FROM prediction");
        assert_true(others[i] > 0);
    }
    assert_true(others[0] != others[1]);
    assert_int_equal(count[0], count[1]);
    assert_int_equal(ask(trace, "SELECT count(*) FROM prediction_category WHERE prediction_id NOT "
                                "IN (SELECT id FROM prediction)"),
                     0);
}

// What advise finds is added, once; a file that cannot be written to is only read.
static void test_advise_adds_forecasts(void **state)
{
    (void)state;
    run_traced(trace, "");
    int64_t before = ask(trace, "SELECT count(*) FROM prediction"), after = 0;
    for (int i = 0; i < 2; i++) {
        program_run(&program, "upipe-report", "advise", trace, "--fit", "14MiB");
        assert_int_equal(program.status, 0);
        int64_t now = ask(trace, "SELECT count(*) FROM prediction");
        assert_true(now > before);
        assert_true(!i || now == after);
        after = now;
    }
    assert_int_equal(ask(trace, "SELECT count(*) - count(DISTINCT options || config_hash) FROM "
                                "prediction"),
                     0);
    assert_int_equal(ask(trace, "SELECT count(*) FROM prediction p WHERE p.peak_bytes <> (SELECT "
                                "sum(bytes) FROM prediction_category WHERE prediction_id = p.id "
                                "AND category <> 'beside')"),
                     0);
    run_traced(trace, "");
    chmod(trace, 0444);
    program_run(&program, "upipe-report", "advise", trace);
    assert_int_equal(program.status, 0);
    assert_string_equal(program.err, "");
    chmod(trace, 0644);
}

/* --- Advice
 * ------------------------------------------------------------------------------------ */

// What is told of other lengths and stages is held against runs of them, too.
static void test_every_forecast_is_stored(void **state)
{
    (void)state;
    static const struct {
        const char *asked, *run;
    } rows[] = {{"", "--layers 1 --upipe 4"}, {"--max-seq --fit 4MiB", NULL}};
    char next[64], line[1024], out[8192];
    snprintf(next, sizeof next, "%s/run.next.db", folder);
    run_traced(trace, "--layers 1");
    for (int i = 0; i < UP_COUNT(rows); i++) {
        snprintf(line, sizeof line, "upipe-report advise run.db %s", rows[i].asked);
        if (shell(line, out, sizeof out)) fail_msg("%s: %s", line, out);
        out[strlen(out) - 1] = 0;
        if (rows[i].run)
            run_traced(next, rows[i].run);
        else if (shell(strrchr(out, '\n') + 1, line, sizeof line))
            fail_msg("%s", line);
        program_run(&program, "upipe-report", "score", trace, next);
        if (program.status) fail_msg("%s: %s", rows[i].asked, program.err);
        unlink(next);
    }
}

// The last line runs as it stands and takes what was said; what is quoted has a blank and a quote.
static void test_fit_line_works(void **state)
{
    (void)state;
    static const struct {
        const char *run, *fit;
    } rows[] = {{"--batch 2", "12MiB"},
                {"--ranks 2 --stack fsdp", "7MiB"},
                {"--ranks 4 --dp 2 --cp 2 --warmup 1 --lr 0.001 --checkpoint attn:2", "5MiB"},
                {"--layers 3 --seed 7", "64MiB"},
                {"--active-layers 2 --checkpoint attn:1", "12MiB"}};
    for (int i = 0; i < UP_COUNT(rows); i++) {
        char out[16384], next[64];
        run_traced("run.db", rows[i].run);
        program_run(&program, "upipe-report", "advise", trace, "--fit", rows[i].fit, "--json");
        assert_int_equal(program.status, 0);
        json_t *root = json_loads(program.out, 0, NULL), *fit = json_object_get(root, "fit");
        assert_non_null(fit);
        int64_t peak = json_integer_value(json_object_get(fit, "peak_bytes"));
        program_run(&program, "upipe-report", "advise", trace, "--fit", rows[i].fit);
        assert_int_equal(program.status, 0);
        program.out[strlen(program.out) - 1] = 0;
        const char *line = strrchr(program.out, '\n') + 1;
        assert_true(strncmp(line, "upipe-train ", 12) == 0);
        assert_string_equal(line, json_string_value(json_object_get(root, "command")));
        if (shell(line, out, sizeof out)) fail_msg("%s: %s", line, out);
        snprintf(next, sizeof next, "%s/run.next.db", folder);
        if (ask(next, "SELECT max(peak_bytes) FROM peak") != peak)
            fail_msg("%s: peak is not the %lld bytes that were said", line, (long long)peak);
        assert_int_equal(ask(next, "SELECT count(*) FROM meta WHERE key = 'outcome' AND value = "
                                   "'ok'"),
                         1);
        json_decref(root);
        unlink(next);
    }
}

// The step of what is chosen takes what was said, and is as much slower.
static void test_fit_line_takes_its_time(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"--model tiny --ranks 2 --seq 8K --machine h200", "20GiB"},
        {"--model tiny --ranks 4 --seq 8K --machine h200 --accum 2", "4GiB"},
        {"--model tiny --ranks 8 --cp 2 --fsdp on --seq 2K --machine h200 --accum 50", "20GiB"},
        {"--model llama3.2-1b --layers 2 --seq 8K --ranks 2 --machine h200 --deterministic",
         "9GiB"}};
    for (int i = 0; i < UP_COUNT(rows); i++) {
        char line[1024], out[16384], next[64];
        snprintf(next, sizeof next, "%s/run.next.db", folder);
        print_to(line, sizeof line, "upipe-train --device dry --steps 1 --trace run.db %s",
                 rows[i][0]);
        if (shell(line, out, sizeof out)) fail_msg("%s: %s", line, out);
        program_run(&program, "upipe-report", "advise", trace, "--json", "--fit", rows[i][1]);
        assert_int_equal(program.status, 0);
        json_t *root = json_loads(program.out, 0, NULL), *fit = json_object_get(root, "fit");
        const char *command = json_string_value(json_object_get(root, "command"));
        if (shell(command, out, sizeof out)) fail_msg("%s: %s", command, out);
        double was = (double)ask(trace, "SELECT end_ns - begin_ns FROM step") / 1e9;
        double is = (double)ask(next, "SELECT end_ns - begin_ns FROM step") / 1e9;
        double said = json_real_value(json_object_get(fit, "planned_step_s"));
        double slower = json_number_value(json_object_get(fit, "step_time_change"));
        if (fabs(said / is - 1) > 1e-6 || fabs(slower - (is / was - 1)) > 1e-6)
            fail_msg("%s: %g s and %g were said, %g and %g it is", command, said, slower, is,
                     is / was - 1);
        json_decref(root);
        unlink(next);
        unlink(trace);
    }
}

// What the run wrote stays as it is; a save goes on only in the sequences that it was made with.
static void test_line_beside_saves(void **state)
{
    (void)state;
    static const struct {
        const char *run, *asked;
        int64_t step; // that the next run begins with
    } rows[] = {{"--save saves --save-every 2 --json-log log.json", "--fit 12MiB", 0},
                {"--resume saves --save saves --steps 5 --json-log log.json", "--fit 12MiB", 3},
                {"--resume saves/step-00000002 --steps 5 --model tiny", "--seq 128", 0}};
    for (int i = 0; i < UP_COUNT(rows); i++) {
        char out[16384], ask_line[256], before[4096], after[4096], log[64], next[64];
        snprintf(log, sizeof log, "%s/log.json", folder);
        snprintf(next, sizeof next, "%s/run.next.db", folder);
        run_traced("run.db", rows[i].run);
        file_read(log, before, sizeof before);
        snprintf(ask_line, sizeof ask_line, "upipe-report advise run.db %s", rows[i].asked);
        if (shell(ask_line, out, sizeof out)) fail_msg("%s: %s", ask_line, out);
        out[strlen(out) - 1] = 0;
        char *line = strrchr(out, '\n') + 1;
        assert_true(strncmp(line, "upipe-train ", 12) == 0);
        assert_true(i < 2 || strstr(line, "--model saves/step-00000002 "));
        char command[4096];
        snprintf(command, sizeof command, "%s", line);
        if (shell(command, out, sizeof out)) fail_msg("%s: %s", command, out);
        assert_int_equal(ask(next, "SELECT min(step) FROM step"), rows[i].step);
        file_read(log, after, sizeof after);
        assert_string_equal(before, after);
        if (shell("rm -r saves.next run.next.db; test -d saves", out, sizeof out) && i < 2)
            fail_msg("%s", out);
    }
}

// Of the sizes that the text tells the JSON has each, and the text whose sum the host's is.
static void test_json_tells_as_much(void **state)
{
    (void)state;
    run_traced(trace, "--ranks 2 --stack fsdp");
    program_run(&program, "upipe-report", "advise", trace, "--fit", "7MiB", "--json");
    json_t *root = json_loads(program.out, 0, NULL), *kind;
    char host[UP_UNITS_TEXT], line[160];
    int64_t bytes =
        json_integer_value(json_object_get(json_object_get(root, "fit"), "node_host_bytes"));
    snprintf(line, sizeof line, "host memory %s for 2 ranks",
             up_format_bytes(host, (uint64_t)bytes));
    program_run(&program, "upipe-report", "advise", trace, "--fit", "7MiB");
    assert_non_null(strstr(program.out, line));
    const json_t *dominant = json_object_get(root, "dominant");
    assert_int_equal(json_array_size(dominant), 3);
    size_t i;
    json_array_foreach(dominant, i, kind)
    {
        bytes = json_integer_value(json_object_get(kind, "bytes"));
        snprintf(line, sizeof line, "%s %s", json_string_value(json_object_get(kind, "kind")),
                 up_format_bytes(host, (uint64_t)bytes));
        assert_non_null(strstr(program.out, line));
        assert_non_null(json_string_value(json_object_get(kind, "category")));
    }
    json_decref(root);
}

static void change_config(const char *path, const char *value)
{
    char sql[512];
    sqlite3 *db;
    print_to(sql, sizeof sql, "UPDATE meta SET value = %s WHERE key = 'config'", value);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, NULL)) fail_msg("%s", sqlite3_errmsg(db));
    sqlite3_close(db);
}

// The advice of a machine with so much host memory.
static json_t *advice_on_host(int64_t host_bytes)
{
    char value[128];
    snprintf(value, sizeof value, "json_set(value, '$.machine.host_bytes', %lld)",
             (long long)host_bytes);
    change_config(trace, value);
    program_run(&program, "upipe-report", "advise", trace, "--json");
    json_t *root = json_loads(program.out, 0, NULL);
    assert_non_null(root);
    return root;
}

// What is to be typed for the last line of a path that fits; NULL where that is the run as it is.
static const char *last_that_fits(const json_t *path)
{
    const char *options = NULL;
    const json_t *line;
    size_t i;
    json_array_foreach(path, i, line)
    {
        if (i && json_is_true(json_object_get(line, "fits")))
            options = json_string_value(json_object_get(line, "all_options"));
    }
    return options;
}

// Whether the line with these options has an eighth of the host to spare, or was held against it
// with its tensors in a plan.
static bool fits_planned(const json_t *path, const char *options, int64_t host_bytes)
{
    const json_t *line;
    size_t i;
    json_array_foreach(path, i, line)
    {
        const char *here = json_string_value(json_object_get(line, "all_options"));
        if (here && !strcmp(here, options))
            return json_is_integer(json_object_get(line, "arena_bytes")) ||
                   json_integer_value(json_object_get(line, "node_host_bytes")) <=
                       host_bytes / 8 * 7;
    }
    return false;
}

// How often nothing is to be typed, the path in part, and the whole path, as host memory grows.
struct typed {
    int nothing, some, all;
};

static struct typed type_all(void)
{
    struct typed typed = {0};
    json_t *root = advice_on_host(INT64_C(1) << 40), *line;
    size_t i;
    json_array_foreach(json_object_get(root, "path"), i, line)
    {
        // A plan may take a little more than its tensors are.
        int64_t need = json_integer_value(json_object_get(line, "node_host_bytes"));
        int64_t host_bytes = need * 17 / 16 + 65536;
        json_t *here = advice_on_host(host_bytes);
        const char *options = json_string_value(json_object_get(here, "options_to_type"));
        const char *whole = json_string_value(json_object_get(here, "path_options"));
        const char *fits = last_that_fits(json_object_get(here, "path"));
        assert_string_equal(options ? options : "", fits ? fits : "");
        if (options) assert_true(fits_planned(json_object_get(here, "path"), options, host_bytes));
        *(!options ? &typed.nothing : strcmp(options, whole) != 0 ? &typed.some : &typed.all) += 1;
        json_decref(here);
        program_run(&program, "upipe-report", trace);
        assert_int_equal(strstr(program.out, "Switch on nothing more: peak ") != NULL, !options);
    }
    json_decref(root);
    return typed;
}

// The options to type are those of a line that fits, host memory counted.
static void test_options_to_type_fit(void **state)
{
    (void)state;
    program_run(&program, "upipe-train", "--device", "dry", "--model", "tiny", "--seq", "8K",
                "--ranks", "2", "--machine", "h200", "--steps", "1", "--trace", trace);
    assert_int_equal(program.status, 0);
    struct typed typed = type_all();
    assert_true(typed.some && typed.all);
    json_t *root = advice_on_host(1); // not even the run itself
    assert_string_equal(json_string_value(json_object_get(root, "options_to_type")),
                        json_string_value(json_object_get(root, "path_options")));
    json_decref(root);
    // Of one that leaves little but the host's memory to be used.
    program_run(&program, "upipe-train", "--device", "dry", "--model", "tiny", "--seq", "8K",
                "--machine", "h200", "--checkpoint", "block", "--tile-mlp", "1K", "--tile-attn",
                "1K", "--upipe", "1", "--steps", "1", "--trace", trace);
    assert_int_equal(program.status, 0);
    typed = type_all();
    assert_true(typed.nothing && typed.all);
}

static void test_longest_and_no(void **state)
{
    (void)state;
    run_traced(trace, "");
    program_run(&program, "upipe-report", "advise", trace, "--fit", "1MiB");
    assert_int_equal(program.status, 1);
    assert_non_null(strstr(program.out, "DOES NOT FIT"));
    program_run(&program, "upipe-report", "advise", trace, "--max-seq", "--fit", "24MiB");
    assert_int_equal(program.status, 0);
    assert_non_null(strstr(program.out, "Longest with these options: "));
    assert_non_null(strstr(program.out, "then device memory ends"));
    program_run(&program, "upipe-report", "advise", trace, "--max-seq", "--fit", "12MiB");
    assert_int_equal(program.status, 0);
    assert_non_null(strstr(program.out, "Longest with these options: no length fits\n"));
    assert_non_null(strstr(program.out, "Longest with any: "));
    program_run(&program, "upipe-report", "advise", trace, "--seq", "1M");
    assert_int_equal(program.status, 0);
    assert_non_null(strstr(program.out, "sequence 1M"));
    assert_non_null(strstr(program.out, "--seq 1M"));
    program_run(&program, "upipe-report", trace);
    assert_int_equal(program.status, 0);
    assert_non_null(strstr(program.out, "one after the other"));
}

// Configs that lie are refused in one line, or advised on; never a crash.
static void test_malformed(void **state)
{
    (void)state;
    static const char *const changes[] = {
        "NULL",
        "''",
        "'{}'",
        "'[]'",
        "'{\"config\": 5}'",
        "json_set(value, '$.config.seq', -1)",
        "json_set(value, '$.config.seq', 1e300)",
        "json_set(value, '$.config.seq', 9223372036854775807)",
        "json_set(value, '$.config.cp', 0)",
        "json_set(value, '$.config.dp', 1048576)",
        "json_set(value, '$.config.cp', 4611686018427387904)",
        "json_set(value, '$.config.model.layers', 1000000000)",
        "json_set(value, '$.config.model.heads', 7)",
        "json_set(value, '$.config.model.hidden', 9223372036854775807)",
        "json_set(value, '$.config.tile_mlp', -5)",
        "json_set(value, '$.config.upipe', 3)",
        "json_set(value, '$.config.batch', 1048576, '$.config.seq', 1000000000)",
        "json_set(value, '$.machine.device_bytes', -1, '$.machine.launch_s', 'x')",
        "json_set(value, '$.machine.nccl_rank_bytes', 1e18, '$.machine.host_bytes', 1)",
        "json_set(value, '$.options.lr', 'fast', '$.options.data', 3)"};
    int step = getenv("UP_TEST_SHORT") ? 4 : 1;
    for (int i = 0; i < UP_COUNT(changes); i += step) {
        run_traced(trace, "");
        change_config(trace, changes[i]);
        program_run(&program, "upipe-report", "advise", trace, "--fit", "12MiB");
        if (program.status == 2)
            program_must_refuse(&program, "run.db");
        else if (program.status != 0 && program.status != 1)
            fail_msg("%s: status %d: %s", changes[i], program.status, program.err);
        program_run(&program, "upipe-report", trace);
        assert_int_equal(program.status, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_refused_and_suggested, enter, leave),
        cmocka_unit_test_setup_teardown(test_nothing_fits, enter, leave),
        cmocka_unit_test_setup_teardown(test_margin, enter, leave),
        cmocka_unit_test_setup_teardown(test_dry_goes_on, enter, leave),
        cmocka_unit_test_setup_teardown(test_predictions_come_true, enter, leave),
        cmocka_unit_test_setup_teardown(test_advise_adds_forecasts, enter, leave),
        cmocka_unit_test_setup_teardown(test_the_last_forecast_counts, enter, leave),
        cmocka_unit_test_setup_teardown(test_every_forecast_is_stored, enter, leave),
        cmocka_unit_test_setup_teardown(test_fit_line_works, enter, leave),
        cmocka_unit_test_setup_teardown(test_fit_line_takes_its_time, enter, leave),
        cmocka_unit_test_setup_teardown(test_line_beside_saves, enter, leave),
        cmocka_unit_test_setup_teardown(test_json_tells_as_much, enter, leave),
        cmocka_unit_test_setup_teardown(test_options_to_type_fit, enter, leave),
        cmocka_unit_test_setup_teardown(test_longest_and_no, enter, leave),
        cmocka_unit_test_setup_teardown(test_malformed, enter, leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
