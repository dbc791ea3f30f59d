/* Opening a run.db to read: what is not one is said in one line, and what is one is held at arm's
 * length, since it may come from anyone. */
#define _GNU_SOURCE // asprintf
#include "store/store_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// --- Before SQLite sees it ---------------------------------------------------------------------

static bool has_content(const char *path, const char *ending)
{
    char *name = NULL;
    if (asprintf(&name, "%s%s", path, ending) < 0) return true;
    FILE *file = fopen(name, "rb");
    bool content = file && fgetc(file) != EOF;
    if (file) fclose(file);
    free(name);
    return content;
}

static enum up_status check_identity(const char *path, struct up_error *err)
{
    struct up_file_identity identity = up_file_identify(path, false);
    if (identity.kind == UP_FILE_MISSING || identity.kind == UP_FILE_UNREADABLE)
        return up_fail(err, up_errno_status(identity.error), "%s: expected a upipe trace: %s", path,
                       strerror(identity.error));
    if (identity.kind != UP_FILE_TRACE)
        return up_fail(err, UP_USAGE, "%s: expected a upipe trace, it is %s", path,
                       up_file_kind_text(identity.kind));
    if (identity.version < 1 || identity.version > UP_STORE_VERSION)
        return up_fail(err, UP_USAGE,
                       "%s: expected a upipe trace of layout 1 to %d, it has layout %u%s", path,
                       UP_STORE_VERSION, identity.version,
                       identity.version ? ": read it with a newer upipe" : "");
    // A run that was killed while the WAL was being copied back may have left it shorter.
    if (identity.bytes < identity.bytes_told && !has_content(path, "-wal"))
        return up_fail(err, UP_USAGE, "%s: expected a upipe trace of %lld bytes, it is cut at %lld",
                       path, (long long)identity.bytes_told, (long long)identity.bytes);
    return UP_OK;
}

// --- Opening -----------------------------------------------------------------------------------

// "file:NAME?immutable=1", with what URIs reserve escaped.
static char *immutable_uri(const char *name)
{
    char *uri = malloc(3 * strlen(name) + sizeof "file:?immutable=1"), *at = uri;
    if (!uri) return NULL;
    at = stpcpy(at, "file:");
    for (; *name; name++) {
        if (strchr("?#%", *name))
            at += sprintf(at, "%%%02X", (unsigned)(unsigned char)*name);
        else
            *at++ = *name;
    }
    stpcpy(at, "?immutable=1");
    return uri;
}

enum { LOCK_WAIT_S = 5 };

// Opens and reads a first page, which is where a WAL or a journal that cannot be had shows.
static int try_open(const char *name, int flags, sqlite3 **db)
{
    int code = sqlite3_open_v2(name, db, flags, NULL);
    if (*db) sqlite3_busy_timeout(*db, LOCK_WAIT_S * 1000);
    if (code == SQLITE_OK)
        code = sqlite3_exec(*db, "SELECT count(*) FROM sqlite_schema", NULL, NULL, NULL);
    return code;
}

// True where opening in another way may help.
static bool blocked(int code)
{
    code &= 0xff;
    return code == SQLITE_CANTOPEN || code == SQLITE_READONLY || code == SQLITE_IOERR;
}

/* Read only; then, should a rollback journal have to be played back first, writable; then, in a
 * folder where neither works and if nothing beside the file is needed, the file by itself. */
static int open_somehow(const char *name, sqlite3 **db)
{
    int code = try_open(name, SQLITE_OPEN_READONLY, db);
    if (blocked(code)) {
        sqlite3_close(*db);
        code = try_open(name, SQLITE_OPEN_READWRITE, db);
    }
    if (blocked(code) && !has_content(name, "-wal") && !has_content(name, "-journal")) {
        char *uri = immutable_uri(name);
        if (!uri) return SQLITE_NOMEM;
        sqlite3_close(*db);
        code = try_open(uri, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, db);
        free(uri);
    }
    return code;
}

static enum up_status say_unreadable(const char *path, int code, sqlite3 *db, struct up_error *err)
{
    if (up_store_status(db) == UP_FAILED)
        return up_fail(err, UP_FAILED, "%s: cannot be read: %s", path, sqlite3_errmsg(db));
    if ((code & 0xff) == SQLITE_BUSY)
        return up_fail(err, UP_USAGE,
                       "%s: expected a upipe trace that can be read, another program has had it "
                       "locked for %d s",
                       path, LOCK_WAIT_S);
    if (blocked(code) && has_content(path, "-wal"))
        return up_fail(err, UP_USAGE,
                       "%s: its -wal file holds the end of the trace and cannot be read in a "
                       "folder that cannot be written: copy both elsewhere (%s)",
                       path, sqlite3_errmsg(db));
    return up_fail(err, UP_USAGE, "%s: expected a upipe trace, it is damaged: %s", path,
                   sqlite3_errmsg(db));
}

// --- Guarding ----------------------------------------------------------------------------------

/* A file may lie: no function with side effects is run for its schema, cells are checked before
 * they are used, nothing is written, and no value is larger than any that upipe writes. */
