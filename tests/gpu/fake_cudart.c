/* Stands for the CUDA runtime that a program has loaded: only where it lies is looked at. */
extern int fake_cudart;
int fake_cudart = 1;
