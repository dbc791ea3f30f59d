/* How much of a GPU's memory is used: by CUDA, and before there is a context by NVML, which is
 * looked for at run time. */
#include "device/cuda/cuda_impl.h"

#include <dlfcn.h>
#include <string.h>

// NVML's interface, as far as it is used here (nvml.h, versions of its own since 2011).
struct nvml_memory {
    unsigned long long total, free, used;
};

struct nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    int (*by_bus)(const char *bus, void **device);
    int (*memory)(void *device, struct nvml_memory *memory);
};

int64_t up_cuda_used_bytes(int index)
{
    size_t free_bytes = 0, total = 0;
    if (cudaSetDevice(index) || cudaMemGetInfo(&free_bytes, &total)) return -1;
    return (int64_t)(total - free_bytes);
}

static bool nvml_open(struct nvml *nvml)
{
    const struct {
        const char *name;
        void *at;
    } rows[] = {{"nvmlInit_v2", &nvml->init},
                {"nvmlShutdown", &nvml->shutdown},
                {"nvmlDeviceGetHandleByPciBusId_v2", &nvml->by_bus},
                {"nvmlDeviceGetMemoryInfo", &nvml->memory}};
    nvml->library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!nvml->library) return false;
    for (int i = 0; i < UP_COUNT(rows); i++) {
        void *function = dlsym(nvml->library, rows[i].name);
        if (!function) return false;
        memcpy(rows[i].at, &function, sizeof function);
    }
    return true;
}

int64_t up_cuda_free_before(int index)
{
    char bus[32];
    struct nvml nvml = {0};
    struct nvml_memory memory = {0};
    void *device = NULL;
    int64_t bytes = -1;
    if (nvml_open(&nvml) && !nvml.init()) {
        if (!cudaDeviceGetPCIBusId(bus, sizeof bus, index) && !nvml.by_bus(bus, &device) &&
            !nvml.memory(device, &memory))
            bytes = (int64_t)memory.free;
        nvml.shutdown();
    }
    if (nvml.library) dlclose(nvml.library);
    return bytes;
}
