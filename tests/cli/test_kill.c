/* A run killed at any moment leaves no run.db, or one that opens, is whole as a database, and whose
 * report says how far it got and that it is incomplete. */
#include "tests/cli/program.h"

#include <sqlite3.h>

static struct program report; // large

static void check_database(const char *path)
{
    sqlite3 *db = NULL;
    sqlite3_stmt *statement = NULL;
    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, "PRAGMA integrity_check", -1, &statement, NULL),
                     SQLITE_OK);
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    assert_string_equal(sqlite3_column_text(statement, 0), "ok");
    sqlite3_finalize(statement);
    // No life ends before it begins, no step out of order.
    assert_int_equal(
        sqlite3_prepare_v2(db,
                           "SELECT (SELECT count(*) FROM tensor WHERE free_seq <= alloc_seq) + "
                           "(SELECT count(*) FROM range WHERE end_seq <= begin_seq)",
                           -1, &statement, NULL),
        SQLITE_OK);
    assert_int_equal(sqlite3_step(statement), SQLITE_ROW);
    assert_int_equal(sqlite3_column_int(statement, 0), 0);
    sqlite3_finalize(statement);
    sqlite3_close(db);
}

static void wait_for(const char *path)
{
    for (int i = 0; i < 6000 && access(path, F_OK); i++)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

static void test_killed_at_random(void **state)
{
    (void)state;
    int databases = 0, steps_seen = 0, rounds = getenv("UP_TEST_SHORT") ? 10 : 50;
    for (int round = 0; round < rounds; round++) {
        char folder[32], data[64], trace[64], out[64], err[64];
        folder_make(folder);
        snprintf(data, sizeof data, "%s/data", folder);
        snprintf(trace, sizeof trace, "%s/run.db", folder);
        snprintf(out, sizeof out, "%s/out", folder);
        snprintf(err, sizeof err, "%s/err", folder);
        file_write_text(data, 3000);
        const char *words[] = {"--data",  data,  "--seq",     "32", "--steps", "100000",
                               "--trace", trace, "--threads", "1",  NULL};
        pid_t pid = program_start("upipe-train", words, out, err);
        // Most within the first moments, where the file comes into being; some well into training.
        uint64_t random = up_random_u64(11, 0, (uint64_t)round);
        int64_t ns = (int64_t)(random % (round % 2 ? 60000000 : 500000000));
        if (round % 5 == 4) wait_for(trace); // however slow the machine
        nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
        int status = 0;
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        if (!access(trace, F_OK)) {
            databases++;
            program_run(&report, "upipe-report", trace);
            if (report.status) fail_msg("round %d: %s", round, report.err);
            assert_non_null(strstr(report.out, "INCOMPLETE"));
            steps_seen += strstr(report.out, "step") != NULL;
            check_database(trace);
        }
        folder_remove(folder);
    }
    // Both sides of the moment in which the file appears were met.
    assert_true(databases > 0);
    assert_true(steps_seen > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_killed_at_random)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
