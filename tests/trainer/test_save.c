/* Saves, and going on from them: the same losses as a run that never stopped, with whatever ranks
 * and techniques; nothing lost when a run is killed or the disk is full; refusals. */
#include "tests/cli/program.h"
#include "model/param_file.h"
#include "trainer/save.h"

#include <jansson.h>
#include <math.h>
#include <sqlite3.h>
#include <sys/resource.h>

static struct program program; // large

enum { MAX_WORDS = 48, PATH = 200 };

/* A run: its words, built up. */
struct words {
    const char *word[MAX_WORDS + 1];
    int count;
    char text[4][LONG_PATH]; // what add_all splits
    int texts;
};

static void add(struct words *words, const char *word)
{
    assert_true(words->count < MAX_WORDS);
    words->word[words->count++] = word;
}

static void add_pair(struct words *words, const char *name, const char *value)
{
    add(words, name);
    add(words, value);
}

// Options separated by spaces.
static void add_all(struct words *words, const char *options)
{
    assert_true(words->texts < UP_COUNT(words->text));
    char *text = words->text[words->texts++];
    print_to(text, sizeof words->text[0], "%s", options);
    for (char *rest = text, *word; (word = strtok_r(rest, " ", &rest));) add(words, word);
}

static void run_well(const struct words *words)
{
    program_run_words(&program, "upipe-train", words->word);
    if (program.status) fail_msg("status %d: %s", program.status, program.err);
}

static const char *in(char path[PATH], const char *folder, const char *name)
{
    assert_true(snprintf(path, PATH, "%s/%s", folder, name) < PATH);
    return path;
}

/* The losses of a --json-log by step; NaN where there is none. Returns how many lines there are. */
static int read_losses(const char *path, double *loss, int steps)
{
    char line[1024];
    int lines = 0;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (int i = 0; i < steps; i++) loss[i] = NAN;
    for (; fgets(line, sizeof line, file); lines++) {
        json_t *root = json_loads(line, 0, NULL);
        json_int_t step = json_integer_value(json_object_get(root, "step"));
        assert_in_range(step, 0, steps - 1);
        loss[step] = json_real_value(json_object_get(root, "loss"));
        json_decref(root);
    }
    fclose(file);
    return lines;
}

static void expect_equal_files(const char *a, const char *b, const char *name)
{
    char path[2][PATH];
    static char bytes[2][1 << 16];
    FILE *file[2] = {fopen(in(path[0], a, name), "rb"), fopen(in(path[1], b, name), "rb")};
    assert_non_null(file[0]);
    assert_non_null(file[1]);
    for (size_t got = 1; got;) {
        got = fread(bytes[0], 1, sizeof bytes[0], file[0]);
        assert_int_equal(fread(bytes[1], 1, sizeof bytes[1], file[1]), got);
        if (memcmp(bytes[0], bytes[1], got) != 0) fail_msg("%s differs from %s", path[0], path[1]);
    }
    fclose(file[0]);
    fclose(file[1]);
}

/* --- The same training ----------------------------------------------------------------------- */

enum { STEPS = 10, HALF = 5 };

#define DATA_I32 "--data-format i32 --seq 29 --lr 1e-3 --threads 1"
#define LLAMA    "--model " UP_TEST_DATA "/tiny-llama3 " DATA_I32
#define TIED     "--model " UP_TEST_DATA "/tiny-llama31-scaled-rope " DATA_I32
#define QWEN3    "--model " UP_TEST_DATA "/tiny-qwen3 " DATA_I32
#define FULL     "--stack upipe --tile-mlp 4 --tile-attn 3 --tile-loss 5 --ranks 4"

static const struct pair {
    const char *model, *before, *after;
    bool equal; // bit by bit
} pairs[] = {
    {LLAMA, "--accum 4", "--accum 4", true},
    {LLAMA, "--ranks 4 --fsdp on", "--ranks 4 --fsdp on", true},
    {LLAMA, "--ranks 2 --fsdp on --chaos 3 --accum 2", "--ranks 2 --fsdp on --chaos 8 --accum 2",
     true},
    {LLAMA, "--batch 4 --optimizer host", "--batch 4", true},
    {LLAMA, "--accum 4", FULL " --accum 4", false},
    {LLAMA, FULL " --optimizer host --batch 2", "--batch 2", false},
    {LLAMA, "--dp 2 --accum 2", "--cp 2 --dp 2 --fsdp on --optimizer host --batch 2", false},
    {TIED, "--batch 2", "--cp 3 --fsdp on --accum 2", false},
    {TIED, "--dp 2 --fsdp on --optimizer host", "--dp 2", false},
    {QWEN3, "--dp 2 --fsdp on", FULL " --accum 2 --optimizer host", false},
};

