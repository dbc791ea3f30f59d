#ifndef UP_OPS_ATTENTION_H
#define UP_OPS_ATTENTION_H

#include "trace/names.h"

#include <stdbool.h>

/* head_dim on cuda: at most, and a multiple of. */
enum { UP_ATTENTION_CUDA_WIDTH = 256, UP_ATTENTION_CUDA_STEP = 8 };

/* Of which head_dims cuDNN does attention on cuda, where it is there; upipe's own kernels do the
 * others, and all that has to come out the same twice. */
bool up_attention_on_cudnn(int64_t head_dim);

/* Causal grouped-query attention over whole sequences, flash style: no [seq, seq] buffer (Dao et
 * al. 2022). Query head h attends with KV head (first_head_in_group + h) / group. Scores are scaled
 * by 1 / sqrt(head_dim). */
struct up_attention_shape {
    int64_t batch, seq, heads, kv_heads, head_dim;
    int64_t group;               // query heads per KV head in the model
    int64_t first_head_in_group; // of query head 0, from 0 to group - 1
};

struct up_attention_forward_args {
    const void *q;     // [batch, seq, heads, head_dim]
    const void *k, *v; // [batch, seq, kv_heads, head_dim]
    void *o;           // like q
    float *lse;        // [batch, heads, seq]: natural log of the sum of exp of the scaled scores
    struct up_attention_shape shape;
    enum up_dtype dtype;
};

struct up_attention_backward_args {
    const void *q, *k, *v, *o, *d_o; // as in forward
    const float *lse;
    void *dq;      // like q; may be d_o
    void *dk, *dv; // like k and v: written, or with accumulate added to
    void *scratch; // up_scratch_attention_backward bytes
    bool accumulate;
    struct up_attention_shape shape;
    enum up_dtype dtype;
};

#endif
