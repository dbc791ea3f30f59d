/* Writing run.db: rows collect in a transaction until up_store_commit. The first failure is kept
 * and undoes the open transaction, so that the file stays as of the last commit; after it nothing
 * is tried again but the diagnostic row that up_store_finish leaves. */
#include "store/store_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CACHE_KIB = 2048,        // SQLite's page cache; the recorder's memory bound counts on it
    BUSY_TIMEOUT_MS = 10000, // someone else may hold the file for a moment
    FINISH_TIMEOUT_MS = 500, // a reader that stays keeps the WAL, which is no failure
};

// --- Failure -----------------------------------------------------------------------------------

static enum up_status store_failed(struct up_store *store)
{
    store->failure_code = sqlite3_errcode(store->db);
    snprintf(store->failure, sizeof store->failure, "%s", sqlite3_errmsg(store->db));
    sqlite3_exec(store->db, "ROLLBACK", NULL, NULL, NULL);
    store->in_transaction = false;
    store->pending = 0;
    return UP_FAILED;
}

bool up_store_failed(const struct up_store *store)
{
    return store->failure_code != SQLITE_OK;
}

const char *up_store_failure(const struct up_store *store)
{
    return store->failure;
}

static enum up_status run_sql(struct up_store *store, const char *sql)
{
    if (up_store_failed(store)) return UP_FAILED;
    if (sqlite3_exec(store->db, sql, NULL, NULL, NULL) == SQLITE_OK) return UP_OK;
    return store_failed(store);
}

// --- Rows --------------------------------------------------------------------------------------

static enum up_status begin(struct up_store *store)
{
    if (store->in_transaction) return UP_OK;
    enum up_status rc = run_sql(store, "BEGIN IMMEDIATE");
    store->in_transaction = rc == UP_OK;
    return rc;
}

static enum up_status write_row(struct up_store *store, enum up_row_kind kind,
                                const struct up_row *row)
{
    if (up_store_failed(store) || begin(store) != UP_OK) return UP_FAILED;
    if (up_row_run(store->statements[kind], kind, row) != SQLITE_DONE) return store_failed(store);
    store->pending++;
    store->rows++;
    return UP_OK;
}

enum up_status up_store_commit(struct up_store *store)
{
    if (up_store_failed(store)) return UP_FAILED;
    if (!store->in_transaction) return UP_OK;
    enum up_status rc = run_sql(store, "COMMIT");
    store->in_transaction = false;
    store->pending = 0;
    return rc;
}

int up_store_pending(const struct up_store *store)
{
    return store->pending;
}
int64_t up_store_rows(const struct up_store *store)
{
    return store->rows;
}

enum up_status up_store_meta_set(struct up_store *store, const char *key, const char *value)
{
    const char *texts[] = {key, value};
    return write_row(store, UP_ROW_META, &(struct up_row){.texts = texts});
}

enum up_status up_store_rank(struct up_store *store, int rank, const char *node,
                             const char *device_name, int64_t capacity_bytes,
                             int64_t baseline_used_bytes)
{
    const char *texts[] = {node, device_name};
    const int64_t numbers[] = {capacity_bytes, baseline_used_bytes};
    return write_row(store, UP_ROW_RANK,
                     &(struct up_row){.rank = rank, .numbers = numbers, .texts = texts});
}

enum up_status up_store_usage(struct up_store *store, int rank, int64_t ns,
                              int64_t device_used_bytes, int64_t host_rss_bytes)
{
    const int64_t numbers[] = {ns, device_used_bytes, host_rss_bytes};
    return write_row(store, UP_ROW_USAGE, &(struct up_row){.rank = rank, .numbers = numbers});
}

enum up_status up_store_diagnostic(struct up_store *store, int rank, int64_t ns, const char *kind,
                                   const char *text)
{
    const char *texts[] = {kind, text};
    const int64_t numbers[] = {rank, ns};
    return write_row(store, UP_ROW_DIAGNOSTIC,
                     &(struct up_row){.numbers = numbers, .texts = texts});
}