static int guard(sqlite3 *db)
{
    static const int limits[][2] = {
        {SQLITE_LIMIT_LENGTH, 64 << 20},    {SQLITE_LIMIT_SQL_LENGTH, 1 << 20},
        {SQLITE_LIMIT_COLUMN, 200},         {SQLITE_LIMIT_EXPR_DEPTH, 100},
        {SQLITE_LIMIT_COMPOUND_SELECT, 20}, {SQLITE_LIMIT_ATTACHED, 0},
        {SQLITE_LIMIT_TRIGGER_DEPTH, 1},    {SQLITE_LIMIT_WORKER_THREADS, 0},
    };
    for (int i = 0; i < UP_COUNT(limits); i++) sqlite3_limit(db, limits[i][0], limits[i][1]);
    sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
    sqlite3_db_config(db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
    return sqlite3_exec(db,
                        "PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0; PRAGMA query_only = ON",
                        NULL, NULL, NULL);
}

static enum up_status say_incomplete(const char *path, const char *table, const char *why,
                                     struct up_error *err)
{
    return up_fail(err, UP_USAGE, "%s: expected a upipe trace, it is damaged: %s: %s", path, table,
                   why);
}

/* The columns of the table or view `name`, and which of the two it is, as one text; "" where there
 * is none. UP_FAILED where they cannot be had. */
static enum up_status read_columns(sqlite3 *db, const char *name, char *columns, size_t size)
{
    static const char columns_sql[] =
        "SELECT group_concat(quote(c.name), ',') || (SELECT type FROM sqlite_schema WHERE name = "
        "?1)"
        " FROM (SELECT name FROM pragma_table_info(?1) ORDER BY cid) c";
    sqlite3_stmt *statement = NULL;
    const char *text = NULL;
    int code = sqlite3_prepare_v2(db, columns_sql, -1, &statement, NULL);
    if (code == SQLITE_OK) {
        sqlite3_bind_text(statement, 1, name, -1, SQLITE_STATIC);
        if (sqlite3_step(statement) == SQLITE_ROW)
            text = (const char *)sqlite3_column_text(statement, 0);
    }
    snprintf(columns, size, "%s", text ? text : "");
    if (code == SQLITE_OK) code = sqlite3_finalize(statement);
    return code != SQLITE_OK && up_store_status(db) == UP_FAILED ? UP_FAILED : UP_OK;
}

// `db` must have the table or view `name` with the columns that it has in `ours`.
static enum up_status compare_columns(const char *path, sqlite3 *db, sqlite3 *ours,
                                      const char *name, struct up_error *err)
{
    char found[1024], wanted[1024];
    if (read_columns(ours, name, wanted, sizeof wanted) != UP_OK)
        return up_fail(err, UP_FAILED, "%s: cannot be checked: %s", path, sqlite3_errmsg(ours));
    if (read_columns(db, name, found, sizeof found) != UP_OK)
        return up_fail(err, UP_FAILED, "%s: cannot be read: %s", path, sqlite3_errmsg(db));
    if (*found && !strcmp(found, wanted)) return UP_OK;
    return say_incomplete(path, name, "missing, or not what upipe wrote", err);
}

static enum up_status compare_schema(const char *path, sqlite3 *db, sqlite3 *ours,
                                     struct up_error *err)
{
    enum up_status rc = UP_OK;
    sqlite3_stmt *names = NULL;
    int code = sqlite3_prepare_v2(
        ours, "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view')", -1, &names, NULL);
    while (code == SQLITE_OK && rc == UP_OK && sqlite3_step(names) == SQLITE_ROW) {
        const char *name = (const char *)sqlite3_column_text(names, 0);
        if (name) rc = compare_columns(path, db, ours, name, err);
    }
    if (code == SQLITE_OK) code = sqlite3_finalize(names);
    if (code != SQLITE_OK && rc == UP_OK)
        rc = up_fail(err, UP_FAILED, "%s: cannot be checked: %s", path, sqlite3_errmsg(ours));
    return rc;
}

// Every table and view of the present layout, column by column.
static enum up_status check_schema(const char *path, sqlite3 *db, struct up_error *err)
{
    enum up_status rc = UP_OK;
    sqlite3 *ours = NULL;
    if (sqlite3_open_v2(":memory:", &ours, SQLITE_OPEN_READWRITE, NULL) != SQLITE_OK ||
        sqlite3_exec(ours, up_store_schema, NULL, NULL, NULL) != SQLITE_OK)
        rc = up_fail(err, UP_FAILED, "%s: cannot be checked: %s", path, sqlite3_errmsg(ours));
    else
        rc = compare_schema(path, db, ours, err);
    sqlite3_close(ours);
    return rc;
}

enum up_status up_store_open(const char *path, sqlite3 **db, struct up_error *err)
{
    *db = NULL;
    enum up_status rc = check_identity(path, err);
    if (rc != UP_OK) return rc;
    char *name = up_store_file_name(path);
    if (!name) return up_fail(err, UP_FAILED, "%s: out of host memory", path);
    int code = open_somehow(name, db);
    if (code == SQLITE_OK) code = guard(*db);
    rc = code == SQLITE_OK ? check_schema(path, *db, err) : say_unreadable(path, code, *db, err);
    free(name);
    if (rc != UP_OK) {
        sqlite3_close(*db);
        *db = NULL;
    }
    return rc;
}

bool up_store_meta_get(sqlite3 *db, const char *key, char *out, size_t size)
{
    sqlite3_stmt *statement = NULL;
    sqlite3_prepare_v2(db, "SELECT value FROM meta WHERE key = ?", -1, &statement, NULL);
    sqlite3_bind_text(statement, 1, key, -1, SQLITE_STATIC);
    bool found = sqlite3_step(statement) == SQLITE_ROW && sqlite3_column_text(statement, 0);
    snprintf(out, size, "%s", found ? (const char *)sqlite3_column_text(statement, 0) : "");
    sqlite3_finalize(statement);
    return found;
}
