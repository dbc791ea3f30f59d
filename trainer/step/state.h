/* The contents of the model state: filled from random numbers or files, and read out to be saved.
 */
#ifndef UP_TRAINER_STATE_H
#define UP_TRAINER_STATE_H

#include "trainer/step/units.h"

enum up_state_kind { UP_STATE_WEIGHTS, UP_STATE_M, UP_STATE_V };

/* Elements [first, first + count) of a parameter (the index-th of the model) on their way in or
 * out. */
struct up_state_visitor {
    enum up_status (*visit)(struct up_state_visitor *visitor, const struct up_param *param,
                            int index, int64_t first, int64_t count, float *elements,
                            struct up_error *err);
};

/* Has the visitor produce, or take, all of this rank's share, piece by piece through a staging
 * buffer in host memory. The device is done with each piece before the next. Nothing happens on
 * dry. */
enum up_status up_state_fill(struct up_units *units, enum up_state_kind kind,
                             struct up_state_visitor *from, struct up_error *err);
enum up_status up_state_read(struct up_units *units, enum up_state_kind kind,
                             struct up_state_visitor *to, struct up_error *err);

/* Random weights: N(0, init_std^2) for matrices, 1 for norms; a function of seed, tensor and
 * element alone. Or the weights of a Hugging Face folder. */
enum up_status up_state_randomise(struct up_units *units, uint64_t seed, struct up_error *err);
enum up_status up_state_load(struct up_units *units, struct up_weights *weights,
                             struct up_error *err);

/* Device memory that filling takes beside the state, once: the arena of what outlives steps ends
 * above it. A multiple of the arena's alignment. */
int64_t up_state_device_staging(const struct up_units *units);

#endif
