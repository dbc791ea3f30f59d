/* Attention on cuda beyond the operation itself: asking which of the two implementations serves a
 * shape, and choosing. cuDNN does where it is installed and was checked for the GPU and the shape;
 * our own kernels do everywhere else. Called from within a launch, or wherever else a struct
 * up_cuda is at hand. */
#ifndef UP_OPS_CUDA_ATTENTION_CUDA_H
#define UP_OPS_CUDA_ATTENTION_CUDA_H

#include "device/cuda/cuda.h"
#include "ops/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

/* NULL where cuDNN serves the shape; else one line that says why our own kernels do. The text is
 * good until the next call with this device. */
const char *up_cuda_attention_why_own(struct up_cuda *cuda, const struct up_attention_shape *shape);

/* From now on our own kernels serve this device (or no longer all that cuDNN could). Their results
 * do not vary from run to run; cuDNN's dq does. */
void up_cuda_attention_force_own(struct up_cuda *cuda, bool own);

/* From now on cuDNN's forward calls take so many query rows at a time (a multiple of 128, or at
 * least the whole sequence); 0: as many as are fastest. */
void up_cuda_attention_force_block_rows(struct up_cuda *cuda, int64_t rows);

#ifdef __cplusplus
}
#endif

#endif