static void add_run(struct words *words, const struct pair *pair, const char *options)
{
    add_all(words, pair->model);
    add_all(words, options);
}

// Ten steps at once, and five and five.
static void run_pair(const struct pair *pair, const char *folder)
{
    char data[LONG_PATH], straight[PATH], log[2][PATH], saves[PATH], again[PATH];
    const char *model = strchr(pair->model, '/');
    print_to(data, sizeof data, "%.*s/tokens.i32", (int)strcspn(model, " "), model);
    struct words once = {0}, first = {0}, second = {0};

    add_run(&once, pair, pair->before);
    add_pair(&once, "--data", data);
    add_all(&once, "--steps 10 --save-every 10");
    add_pair(&once, "--save", in(straight, folder, "straight"));
    add_pair(&once, "--json-log", in(log[0], folder, "log0"));
    run_well(&once);

    add_run(&first, pair, pair->before);
    add_pair(&first, "--data", data);
    add_all(&first, "--steps 5");
    add_pair(&first, "--save", in(saves, folder, "saves"));
    run_well(&first);

    // The model is the save's.
    add_all(&second, DATA_I32);
    add_all(&second, pair->after);
    add_pair(&second, "--data", data);
    add_all(&second, "--steps 10");
    add_pair(&second, "--resume", saves);
    add_pair(&second, "--save", in(again, folder, "again"));
    add_pair(&second, "--json-log", in(log[1], folder, "log1"));
    run_well(&second);
}

static void test_same_losses(void **state)
{
    (void)state;
    for (int i = 0; i < UP_COUNT(pairs); i++) {
        char folder[32], log[PATH], save[2][PATH];
        double loss[STEPS], resumed[STEPS];
        folder_make(folder);
        run_pair(&pairs[i], folder);
        assert_int_equal(read_losses(in(log, folder, "log0"), loss, STEPS), STEPS);
        assert_int_equal(read_losses(in(log, folder, "log1"), resumed, STEPS), STEPS - HALF);
        for (int step = HALF; step < STEPS; step++) {
            double error = fabs(resumed[step] - loss[step]) / loss[step];
            if (!(error <= (pairs[i].equal ? 0 : 1e-6)))
                fail_msg("%s, then %s: step %d: loss %.17g, resumed %.17g", pairs[i].before,
                         pairs[i].after, step, loss[step], resumed[step]);
        }
        assert_true(fabs(loss[HALF] - loss[0]) > 1e-3); // it did train
        in(save[0], folder, "straight/step-00000010");
        in(save[1], folder, "again/step-00000010");
        expect_equal_files(save[0], save[1], "config.json");
        if (pairs[i].equal) {
            expect_equal_files(save[0], save[1], UP_SAVE_WEIGHTS);
            expect_equal_files(save[0], save[1], UP_SAVE_MOMENTS);
        }
        folder_remove(folder);
    }
}

/* --- One training, for the tests below ------------------------------------------------------- */

#define SMALL "--layers 1 --seq 16 --lr 1e-3 --threads 1"

struct training {
    char folder[32], data[PATH], saves[PATH];
};

static void training_make(struct training *training)
{
    folder_make(training->folder);
    in(training->data, training->folder, "data");
    in(training->saves, training->folder, "saves");
    file_write_text(training->data, 3000);
}

static void add_training(struct words *words, const struct training *training, const char *options)
{
    add_all(words, SMALL);
    add_all(words, options);
    add_pair(words, "--data", training->data);
}

static void train(const struct training *training, const char *options)
{
    struct words words = {0};
    add_training(&words, training, options);
    add_pair(&words, "--save", training->saves);
    run_well(&words);
}

static bool is_there(const struct training *training, const char *name)
{
    char path[PATH];
    return access(in(path, training->saves, name), F_OK) == 0;
}

