/* A run that is killed at any moment, and a disk that fills: the file is whole up to some moment,
 * and the training goes on. */
#include "profiler/recorder.h"
#include "tests/profiler/events.h"
#include "tests/profiler/run_db.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

static const struct up_span no_span = {-1, -1};

// Every fourth step differs, so that there is always something to write.
static void step_of_many_events(struct maker *m, int step)
{
    make_step_begin(m, step);
    for (int i = 0; i < 100; i++) {
        uint64_t range = make_range_begin(m, "mlp", i);
        uint64_t id = make_alloc(m, "mlp.up", i, 64 + step / 4);
        make_kernel(m, "matmul");
        make_free(m, id, "mlp.up", i, 64 + step / 4);
        make_range_end(m, range, "mlp", i);
    }
    make_step_end(m, 1);
}

static enum up_status record_steps(const char *path, int steps, struct up_error *err)
{
    struct up_recorder *recorder;
    enum up_status rc = up_recorder_create(path, no_span, NULL, 0, &recorder, err);
    if (rc != UP_OK) return rc;
    struct up_trace *trace = up_recorder_add_rank(recorder, 0, "d", 0);
    rc = up_recorder_start(recorder, err);
    struct maker m = maker_on_ring(trace);
    for (int step = 0; step < steps; step++) step_of_many_events(&m, step);
    up_trace_close(trace);
    return up_recorder_finish(recorder, "ok", err);
}

// --- Killed ------------------------------------------------------------------------------------

static pid_t start_run(const char *path, int steps)
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) _exit((int)record_steps(path, steps, NULL));
    return child;
}

// True if it was killed in time, that is, had not ended by itself.
static bool run_and_kill(const char *path, int steps, int64_t after_ns)
{
    int status = 0;
    pid_t child = start_run(path, steps);
    nanosleep(&(struct timespec){after_ns / 1000000000, after_ns % 1000000000}, NULL);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status);
}

// How long a run takes that is left alone.
static int64_t time_run(const char *path, int steps)
{
    int status = 0;
    int64_t begin_ns = up_clock_ns();
    assert_true(waitpid(start_run(path, steps), &status, 0) > 0);
    assert_int_equal(status, 0);
    return up_clock_ns() - begin_ns;
}

static void check_killed(const char *path, int steps, int *with_rows)
{
    sqlite3 *db = open_db(path);
    assert_consistent(db);
    // Complete only if it was killed after all was there.
    if (query_number(db, "SELECT value FROM meta WHERE key = 'complete'")) {
        assert_int_equal(query_number(db, "SELECT count(end_ns) FROM step"), steps);
        assert_query(db, "SELECT value FROM meta WHERE key = 'outcome'", "ok");
    }
    // Steps follow each other, and only the last may lack its end.
    assert_query(db, "SELECT count(*) - 1 - max(step) FROM step HAVING count(*)",
                 query_number(db, "SELECT count(*) FROM step") ? "0" : "");
    assert_query(db,
                 "SELECT count(*) FROM step WHERE end_ns IS NULL AND step < (SELECT max(step) FROM "
                 "step)",
                 "0");
    // What is written is a beginning of the rank's events: nothing in the middle is missing.
    assert_query(db,
                 "SELECT count(*) FROM step s WHERE same_as_step IS NULL AND end_ns IS NOT NULL AND"
                 " (SELECT count(free_seq) FROM tensor t WHERE t.step = s.step) <> 100",
                 "0");
    if (query_number(db, "SELECT count(*) FROM tensor")) ++*with_rows;
    sqlite3_close(db);
}

static void killed_run_leaves_a_readable_file(void **state)
{
    (void)state;
    enum { STEPS = 60 };
    int killed = 0, with_rows = 0;
    for (int i = 0; i < 50; i++) {
        struct sandbox box;
        sandbox_init(&box);
        int64_t whole_ns = time_run(box.path, STEPS);
        sandbox_files(&box, true);
        double part = (double)(up_random_u64(7, 0, (uint64_t)i) >> 40) / (1 << 24);
        if (run_and_kill(box.path, STEPS, (int64_t)((double)whole_ns * part))) {
            killed++;
            if (access(box.path, F_OK) == 0) check_killed(box.path, STEPS, &with_rows);
        }
        sandbox_release(&box);
    }
    assert_true(killed >= 25);
    assert_true(with_rows >= 10);
}

// The next run under the same name takes nothing over from one that was killed, nor its WAL.
static void killed_run_is_replaced(void **state)
{
    (void)state;
    struct sandbox box;
    struct up_error err = {0};
    sandbox_init(&box);
    for (int i = 0; i < 10; i++) run_and_kill(box.path, 400, 5000000 * (i + 1));
    if (record_steps(box.path, 3, &err) != UP_OK) fail_msg("%s", err.text);
    sqlite3 *db = open_db(box.path);
    assert_consistent(db);
    assert_query(db, "SELECT count(*) FROM step", "3");
    assert_query(db, "SELECT count(*) FROM tensor", "300");
    sqlite3_close(db);
    sandbox_release(&box);
}

// --- A full disk -------------------------------------------------------------------------------

/* No file may grow beyond `bytes`: writes then fail as on a full disk. RLIM_INFINITY ends it. */
static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

// True if the file tells that the disk was full.
static bool check_full(const char *path)
{
    sqlite3 *db = open_db(path);
    assert_consistent(db);
    assert_query(db, "SELECT value FROM meta WHERE key = 'complete'", "0");
    bool told = query_number(db, "SELECT count(*) FROM diagnostic WHERE kind = 'disk'") == 1;
    sqlite3_close(db);
    return told;
}

static void full_disk_stops_the_trace_alone(void **state)
{
    (void)state;
    int told = 0;
    for (int i = 0; i < 12; i++) {
        struct sandbox box;
        struct up_error err = {0};
        sandbox_init(&box);
        limit_files((rlim_t)(150000 + 90000 * i));
        enum up_status rc = record_steps(box.path, 1000, &err); // returns: no rank waits for ever
        limit_files(RLIM_INFINITY);
        assert_int_equal(rc, UP_FAILED);
        assert_non_null(strstr(err.text, box.path));
        assert_non_null(strstr(err.text, "the trace stopped"));
        told += check_full(box.path);
        sandbox_release(&box);
    }
    assert_true(told >= 6);
}

static void full_disk_at_creation_leaves_nothing(void **state)
{
    (void)state;
    struct sandbox box;
    struct up_error err = {0};
    sandbox_init(&box);
    limit_files(5000); // less than the schema takes
    enum up_status rc = record_steps(box.path, 1, &err);
    limit_files(RLIM_INFINITY);
    assert_int_equal(rc, UP_FAILED);
    assert_non_null(strstr(err.text, box.path));
    assert_int_equal(sandbox_files(&box, false), 0);
    sandbox_release(&box);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_run_leaves_a_readable_file),
        cmocka_unit_test(killed_run_is_replaced),
        cmocka_unit_test(full_disk_stops_the_trace_alone),
        cmocka_unit_test(full_disk_at_creation_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
