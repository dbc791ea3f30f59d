/* Opening to read: what is not a trace is said in one line; a WAL that was left is read; a file
 * that lies does no harm. */
#include "store/store.h"
#include "tests/profiler/run_db.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

static void assert_unreadable(const char *path, const char *because)
{
    sqlite3 *db = NULL;
    struct up_error err = {0};
    if (up_store_open(path, &db, &err) != UP_USAGE) fail_msg("opened; expected '%s'", because);
    assert_null(db);
    assert_null(strchr(err.text, '\n'));
    if (!strstr(err.text, because) || strncmp(err.text, path, strlen(path)) != 0 ||
        !strstr(err.text, "expected"))
        fail_msg("'%s' does not say '%s'", err.text, because);
}

static void put_file(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

// A finished trace of `rows` samples.
static void put_trace(const char *path, int rows)
{
    struct up_store *store = NULL;
    assert_int_equal(up_store_create(path, NULL, 0, &store, NULL), UP_OK);
    for (int i = 0; i < rows; i++) up_store_usage(store, 0, i, i, i);
    assert_int_equal(up_store_finish(store, true, NULL), UP_OK);
}

// Changes the file by SQL, as someone else's tool could.
static void alter(const char *path, const char *sql)
{
    sqlite3 *db = NULL;
    char *message = NULL;
    sqlite3_open(path, &db);
    sqlite3_exec(db, sql, NULL, NULL, &message);
    if (message) fail_msg("%s", message);
    sqlite3_close(db);
}

static void what_is_no_trace_is_refused(void **state)
{
    (void)state;
    struct sandbox box;
    sandbox_init(&box);
    assert_unreadable(box.path, "No such file or directory");
    assert_unreadable(box.folder, "it is a folder");
    assert_unreadable("/dev/zero", "it is a device");
    put_file(box.path, "", 0);
    assert_unreadable(box.path, "it is an empty file");
    put_file(box.path, "SQLite format 3", 16);
    assert_unreadable(box.path, "it is not an SQLite database");
    char text[5000];
    memset(text, 'x', sizeof text);
    put_file(box.path, text, sizeof text);
    assert_unreadable(box.path, "it is not an SQLite database");
    unlink(box.path);
    alter(box.path, "CREATE TABLE meta (key, value)");
    assert_unreadable(box.path, "it is another application's database");
    sandbox_release(&box);
}

// Which says nothing about what is in it.
static void locked_is_not_damaged(void **state)
{
    (void)state;
    struct sandbox box;
    sqlite3 *other = NULL;
    sandbox_init(&box);
    put_trace(box.path, 1);
    assert_int_equal(sqlite3_open(box.path, &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "BEGIN EXCLUSIVE", NULL, NULL, NULL), SQLITE_OK);
    assert_unreadable(box.path, "another program has had it locked");
    sqlite3_close(other);
    sandbox_release(&box);
}

static void other_layouts_are_refused(void **state)
{
    (void)state;
    struct sandbox box;
    sandbox_init(&box);
    put_trace(box.path, 1);
    alter(box.path, "PRAGMA user_version = 2");
    assert_unreadable(box.path, "it has layout 2: read it with a newer upipe");
    alter(box.path, "PRAGMA user_version = 0");
    assert_unreadable(box.path, "it has layout 0");
    sandbox_release(&box);
}

static void missing_tables_and_columns_are_damage(void **state)
{
    (void)state;
    static const struct {
        const char *sql, *table;
    } cases[] = {
        {"DROP TABLE step", "step"},
        {"DROP VIEW timeline", "timeline"},
        {"DROP TABLE usage; CREATE TABLE usage (rank, ns)", "usage"},
        {"DROP TABLE rank; CREATE VIEW rank AS SELECT 1 AS rank, 2 AS node, 3 AS device_name, 4 AS "
         "capacity_bytes, 5 AS baseline_used_bytes",
         "rank"},
    };
    for (int i = 0; i < UP_COUNT(cases); i++) {
        struct sandbox box;
        char because[64];
        sandbox_init(&box);
        put_trace(box.path, 1);
        alter(box.path, cases[i].sql);
        snprintf(because, sizeof because, "damaged: %s: missing", cases[i].table);
        assert_unreadable(box.path, because);
        sandbox_release(&box);
    }
}

// Cut anywhere: refused. With random bytes: refused or opened, never worse.
static void damaged_files_are_harmless(void **state)
{
    (void)state;
    struct sandbox box;
    struct stat status;
    int refused = 0;
    sandbox_init(&box);
    put_trace(box.path, 2000);
    assert_int_equal(stat(box.path, &status), 0);
    size_t size = (size_t)status.st_size;
    char *whole = malloc(size), *bytes = malloc(size);
    FILE *file = fopen(box.path, "rb");
    assert_int_equal(fread(whole, 1, size, file), size);
    fclose(file);
    for (uint64_t i = 0; i < 200; i++) {
        memcpy(bytes, whole, size);
        for (uint64_t j = 0; j < 300; j++) // in the first pages, where the schema is
            bytes[100 + up_random_u64(i, 1, j) % (3 * 4096)] = (char)up_random_u64(i, 2, j);
        bool cut = i % 2;
        put_file(box.path, bytes, cut ? 100 + up_random_u64(i, 3, 0) % (size - 100) : size);
        sqlite3 *db = NULL;
        struct up_error err = {0};
        if (up_store_open(box.path, &db, &err) != UP_OK) {
            refused += !cut;
            assert_int_equal(err.status, UP_USAGE);
        } else {
            assert_false(cut);
            sqlite3_exec(db, "SELECT * FROM usage; SELECT * FROM timeline", NULL, NULL, NULL);
        }
        sqlite3_close(db);
    }
    assert_in_range(refused, 10, 99);
    free(whole);
    free(bytes);
    sandbox_release(&box);
}

static void trace_is_read_only(void **state)
{
    (void)state;
    struct sandbox box;
    sandbox_init(&box);
    put_trace(box.path, 3);
    sqlite3 *db = open_db(box.path);
    assert_int_not_equal(sqlite3_exec(db, "DELETE FROM usage", NULL, NULL, NULL), SQLITE_OK);
    assert_int_not_equal(sqlite3_exec(db, "ATTACH 'other.db' AS other", NULL, NULL, NULL),
                         SQLITE_OK);
    assert_query(db, "SELECT count(*) FROM usage", "3");
    sqlite3_close(db);
    assert_int_equal(sandbox_files(&box, false), 1);
    sandbox_release(&box);
}

static void meta_is_looked_up(void **state)
{
    (void)state;
    struct sandbox box;
    char text[64];
    sandbox_init(&box);
    put_trace(box.path, 0);
    alter(box.path, "INSERT INTO meta VALUES ('nothing', NULL)");
    sqlite3 *db = open_db(box.path);
    assert_true(up_store_meta_get(db, "complete", text, sizeof text));
    assert_string_equal(text, "1");
    assert_false(up_store_meta_get(db, "no such key", text, sizeof text));
    assert_string_equal(text, "");
    assert_false(up_store_meta_get(db, "nothing", text, sizeof text));
    sqlite3_close(db);
    sandbox_release(&box);
}

// --- What a killed run leaves ------------------------------------------------------------------

// One row is in the WAL alone.
static void leave_wal(const char *path)
{
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        struct up_store *store = NULL;
        if (up_store_create(path, NULL, 0, &store, NULL) != UP_OK) _exit(1);
        up_store_usage(store, 0, 1, 2, 3);
        up_store_commit(store);
        raise(SIGKILL);
    }
    int status = 0;
    waitpid(child, &status, 0);
    assert_true(WIFSIGNALED(status));
}