enum up_status up_store_baseline(struct up_store *store, int rank, int64_t used_bytes)
{
    return write_row(store, UP_ROW_BASELINE,
                     &(struct up_row){.rank = rank, .numbers = &used_bytes});
}

enum up_status up_store_work_times(struct up_store *store, int rank, enum up_event_kind kind,
                                   uint64_t id, int64_t begin_ns, int64_t end_ns)
{
    const int64_t numbers[] = {begin_ns, end_ns, up_row_id(rank, id)};
    enum up_row_kind row = kind == UP_EVENT_COPY         ? UP_ROW_COPY_TIMES
                           : kind == UP_EVENT_COLLECTIVE ? UP_ROW_COLLECTIVE_TIMES
                                                         : UP_ROW_KERNEL_TIMES;
    return write_row(store, row, &(struct up_row){.numbers = numbers});
}

enum up_status up_store_seen(struct up_store *store, int rank, const struct up_store_seen *seen)
{
    const char *texts[] = {seen->name, seen->stream, up_space_names[seen->from],
                           up_space_names[seen->to]};
    const int64_t range = seen->range_id ? up_row_id(rank, seen->range_id) : -1;
    const int64_t numbers[] = {seen->step,   range,       seen->begin_ns,
                               seen->end_ns, seen->bytes, UP_SEEN_IDS + ++store->seen};
    return write_row(store, seen->kind == UP_EVENT_COPY ? UP_ROW_COPY_SEEN : UP_ROW_KERNEL_SEEN,
                     &(struct up_row){.rank = rank, .numbers = numbers, .texts = texts});
}

enum up_status up_store_device_alloc(struct up_store *store, int rank,
                                     const struct up_store_device_alloc *alloc)
{
    const char *texts[] = {alloc->owner, up_space_names[alloc->space]};
    const int64_t numbers[] = {up_row_id(rank, alloc->id), alloc->bytes, alloc->alloc_ns};
    return write_row(store, UP_ROW_DEVICE_ALLOC,
                     &(struct up_row){.rank = rank, .numbers = numbers, .texts = texts});
}

enum up_status up_store_device_free(struct up_store *store, int rank, uint64_t id, int64_t free_ns)
{
    const int64_t numbers[] = {free_ns, up_row_id(rank, id)};
    return write_row(store, UP_ROW_DEVICE_FREE, &(struct up_row){.numbers = numbers});
}

// The first shortage of a run as a whole, for those who want its numbers: meta.out_of_memory.
static enum up_status write_shortage(struct up_store *store, int rank, const struct up_event *event)
{
    char name[UP_LABEL_TEXT], layer[16] = "null", step[16] = "null", text[768];
    if (store->shortage_told) return UP_OK;
    store->shortage_told = true;
    if (event->label.layer >= 0) snprintf(layer, sizeof layer, "%d", event->label.layer);
    if (event->step >= 0) snprintf(step, sizeof step, "%d", event->step);
    snprintf(text, sizeof text,
             "{\"rank\":%d,\"space\":\"%s\",\"name\":\"%s\",\"category\":\"%s\",\"layer\":%s,"
             "\"phase\":\"%s\",\"step\":%s,\"seq\":%llu,\"ns\":%lld,\"bytes\":%lld,"
             "\"live_bytes\":%lld,\"limit_bytes\":%lld,\"free_bytes\":%lld,"
             "\"largest_free_bytes\":%lld}",
             rank, up_space_names[event->oom.space], up_label_text(name, &event->label),
             up_category_names[event->oom.category], layer, up_phase_names[event->phase], step,
             (unsigned long long)event->seq, (long long)event->ns, (long long)event->oom.bytes,
             (long long)event->oom.live_bytes, (long long)event->oom.limit_bytes,
             (long long)event->oom.free_bytes, (long long)event->oom.largest_free_bytes);
    return up_store_meta_set(store, "out_of_memory", text);
}

