/* Runs held against each other: diff, check and history, on runs made by hand whose every byte is
 * known. */
#include "base/base.h"
#include "tests/report/run.h"

#include <jansson.h>
#include <math.h>

enum { MIB = 1 << 20 };

/* A run of one block. Zero is: none of it. */
struct made {
    int64_t weights, mlp, loss, host; // bytes
    int64_t step_ms;
    const char *config, *hash;
    int ranks;           // 0 is 1
    int64_t rank1_extra; // bytes more of the last rank's MLP
    const char *sql;     // what else is done to it
};

static void make_rank(struct fixture *f, const struct made *made, int64_t rank)
{
    int64_t mlp = made->mlp + (rank ? made->rank1_extra : 0);
    *f = (struct fixture){.db = f->db, .step = -1, .phase = "init", .rank = rank};
    fixture_alloc(
        f, (struct fixture_tensor){
               .name = "embed", .category = "parameter", .layer = -1, .bytes = made->weights});
    if (made->host)
        fixture_alloc(f, (struct fixture_tensor){.name = "layers.0.x",
                                                 .category = "checkpoint",
                                                 .space = "host",
                                                 .layer = 0,
                                                 .bytes = made->host});
    fixture_step_begin(f, 0);
    f->phase = "forward";
    fixture_alloc(
        f, (struct fixture_tensor){
               .name = "layers.0.mlp.gate", .category = "mlp", .layer = 0, .bytes = mlp / 2});
    fixture_alloc(
        f, (struct fixture_tensor){
               .name = "layers.1.mlp.gate", .category = "mlp", .layer = 1, .bytes = mlp - mlp / 2});
    fixture_alloc(f,
                  (struct fixture_tensor){
                      .name = "loss.logits", .category = "loss", .layer = -1, .bytes = made->loss});
    fixture_step_end(f, 1, 1024, made->weights + mlp + made->loss, f->seq, -1);
    fixture_sql(f, "UPDATE step SET end_ns = begin_ns + %lld WHERE rank = %lld",
                (long long)made->step_ms * 1000000, (long long)rank);
}

static void make(const char *path, struct made made)
{
    struct fixture f;
    char ranks[16];
    int count = made.ranks ? made.ranks : 1;
    snprintf(ranks, sizeof ranks, "%d", count);
    fixture_open(&f, path);
    fixture_describe(&f);
    fixture_meta(&f, "ranks", ranks);
    if (made.config) fixture_meta(&f, "config", made.config);
    if (made.hash) fixture_meta(&f, "config_hash", made.hash);
    for (int rank = 0; rank < count; rank++) make_rank(&f, &made, rank);
    if (made.sql) fixture_sql(&f, made.sql, 0);
    fixture_close(&f);
}

// Of 100 MiB in all, 64 of host memory, and a second a step.
static struct made usual(void)
{
    return (struct made){
        .weights = 40 * MIB, .mlp = 40 * MIB, .loss = 20 * MIB, .host = 64 * MIB, .step_ms = 1000};
}

static int enter(void **state)
{
    *state = folder_enter();
    make("base.db", usual());
    return 0;
}

// The row of `table` whose `key` is `value`; NULL where there is none.
static json_t *row_of(const json_t *root, const char *table, const char *key, const char *value)
{
    size_t index;
    json_t *row;
    json_array_foreach(json_object_get(root, table), index, row)
    {
        const char *text = json_string_value(json_object_get(row, key));
        if (text && !strcmp(text, value)) return row;
    }
    return NULL;
}

static int64_t whole(const json_t *row, const char *key)
{
    if (!json_is_integer(json_object_get(row, key))) fail_msg("%s is no whole number", key);
    return json_integer_value(json_object_get(row, key));
}

// The notes of a report, one after the other; to be freed.
static char *notes_of(const char *words)
{
    json_t *root = json_of(words, 0), *note;
    size_t index;
    char *text = calloc(1, 1 << 14);
    json_array_foreach(json_object_get(root, "notes"), index, note)
        strcat(strcat(text, json_string_value(note)), "\n");
    json_decref(root);
    return text;
}

/* --- check -------------------------------------------------------------------------------------
 */

