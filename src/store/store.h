/* run.db: writing one and opening one. The layout is schema.sql, explained in docs/trace.md. */
#ifndef UP_STORE_STORE_H
#define UP_STORE_STORE_H

#include "base/base.h"
#include "trace/trace.h"

#include <sqlite3.h>

enum { UP_STORE_VERSION = 1 };       // schema.sql's user_version
extern const char up_store_schema[]; // schema.sql, embedded at build time

/* --- Writing -------------------------------------------------------------------------------------
 *
 * A store is written by one thread. Rows collect in transactions: up_store_commit ends one. Once
 * the disk fails, `failed` is told by up_store_failed and every call returns at once with
 * UP_FAILED. */
struct up_store;

struct up_store_meta {
    const char *key, *value;
};

/* Creates the database under a temporary name beside `path` with the schema, `meta` and the ranks
 * in it, then closes, renames and reopens it: `path` appears only when it is whole. An existing
 * upipe run.db is replaced; a file that is anything else is refused (UP_USAGE), as is a folder that
 * cannot be written. WAL, synchronous NORMAL. */
enum up_status up_store_create(const char *path, const struct up_store_meta *meta, int meta_count,
                               struct up_store **store, struct up_error *err);

enum up_status up_store_meta_set(struct up_store *store, const char *key, const char *value);
enum up_status up_store_rank(struct up_store *store, int rank, const char *node,
                             const char *device_name, int64_t capacity_bytes,
                             int64_t baseline_used_bytes); // negative: NULL
/* Any event but STEP_BEGIN and STEP_END becomes its row, or completes it (a FREE its ALLOC's). */
enum up_status up_store_event(struct up_store *store, int rank, const struct up_event *event);
enum up_status up_store_step_begin(struct up_store *store, int rank, const struct up_event *event);
/* `same_as` negative: NULL. `peak_seq` 0: NULL. */
enum up_status up_store_step_end(struct up_store *store, int rank, const struct up_event *event,
                                 int64_t same_as, uint64_t peak_seq);
enum up_status up_store_usage(struct up_store *store, int rank, int64_t ns,
                              int64_t device_used_bytes,
                              int64_t host_rss_bytes); // negative: NULL
enum up_status up_store_diagnostic(struct up_store *store, int rank, int64_t ns, const char *kind,
                                   const char *text);
/* What the rank's device had in use before the run. */
enum up_status up_store_baseline(struct up_store *store, int rank, int64_t used_bytes);

/* When the device ran the piece of work whose event had work.id `id` and this kind (KERNEL, COPY,
 * COLLECTIVE), or a part of it: its row, if there is one, covers that. begin_ns < end_ns. */
enum up_status up_store_work_times(struct up_store *store, int rank, enum up_event_kind kind,
                                   uint64_t id, int64_t begin_ns, int64_t end_ns);

/* Work that no event told of, seen on the device. `kind` is KERNEL or COPY. */
struct up_store_seen {
    enum up_event_kind kind;
    const char *name, *stream;
    int64_t step;      // -1: outside steps
    uint64_t range_id; // of the rank; 0: none
    int64_t begin_ns, end_ns;
    int64_t bytes; // of a copy, with its spaces
    enum up_space from, to;
};
enum up_status up_store_seen(struct up_store *store, int rank, const struct up_store_seen *seen);

/* Memory taken from the driver. `id` counts within the rank, from 1; one that was told before is
 * told anew. */
struct up_store_device_alloc {
    uint64_t id;
    const char *owner;
    enum up_space space;
    int64_t bytes, alloc_ns;
};
enum up_status up_store_device_alloc(struct up_store *store, int rank,
                                     const struct up_store_device_alloc *alloc);
enum up_status up_store_device_free(struct up_store *store, int rank, uint64_t id, int64_t free_ns);

/* range.device_begin_ns and device_end_ns, from the rows of what ran in each range and in those
 * within it. Once, when all times are there. */
enum up_status up_store_time_ranges(struct up_store *store);

#define UP_STORE_BESIDE "beside" // stands for beside_bytes among a forecast's categories

/* A forecast made from the run: one row of `prediction` and one per category that has bytes. */
struct up_store_prediction {
    const char *options;     // the change of options; "" for the run as it is
    const char *config_hash; // of the run that it forecasts
    int64_t peak_bytes, host_bytes;
    int64_t beside_bytes;                      // what a device holds beside tensors, 0: not known
    int64_t category_bytes[UP_CATEGORY_COUNT]; // at the peak
    enum up_phase phase;                       // of the peak
    double step_s;
};
enum up_status up_store_prediction(struct up_store *store,
                                   const struct up_store_prediction *prediction);
enum up_status up_store_commit(struct up_store *store);
int up_store_pending(const struct up_store *store);  // rows since the last commit
int64_t up_store_rows(const struct up_store *store); // rows written in all

int64_t
up_store_memory_bytes(const struct up_store *store); // host memory held now, SQLite's included

bool up_store_failed(const struct up_store *store);
const char *up_store_failure(const struct up_store *store); // what went wrong, one line

/* Indexes, complete = 1 (if `complete`), and back to a single file without WAL. Frees the store in
 * any case; NULL is fine. */
enum up_status up_store_finish(struct up_store *store, bool complete, struct up_error *err);

/* Adds `count` forecasts to a finished run.db, in one transaction, in the place of earlier ones of
 * the same options and config_hash; but what the run foretold of itself stays. False where the file
 * cannot be written, or is still being written by its run; it is then as it was. */
bool up_store_append_predictions(const char *path, const struct up_store_prediction *predictions,
                                 int count);

/* Whose fault the connection's last failure is: UP_FAILED for memory, disk and system, UP_USAGE for
 * the file. */
enum up_status up_store_status(sqlite3 *db);

/* --- Reading -------------------------------------------------------------------------------------
 */

/* Opens a run.db of any released version, read only (a WAL left by a killed run is read too).
 * UP_USAGE with one line for what is not there, not SQLite, not upipe's, or from a newer upipe. */
enum up_status up_store_open(const char *path, sqlite3 **db, struct up_error *err);
/* The value into `out`; false, and "" in it, where the key is missing. */
bool up_store_meta_get(sqlite3 *db, const char *key, char *out, size_t size);

#endif
