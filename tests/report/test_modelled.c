/* Advice on runs whose step cannot be run again. Right answers are worked out by hand on a small
 * trace; and real traces whose config was taken away are held to what dry re-runs say of the same
 * techniques. Last, what is not recorded is not guessed. */
#include "tests/report/run.h"

#include <jansson.h>
#include <math.h>

/* --- Reading an answer ---------------------------------------------------------------------------
 */

static json_t *ask(const char *words)
{
    return json_of(words, 0);
}

static int64_t whole(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static const char *text(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value ? value : "";
}

// The line of a technique in a table; NULL where it has none.
static const json_t *find(const json_t *root, const char *table, const char *technique)
{
    size_t i;
    const json_t *line;
    json_array_foreach(json_object_get(root, table), i,
                       line) if (!strcmp(text(line, "technique"), technique)) return line;
    return NULL;
}

/* --- By hand -------------------------------------------------------------------------------------
 */

enum { K = 1024, TOKENS = 1024 };

struct wanting {
    bool names, categories, layers, phases, shapes, tokens, inputs; // left out of the trace
    bool ends_in_forward, layers_in_ranges;
};

static int64_t alloc(struct fixture *f, const struct wanting *w, const char *category, int layer,
                     const char *name, const char *shape, const char *dtype, int64_t bytes)
{
    char full[64];
    bool input = !strcmp(category, "checkpoint");
    if (layer < 0)
        snprintf(full, sizeof full, "%s", name);
    else
        snprintf(full, sizeof full, "layers.%d.%s", layer, name);
    return fixture_alloc(f, (struct fixture_tensor){
                                .name = w->names ? "" : full,
                                .category = w->categories || (w->inputs && input) ? "" : category,
                                .layer = w->layers || w->layers_in_ranges ? -1 : layer,
                                .shape = w->shapes ? "" : shape,
                                .dtype = dtype,
                                .bytes = bytes});
}

struct block {
    int64_t x, q, g;
};

static struct block forward(struct fixture *f, const struct wanting *w, int layer)
{
    struct block b;
    fixture_range_begin(f, "block", layer);
    b.x = alloc(f, w, "checkpoint", layer, "x", "[1024,50]", "bf16", 100 * K);
    b.q = alloc(f, w, "attention", layer, "attn.q", "[1024,4,25]", "bf16", 200 * K);
    b.g = alloc(f, w, "mlp", layer, "mlp.gate", "[1024,150]", "bf16", 300 * K);
    fixture_free(f, alloc(f, w, "mlp", layer, "mlp.act", "[1024,150]", "bf16", 300 * K));
    fixture_range_end(f);
    return b;
}

static void backward(struct fixture *f, const struct wanting *w, int layer, struct block b)
{
    fixture_range_begin(f, "block", layer);
    int64_t grad = alloc(f, w, "mlp", layer, "mlp.dgate", "[1024,150]", "bf16", 300 * K);
    fixture_free(f, b.g);
    fixture_free(f, b.q);
    fixture_free(f, grad);
    fixture_free(f, b.x);
    fixture_range_end(f);
}

/* Two blocks on two ranks: 3200K of model state, blocks that keep 600K and need 300K more, 500K of
 * logits. The peak, 4900K, is at the logits. */
static void make_trace(const char *path, const struct wanting *w)
{
    struct fixture f;
    fixture_open(&f, path);
    static const char *const meta[][2] = {{"model", "theirs"}, {"device", "cuda"},
                                          {"dtype", "bf16"},   {"ranks", "2"},
                                          {"cp", "1"},         {"complete", "1"}};
    for (size_t i = 0; i < sizeof meta / sizeof *meta; i++)
        fixture_meta(&f, meta[i][0], meta[i][1]);
    if (!w->tokens) fixture_meta(&f, "seq_len", "1024");
    for (int layer = 0; layer < 2; layer++) {
        alloc(&f, w, "parameter", layer, "weights", "[102400]", "fp32", 400 * K);
        alloc(&f, w, "gradient", layer, "grads", "[102400]", "fp32", 400 * K);
        alloc(&f, w, "optimizer", layer, "moments", "[204800]", "fp32", 800 * K);
    }
    f.phase = w->phases ? "" : "forward";
    struct block first = forward(&f, w, 0), second = forward(&f, w, 1);
    int64_t logits = alloc(&f, w, "loss", -1, "loss.logits", "[1024,250]", "bf16", 500 * K);
    if (!w->ends_in_forward) {
        fixture_free(&f, logits);
        f.phase = w->phases ? "" : "backward";
        backward(&f, w, 1, second);
        backward(&f, w, 0, first);
    }
    fixture_close(&f);
}

struct answer {
    const char *technique;
    int64_t peak;
    const char *phase;
    int64_t layer; // -1: none
};

static void expect_line(const json_t *root, const char *table, const struct answer *a)
{
    const json_t *line = find(root, table, a->technique);
    if (!line) fail_msg("%s: no line for %s", table, a->technique);
    const json_t *layer = json_object_get(line, "layer");
    int64_t found = json_is_integer(layer) ? json_integer_value(layer) : -1;
    if (whole(line, "peak_bytes") != a->peak * K || strcmp(text(line, "phase"), a->phase) != 0 ||
        found != a->layer)
        fail_msg("%s %s: %lld K in %s, layer %lld; expected %lld K in %s, layer %lld", table,
                 a->technique, (long long)whole(line, "peak_bytes") / K, text(line, "phase"),
                 (long long)found, (long long)a->peak, a->phase, (long long)a->layer);
    if (strcmp(a->technique, "now") != 0) assert_true(*text(line, "assumption") != 0);
    assert_true(json_is_false(json_object_get(line, "exact")));
}

/* Each by itself:
 *   fsdp        state 1600; two blocks' weights in bf16 400, a block's gradients 400 from the loss
 *               on: 1600 + 800 + 1700
 *   ulysses     every row in half: 3200 + 850
 *   checkpoint  block 1 forward: x.0 and all of block 1, 100 + 900
 *   tile loss   the logits' quarter, 125: the peak moves to block 1's act, 3200 + 600 + 900
 *   tile mlp    at the logits there is no transient of the MLP
 *   optimizer   moments leave, weights are bf16: 400 + 800 + 1700
 */
static void test_by_hand(void **state)
{
    (void)state;
    static const struct answer ladder[] = {
        {"fsdp", 4100, "forward", -1},      {"ulysses", 4050, "forward", -1},
        {"checkpoint", 4200, "forward", 1}, {"tile loss", 4700, "forward", 1},
        {"tile mlp", 4900, "forward", -1},  {"optimizer host", 2900, "forward", -1},
    };
    make_trace("hand.db", &(struct wanting){.names = false});
    json_t *root = ask("advise hand.db --json");
    for (size_t i = 0; i < sizeof ladder / sizeof *ladder; i++)
        expect_line(root, "ladder", &ladder[i]);
    assert_int_equal(json_array_size(json_object_get(root, "ladder")), 6);
    assert_int_equal(whole(json_object_get(root, "forecast"), "peak_bytes"), 4900 * K);
    const json_t *categories = json_object_get(find(root, "ladder", "tile loss"), "categories");
    assert_int_equal(whole(categories, "mlp"), 900 * K);
    assert_null(json_object_get(categories, "loss"));
    assert_int_equal(whole(find(root, "ladder", "optimizer host"), "host_bytes"), 2400 * K);
    json_decref(root);
}

/* Greedily, each on top of those before it:
 *   optimizer   gradients 800 and weights 400 stay: 1200 + 1700 at the logits
 *   ulysses     there 1200 + 850; the largest block's update, 1200, on top of 1200 at the end is
 *               more (as it is with checkpointing, which comes later in the order)
 *   fsdp        state 600; 400 and 400 whole: 600 + 800 + 850 at the logits, the end has 1200
 *   checkpoint  600 + 800 + half of x.0, x.1, q.1, gate.1, dgate.1 (1000); the logits have 1750
 *   tile mlp    gate.1 and dgate.1 are quarters: the backward has 1400 + 350, the logits come first
 *   offload     x.0 and x.1 are away at the logits (1650), x.0 in the backward of block 1
 *   upipe       q.1 has one of its two heads: 1650 both, and the logits come first
 * The loss's slices would lower the logits, and leave the backward where it is. */
static void test_path_by_hand(void **state)
{
    (void)state;
    static const struct answer path[] = {
        {"now", 4900, "forward", -1},        {"optimizer host", 2900, "forward", -1},
        {"ulysses", 2400, "optimizer", -1},  {"fsdp", 2250, "forward", -1},
        {"checkpoint", 1900, "backward", 1}, {"tile mlp", 1750, "forward", -1},
        {"offload", 1700, "backward", 1},    {"upipe", 1650, "forward", -1},
    };
    make_trace("hand.db", &(struct wanting){.names = false});
    json_t *root = ask("advise hand.db --json");
    for (size_t i = 0; i < sizeof path / sizeof *path; i++) expect_line(root, "path", &path[i]);
    size_t lines = sizeof path / sizeof *path;
    const json_t *table = json_object_get(root, "path");
    assert_int_equal(json_array_size(table), lines);
    for (size_t i = 0; i < lines; i++)
        assert_string_equal(text(json_array_get(table, i), "technique"), path[i].technique);
    assert_string_equal(text(json_array_get(table, lines - 1), "all_options"),
                        "--optimizer host --accum 2 --cp 2 --dp 1 --fsdp on --checkpoint block "
                        "--tile-mlp 256 --offload host --upipe 2");
    assert_string_equal(text(json_array_get(table, 2), "owner"), "update");
    json_decref(root);
}

// A tensor's layer may be told by its range alone.
static void test_layers_in_ranges(void **state)
{
    (void)state;
    make_trace("hand.db", &(struct wanting){.layers_in_ranges = true});
    json_t *root = ask("advise hand.db --json");
    expect_line(root, "ladder", &(struct answer){"checkpoint", 4200, "forward", 1});
    assert_null(find(root, "ladder", "fsdp")); // state has neither layer nor range
    json_decref(root);
}

/* --- What is not recorded ------------------------------------------------------------------------
 */

static const char *reason(const json_t *root, const char *technique)
{
    const json_t *line = find(root, "left_out", technique);
    return line ? text(line, "reason") : "";
}

static void expect_reason(const struct wanting *w, const char *technique, const char *says)
{
    make_trace("wanting.db", w);
    json_t *root = ask("advise wanting.db --json");
    if (!strstr(reason(root, technique), says))
        fail_msg("%s: expected '%s', not '%s'", technique, says, reason(root, technique));
    assert_null(find(root, "ladder", technique));
    json_decref(root);
}

static void test_not_guessed(void **state)
{
    (void)state;
    const struct wanting categories = {.categories = true}, layers = {.layers = true},
                         phases = {.phases = true}, tokens = {.tokens = true},
                         names = {.names = true}, inputs = {.inputs = true}, all = {0};
    // Without a layer in either place.
    make_trace("wanting.db", &layers);
    struct fixture f;
    assert_int_equal(sqlite3_open("wanting.db", &f.db), SQLITE_OK);
    fixture_sql(&f, "UPDATE range SET layer = NULL");
    sqlite3_close(f.db);
    json_t *root = ask("advise wanting.db --json");
    assert_non_null(strstr(reason(root, "checkpoint"), "layer was not recorded"));
    assert_non_null(strstr(reason(root, "fsdp"), "layer was not recorded"));
    json_decref(root);
    expect_reason(&categories, "checkpoint", "category");
    expect_reason(&categories, "tile loss", "category");
    expect_reason(&tokens, "tile loss", "tokens");
    expect_reason(&tokens, "ulysses", "tokens");
    expect_reason(&inputs, "checkpoint", "inputs");
    expect_reason(&names, "ulysses", "q, k, v and o");
    expect_reason(&all, "offload", "checkpointing");
    expect_reason(&all, "micro-batch", "halved");
    make_trace("wanting.db", &phases);
    assert_int_equal(sqlite3_open("wanting.db", &f.db), SQLITE_OK);
    fixture_sql(&f, "UPDATE range SET phase = ''");
    sqlite3_close(f.db);
    root = ask("advise wanting.db --json");
    assert_non_null(strstr(reason(root, "checkpoint"), "phase"));
    json_decref(root);
}

// Nothing has a category: all of the peak is beyond the rules, and that is said.
static void test_nothing_known(void **state)
{
    (void)state;
    make_trace("wanting.db", &(struct wanting){.categories = true, .names = true, .shapes = true});
    json_t *root = ask("advise wanting.db --json");
    assert_int_equal(json_array_size(json_object_get(root, "path")), 0);
    assert_int_equal(json_array_size(json_object_get(root, "ladder")), 0);
    const json_t *notes = json_object_get(root, "notes");
    bool said = false;
    size_t i;
    const json_t *note;
    json_array_foreach(notes, i, note) said |=
        strstr(json_string_value(note), "4.79 MiB of the peak has no category") != NULL;
    assert_true(said);
    json_decref(root);
    root = ask("wanting.db --json");
    assert_true(json_is_null(json_object_get(root, "advice")));
    json_decref(root);
}

// Sizes alone tell what is by token, where there are no shapes.
static void test_without_shapes(void **state)
{
    (void)state;
    make_trace("wanting.db", &(struct wanting){.shapes = true});
    json_t *root = ask("advise wanting.db --json");
    expect_line(root, "ladder", &(struct answer){"tile loss", 4700, "forward", 1});
    assert_non_null(strstr(reason(root, "ulysses"), "heads"));
    json_decref(root);
}

// Out of memory in the forward: what is alive after its block waits for a backward.
static void test_ends_in_forward(void **state)
{
    (void)state;
    make_trace("oom.db", &(struct wanting){.ends_in_forward = true});
    struct fixture f;
    assert_int_equal(sqlite3_open("oom.db", &f.db), SQLITE_OK);
    fixture_sql(&f, "REPLACE INTO meta VALUES ('outcome', 'out of memory')");
    sqlite3_close(f.db);
    json_t *root = ask("advise oom.db --json");
    expect_line(root, "ladder", &(struct answer){"checkpoint", 4200, "forward", 1});
    bool said = false;
    size_t i;
    const json_t *note;
    json_array_foreach(json_object_get(root, "notes"), i, note) said |=
        strstr(json_string_value(note), "no backward was recorded") != NULL;
    assert_true(said);
    json_decref(root);
}

/* --- As a program --------------------------------------------------------------------------------
 */

static void test_fit(void **state)
{
    (void)state;
    make_trace("hand.db", &(struct wanting){.names = false});
    json_t *root = ask("advise hand.db --fit 4900K --json"); // 4900 tokens' K: 1024
    assert_string_equal(text(json_object_get(root, "fit"), "all_options"), "");
    const json_t *first = json_array_get(json_object_get(root, "dominant"), 0);
    assert_string_equal(text(first, "kind"), "layers.*.moments");
    assert_string_equal(text(first, "category"), "optimizer");
    assert_int_equal(json_integer_value(json_object_get(first, "bytes")), 1600 * K);
    json_decref(root);
    root = ask("advise hand.db --fit 4899K --json");
    assert_string_equal(text(json_object_get(root, "fit"), "all_options"), "--optimizer host");
    assert_true(json_is_true(json_object_get(json_object_get(root, "fit"), "fits")));
    json_decref(root);
    root = json_of("advise hand.db --fit 1K --json", 1);
    assert_true(json_is_null(json_object_get(root, "fit")));
    json_decref(root);
    expect_refusal("advise hand.db --seq 2K", "run again");
    expect_refusal("advise hand.db --max-seq", "run again");
}

// What to change is said as it would be typed.
static void test_fit_can_be_typed(void **state)
{
    (void)state;
    char words[128], line[512];
    make_trace("hand.db", &(struct wanting){.names = false});
    json_t *root = ask("advise hand.db --json");
    const json_t *third = json_array_get(json_object_get(root, "path"), 2); // after "now"
    snprintf(words, sizeof words, "advise hand.db --fit %lld",
             (long long)json_integer_value(json_object_get(third, "peak_bytes")));
    snprintf(line, sizeof line, "\n  change      %s\n", text(third, "all_options"));
    assert_non_null(strstr(line, " --optimizer host "));
    struct outcome o = report("", words);
    if (o.status || !strstr(o.out, line)) fail_msg("%s: '%s' is not in: %s", words, line, o.out);
    outcome_release(&o);
    json_decref(root);
}

// Every line of the text says what it is, and the assumptions are there; all of it fits the page.
static void test_text(void **state)
{
    (void)state;
    make_trace("hand.db", &(struct wanting){.names = false});
    struct outcome outcome = report("LC_ALL=C.UTF-8", "advise hand.db");
    expect_status(&outcome, 0);
    int lines = 0, wide = 0;
    for (char *line = outcome.out, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        wide += strlen(line) > 100;
        if (strncmp(line, "  --", 4) != 0) continue;
        lines++;
        if (!strstr(line, " modelled ")) fail_msg("not labelled: %s", line);
    }
    assert_int_equal(wide, 0);
    assert_true(lines >= 6);
    outcome_release(&outcome);
    outcome = report("LC_ALL=C.UTF-8", "hand.db");
    expect_status(&outcome, 0);
    assert_non_null(strstr(outcome.out, "modelled"));
    assert_true(count_lines(outcome.out) <= 45);
    outcome_release(&outcome);
}

// Rows that lie give odd numbers, not crashes.
static void test_lies(void **state)
{
    (void)state;
    static const char *const lies[] = {
        "UPDATE tensor SET bytes = 9223372036854775807",
        "UPDATE tensor SET bytes = -1",
        "UPDATE tensor SET layer = 9223372036854775807 WHERE id % 2",
        "UPDATE tensor SET alloc_seq = 9223372036854775806, free_seq = 9223372036854775807",
        "UPDATE tensor SET alloc_seq = -9223372036854775807",
        "UPDATE tensor SET shape = '[1024,9223372036854775807,99999999999999999999]'",
        "UPDATE tensor SET shape = '[[[', dtype = NULL WHERE 0",
        "UPDATE tensor SET storage_id = -9223372036854775807",
        "UPDATE tensor SET category = 'loss'",
        "UPDATE tensor SET category = 'parameter'",
        "UPDATE tensor SET phase = 'backward'",
        "UPDATE meta SET value = '9223372036854775807' WHERE key IN ('seq_len', 'ranks', 'cp')",
        "UPDATE meta SET value = '0' WHERE key IN ('seq_len', 'ranks', 'cp')",
        "UPDATE meta SET value = '9223372036854775807' WHERE key = 'ranks'",
        "INSERT INTO meta VALUES ('batch', '9223372036854775807')",
        "INSERT INTO meta VALUES ('batch', '2'), ('accum', '9223372036854775807')",
        "INSERT INTO rank VALUES (0, '', '', -5, NULL)",
        ("INSERT INTO device_alloc VALUES (1, 0, 'x', 'device', 9223372036854775807, 0, NULL),"
         " (2, 0, 'x', 'device', 9223372036854775807, 0, NULL)"),
        "DELETE FROM range",
        "UPDATE range SET layer = 7, phase = 'elsewhere'",
    };
    int step = takes_few() ? 3 : 1;
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i += (size_t)step) {
        struct fixture f;
        make_trace("lies.db", &(struct wanting){.names = false});
        assert_int_equal(sqlite3_open("lies.db", &f.db), SQLITE_OK);
        fixture_sql(&f, "%s", lies[i]);
        sqlite3_close(f.db);
        struct outcome outcome = report("LC_ALL=C.UTF-8", "advise lies.db --json");
        // What has no moment that counts is refused, with one line.
        const char *newline = strchr(outcome.err, '\n');
        if (outcome.status > 2 || (outcome.status < 2) != !newline || (newline && newline[1]))
            fail_msg("%s: %d: %s", lies[i], outcome.status, outcome.err);
        outcome_release(&outcome);
    }
}

