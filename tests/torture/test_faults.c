/* Torture: each allocation, file operation and SQLite allocation of small runs is made to fail in
 * turn, alone or with all that follow. Whatever fails, the program ends in order:
 *
 *   exit 0   only with the right result: the losses (or the report) of the run that nothing
 * happened to, and a trace that is complete and the same, or a line on stderr that says it is not
 *   exit 1   with one line that says what went wrong; never 2, since the user is not at fault
 *
 * and afterwards the trace opens and passes SQLite's check, or is absent, nothing half-written lies
 * about, and (in the sanitized build) nothing has leaked.
 *
 * Calls are chosen that are the first or last from their place in the code, and some between; by
 * default every second of them fails, alone or with what follows, in turn. UP_TEST_ALL=1 takes
 * every call both ways, UP_TEST_SHORT=1 fewer. A failure names the place for addr2line. */
#include "tests/torture/faults.h"

#include "report/report.h"
#include "store/store.h"
#include "tests/cli/program.h"
#include "trainer/train.h"

#include <ftw.h>

enum {
    DEADLINE_S = 120,
    SITES_MAX = 4096,
    TEXT_MAX = 1 << 16,
    SHARE = 2,       // one in so many of the chosen calls,
    SHORT_SHARE = 6, // and where time is short
};

/* What is run: a command line, or a command of the report on the database of the run before. */
struct form {
    const char *name;
    const struct up_command *command; // NULL: the trainer
    const char *words[32];
};

#define TRACED                                                                                     \
    "--trace", "run.db", "--json-log", "steps.jsonl", "--steps", "2", "--seq", "8", "--layers", "1"
#define ON_CPU "--threads", "1", "--data", "../text"

static const struct form forms[] = {
    {"plain", NULL, {TRACED, ON_CPU}},
    {"ranks", NULL, {TRACED, ON_CPU, "--ranks", "2", "--stack", "upipe"}},
    {"host", NULL, {TRACED, ON_CPU, "--stack", "offload", "--optimizer", "host", "--accum", "2"}},
    {"weights",
     NULL,
     {TRACED, "--threads", "1", "--model", UP_TEST_DATA "/tiny-llama3", "--data",
      UP_TEST_DATA "/tiny-llama3/tokens.i32", "--data-format", "i32"}},
    {"chaos", NULL, {TRACED, ON_CPU, "--chaos", "7"}},
    {"dry",
     NULL,
     {TRACED, "--device", "dry", "--machine", UP_TEST_SOURCE "/trainer/machines/h200.json"}},
    {"save", NULL, {TRACED, ON_CPU, "--save", "saves", "--save-every", "1"}},
    {"resume", NULL, {TRACED, ON_CPU, "--steps", "4", "--resume", "../saves"}},
    {"summary", &up_command_summary, {"../whole.db"}},
    {"peak", &up_command_peak, {"../whole.db", "--json"}},
    {"tensors", &up_command_tensors, {"../whole.db"}},
    {"timeline", &up_command_timeline, {"../whole.db", "--json"}},
    {"diff", &up_command_diff, {"../whole.db", "../whole.db", "--json"}},
    {"check", &up_command_check, {"../whole.db", "--baseline", "../whole.db", "--time", "1%"}},
    {"history", &up_command_history, {"../whole.db", "../whole.db", "--csv"}},
    {"whatis",
     &up_command_whatis,
     {"1MiB", "--model", UP_TEST_DATA "/tiny-llama3", "--batch", "4"}},
    {"calibrate", &up_command_calibrate, {"../whole.db", "--output", "machine.json"}},
    {"advise", &up_command_advise, {"../whole.db", "--fit", "64MiB"}},
    {"modelled", &up_command_advise, {"../foreign.db", "--fit", "64MiB"}},
};

/* What a run left behind. */
struct result {
    int status; // of exit, or -signal
    char out[TEXT_MAX], err[TEXT_MAX];
    char losses[TEXT_MAX]; // "loss grad_norm" of each step
    char rows[128];        // of the trace: tensors and ranges; "" if there is none
    bool complete;
};

static char box[64]; // box/run is where runs take place, emptied before each

/* --- One run -------------------------------------------------------------------------------------
 */

static int word_count(const struct form *form)
{
    int count = 0;
    while (form->words[count]) count++;
    return count;
}

static enum up_status train(int argc, char **argv, struct up_error *err)
{
    static const int stop = 0;
    static const struct up_launch alone = {.processes = 1};
    struct up_train_options options;
    struct up_arguments arguments;
    enum up_status rc = up_train_options_parse(&options, argc, argv, &arguments, err);
    return rc ? rc : up_train(&options, &alone, "torture", &stop, err);
}

