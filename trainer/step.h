/* One training step of one rank, as plain imperative code over the device interface: the same for
 * every device and, but for numbers in the config, for every technique.
 *
 *   step.c       the order of things          attention.c  norm, projections, attention
 *   block.c      a block, forward and back    mlp.c        norm, SwiGLU MLP, by tiles
 *   optimizer.c  clipping and AdamW           loss.c       final norm, logits, loss, by tiles
 *   units.c      parameters                   embed.c      tokens in
 *
 * Failure is the rank's sticky error (mem.h); these functions return nothing.
 */
#ifndef UP_TRAINER_STEP_H
#define UP_TRAINER_STEP_H

#include "mem/mem.h"
#include "model/config.h"
#include "trainer/units.h"

/* What a block keeps from forward to backward. T: local tokens (batch x local sequence); m: query
 * heads a stage and rank; n: their KV heads. Arrays have one entry per stage (attention.c). */
struct up_kept {
    struct up_tensor *x;     // [T, hidden], the block's input: always kept
    struct up_tensor *x_mid; // [T, hidden], after attention (checkpoint none)
    struct up_tensor **q;    // per stage [.., m, head_dim]; before norm and RoPE if the model has q/k norm (none)
    struct up_tensor **k, **v; // per stage [.., n, head_dim], where K and V change; k like q (none)
    struct up_tensor **o;    // per stage, attention's output (none, attn)
    struct up_tensor **lse;  // per stage [batch, m, seq] fp32 (none, attn)
    struct up_tensor *gate, *up; // [T, ff] (none)
};

struct up_hyper {
    double lr, beta1, beta2, epsilon, decay, clip; // clip 0: off
};

struct up_step_result {
    double loss, grad_norm; // NaN on dry
};

/* Tells how far a step is: `done` of `all`, in layers forward and backward weighed by their cost. */
struct up_progress {
    void (*tell)(struct up_progress *progress, double done, double all);
};

/* One rank's trainer. Set up by up_trainer_init; rank and config are the caller's and outlive it. */
struct up_trainer {
    struct up_rank *rank;
    const struct up_config *config;
    struct up_units units;
    struct up_kept *kept;            // per layer
    struct up_tensor **slots;        // what kept's arrays and stage_scratch point into
    struct up_tensor **stage_scratch; // per stage, for the backward of one layer
    struct up_tensor *scalars;       // fp64 [2] on the device: loss sum, squared gradient norm
    struct up_tensor *scalars_host;  // the same, in host space
    struct up_tensor *tokens_host;   // i32 [2, batch, local seq]: inputs and targets, to be filled
    struct up_progress *progress;    // may be NULL
    double progress_done;
    volatile const int *stop;        // set from outside: the step ends early, as failed; may be NULL
};

enum { UP_SCALAR_LOSS, UP_SCALAR_NORM, UP_SCALAR_COUNT };

/* Allocates everything that outlives steps. */
enum up_status up_trainer_init(struct up_trainer *trainer, struct up_rank *rank,
                               const struct up_config *config, struct up_error *err);
void up_trainer_release(struct up_trainer *trainer);

/* Runs step `step` (from 0) on what tokens_host holds, of which `counted` targets count. The device
 * has finished when this returns. On failure the rank's error. */
enum up_status up_trainer_step(struct up_trainer *trainer, int64_t step, int64_t counted,
                               const struct up_hyper *hyper, struct up_step_result *result,
                               struct up_error *err);

/* Loss and gradients only, no update: gradients are in units[].grads. For tests and validation. */
enum up_status up_trainer_gradients(struct up_trainer *trainer, int64_t counted,
                                    struct up_step_result *result, struct up_error *err);

/* Local tokens of a micro-batch. */
int64_t up_trainer_tokens(const struct up_trainer *trainer);

#endif
