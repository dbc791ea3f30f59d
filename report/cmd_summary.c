/* summary: one screen about a run; what upipe-report does when no sub-command is named. */
#include "report/report.h"
#include "report/sections.h"
#include "report/sections_advice.h"

// What one screen has room for, beside advice and without.
enum { TENSORS_WITH_ADVICE = 5, TENSORS = 10 };

static const struct up_option options[] = {UP_REPORT_OPTIONS, {0}};

// A run whose config cannot be run again (hand-made, or by another upipe) has no advice.
static enum up_status read_advice(const struct up_run *run, struct up_advice *advice, bool *there,
                                  struct up_error *err)
{
    const struct up_advice_asked asked = {0};
    struct up_error why = {0};
    enum up_status rc = up_advice_read(run, &asked, advice, &why);
    *there = rc == UP_OK;
    if (rc == UP_FAILED) *err = why;
    return rc == UP_FAILED ? UP_FAILED : UP_OK;
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
    struct up_advice advice = {.same_hash = false};
    bool advised = false;
    UP_TRY(up_run_open_only(arguments, &run, err));
    UP_TRY(up_run_facts_read(&run, &facts, err));
    UP_TRY(up_post_mortem_read(&run, &why, err));
    UP_TRY(up_breakdown_read(&run, UP_NONE, UP_NONE, &breakdown, err));
    UP_TRY(up_step_time_read(&run, &time, err));
    UP_TRY(read_advice(&run, &advice, &advised, err));
    up_section_run(emitter, &run, &facts);
    up_section_post_mortem(emitter, &why);
    up_section_breakdown(emitter, &breakdown, advised ? TENSORS_WITH_ADVICE : TENSORS, true);
    up_section_time(emitter, &time);
    up_section_training(emitter, &facts);
    if (advised)
        up_section_advice(emitter, &advice);
    else
        up_emit_null(emitter, "advice");
out:
    up_post_mortem_release(&why);
    up_advice_release(&advice);
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
