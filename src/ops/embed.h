#ifndef UP_OPS_EMBED_H
#define UP_OPS_EMBED_H

#include "trace/names.h"

/* out[i] = table[ids[i]]; an id of -100 (masked) gives zeros. */
struct up_embed_forward_args {
    const int32_t *ids; // [rows]
    const void *table;  // [vocab, width]
    void *out;          // [rows, width]
    int64_t rows, width, vocab;
    enum up_dtype dtype;
};

/* d_table[ids[i]] += d_out[i], rows added in order; -100 adds nothing. */
struct up_embed_backward_args {
    const int32_t *ids; // [rows]
    const void *d_out;  // [rows, width]
    float *d_table;     // [vocab, width]
    int64_t rows, width, vocab;
    enum up_dtype dtype; // of d_out
};

#endif
