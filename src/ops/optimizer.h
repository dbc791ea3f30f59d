#ifndef UP_OPS_OPTIMIZER_H
#define UP_OPS_OPTIMIZER_H

#include "trace/names.h"

/* *sum += sum of x^2, in fp64. */
struct up_sum_squares_args {
    const float *x; // [count]
    double *sum;    // [1]
    int64_t count;
};

/* AdamW (Loshchilov and Hutter 2019) as PyTorch computes it, after clipping by the global norm:
 *   g = gradient * min(1, clip / (sqrt(*norm_squared) + 1e-6))      (clip 0: g = gradient)
 *   w -= lr decay w;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
 *   w -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + epsilon). */
struct up_adamw_args {
    float *weight, *m, *v;      // [count]
    const float *gradient;      // [count]
    const double *norm_squared; // [1], of all gradients of the model
    int64_t count;
    int64_t t; // from 1
    double lr, beta1, beta2, epsilon, decay, clip;
};

#endif
