/* What implementations of operations get on the cuda device: the stream of the launch, and the
 * handles and workspace of the libraries, which belong to the device. Plain C; used from .c, .cu
 * and .cpp. */
#ifndef UP_DEVICE_CUDA_CUDA_H
#define UP_DEVICE_CUDA_CUDA_H

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#include "base/error.h"
#include "trace/names.h"
struct up_device; // device.h is C alone
#else
#include "device/device.h"
#endif

struct up_cuda;

/* `index`: which GPU. NULL and *err when there is none, or it is too old (compute capability 8.0).
 */
struct up_device *up_device_cuda_create(int index, struct up_error *err);
int up_device_cuda_index(const struct up_device *device); // which GPU it is
/* How many GPUs there are; 0 where there is no driver. */
int up_device_cuda_count(void);

cudaStream_t up_cuda_stream(struct up_cuda *cuda); // of the launch
cublasHandle_t up_cuda_blas(struct up_cuda *cuda); // set to that stream; its workspace is ours
int up_cuda_multiprocessors(const struct up_cuda *cuda);
int up_cuda_compute_capability(const struct up_cuda *cuda); // 90 for 9.0

/* A place for what an operation keeps on a device between launches (attention's plans): *slot is
 * NULL at first; `destroy` is called with it when the device goes. One slot per `key`, an address
 * of the caller's. */
void **up_cuda_slot(struct up_cuda *cuda, const void *key, void (*destroy)(void *kept));

/* Scratch in device memory for work of this stream that is over before the next launch on it begins
 * (the order of the stream sees to that): 16 MiB for the compute stream, 64 KiB for the others. */
int64_t up_cuda_scratch_bytes(const struct up_cuda *cuda);
void *up_cuda_scratch(struct up_cuda *cuda);

/* A launch that went wrong: kept, and told when the device is next synchronised (the first one). */
void up_cuda_fail(struct up_cuda *cuda, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* The first failure of a launch or of the device itself: UP_FAILED. */
enum up_status up_cuda_check(struct up_device *device, struct up_error *err);

/* if (up_cuda_try(cuda, cudaGetLastError(), "rmsnorm")) return; */
bool up_cuda_try(struct up_cuda *cuda, cudaError_t status, const char *what);

/* What a launch on the compute stream gets, for preparations outside the step. */
struct up_cuda *up_device_cuda_launch(struct up_device *device);

#ifdef __cplusplus
}
#endif

#endif
