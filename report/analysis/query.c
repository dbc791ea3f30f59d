#include "report/analysis/query.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum up_status up_no_memory(struct up_error *err)
{
    return up_fail(err, UP_FAILED, "out of memory while reading the run");
}

static enum up_status unreadable(const struct up_run *run, struct up_error *err)
{
    if (sqlite3_errcode(run->db) == SQLITE_NOMEM) return up_no_memory(err);
    return up_fail(err, up_store_status(run->db), "%s: cannot be read as a run.db: %s", run->path,
                   sqlite3_errmsg(run->db));
}

enum up_status up_run_open(const char *path, struct up_run *run, struct up_error *err)
{
    enum up_status rc = UP_OK;
    *run = (struct up_run){.path = path};
    UP_TRY(up_store_open(path, &run->db, err));
    // The first read within a transaction fixes the moment for all later ones.
    if (sqlite3_exec(run->db, "BEGIN; SELECT count(*) FROM meta", NULL, NULL, NULL) != SQLITE_OK)
        rc = unreadable(run, err);
out:
    if (rc != UP_OK) up_run_close(run);
    return rc;
}

enum up_status up_run_open_only(const struct up_arguments *arguments, struct up_run *run,
                                struct up_error *err)
{
    *run = (struct up_run){0};
    if (arguments->positional_count == 1) return up_run_open(arguments->positional[0], run, err);
    if (!arguments->positional_count)
        return up_fail(err, UP_USAGE, "expected a run.db (--help tells more)");
    return up_fail(err, UP_USAGE,
                   "expected one run.db, not '%s' and '%s' (--help lists the commands)",
                   arguments->positional[0], arguments->positional[1]);
}

void up_run_close(struct up_run *run)
{
    sqlite3_close(run->db);
    run->db = NULL;
}

enum up_status up_query_open(struct up_query *query, const struct up_run *run, const char *sql,
                             const int64_t *bind, int count, struct up_error *err)
{
    *query = (struct up_query){.run = run};
    if (sqlite3_prepare_v2(run->db, sql, -1, &query->statement, NULL) != SQLITE_OK)
        return unreadable(run, err);
    for (int i = 0; i < count; i++) sqlite3_bind_int64(query->statement, i + 1, bind[i]);
    return UP_OK;
}

void up_query_bind_text(struct up_query *query, int index, const char *text)
{
    sqlite3_bind_text(query->statement, index, text, -1, SQLITE_STATIC);
}

enum up_status up_query_next(struct up_query *query, bool *row, struct up_error *err)
{
    int status = sqlite3_step(query->statement);
    *row = query->row = status == SQLITE_ROW;
    return status == SQLITE_ROW || status == SQLITE_DONE ? UP_OK : unreadable(query->run, err);
}

// SQLite tells of a text that it had no memory for at the step after.
enum up_status up_query_end(struct up_query *query, struct up_error *err)
{
    bool row;
    return query->row ? up_query_next(query, &row, err) : UP_OK;
}

void up_query_close(struct up_query *query)
{
    sqlite3_finalize(query->statement);
    *query = (struct up_query){0};
}

static bool is_null(const struct up_query *query, int column)
{
    return !query->row || sqlite3_column_type(query->statement, column) == SQLITE_NULL;
}

int64_t up_query_integer(const struct up_query *query, int column, int64_t if_null)
{
    if (is_null(query, column)) return if_null;
    return sqlite3_column_int64(query->statement, column);
}

double up_query_real(const struct up_query *query, int column)
{
    if (is_null(query, column)) return NAN;
    return sqlite3_column_double(query->statement, column);
}

// Valid until the next row.
static const char *column_text(const struct up_query *query, int column)
{
    if (is_null(query, column)) return "";
    const char *text = (const char *)sqlite3_column_text(query->statement, column);
    return text ? text : "";
}

char *up_query_text(const struct up_query *query, int column)
{
    return strdup(column_text(query, column));
}

void up_query_copy(const struct up_query *query, int column, char *out, size_t size)
{
    snprintf(out, size, "%s", column_text(query, column));
}

enum up_status up_query_value(const struct up_run *run, const char *sql, const int64_t *bind,
                              int count, int64_t if_null, int64_t *value, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    bool row = false;
    UP_TRY(up_query_open(&query, run, sql, bind, count, err));
    UP_TRY(up_query_next(&query, &row, err));
    *value = row ? up_query_integer(&query, 0, if_null) : if_null;
out:
    up_query_close(&query);
    return rc;
}

enum up_status up_query_meta(const struct up_run *run, const char *key, char **text,
                             struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    bool row;
    *text = NULL;
    UP_TRY(up_query_open(&query, run, "SELECT value FROM meta WHERE key = ?1", UP_BIND_NONE, err));
    up_query_bind_text(&query, 1, key);
    UP_TRY(up_query_next(&query, &row, err));
    *text = up_query_text(&query, 0);
    if (!*text) UP_TRY(up_no_memory(err));
    UP_TRY(up_query_end(&query, err));
out:
    up_query_close(&query);
    return rc;
}