static void test_when_it_saves(void **state)
{
    (void)state;
    struct training training;
    training_make(&training);
    train(&training, "--steps 5 --save-every 2");
    assert_int_equal(folder_count(training.saves), 3);
    assert_true(is_there(&training, "step-00000002"));
    assert_true(is_there(&training, "step-00000004"));
    assert_true(is_there(&training, "step-00000005"));

    // Counted over the whole training, also where that begins at step 5.
    struct words more = {0};
    add_training(&more, &training, "--steps 8 --save-every 3");
    add_pair(&more, "--resume", training.saves);
    add_pair(&more, "--save", training.saves);
    run_well(&more);
    assert_non_null(strstr(program.out, "5 of 8 steps are done"));
    assert_int_equal(folder_count(training.saves), 5);
    assert_true(is_there(&training, "step-00000006"));
    assert_true(is_there(&training, "step-00000008"));

    // Nothing is left to be done.
    run_well(&more);
    assert_non_null(strstr(program.out, "nothing to do: 8 steps are done"));
    assert_int_equal(folder_count(training.saves), 5);
    folder_remove(training.folder);
}

// --resume takes the save it is given, and the model for a run of its own.
static void test_an_older_save(void **state)
{
    (void)state;
    struct training training;
    struct words older = {0}, fresh = {0};
    char save[PATH], log[PATH];
    double loss[4];
    training_make(&training);
    train(&training, "--steps 3 --save-every 1");
    add_training(&older, &training, "--steps 4");
    add_pair(&older, "--resume", in(save, training.saves, "step-00000002"));
    add_pair(&older, "--json-log", in(log, training.folder, "log"));
    run_well(&older);
    assert_int_equal(read_losses(log, loss, 4), 2);
    assert_true(isnan(loss[1]) && !isnan(loss[2]) && !isnan(loss[3]));

    add_training(&fresh, &training, "--steps 1");
    add_pair(&fresh, "--model", save);
    run_well(&fresh);
    folder_remove(training.folder);
}

/* --- The log goes on ------------------------------------------------------------------------- */

static void resume_logged(const struct training *training, const char *save, const char *log,
                          const char *options)
{
    struct words words = {0};
    char path[PATH];
    add_training(&words, training, options);
    add_pair(&words, "--resume", in(path, training->saves, save));
    add_pair(&words, "--json-log", log);
    program_run_words(&program, "upipe-train", words.word);
}

// What a killed run may leave behind the lines that are whole, and what an editor may take.
static void test_log_goes_on(void **state)
{
    (void)state;
    static const struct {
        const char *save;
        int kept;          // of the log's lines
        const char *added; // behind them; NULL: their last newline is taken away
    } rows[] = {
        {"step-00000002", 4, ""},      {"step-00000004", 4, ""},
        {"step-00000002", 1, ""},      {"step-00000004", 4, "{\"step\":4,\"loss\":5.1,\"gra"},
        {"step-00000004", 4, "{\"st"}, {"step-00000004", 4, NULL},
        {"step-00000002", 0, ""}};
    struct training training;
    struct words first = {0};
    static char whole[1 << 14], again[1 << 14];
    char log[PATH];
    double loss[6];
    training_make(&training);
    add_training(&first, &training, "--steps 4 --save-every 2");
    add_pair(&first, "--save", training.saves);
    add_pair(&first, "--json-log", in(log, training.folder, "log"));
    run_well(&first);
    file_read(log, whole, sizeof whole);
    for (int i = 0; i < UP_COUNT(rows); i++) {
        char *end = whole;
        for (int line = 0; line < rows[i].kept; line++) end = strchr(end, '\n') + 1;
        snprintf(again, sizeof again, "%.*s%s", (int)(end - whole - !rows[i].added), whole,
                 rows[i].added ? rows[i].added : "");
        file_write(log, again, strlen(again));
        resume_logged(&training, rows[i].save, log, "--steps 6");
        if (program.status) fail_msg("row %d: %s", i, program.err);

        int done = rows[i].save[strlen(rows[i].save) - 1] - '0', kept = up_min(done, rows[i].kept);
        assert_int_equal(read_losses(log, loss, 6), kept + 6 - done);
        for (int step = 0; step < 6; step++)
            assert_int_equal(isnan(loss[step]), step >= kept && step < done);
        for (end = whole; kept; kept--) end = strchr(end, '\n') + 1;
        file_read(log, again, sizeof again);
        assert_memory_equal(again, whole, end - whole);
    }
    folder_remove(training.folder);
}

