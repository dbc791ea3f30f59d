#ifndef UP_OPS_UTIL_H
#define UP_OPS_UTIL_H

#include "trace/names.h"

/* Zeroes. */
struct up_fill_args {
    void *x;
    int64_t bytes;
};

/* y = x, rounded to nearest even where y is narrower. */
struct up_cast_args {
    const void *x;
    void *y;
    int64_t count;
    enum up_dtype from, to;
};

/* y += x, fp32. */
struct up_add_args {
    const float *x; // [count]
    float *y;       // [count]
    int64_t count;
};

#endif
