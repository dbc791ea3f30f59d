/* What the cpu implementations share: how work is split so that results do not depend on the number
 * of threads, the attribute for inner loops, and a vectorisable exp.
 *
 * The rule for splitting: the pieces are a function of the shapes alone. A piece that owns its
 * output may run anywhere; where pieces contribute to one sum, their partial results are added in
 * order.
 */
#ifndef UP_OPS_CPU_CPU_IMPL_H
#define UP_OPS_CPU_CPU_IMPL_H

#include "base/base.h"

#include <string.h>

/* For inner loops: one clone per instruction set, chosen when the program starts. Not with
 * ThreadSanitizer, whose runtime is not up yet when the choice is made. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12 &&           \
    !defined(__SANITIZE_THREAD__)
#define UP_CPU_HOT __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define UP_CPU_HOT
#endif

/* For helpers of such loops: they must become part of each clone. */
#define UP_CPU_INLINE static inline __attribute__((always_inline))

enum {
    UP_CPU_CHUNK = 1 << 14, // elements of pointwise work that are one piece
    UP_CPU_PARTIALS = 64,   // pieces of a sum over everything
};

struct up_cpu_span {
    int64_t first, count;
};

/* Piece `index` of `pieces` equal ones of `total`; the last ones may be shorter, or empty. */
static inline struct up_cpu_span up_cpu_piece(int64_t total, int64_t pieces, int64_t index)
{
    int64_t size = up_ceil_div(total, pieces);
    int64_t first = up_min(index * size, total);
    return (struct up_cpu_span){first, up_min(size, total - first)};
}

/* e^x for x clamped to [-87, 88], within 1e-7 relative; NaN stays NaN. With n the integer nearest
 * to x / ln 2 and r = x - n ln 2, e^x = 2^n (1 + r + r^2 q(r)). ln 2 is subtracted in two parts,
 * the first of 15 bits so that n times it is exact. q interpolates (e^r - 1 - r) / r^2 at the
 * Chebyshev nodes of |r| <= ln 2 / 2, which costs 1e-8; the rest of the error is rounding. */
UP_CPU_INLINE float up_cpu_exp(float x)
{
    const float round_to_integer = 0x1.8p23f; // adding it leaves n in the low bits of the mantissa
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float shifted = x * 1.44269504f + round_to_integer;
    float n = shifted - round_to_integer;
    float r = (x - n * 0x1.62e4p-1f) - n * 1.42860682e-6f;
    float q = 0.00139261761f;
    q = q * r + 0.00836317307f;
    q = q * r + 0.0416665547f;
    q = q * r + 0.16666577f;
    q = q * r + 0.5f;
    float mantissa = 1.0f + (r + r * r * q);

    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 23) + 0x3f800000u; // 2^n
    float power;
    memcpy(&power, &bits, sizeof power);
    return mantissa * power;
}

#endif