// In what is no log of steps nothing is cut off, whichever line shows it.
static void test_no_log_to_go_on_in(void **state)
{
    (void)state;
#define LINE(step_) "{\"step\":" #step_ ",\"loss\":1.5}\n"
    static const struct {
        const char *text, *says;
    } rows[] = {{"a\n", "earlier JSON log to go on in"},
                {LINE(0) LINE(1) "precious\n", "line 3"},
                {LINE(0) LINE(1) LINE(7) "precious", "line 4"},
                {LINE(0) LINE(7) LINE(1), "line 3"},
                {LINE(0) LINE(0), "line 2"},
                {"{\"step\":0,\"loss\n" LINE(1), "line 1"},
                {LINE(0) "{\"loss\":1}\n", "line 2"},
                {LINE(0) "\n" LINE(1), "line 2"},
                {LINE(0) LINE("one"), "line 2"}};
#undef LINE
    struct training training;
    char log[PATH], after[256];
    training_make(&training);
    train(&training, "--steps 2");
    in(log, training.folder, "log");
    for (int i = 0; i < UP_COUNT(rows); i++) {
        file_write(log, rows[i].text, strlen(rows[i].text));
        resume_logged(&training, "", log, "--steps 3");
        program_must_refuse(&program, rows[i].says);
        program_must_refuse(&program, log);
        file_read(log, after, sizeof after);
        assert_string_equal(after, rows[i].text);
    }
    folder_remove(training.folder);
}

// What a log holds stays where the run does not begin, or ends at once.
static void test_log_is_kept(void **state)
{
    (void)state;
    static const struct {
        const char *options;
        int status;
    } rows[] = {{"--steps 3 --trace /", 2}, {"--steps 2", 0}, {"--steps 3 --save /nowhere/at", 2}};
    struct training training;
    struct words first = {0};
    static char before[1 << 14], after[1 << 14];
    char log[PATH];
    training_make(&training);
    add_training(&first, &training, "--steps 2 --save-every 1");
    add_pair(&first, "--save", training.saves);
    add_pair(&first, "--json-log", in(log, training.folder, "log"));
    run_well(&first);
    file_read(log, before, sizeof before);
    for (int i = 0; i < UP_COUNT(rows); i++) {
        resume_logged(&training, rows[i].status ? "step-00000001" : "", log, rows[i].options);
        assert_int_equal(program.status, rows[i].status);
        file_read(log, after, sizeof after);
        assert_string_equal(after, before);
    }
    folder_remove(training.folder);
}

static int64_t query(const char *path, const char *sql)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *statement = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &statement, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    int64_t value = sqlite3_column_int64(statement, 0);
    sqlite3_finalize(statement);
    sqlite3_close(db);
    return value;
}

// Saving and resuming change nothing that a step allocates.
static void test_trace(void **state)
{
    (void)state;
    struct training training;
    struct words first = {0}, second = {0};
    char trace[2][PATH];
    training_make(&training);
    add_training(&first, &training, "--steps 3 --save-every 1");
    add_pair(&first, "--save", training.saves);
    add_pair(&first, "--trace", in(trace[0], training.folder, "first.db"));
    run_well(&first);
    add_training(&second, &training, "--steps 5");
    add_pair(&second, "--resume", training.saves);
    add_pair(&second, "--trace", in(trace[1], training.folder, "second.db"));
    run_well(&second);
    assert_int_equal(query(trace[1], "SELECT min(step) FROM step"), 3);
    assert_int_equal(query(trace[1], "SELECT max(step) FROM step"), 4);
    assert_int_equal(query(trace[1], "SELECT value FROM meta WHERE key = 'steps_planned'"), 2);
    assert_int_equal(query(trace[0], "SELECT count(DISTINCT event_hash) FROM step"), 1);
    int64_t hash = query(trace[0], "SELECT event_hash FROM step LIMIT 1");
    assert_int_equal(query(trace[1], "SELECT event_hash FROM step LIMIT 1"), hash);
    folder_remove(training.folder);
}

static void test_dry(void **state)
{
    (void)state;
    struct training training;
    struct words words = {0};
    char other[PATH], log[PATH], line[1024];
    training_make(&training);
    train(&training, "--steps 2");
    add_training(&words, &training, "--steps 6 --device dry --dtype fp32 --save-every 1");
    add_pair(&words, "--resume", training.saves);
    add_pair(&words, "--save", in(other, training.folder, "other"));
    add_pair(&words, "--json-log", in(log, training.folder, "log"));
    run_well(&words);
    assert_int_not_equal(access(other, F_OK), 0);
    FILE *file = fopen(log, "r");
    for (int step = 2; step < 6; step++) {
        assert_non_null(fgets(line, sizeof line, file));
        json_t *root = json_loads(line, 0, NULL);
        assert_int_equal(json_integer_value(json_object_get(root, "step")), step);
        assert_true(json_integer_value(json_object_get(root, "peak_bytes")) > 1000000);
        json_decref(root);
    }
    fclose(file);
    folder_remove(training.folder);
}

