/* OpenBLAS chooses its kernels by the processor's model when it is loaded, and takes those of 2004
 * (SSE3) for a model that it does not know: a quarter of the speed on processors newer than the
 * library. */
#ifndef UP_TRAINER_BLAS_H
#define UP_TRAINER_BLAS_H

/* Where that has happened and the processor has AVX2 or AVX-512, starts the program again with
 * OPENBLAS_CORETYPE saying so; otherwise, and where the user has set it, does nothing. To be
 * called before anything has been opened or started. */
void up_blas_choose_kernels(char **argv);

#endif