/* --- Against dry re-runs -------------------------------------------------------------------------
 */

static int64_t ask_number(const char *path, const char *sql)
{
    sqlite3 *db;
    sqlite3_stmt *statement = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &statement, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    int64_t number = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    sqlite3_close(db);
    return number;
}

static bool record(const char *path, const char *options, const char *more)
{
    char command[LONG_COMMAND];
    print_to(command, sizeof command,
             "'%s/upipe-train' --device dry --steps 1 --no-admission --trace %s %s %s >train.txt "
             "2>&1",
             UP_TEST_BUILD, path, options, more);
    return system(command) == 0;
}

struct error_of {
    double worst;
    int lines, same_place, same_owner;
};

// Each technique by itself, against the ladder of the run whose config is still there.
static void compare_ladders(const json_t *exact, const json_t *modelled, const char *options,
                            double most, struct error_of *of)
{
    size_t i;
    const json_t *line;
    json_array_foreach(json_object_get(modelled, "ladder"), i, line)
    {
        const json_t *right = find(exact, "ladder", text(line, "technique"));
        if (!right) continue; // on already
        assert_true(json_is_true(json_object_get(right, "exact")));
        double error = (double)whole(line, "peak_bytes") / (double)whole(right, "peak_bytes") - 1;
        print_message("  %-16s %9.1f MiB modelled, %9.1f exact, %+5.1f%%\n",
                      text(line, "technique"), (double)whole(line, "peak_bytes") / 0x1p20,
                      (double)whole(right, "peak_bytes") / 0x1p20, 100 * error);
        if (!(fabs(error) <= most))
            fail_msg("%s: %s is %.1f%% off", options, text(line, "technique"), 100 * error);
        of->worst = fmax(of->worst, fabs(error));
        of->lines++;
        of->same_place += !strcmp(text(line, "phase"), text(right, "phase"));
        of->same_owner += !strcmp(text(line, "owner"), text(right, "owner"));
    }
}

