#ifndef UP_OPS_NORM_H
#define UP_OPS_NORM_H

#include "trace/names.h"

#include <stdbool.h>

enum { UP_RMSNORM_CUDA_WIDTH = 1 << 15 }; // of a row, at most, on cuda

/* RMSNorm (Zhang and Sennrich 2019): y = w * x / sqrt(mean(x^2) + epsilon), per row. */
struct up_rmsnorm_forward_args {
    const void *x;      // [rows, width]
    const void *weight; // [width]
    void *y;            // [rows, width]; may be x
    int64_t rows, width;
    float epsilon;
    enum up_dtype dtype;
};

/* With r = 1 / sqrt(mean(x^2) + epsilon), recomputed from x, and g = w * dy:
 *   dx (+)= r g - x r^3 mean(g x),   d_weight += sum over rows of dy * x * r.
 * dx is linear in dy for fixed x, so parts of dy may come in several calls with accumulate. */
struct up_rmsnorm_backward_args {
    const void *x;      // [rows, width]
    const void *weight; // [width]
    const void *dy;     // [rows, width]
    void *dx;           // [rows, width]; without accumulate it may be x or dy
    float *d_weight;    // [width], added to
    int64_t rows, width;
    float epsilon;
    bool accumulate; // dx += instead of dx =
    enum up_dtype dtype;
};

#endif
