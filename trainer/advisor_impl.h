/* What the advisor's files tell each other. */
#ifndef UP_TRAINER_ADVISOR_IMPL_H
#define UP_TRAINER_ADVISOR_IMPL_H

#include "trainer/advisor.h"

/* Whether a config fits by its live peak, and by its planned arena: the first is quicker to know
 * and never says no where the second says yes. */
enum up_status up_try_config(struct up_forecaster *forecaster, const struct up_config *config,
                             const struct up_limits *limits, enum up_forecast_depth depth,
                             struct up_candidate *candidate, enum up_room *room,
                             struct up_error *err);

/* Everything on: as many cp ranks as divide the heads, blocks' inputs alone kept and all sent away,
 * slices, the smallest stages, one sequence at a time. */
struct up_config up_leanest(const struct up_config *config, bool optimizer_host);

/* The largest legal cp. */
int64_t up_widest_cp(const struct up_config *config);

/* Slices of the usual size wherever none are made yet and the local sequence has some. */
void up_slice_all(struct up_config *config);

/* `config`, which keeps its blocks' outputs on the device or in host memory as it says, with so
 * many sent away as the host holds. */
enum up_status up_share_kept(struct up_forecaster *forecaster, const struct up_config *config,
                             const struct up_limits *limits, struct up_candidate *candidate,
                             enum up_room *room, struct up_error *err);

#endif