// The verdict on `name`, "" where it has no line; of new.db, with these options.
static void expect_verdict(const char *options, int status, const char *name, const char *verdict)
{
    char words[256];
    snprintf(words, sizeof words, "check new.db --baseline base.db --json %s", options);
    json_t *root = json_of(words, status);
    const char *found =
        json_string_value(json_object_get(row_of(root, "checks", "name", name), "verdict"));
    if (strcmp(found ? found : "", verdict) != 0)
        fail_msg("%s: %s is %s, expected %s", words, name, found ? found : "not there", verdict);
    json_decref(root);
}

static void test_check_peak(void **state)
{
    (void)state;
    struct made new = usual();
    make("new.db", new);
    expect_verdict("", 0, "peak", "PASS");
    new.loss = usual().loss + 104 * MIB / 100; // 101.04 of 100: a little beyond 1%
    make("new.db", new);
    expect_verdict("", 1, "peak", "REGRESSION");
    expect_verdict("", 1, "loss", "REGRESSION");
    expect_verdict("", 1, "mlp", "PASS");
    expect_verdict("--peak 2%", 0, "peak", "PASS");
    expect_verdict("--peak 1.05", 0, "peak", "PASS");
    expect_verdict("--peak off", 0, "peak", "PASS");
    expect_verdict("--peak 0", 1, "peak", "REGRESSION");
    new.loss = usual().loss + MIB; // 1% sharp is within
    make("new.db", new);
    expect_verdict("", 0, "peak", "PASS");
    new.loss = usual().loss - 5 * MIB;
    make("new.db", new);
    expect_verdict("", 0, "peak", "WIN");
    expect_verdict("", 0, "loss", "WIN");
}

// What one category takes and another gives back is not the peak's business, and is told.
static void test_check_categories_tell(void **state)
{
    (void)state;
    struct made new = usual();
    new.loss -= 10 * MIB;
    new.mlp += 10 * MIB;
    make("new.db", new);
    expect_verdict("", 0, "mlp", "PASS");
    json_t *root = json_of("check new.db --baseline base.db --json", 0);
    json_t *row = row_of(root, "checks", "category", "mlp");
    assert_int_equal(whole(row, "baseline"), 40 * MIB);
    assert_int_equal(whole(row, "value"), 50 * MIB);
    assert_false(json_is_true(json_object_get(row, "gated")));
    json_decref(root);
}

static void test_check_host(void **state)
{
    (void)state;
    struct made new = usual();
    new.host *= 2;
    make("new.db", new);
    expect_verdict("", 1, "host memory", "REGRESSION");
    expect_verdict("--host 100%", 0, "host memory", "PASS");
    expect_verdict("--host off", 0, "host memory", "PASS");
    expect_verdict("--peak 200%", 0, "host memory", "PASS");
    new.host = 0;
    make("new.db", new);
    expect_verdict("", 0, "host memory", "WIN");
}

static void config_with_machine(char out[256], const char *device, const char *machine,
                                int host_bytes, double launch_s)
{
    snprintf(out, 256,
             "{\"options\": {\"device\": \"%s\", \"machine\": \"%s\"},"
             " \"machine\": {\"host_bytes\": %d, \"launch_s\": %g}}",
             device, machine, host_bytes, launch_s);
}

static void test_check_config(void **state)
{
    (void)state;
    struct made new = usual();
    char many[8192], *notes;
    char configs[2][256];
    // What was free of the host's memory when a run began is no configuration of it.
    for (int dry = 0; dry < 2; dry++) {
        for (int i = 0; i < 2; i++) {
            config_with_machine(configs[i], dry ? "dry" : "cpu", "h200", i + 1, 1e-6);
            new.config = configs[i];
            make(i ? "new.db" : "old.db", new);
        }
        notes = notes_of("check new.db --baseline old.db --json");
        assert_int_equal(strstr(notes, "machine.host_bytes 2 B (baseline 1 B)") != NULL, dry);
        free(notes);
    }
    // A machine's name says it all.
    config_with_machine(configs[0], "dry", "mine.json", 7, 2e-6);
    new.config = configs[0];
    make("new.db", new);
    notes = notes_of("check new.db --baseline old.db --json");
    assert_non_null(strstr(notes, "machine mine.json (baseline h200)\n"));
    free(notes);
    // What is too much is counted, not cut.
    strcpy(many, "{\"options\": {");
    for (int i = 0; i < 100; i++)
        sprintf(many + strlen(many), "%s\"option-%d\": \"%d\"", i ? ", " : "", i, i);
    strcat(many, "}}");
    new.config = many;
    make("new.db", new);
    notes = notes_of("check new.db --baseline base.db --json");
    const char *last = strstr(notes, " (baseline not given), and ");
    assert_non_null(last);
    while (last[-1] != '-') last--;
    int shown, more;
    assert_int_equal(sscanf(last, "%*d %d (baseline not given), and %d more", &shown, &more), 2);
    assert_true(shown + 1 + more >= 100 && more > 0);
    free(notes);
}