// One after the other, against runs with the very options.
static void compare_path(const json_t *modelled, const char *options, double most,
                         struct error_of *of)
{
    size_t i;
    const json_t *line;
    json_array_foreach(json_object_get(modelled, "path"), i, line)
    {
        assert_true(record("right.db", options, text(line, "all_options")));
        int64_t right = ask_number("right.db", "SELECT max(peak_bytes) FROM step");
        double error = (double)whole(line, "peak_bytes") / (double)right - 1;
        print_message("  + %-14s %9.1f MiB modelled, %9.1f exact, %+5.1f%%\n",
                      text(line, "technique"), (double)whole(line, "peak_bytes") / 0x1p20,
                      (double)right / 0x1p20, 100 * error);
        if (!(fabs(error) <= most))
            fail_msg("%s %s: %.1f%% off", options, text(line, "all_options"), 100 * error);
        of->worst = fmax(of->worst, fabs(error));
        of->lines++;
    }
}

/* Honestly reachable, on traces with names and categories: 11% of each by itself, 15% of many
 * together. A block's activations are taken as all alive at once, where upipe's own checkpointing
 * frees the MLP's before attention's are made. */
static void test_against_dry_runs(void **state)
{
    (void)state;
    static const char *const runs[] = {
        "--as cpu --model tiny --seq 2K",
        "--as cpu --model tiny --seq 2K --ranks 4",
        "--as cpu --model tiny --seq 2K --ranks 4 --cp 4 --fsdp on --checkpoint block",
        "--as cuda --model llama3.2-1b --seq 64K --ranks 8",
        "--as cuda --model llama3-8b --layers 8 --seq 512K",
        ("--as cuda --model llama3-8b --layers 8 --seq 512K --ranks 8 --cp 8 --fsdp on "
         "--checkpoint "
         "block"),
    };
    struct error_of ladder = {0}, path = {0};
    int step = takes_few() ? 4 : 1;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i += (size_t)step) {
        assert_true(record("run.db", runs[i], ""));
        json_t *exact = ask("advise run.db --json");
        assert_int_equal(system("cp run.db foreign.db"), 0);
        struct fixture f;
        assert_int_equal(sqlite3_open("foreign.db", &f.db), SQLITE_OK);
        fixture_sql(&f, "DELETE FROM meta WHERE key IN ('config', 'config_hash');"
                        "DELETE FROM rank; DELETE FROM device_alloc");
        sqlite3_close(f.db);
        json_t *modelled = ask("advise foreign.db --json");
        print_message("%s\n", runs[i]);
        assert_int_equal(whole(json_object_get(modelled, "forecast"), "peak_bytes"),
                         whole(json_object_get(exact, "forecast"), "peak_bytes"));
        compare_ladders(exact, modelled, runs[i], 0.11, &ladder);
        compare_path(modelled, runs[i], 0.15, &path);
        json_decref(exact);
        json_decref(modelled);
    }
    print_message("by itself: %d, at most %.1f%% off, in the same phase %d, dominated by the same "
                  "%d; together: %d, at most %.1f%%\n",
                  ladder.lines, 100 * ladder.worst, ladder.same_place, ladder.same_owner,
                  path.lines, 100 * path.worst);
    assert_true(ladder.lines >= 12);
    assert_true(ladder.same_owner * 10 >= ladder.lines * 9);
}

