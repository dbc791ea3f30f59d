/* Forecasts as run.db stores them. */
#ifndef UP_TRAINER_PREDICT_H
#define UP_TRAINER_PREDICT_H

#include "store/store.h"
#include "trainer/forecast/forecast.h"

/* `text` holds the options until the prediction has been stored; `forecast` (at least
 * UP_FORECAST_PLACED) likewise. */
struct up_store_prediction up_predict(const struct up_config *from, const struct up_config *to,
                                      const struct up_forecast *forecast, char *text, size_t size);

#endif