/* --- Killed, and out of space ---------------------------------------------------------------- */

enum { KILL_STEPS = 1000 };

// One more step from the newest save, whose loss must be the straight run's; nothing partial
// remains. The log tells of every step once, whatever was killed in between.
static void go_on(const struct training *training, int64_t newest, const double *loss)
{
    struct words words = {0};
    char steps[32], log[PATH];
    double resumed[KILL_STEPS];
    snprintf(steps, sizeof steps, "--steps %lld", (long long)newest + 1);
    add_training(&words, training, steps);
    add_pair(&words, "--resume", training->saves);
    add_pair(&words, "--save", training->saves);
    add_pair(&words, "--json-log", in(log, training->folder, "log"));
    run_well(&words);
    assert_int_equal(read_losses(log, resumed, KILL_STEPS), newest + 1);
    for (int64_t step = 0; step <= newest; step++)
        if (resumed[step] != loss[step])
            fail_msg("step %lld: %.17g, expected %.17g", (long long)step, resumed[step],
                     loss[step]);
    assert_int_equal(up_save_newest(training->saves), newest + 1);
    assert_int_equal(folder_count(training->saves), newest + 1);
}

/* Kills a run that saves after every step: `ns` after its start, or after its first save. */
static void start_and_kill(const struct training *training, bool after_save, int64_t ns)
{
    struct words words = {0};
    char out[PATH], err[PATH], log[PATH];
    int status = 0;
    int64_t newest = up_save_newest(training->saves);
    add_training(&words, training, "--steps 1000000 --save-every 1");
    add_pair(&words, "--save", training->saves);
    add_pair(&words, "--json-log", in(log, training->folder, "log"));
    if (newest > 0) add_pair(&words, "--resume", training->saves);
    pid_t pid = program_start("upipe-train", words.word, in(out, training->folder, "out"),
                              in(err, training->folder, "err"));
    for (int i = 0; after_save && up_save_newest(training->saves) <= newest; i++) {
        assert_true(i < 60000 && !waitpid(pid, NULL, WNOHANG));
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_true(up_save_newest(training->saves) >= newest);
}

static void test_killed_at_random(void **state)
{
    (void)state;
    struct training training;
    struct words straight = {0};
    char log[PATH];
    static double loss[KILL_STEPS];
    int rounds = getenv("UP_TEST_SHORT") ? 8 : 30;
    training_make(&training);
    add_training(&straight, &training, "--steps 1000");
    add_pair(&straight, "--json-log", in(log, training.folder, "log"));
    run_well(&straight);
    assert_int_equal(read_losses(log, loss, KILL_STEPS), KILL_STEPS);
    for (int round = 0; round < rounds; round++) {
        int64_t random = (int64_t)(up_random_u64(12, 0, (uint64_t)round) % 100000000);
        bool after_save = round % 2 == 0;
        start_and_kill(&training, after_save, after_save ? random / 4 : random);
        int64_t newest = up_save_newest(training.saves);
        assert_in_range(newest, 1, KILL_STEPS - 1);
        go_on(&training, newest, loss);
    }
    folder_remove(training.folder);
}

/* --- Told to end ----------------------------------------------------------------------------- */

// Until the trace has tensors of a step that is under way.
static void await_step(const char *trace, pid_t pid)
{
    int64_t count = 0;
    for (int i = 0; !count; i++) {
        sqlite3 *db = NULL;
        sqlite3_stmt *statement = NULL;
        assert_true(i < 60000 && !waitpid(pid, NULL, WNOHANG));
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        if (!sqlite3_open_v2(trace, &db, SQLITE_OPEN_READONLY, NULL) &&
            !sqlite3_prepare_v2(db, "SELECT count(*) FROM tensor WHERE step >= 0", -1, &statement,
                                NULL) &&
            sqlite3_step(statement) == SQLITE_ROW)
            count = sqlite3_column_int64(statement, 0);
        sqlite3_finalize(statement);
        sqlite3_close(db);
    }
}

static void file_has(const char *path, const char *says)
{
    char text[4096];
    file_read(path, text, sizeof text);
    if (!strstr(text, says)) fail_msg("expected '%s' in: %s", says, text);
}

static void await_text(const char *path, const char *says)
{
    char text[4096] = "";
    for (int i = 0; !strstr(text, says); i++) {
        assert_true(i < 60000);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        file_read(path, text, sizeof text);
    }
}

struct told {
    struct training training;
    char trace[PATH], log[PATH], out[PATH], err[PATH];
    pid_t pid;
};

static void start_traced(struct told *told, const char *options, bool saves)
{
    struct words words = {0};
    struct training *training = &told->training;
    training_make(training);
    file_write_text(training->data, 1 << 17);
    add_training(&words, training, "--steps 1000000");
    add_all(&words, options);
    if (saves) add_pair(&words, "--save", training->saves);
    add_pair(&words, "--trace", in(told->trace, training->folder, "run.db"));
    add_pair(&words, "--json-log", in(told->log, training->folder, "log"));
    told->pid = program_start("upipe-train", words.word, in(told->out, training->folder, "out"),
                              in(told->err, training->folder, "err"));
    await_step(told->trace, told->pid);
}

static int await_end(const struct told *told)
{
    int status = 0;
    assert_int_equal(waitpid(told->pid, &status, 0), told->pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// The step it is in is finished, logged and saved; the training goes on from there.
static void test_told_to_end(void **state)
{
    (void)state;
    static const struct {
        const char *options;
        int number;
    } rows[] = {{"--seq 256", SIGINT},
                {"--seq 256 --ranks 3 --fsdp on", SIGTERM},
                {"--seq 256 --ranks 2 --chaos 4", SIGINT},
                {"--seq 256 --save-every 1", SIGTERM}};
    static double loss[KILL_STEPS], straight[KILL_STEPS];
    for (int i = 0; i < UP_COUNT(rows); i++) {
        struct told told;
        struct words more = {0}, whole = {0};
        char says[128], steps[64], other[PATH], log[PATH];
        start_traced(&told, rows[i].options, true);
        const char *saves = told.training.saves;
        kill(told.pid, rows[i].number);
        assert_int_equal(await_end(&told), 1);
        int64_t done = up_save_newest(saves);
        assert_in_range(done, 1, KILL_STEPS - 3);
        assert_int_equal(read_losses(told.log, loss, KILL_STEPS), done);
        file_has(told.err, "told to end: finishes its step, saves and ends");
        snprintf(says, sizeof says, "interrupted: %lld of 1000000 steps are done and saved, ",
                 (long long)done);
        file_has(told.err, says);
        program_run(&program, "upipe-report", told.trace);
        assert_int_equal(program.status, 0);
        assert_non_null(strstr(program.out, says));
        assert_null(strstr(program.out, "INCOMPLETE"));
        assert_int_equal(query(told.trace, "SELECT count(*) FROM meta WHERE key = 'complete' AND "
                                           "value = '1'"),
                         1);
        assert_int_equal(query(told.trace, "SELECT max(step) + 1 FROM step WHERE end_ns > 0"),
                         done);

        snprintf(steps, sizeof steps, "--steps %lld", (long long)done + 2);
        add_training(&more, &told.training, rows[i].options);
        add_all(&more, steps);
        add_pair(&more, "--save", saves);
        add_pair(&more, "--resume", saves);
        add_pair(&more, "--json-log", told.log);
        run_well(&more);
        add_training(&whole, &told.training, rows[i].options);
        add_all(&whole, steps);
        add_pair(&whole, "--save", in(other, told.training.folder, "other"));
        add_pair(&whole, "--json-log", in(log, told.training.folder, "straight"));
        run_well(&whole);
        assert_int_equal(read_losses(told.log, loss, KILL_STEPS), done + 2);
        assert_int_equal(read_losses(log, straight, KILL_STEPS), done + 2);
        for (int64_t step = 0; step < done + 2; step++) assert_true(loss[step] == straight[step]);
        folder_remove(told.training.folder);
    }
}

// There is nothing to be saved: it ends within the step.
static void test_told_without_save(void **state)
{
    (void)state;
    struct told told;
    start_traced(&told, "--seq 16K --layers 4 --checkpoint block", false);
    kill(told.pid, SIGINT);
    assert_int_equal(await_end(&told), 1);
    file_has(told.err, "upipe-train: interrupted\n");
    program_run(&program, "upipe-report", told.trace);
    assert_int_equal(program.status, 0);
    assert_non_null(strstr(program.out, "FAILED: interrupted"));
    folder_remove(told.training.folder);
}

// A step that takes long is not waited for by whom does not want to; what a launcher says twice
// counts once.
static void test_told_again(void **state)
{
    (void)state;
    struct told told;
    start_traced(&told, "--seq 64K --layers 4 --checkpoint block", true);
    kill(told.pid, SIGTERM);
    kill(told.pid, SIGTERM);
    await_text(told.err, "told to end: finishes its step");
    nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 100000000}, NULL);
    assert_int_equal(waitpid(told.pid, NULL, WNOHANG), 0);
    kill(told.pid, SIGTERM);
    assert_int_equal(await_end(&told), -SIGTERM);
    program_run(&program, "upipe-report", told.trace);
    assert_int_equal(program.status, 0);
    assert_non_null(strstr(program.out, "INCOMPLETE"));
    folder_remove(told.training.folder);
}

// What a killed save leaves goes with the next one, and nothing else does.
static void test_leftovers(void **state)
{
    (void)state;
    struct training training;
    char path[PATH], file[PATH];
    training_make(&training);
    assert_int_equal(mkdir(training.saves, 0700), 0);
    assert_int_equal(mkdir(in(path, training.saves, ".step-00000007.partial"), 0700), 0);
    file_write(in(file, path, UP_SAVE_WEIGHTS), "cut", 3);
    assert_int_equal(mkdir(in(path, training.saves, ".step-7.partial"), 0700), 0);
    file_write(in(path, training.saves, "notes"), "mine", 4);
    train(&training, "--steps 1");
    assert_false(is_there(&training, ".step-00000007.partial"));
    assert_true(is_there(&training, ".step-7.partial"));
    assert_true(is_there(&training, "notes"));
    assert_int_equal(folder_count(training.saves), 3);
    folder_remove(training.folder);
}

static void run_limited(const struct words *words, rlim_t bytes)
{
    struct rlimit limit, before;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = bytes;
    signal(SIGXFSZ, SIG_IGN); // the program inherits both
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    program_run_words(&program, "upipe-train", words->word);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
}

static void test_no_space(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        struct training training;
        struct words more = {0};
        training_make(&training);
        train(&training, ranks > 1 ? "--steps 2 --fsdp on --ranks 2" : "--steps 2");
        add_training(&more, &training,
                     ranks > 1 ? "--steps 4 --save-every 1 --fsdp on --ranks 2"
                               : "--steps 4 --save-every 1");
        add_pair(&more, "--resume", training.saves);
        add_pair(&more, "--save", training.saves);
        run_limited(&more, 2000000); // the weights fit, the moments do not
        assert_int_equal(program.status, 1);
        const char *newline = strchr(program.err, '\n');
        if (!newline || newline[1]) fail_msg("expected one line: %s", program.err);
        assert_non_null(
            strstr(program.err, "optimizer.safetensors: cannot be written: File too large"));
        assert_int_equal(folder_count(training.saves), 1);
        run_well(&more); // and with space it goes on
        assert_int_equal(folder_count(training.saves), 3);
        folder_remove(training.folder);
    }
}

