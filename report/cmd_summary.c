/* summary: one screen about a run; what upipe-report does when no sub-command is named. */
#include "report/report.h"
#include "report/emit/sections.h"
#include "report/emit/sections_advice.h"
#include "report/emit/sections_modelled.h"

/* What a screen has room for: of tensors, beside advice and without; of lines, to which rows of
 * categories and of tensors give way, down to the fewest. */
enum { TENSORS_WITH_ADVICE = 5, TENSORS = 10, CATEGORIES = 12 };
enum { LINES = 45, FEWEST_TENSORS = 1, FEWEST_CATEGORIES = 3 };

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

/* All that the summary tells. */
struct summary {
    struct up_run run;
    struct up_run_facts facts;
    struct up_post_mortem why;
    struct up_breakdown breakdown;
    struct up_step_time time;
    struct summary_advice advice;
};

static enum up_status read_summary(struct summary *s, struct up_error *err)
{
    enum up_status rc = UP_OK;
    UP_TRY(up_run_facts_read(&s->run, &s->facts, err));
    UP_TRY(up_post_mortem_read(&s->run, &s->why, err));
    UP_TRY(up_breakdown_read(&s->run, UP_NONE, UP_NONE, &s->breakdown, err));
    UP_TRY(up_step_time_read(&s->run, &s->time, err));
    UP_TRY(read_advice(&s->run, &s->breakdown, &s->advice, err));
out:
    return rc;
}

static void release_summary(struct summary *s)
{
    up_post_mortem_release(&s->why);
    up_advice_release(&s->advice.exact);
    up_modelled_release(&s->advice.modelled);
    up_breakdown_release(&s->breakdown);
    up_run_close(&s->run);
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

static void tell_summary(struct up_emitter *emitter, const struct summary *s,
                         const struct up_brief *brief)
{
    up_section_run(emitter, &s->run, &s->facts);
    up_section_post_mortem(emitter, &s->why);
    up_section_breakdown(emitter, &s->breakdown, TENSORS, brief);
    up_section_time(emitter, &s->time);
    up_section_training(emitter, &s->facts);
    tell_advice(emitter, &s->advice);
}

/* --- One screen --------------------------------------------------------------------------------
 */

static enum up_status count_lines(const struct summary *s, const struct up_brief *brief, int *lines,
                                  struct up_error *err)
{
    struct up_emitter *emitter = up_emitter_create(&(const struct up_emit_style){.utf8 = true});
    if (!emitter) return up_no_memory(err);
    tell_summary(emitter, s, brief);
    *lines = up_emitter_lines(emitter);
    up_emitter_destroy(emitter);
    return UP_OK;
}

// A row less of the longer table; false where both have as few as they may.
static bool shorten(struct up_brief *brief)
{
    bool category = brief->categories > FEWEST_CATEGORIES;
    if (category && (brief->categories > brief->tensors || brief->tensors == FEWEST_TENSORS))
        brief->categories--;
    else if (brief->tensors > FEWEST_TENSORS)
        brief->tensors--;
    else
        return false;
    return true;
}

static enum up_status fit_screen(const struct summary *s, struct up_brief *brief,
                                 struct up_error *err)
{
    bool advised = s->advice.is_exact || s->advice.is_modelled;
    int lines = 0;
    *brief = (struct up_brief){.categories = CATEGORIES,
                               .tensors = advised ? TENSORS_WITH_ADVICE : TENSORS};
    do {
        enum up_status rc = count_lines(s, brief, &lines, err);
        if (rc != UP_OK) return rc;
    } while (lines > LINES && shorten(brief));
    return UP_OK;
}

static enum up_status run_summary(const void *values, const struct up_arguments *arguments,
                                  struct up_emitter *emitter, struct up_error *err)
{
    (void)values;
    enum up_status rc = UP_OK;
    struct summary s = {.advice = {.is_exact = false}};
    struct up_brief brief;
    UP_TRY(up_run_open_only(arguments, &s.run, err));
    UP_TRY(read_summary(&s, err));
    UP_TRY(fit_screen(&s, &brief, err));
    tell_summary(emitter, &s, &brief);
out:
    release_summary(&s);
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
