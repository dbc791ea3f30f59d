/* What the injection library asks of the driver that the program has loaded; nothing is started by
 * it. */
#ifndef UP_PROFILER_CUDA_INJECT_DRIVER_H
#define UP_PROFILER_CUDA_INJECT_DRIVER_H

#include "base/base.h"

#include <cuda.h>
#include <stdatomic.h>

/* A zeroed one is fine: functions are looked for when they are first wanted. From any thread. */
struct up_driver {
    _Atomic bool found;
    __typeof__(cuDeviceGetCount) *count;
    __typeof__(cuDeviceGetName) *name;
    __typeof__(cuDeviceTotalMem) *total;
    __typeof__(cuCtxGetDevice) *current;
    __typeof__(cuDevicePrimaryCtxGetState) *state;
    __typeof__(cuDevicePrimaryCtxRetain) *retain;
    __typeof__(cuDevicePrimaryCtxRelease) *release;
    CUresult (*push)(CUcontext context);
    CUresult (*pop)(CUcontext *context);
    __typeof__(cuMemGetInfo) *memory;
    __typeof__(cuThreadExchangeStreamCaptureMode) *capture_mode;
};

/* How many GPUs there are; 0 until the program has started CUDA. By one thread. */
int up_driver_gpus(struct up_driver *driver);
/* The GPU that the calling thread uses; 0 where that is not known. */
int up_driver_current(const struct up_driver *driver);
/* Its name, and its memory in bytes; -1 where that cannot be told. */
int64_t up_driver_device(const struct up_driver *driver, int index, char *name, size_t size);
/* Bytes in use; -1 where the program has not used the GPU. A graph that the program captures
 * meanwhile is left whole. */
int64_t up_driver_used_bytes(const struct up_driver *driver, int index);

#endif
