/* peak: what was alive at the highest moment of a run, of a rank or of a step. */
#include "report/report.h"
#include "report/emit/sections.h"

struct peak_options {
    struct up_report_options report;
    int64_t rank, step, limit;
};

static const struct up_option options[] = {
    {.name = "rank",
     .kind = UP_OPTION_INTEGER,
     .field = offsetof(struct peak_options, rank),
     .value = "R",
     .help = "of this rank [the one with the highest peak]",
     .group = "Which moment"},
    {.name = "step",
     .kind = UP_OPTION_INTEGER,
     .field = offsetof(struct peak_options, step),
     .value = "S",
     .help = "within this step [the one with the highest peak]"},
    {.name = "limit",
     .kind = UP_OPTION_INTEGER,
     .field = offsetof(struct peak_options, limit),
     .fallback = "10",
     .value = "N|all",
     .help = "how many tensors and kinds to list",
     .min = 1,
     .off = "all"},
    UP_REPORT_OPTIONS,
    {0}};

static enum up_status run_peak(const void *values, const struct up_arguments *arguments,
                               struct up_emitter *emitter, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct peak_options *o = values;
    struct up_run run = {0};
    struct up_run_facts facts;
    struct up_post_mortem why = {0};
    struct up_breakdown breakdown = {0};
    UP_TRY(up_run_open_only(arguments, &run, err));
    UP_TRY(up_run_facts_read(&run, &facts, err));
    UP_TRY(up_post_mortem_read(&run, &why, err));
    UP_TRY(up_breakdown_read(&run, o->rank, o->step, &breakdown, err));
    up_section_run(emitter, &run, &facts);
    up_section_post_mortem(emitter, &why);
    up_section_breakdown(emitter, &breakdown, o->limit, NULL);
out:
    up_post_mortem_release(&why);
    up_breakdown_release(&breakdown);
    up_run_close(&run);
    return rc;
}

const struct up_command up_command_peak = {
    .name = "peak",
    .summary = "what was alive at the peak, of one rank or step if asked",
    .operands = "RUN.DB",
    .options = options,
    .options_size = sizeof(struct peak_options),
    .defaults = &(const struct peak_options){.rank = UP_NONE, .step = UP_NONE},
    .run = run_peak,
};
