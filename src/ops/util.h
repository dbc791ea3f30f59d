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

/* y += x, both of `dtype`. */
struct up_add_args {
    const void *x; // [count]
    void *y;       // [count]
    int64_t count;
    enum up_dtype dtype;
};

#endif