static void test_check_time(void **state)
{
    (void)state;
    struct made new = usual();
    new.step_ms = 1200;
    make("new.db", new);
    expect_verdict("", 0, "step time", "");
    expect_verdict("--time 10%", 1, "step time", "REGRESSION");
    expect_verdict("--time 25", 0, "step time", "PASS");
    new.step_ms = 500;
    make("new.db", new);
    expect_verdict("--time 10%", 0, "step time", "WIN");
    new.sql = "UPDATE step SET end_ns = NULL";
    make("new.db", new);
    expect_verdict("--time 10%", 2, "step time", "MISSING");
    expect_verdict("", 0, "peak", "PASS"); // found from the rows
}

static void test_check_ranks(void **state)
{
    (void)state;
    struct made base = usual(), new;
    base.ranks = 2;
    base.rank1_extra = -20 * MIB;
    make("base.db", base);
    new = base;
    make("new.db", new);
    expect_verdict("", 0, "peak of rank 1", "PASS");
    new.rank1_extra = -10 * MIB; // rank 0 is still the highest
    make("new.db", new);
    expect_verdict("", 1, "peak", "PASS");
    expect_verdict("", 1, "peak of rank 1", "REGRESSION");
    new.sql = "DELETE FROM step WHERE rank = 1; DELETE FROM tensor WHERE rank = 1";
    make("new.db", new);
    expect_verdict("", 2, "peak of rank 1", "MISSING");
    // A rank of which no step ended is told of by its rows.
    const char *unended = "UPDATE step SET end_ns = NULL, peak_bytes = NULL, peak_seq = NULL"
                          " WHERE rank = 1";
    new.sql = base.sql = unended;
    make("base.db", base);
    make("new.db", new);
    expect_verdict("", 1, "peak of rank 1", "REGRESSION");
    make("new.db", base);
    expect_verdict("", 0, "peak of rank 1", "PASS");
    base.sql = NULL;
    make("base.db", base);
    // Steps without rows count, too.
    new = base;
    new.sql = "INSERT INTO step (step, rank, begin_ns, end_ns, peak_bytes) VALUES"
              " (9, 1, 1, 2, 94371840)"; // 90 MiB
    make("new.db", new);
    expect_verdict("", 1, "peak", "PASS");
    expect_verdict("", 1, "peak of rank 1", "REGRESSION");
    new.rank1_extra = -10 * MIB;
    // A dry run simulates the first rank alone, and is compared by that.
    new.sql = "DELETE FROM step WHERE rank = 1; DELETE FROM tensor WHERE rank = 1;"
              "UPDATE meta SET value = 'dry' WHERE key = 'device'";
    make("new.db", new);
    expect_verdict("", 0, "peak of rank 1", "");
    expect_verdict("", 0, "peak", "PASS");
}

static void test_check_other_config(void **state)
{
    (void)state;
    struct made new = usual();
    new.config = "{\"options\": {\"tile-mlp\": \"512\", \"upipe\": \"off\"}}";
    new.hash = "1111111111111111";
    new.mlp += 20 * MIB;
    make("new.db", new);
    struct outcome outcome = report("", "check new.db --baseline base.db");
    expect_status(&outcome, 1);
    assert_non_null(strstr(outcome.out, "configured otherwise than the baseline"));
    assert_non_null(strstr(outcome.out, "tile-mlp 512"));
    assert_non_null(strstr(outcome.out, "regression"));
    outcome_release(&outcome);
}

static void test_check_cannot_tell(void **state)
{
    (void)state;
    struct made new = usual();
    new.sql = "UPDATE meta SET value = '0' WHERE key = 'complete'";
    make("new.db", new);
    expect_refusal("check new.db --baseline base.db", "new.db: INCOMPLETE");
    expect_refusal("check base.db --baseline new.db", "new.db: INCOMPLETE");
    new.sql = "DELETE FROM tensor; DELETE FROM step";
    make("new.db", new);
    expect_refusal("check new.db --baseline base.db",
                   "new.db: expected a run with recorded tensors");
    new.sql = "UPDATE meta SET value = 'failed' WHERE key = 'outcome'";
    make("new.db", new);
    expect_refusal("check new.db --baseline base.db", "its outcome is failed");
    expect_refusal("check base.db --baseline new.db", "expected a baseline that got to its end");
    expect_refusal("check base.db", "--baseline");
    expect_refusal("check --baseline base.db", "expected one run.db");
    expect_refusal("check base.db --baseline none.db", "none.db");
    expect_refusal("check base.db --baseline base.db --peak -1%", "--peak");
    expect_refusal("check base.db --baseline base.db --time 10%%", "--time");
}