static enum up_status report(const struct up_command *command, int argc, char **argv,
                             struct up_error *err)
{
    enum up_status rc = UP_OK;
    char options[512] = {0};
    struct up_arguments arguments;
    struct up_emitter *emitter = NULL;
    memcpy(options, command->defaults, command->options_size);
    UP_TRY(up_options_parse(command->options, options, argc, argv, &arguments, err));
    const struct up_report_options *common = (struct up_report_options *)options;
    struct up_emit_style style = {.json = common->json, .csv = common->csv};
    emitter = up_emitter_create(&style);
    if (!emitter) UP_TRY(up_fail(err, UP_FAILED, "out of memory"));
    UP_TRY(command->run(options, &arguments, emitter, err));
    UP_TRY(up_emitter_print(emitter, stdout, err));
out:
    up_emitter_destroy(emitter);
    return rc;
}

static void redirect(int from, const char *name)
{
    int to = __real_open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(to, from);
    __real_close(to);
}

// A crash is to kill the child, not to be caught by cmocka as the failure of a test.
static void restore_signals(void)
{
    static const int caught[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    for (int i = 0; i < UP_COUNT(caught); i++) signal(caught[i], SIG_DFL);
}

// In the child: as the programs' own main.
static _Noreturn void run_form(const struct form *form)
{
    struct up_error err = {0};
    char *argv[34] = {(char *)form->name};
    memcpy(argv + 1, form->words, sizeof form->words);
    redirect(STDOUT_FILENO, "../out");
    redirect(STDERR_FILENO, "../err");
    restore_signals();
    alarm(DEADLINE_S);
    int argc = 1 + word_count(form);
    enum up_status rc =
        form->command ? report(form->command, argc, argv, &err) : train(argc, argv, &err);
    if (rc) fprintf(stderr, "upipe: %s\n", err.text);
    faults->kind = FAULT_NONE;
    exit((int)rc);
}

static void read_losses(char losses[TEXT_MAX])
{
    char text[TEXT_MAX];
    size_t used = 0;
    losses[0] = 0;
    file_read("run/steps.jsonl", text, sizeof text);
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        json_t *step = json_loadb(line, (size_t)(end - line), 0, NULL);
        json_t *loss = json_object_get(step, "loss"), *norm = json_object_get(step, "grad_norm");
        if (!step) fail_msg("steps.jsonl has half a line: %s", line);
        used += (size_t)snprintf(losses + used, TEXT_MAX - used, "%.17g %.17g\n",
                                 json_number_value(loss), json_number_value(norm));
        json_decref(step);
    }
}

static void query_text(sqlite3 *db, const char *sql, char *out, size_t size)
{
    sqlite3_stmt *statement = NULL;
    sqlite3_prepare_v2(db, sql, -1, &statement, NULL);
    bool row = sqlite3_step(statement) == SQLITE_ROW && sqlite3_column_text(statement, 0);
    snprintf(out, size, "%s", row ? (const char *)sqlite3_column_text(statement, 0) : "");
    sqlite3_finalize(statement);
}

// The trace is absent, or is one.
static void read_trace(struct result *result)
{
    struct up_error err = {0};
    sqlite3 *db = NULL;
    char text[128];
    result->rows[0] = 0;
    result->complete = false;
    if (access("run/run.db", F_OK) != 0) return;
    if (up_store_open("run/run.db", &db, &err) != UP_OK) fail_msg("%s", err.text);
    query_text(db, "PRAGMA integrity_check", text, sizeof text);
    if (strcmp(text, "ok") != 0) fail_msg("run.db: %s", text);
    query_text(db,
               "SELECT (SELECT count(*) || ',' || sum(bytes) || ',' || count(free_seq) FROM tensor)"
               " || ' ' || (SELECT count(*) || ',' || count(end_seq) FROM range)"
               " || ' ' || (SELECT count(*) || ',' || count(end_ns) FROM step)",
               result->rows, sizeof result->rows);
    query_text(db, "SELECT value FROM meta WHERE key = 'complete'", text, sizeof text);
    result->complete = !strcmp(text, "1");
    sqlite3_close(db);
}

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *walk)
{
    (void)status, (void)kind;
    return walk->level ? remove(path) : 0;
}

// Entries that nobody but the one who makes them is to see.
static int is_partial(const char *path, const struct stat *status, int kind, struct FTW *walk)
{
    (void)status, (void)kind;
    return strstr(path + walk->base, "partial") != NULL;
}

