/* summary: one screen about a run; what upipe-report does when no sub-command is named. */
#include "report/report.h"
#include "report/sections.h"

enum { TENSORS = 10 }; // what one screen has room for

static const struct up_option options[] = {UP_REPORT_OPTIONS, {0}};

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
    UP_TRY(up_run_open_only(arguments, &run, err));
    UP_TRY(up_run_facts_read(&run, &facts, err));
    UP_TRY(up_post_mortem_read(&run, &why, err));
    UP_TRY(up_breakdown_read(&run, UP_NONE, UP_NONE, &breakdown, err));
    UP_TRY(up_step_time_read(&run, &time, err));
    up_section_run(emitter, &run, &facts);
    up_section_post_mortem(emitter, &why);
    up_section_breakdown(emitter, &breakdown, TENSORS, true);
    up_section_time(emitter, &time);
    up_section_training(emitter, &facts);
out:
    up_post_mortem_release(&why);
    up_breakdown_release(&breakdown);
    up_run_close(&run);
    return rc;
}

const struct up_command up_command_summary = {
    .name = "summary",
    .summary = "one screen: the run, its peak, what was alive there, where time goes (the default)",
    .operands = "RUN.DB",
    .options = options,
    .options_size = sizeof(struct up_report_options),
    .defaults = &(const struct up_report_options){0},
    .run = run_summary,
};
