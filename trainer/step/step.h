/* One training step of one rank, as plain imperative code over the device interface: the same for
 * every device and, but for numbers in the config, for every technique.
 *
 *   step.c       the order of things          attention.c  norm, projections, attention
 *   block.c      a block, forward and back    mlp.c        norm, SwiGLU MLP, by tiles
 *   optimizer.c  clipping and AdamW           loss.c       final norm, logits, loss, by tiles
 *   units.c      parameters                   embed.c      tokens in
 *   trainer.c    what outlives steps          prefetch.c   what the next block needs
 *
 * Failure is the rank's sticky error (mem.h); these functions return nothing.
 */
#ifndef UP_TRAINER_STEP_H
#define UP_TRAINER_STEP_H

#include "trainer/step/trainer.h"

struct up_step_result {
    double loss, grad_norm; // NaN on dry; the loss also where no target counts
};

/* Runs step `step` (from 0) on what tokens_host holds, `counted` targets counting in the step over
 * all ranks and micro-batches. The device has finished when this returns. On failure the rank's
 * error, and the group is aborted. */
enum up_status up_trainer_step(struct up_trainer *trainer, int64_t step, int64_t counted,
                               const struct up_hyper *hyper, struct up_step_result *result,
                               struct up_error *err);

/* Loss and gradients only, no update: gradients are in units[].grads. For tests and validation. */
enum up_status up_trainer_gradients(struct up_trainer *trainer, int64_t counted,
                                    struct up_step_result *result, struct up_error *err);

#endif
