/* advise: which techniques to switch on, what they would change, and what fits. */
#include "report/report.h"
#include "report/emit/sections.h"
#include "report/emit/sections_advice.h"
#include "report/emit/sections_modelled.h"

#include <stdlib.h>

struct advise_options {
    struct up_report_options report;
    int64_t fit, seq;
    bool max_seq;
    const char *machine;
};

static const struct up_option options[] = {
    {.name = "fit",
     .kind = UP_OPTION_SIZE,
     .field = offsetof(struct advise_options, fit),
     .value = "SIZE",
     .min = 1,
     .help = "the fastest configuration that fits SIZE of each device (and the machine)",
     .group = "What is asked"},
    {.name = "seq",
     .kind = UP_OPTION_SIZE,
     .field = offsetof(struct advise_options, seq),
     .value = "TOKENS",
     .min = 1,
     .help = "for this length instead of the run's"},
    {.name = "max-seq",
     .kind = UP_OPTION_FLAG,
     .field = offsetof(struct advise_options, max_seq),
     .help = "the longest sequence that fits, and what ends it"},
    {.name = "machine",
     .kind = UP_OPTION_TEXT,
     .field = offsetof(struct advise_options, machine),
     .value = "NAME|FILE",
     .help = "on this machine instead of the run's"},
    UP_REPORT_OPTIONS,
    {0}};

// What was found, besides the ladder and the path.
struct answers {
    struct up_candidate knob[UP_KNOB_POSITIONS], best;
    int knob_count;
    bool fit_asked, fits;
    struct up_longest as_it_is, any;
    const struct up_config *chosen; // whose command is told; NULL: none
};

static enum up_status find_fit(struct up_advice *advice, const struct advise_options *o,
                               struct answers *answers, struct up_error *err)
{
    enum up_status rc = UP_OK;
    answers->fit_asked = advice->limits.device_bytes || advice->limits.host_bytes;
    if (!answers->fit_asked || o->max_seq) return UP_OK;
    UP_TRY(up_advise_cheapest(advice->forecaster, &advice->config, &advice->limits, &answers->best,
                              &answers->fits, err));
    if (answers->fits) answers->chosen = &answers->best.config;
out:
    return rc;
}

static enum up_status find_longest(struct up_advice *advice, const struct advise_options *o,
                                   struct answers *answers, struct up_error *err)
{
    enum up_status rc = UP_OK;
    if (!o->max_seq) return UP_OK;
    if (!advice->limits.device_bytes && !advice->limits.host_bytes)
        UP_TRY(up_fail(err, UP_USAGE,
                       "--max-seq: the machine's memory is not known: expected --fit SIZE or "
                       "--machine beside it"));
    UP_TRY(up_advise_longest(advice->forecaster, &advice->config, &advice->limits, false,
                             &answers->as_it_is, err));
    UP_TRY(up_advise_longest(advice->forecaster, &advice->config, &advice->limits, true,
                             &answers->any, err));
    if (answers->any.found) answers->chosen = &answers->any.best.config;
out:
    return rc;
}

// What is chosen was planned, and its step time is told against that of the run planned as well.
static enum up_status plan_now(struct up_advice *advice, const struct answers *answers,
                               struct up_error *err)
{
    if (!answers->chosen) return UP_OK;
    return up_forecaster_ask(advice->forecaster, &advice->config, UP_FORECAST_PLANNED,
                             &advice->now.forecast, err);
}

static enum up_status find_all(struct up_advice *advice, const struct advise_options *o,
                               struct answers *answers, struct up_error *err)
{
    enum up_status rc = UP_OK;
    UP_TRY(up_advise_ladder(advice->forecaster, &advice->config, advice->ladder,
                            &advice->ladder_count, err));
    UP_TRY(up_advise_knob(advice->forecaster, &advice->config, answers->knob, &answers->knob_count,
                          err));
    UP_TRY(find_fit(advice, o, answers, err));
    UP_TRY(find_longest(advice, o, answers, err));
    UP_TRY(plan_now(advice, answers, err));
out:
    return rc;
}

static enum up_status tell_command(struct up_emitter *emitter, const struct up_advice *advice,
                                   const struct up_config *config, struct up_error *err)
{
    if (!config) {
        up_emit_null(emitter, "command");
        return UP_OK;
    }
    char *command = up_stored_command(&advice->stored, config);
    if (!command) return up_no_memory(err);
    up_section_command(emitter, command);
    free(command);
    return UP_OK;
}

// Every forecast that was told is stored, with those of the ladder and the path.
static void store_all(const struct up_advice *advice, const char *path,
                      const struct answers *answers)
{
    struct up_candidate more[UP_KNOB_POSITIONS + 3];
    int count = 0;
    for (int i = 0; i < answers->knob_count; i++) more[count++] = answers->knob[i];
    if (answers->fits) more[count++] = answers->best;
    if (answers->as_it_is.found) more[count++] = answers->as_it_is.best;
    if (answers->any.found) more[count++] = answers->any.best;
    up_advice_store(advice, path, more, count);
}

