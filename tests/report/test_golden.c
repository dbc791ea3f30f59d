/* What upipe-report prints, to the letter. Each case is a database made here, the words of a
 * command, and golden/<name>.txt. UP_UPDATE_GOLDEN=1 writes the golden files anew: read the
 * difference before you keep it. */
#include "tests/report/run.h"

#include <stdbool.h>

static void make_typical(struct fixture *f)
{
    static struct fixture_count count;
    fixture_train(f, &count);
    fixture_indexes(f);
}

// Killed in step 3, which differed from step 2 and so was being written whole.
static void make_killed(struct fixture *f)
{
    static struct fixture_count count;
    make_typical(f);
    fixture_sql(
        f, "DELETE FROM step WHERE step >= 3; UPDATE meta SET value = '0' WHERE key = 'complete';"
           "DELETE FROM meta WHERE key IN ('outcome', 'events_written', 'recorder_ns');"
           "DROP INDEX tensor_alloc; DROP INDEX range_begin");
    fixture_step_begin(f, 3);
    f->phase = "forward";
    fixture_range_begin(f, "forward", -1);
    fixture_range_begin(f, "layers.0.mlp", 0);
    fixture_matrix(f, &count, "mlp", 0, "mlp.gate", 16 * FIXTURE_TOKENS, FIXTURE_FF);
}

static void make_out_of_memory(struct fixture *f)
{
    make_killed(f);
    fixture_meta(f, "complete", "1");
    fixture_meta(f, "outcome", "out of memory");
    fixture_sql(f, "INSERT INTO diagnostic VALUES (1, 0, 5000, 'out_of_memory',"
                   " 'layers.1.mlp.gate needs 12.0 MiB; 14.0 MiB of 20.0 MiB are in use')");
}

