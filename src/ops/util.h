#ifndef UP_OPS_UTIL_H
#define UP_OPS_UTIL_H

#include "trace/names.h"

#include <stdbool.h>

/* Zeroes. */
struct up_fill_args {
    void *x;
    int64_t bytes;
    bool on_host; // x is in host memory, which beside a GPU may not be registered yet: then at once
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

/* Blocks of rows from one place to another, from the distances that one has to those of the other:
 * to[b to_block + i to_ld + j] (+)= from[b from_block + i from_ld + j], distances in elements. All
 * blocks are worked on at once: their places in `to` must not overlap. */
struct up_regroup_args {
    const void *from;
    void *to;
    int64_t blocks, rows, width; // rows of `width` elements in a block
    int64_t from_block, from_ld, to_block, to_ld;
    enum up_dtype dtype;
    bool add; // to what is there
};

#endif
