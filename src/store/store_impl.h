/* Inside src/store: the writer's state, its rows, and telling whose a file is. */
#ifndef UP_STORE_STORE_IMPL_H
#define UP_STORE_STORE_IMPL_H

#include "store/store.h"

/* Everything the writer can say, each one prepared statement (rows.c). */
enum up_row_kind {
    UP_ROW_META,
    UP_ROW_RANK,
    UP_ROW_ALLOC,
    UP_ROW_FREE,
    UP_ROW_RANGE_BEGIN,
    UP_ROW_RANGE_END,
    UP_ROW_KERNEL,
    UP_ROW_COPY,
    UP_ROW_COLLECTIVE,
    UP_ROW_STEP_BEGIN,
    UP_ROW_STEP_END,
    UP_ROW_USAGE,
    UP_ROW_DIAGNOSTIC,
    UP_ROW_BASELINE,
    UP_ROW_KERNEL_TIMES,
    UP_ROW_COPY_TIMES,
    UP_ROW_COLLECTIVE_TIMES,
    UP_ROW_KERNEL_SEEN,
    UP_ROW_COPY_SEEN,
    UP_ROW_DEVICE_ALLOC,
    UP_ROW_DEVICE_FREE,
    UP_ROW_PREDICTION,
    UP_ROW_PREDICTION_CATEGORY,
    UP_ROW_KIND_COUNT
};

/* What a row is made of; which parts are read depends on its kind. */
struct up_row {
    int rank;
    const struct up_event *event;
    const int64_t *numbers;   // what no event carries, in the order of the kind's columns
    const char *const *texts; // likewise
    const double *reals;      // likewise
};

/* The statement of a kind, ready to be bound; NULL and the connection's message on failure. */
sqlite3_stmt *up_row_prepare(sqlite3 *db, enum up_row_kind kind);
/* Binds and runs it: SQLITE_DONE, or what went wrong. */
int up_row_run(sqlite3_stmt *statement, enum up_row_kind kind, const struct up_row *row);

/* Ids of what was seen, beyond those of any rank: a row without an id of its own would get the one
 * after the highest, which is that of the next piece of work, or of one whose row was dropped. */
#define UP_SEEN_IDS (INT64_C(1) << 62)

/* What `id` of a rank is in run.db. */
int64_t up_row_id(int rank, uint64_t id);

struct up_store {
    sqlite3 *db;
    sqlite3_stmt *statements[UP_ROW_KIND_COUNT];
    char *path;       // as SQLite is told it; owned
    const char *name; // as the user typed it: the end of `path`
    bool in_transaction;
    bool shortage_told; // meta.out_of_memory is there
    int pending;
    int64_t rows, seen; // written; of those, what up_store_seen told
    int failure_code;   // SQLite's, of the first failure; SQLITE_OK while there is none
    char failure[512];
};

/* Binds and runs the statements of UP_ROW_PREDICTION and, for each category, of
 * UP_ROW_PREDICTION_CATEGORY: SQLITE_DONE, or what went wrong. */
int up_prediction_run(sqlite3 *db, sqlite3_stmt *row, sqlite3_stmt *category,
                      const struct up_store_prediction *prediction);

/* Opens the finished database at `path` for writing and prepares the statements. */
enum up_status up_store_attach(const char *path, struct up_store **store, struct up_error *err);

/* The name under which SQLite takes `path` for a file whatever it is (":memory:", say); freed by
 * the caller, NULL when memory is short. */
char *up_store_file_name(const char *path);

/* Whose a file is, told by its first 100 bytes, without SQLite. */
enum up_file_kind {
    UP_FILE_MISSING,
    UP_FILE_UNREADABLE,
    UP_FILE_FOLDER,
    UP_FILE_SPECIAL, // a device, a pipe, a socket
    UP_FILE_EMPTY,
    UP_FILE_OTHER,
    UP_FILE_OTHER_DATABASE, // SQLite, but another application's
    UP_FILE_TRACE,
};

struct up_file_identity {
    enum up_file_kind kind;
    uint32_t version;          // the layout's, of a UP_FILE_TRACE
    int64_t bytes, bytes_told; // its size, and what its header says that is
    int writer;                // a process that has it open, 0: none; only if asked for
    int error;                 // errno, of a file that is MISSING or UNREADABLE
};

struct up_file_identity up_file_identify(const char *path, bool find_writer);
/* "a folder", "another application's database", ...: goes after "it is". */
const char *up_file_kind_text(enum up_file_kind kind);

#endif