enum up_status up_store_prediction(struct up_store *store,
                                   const struct up_store_prediction *prediction)
{
    if (up_store_failed(store) || begin(store) != UP_OK) return UP_FAILED;
    if (up_prediction_run(store->db, store->statements[UP_ROW_PREDICTION],
                          store->statements[UP_ROW_PREDICTION_CATEGORY], prediction) != SQLITE_DONE)
        return store_failed(store);
    store->pending++;
    store->rows++;
    return UP_OK;
}

static enum up_status write_out_of_memory(struct up_store *store, int rank,
                                          const struct up_event *event)
{
    char name[UP_LABEL_TEXT], text[512];
    snprintf(text, sizeof text, "%s: %lld bytes of %s memory asked for, %lld alive, limit %lld",
             up_label_text(name, &event->label), (long long)event->oom.bytes,
             up_space_names[event->oom.space], (long long)event->oom.live_bytes,
             (long long)event->oom.limit_bytes);
    enum up_status rc = write_shortage(store, rank, event);
    return rc ? rc : up_store_diagnostic(store, rank, event->ns, "out_of_memory", text);
}

enum up_status up_store_event(struct up_store *store, int rank, const struct up_event *event)
{
    char name[UP_LABEL_TEXT];
    const struct up_row row = {.rank = rank, .event = event};
    switch ((enum up_event_kind)event->kind) {
    case UP_EVENT_ALLOC:
        return write_row(store, UP_ROW_ALLOC, &row);
    case UP_EVENT_FREE:
        return write_row(store, UP_ROW_FREE, &row);
    case UP_EVENT_RANGE_BEGIN:
        return write_row(store, UP_ROW_RANGE_BEGIN, &row);
    case UP_EVENT_RANGE_END:
        return write_row(store, UP_ROW_RANGE_END, &row);
    case UP_EVENT_KERNEL:
        return write_row(store, UP_ROW_KERNEL, &row);
    case UP_EVENT_COPY:
        return write_row(store, UP_ROW_COPY, &row);
    case UP_EVENT_COLLECTIVE:
        return write_row(store, UP_ROW_COLLECTIVE, &row);
    case UP_EVENT_USAGE:
        return up_store_usage(store, rank, event->ns, event->usage.device_used_bytes, -1);
    case UP_EVENT_DIAGNOSTIC:
        return up_store_diagnostic(store, rank, event->ns, "run",
                                   up_label_text(name, &event->label));
    case UP_EVENT_OOM:
        return write_out_of_memory(store, rank, event);
    case UP_EVENT_STEP_BEGIN:
    case UP_EVENT_STEP_END:
    case UP_EVENT_MEMORY: // of which the ledger makes rows
        break;            // have functions of their own
    }
    UP_BUG("event kind %d has no row", event->kind);
}

enum up_status up_store_step_begin(struct up_store *store, int rank, const struct up_event *event)
{
    return write_row(store, UP_ROW_STEP_BEGIN, &(struct up_row){.rank = rank, .event = event});
}

enum up_status up_store_step_end(struct up_store *store, int rank, const struct up_event *event,
                                 int64_t same_as, uint64_t peak_seq)
{
    const int64_t numbers[] = {same_as, (int64_t)peak_seq};
    return write_row(store, UP_ROW_STEP_END,
                     &(struct up_row){.rank = rank, .event = event, .numbers = numbers});
}

// --- Opening and closing -----------------------------------------------------------------------

static void release(struct up_store *store)
{
    for (int i = 0; i < UP_ROW_KIND_COUNT; i++) sqlite3_finalize(store->statements[i]);
    sqlite3_close(store->db);
    free(store->path);
    free(store);
}