static void test_check_out_of_memory(void **state)
{
    (void)state;
    struct made new = usual();
    new.sql =
        "UPDATE meta SET value = 'out of memory' WHERE key = 'outcome';"
        "INSERT INTO diagnostic VALUES (1, 0, 1, 'out_of_memory', 'loss.logits needs 20 MiB')";
    make("new.db", new);
    struct outcome outcome = report("", "check new.db --baseline base.db");
    expect_status(&outcome, 1);
    assert_non_null(strstr(outcome.out, "REGRESSION: new.db ran out of memory"));
    assert_non_null(strstr(outcome.out, "loss.logits needs 20 MiB"));
    outcome_release(&outcome);
}

/* --- diff --------------------------------------------------------------------------------------
 */

static void test_diff(void **state)
{
    (void)state;
    struct made new = usual();
    new.config = "{\"options\": {\"seq\": \"2048\", \"trace\": \"a.db\", \"fsdp\": \"on\"},"
                 " \"config\": {\"seq\": 2048, \"model\": {\"layers\": 2, \"ff\": 3}}}";
    make("base.db", new);
    new.config = "{\"options\": {\"seq\": \"4096\", \"trace\": \"b.db\", \"fsdp\": \"on\"},"
                 " \"config\": {\"seq\": 4096, \"model\": {\"layers\": 2, \"ff\": 5}}}";
    new.mlp *= 2;
    new.loss = 0;
    new.step_ms = 1500;
    make("new.db", new);
    json_t *root = json_of("diff base.db new.db --json", 0);
    assert_int_equal(json_array_size(json_object_get(root, "config")), 2);
    json_t *seq = row_of(root, "config", "option", "seq");
    assert_string_equal(json_string_value(json_object_get(seq, "a")), "2048");
    assert_string_equal(json_string_value(json_object_get(seq, "b")), "4096");
    assert_non_null(row_of(root, "config", "option", "model.ff"));
    json_t *peak = row_of(root, "figures", "name", "peak");
    assert_int_equal(whole(peak, "a"), 100 * MIB);
    assert_int_equal(whole(peak, "b"), 120 * MIB);
    assert_int_equal(whole(peak, "change"), 20 * MIB);
    assert_true(fabs(json_real_value(json_object_get(peak, "relative")) - 0.2) < 1e-12);
    json_t *time = row_of(root, "figures", "name", "step time");
    assert_true(fabs(json_real_value(json_object_get(time, "change")) - 0.5) < 1e-9);
    assert_int_equal(whole(row_of(root, "categories", "name", "mlp"), "change"), 40 * MIB);
    assert_int_equal(whole(row_of(root, "categories", "name", "loss"), "change"), -20 * MIB);
    assert_int_equal(whole(row_of(root, "categories", "name", "parameter"), "change"), 0);
    // Both layers alike are one line; a kind that did not change has none.
    json_t *layers = json_object_get(root, "layers");
    assert_int_equal(json_array_size(layers), 2);
    assert_int_equal(whole(row_of(root, "layers", "name", "layers 0-1, each"), "change"), 20 * MIB);
    assert_int_equal(whole(row_of(root, "layers", "name", "outside layers"), "change"), -20 * MIB);
    const char *first = json_string_value(
        json_object_get(json_array_get(json_object_get(root, "kinds"), 0), "name"));
    assert_string_equal(first, "layers.*.mlp.gate");
    assert_null(row_of(root, "kinds", "name", "embed"));
    json_decref(root);
}

static void test_diff_text(void **state)
{
    (void)state;
    struct made new = usual();
    new.config = "{\"checkpoint\": \"block\", \"tile-mlp\": 512, \"upipe\": \"off\", \"cp\": 1}";
    new.mlp /= 4;
    new.host = 0;
    new.step_ms = 1500;
    make("new.db", new);
    struct outcome outcome = report("LC_ALL=C.UTF-8", "diff base.db new.db");
    expect_status(&outcome, 0);
    golden_check("diff", outcome.out);
    outcome_release(&outcome);
    outcome = report("LC_ALL=C.UTF-8", "check new.db --baseline base.db --time 10%");
    expect_status(&outcome, 1);
    golden_check("check", outcome.out);
    outcome_release(&outcome);
}

