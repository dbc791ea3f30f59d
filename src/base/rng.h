/* Counter-based random numbers: value i of stream s of a seed, in any order, so that a tensor is
 * filled with the same numbers however many ranks share it. */
#ifndef UP_BASE_RNG_H
#define UP_BASE_RNG_H

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

/* Standard normal, by Box and Muller from the two halves of one 64-bit word; within 1e-6 of what
 * libm's log and cos give, and the same on every processor. */
float up_random_normal(uint64_t seed, uint64_t stream, uint64_t index);

/* `count` of them from index `first` on, each times `scale`. */
void up_random_normals(uint64_t seed, uint64_t stream, uint64_t first, float scale, int64_t count,
                       float *out);

#endif
