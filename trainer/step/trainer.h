/* One rank's trainer: what outlives its steps, and how far it is. */
#ifndef UP_TRAINER_TRAINER_H
#define UP_TRAINER_TRAINER_H

#include "mem/mem.h"
#include "model/config.h"
#include "trainer/step/exchange.h"
#include "trainer/step/offload.h"
#include "trainer/step/units.h"

/* What a block keeps from forward to backward. T: local tokens (batch x local sequence); m: query
 * heads a stage and rank; n: their KV heads. Arrays have an entry per slot, which is a
 * stage of a pass (attention.c). */
struct up_kept {
    struct up_stored x;      // [T, hidden], the block's input: always kept
    struct up_tensor *x_mid; // [T, hidden], after attention (checkpoint none)
    struct up_tensor *
        *q; // per slot [.., m, head_dim]; before norm and RoPE if the model has q/k norm (none)
    struct up_tensor **k, **v; // per slot [.., n, head_dim], where K and V change; k like q (none)
    struct up_stored *o;       // per slot, attention's output, in sequence layout (none, attn)
    struct up_stored *lse;     // per slot [batch, m, seq] fp32 (none, attn)
    struct up_tensor *gate, *up; // [T, ff] (none)
};

struct up_hyper {
    double lr, beta1, beta2, epsilon, decay, clip; // clip 0: off
};

/* Tells how far a step is: `done` of `all`, in layers forward and backward weighed by their cost.
 */
struct up_progress {
    void (*tell)(struct up_progress *progress, double done, double all);
};

/* One rank's trainer. Set up by up_trainer_init; what it is given is the caller's and outlives it.
 */
struct up_trainer {
    struct up_rank *rank;
    const struct up_config *config;
    struct up_comm *world, *cp; // all ranks; those that share this rank's sequences
    int64_t cp_rank, dp_rank;
    struct up_layouts layouts;
    struct up_units units;
    struct up_kept *kept;             // per layer
    struct up_tensor **slots;         // what kept's arrays and stage_scratch point into
    struct up_stored *stored;         // likewise
    struct up_tensor **stage_scratch; // per slot, for the backward of one layer
    struct up_tensor *workspace;      // for the device's libraries; NULL where it wants none
    struct up_tensor *scalars;        // fp64 [2] on the device: loss sum, squared gradient norm
    struct up_tensor *scalars_host;   // the same, in host space
    struct up_tensor
        *tokens_host; // i32 [accum, 2, batch, local seq]: inputs and targets, to be filled
    struct up_progress *progress; // may be NULL
    double progress_done;
    struct up_tensor *ticks; // u64 [1] in host space: layers that the device has got through
    uint64_t ticks_given;
    double longest_s; // by the device's clock, between two of them; for forecasts
    int64_t last_tick_ns;
    int64_t
        micro_batch_ns; // how long the step's last one took, by the device's clock; for forecasts
    volatile const int *stop; // set from outside: the step ends early, as failed; may be NULL
};

enum { UP_SCALAR_LOSS, UP_SCALAR_NORM, UP_SCALAR_COUNT };

/* Allocates everything that outlives steps. */
enum up_status up_trainer_init(struct up_trainer *trainer, struct up_rank *rank,
                               const struct up_config *config, struct up_comm *world,
                               struct up_comm *cp, struct up_error *err);
void up_trainer_release(struct up_trainer *trainer);

/* Local tokens of a micro-batch; where micro-batch a's inputs and targets of row b begin in
 * tokens_host. */
int64_t up_trainer_tokens(const struct up_trainer *trainer);
int32_t *up_trainer_inputs(const struct up_trainer *trainer, int64_t a, int64_t b);
int32_t *up_trainer_targets(const struct up_trainer *trainer, int64_t a, int64_t b);

/* How many layers the device has got through, of all steps; to be looked at from any thread. */
_Atomic uint64_t *up_trainer_ticks(const struct up_trainer *trainer);

/* The rank has got through a layer, or some other `amount`: one layer's forward is 1, its
 * backward 2. Where the step has failed here or elsewhere, or is to stop, it is the rank's error
 * from now on. */
void up_trainer_advance(struct up_trainer *trainer, double amount);

#endif
