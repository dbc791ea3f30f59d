/* Many forecasts on one machine: several at a time, each config once. */
#ifndef UP_TRAINER_FORECASTER_H
#define UP_TRAINER_FORECASTER_H

#include "trainer/forecast/forecast.h"

struct up_forecaster;

/* NULL when memory is short. `threads` 0: one per core, at most four. */
struct up_forecaster *up_forecaster_create(const struct up_machine *machine, int threads);
void up_forecaster_destroy(struct up_forecaster *forecaster); // NULL is fine

/* From when *stop is set, by a signal say, forecasts that are not yet made fail, also those under
 * way. */
void up_forecaster_stop_at(struct up_forecaster *forecaster, volatile const int *stop);

const struct up_machine *up_forecaster_machine(const struct up_forecaster *forecaster);

/* A config and what it would take. */
struct up_candidate {
    struct up_config config;
    const struct up_forecast *forecast; // the forecaster's own, alive until it is destroyed
};

/* Sets the forecasts of `count` candidates, at least as deep as asked for. */
enum up_status up_forecaster_ask_all(struct up_forecaster *forecaster,
                                     struct up_candidate *const candidates[], int count,
                                     enum up_forecast_depth depth, struct up_error *err);
enum up_status up_forecaster_ask(struct up_forecaster *forecaster, const struct up_config *config,
                                 enum up_forecast_depth depth, const struct up_forecast **answer,
                                 struct up_error *err);

#endif