// PRAGMA journal_mode answers with the mode that it is in then; true if that is `mode`.
static bool set_journal_mode(struct up_store *store, const char *mode)
{
    char sql[64];
    sqlite3_stmt *statement = NULL;
    snprintf(sql, sizeof sql, "PRAGMA journal_mode = %s", mode);
    bool set = sqlite3_prepare_v2(store->db, sql, -1, &statement, NULL) == SQLITE_OK &&
               sqlite3_step(statement) == SQLITE_ROW &&
               !sqlite3_stricmp((const char *)sqlite3_column_text(statement, 0), mode);
    sqlite3_finalize(statement);
    return set;
}

static enum up_status prepare(struct up_store *store)
{
    for (int i = 0; i < UP_ROW_KIND_COUNT; i++) {
        store->statements[i] = up_row_prepare(store->db, (enum up_row_kind)i);
        if (!store->statements[i]) return store_failed(store);
    }
    return UP_OK;
}

static enum up_status configure(struct up_store *store)
{
    enum up_status rc = UP_OK;
    char sql[160];
    // The first read opens the WAL, and takes the lock by which others see that a run is at work.
    snprintf(sql, sizeof sql,
             "PRAGMA synchronous = NORMAL; PRAGMA cache_size = -%d; SELECT count(*) FROM meta",
             CACHE_KIB);
    sqlite3_busy_timeout(store->db, BUSY_TIMEOUT_MS);
    bool wal = set_journal_mode(store, "wal");
    UP_TRY(run_sql(store, sql));
    UP_TRY(prepare(store));
    if (!wal)
        rc = up_store_diagnostic(store, -1, -1, "journal",
                                 "no write-ahead log on this file system: each commit waits for "
                                 "the disk, and readers wait for commits");
out:
    return rc;
}

enum up_status up_store_attach(const char *path, struct up_store **store, struct up_error *err)
{
    struct up_store *made = calloc(1, sizeof *made);
    if (!made || !(made->path = up_store_file_name(path))) {
        free(made);
        return up_fail(err, UP_FAILED, "--trace %s: out of host memory", path);
    }
    made->name = made->path + strlen(made->path) - strlen(path);
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX;
    enum up_status rc = UP_OK;
    if (sqlite3_open_v2(made->path, &made->db, flags, NULL) != SQLITE_OK) rc = store_failed(made);
    if (rc == UP_OK) rc = configure(made);
    if (rc != UP_OK) {
        up_fail(err, rc, "--trace %s: cannot be opened for writing: %s", path, made->failure);
        release(made);
        return rc;
    }
    *store = made;
    return UP_OK;
}

int64_t up_store_memory_bytes(const struct up_store *store)
{
    static const int kinds[] = {SQLITE_DBSTATUS_CACHE_USED, SQLITE_DBSTATUS_SCHEMA_USED,
                                SQLITE_DBSTATUS_STMT_USED};
    int64_t sum = sizeof *store;
    for (int i = 0; i < UP_COUNT(kinds); i++) {
        int now = 0, highest = 0;
        sqlite3_db_status(store->db, kinds[i], &now, &highest, 0);
        sum += now;
    }
    return sum;
}

// --- The end -----------------------------------------------------------------------------------

/* What the report's questions and the usual queries search by. Made at the end: keeping them up to
 * date all along costs more. */
static const char index_sql[] =
    "BEGIN IMMEDIATE;"
    "CREATE INDEX IF NOT EXISTS tensor_by_alloc ON tensor (rank, alloc_seq);"
    "CREATE INDEX IF NOT EXISTS tensor_by_storage ON tensor (storage_id);"
    "CREATE INDEX IF NOT EXISTS tensor_by_step ON tensor (step, rank);"
    "CREATE INDEX IF NOT EXISTS range_by_begin ON range (rank, begin_seq);"
    "CREATE INDEX IF NOT EXISTS range_by_parent ON range (parent);"
    "CREATE INDEX IF NOT EXISTS kernel_by_range ON kernel (range_id);"
    "CREATE INDEX IF NOT EXISTS copy_by_range ON copy (range_id);"
    "CREATE INDEX IF NOT EXISTS collective_by_range ON collective (range_id);"
    "COMMIT;";

