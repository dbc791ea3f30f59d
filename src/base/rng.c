/* Normal numbers by the billion: what fills a model's weights. Nothing but sums, products,
 * quotients and roots, each rounded as IEEE 754 has it (this file is compiled without fused
 * multiply-adds), so that a compiler may take several at once and every processor gets the same
 * numbers. */
#include "base/rng.h"

#include <math.h>
#include <string.h>

static const double ln_2 = 0.69314718055994531, turn = 6.2831853071795865;

// A number below 2^32, by way of the signed conversion that vectors have.
static inline double number_of(uint32_t n)
{
    return (double)(int32_t)(n ^ 0x80000000u) + 0x1p31;
}

/* ln((n + 1) / 2^32). With m in [sqrt(1/2), sqrt(2)), ln(m) = 2 artanh(s), s = (m - 1) / (m + 1),
 * of which the series' first seven terms are within 1e-12. */
static inline double log_of(uint32_t n)
{
    static const uint64_t one_half_sqrt = 0x3fe6a09e667f3bcdu; // bits of sqrt(1/2)
    double x = number_of(n) + 1, m;
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    // The power of two, 0 to 32: from 1 on `bits` is above one_half_sqrt.
    int32_t power = (int32_t)((bits - one_half_sqrt) >> 52);
    bits -= (uint64_t)(uint32_t)power << 52;
    memcpy(&m, &bits, sizeof m);
    double s = (m - 1) / (m + 1), z = s * s;
    double sum = 1.0 / 11 + z * (1.0 / 13);
    sum = 1.0 / 7 + z * (1.0 / 9 + z * sum);
    sum = 1.0 / 3 + z * (1.0 / 5 + z * sum);
    return 2 * s * (1 + z * sum) + (power - 32) * ln_2;
}

/* The cosine of n / 2^32 of a turn: of a quarter of one its Taylor series, to within 1e-12. */
static inline double cosine_of(uint32_t n)
{
    double beyond_half = number_of(n) * 0x1p-32 - 0.5, a = fabs(beyond_half);
    double x = turn * (a > 0.25 ? 0.5 - a : a), z = -x * x;
    double sum = 1 + z / (15 * 16.0);
    sum = 1 + z / (13 * 14.0) * sum;
    sum = 1 + z / (11 * 12.0) * sum;
    sum = 1 + z / (9 * 10.0) * sum;
    sum = 1 + z / (7 * 8.0) * sum;
    sum = 1 + z / (5 * 6.0) * sum;
    sum = 1 + z / (3 * 4.0) * sum;
    sum = 1 + z / 2 * sum;
    return a > 0.25 ? sum : -sum;
}

static inline uint64_t key_of(uint64_t seed, uint64_t stream)
{
    return up_hash64(up_hash64(seed) ^ stream);
}

static inline float normal_of(uint64_t key, uint64_t index)
{
    uint64_t bits = up_hash64(key ^ index);
    return (float)(sqrt(-2 * log_of((uint32_t)(bits >> 32))) * cosine_of((uint32_t)bits));
}

__attribute__((always_inline)) static inline void fill(uint64_t key, uint64_t first, float scale,
                                                       int64_t count, float *restrict out)
{
    for (int64_t i = 0; i < count; i++) out[i] = scale * normal_of(key, first + (uint64_t)i);
}

float up_random_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    return normal_of(key_of(seed, stream), index);
}

#if defined __x86_64__ && defined __GNUC__
// Eight at a time, ten times as fast as one by one.
__attribute__((target("avx512f,avx512dq,avx512vl"))) static void
fill_wide(uint64_t key, uint64_t first, float scale, int64_t count, float *restrict out)
{
    fill(key, first, scale, count, out);
}

static int has_wide(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
#else
#define fill_wide fill
static int has_wide(void)
{
    return 0;
}
#endif

void up_random_normals(uint64_t seed, uint64_t stream, uint64_t first, float scale, int64_t count,
                       float *out)
{
    uint64_t key = key_of(seed, stream);
    if (has_wide())
        fill_wide(key, first, scale, count, out);
    else
        fill(key, first, scale, count, out);
}