/* --- Refusals -------------------------------------------------------------------------------- */

static void expect_refusal(const struct training *training, const char *resume, const char *options,
                           const char *says)
{
    struct words words = {0};
    add_training(&words, training, options);
    if (resume) add_pair(&words, "--resume", resume);
    program_run_words(&program, "upipe-train", words.word);
    program_must_refuse(&program, says);
}

static void test_other_runs_refused(void **state)
{
    (void)state;
    struct training training;
    training_make(&training);
    train(&training, "--steps 2");
    const char *saves = training.saves;
    expect_refusal(&training, saves, "--steps 4 --seq 32", "--seq 32: expected 16 as in");
    expect_refusal(&training, saves, "--steps 4 --batch 3",
                   "1 x 1 x 3 = 3 sequences a step: expected 1 as in");
    expect_refusal(&training, saves, "--steps 4 --layers 2", "--layers 2");
    expect_refusal(&training, saves, "--steps 4 --model tiny --layers 2",
                   "num_hidden_layers: expected 1, found 2");
    expect_refusal(&training, saves, "--steps 4 --model llama3.2-1b", "hidden_size: expected 128");
    expect_refusal(&training, NULL, "--save-every 2", "--save-every: expected --save");
    expect_refusal(&training, NULL, "--save-every 0 --save x", "--save-every");
    assert_int_equal(folder_count(training.folder), 2);
    folder_remove(training.folder);
}