// A trace without indexes is slower to read, no less true.
static void make_indexes(struct up_store *store)
{
    if (up_store_failed(store)) return;
    if (sqlite3_exec(store->db, index_sql, NULL, NULL, NULL) == SQLITE_OK) return;
    char text[256];
    snprintf(text, sizeof text, "the indexes could not be made: %s", sqlite3_errmsg(store->db));
    sqlite3_exec(store->db, "ROLLBACK", NULL, NULL, NULL);
    up_store_diagnostic(store, -1, -1, "index", text);
}

/* After a failure: the row that tells of it, if there is room for that. What the WAL holds beyond
 * the last commit is free again, so there often is. */
static void leave_diagnostic(struct up_store *store)
{
    bool disk = store->failure_code == SQLITE_FULL || store->failure_code == SQLITE_IOERR;
    char text[640], failure[sizeof store->failure];
    int code = store->failure_code;
    snprintf(failure, sizeof failure, "%s", store->failure);
    snprintf(text, sizeof text, "the trace stopped here: %s", failure);
    store->failure_code = SQLITE_OK;
    up_store_diagnostic(store, -1, -1, disk ? "disk" : "store", text);
    up_store_commit(store);
    store->failure_code = code;
    snprintf(store->failure, sizeof store->failure, "%s", failure);
}

enum up_status up_store_time_ranges(struct up_store *store)
{
    // A row whose end is not after its beginning has no times of the device.
    static const char own_sql[] =
        "CREATE TEMP TABLE own AS SELECT range_id AS id, min(begin_ns) AS begin_ns, max(end_ns) AS"
        " end_ns FROM (SELECT range_id, begin_ns, end_ns FROM kernel UNION ALL"
        " SELECT range_id, begin_ns, end_ns FROM copy UNION ALL"
        " SELECT range_id, begin_ns, end_ns FROM collective)"
        " WHERE range_id IS NOT NULL AND end_ns > begin_ns GROUP BY range_id";
    static const char update_sql[] =
        "UPDATE range SET device_begin_ns = t.begin_ns, device_end_ns = t.end_ns FROM ("
        " WITH RECURSIVE around(id, begin_ns, end_ns) AS (SELECT id, begin_ns, end_ns FROM own"
        "  UNION ALL SELECT r.parent, a.begin_ns, a.end_ns FROM around a JOIN range r ON r.id = "
        "a.id"
        "  WHERE r.parent IS NOT NULL)"
        " SELECT id, min(begin_ns) AS begin_ns, max(end_ns) AS end_ns FROM around GROUP BY id) t"
        " WHERE t.id = range.id";
    enum up_status rc = UP_OK;
    UP_TRY(up_store_commit(store));
    UP_TRY(run_sql(store, own_sql));
    UP_TRY(run_sql(store, update_sql));
    UP_TRY(run_sql(store, "DROP TABLE own"));
out:
    return rc;
}

// Back to one file that can be copied anywhere. While a reader is at it the WAL stays.
static void fold_wal(struct up_store *store)
{
    sqlite3_busy_timeout(store->db, FINISH_TIMEOUT_MS);
    sqlite3_exec(store->db, "PRAGMA wal_checkpoint(TRUNCATE)", NULL, NULL, NULL);
    set_journal_mode(store, "delete");
}

enum up_status up_store_finish(struct up_store *store, bool complete, struct up_error *err)
{
    if (!store) return UP_OK;
    up_store_commit(store);
    make_indexes(store);
    if (complete) up_store_meta_set(store, "complete", "1");
    up_store_commit(store);
    enum up_status rc = UP_OK;
    if (up_store_failed(store)) {
        leave_diagnostic(store);
        rc = up_fail(err, UP_FAILED, "%s: the trace stopped before the run ended: %s", store->name,
                     store->failure);
    }
    fold_wal(store);
    release(store);
    return rc;
}
