/* Zeroing, casting and adding. */
#include "ops/cpu/cpu_impl.h"
#include "ops/ops_impl.h"

void up_cpu_fill(const void *args)
{
    const struct up_fill_args *a = args;
    const int64_t piece = UP_CPU_CHUNK * (int64_t)sizeof(float);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < a->bytes; i += piece)
        memset((char *)a->x + i, 0, (size_t)up_min(piece, a->bytes - i));
}

/* bf16 is the upper half of an fp32. Adding just under half of its last place, or exactly half
 * where that place is odd, carries when it should; a NaN is kept from being rounded to infinity. */
UP_CPU_HOT static void narrow(const uint32_t *x, uint16_t *y, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = x[i];
        uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
        uint32_t quiet = bits >> 16 | 0x40u;
        y[i] = (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
    }
}

UP_CPU_HOT static void widen(const uint16_t *x, uint32_t *y, int64_t count)
{
    for (int64_t i = 0; i < count; i++) y[i] = (uint32_t)x[i] << 16;
}

static void cast(const struct up_cast_args *a, int64_t first, int64_t count)
{
    const char *x = (const char *)a->x + first * up_dtype_bytes[a->from];
    char *y = (char *)a->y + first * up_dtype_bytes[a->to];
    if (a->from == a->to)
        memcpy(y, x, (size_t)(count * up_dtype_bytes[a->to]));
    else if (a->to == UP_BF16)
        narrow((const uint32_t *)(const void *)x, (uint16_t *)(void *)y, count);
    else
        widen((const uint16_t *)(const void *)x, (uint32_t *)(void *)y, count);
}

void up_cpu_cast(const void *args)
{
    const struct up_cast_args *a = args;
    UP_ASSERT(a->from == UP_F32 || a->from == UP_BF16);
    UP_ASSERT(a->to == UP_F32 || a->to == UP_BF16);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < a->count; i += UP_CPU_CHUNK)
        cast(a, i, up_min(UP_CPU_CHUNK, a->count - i));
}

void up_cpu_add(const void *args)
{
    const struct up_add_args *a = args;
    const float *x = a->x;
    float *y = a->y;
    UP_ASSERT(a->dtype == UP_F32);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < a->count; i++) y[i] += x[i];
}

static void regroup_row(const struct up_regroup_args *a, int64_t b, int64_t i)
{
    const float *from = (const float *)a->from + b * a->from_block + i * a->from_ld;
    float *to = (float *)a->to + b * a->to_block + i * a->to_ld;
    for (int64_t j = 0; j < a->width; j++) to[j] = a->add ? to[j] + from[j] : from[j];
}

void up_cpu_regroup(const void *args)
{
    const struct up_regroup_args *a = args;
    UP_ASSERT(a->dtype == UP_F32);
    UP_ASSERT(!a->add || a->blocks == 1 || a->to_block >= a->width);
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t b = 0; b < a->blocks; b++)
        for (int64_t i = 0; i < a->rows; i++) regroup_row(a, b, i);
}
