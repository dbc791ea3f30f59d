/* What a run's config would take with other techniques: its stored config, dry re-runs of the
 * neighbours (trainer/advisor/advisor.h), and the limits that they are held to. */
#ifndef UP_REPORT_ADVICE_H
#define UP_REPORT_ADVICE_H

#include "report/analysis/query.h"
#include "trainer/advisor/advisor.h"
#include "trainer/options/stored.h"

struct up_advice {
    struct up_stored_run stored;
    struct up_config config; // what is advised on: the stored one, or that with another length
    bool same_hash;          // the run's own config_hash is what this upipe makes of its config
    struct up_limits limits;
    struct up_forecaster *forecaster;
    struct up_candidate now;
    struct up_ladder_line ladder[UP_TECHNIQUE_COUNT], path[UP_PATH_STEPS];
    int ladder_count, path_count;
    int typed; // how many techniques of the path to switch on: those up to its last line that fits,
               // with its tensors where the plan has them. None where the run alone does; all where
               // nothing fits, or memory is not known
};

/* What may be asked for; zeroes are the run's own. */
struct up_advice_asked {
    const char *machine; // NAME or FILE instead of the run's
    int64_t fit;         // bytes of a device
    int64_t seq;         // tokens
};

/* Reads the config, forecasts it and the path. UP_USAGE where the run has no config that could be
 * run again. Release in any case. */
enum up_status up_advice_read(const struct up_run *run, const struct up_advice_asked *asked,
                              struct up_advice *advice, struct up_error *err);
void up_advice_release(struct up_advice *advice);

/* Whether the run's step can be run again, dry: its config is one that this upipe makes the same
 * config_hash of. If not, `why` says what is in the way. */
enum { UP_ADVICE_WHY = 256 };
enum up_status up_advice_can_rerun(const struct up_run *run, bool *can, char why[UP_ADVICE_WHY],
                                   struct up_error *err);

/* Adds the forecasts to the run's file, where that can be written: the path is of `path`, and the
 * run must have been closed. */
void up_advice_store(const struct up_advice *advice, const char *path,
                     const struct up_candidate *more, int more_count);

#endif
