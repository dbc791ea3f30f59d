/* What a run is while it is under way: shared by train.c, which opens and closes it, member.c, a
 * rank on its thread, and ending.c, the ends that are not like others. */
#ifndef UP_TRAINER_TRAINING_H
#define UP_TRAINER_TRAINING_H

#include "model/data.h"
#include "profiler/recorder.h"
#include "trainer/advisor/limits.h"
#include "trainer/forecast/forecaster.h"
#include "trainer/forecast/machine.h"
#include "trainer/forecast/plan.h"
#include "trainer/group.h"
#include "trainer/log.h"
#include "trainer/profile.h"
#include "trainer/resume.h"
#include "trainer/save.h"
#include "trainer/stop.h"
#include "trainer/watch.h"

#include <pthread.h>

// UP_END_ANYWAY_S after the ranks have ended, UP_ABORTED_END_S after the first has failed.
enum { UP_HANG_LEAST_S = 60, UP_END_ANYWAY_S = 20, UP_ABORTED_END_S = 40 };

struct up_training;

// One rank: a thread with all that is its own.
struct up_member {
    struct up_training *run;
    int number; // of the rank, among all
    int place;  // in this process
    struct up_seat *seat;
    struct up_trace *trace; // the recorder's; NULL without --trace
    struct up_rank rank;
    struct up_trainer trainer;
    struct up_trainer_plan plan;
    struct up_step_log dry_steps[2]; // the last two that were simulated
    pthread_t thread;
    enum up_status status;
    struct up_error error;
};

// Everything a run holds, in the order in which it is opened.
struct up_training {
    const struct up_train_options *options;
    const struct up_launch *launch;
    volatile const int *stop;
    struct up_stop between; // ends the run between steps, where it saves
    struct up_config config;
    struct up_machine machine; // its rates are for forecasts
    struct up_limits limits;
    struct up_forecaster *forecaster;
    struct up_data *data;
    struct up_weights *weights;
    struct up_resume resume;
    struct up_saver saver;
    struct up_log log;
    struct up_group group;
    struct up_member *members;
    int count;                // of them
    _Atomic uint64_t **ticks; // per rank: layers that its device has got through
    struct up_watch *watch;   // cuda only
    struct up_recorder *recorder;
    struct up_profile *profile; // cuda only; NULL: nothing beside the ranks is looked at
};

static inline bool up_training_is_dry(const struct up_training *run)
{
    return up_train_device(run->options) == UP_DEVICE_DRY;
}

// Who speaks for the run.
static inline bool up_training_leads(const struct up_training *run)
{
    return run->launch->process == 0;
}

/* member.c: a rank's whole life on its thread; `member` is a struct up_member. One that fails ends
 * the others. */
void *up_member_live(void *member);

/* The process ends after so long, with `why`, if it has not ended by then: a GPU that has failed
 * can keep its libraries from ever ending, and so can a process that does not come when ranks first
 * meet. Nothing where there are no GPUs. */
void up_training_end_within(const struct up_training *run, unsigned seconds, const char *why);

/* Where it failed because a tensor found no memory: what would have fit, on stderr. Either nobody
 * had asked (--no-admission), or there was less than there seemed to be. */
void up_training_advise(const struct up_training *run, const struct up_error *why);

/* Ends the trace; one that had to stop early is told, and fails nothing. */
void up_training_close_trace(struct up_training *run, enum up_status outcome,
                             const struct up_error *why);

#endif
