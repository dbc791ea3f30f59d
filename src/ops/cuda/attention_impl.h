/* Between the parts of attention on cuda: attention.c cuts calls into runs of query heads and keeps
 * what a device needs; attention_cudnn.c finds the library, builds plans and runs them;
 * attention_graph.c says what the plans compute; attention_own.h is what our own kernels do. */
#ifndef UP_OPS_CUDA_ATTENTION_IMPL_H
#define UP_OPS_CUDA_ATTENTION_IMPL_H

#include "device/cuda/cuda.h"
#include "ops/attention.h"

/* What a plan is built for. Extents and distances between rows, in elements; heads lie side by side
 * in a row. Nothing but int64_t, so that views compare as bytes. */
struct up_attention_view {
    int64_t backward;      // 0 or 1
    int64_t queries, keys; // rows; the last query sees all keys, the one before all but one, ...
    int64_t heads, kv_heads, head_dim;
    int64_t q_row;    // of q
    int64_t o_row;    // of o, d_o and dq
    int64_t kv_row;   // of k and v
    int64_t dkv_row;  // of dk and dv; 0 in forward
    int64_t lse_head; // between heads of lse
};

/* The tensors of the graphs, as they are bound when a plan runs; all on the device but the
 * numbers at the end, which are on the host. 0 is no tensor. */
enum up_attention_id {
    UP_ATTENTION_Q = 1,
    UP_ATTENTION_K,
    UP_ATTENTION_V,
    UP_ATTENTION_O,
    UP_ATTENTION_LSE,
    UP_ATTENTION_D_O,
    UP_ATTENTION_DQ,
    UP_ATTENTION_DK,
    UP_ATTENTION_DV,
    UP_ATTENTION_DQ_SUM,
    UP_ATTENTION_SOFTMAX_SUM,
    UP_ATTENTION_SCALE,
    UP_ATTENTION_MASKED, // what a masked score is set to
    UP_ATTENTION_ONE,
    UP_ATTENTION_KEYS, // int32, as below, where there are not as many of each
    UP_ATTENTION_QUERIES,
    UP_ATTENTION_IDS
};

struct up_cudnn;      // the library, opened for one device, with the plans built so far
struct up_cudnn_plan; // belongs to it

/* NULL and why in `err` where the library is not installed, too old, or not checked on this GPU. */
struct up_cudnn *up_cudnn_open(struct up_cuda *cuda, struct up_error *err);
void up_cudnn_close(struct up_cudnn *cudnn); // NULL is fine

/* The plan for a view, built when first asked for. NULL and why in `err`, also when asked again, if
 * cuDNN does not serve it or would need more than `workspace_bytes` while running. */
const struct up_cudnn_plan *up_cudnn_plan(struct up_cudnn *cudnn,
                                          const struct up_attention_view *view,
                                          int64_t workspace_bytes, struct up_error *err);

/* `bound[id]`: addresses; those of the numbers are filled in here. */
void up_cudnn_run(struct up_cudnn *cudnn, const struct up_cudnn_plan *plan,
                  void *bound[UP_ATTENTION_IDS], void *workspace, struct up_cuda *cuda);

#endif
