/* Counter-based random numbers: value i of stream s of a seed, in any order, so that a tensor is
 * filled with the same numbers however many ranks share it. */
#ifndef UP_BASE_RNG_H
#define UP_BASE_RNG_H

#include <math.h>
#include <stdint.h>

/* SplitMix64's output function (Steele, Lea, Flood 2014): a bijection that passes BigCrush when fed
 * a counter. */
static inline uint64_t up_hash64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline uint64_t up_random_u64(uint64_t seed, uint64_t stream, uint64_t index)
{
    return up_hash64(up_hash64(up_hash64(seed) ^ stream) ^ index);
}

/* Standard normal, by Box and Muller from the two halves of one 64-bit word. */
static inline float up_random_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint64_t bits = up_random_u64(seed, stream, index);
    double u = ((double)(bits >> 32) + 1) * 0x1p-32; // (0, 1]
    double v = (double)(uint32_t)bits * 0x1p-32;     // [0, 1)
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

#endif
