/* Where a step's time goes: what its compute stream does and for how long, and what goes on
 * elsewhere while that stream has nothing to do. Of a dry run all of it is the forecast. */
#ifndef UP_REPORT_STEP_TIME_H
#define UP_REPORT_STEP_TIME_H

#include "report/analysis/query.h"

enum up_work_kind {
    UP_WORK_ATTENTION_BACKWARD,
    UP_WORK_ATTENTION_FORWARD,
    UP_WORK_MATMUL,
    UP_WORK_POINTWISE, // all else, with copies and collectives that are on the compute stream
    UP_WORK_OPTIMIZER,
    UP_WORK_KINDS
};
extern const char *const up_work_kind_names[UP_WORK_KINDS];

/* Work beside the compute stream. */
struct up_beside {
    double busy_s;    // any of it is going on
    double exposed_s; // and meanwhile the compute stream has nothing to do
};

struct up_step_time {
    int64_t step, rank; // the last step that ended and has kernels, its lowest rank; UP_NONE: none
    double step_s;
    struct {
        double seconds, flops;
        int64_t operations;
    } kinds[UP_WORK_KINDS]; // on the compute stream
    double idle_s;          // the compute stream has nothing to do
    /* Collectives, with the casts and sums on their stream; copies between spaces. Exposed time in
     * which both go on is the collectives' alone. */
    struct up_beside collectives, copies;
};

enum up_status up_step_time_read(const struct up_run *run, struct up_step_time *time,
                                 struct up_error *err);

#endif