static int walk_run(__nftw_func_t visit)
{
    return nftw("run", visit, 8, FTW_DEPTH | FTW_PHYS);
}

static void run(const struct form *form, enum fault_kind kind, int64_t first, bool alone,
                struct result *result)
{
    int status = 0;
    assert_int_equal(walk_run(remove_entry), 0);
    fflush(NULL);
    faults->kind = kind;
    faults->first = first;
    faults->alone = alone;
    faults->calls = 0;
    pid_t child = fork();
    if (!child) {
        if (chdir("run")) _exit(99);
        run_form(form);
    }
    waitpid(child, &status, 0);
    faults->kind = FAULT_NONE;
    assert_true(child > 0);
    result->status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    file_read("out", result->out, sizeof result->out);
    file_read("err", result->err, sizeof result->err);
    read_losses(result->losses);
    read_trace(result);
}

/* --- Judging it ----------------------------------------------------------------------------------
 */

extern const char __executable_start[];

static const struct form *on_trial; // for messages alone

static int blamed; // faults that were not borne; all are shown, then the test fails

// Says which fault it was, and what there is to see.
static void blame(const struct result *result, const char *what)
{
    static const char *const kinds[] = {"none", "memory", "file", "SQLite's memory"};
    int64_t call = faults->first;
    uintptr_t site = call > 0 && call <= FAULT_CALLS_MAX ? faults->site[call - 1] : 0;
    blamed++;
    print_error(
        "%s, call %lld of kind %s%s, from 0x%lx for addr2line: %s; status %d, stdout \"%.200s\", "
        "stderr: %s\n",
        on_trial->name, (long long)call, kinds[faults->kind], faults->alone ? " alone" : " and on",
        (unsigned long)(site - (uintptr_t)__executable_start), what, result->status, result->out,
        result->err);
}

// Lines of the program itself and no others (a sanitizer's, say).
static int own_lines(const struct result *result)
{
    int count = 0;
    for (const char *line = result->err, *end; *line; line = end + 1, count++) {
        end = strchr(line, '\n');
        if (!end || strncmp(line, "upipe", 5) != 0) return -1;
    }
    return count;
}

static void judge_success(const struct form *form, const struct result *result,
                          const struct result *whole)
{
    bool told = own_lines(result) > 0;
    if (form->command) {
        if (strcmp(result->out, whole->out) != 0) blame(result, "another report");
        return;
    }
    if (strcmp(result->losses, whole->losses) != 0) blame(result, "other losses, yet exit 0");
    bool same = result->complete && !strcmp(result->rows, whole->rows);
    if (!same && !told) blame(result, "the trace is not whole, and nobody says so");
    if (!same && result->complete) blame(result, "a complete trace with other rows");
}

static void judge(const struct form *form, enum fault_kind kind, const struct result *result,
                  const struct result *whole)
{
    faults->kind = kind; // for blame
    int lines = own_lines(result);
    if (lines < 0) blame(result, "unexpected text on stderr");
    if (result->status == 0)
        judge_success(form, result, whole);
    else if (result->status != 1)
        blame(result, "expected exit 0 or 1");
    else if (lines < 1 || lines > 2)
        blame(result, "expected a line that says why (and one about the trace)");
    if (walk_run(is_partial)) blame(result, "a partial file was left");
    faults->kind = FAULT_NONE;
}

/* --- Choosing calls ------------------------------------------------------------------------------
 */

static bool takes_all(void)
{
    const char *all = getenv("UP_TEST_ALL");
    return all && !strcmp(all, "1");
}

static bool takes_few(void)
{
    const char *brief = getenv("UP_TEST_SHORT");
    return brief && *brief;
}

/* SQLite has some ten thousand allocations in a run, and its own tests for them: of those never
 * all. */
static int64_t sample_every(enum fault_kind kind, int64_t calls)
{
    if (takes_all()) return kind == FAULT_SQL_MEMORY ? up_max(1, calls / 1000) : 1;
    return up_max(1, calls / (takes_few() ? 2 : 8));
}

static bool site_is_met(uintptr_t *met, int *count, uintptr_t site)
{
    for (int i = 0; i < *count; i++)
        if (met[i] == site) return true;
    assert_true(*count < SITES_MAX);
    met[(*count)++] = site;
    return false;
}

/* The calls to fail: chosen[i] for call i + 1. The first from each place in the code and the last.
 */