// 2.5 s of a step: the compute stream idles in the last of an all-to-all and of a copy, and at the
// end.
static void forecast_work(struct fixture *f)
{
    int64_t begin = f->ns;
    static const struct {
        const char *table, *name, *stream, *more;
        int64_t begin_ms, end_ms;
    } rows[] = {
        {"kernel", "matmul", "compute", "5e14", 0, 1000},
        {"kernel", "attention_forward", "compute", "1e14", 1000, 1500},
        {"collective", "all_to_all", "comm", "4096", 1400, 1600},
        {"kernel", "attention_backward", "compute", "2e14", 1600, 2200},
        {"kernel", "cast", "comm", "0", 2100, 2200},
        {"copy", "layers.0.x", "copy-out", "'device', 'host', 4096", 2000, 2300},
        {"copy", "layers.1.x", "compute", "'device', 'device', 4096", 2300, 2310},
        {"kernel", "rmsnorm_forward", "compute", "0", 2310, 2320},
        {"kernel", "adamw", "compute", "0", 2320, 2400},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        fixture_sql(f, "INSERT INTO %s VALUES (NULL, 0, '%q', 0, '%q', NULL, %lld, %lld, %s)",
                    rows[i].table, rows[i].name, rows[i].stream,
                    (long long)(begin + 1000000 * rows[i].begin_ms),
                    (long long)(begin + 1000000 * rows[i].end_ms), rows[i].more);
}

// A forecast for two GPUs with memory of its own in host space and libraries on the device.
static void make_forecast(struct fixture *f)
{
    static const char *const meta[][2] = {{"device", "dry"},      {"as", "cuda"}, {"dtype", "bf16"},
                                          {"model", "llama3-8b"}, {"ranks", "2"}, {"cp", "2"}};
    fixture_describe(f);
    for (int i = 0; i < 6; i++) fixture_meta(f, meta[i][0], meta[i][1]);
    fixture_meta(f, "config",
                 "{\"options\": {\"fsdp\": \"on\", \"offload\": \"host\","
                 " \"checkpoint\": \"block\", \"tile_mlp\": 4096, \"upipe\": 8}}");
    fixture_sql(f, "UPDATE rank SET baseline_used_bytes = 1048576;"
                   "INSERT INTO usage VALUES (0, 0, 1048576, NULL), (0, 4000, 20971520, NULL);"
                   "INSERT INTO device_alloc VALUES (1, 0, 'arena', 'device', 12582912, 0, NULL),"
                   " (2, 0, 'nccl', 'device', 3145728, 0, NULL),"
                   " (3, 0, 'libcublasLt.so.12', 'device', 2097152, 0, NULL),"
                   " (4, 0, 'context', 'device', 524288, 0, NULL),"
                   " (5, 0, 'nccl', 'device', 9999999, 90000000, NULL)");
    fixture_alloc(f, (struct fixture_tensor){.name = "embed.master",
                                             .category = "optimizer",
                                             .space = "host",
                                             .layer = -1,
                                             .bytes = 1 << 20});
    fixture_alloc(f, (struct fixture_tensor){.name = "layers.0.input",
                                             .category = "checkpoint",
                                             .space = "host",
                                             .layer = 0,
                                             .bytes = 3 << 20});
    fixture_step_begin(f, 0);
    forecast_work(f);
    fixture_alloc(f, (struct fixture_tensor){.name = "embed",
                                             .category = "parameter",
                                             .dtype = "bf16",
                                             .shape = "[1024,4096]",
                                             .layer = -1,
                                             .bytes = 8 << 20,
                                             .reserved = (8 << 20) + 4096});
    fixture_step_end(f, 0, 1024, 8 << 20, f->seq, -1);
    fixture_sql(f, "UPDATE step SET loss = NULL, grad_norm = NULL, end_ns = begin_ns + 2500000000;"
                   "UPDATE meta SET value = '1' WHERE key = 'steps_planned'");
}

static void make_empty(struct fixture *f)
{
    fixture_meta(f, "model", "tiny");
}

// Names that would play with a terminal, sizes that cannot be, a category of no one's, sums that
// lie.
static void make_lying(struct fixture *f)
{
    fixture_describe(f);
    fixture_meta(f, "model", "ti\033[31mny\xff \xe2\x80\xaeynit \xc3\xa9");
    fixture_meta(f, "ranks", "many");
    fixture_meta(f, "config", "[1, 2");
    fixture_step_begin(f, 0);
    fixture_alloc(f, (struct fixture_tensor){.name = "a\nb",
                                             .category = "my own",
                                             .layer = -5,
                                             .bytes = INT64_MAX,
                                             .reserved = INT64_MIN});
    fixture_alloc(
        f,
        (struct fixture_tensor){
            .name = "negative", .category = "mlp", .layer = 1 << 20, .bytes = -1, .reserved = 1});
    fixture_alloc(f,
                  (struct fixture_tensor){.name = "text", .category = "", .layer = -1, .bytes = 7});
    fixture_sql(
        f, "UPDATE tensor SET alloc_ns = 'when', reserved_bytes = 'much' WHERE name = 'text';"
           "INSERT INTO range VALUES (1, 0, 2, 'first', 0, NULL, 'forward', 0, NULL, NULL, NULL,"
           " 'x', 1, NULL), (2, 0, 1, 'second', 0, NULL, '', 0, NULL, NULL, NULL, 'x', 2, NULL)");
    fixture_step_end(f, 1, -5, 100, f->seq, -1);
}

static const struct golden {
    const char *name;
    void (*make)(struct fixture *f);
    const char *words;
} cases[] = {
    {"typical", make_typical, "typical.db"},
    {"typical_json", make_typical, "--json typical.db"},
    {"typical_peak_step", make_typical, "peak typical.db --step 7 --limit 3"},
    {"typical_peak_step_json", make_typical, "peak typical.db --step 7 --limit 3 --json"},
    {"typical_timeline", make_typical, "timeline typical.db --rows 20"},
    {"typical_timeline_json", make_typical, "timeline typical.db --rows 3 --json"},
    {"typical_tensors", make_typical, "tensors typical.db --category mlp --layer 3 --step 2"},
    {"typical_tensors_json", make_typical, "tensors typical.db --alive-at 74 --limit 2 --json"},
    {"killed", make_killed, "killed.db"},
    {"out_of_memory", make_out_of_memory, "oom.db"},
    {"forecast", make_forecast, "forecast.db"},
    {"forecast_json", make_forecast, "forecast.db --json"},
    {"empty", make_empty, "empty.db"},
    {"empty_json", make_empty, "empty.db --json"},
    {"lying", make_lying, "lying.db"},
    {"lying_json", make_lying, "lying.db --json"},
};

// The word of a command that is a database.
static void database_of(const char *words, char out[64])
{
    const char *end = strstr(words, ".db"), *begin = end;
    while (begin > words && begin[-1] != ' ') begin--;
    snprintf(out, 64, "%.*s", (int)(end + 3 - begin), begin);
}

static void test_case(void **state)
{
    const struct golden *c = *state;
    struct fixture f;
    char database[64];
    char *folder = folder_enter();
    database_of(c->words, database);
    fixture_open(&f, database);
    c->make(&f);
    fixture_close(&f);
    struct outcome outcome = report("LC_ALL=C.UTF-8", c->words);
    assert_string_equal(outcome.err, "");
    assert_int_equal(outcome.status, 0);
    golden_check(c->name, outcome.out);
    outcome_release(&outcome);
    folder_remove(folder);
}

int main(void)
{
    enum { CASES = sizeof cases / sizeof *cases };
    struct CMUnitTest tests[CASES];
    for (int i = 0; i < CASES; i++)
        tests[i] = (struct CMUnitTest){.name = cases[i].name,
                                       .test_func = test_case,
                                       .initial_state = (void *)(uintptr_t)&cases[i]};
    return cmocka_run_group_tests_name("golden", tests, NULL, NULL);
}