static void tell_all(struct up_emitter *emitter, const struct up_advice *advice,
                     const struct up_run *run, const struct up_run_facts *facts,
                     const struct advise_options *o, const struct answers *answers)
{
    up_section_now(emitter, advice, run->path);
    up_section_incomplete(emitter, facts);
    up_section_ladder(emitter, advice);
    up_section_path(emitter, advice);
    up_section_knob(emitter, advice, answers->knob, answers->knob_count);
    if (answers->fit_asked && !o->max_seq)
        up_section_fit(emitter, advice, answers->fits ? &answers->best : NULL);
    if (o->max_seq) up_section_longest(emitter, advice, &answers->as_it_is, &answers->any);
}

/* --- Of a run whose step can be run again --------------------------------------------------------
 */

static enum up_status advise_by_reruns(const struct up_arguments *arguments,
                                       const struct advise_options *o, struct up_run *run,
                                       struct up_emitter *emitter, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct up_advice_asked asked = {.machine = o->machine, .fit = o->fit, .seq = o->seq};
    struct up_advice advice = {0};
    struct answers answers = {.knob_count = 0};
    struct up_run_facts facts;
    UP_TRY(up_run_facts_read(run, &facts, err));
    UP_TRY(up_advice_read(run, &asked, &advice, err));
    UP_TRY(find_all(&advice, o, &answers, err));
    tell_all(emitter, &advice, run, &facts, o, &answers);
    UP_TRY(tell_command(emitter, &advice, answers.chosen, err));
    up_run_close(run);
    store_all(&advice, arguments->positional[0], &answers);
    // Nothing fits: that is the answer.
    if (!answers.chosen && (answers.fit_asked || o->max_seq)) rc = UP_FAILED;
out:
    up_advice_release(&advice);
    return rc;
}

/* --- Of one whose lifetimes are all there is -----------------------------------------------------
 */

static const struct up_modelled_line *first_that_fits(const struct up_modelled *modelled)
{
    if (up_modelled_fits(modelled, &modelled->now)) return &modelled->now;
    for (int i = 0; i < modelled->path_count; i++)
        if (up_modelled_fits(modelled, &modelled->path[i])) return &modelled->path[i];
    return NULL;
}

static enum up_status advise_by_rules(const struct advise_options *o, const struct up_run *run,
                                      const char *why, struct up_emitter *emitter,
                                      struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_run_facts facts;
    struct up_breakdown breakdown = {.host_peak = {.seq = UP_NONE}};
    struct up_modelled modelled = {.limit_bytes = 0};
    UP_TRY(up_run_facts_read(run, &facts, err));
    UP_TRY(up_breakdown_read(run, UP_NONE, UP_NONE, &breakdown, err));
    UP_TRY(up_modelled_read(run, &breakdown, o->fit, true, &modelled, err));
    up_section_modelled_now(emitter, &modelled, &facts, run->path, why);
    up_section_incomplete(emitter, &facts);
    if (facts.injected)
        up_emit_note(emitter, "its tensors are allocations of the driver: whether they hold "
                              "weights, activations or what a framework keeps free is not known, "
                              "and so not what would shrink them");
    up_section_modelled_ladder(emitter, &modelled);
    up_section_modelled_path(emitter, &modelled);
    up_section_modelled_rules(emitter, &modelled);
    if (modelled.limit_bytes) {
        const struct up_modelled_line *best = first_that_fits(&modelled);
        up_section_modelled_fit(emitter, &modelled, best);
        if (!best) rc = UP_FAILED;
    }
    up_emit_null(emitter, "command");
out:
    up_breakdown_release(&breakdown);
    up_modelled_release(&modelled);
    return rc;
}

// Another length or machine can be told of by dry re-runs alone, be they those of another upipe.
static enum up_status run_advise(const void *values, const struct up_arguments *arguments,
                                 struct up_emitter *emitter, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct advise_options *o = values;
    struct up_run run = {0};
    bool can;
    char why[UP_ADVICE_WHY];
    UP_TRY(up_run_open_only(arguments, &run, err));
    UP_TRY(up_advice_can_rerun(&run, &can, why, err));
    if (can || o->seq || o->max_seq || o->machine)
        UP_TRY(advise_by_reruns(arguments, o, &run, emitter, err));
    else
        UP_TRY(advise_by_rules(o, &run, why, emitter, err));
out:
    up_run_close(&run);
    return rc;
}

const struct up_command up_command_advise = {
    .name = "advise",
    .summary = "what to switch on next, where the peak goes then, and what fits",
    .operands = "RUN.DB",
    .options = options,
    .options_size = sizeof(struct advise_options),
    .defaults = &(const struct advise_options){.fit = 0},
    .run = run_advise,
};
