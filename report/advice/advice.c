#include "report/advice/advice.h"
#include "trainer/advisor/admission.h"
#include "trainer/advisor/predict.h"
#include "trainer/forecast/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum up_status read_stored(const struct up_run *run, struct up_advice *advice,
                                  struct up_error *err)
{
    enum up_status rc = UP_OK;
    char *text = NULL, *hash = NULL, made[17];
    UP_TRY(up_query_meta(run, "config", &text, err));
    UP_TRY(up_query_meta(run, "config_hash", &hash, err));
    UP_TRY(up_stored_run_read(text, run->path, &advice->stored, err));
    if (!up_config_hash(&advice->stored.config, made)) UP_TRY(up_no_memory(err));
    advice->same_hash = !strcmp(made, hash);
    advice->config = advice->stored.config;
out:
    free(text);
    free(hash);
    return rc;
}

/* The machine's capacities, or those of the machine that was asked for; of the device no more than
 * the run's own limit and the size that was asked for. */
static enum up_status choose_limits(const struct up_advice_asked *asked, struct up_advice *advice,
                                    struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_machine machine = advice->stored.machine;
    int64_t limit = advice->stored.options.memory_limit;
    if (asked->machine) {
        UP_TRY(up_machine_find(asked->machine, &machine, err));
        up_admission_buffers(&advice->stored.options, &machine); // as in the one that was stored
        advice->stored.options.machine = asked->machine;         // of the command to paste
    }
    if (asked->fit && (!limit || asked->fit < limit)) limit = asked->fit;
    advice->limits = up_limits_of(&machine, advice->config.as, limit);
    advice->forecaster = up_forecaster_create(&machine, 0);
    if (!advice->forecaster) UP_TRY(up_no_memory(err));
out:
    return rc;
}

static enum up_status change_length(int64_t seq, struct up_advice *advice, struct up_error *err)
{
    if (!seq) return UP_OK;
    advice->config.seq = seq;
    if (up_config_check(&advice->config, err)) return UP_USAGE;
    if (up_config_can_be_forecast(&advice->config)) return UP_OK;
    return up_fail(err, UP_USAGE, "--seq: expected fewer tokens: the step has too many operations");
}

// With an eighth of what there is to spare.
static bool fits_easily(const struct up_advice *advice, const struct up_candidate *to)
{
    struct up_limits limits = advice->limits;
    limits.device_bytes -= limits.device_bytes / 8;
    limits.host_bytes -= limits.host_bytes / 8;
    return up_limits_check(&limits, &to->config, to->forecast) == UP_ROOM_FITS;
}

// A plan takes some percent more than what is alive: it is made, which takes its time, where that
// decides.
static enum up_status fits_planned(struct up_advice *advice, struct up_candidate *to, bool *fits,
                                   struct up_error *err)
{
    enum up_status rc = UP_OK;
    *fits = up_limits_check(&advice->limits, &to->config, to->forecast) == UP_ROOM_FITS;
    if (!*fits || fits_easily(advice, to)) return UP_OK;
    UP_TRY(up_forecaster_ask(advice->forecaster, &to->config, UP_FORECAST_PLANNED, &to->forecast,
                             err));
    *fits = up_limits_check(&advice->limits, &to->config, to->forecast) == UP_ROOM_FITS;
out:
    return rc;
}

static enum up_status choose_typed(struct up_advice *advice, struct up_error *err)
{
    enum up_status rc = UP_OK;
    bool fits = !advice->limits.device_bytes && !advice->limits.host_bytes;
    advice->typed = advice->path_count;
    while (advice->typed && !fits) {
        UP_TRY(fits_planned(advice, &advice->path[advice->typed - 1].to, &fits, err));
        if (!fits) advice->typed--;
    }
    if (!fits && advice->path_count) UP_TRY(fits_planned(advice, &advice->now, &fits, err));
    if (!fits) advice->typed = advice->path_count;
out:
    return rc;
}

enum up_status up_advice_read(const struct up_run *run, const struct up_advice_asked *asked,
                              struct up_advice *advice, struct up_error *err)
{
    enum up_status rc = UP_OK;
    *advice = (struct up_advice){0};
    UP_TRY(read_stored(run, advice, err));
    UP_TRY(change_length(asked->seq, advice, err));
    UP_TRY(choose_limits(asked, advice, err));
    advice->now.config = advice->config;
    UP_TRY(up_forecaster_ask(advice->forecaster, &advice->config, UP_FORECAST_PLACED,
                             &advice->now.forecast, err));
    UP_TRY(up_advise_path(advice->forecaster, &advice->config, &advice->limits, advice->path,
                          &advice->path_count, err));
    UP_TRY(choose_typed(advice, err));
out:
    return rc;
}

enum up_status up_advice_can_rerun(const struct up_run *run, bool *can, char why[UP_ADVICE_WHY],
                                   struct up_error *err)
{
    struct up_advice advice = {.same_hash = false};
    struct up_error reason = {0};
    enum up_status rc = read_stored(run, &advice, &reason);
    *can = rc == UP_OK && advice.same_hash;
    if (rc == UP_FAILED) *err = reason;
    snprintf(why, UP_ADVICE_WHY, "%s",
             rc == UP_OK ? "its steps are not those that this upipe makes of its config"
                         : "it has no config that could be run again");
    up_stored_run_release(&advice.stored);
    return rc == UP_FAILED ? UP_FAILED : UP_OK;
}

void up_advice_release(struct up_advice *advice)
{
    up_stored_run_release(&advice->stored);
    up_forecaster_destroy(advice->forecaster);
    advice->forecaster = NULL;
}

/* --- Stored --------------------------------------------------------------------------------------
 */

enum { MAX_STORED = UP_TECHNIQUE_COUNT + UP_PATH_STEPS + UP_KNOB_POSITIONS + 8 };

struct rows {
    struct up_store_prediction prediction[MAX_STORED];
    char options[MAX_STORED][UP_CHANGE_TEXT];
    int count;
};

// Only what is known in full: a brief forecast has no categories.
static void add_row(struct rows *rows, const struct up_config *from, const struct up_candidate *to)
{
    const struct up_forecast *forecast = to->forecast;
    if (rows->count == MAX_STORED || forecast->depth < UP_FORECAST_PLACED || forecast->beyond)
        return;
    rows->prediction[rows->count] =
        up_predict(from, &to->config, forecast, rows->options[rows->count], UP_CHANGE_TEXT);
    rows->count++;
}

void up_advice_store(const struct up_advice *advice, const char *path,
                     const struct up_candidate *more, int more_count)
{
    struct rows *rows = calloc(1, sizeof *rows);
    const struct up_config *from = &advice->stored.config;
    if (!rows) return; // then nothing is stored
    add_row(rows, from, &advice->now);
    for (int i = 0; i < advice->ladder_count; i++) add_row(rows, from, &advice->ladder[i].to);
    for (int i = 0; i < advice->path_count; i++) add_row(rows, from, &advice->path[i].to);
    for (int i = 0; i < more_count; i++) add_row(rows, from, &more[i]);
    up_store_append_predictions(path, rows->prediction, rows->count);
    free(rows);
}