// A config whose hash this upipe does not make: the lifetimes speak, unless a length is asked for.
static void test_another_hash(void **state)
{
    (void)state;
    struct fixture f;
    assert_true(record("run.db", "--as cpu --model tiny --seq 512", ""));
    assert_int_equal(sqlite3_open("run.db", &f.db), SQLITE_OK);
    fixture_sql(&f, "UPDATE meta SET value = '0123456789abcdef' WHERE key = 'config_hash';"
                    "UPDATE rank SET capacity_bytes = NULL");
    sqlite3_close(f.db);
    json_t *root = ask("advise run.db --json");
    assert_true(json_is_false(json_object_get(find(root, "ladder", "checkpoint"), "exact")));
    assert_true(json_is_string(json_object_get(find(root, "ladder", "checkpoint"), "assumption")));
    json_decref(root);
    root = ask("advise run.db --seq 1K --fit 1048576GiB --json");
    assert_true(json_is_false(json_object_get(find(root, "ladder", "checkpoint"), "exact")));
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_by_hand, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_path_by_hand, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_layers_in_ranges, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_not_guessed, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_nothing_known, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_without_shapes, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_ends_in_forward, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_fit, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_fit_can_be_typed, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_text, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_lies, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_against_dry_runs, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_another_hash, folder_setup, folder_teardown),
    };
    return cmocka_run_group_tests_name("modelled", tests, NULL, NULL);
}