static void choose(enum fault_kind kind, const uintptr_t *site, int64_t calls, bool *chosen)
{
    static uintptr_t met[SITES_MAX];
    int count = 0;
    int64_t every = sample_every(kind, calls);
    for (int64_t i = 0; i < calls; i++)
        chosen[i] = i % every == every / 2 || !site_is_met(met, &count, site[i]);
    count = 0;
    for (int64_t i = calls - 1; i >= 0; i--) chosen[i] |= !site_is_met(met, &count, site[i]);
}

static void fail_call(const struct form *form, enum fault_kind kind, int64_t call, bool alone,
                      const struct result *whole)
{
    static struct result result;
    run(form, kind, call, alone, &result);
    judge(form, kind, &result, whole);
}

static void torture(const struct form *form, enum fault_kind kind)
{
    static struct result whole;
    on_trial = form;
    run(form, kind, 0, true, &whole);
    if (whole.status != 0) fail_msg("%s fails with no fault at all: %s", form->name, whole.err);
    assert_true(form->command || (whole.complete && *whole.losses));
    int64_t calls = faults->calls, met = 0, taken = 0;
    int64_t share = takes_all() ? 1 : takes_few() ? SHORT_SHARE : SHARE;
    if (!calls && form->command == &up_command_whatis) return; // no database is read
    assert_true(calls > 0 && calls <= FAULT_CALLS_MAX);
    bool *chosen = calloc((size_t)calls, sizeof *chosen);
    choose(kind, faults->site, calls, chosen);
    for (int64_t call = 1; call <= calls; call++) {
        // Each form leaves out others.
        if (!chosen[call - 1] || met++ % share != (form - forms) % share) continue;
        bool alone = taken++ % 2; // one way or the other, unless all is asked for
        fail_call(form, kind, call, alone, &whole);
        if (takes_all()) fail_call(form, kind, call, !alone, &whole);
    }
    print_message("%s: %lld of %lld calls failed\n", form->name, (long long)taken,
                  (long long)calls);
    free(chosen);
}

static void torture_all(enum fault_kind kind)
{
    const char *only = getenv("UP_TORTURE_FORM"); // while one is being mended
    blamed = 0;
    for (int i = 0; i < UP_COUNT(forms); i++) {
        if (only && strcmp(only, forms[i].name) != 0) continue;
        torture(&forms[i], kind);
    }
    assert_int_equal(blamed, 0);
}

static void no_memory(void **state)
{
    (void)state;
    torture_all(FAULT_MEMORY);
}

static void broken_files(void **state)
{
    (void)state;
    torture_all(FAULT_FILE);
}

static void no_memory_for_sqlite(void **state)
{
    (void)state;
    torture_all(FAULT_SQL_MEMORY);
}

/* --- All of it -----------------------------------------------------------------------------------
 */

// The same without its config: what it would take is modelled.
static void make_foreign(void)
{
    sqlite3 *db;
    assert_int_equal(system("cp whole.db foreign.db"), 0);
    assert_int_equal(sqlite3_open("foreign.db", &db), SQLITE_OK);
    assert_int_equal(
        sqlite3_exec(db, "DELETE FROM meta WHERE key LIKE 'config%'", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

// The run whose database the reports are about, and the one that is resumed.
static void make_whole(void)
{
    static struct result result;
    run(&forms[0], FAULT_NONE, 0, true, &result);
    if (result.status != 0) fail_msg("%s", result.err);
    assert_int_equal(rename("run/run.db", "whole.db"), 0);
    make_foreign();
    const struct form saving = {"saving", NULL, {TRACED, ON_CPU, "--save", "../saves"}};
    run(&saving, FAULT_NONE, 0, true, &result);
    if (result.status != 0) fail_msg("%s", result.err);
}

static int enter_box(void **state)
{
    (void)state;
    faults = __real_mmap(NULL, sizeof *faults, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                         -1, 0);
    if (faults == MAP_FAILED) return -1;
    faults_hook_sqlite();
    // In memory, where nothing waits for a disk.
    strcpy(box, "/dev/shm/upipe-test-XXXXXX");
    if (!mkdtemp(box)) folder_make(box);
    if (chdir(box) || mkdir("run", 0700)) return -1;
    file_write_text("text", 4096);
    make_whole();
    return 0;
}

static int leave_box(void **state)
{
    (void)state;
    if (chdir("/")) return -1;
    folder_remove(box);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_memory),
        cmocka_unit_test(broken_files),
        cmocka_unit_test(no_memory_for_sqlite),
    };
    return cmocka_run_group_tests(tests, enter_box, leave_box);
}
