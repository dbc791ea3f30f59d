/* Our own attention kernels, for what cuDNN does not serve, and the addition of gradients. For any
 * GPU of compute capability 8.0 or later and head_dim up to 256, a multiple of 8. They use no
 * atomics: results do not vary. */
#ifndef UP_OPS_CUDA_ATTENTION_OWN_H
#define UP_OPS_CUDA_ATTENTION_OWN_H

#include "ops/attention.h"

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* NULL, or why the current device cannot run them for a head_dim. */
const char *up_attention_own_refuses(int64_t head_dim);

/* The whole call, bf16. Addresses are multiples of 16. Backward uses 4 * heads * seq bytes of
 * scratch; dq may be d_o. */
cudaError_t up_attention_own_forward(const struct up_attention_forward_args *a,
                                     cudaStream_t stream);
cudaError_t up_attention_own_backward(const struct up_attention_backward_args *a,
                                      cudaStream_t stream);

/* y[i, j] += x[i, j], bf16 summed in fp32. Rows of y are `stride` elements apart, those of x
 * `width`; both multiples of 8. */
cudaError_t up_attention_add_rows(void *y, int64_t stride, const void *x, int64_t width,
                                  int64_t rows, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
