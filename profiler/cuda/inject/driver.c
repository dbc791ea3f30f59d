#include "profiler/cuda/inject/driver.h"

#include <dlfcn.h>
#include <string.h>

static bool find(struct up_driver *driver)
{
    const struct {
        const char *name;
        void *at;
    } rows[] = {{"cuDeviceGetCount", &driver->count},
                {"cuDeviceGetName", &driver->name},
                {"cuDeviceTotalMem_v2", &driver->total},
                {"cuCtxGetDevice", &driver->current},
                {"cuDevicePrimaryCtxGetState", &driver->state},
                {"cuDevicePrimaryCtxRetain", &driver->retain},
                {"cuDevicePrimaryCtxRelease_v2", &driver->release},
                {"cuCtxPushCurrent_v2", &driver->push},
                {"cuCtxPopCurrent_v2", &driver->pop},
                {"cuMemGetInfo_v2", &driver->memory},
                {"cuThreadExchangeStreamCaptureMode", &driver->capture_mode}};
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (!library) return false;
    for (int i = 0; i < UP_COUNT(rows); i++) {
        void *function = dlsym(library, rows[i].name);
        if (!function) return false;
        memcpy(rows[i].at, &function, sizeof function);
    }
    return true;
}

int up_driver_gpus(struct up_driver *driver)
{
    int count = 0;
    if (!atomic_load(&driver->found)) {
        if (!find(driver)) return 0;
        atomic_store(&driver->found, true);
    }
    return driver->count(&count) ? 0 : count;
}

int up_driver_current(const struct up_driver *driver)
{
    CUdevice device = 0;
    if (!atomic_load(&((struct up_driver *)driver)->found) || driver->current(&device)) return 0;
    return (int)device;
}

int64_t up_driver_device(const struct up_driver *driver, int index, char *name, size_t size)
{
    size_t bytes = 0;
    if (driver->name(name, (int)size - 1, index)) name[0] = 0;
    return driver->total(&bytes, index) ? -1 : (int64_t)bytes;
}

int64_t up_driver_used_bytes(const struct up_driver *driver, int index)
{
    unsigned flags = 0;
    int active = 0;
    size_t free_bytes = 0, total = 0;
    CUcontext context, popped;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    int64_t used = -1;
    // Of a GPU that the program has not used, a context would be the first thing to take memory.
    if (driver->state(index, &flags, &active) || !active || driver->retain(&context, index))
        return -1;
    // A capture in the global mode ends at what other threads do, too, unless they say otherwise.
    driver->capture_mode(&mode);
    if (!driver->push(context)) {
        if (!driver->memory(&free_bytes, &total)) used = (int64_t)(total - free_bytes);
        driver->pop(&popped);
    }
    driver->capture_mode(&mode);
    driver->release(index);
    return used;
}
