/* What the advisor's files tell each other. */
#ifndef UP_TRAINER_ADVISOR_IMPL_H
#define UP_TRAINER_ADVISOR_IMPL_H

#include "trainer/advisor/advisor.h"

/* Where configs are looked for. */
struct up_search {
    struct up_forecaster *forecaster;
    const struct up_limits *limits;
};

/* Of what blocks keep: all, attention's output, their input. */
static inline int up_checkpoint_order(const struct up_config *c)
{
    return c->checkpoint == UP_CHECKPOINT_NONE ? 0 : c->checkpoint == UP_CHECKPOINT_ATTN ? 1 : 2;
}

/* For qsort of struct up_candidate whose forecasts are known. */
static inline int up_by_step_time(const void *a, const void *b)
{
    double x = ((const struct up_candidate *)a)->forecast->step_s;
    double y = ((const struct up_candidate *)b)->forecast->step_s;
    return (x > y) - (x < y);
}

/* Whether arithmetic alone says that it does not fit. */
bool up_cannot_fit(const struct up_config *config, const struct up_limits *limits);

/* How many blocks' outputs go to host memory: all, or as many as that can take by arithmetic. */
int64_t up_most_sent(const struct up_config *config, const struct up_limits *limits);

/* Whether a config fits by its live peak, and by its planned arena: the first is quicker to know
 * and never says no where the second says yes. */
enum up_status up_try_config(const struct up_search *search, const struct up_config *config,
                             enum up_forecast_depth depth, struct up_candidate *candidate,
                             enum up_room *room, struct up_error *err);

/* Slices of the usual size wherever none are made yet and the local sequence has some. */
void up_slice_all(struct up_config *config);

/* `config`, which keeps its blocks' outputs on the device or in host memory as it says, with so
 * many sent away as the host holds. */
enum up_status up_share_kept(const struct up_search *search, const struct up_config *config,
                             struct up_candidate *candidate, enum up_room *room,
                             struct up_error *err);

/* *best, which fits, becomes the fastest that changes one after the other lead to: with as few
 * blocks in host memory as it takes, and slices where `from`, the run's own config, has none. */
enum up_status up_improve(const struct up_search *search, const struct up_config *from,
                          struct up_candidate *best, struct up_error *err);

#endif