// As with --trace-steps beyond the last: how high a step was is known, and not of what. Its peak is
// no win over one that was recorded.
static void test_steps_without_rows(void **state)
{
    (void)state;
    struct made new = usual();
    new.sql = "DELETE FROM tensor WHERE step IS NOT NULL; UPDATE step SET peak_seq = NULL";
    make("new.db", new);
    expect_refusal("check new.db --baseline base.db", "new.db: its highest step left no rows");
    expect_refusal("check base.db --baseline new.db", "new.db: its highest step left no rows");
    json_t *root = json_of("new.db --json", 0);
    const json_t *peak = json_object_get(root, "peak");
    assert_int_equal(json_integer_value(json_object_get(peak, "peak_bytes")), 40 * MIB);
    assert_int_equal(json_integer_value(json_object_get(peak, "unkept_bytes")), 100 * MIB);
    json_decref(root);
    struct outcome outcome = report("", "new.db");
    assert_non_null(strstr(outcome.out, "a step whose rows were not kept reached 100.0 MiB"));
    outcome_release(&outcome);
    outcome = report("", "diff base.db new.db");
    assert_non_null(strstr(outcome.out, "the rows of B's highest step were not kept"));
    outcome_release(&outcome);
    root = json_of("history new.db --json", 0);
    const json_t *line = json_array_get(json_object_get(root, "runs"), 0);
    assert_int_equal(json_integer_value(json_object_get(line, "peak_bytes")), 100 * MIB);
    json_decref(root);
}

// Of a program that is not upipe's it is not known what it was told; nobody pretends to.
static void test_unknown_config(void **state)
{
    (void)state;
    struct made made = usual();
    made.sql = "DELETE FROM meta WHERE key IN ('config', 'config_hash', 'model')";
    make("new.db", made);
    char *notes = notes_of("diff base.db new.db --json");
    assert_string_equal(notes, "how B was configured was not recorded\n");
    free(notes);
    notes = notes_of("diff new.db new.db --json");
    assert_string_equal(notes, "how A and B were configured was not recorded\n");
    free(notes);
    notes = notes_of("check new.db --baseline base.db --json");
    assert_string_equal(notes, "how this run was configured was not recorded\n");
    free(notes);
    json_t *root = json_of("check new.db --baseline new.db --json", 0);
    assert_true(json_is_null(json_object_get(root, "same_config")));
    json_decref(root);
    root = json_of("history new.db --json", 0);
    const json_t *run = json_array_get(json_object_get(root, "runs"), 0);
    assert_true(json_is_null(json_object_get(run, "techniques")));
    assert_true(json_is_null(json_object_get(run, "model")));
    assert_int_equal(whole(run, "accum"), 1);
    json_decref(root);
}