static void expect_save_refusal(const struct training *training, const char *dir, const char *says)
{
    struct words words = {0};
    add_training(&words, training, "--steps 1");
    add_pair(&words, "--save", dir);
    program_run_words(&program, "upipe-train", words.word);
    program_must_refuse(&program, says);
}

static void test_bad_folders_refused(void **state)
{
    (void)state;
    struct training training;
    struct words words = {0};
    char path[PATH], out[PATH], err[PATH];
    training_make(&training);
    expect_refusal(&training, "/nowhere", "--steps 4", "--resume /nowhere: expected a save");
    expect_refusal(&training, training.folder, "--steps 4", "expected a save");
    expect_save_refusal(&training, training.data, "expected a folder that can be written");
    expect_save_refusal(&training, in(path, training.folder, "no/where"), "--save");
    // A run that is refused later leaves no folder behind.
    add_training(&words, &training, "--steps 1 --json-log /no/where");
    add_pair(&words, "--save", training.saves);
    program_run_words(&program, "upipe-train", words.word);
    program_must_refuse(&program, "--json-log");
    assert_int_equal(folder_count(training.folder), 1);

    // Another training is there, finished or under way.
    train(&training, "--steps 3");
    expect_save_refusal(&training, training.saves,
                        "holds step-00000003, and this run begins at step 0");
    words = (struct words){0};
    in(path, training.folder, "busy");
    add_training(&words, &training, "--steps 1000000");
    add_pair(&words, "--save", path);
    pid_t pid = program_start("upipe-train", words.word, in(out, training.folder, "out"),
                              in(err, training.folder, "err"));
    for (char text[2048] = ""; !strstr(text, "step"); file_read(out, text, sizeof text)) {
        assert_false(waitpid(pid, NULL, WNOHANG));
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    expect_save_refusal(&training, path, "another run saves there");
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    folder_remove(training.folder);
}

// Changes a save, expects the refusal, and takes the save's place for the next change.
static void expect_damage(const struct training *training, const char *command, const char *says)
{
    char save[PATH], damaged[PATH], text[4 * PATH];
    in(save, training->saves, "step-00000001");
    in(damaged, training->folder, "damaged");
    snprintf(text, sizeof text, "cp -r %s %s && cd %s && %s", save, damaged, damaged, command);
    assert_int_equal(system(text), 0);
    expect_refusal(training, damaged, "--steps 4", says);
    folder_remove(damaged);
}

static void test_damage_refused(void **state)
{
    (void)state;
    struct training training;
    training_make(&training);
    train(&training, "--steps 1");
    expect_damage(&training, "rm trainer.json", "expected a save");
    expect_damage(&training, "echo '{' > trainer.json",
                  "damaged/trainer.json: expected a JSON file");
    expect_damage(&training, "sed -i 's/upipe save/other/' trainer.json", "trainer.json: format");
    expect_damage(&training, "sed -i 's/\"version\": 1/\"version\": 2/' trainer.json",
                  "version: expected at most 1, found 2");
    expect_damage(&training, "sed -i 's/\"steps\": 1/\"steps\": -1/' trainer.json",
                  "steps: expected a whole number from 1");
    expect_damage(&training, "sed -i '/\"seq\"/d' trainer.json", "trainer.json: seq");
    expect_damage(&training, "rm config.json", "damaged/config.json");
    expect_damage(&training, "sed -i 's/: 10000.0/: 10001.0/' config.json",
                  "damaged/config.json: expected the model of trainer.json");
    expect_damage(&training, "rm model.safetensors", "model.safetensors");
    expect_damage(&training, "truncate -s -1 model.safetensors",
                  "damaged/model.safetensors: cut short");
    expect_damage(&training, "rm optimizer.safetensors", "damaged/optimizer.safetensors");
    expect_damage(&training, "truncate -s 100 optimizer.safetensors",
                  "damaged/optimizer.safetensors: cut short");
    expect_damage(&training, "cp model.safetensors optimizer.safetensors",
                  "tensor m.model.embed_tokens.weight: expected F32 [256, 128], found nothing");
    expect_damage(&training, "mkdir step-00000009 && rm trainer.json",
                  "step-00000009/trainer.json");
    folder_remove(training.folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_losses),
        cmocka_unit_test(test_when_it_saves),
        cmocka_unit_test(test_an_older_save),
        cmocka_unit_test(test_log_goes_on),
        cmocka_unit_test(test_no_log_to_go_on_in),
        cmocka_unit_test(test_log_is_kept),
        cmocka_unit_test(test_trace),
        cmocka_unit_test(test_dry),
        cmocka_unit_test(test_killed_at_random),
        cmocka_unit_test(test_told_to_end),
        cmocka_unit_test(test_told_without_save),
        cmocka_unit_test(test_told_again),
        cmocka_unit_test(test_leftovers),
        cmocka_unit_test(test_no_space),
        cmocka_unit_test(test_other_runs_refused),
        cmocka_unit_test(test_bad_folders_refused),
        cmocka_unit_test(test_damage_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
