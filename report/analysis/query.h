/* An open run.db, and SQL over it with little ceremony. A file that lies (NULLs where none may be,
 * text in a column of numbers) gives odd numbers, never a crash. */
#ifndef UP_REPORT_QUERY_H
#define UP_REPORT_QUERY_H

#include "store/store.h"

enum { UP_NONE = -1 }; // of ranks, steps, layers, counts: none, or not known

struct up_run {
    const char *path; // not owned; messages begin with it
    sqlite3 *db;
};

/* Opens for reading at one moment: a run that is still being written does not move under a report.
 * UP_USAGE for what is no run.db. */
enum up_status up_run_open(const char *path, struct up_run *run, struct up_error *err);
/* The same for a command that takes one run.db and nothing else. */
enum up_status up_run_open_only(const struct up_arguments *arguments, struct up_run *run,
                                struct up_error *err);
void up_run_close(struct up_run *run); // a zeroed run is fine

struct up_query {
    const struct up_run *run;
    sqlite3_stmt *statement;
    bool row; // it stands on one
};

/* Parameters ?1, ?2, ... are whole numbers: the `count` values of `bind`. UP_USAGE when the file
 * cannot be read. Only after UP_OK has up_query_close something to do; a zeroed query is fine. */
enum up_status up_query_open(struct up_query *query, const struct up_run *run, const char *sql,
                             const int64_t *bind, int count, struct up_error *err);
#define UP_BIND(...)                                                                               \
    (const int64_t[]){__VA_ARGS__}, (int)(sizeof(int64_t[]){__VA_ARGS__} / sizeof(int64_t))
#define UP_BIND_NONE NULL, 0
void up_query_bind_text(struct up_query *query, int index, const char *text); // not copied
enum up_status up_query_next(struct up_query *query, bool *row, struct up_error *err);
/* After the one row that was wanted: its texts were not cut for want of memory. */
enum up_status up_query_end(struct up_query *query, struct up_error *err);
void up_query_close(struct up_query *query);

/* Whether the run is of a program that is not ours, recorded by the injection library. */
#define UP_SQL_INJECTED                                                                            \
    "EXISTS (SELECT 1 FROM meta WHERE key = 'recorded_by' AND value = 'injection')"

/* Of rows of kernel and copy: those of what the step itself told. What was seen beside that, and
 * has ids of its own, comes in no order that says anything. */
#define UP_SQL_TOLD "id < 4611686018427387904"

/* Columns of the current row, from 0; where there is no row they are NULL. */
int64_t up_query_integer(const struct up_query *query, int column, int64_t if_null);
double up_query_real(const struct up_query *query, int column); // NaN if NULL
char *up_query_text(const struct up_query *query, int column);  // to be freed; "" if NULL
void up_query_copy(const struct up_query *query, int column, char *out, size_t size); // cut to size

/* The one value that a query gives; `if_null` also where there is no row. */
enum up_status up_query_value(const struct up_run *run, const char *sql, const int64_t *bind,
                              int count, int64_t if_null, int64_t *value, struct up_error *err);

/* What meta has under `key`, to be freed; "" where it has not. */
enum up_status up_query_meta(const struct up_run *run, const char *key, char **text,
                             struct up_error *err);

enum up_status up_no_memory(struct up_error *err);

/* A sum that stays at the end of the range rather than wrap: sizes in a file may be anything. */
static inline int64_t up_sum(int64_t a, int64_t b)
{
    int64_t sum;
    if (!__builtin_add_overflow(a, b, &sum)) return sum;
    return b > 0 ? INT64_MAX : INT64_MIN;
}

#endif
