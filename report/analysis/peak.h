/* Where memory was highest: rank, step and seq, and what the run was doing there. */
#ifndef UP_REPORT_PEAK_H
#define UP_REPORT_PEAK_H

#include "report/analysis/query.h"

struct up_peak {
    int64_t rank;      // UP_NONE: nothing was recorded, and nothing below means anything
    int64_t step;      // whose rows these are; UP_NONE outside steps
    int64_t same_step; // the step that was asked for, which repeated `step`; UP_NONE: `step` itself
    int64_t seq;
    int64_t peak_bytes;
    bool replayed;        // found by replaying the rows: no row of `step` tells it
    int64_t unkept_bytes; // what a step whose rows were not kept reached, where that is more;
                          // UP_NONE: none did, or one step was asked for
};

/* The highest of all ranks (`rank` UP_NONE) or of one, over all steps (`step` UP_NONE) or in one.
 * UP_USAGE for a rank that is not there and for a step without rows; the message says which are. */
enum up_status up_peak_find(const struct up_run *run, int64_t rank, int64_t step,
                            struct up_peak *peak, struct up_error *err);

/* How high memory was, be it in a step whose rows were not kept; UP_NONE: nothing was recorded. */
int64_t up_peak_bytes(const struct up_peak *peak);

/* UP_USAGE for a rank that is not there; UP_NONE is fine. */
enum up_status up_rank_check(const struct up_run *run, int64_t rank, struct up_error *err);
/* The step whose rows stand for `step`: itself, or the one that it repeated. UP_USAGE where there
 * are none. `rank` may be UP_NONE. */
enum up_status up_step_find(const struct up_run *run, int64_t rank, int64_t step, int64_t *found,
                            struct up_error *err);

/* What happened at a moment. Texts are owned, "" or NULL where there is none. */
struct up_place {
    char range[1024]; // "backward > layers.3.mlp", outermost first
    char *phase;
    int64_t layer;                         // UP_NONE outside layers
    char *name, *category, *dtype, *shape; // the tensor whose allocation it was
    int64_t bytes;
    int64_t ns; // UP_NONE where no tensor was allocated then
    // When the device was there, and when the host began the step; UP_NONE: not known.
    int64_t device_ns, step_begin_ns;
};

enum up_status up_place_read(const struct up_run *run, int64_t rank, enum up_space space,
                             int64_t seq, struct up_place *place, struct up_error *err);
/* device_ns and step_begin_ns, which are UP_NONE until then. `step`: UP_NONE outside steps. */
enum up_status up_place_read_times(const struct up_run *run, int64_t rank, int64_t step,
                                   int64_t seq, struct up_place *place, struct up_error *err);
void up_place_release(struct up_place *place);

#endif
