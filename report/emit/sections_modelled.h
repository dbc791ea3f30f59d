/* The sections of advice that is modelled on recorded lifetimes, under the keys of the exact one's
 * (sections_advice.h); what only dry re-runs know is null. */
#ifndef UP_REPORT_SECTIONS_MODELLED_H
#define UP_REPORT_SECTIONS_MODELLED_H

#include "report/advice/modelled.h"
#include "report/emit/emit.h"

/* "forecast": the run as it was recorded. `why`: what keeps its step from being run again. */
void up_section_modelled_now(struct up_emitter *emitter, const struct up_modelled *modelled,
                             const struct up_run_facts *facts, const char *path, const char *why);

/* "ladder" and "path", the latter with "path_options" and "options_to_type". */
void up_section_modelled_ladder(struct up_emitter *emitter, const struct up_modelled *modelled);
void up_section_modelled_path(struct up_emitter *emitter, const struct up_modelled *modelled);

/* "left_out": techniques that cannot be had or told of, and why; then what the rules assume. */
void up_section_modelled_rules(struct up_emitter *emitter, const struct up_modelled *modelled);

/* "fit": the first of the path that fits, NULL where none does. */
void up_section_modelled_fit(struct up_emitter *emitter, const struct up_modelled *modelled,
                             const struct up_modelled_line *best);

/* The path in an object "advice", for the summary. */
void up_section_modelled_advice(struct up_emitter *emitter, const struct up_modelled *modelled);

#endif