// As people write them, and without what neither run was given.
static void test_config_values(void **state)
{
    (void)state;
    struct made made = usual();
    made.config = "{\"options\": {\"seq\": \"2048\", \"memory-limit\": \"0\","
                  " \"trace-steps\": \"-1:-1\", \"machine\": null, \"steps\": \"0\","
                  " \"chaos\": \"0\", \"nccl-buffers\": \"1048577\"}}";
    make("a.db", made);
    made.config = "{\"options\": {\"seq\": \"524288\", \"memory-limit\": \"67108864\","
                  " \"trace-steps\": \"0:1\", \"steps\": \"10\", \"nccl-buffers\": \"1048576\"}}";
    make("b.db", made);
    struct outcome outcome = report("", "diff a.db b.db");
    expect_status(&outcome, 0);
    static const char *const lines[] = {"  seq                       2K            512K\n",
                                        "  memory-limit              not given     64.0 MiB\n",
                                        "  trace-steps               not given     0:1\n",
                                        "  steps                     0             10\n",
                                        // Alike when rounded.
                                        "  nccl-buffers              1048577       1048576\n"};
    for (int i = 0; i < UP_COUNT(lines); i++)
        if (!strstr(outcome.out, lines[i])) fail_msg("%s is not in: %s", lines[i], outcome.out);
    assert_null(strstr(outcome.out, "machine"));
    assert_null(strstr(outcome.out, "chaos"));
    outcome_release(&outcome);
    char *notes = notes_of("check b.db --baseline a.db --json");
    assert_non_null(strstr(notes, "memory-limit 64.0 MiB (baseline not given)"));
    free(notes);
    // Reals are told with as few digits as tell them.
    made.config = "{\"options\": {\"lr\": \"0.0030000000000000001\", \"beta2\": \"0.95\"}}";
    make("a.db", made);
    made.config = "{\"options\": {\"lr\": \"0.30000000000000004\", \"beta2\": \"0.9\"}}";
    make("b.db", made);
    outcome = report("", "diff a.db b.db");
    expect_status(&outcome, 0);
    assert_non_null(strstr(outcome.out, " 0.003 "));
    assert_non_null(strstr(outcome.out, " 0.30000000000000004\n"));
    outcome_release(&outcome);
    // A figure of a machine that a trace from before it was recorded lacks is not known there.
    made.config = "{\"options\": {\"seq\": \"2048\"}, \"machine\": {\"launch_s\": 1e-6}}";
    make("a.db", made);
    made.config = "{\"options\": {\"seq\": \"2048\"}, \"machine\": {\"launch_s\": 1e-6,"
                  " \"attention_forward_64_flops_per_s\": 0.0, \"node_devices\": 0}}";
    make("b.db", made);
    outcome = report("", "diff a.db b.db");
    expect_status(&outcome, 0);
    assert_non_null(strstr(outcome.out, "both were configured alike"));
    outcome_release(&outcome);
}

// What was measured of some layers is not taken for the model's.
static void test_active_layers(void **state)
{
    (void)state;
    struct made made = usual();
    made.config =
        "{\"options\": {\"active-layers\": \"1\", \"fsdp\": \"on\", \"tile-mlp\": \"4096\"}}";
    make("some.db", made);
    made.config = "{\"options\": {\"active-layers\": \"0\", \"fsdp\": \"on\"}}";
    make("all.db", made);
    struct outcome outcome = report("", "some.db");
    expect_status(&outcome, 0);
    assert_non_null(strstr(outcome.out, "  options     active-layers 1, fsdp on, tile-mlp 4K\n"));
    outcome_release(&outcome);
    outcome = report("", "all.db");
    assert_non_null(strstr(outcome.out, "  options     fsdp on\n"));
    outcome_release(&outcome);
    outcome = report("", "history some.db all.db");
    assert_non_null(strstr(outcome.out, " active1 fsdp tile-mlp "));
    assert_non_null(strstr(outcome.out, "  fsdp "));
    outcome_release(&outcome);
}

static void test_diff_states(void **state)
{
    (void)state;
    struct made new = usual();
    new.sql = "UPDATE meta SET value = '0' WHERE key = 'complete'";
    make("new.db", new);
    struct outcome outcome = report("", "diff base.db new.db");
    expect_status(&outcome, 0);
    assert_non_null(strstr(outcome.out, "B is INCOMPLETE"));
    assert_non_null(strstr(outcome.out, "both were configured alike"));
    outcome_release(&outcome);
    new.sql = "DELETE FROM tensor; DELETE FROM step; DELETE FROM meta";
    make("new.db", new);
    outcome = report("", "diff new.db base.db");
    expect_status(&outcome, 0);
    assert_non_null(strstr(outcome.out, "nothing was recorded in A"));
    outcome_release(&outcome);
    expect_refusal("diff base.db", "expected two run.db");
    expect_refusal("diff base.db none.db", "none.db");
}

static void expect_keys(const char *words, int status, const char *table, const char *const *keys)
{
    json_t *root = json_of(words, status), *row;
    size_t index;
    json_array_foreach(json_object_get(root, table), index, row)
    {
        for (int i = 0; keys[i]; i++)
            if (!json_object_get(row, keys[i]))
                fail_msg("%s: %s: row %zu has no %s", words, table, index, keys[i]);
    }
    assert_true(index > 0);
    json_decref(root);
}

