/* A run's step once more, dry: what every piece of its work costs, and how long it would take on a
 * machine. A step gives the same work in the same order on every device, so that the n-th operation
 * of a dry step is the n-th of the recorded ones. Knows nothing of run.db. */
#ifndef UP_REPORT_RERUN_H
#define UP_REPORT_RERUN_H

#include "device/device.h"
#include "trainer/forecast/figures.h"

/* What meta says of the configuration. */
struct up_rerun_of {
    const char *path;        // of the run, for messages
    const char *config;      // JSON
    const char *config_hash; // which tells whether this upipe would run the same
    int64_t rank;
};

/* The operations of a step in the order in which they were given, collectives and copies apart. */
struct up_rerun {
    struct up_cost *costs; // owned
    int64_t count;
    double step_s; // of a step after the first, on the machine; its tensors placed as a run's are
};

/* `most`: for the costs alone: more operations than that are not looked at, and the step is left
 * (costs then hold most + 1); step_s means nothing. 0: as many as there are, and the time. UP_USAGE
 * where the configuration is none that this program can run: the run is not upipe's own, or was
 * made by another version. */
enum up_status up_rerun_step(const struct up_rerun_of *of, const struct up_figures *figures,
                             int64_t most, struct up_rerun *rerun, struct up_error *err);
void up_rerun_release(struct up_rerun *rerun); // a zeroed one is fine

#endif
