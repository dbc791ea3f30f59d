/* Which techniques to switch on: one after the other, as few as possible, or as fast as possible.
 * All answers are forecasts by dry re-runs (forecaster.h); nothing here prints. */
#ifndef UP_TRAINER_ADVISOR_H
#define UP_TRAINER_ADVISOR_H

#include "trainer/advisor/limits.h"
#include "trainer/advisor/technique.h"
#include "trainer/forecast/forecaster.h"

/* --- One after the other -------------------------------------------------------------------------
 */

struct up_ladder_line {
    enum up_technique technique;
    struct up_candidate to;
};

/* `config` with each technique that is not on, forecast to UP_FORECAST_PLACED; returns how many. */
enum up_status up_advise_ladder(struct up_forecaster *forecaster, const struct up_config *config,
                                struct up_ladder_line lines[UP_TECHNIQUE_COUNT], int *count,
                                struct up_error *err);

/* The path on which each next technique lowers the peak most, until none lowers it by a hundredth
 * (two together, where no single one does). While model state alone is too much for the device,
 * only techniques that shrink that are looked at. */
enum { UP_PATH_STEPS = 24 };
enum up_status up_advise_path(struct up_forecaster *forecaster, const struct up_config *config,
                              const struct up_limits *limits,
                              struct up_ladder_line steps[UP_PATH_STEPS], int *count,
                              struct up_error *err);

/* --- What fits -----------------------------------------------------------------------------------
 */

/* The smallest change that fits: of the fewest techniques, and of those the least step time. The
 * planned arena is what must fit. *found false: nothing does. */
enum up_status up_advise_smallest(struct up_forecaster *forecaster, const struct up_config *config,
                                  const struct up_limits *limits, struct up_candidate *best,
                                  bool *found, struct up_error *err);

/* Of all configs with the same ranks, length and sequences a step the one with least step time that
 * fits: techniques are also switched off where there is room. */
enum up_status up_advise_cheapest(struct up_forecaster *forecaster, const struct up_config *config,
                                  const struct up_limits *limits, struct up_candidate *best,
                                  bool *found, struct up_error *err);

/* What takes the least device memory, for either place of the optimizer's state; of the kept blocks
 * as many in host memory as that holds. *found false: neither fits; *room is then what the one that
 * came nearest lacked. */
enum up_status up_advise_leanest(struct up_forecaster *forecaster, const struct up_config *config,
                                 const struct up_limits *limits, struct up_candidate *best,
                                 bool *found, enum up_room *room, struct up_error *err);

/* The longest sequence that fits, to within 1/256. `searching`: with whatever techniques it takes,
 * otherwise with the options of `config`. `room` is what a longer one lacks; UP_ROOM_FITS: the
 * search ended at UP_LONGEST_SEQ. */
enum { UP_LONGEST_SEQ = 1 << 26 };
struct up_longest {
    bool searched;
    bool found; // even the shortest does not fit, otherwise
    struct up_candidate best;
    enum up_room room;
    bool heads_in_the_way; // more ranks could share a sequence if they divided the heads
};
enum up_status up_advise_longest(struct up_forecaster *forecaster, const struct up_config *config,
                                 const struct up_limits *limits, bool searching,
                                 struct up_longest *longest, struct up_error *err);

/* --- The knob ------------------------------------------------------------------------------------
 */

/* `config` with every legal number of heads a stage, from cp to all, forecast to
 * UP_FORECAST_PLACED: a brief forecast of several micro-batches would be no match for the ladder's.
 * Returns how many in *count. */
enum { UP_KNOB_POSITIONS = 32 };
enum up_status up_advise_knob(struct up_forecaster *forecaster, const struct up_config *config,
                              struct up_candidate positions[UP_KNOB_POSITIONS], int *count,
                              struct up_error *err);

#endif