// What is not known is null, and not left out.
static void test_every_row_has_its_fields(void **state)
{
    (void)state;
    static const char *const of_diff[] = {"name", "unit", "a", "b", "change", "relative", NULL};
    static const char *const of_check[] = {"verdict", "name",     "unit",  "baseline",
                                           "value",   "relative", "gated", NULL};
    struct made base = usual(), new = usual();
    new.sql = "DELETE FROM tensor; DELETE FROM step; DELETE FROM meta";
    make("none.db", new);
    expect_keys("diff base.db base.db --json", 0, "figures", of_diff);
    expect_keys("diff base.db none.db --json", 0, "figures", of_diff);
    expect_keys("diff none.db base.db --json", 0, "figures", of_diff);
    base.ranks = 2;
    make("base.db", base);
    base.sql = "DELETE FROM step WHERE rank = 1; DELETE FROM tensor WHERE rank = 1";
    make("new.db", base);
    expect_keys("check new.db --baseline base.db --json", 2, "checks", of_check);
}

// Numbers that no run has: whatever is said, it is said in order.
static void test_malformed(void **state)
{
    (void)state;
    static const char *const lies[] = {
        "UPDATE tensor SET bytes = 9223372036854775807, reserved_bytes = -9223372036854775807",
        "UPDATE tensor SET bytes = -9223372036854775807 - 1, layer = 9223372036854775807",
        "UPDATE step SET peak_bytes = 9223372036854775807, begin_ns = -9223372036854775807",
        "UPDATE step SET peak_bytes = -9223372036854775807 - 1, tokens = 9223372036854775807",
        "UPDATE step SET peak_bytes = 'much', end_ns = 'late', peak_seq = 1.5",
        "UPDATE meta SET value = NULL WHERE key IN ('config', 'config_hash', 'ranks', 'started')",
        ("UPDATE meta SET value = '{\"options\": [1, {}], \"a\": {\"b\": {\"c\": {\"d\": {\"e\":"
         " {\"f\": {\"g\": {\"h\": {\"i\": 1}}}}}}}}}' WHERE key = 'config'"),
        "UPDATE meta SET value = '9223372036854775807' WHERE key IN ('ranks', 'seq_len', 'cp')",
        "UPDATE tensor SET name = '', category = '', shape = '', dtype = '', phase = ''",
    };
    for (int i = 0; i < UP_COUNT(lies); i += takes_few() ? 4 : 1) {
        struct made new = usual();
        new.sql = lies[i];
        make("new.db", new);
        static const char *const commands[] = {"diff base.db new.db",
                                               "diff new.db base.db --json",
                                               "check new.db --baseline base.db",
                                               "check base.db --baseline new.db --time 1% --json",
                                               "history new.db base.db",
                                               "history new.db --csv",
                                               "score new.db base.db",
                                               "score base.db new.db"};
        for (int c = 0; c < UP_COUNT(commands); c++) {
            struct outcome outcome = report("LC_ALL=C.UTF-8", commands[c]);
            if (outcome.status < 0 || outcome.status > 2 || count_lines(outcome.err) > 1)
                fail_msg("%s; %s: status %d, %s", lies[i], commands[c], outcome.status,
                         outcome.err);
            outcome_release(&outcome);
        }
    }
}

/* --- history -----------------------------------------------------------------------------------
 */

// The runs in the order in which they come, by the first letter of their files.
static void expect_order(const char *options, const char *order)
{
    char words[256], found[8] = "";
    size_t index;
    json_t *row;
    snprintf(words, sizeof words, "history c.db a.db b.db --json %s", options);
    json_t *root = json_of(words, 0);
    json_array_foreach(json_object_get(root, "runs"), index, row) found[index] =
        *json_string_value(json_object_get(row, "run"));
    if (strcmp(found, order) != 0) fail_msg("%s: %s, expected %s", words, found, order);
    json_decref(root);
}

static void make_three(void)
{
    struct made a = usual(), b = usual(), c = usual();
    a.step_ms = 3000;
    a.sql = "UPDATE meta SET value = '2026-01-03T00:00:00Z' WHERE key = 'started';"
            "UPDATE meta SET value = '4096' WHERE key = 'seq_len'";
    b.loss += MIB;
    b.step_ms = 2000;
    b.sql = "UPDATE meta SET value = '2026-01-02T00:00:00Z' WHERE key = 'started';"
            "UPDATE meta SET value = 'ti,\"ny' WHERE key = 'model'";
    c.loss += 2 * MIB;
    c.sql = "UPDATE step SET end_ns = NULL; DELETE FROM meta WHERE key IN ('started', 'seq_len');"
            "UPDATE meta SET value = '0' WHERE key = 'complete'";
    make("a.db", a);
    make("b.db", b);
    make("c.db", c);
}

