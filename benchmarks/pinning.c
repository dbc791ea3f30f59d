/* What host memory takes before a GPU may copy from it and to it: touched in small pages and in
 * large ones, then registered.
 *
 *   pinning [GIB]     24 by default; without a GPU it is only touched */
#define _GNU_SOURCE // touch.h
#include "base/base.h"
#include "device/touch.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#if UPIPE_CUDA
#include <cuda_runtime_api.h>
#endif

// Seconds; negative where it cannot be registered.
static double register_and_back(void *memory, size_t bytes)
{
#if UPIPE_CUDA
    int64_t begin = up_clock_ns();
    if (cudaHostRegister(memory, bytes, cudaHostRegisterPortable)) return -1;
    double seconds = (double)(up_clock_ns() - begin) / 1e9;
    cudaHostUnregister(memory);
    return seconds;
#else
    (void)memory;
    (void)bytes;
    return -1;
#endif
}

static void measure(const char *what, size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        fprintf(stderr, "pinning: no address space for %zu bytes\n", bytes);
        exit(UP_FAILED);
    }
    int64_t begin = up_clock_ns();
    up_touch(memory, bytes, NULL);
    double touched = (double)(up_clock_ns() - begin) / 1e9;
    double registered = register_and_back(memory, bytes);
    printf("%-12s touched in %.2f s", what, touched);
    if (registered >= 0) printf(", registered in %.2f s", registered);
    puts("");
    munmap(memory, bytes);
}

int main(int argc, char **argv)
{
    int gib = argc > 1 ? atoi(argv[1]) : 24;
    if (gib < 1) {
        fprintf(stderr, "pinning: expected a number of GiB, not '%s'\n", argv[1]);
        return UP_USAGE;
    }
#if UPIPE_CUDA
    if (cudaFree(NULL)) puts("no GPU: memory is only touched");
#endif
    for (int turn = 0; turn < 2; turn++) {
        prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
        measure("small pages", (size_t)gib << 30);
        prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
        measure("large pages", (size_t)gib << 30);
    }
    return 0;
}
