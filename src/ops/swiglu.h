#ifndef UP_OPS_SWIGLU_H
#define UP_OPS_SWIGLU_H

#include "trace/names.h"

/* out = silu(gate) * up, silu(x) = x / (1 + exp(-x)). */
struct up_swiglu_forward_args {
    const void *gate, *up; // [count]
    void *out;             // [count]; may be gate or up
    int64_t count;
    enum up_dtype dtype;
};

struct up_swiglu_backward_args {
    const void *gate, *up, *d_out; // [count]
    void *d_gate, *d_up;           // [count]; may be gate and up
    void *out;                     // [count], forward's, made again; may be d_out
    int64_t count;
    enum up_dtype dtype;
};

#endif
