/* What a machine can do, learnt from what a run recorded. */
#ifndef UP_REPORT_CALIBRATION_H
#define UP_REPORT_CALIBRATION_H

#include "device/device.h"
#include "report/analysis/query.h"
#include "trainer/forecast/figures.h"

/* A piece of work that was timed: of an enum up_cost_class, or a copy. */
enum up_copy_sort { UP_SORT_TO_HOST = UP_COST_CLASS_COUNT, UP_SORT_FROM_HOST };
struct up_timed {
    int sort;
    double seconds, flops;
    double bytes; // NaN where they are not known
    int64_t runs; // of attention, that it is cut into; 0: not known
};
struct up_timed_list {
    struct up_timed *items;
    int64_t count, capacity;
    int64_t head_dim;                  // of its attention; 0: not known
    bool own_attention;                // upipe's own kernels did it, on a GPU
    bool in_runs;                      // others did it there, which cut it into runs
    double run_s[UP_COST_CLASS_COUNT]; // of attention: what a run takes besides, known before
};

/* A rate is the mean over the work of its sort that was bound by it, of copies and collectives the
 * median, weighted by time and with the time of a launch taken off: work that took about as long as
 * a launch is bound by that, and attention most of whose time its runs take by those. Products that
 * have fewest operations for their bytes may be bound by memory, which has a pace of its own for
 * them. Work that is alike counts as its median, collectives as their shortest. */
struct up_rate {
    double value;    // NaN: it cannot be told
    int64_t samples; // that it is learnt from
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
