/* Model state: parameters, gradients and moments, in units.
 *
 * A unit is what is needed at one time: the embedding, each block, the head (with the final norm).
 * Its tensors lie one after the other in one flat buffer, in the order of model/params.def; a tied
 * head is the embedding's.
 *
 * With --fsdp on and several ranks each rank holds a share of every unit: ceil(elements / ranks),
 * the last ones padded. Before use the share is cast into the compute dtype and gathered from all
 * ranks; after a backward the unit's gradient is reduced and each rank adds its share to its own.
 * Otherwise a unit is whole on every rank; it is cast before use, unless that would copy the same
 * numbers.
 *
 * With --optimizer host the fp32 weights and the moments live in host memory; the device keeps the
 * share in the compute dtype.
 */
#ifndef UP_TRAINER_UNITS_H
#define UP_TRAINER_UNITS_H

#include "comm/comm.h"
#include "model/config.h"

struct up_unit {
    enum up_param_unit kind;
    int layer;                       // UP_UNIT_BLOCK, else UP_NO_LAYER
    int64_t elements;                // of all its tensors
    int64_t at[UP_PARAM_KIND_COUNT]; // where each tensor begins; -1: not in this unit
    int first_param, params;         // its tensors in units.params
    int64_t share;                   // elements of each rank's share
    int64_t first,
        own; // this rank's share: elements [first, first + own), then padding up to `share`
    struct up_tensor *weights;    // fp32 [share]; in host space with --optimizer host
    struct up_tensor *grads;      // fp32 [share], added to in the backward
    struct up_tensor *m, *v;      // fp32 [share], where the weights are
    struct up_tensor *shard;      // compute dtype [share], with --optimizer host, else NULL
    struct up_tensor *used;       // compute dtype, whole, while the unit is wanted, else NULL
    struct up_moment ready;       // when `used` is whole
    struct up_tensor *full_grads; // fp32, whole, during the unit's backward where it is sharded
};

struct up_units {
    struct up_unit *unit; // embedding, blocks, head
    int count;
    struct up_param *params; // the model's, in order; those of a unit are neighbours
    const struct up_config *config;
    struct up_rank *rank;
    struct up_comm *world;
    bool sharded; // fsdp with several ranks
};

/* Allocates all model state; weights are undefined, moments 0. `world` is the group of all ranks.
 */
enum up_status up_units_init(struct up_units *units, struct up_rank *rank,
                             const struct up_config *config, struct up_comm *world,
                             struct up_error *err);
void up_units_release(struct up_units *units); // the tensors stay the rank's

static inline struct up_unit *up_units_embed(struct up_units *units)
{
    return &units->unit[0];
}
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

/* The part of a parameter that is in this rank's share: elements [first, first + count) of the
 * parameter, at `at` of the share. count 0: none. */
struct up_part {
    int64_t first, count, at;
};
struct up_part up_unit_part(const struct up_unit *unit, const struct up_param *param);

/* --- In use -------------------------------------------------------------------------------------
 */

/* Begins to make the unit's weights usable, ahead of time; up_unit_acquire then waits for it. */
void up_unit_prefetch(struct up_units *units, struct up_unit *unit);
void up_unit_acquire(struct up_units *units, struct up_unit *unit);
void up_unit_drop(struct up_units *units, struct up_unit *unit);

/* Between these the unit's whole gradient may be added to. */
void up_unit_grads_begin(struct up_units *units, struct up_unit *unit);
void up_unit_grads_end(struct up_units *units, struct up_unit *unit);

/* The first element of a tensor of an acquired unit, compute dtype; and of its gradient, fp32. */
const void *up_unit_weight(const struct up_unit *unit, enum up_param_kind kind);
float *up_unit_grad(const struct up_unit *unit, enum up_param_kind kind);

/* All gradients to zero, on the compute stream. */
void up_units_zero_grads(struct up_units *units);
/* Where units are whole on several ranks: gradients become the sum over all ranks. */
void up_units_reduce_grads(struct up_units *units);

#endif
