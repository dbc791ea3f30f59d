/* Where there is no GPU a test of this folder skips and says so; where there is one it runs, or
 * fails: a GPU that cannot be used is no reason to skip. */
#ifndef UP_TESTS_GPU_NEED_H
#define UP_TESTS_GPU_NEED_H

#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#if UPIPE_CUDA
#include "device/cuda/cuda.h"
#endif

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

/* The driver's own sign of a GPU, which says nothing of whether CUDA can use it. */
static inline bool gpu_is_here(void)
{
    return access("/dev/nvidia0", F_OK) == 0;
}

/* How many GPUs there are, at least 1. */
static inline int gpus_or_skip(void)
{
#if UPIPE_CUDA
    int count = up_device_cuda_count();
    if (count > 0) return count;
    if (gpu_is_here()) fail_msg("there is a GPU here, but CUDA finds none");
    puts("skipped: there is no GPU here");
#else
    puts("skipped: built without the cuda device");
#endif
    skip();
    return 0;
}

/* Numbers of GPUs that tests of several go through: 1, 2 and 4, as far as they are here. */
static inline bool has_gpus(int count)
{
    int here = gpus_or_skip();
    if (here < count) printf("not run: on %d GPUs (%d here)\n", count, here);
    return here >= count;
}

#endif
