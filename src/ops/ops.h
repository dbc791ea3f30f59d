/* The arithmetic of the step. Each operation is an args struct that carries its shapes (below), a
 * launcher, and an implementation per device kind; ops.def is the list.
 *
 * Conventions
 *   Matrices are row-major; ld is the distance between rows, in elements. All extents are int64_t
 * and may be 0. `dtype` is that of the activations and of the weights they meet (fp32 on cpu, bf16
 * on cuda); statistics, weight gradients and optimizer state are fp32, sums over a step fp64.
 *   Pointers may alias only where a comment says so.
 *   On cpu the result does not depend on the number of threads.
 */
#ifndef UP_OPS_OPS_H
#define UP_OPS_OPS_H

#include "mem/mem.h"
#include "ops/attention.h"
#include "ops/embed.h"
#include "ops/loss.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/optimizer.h"
#include "ops/rope.h"
#include "ops/swiglu.h"
#include "ops/util.h"

/* Launchers: up_op_rmsnorm_forward(rank, stream, &args). Does nothing once the rank has failed. */
#define UP_OP(name)                                                                                \
    void up_op_##name(struct up_rank *rank, enum up_stream stream,                                 \
                      const struct up_##name##_args *args);
#include "ops/ops.def"
#undef UP_OP

/* Scratch bytes that an operation needs from its caller, a pure function of shapes and device kind.
 */
int64_t up_scratch_attention_backward(enum up_device_kind kind,
                                      const struct up_attention_shape *shape, bool accumulate);

#endif
