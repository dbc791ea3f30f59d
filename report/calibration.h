/* What a machine can do, learnt from what a run recorded. */
#ifndef UP_REPORT_CALIBRATION_H
#define UP_REPORT_CALIBRATION_H

#include "report/query.h"
#include "trainer/figures.h"

/* A piece of work that was timed. */
enum up_work_sort {
    UP_SORT_MATMUL, // up to pointwise as rerun.h's
    UP_SORT_ATTENTION_FORWARD,
    UP_SORT_ATTENTION_BACKWARD,
    UP_SORT_POINTWISE,
    UP_SORT_TO_HOST,
    UP_SORT_FROM_HOST,
    UP_SORT_COLLECTIVE,
    UP_SORT_COUNT
};
struct up_timed {
    enum up_work_sort sort;
    double seconds, flops;
    double bytes; // NaN where they are not known
};
struct up_timed_list {
    struct up_timed *items;
    int64_t count, capacity;
};

/* A rate is the median over the work of its sort that was bound by it, weighted by time: work that
 * took about as long as the shortest of all is bound by its launch, and products that took as long
 * as memory takes for their bytes by memory. Work that is alike counts as its median,
 * collectives as their shortest. */
struct up_rate {
    double value;    // NaN: it cannot be told
    int64_t samples; // that it is the median of
};
struct up_rates {
    struct up_rate of[UP_FIGURE_COUNT]; // of capacities: always NaN
};

/* Puts `list` in another order, with medians for times. */
enum up_status up_rates_learn(struct up_timed_list *list, struct up_rates *rates,
                              struct up_error *err);

/* What a run has timed, in the steps whose rows it holds, on its lowest rank: all but the first of
 * them where there are several, whose caches are cold. */
struct up_timed_run {
    struct up_timed_list list;
    int64_t rank, steps;
    bool bytes_known; // kernels' bytes are those of the same step run dry
    char why[1024];   // not, if so
};
enum up_status up_timed_read(const struct up_run *run, struct up_timed_run *timed,
                             struct up_error *err);
/* A step of the run dry on the machine of these figures (rerun.h). Where it cannot be run again
 * `why` says so, and step_s is NaN. */
struct up_rerun;
enum up_status up_timed_rerun(const struct up_run *run, int64_t rank,
                              const struct up_figures *figures, int64_t most,
                              struct up_rerun *rerun, struct up_error *why, struct up_error *err);
void up_timed_release(struct up_timed_run *timed);

#endif
