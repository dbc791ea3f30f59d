#ifndef UP_OPS_ROPE_H
#define UP_OPS_ROPE_H

#include "trace/names.h"

#include <stdbool.h>

/* Rotary position embedding's frequencies. For pair i of head_dim / 2 (elements i and i +
 * head_dim/2 form a pair): f = theta^(-2i / head_dim), and with llama3 scaling (Hugging Face's
 * modeling_rope_utils, rope_type "llama3"), w = 2 pi / f being the wavelength and o the original
 * length:
 *   w < o / high_freq:  f               w > o / low_freq:  f / factor
 *   between: (1 - s) f / factor + s f,  s = (o / w - low_freq) / (high_freq - low_freq). */
struct up_rope_config {
    double theta;
    bool llama3; // whether the scaling below applies
    double factor, low_freq, high_freq, original_length;
};

/* Angles are computed in the kernel: position * f is formed and reduced in double (at position 5M
 * an fp32 angle is off by a quarter of a radian, and a table of all positions would grow with
 * them). */
double up_rope_frequency(const struct up_rope_config *config, int64_t pair, int64_t head_dim);

/* Per row and head: n = RMSNorm over head_dim with `weight` (without weight n = x), then
 *   y_i = n_i cos a - n_j sin a,  y_j = n_j cos a + n_i sin a,   j = i + head_dim / 2,
 * a = position * f_i, the row's position being first_position + row % period. */
struct up_rope_args {
    const void *x;      // [rows, heads, head_dim]
    void *y;            // like x; may be x
    const void *weight; // [head_dim], or NULL
    float epsilon;
    int64_t rows, heads, head_dim;
    int64_t first_position, period; // period: rows of one sequence
    struct up_rope_config config;
    enum up_dtype dtype;
};

/* dx from dy, in place where dx is dy; with weight, x is the forward's input and d_weight is added
 * to. */
struct up_rope_backward_args {
    const void *dy;     // [rows, heads, head_dim]
    void *dx;           // like dy; may be dy
    const void *x;      // like dy; unused (may be NULL) without weight
    const void *weight; // [head_dim], or NULL
    float *d_weight;    // [head_dim], or NULL
    float epsilon;
    int64_t rows, heads, head_dim;
    int64_t first_position, period;
    struct up_rope_config config;
    enum up_dtype dtype;
};

#endif
