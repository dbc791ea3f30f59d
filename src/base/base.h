/* What everything else stands on; depends on nothing but the C library. */
#ifndef UP_BASE_BASE_H
#define UP_BASE_BASE_H

#include "base/error.h"
#include "base/grow.h"
#include "base/options.h"
#include "base/rng.h"
#include "base/units.h"

#include <time.h>

#define UP_COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

static inline int64_t up_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t up_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}
static inline int64_t up_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Nanoseconds of the monotonic clock. */
static inline int64_t up_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#endif
