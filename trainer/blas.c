#include "trainer/blas.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void up_blas_choose_kernels(char **argv)
{
#if defined(__x86_64__)
    const char *core = NULL;
    if (getenv("OPENBLAS_CORETYPE") || strcmp(openblas_get_corename(), "Prescott") != 0) return;
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq"))
        core = "SKYLAKEX";
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        core = "HASWELL";
    if (!core || setenv("OPENBLAS_CORETYPE", core, 1)) return;
    execv("/proc/self/exe", argv); // where that fails, the slow kernels it is
#endif
    (void)argv;
}
