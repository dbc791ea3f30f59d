/* The sections of advice, each said through the emitter. */
#ifndef UP_REPORT_SECTIONS_ADVICE_H
#define UP_REPORT_SECTIONS_ADVICE_H

#include "report/advice/advice.h"
#include "report/emit/emit.h"

/* "forecast": the config as it is, and the machine that it is held to. */
void up_section_now(struct up_emitter *emitter, const struct up_advice *advice, const char *path);

/* "ladder": each technique that is not on, by itself. */
void up_section_ladder(struct up_emitter *emitter, const struct up_advice *advice);

/* "path": one technique after the other; "path_options", what to type for all of them; and
 * "options_to_type", for those up to the last line that fits, which is the text's. */
void up_section_path(struct up_emitter *emitter, const struct up_advice *advice);
/* The heading of a path, in the text alone: "Switch on: peak 3.26 TiB now, 78.8 GiB with 7
 * techniques". `how` it is known; no technique: there is none that fits. */
void up_section_switch_on(struct up_emitter *emitter, int64_t now_bytes, int64_t then_bytes,
                          int techniques, const char *how);
/* The same in an object "advice", for the summary. */
void up_section_advice(struct up_emitter *emitter, const struct up_advice *advice);

/* Options to type, in the text alone, on as many lines as they need, broken before options. */
void up_section_options(struct up_emitter *emitter, const char *label, const char *options);

/* "knob": heads a stage against peak and step time. */
void up_section_knob(struct up_emitter *emitter, const struct up_advice *advice,
                     const struct up_candidate *positions, int count);

/* "fit": the fastest config that fits, NULL where none does. */
void up_section_fit(struct up_emitter *emitter, const struct up_advice *advice,
                    const struct up_candidate *best);

/* "longest": the longest sequences, with the run's options and with any. */
void up_section_longest(struct up_emitter *emitter, const struct up_advice *advice,
                        const struct up_longest *as_it_is, const struct up_longest *any);

/* "command": the last line of the text. */
void up_section_command(struct up_emitter *emitter, const char *command);

#endif
