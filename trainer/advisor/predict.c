#include "trainer/advisor/predict.h"
#include "trainer/advisor/technique.h"

#include <string.h>

struct up_store_prediction up_predict(const struct up_config *from, const struct up_config *to,
                                      const struct up_forecast *forecast, char *text, size_t size)
{
    up_config_change_text(from, to, text, size);
    struct up_store_prediction prediction = {.options = text,
                                             .config_hash = forecast->config_hash,
                                             .peak_bytes = forecast->peak_bytes,
                                             .host_bytes = forecast->host_bytes,
                                             .phase = forecast->phase,
                                             .step_s = forecast->step_s};
    if (forecast->depth >= UP_FORECAST_PLANNED) prediction.step_s = forecast->planned_step_s;
    if (forecast->libraries)
        prediction.beside_bytes = up_forecast_device_need(forecast) - forecast->peak_bytes;
    memcpy(prediction.category_bytes, forecast->category, sizeof prediction.category_bytes);
    return prediction;
}
