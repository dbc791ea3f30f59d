/* A disk that fills during a run: the trace stops and says so, the training does not. */
#include "store/store.h"
#include "tests/cli/program.h"

#include <sys/mount.h>
#include <sys/resource.h>

#define STEPS "20"

static char box[32], text_path[64], log_path[64];

/* --- The run -------------------------------------------------------------------------------------
 */

static void train_traced(struct program *program, const char *trace)
{
    program_run(program, "upipe-train", "--layers", "1", "--seq", "8", "--steps", STEPS,
                "--threads", "1", "--data", text_path, "--json-log", log_path, "--trace", trace,
                "--trace-steps", "0:" STEPS);
}

static int steps_logged(void)
{
    char log[1 << 14];
    int lines = 0;
    file_read(log_path, log, sizeof log);
    for (const char *at = log; *at; at++) lines += *at == '\n';
    return lines;
}

static int64_t query_number(sqlite3 *db, const char *sql)
{
    sqlite3_stmt *statement = NULL;
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &statement, NULL), SQLITE_OK);
    int64_t number =
        sqlite3_step(statement) == SQLITE_ROW ? sqlite3_column_int64(statement, 0) : -1;
    sqlite3_finalize(statement);
    return number;
}

/* Whole as far as it goes; true if there was room for the row that tells why it stops. */
static bool check_stopped_trace(const char *trace)
{
    struct up_error err = {0};
    sqlite3 *db = NULL;
    if (up_store_open(trace, &db, &err) != UP_OK) fail_msg("%s", err.text);
    assert_int_equal(query_number(db, "SELECT count(*) FROM pragma_integrity_check"
                                      " WHERE integrity_check <> 'ok'"),
                     0);
    assert_int_equal(query_number(db, "SELECT value FROM meta WHERE key = 'complete'"), 0);
    assert_true(query_number(db, "SELECT count(*) FROM step") < 20);
    bool told = query_number(db, "SELECT count(*) FROM diagnostic WHERE kind = 'disk'") == 1;
    sqlite3_close(db);
    return told;
}

// The training went through, and one line says what became of the trace.
static void check_trained(const struct program *program, const char *trace)
{
    if (program->status != 0) fail_msg("status %d: %s", program->status, program->err);
    assert_int_equal(steps_logged(), 20);
    const char *newline = strchr(program->err, '\n');
    if (!newline || newline[1]) fail_msg("expected one line: %s", program->err);
    assert_non_null(strstr(program->err, trace));
    assert_non_null(strstr(program->err, "the trace stopped before the run ended"));
}

/* --- Ways of being full --------------------------------------------------------------------------
 */

/* No file of a child may grow beyond `bytes`: writes then fail. RLIM_INFINITY ends it. */
static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void files_that_may_not_grow(void **state)
{
    (void)state;
    int told = 0;
    for (int i = 0; i < 4; i++) {
        static struct program program;
        char trace[64];
        snprintf(trace, sizeof trace, "%s/run%d.db", box, i);
        limit_files((rlim_t)(150000 + 60000 * i));
        train_traced(&program, trace);
        limit_files(RLIM_INFINITY);
        check_trained(&program, trace);
        told += check_stopped_trace(trace);
    }
    assert_true(told >= 2);
}

static void file_system_without_space(void **state)
{
    (void)state;
    static struct program program;
    char folder[64], trace[96];
    snprintf(folder, sizeof folder, "%s/full", box);
    snprintf(trace, sizeof trace, "%s/run.db", folder);
    assert_int_equal(mkdir(folder, 0700), 0);
    if (mount("tmpfs", folder, "tmpfs", 0, "size=360k")) skip(); // not root, or not allowed to
    train_traced(&program, trace);
    // Looked at where there is room for SQLite to work.
    char copy[128], command[1024];
    snprintf(copy, sizeof copy, "%s/copied.db", box);
    snprintf(command, sizeof command,
             "cp '%s' '%s' && if [ -f '%s-wal' ]; then cp '%s-wal' '%s-wal'; fi", trace, copy,
             trace, trace, copy);
    int copied = system(command);
    assert_int_equal(umount(folder), 0);
    assert_int_equal(copied, 0);
    check_trained(&program, trace);
    check_stopped_trace(copy);
}

static void no_room_to_begin(void **state)
{
    (void)state;
    static struct program program;
    char trace[64];
    snprintf(trace, sizeof trace, "%s/never.db", box);
    unlink(log_path);
    int before = folder_count(box);
    limit_files(5000); // less than the schema takes
    train_traced(&program, trace);
    limit_files(RLIM_INFINITY);
    assert_int_equal(program.status, 1);
    assert_non_null(strstr(program.err, trace));
    assert_int_equal(folder_count(box), before);
}

static int make_box(void **state)
{
    (void)state;
    folder_make(box);
    snprintf(text_path, sizeof text_path, "%s/text", box);
    snprintf(log_path, sizeof log_path, "%s/steps.jsonl", box);
    file_write_text(text_path, 4096);
    return 0;
}

static int remove_box(void **state)
{
    (void)state;
    folder_remove(box);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_that_may_not_grow),
        cmocka_unit_test(file_system_without_space),
        cmocka_unit_test(no_room_to_begin),
    };
    return cmocka_run_group_tests(tests, make_box, remove_box);
}
