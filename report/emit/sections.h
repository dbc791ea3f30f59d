/* The parts that reports are made of, each said through the emitter. */
#ifndef UP_REPORT_SECTIONS_H
#define UP_REPORT_SECTIONS_H

#include "report/analysis/analysis.h"
#include "report/analysis/breakdown.h"
#include "report/analysis/post_mortem.h"
#include "report/analysis/step_time.h"
#include "report/emit/emit.h"

/* "run": what was run, how far it got, what went wrong. */
void up_section_run(struct up_emitter *emitter, const struct up_run *run,
                    const struct up_run_facts *facts);
/* A note of how far a run got that has not ended; none of one that has. up_section_run has it. */
void up_section_incomplete(struct up_emitter *emitter, const struct up_run_facts *facts);

/* "out_of_memory": what did not fit, what filled the memory then. Nothing where that is not known.
 */
void up_section_post_mortem(struct up_emitter *emitter, const struct up_post_mortem *why);

/* At most so many rows of a screen. */
struct up_brief {
    int64_t categories, tensors;
};

/* "peak", "categories", "reconciliation", "largest" and "kinds" (`limit` of each, 0: all) and
 * "host". `brief`, if not NULL, makes the text one of one screen: the sums on a line, the larger
 * categories, and tensors by kind. Says so where nothing was recorded. */
void up_section_breakdown(struct up_emitter *emitter, const struct up_breakdown *breakdown,
                          int64_t limit, const struct up_brief *brief);

/* "training": loss and speed, and what recording cost. */
void up_section_training(struct up_emitter *emitter, const struct up_run_facts *facts);

/* "time": what the compute stream does, and what is exposed beside it. Null where no step has
 * kernels. */
void up_section_time(struct up_emitter *emitter, const struct up_step_time *time);

#endif
