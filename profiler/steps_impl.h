/* Inside the recorder: what of one rank's events is kept. recorder.h says which steps are written
 * whole; here is how that is found out while the events come by.
 *
 * A step that may repeat the one before is held back, event by event, for as long as it does. At
 * the first difference what is held is written and the rest follows at once; at the end of a step
 * that did repeat it is dropped. What outlives such a step is not dropped: tensors and ranges that
 * began in it and did not end get their row, and those that ended in it but began before get theirs
 * completed.
 *
 * Errors of the store are its own to remember (up_store_failed): nothing here returns one.
 */
#ifndef UP_PROFILER_STEPS_IMPL_H
#define UP_PROFILER_STEPS_IMPL_H

#include "store/store.h"

enum {
    UP_STEP_EVENTS_MAX = 1 << 18, // events of a step that can be held back
    UP_STEPS_ALWAYS_WHOLE = 3,    // the first ones
    UP_COMMIT_ROWS = 10000,       // rows a transaction may grow to
    UP_STEP_FATES = 1 << 16,      // steps back that are remembered to be kept or not
};

enum up_step_mode {
    UP_STEP_OUTSIDE,   // no step: written
    UP_STEP_WHOLE,     // written
    UP_STEP_REPEATING, // held: equal to the step before so far
    UP_STEP_SKIPPED,   // outside the span: only lifetimes are held
};

struct up_step_log {
    struct up_store *store; // not owned
    int rank;
    struct up_span span; // {-1, -1}: every step that differs
    enum up_step_mode mode;
    int64_t steps; // begun so far

    uint64_t *keys; // of the step before; from `position` on those of this step, once they differ
    int64_t key_count; // events of the step before; -1: too many, or there is none to compare with
    int64_t position;  // events of this step so far
    struct up_event *held;
    int held_count;
    uint64_t *lifetimes; // scratch, of as many as are held
    uint64_t settled;    // work up to this id has its rows, or gets none

    struct {          // the last step whose rows are all in the file
        int64_t step; // -1: none yet
        uint64_t peak_seq, event_hash;
        int64_t peak_bytes;
    } whole;
    int64_t newest;                    // the step that began last; -1: none yet
    uint64_t kept[UP_STEP_FATES / 64]; // a bit a step, by its number: it is written whole
    bool too_long_told;
    int64_t most_keys, most_held; // so far
};

/* False when memory is short; release in any case. */
bool up_step_log_init(struct up_step_log *log, struct up_store *store, int rank,
                      struct up_span span);
void up_step_log_release(struct up_step_log *log);

/* The next event, in order. */
void up_step_log_take(struct up_step_log *log, const struct up_event *event);
/* No more will come; a step that is still open is written as far as it got. */
void up_step_log_end(struct up_step_log *log);

/* Whether what happened in the step has rows: outside steps (-1) it has. Of a step longer ago than
 * UP_STEP_FATES nobody knows any more, so that it counts as dropped. */
enum up_step_fate { UP_STEP_KEPT, UP_STEP_DROPPED, UP_STEP_UNDECIDED };
enum up_step_fate up_step_log_fate(const struct up_step_log *log, int64_t step);

/* Host memory touched so far, and what it can come to. */
int64_t up_step_log_bytes(const struct up_step_log *log);
int64_t up_step_log_bytes_max(void);

#endif
