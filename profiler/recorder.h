/* From the ranks' rings to run.db: one thread that drains, leaves out what repeats, and commits.
 *
 *   recorder_create -> recorder_add_rank for each rank -> recorder_start -> (the run) ->
 * recorder_finish
 *
 * What is kept. Events outside steps are always written. Of the steps, the first three and every
 * step that differs from the one before in any event (up_event_key) are written whole; of one that
 * repeats the step before only the `step` row is kept, with same_as_step. With a span of steps
 * (--trace-steps A:B) whole rows are written for those steps alone; other steps carry same_as_step
 * if their hash is that of the last step written whole.
 *
 * Also about ten times a second what the process has in use, and about four times its devices.
 *
 * Memory: a ring of RING_EVENTS events per rank, and two buffers of at most STEP_EVENTS_MAX events
 * or keys per rank: up_recorder_memory_bound() says how much in all. A step of more events than
 * that is written whole each time, and a diagnostic row says so. An observer of times may take 8
 * MiB more a rank, and 3 more for what ran beside the work of a step that may repeat.
 */
#ifndef UP_PROFILER_RECORDER_H
#define UP_PROFILER_RECORDER_H

#include "device/device.h"
#include "profiler/activity.h"
#include "profiler/marks.h"
#include "store/store.h"

struct up_recorder;

/* `span`: {-1, -1} for the default rule above. The file appears under `path` before this returns.
 */
enum up_status up_recorder_create(const char *path, struct up_span span,
                                  const struct up_store_meta *meta, int meta_count,
                                  struct up_recorder **recorder, struct up_error *err);

/* One ring per rank, before the start. The ring belongs to the recorder; the rank pushes into it
 * and closes it (up_trace_close) when done. NULL when memory is short. */
struct up_trace *up_recorder_add_rank(struct up_recorder *recorder, int rank,
                                      const char *device_name, int64_t capacity_bytes);

/* The rank's device, to be asked now and then, by the recorder's thread, how much of its memory is
 * used; what was used before the run goes to the rank's row. Before the start. */
void up_recorder_device(struct up_recorder *recorder, int rank, struct up_device *device);

/* Something that sees what devices do, and tells later. Four times a second and once at the end
 * (`last`) the recorder's thread calls `collect`, takes what the ranks have pushed so far, and
 * calls `tell`, which calls up_recorder_activity for all that was collected. So whatever a rank
 * told before it did something is known when that is told of. */
struct up_observer {
    void *context;
    void (*collect)(void *context, bool last);
    void (*tell)(void *context, struct up_recorder *recorder);
    struct up_marks *marks; // of the calls that activities correlate with
    bool times;             // it tells when work ran
    bool foreign;           // ranks tell nothing themselves: all work seen has rows
};
/* Before the start; `observer` is copied. UP_FAILED when memory is short. */
enum up_status up_recorder_observe(struct up_recorder *recorder, const struct up_observer *observer,
                                   struct up_error *err);
/* For the observer, from within `tell`. */
void up_recorder_activity(struct up_recorder *recorder, const struct up_activity *activity);
/* An event that the rank did not tell itself. */
void up_recorder_event(struct up_recorder *recorder, int rank, const struct up_event *event);
/* A row of `diagnostic` about the trace as a whole: before the start, or from within `tell`. */
void up_recorder_diagnostic(struct up_recorder *recorder, const char *kind, const char *text);

/* A forecast made from the run, before the start. */
void up_recorder_predict(struct up_recorder *recorder,
                         const struct up_store_prediction *prediction);

enum up_status up_recorder_start(struct up_recorder *recorder, struct up_error *err);

/* Why the run failed, for a row of `diagnostic`; once, before the end. */
void up_recorder_failed(struct up_recorder *recorder, const char *why);

/* Waits until all rings are closed and written, then finishes the file: outcome "ok", "out of
 * memory" or "failed"; `complete` is 1 for all three (the run ended in order), and the recorder's
 * own costs go to meta. A trace that had stopped early (a full disk) is reported here as UP_FAILED
 * with the reason; the training is not to fail for it. Frees the recorder; NULL is fine. */
enum up_status up_recorder_finish(struct up_recorder *recorder, const char *outcome,
                                  struct up_error *err);

/* Host memory that recording `ranks` ranks takes at most, SQLite's page cache included. */
int64_t up_recorder_memory_bound(int ranks);

#endif
