/* For tests that write a run.db and look at it: a folder of their own, and one-line questions. */
#ifndef UP_TESTS_PROFILER_RUN_DB_H
#define UP_TESTS_PROFILER_RUN_DB_H

#include "store/store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A folder that is new, and what is in it. */
struct sandbox {
    char folder[64];
    char path[96]; // run.db in it
};

static inline void sandbox_init(struct sandbox *box)
{
    strcpy(box->folder, "/tmp/upipe-test-XXXXXX");
    assert_non_null(mkdtemp(box->folder));
    snprintf(box->path, sizeof box->path, "%s/run.db", box->folder);
}

/* The number of files in the folder; removes them if `clear`. */
static inline int sandbox_files(const struct sandbox *box, bool clear)
{
    int count = 0;
    DIR *folder = opendir(box->folder);
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
        char name[400];
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        count++;
        snprintf(name, sizeof name, "%s/%s", box->folder, entry->d_name);
        if (clear && unlink(name) != 0) assert_int_equal(rmdir(name), 0);
    }
    closedir(folder);
    return count;
}

static inline void sandbox_release(const struct sandbox *box)
{
    sandbox_files(box, true);
    assert_int_equal(rmdir(box->folder), 0);
}

static inline sqlite3 *open_db(const char *path)
{
    sqlite3 *db = NULL;
    struct up_error err = {0};
    if (up_store_open(path, &db, &err) != UP_OK) fail_msg("%s", err.text);
    return db;
}

/* The rows of a query: columns joined by '|', rows by '\n', NULL as "-". */
static inline const char *query(sqlite3 *db, const char *sql)
{
    static char text[1 << 16];
    size_t used = 0;
    sqlite3_stmt *statement = NULL;
    if (sqlite3_prepare_v2(db, sql, -1, &statement, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    text[0] = 0;
    int code;
    for (int row = 0; (code = sqlite3_step(statement)) == SQLITE_ROW; row++)
        for (int i = 0; i < sqlite3_column_count(statement); i++) {
            const char *value = (const char *)sqlite3_column_text(statement, i);
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%s",
                                     i     ? "|"
                                     : row ? "\n"
                                           : "",
                                     value ? value : "-");
            assert_true(used < sizeof text);
        }
    assert_int_equal(code, SQLITE_DONE);
    sqlite3_finalize(statement);
    return text;
}

static inline int64_t query_number(sqlite3 *db, const char *sql)
{
    return strtoll(query(db, sql), NULL, 10);
}

/* What is expected may itself be asked for, and is so first: an answer stands until the next one. */
#define assert_query(db, sql, expected)                                                            \
    do {                                                                                           \
        const char *expected_text = (expected);                                                    \
        assert_string_equal(query(db, sql), expected_text);                                        \
    } while (0)

/* What holds for every run.db, however its run ended. */
static inline void assert_consistent(sqlite3 *db)
{
    assert_query(db, "PRAGMA integrity_check", "ok");
    assert_query(db, "SELECT count(*) FROM tensor WHERE free_seq <= alloc_seq", "0");
    assert_query(db, "SELECT count(*) FROM range WHERE end_seq <= begin_seq", "0");
    assert_query(db, "SELECT count(*) FROM tensor WHERE (free_seq IS NULL) <> (free_ns IS NULL)",
                 "0");
    assert_query(db,
                 "SELECT count(*) FROM step s WHERE same_as_step IS NOT NULL AND NOT EXISTS (SELECT"
                 " 1 FROM step o WHERE o.rank = s.rank AND o.step = s.same_as_step AND"
                 " o.same_as_step IS NULL AND o.event_hash = s.event_hash AND"
                 " o.peak_seq IS s.peak_seq)",
                 "0");
    assert_query(db,
                 "SELECT count(*) FROM tensor t WHERE range_id IS NOT NULL AND NOT EXISTS (SELECT 1"
                 " FROM range r WHERE r.id = t.range_id)",
                 "0");
    assert_query(db,
                 "SELECT count(*) FROM (SELECT range_id FROM kernel UNION ALL SELECT range_id FROM"
                 " copy UNION ALL SELECT range_id FROM collective) WHERE range_id IS NOT NULL AND"
                 " range_id NOT IN (SELECT id FROM range)",
                 "0");
    assert_query(db,
                 "SELECT count(*) FROM range t WHERE parent IS NOT NULL AND NOT EXISTS (SELECT 1"
                 " FROM range r WHERE r.id = t.parent)",
                 "0");
}

#endif
