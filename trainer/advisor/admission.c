#include "trainer/advisor/admission.h"
#include "trainer/advisor/advisor.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

// The largest kind at the peak, and where that is.
static void tell_dominant(const struct up_forecast *forecast, char *text, size_t size)
{
    char bytes[UP_UNITS_TEXT], peak[UP_UNITS_TEXT];
    const struct up_forecast_kind *kind = &forecast->kind[0];
    snprintf(text, size, "largest at the peak, in %s: %s (%s), %s of %s",
             *forecast->range ? forecast->range : up_phase_names[forecast->phase], kind->name,
             up_category_names[kind->category], up_format_bytes(bytes, (uint64_t)kind->bytes),
             up_format_bytes(peak, (uint64_t)forecast->peak_bytes));
}

static void tell_device(const struct up_forecast *forecast, const struct up_limits *limits,
                        char *text, size_t size)
{
    char need[UP_UNITS_TEXT], libraries[UP_UNITS_TEXT], capacity[UP_UNITS_TEXT], with[80] = "";
    if (forecast->libraries)
        snprintf(with, sizeof with, ", %s of it for libraries",
                 up_format_bytes(libraries, (uint64_t)forecast->libraries));
    snprintf(text, size, "device memory: the forecast is %s%s, there is %s",
             up_format_bytes(need, (uint64_t)up_forecast_device_need(forecast)), with,
             up_format_bytes(capacity, (uint64_t)limits->device_bytes));
}

static void tell_host(const struct up_config *config, const struct up_forecast *forecast,
                      const struct up_limits *limits, char *text, size_t size)
{
    char need[UP_UNITS_TEXT], capacity[UP_UNITS_TEXT];
    int64_t ranks = up_limits_ranks(limits, config);
    snprintf(text, size, "host memory: the forecast is %s for %lld rank%s, there is %s",
             up_format_bytes(need, (uint64_t)up_limits_host_need(limits, config, forecast)),
             (long long)ranks, ranks == 1 ? "" : "s",
             up_format_bytes(capacity, (uint64_t)limits->host_bytes));
}

// "fits with --tile-loss 1K: 12.3 GiB, step time +2%".
static enum up_status tell_way_out(struct up_forecaster *forecaster, const struct up_config *config,
                                   const struct up_limits *limits,
                                   const struct up_forecast *forecast, char *text, size_t size,
                                   struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_candidate best;
    char options[UP_CHANGE_TEXT], peak[UP_UNITS_TEXT];
    bool found;
    UP_TRY(up_advise_smallest(forecaster, config, limits, &best, &found, err));
    if (!found) {
        snprintf(text, size, "no techniques make it fit: a shorter --seq, or more ranks");
        return UP_OK;
    }
    up_config_change_text(config, &best.config, options, sizeof options);
    double slower = 100 * (best.forecast->step_s / forecast->step_s - 1);
    snprintf(text, size, "it fits with: %s (peak %s, step time %+.1f%%)", options,
             up_format_bytes(peak, (uint64_t)best.forecast->peak_bytes),
             isfinite(slower) ? slower : 0);
out:
    return rc;
}

enum up_status up_admission_check(struct up_forecaster *forecaster, const struct up_config *config,
                                  const struct up_limits *limits, bool planned,
                                  struct up_admission *admission, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct up_forecast *forecast;
    *admission = (struct up_admission){.fits = true};
    if (!limits->device_bytes && !limits->host_bytes) return UP_OK;
    UP_TRY(up_forecaster_ask(forecaster, config, planned ? UP_FORECAST_PLANNED : UP_FORECAST_PLACED,
                             &forecast, err));
    enum up_room room = up_limits_check(limits, config, forecast);
    admission->fits = room == UP_ROOM_FITS;
    if (admission->fits) return UP_OK;
    if (forecast->beyond)
        snprintf(admission->lack, sizeof admission->lack,
                 "device memory: the forecast is beyond any, over 1 EiB");
    else if (room == UP_ROOM_DEVICE)
        tell_device(forecast, limits, admission->lack, sizeof admission->lack);
    else
        tell_host(config, forecast, limits, admission->lack, sizeof admission->lack);
    if (!forecast->beyond) tell_dominant(forecast, admission->dominant, sizeof admission->dominant);
    UP_TRY(tell_way_out(forecaster, config, limits, forecast, admission->way_out,
                        sizeof admission->way_out, err));
out:
    return rc;
}

/* --- What there is -------------------------------------------------------------------------------
 */

enum { NCCL_USUAL_BUFFER = 4 << 20 };

double up_admission_buffers_share(const struct up_train_options *options)
{
    // Smaller buffers, and fewer of them: 652 of 1308 MiB were measured.
    return options->nccl_buffers && options->nccl_buffers < NCCL_USUAL_BUFFER ? 0.5 : 1;
}

void up_admission_buffers(const struct up_train_options *options, struct up_machine *machine)
{
    double share = up_admission_buffers_share(options);
    machine->nccl_bytes = (int64_t)((double)machine->nccl_bytes * share);
    machine->nccl_rank_bytes = (int64_t)((double)machine->nccl_rank_bytes * share);
}

struct up_limits up_admission_limits(const struct up_train_options *options, enum up_device_kind as,
                                     int64_t capacity, int64_t node_ranks,
                                     struct up_machine *machine)
{
    up_admission_buffers(options, machine);
    if (up_train_device(options) != UP_DEVICE_DRY) {
        machine->device_bytes = capacity;
        machine->host_bytes = up_limits_host_now();
        machine->node_devices = node_ranks;
    }
    return up_limits_of(machine, as, options->memory_limit);
}