static void test_history_order(void **state)
{
    (void)state;
    make_three();
    expect_order("", "bac"); // without a beginning: last
    expect_order("--reverse", "abc");
    expect_order("--sort run", "abc");
    expect_order("--sort peak", "abc");
    expect_order("--sort peak --reverse", "cba");
    expect_order("--sort step", "bac");
    expect_order("--sort step --reverse", "abc");
    expect_order("--sort seq", "bac");
    expect_order("--sort ranks", "cab"); // alike: as given
    expect_order("--sort outcome", "cab");
}

static void test_history_forms(void **state)
{
    (void)state;
    make_three();
    struct outcome outcome = report("LC_ALL=C.UTF-8", "history a.db b.db c.db");
    expect_status(&outcome, 0);
    golden_check("history", outcome.out);
    outcome_release(&outcome);
    outcome = report("LC_ALL=C.UTF-8", "history a.db b.db c.db --csv");
    expect_status(&outcome, 0);
    assert_int_equal(count_lines(outcome.out), 4);
    assert_true(!strncmp(outcome.out, "run,started,model,", strlen("run,started,model,")));
    assert_non_null(strstr(outcome.out, "b.db,2026-01-02T00:00:00Z,\"ti,\"\"ny\",cpu,fp32,1,1,1,"));
    assert_non_null(strstr(outcome.out, ",105906176,2,512,1,ok,")); // 101 MiB, 2 s, 1024 / 2 s
    outcome_release(&outcome);
    expect_refusal("history a.db --csv --json", "--csv");
}

// Runs in folders of their own have the same name each.
static void test_history_same_names(void **state)
{
    (void)state;
    make_three();
    assert_int_equal(system("mkdir -p lean plain/x also/x && cp a.db lean/run.db && "
                            "cp b.db plain/run.db && cp a.db plain/x/2.db && cp b.db also/x/2.db"),
                     0);
    struct outcome outcome =
        report("", "history lean/run.db ./plain/run.db c.db plain/x/2.db also/x/2.db");
    expect_status(&outcome, 0);
    assert_non_null(strstr(outcome.out, "\n  lean/run.db "));
    assert_non_null(strstr(outcome.out, "\n  plain/run.db "));
    assert_non_null(strstr(outcome.out, "\n  c.db "));
    assert_non_null(strstr(outcome.out, "\n  plain/x/2.db "));
    assert_non_null(strstr(outcome.out, "\n  also/x/2.db "));
    outcome_release(&outcome);
}

static void test_history_with_others(void **state)
{
    (void)state;
    make_three();
    assert_int_equal(system("echo no database > notes.txt"), 0);
    struct outcome outcome = report("", "history a.db notes.txt none.db b.db");
    assert_int_equal(outcome.status, 2);
    assert_int_equal(count_lines(outcome.err), 2);
    assert_non_null(strstr(outcome.err, "notes.txt"));
    assert_non_null(strstr(outcome.err, "none.db"));
    assert_non_null(strstr(outcome.out, "a.db"));
    assert_non_null(strstr(outcome.out, "b.db"));
    outcome_release(&outcome);
    expect_refusal("history", "one or more run.db");
    expect_refusal("history notes.txt", "notes.txt");
    expect_refusal("history a.db --sort size", "--sort");
}

// More than a shell's pattern usually gives.
static void test_history_of_many(void **state)
{
    (void)state;
    make_three();
    assert_int_equal(system("for i in $(seq 60); do ln a.db run-$i.db; done"), 0);
    struct outcome outcome = report("", "history run-*.db");
    expect_status(&outcome, 0);
    assert_int_equal(count_lines(outcome.out), 61);
    outcome_release(&outcome);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, enter, folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_check_config),
        TEST(test_check_peak),
        TEST(test_check_categories_tell),
        TEST(test_check_host),
        TEST(test_check_time),
        TEST(test_check_ranks),
        TEST(test_check_other_config),
        TEST(test_check_cannot_tell),
        TEST(test_check_out_of_memory),
        TEST(test_diff),
        TEST(test_diff_text),
        TEST(test_steps_without_rows),
        TEST(test_unknown_config),
        TEST(test_config_values),
        TEST(test_active_layers),
        TEST(test_diff_states),
        TEST(test_every_row_has_its_fields),
        TEST(test_malformed),
        TEST(test_history_order),
        TEST(test_history_forms),
        TEST(test_history_same_names),
        TEST(test_history_with_others),
        TEST(test_history_of_many),
    };
    return cmocka_run_group_tests_name("compare", tests, NULL, NULL);
}
