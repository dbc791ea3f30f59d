/* summary: one screen about a run; what upipe-report does when no sub-command is named. */
#include "report/report.h"
#include "report/emit/sections.h"
#include "report/emit/sections_advice.h"
#include "report/emit/sections_modelled.h"

// What one screen has room for, beside advice and without.
enum { TENSORS_WITH_ADVICE = 5, TENSORS = 10 };

static const struct up_option options[] = {UP_REPORT_OPTIONS, {0}};

// Dry re-runs where the run's step can be run again; else rules, where there is anything to rule.
struct summary_advice {
    struct up_advice exact;
    struct up_modelled modelled;
    bool is_exact, is_modelled;
};

static enum up_status read_advice(const struct up_run *run, const struct up_breakdown *breakdown,
                                  struct summary_advice *advice, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct up_advice_asked asked = {0};
    char why[UP_ADVICE_WHY];
    UP_TRY(up_advice_can_rerun(run, &advice->is_exact, why, err));
    if (advice->is_exact) {
        UP_TRY(up_advice_read(run, &asked, &advice->exact, err));
    } else if (breakdown->peak.rank != UP_NONE) {
        UP_TRY(up_modelled_read(run, breakdown, 0, false, &advice->modelled, err));
        advice->is_modelled = advice->modelled.path_count > 0;
    }
out:
    return rc;
}

static void tell_advice(struct up_emitter *emitter, const struct summary_advice *advice)
{
    if (advice->is_exact)
        up_section_advice(emitter, &advice->exact);
    else if (advice->is_modelled)
        up_section_modelled_advice(emitter, &advice->modelled);
    else
        up_emit_null(emitter, "advice");
}

static enum up_status run_summary(const void *values, const struct up_arguments *arguments,
                                  struct up_emitter *emitter, struct up_error *err)
{
    (void)values;
    enum up_status rc = UP_OK;
    struct up_run run = {0};
    struct up_run_facts facts;
    struct up_post_mortem why = {0};
    struct up_breakdown breakdown = {0};
    struct up_step_time time;
    struct summary_advice advice = {.is_exact = false};
    UP_TRY(up_run_open_only(arguments, &run, err));
    UP_TRY(up_run_facts_read(&run, &facts, err));
    UP_TRY(up_post_mortem_read(&run, &why, err));
    UP_TRY(up_breakdown_read(&run, UP_NONE, UP_NONE, &breakdown, err));
    UP_TRY(up_step_time_read(&run, &time, err));
    UP_TRY(read_advice(&run, &breakdown, &advice, err));
    bool advised = advice.is_exact || advice.is_modelled;
    up_section_run(emitter, &run, &facts);
    up_section_post_mortem(emitter, &why);
    up_section_breakdown(emitter, &breakdown, TENSORS, advised ? TENSORS_WITH_ADVICE : TENSORS);
    up_section_time(emitter, &time);
    up_section_training(emitter, &facts);
    tell_advice(emitter, &advice);
out:
    up_post_mortem_release(&why);
    up_advice_release(&advice.exact);
    up_modelled_release(&advice.modelled);
    up_breakdown_release(&breakdown);
    up_run_close(&run);
    return rc;
}

const struct up_command up_command_summary = {
    .name = "summary",
    .summary =
        "one screen: the run, its peak, what was alive there, what to switch on (the default)",
    .operands = "RUN.DB",
    .options = options,
    .options_size = sizeof(struct up_report_options),
    .defaults = &(const struct up_report_options){0},
    .run = run_summary,
};