static void wal_of_a_killed_run_is_read(void **state)
{
    (void)state;
    struct sandbox box;
    char shm[120];
    sandbox_init(&box);
    leave_wal(box.path);
    for (int i = 0; i < 2; i++) {
        sqlite3 *db = open_db(box.path);
        assert_query(db, "SELECT count(*) FROM usage", "1");
        sqlite3_close(db);
        snprintf(shm, sizeof shm, "%s-shm", box.path);
        unlink(shm); // copied elsewhere without it, say
    }
    sandbox_release(&box);
}

// In a folder that cannot be written, as another user: run as root this is tried by a child.
static int open_as_nobody(const char *path, char *text, size_t size)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        sqlite3 *db = NULL;
        struct up_error err = {0};
        if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(99);
        enum up_status rc = up_store_open(path, &db, &err);
        const char *said = rc == UP_OK ? query(db, "SELECT count(*) FROM usage") : err.text;
        _exit(write(ends[1], said, strlen(said) + 1) > 0 ? (int)rc : 98);
    }
    int status = 0;
    close(ends[1]);
    ssize_t got = read(ends[0], text, size - 1);
    text[got > 0 ? got : 0] = 0;
    close(ends[0]);
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void folder_that_cannot_be_written(void **state)
{
    (void)state;
    struct sandbox box;
    char text[1024], name[120];
    sandbox_init(&box);
    leave_wal(box.path);
    chmod(box.folder, 0555);
    // With the -shm of the killed run SQLite reads the WAL all the same.
    assert_int_equal(open_as_nobody(box.path, text, sizeof text), UP_OK);
    assert_string_equal(text, "1");
    chmod(box.folder, 0755);
    snprintf(name, sizeof name, "%s-shm", box.path);
    unlink(name);
    chmod(box.folder, 0555);
    assert_int_equal(open_as_nobody(box.path, text, sizeof text), UP_USAGE);
    assert_non_null(strstr(text, "copy both elsewhere"));
    // Nothing to play back: the file alone will do.
    chmod(box.folder, 0755);
    snprintf(name, sizeof name, "%s-wal", box.path);
    unlink(name);
    chmod(box.folder, 0555);
    assert_int_equal(open_as_nobody(box.path, text, sizeof text), UP_OK);
    assert_string_equal(text, "0");
    chmod(box.folder, 0755);
    sandbox_release(&box);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_no_trace_is_refused),
        cmocka_unit_test(locked_is_not_damaged),
        cmocka_unit_test(other_layouts_are_refused),
        cmocka_unit_test(missing_tables_and_columns_are_damage),
        cmocka_unit_test(damaged_files_are_harmless),
        cmocka_unit_test(trace_is_read_only),
        cmocka_unit_test(meta_is_looked_up),
        cmocka_unit_test(wal_of_a_killed_run_is_read),
        cmocka_unit_test(folder_that_cannot_be_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
