/* Model state: parameters, gradients and moments, in units.
 *
 * A unit is what is needed at one time: the embedding, each block, the head (with the final norm). Its
 * tensors lie one after the other in one flat buffer, in the order of model/params.def; a tied head is
 * the embedding's. The flat fp32 weights are cast (later: gathered from all ranks) into the compute
 * dtype just before use; where that would be a copy of the same numbers the weights are used as they
 * are.
 */
#ifndef UP_TRAINER_UNITS_H
#define UP_TRAINER_UNITS_H

#include "mem/mem.h"
#include "model/config.h"

struct up_unit {
    enum up_param_unit kind;
    int layer;         // UP_UNIT_BLOCK, else UP_NO_LAYER
    int64_t elements;  // of all its tensors
    int64_t at[UP_PARAM_KIND_COUNT]; // where each tensor begins; -1: not in this unit
    struct up_tensor *weights; // fp32 [elements]
    struct up_tensor *grads;   // fp32 [elements], added to in the backward
    struct up_tensor *m, *v;   // fp32 [elements]
    struct up_tensor *used;    // compute dtype [elements] while the unit is in use, else NULL
};

struct up_units {
    struct up_unit *unit; // embedding, blocks, head
    int count;
    enum up_dtype dtype;
};

/* Allocates all model state; contents are undefined but for the moments, which are 0. */
enum up_status up_units_init(struct up_units *units, struct up_rank *rank,
                             const struct up_config *config, struct up_error *err);
void up_units_release(struct up_units *units); // the tensors stay the rank's

static inline struct up_unit *up_units_embed(struct up_units *units) { return &units->unit[0]; }
static inline struct up_unit *up_units_block(struct up_units *units, int64_t layer)
{
    return &units->unit[1 + layer];
}
static inline struct up_unit *up_units_head(struct up_units *units)
{
    return &units->unit[units->count - 1];
}

/* The unit that a parameter belongs to. */
struct up_unit *up_units_of(struct up_units *units, const struct up_param *param);

/* Random weights: N(0, init_std^2) for matrices, 1 for norms; a function of seed, tensor and element
 * alone. Or the weights of a Hugging Face folder. Both wait until the device has them. */
enum up_status up_units_randomise(struct up_units *units, struct up_rank *rank,
                                  const struct up_model *model, uint64_t seed, struct up_error *err);
enum up_status up_units_load(struct up_units *units, struct up_rank *rank,
                             const struct up_model *model, struct up_weights *weights,
                             struct up_error *err);

/* Makes the unit's weights usable on the compute stream, and gives them up again. */
void up_unit_acquire(struct up_units *units, struct up_unit *unit, struct up_rank *rank);
void up_unit_drop(struct up_unit *unit, struct up_rank *rank);

/* The first element of a tensor of an acquired unit, compute dtype; and of its gradient, fp32. */
const void *up_unit_weight(const struct up_unit *unit, enum up_param_kind kind);
float *up_unit_grad(const struct up_unit *unit, enum up_param_kind kind);

/* All gradients to zero, on the compute stream. */
void up_units_zero_grads(struct up_units *units, struct up_rank *rank);

#endif
