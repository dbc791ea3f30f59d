/* A driver of the tests' own, loaded in the real one's place: there is a GPU, which nobody uses. */
#include <cuda.h>

#include <stdio.h>

CUresult cuDeviceGetCount(int *count)
{
    *count = 1;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int size, CUdevice device)
{
    (void)device;
    snprintf(name, (size_t)size, "a GPU");
    return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device)
{
    (void)device;
    *bytes = (size_t)1 << 30;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    (void)device;
    return CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    (void)device;
    *flags = 0;
    *active = 0;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    (void)context;
    (void)device;
    return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    (void)device;
    return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuCtxPushCurrent(CUcontext context)
{
    (void)context;
    return CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
    (void)context;
    return CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    (void)mode;
    return CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuMemGetInfo(size_t *free_bytes, size_t *total)
{
    (void)free_bytes;
    (void)total;
    return CUDA_ERROR_INVALID_CONTEXT;
}
