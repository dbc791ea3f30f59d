#define _GNU_SOURCE // touch.h
#include "device/cuda/memory.h"
#include "device/touch.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MAX_GPUS = 64 };

// Physical memory mapped into the device's address range.
struct up_cuda_piece {
    CUdeviceptr at;
    size_t bytes;
    CUmemGenericAllocationHandle handle;
};

/* For a tool that checks accesses, which knows no mapped memory: all that the arena will ever have,
 * at once. Half of what is free, since the tool may want as much again. */
static enum up_status reserve_whole(struct up_cuda_memory *memory, int64_t bytes, void **base,
                                    struct up_error *err)
{
    size_t free_bytes = 0, total = 0;
    cudaError_t status = cudaMemGetInfo(&free_bytes, &total);
    memory->whole = free_bytes / 2 < (size_t)bytes ? free_bytes / 2 : (size_t)bytes;
    memory->whole = memory->whole / memory->granularity * memory->granularity;
    if (!status) status = cudaMalloc(base, memory->whole);
    if (status)
        return up_cuda_fail_at(memory->index, "cannot take memory for a tool to check", status,
                               err);
    up_regions_add_heap(memory->regions, *base, (int64_t)memory->whole);
    return UP_OK;
}

static enum up_status reserve_device(struct up_cuda_memory *memory, int64_t bytes, void **base,
                                     struct up_error *err)
{
    CUdeviceptr at = 0;
    if (memory->regions) return reserve_whole(memory, bytes, base, err);
    size_t size = (size_t)up_ceil_div(bytes, (int64_t)memory->granularity) * memory->granularity;
    if (memory->driver.address_reserve(&at, size, 0, 0, 0))
        return up_fail(err, UP_FAILED, "GPU %d: cannot reserve address space", memory->index);
    *base = (void *)at;
    return UP_OK;
}

enum up_status up_cuda_memory_reserve(struct up_cuda_memory *memory, enum up_space space,
                                      int64_t bytes, void **base, struct up_error *err)
{
    if (space == UP_SPACE_DEVICE) return reserve_device(memory, bytes, base, err);
    *base = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (*base != MAP_FAILED) return UP_OK;
    *base = NULL;
    return up_fail(err, UP_FAILED, "cannot reserve host address space");
}

void up_cuda_memory_release(struct up_cuda_memory *memory, enum up_space space, void *base,
                            int64_t bytes)
{
    size_t size = (size_t)up_ceil_div(bytes, (int64_t)memory->granularity) * memory->granularity;
    if (space == UP_SPACE_HOST) {
        if (memory->registered) cudaHostUnregister(memory->registered);
        memory->registered = NULL;
        memory->backed[UP_SPACE_HOST] = 0;
        munmap(base, (size_t)bytes);
        return;
    }
    if (memory->regions) {
        up_regions_drop_heaps(memory->regions);
        memory->backed[UP_SPACE_DEVICE] = 0;
        cudaFree(base);
        return;
    }
    for (int i = 0; i < memory->pieces; i++) {
        memory->driver.unmap(memory->piece[i].at, memory->piece[i].bytes);
        memory->driver.release(memory->piece[i].handle);
    }
    free(memory->piece);
    memory->piece = NULL;
    memory->pieces = memory->room = 0;
    memory->backed[UP_SPACE_DEVICE] = 0;
    memory->driver.address_free((CUdeviceptr)base, size);
}

static CUmemAllocationProp on_device(const struct up_cuda_memory *memory)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = memory->index;
    return prop;
}

// This GPU and those that reach its memory: NCCL lets ranks of one process write straight into each
// other's buffers.
static int who_may_access(const struct up_cuda_memory *memory, CUmemAccessDesc access[MAX_GPUS])
{
    int gpus = 0, count = 0;
    if (cudaGetDeviceCount(&gpus)) gpus = 0;
    for (int i = 0; i < gpus && count < MAX_GPUS; i++) {
        int reaches = i == memory->index;
        if (!reaches && cudaDeviceCanAccessPeer(&reaches, i, memory->index)) {
            cudaGetLastError(); // no launch's
            reaches = 0;
        }
        if (!reaches) continue;
        access[count] = (CUmemAccessDesc){.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        access[count].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        access[count++].location.id = i;
    }
    return count;
}

// Maps physical memory up to `bytes` of the range.
static enum up_status back_device(struct up_cuda_memory *memory, void *base, int64_t bytes,
                                  struct up_error *err)
{
    int64_t target =
        up_ceil_div(bytes, (int64_t)memory->granularity) * (int64_t)memory->granularity;
    int64_t *backed = &memory->backed[UP_SPACE_DEVICE];
    char text[UP_UNITS_TEXT];
    if (target <= *backed) return UP_OK;
    if (memory->regions && target > (int64_t)memory->whole)
        return up_fail(err, UP_FAILED,
                       "out of device memory: GPU %d: with a tool that checks accesses there is %s",
                       memory->index, up_format_bytes(text, memory->whole));
    if (memory->regions) {
        *backed = target;
        return UP_OK;
    }
    // A model of many layers takes many: each of its tensors may be a piece.
    if (up_grow(&memory->piece, memory->pieces, &memory->room, sizeof *memory->piece, err))
        return UP_FAILED;
    CUmemAllocationProp prop = on_device(memory);
    CUmemAccessDesc access[MAX_GPUS];
    int peers = who_may_access(memory, access);
    struct up_cuda_piece piece = {.at = (CUdeviceptr)base + (CUdeviceptr)*backed,
                                  .bytes = (size_t)(target - *backed)};
    if (memory->driver.create(&piece.handle, piece.bytes, &prop, 0))
        return up_fail(err, UP_FAILED, "out of device memory: GPU %d does not have another %s free",
                       memory->index, up_format_bytes(text, piece.bytes));
    bool mapped = !memory->driver.map(piece.at, piece.bytes, 0, piece.handle, 0);
    if (!mapped || memory->driver.set_access(piece.at, piece.bytes, access, (size_t)peers)) {
        if (mapped) memory->driver.unmap(piece.at, piece.bytes);
        memory->driver.release(piece.handle);
        return up_fail(err, UP_FAILED, "GPU %d: cannot map memory", memory->index);
    }
    memory->piece[memory->pieces++] = piece;
    *backed = target;
    return UP_OK;
}

// Where Linux lists the processors that are the GPU's neighbours; false where that is not known.
static bool neighbours_of(const struct up_cuda_memory *memory, char *path, size_t size)
{
    char bus[32];
    if (cudaDeviceGetPCIBusId(bus, sizeof bus, memory->index)) {
        cudaGetLastError(); // no launch's
        return false;
    }
    for (char *at = bus; *at; at++) *at = (char)tolower(*at);
    snprintf(path, size, "/sys/bus/pci/devices/%s/local_cpulist", bus);
    return true;
}

// One registration of the whole: no tensor straddles two.
static enum up_status register_host(struct up_cuda_memory *memory, void *base, int64_t bytes,
                                    struct up_error *err)
{
    if (!bytes) return UP_OK;
    char near[96];
    size_t size = (size_t)(bytes + 4095) / 4096 * 4096;
    up_touch(base, size, neighbours_of(memory, near, sizeof near) ? near : NULL);
    cudaError_t status =
        cudaHostRegister(base, size, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (status == cudaErrorMemoryAllocation) {
        char text[UP_UNITS_TEXT];
        cudaGetLastError();
        return up_fail(err, UP_FAILED, "out of host memory: GPU %d: %s cannot be pinned",
                       memory->index, up_format_bytes(text, size));
    }
    if (status) return up_cuda_fail_at(memory->index, "cannot register host memory", status, err);
    memory->registered = base;
    memory->backed[UP_SPACE_HOST] = (int64_t)size;
    return UP_OK;
}

enum up_status up_cuda_memory_back(struct up_cuda_memory *memory, enum up_space space, void *base,
                                   int64_t bytes, bool for_good, struct up_error *err)
{
    if (space == UP_SPACE_DEVICE) return back_device(memory, base, bytes, err);
    return for_good ? register_host(memory, base, bytes, err) : UP_OK;
}

/* --- Opening -------------------------------------------------------------------------------------
 */

static bool find_driver(struct up_cuda_driver *driver)
{
    const struct {
        const char *name;
        void *at;
    } rows[] = {{"cuMemAddressReserve", &driver->address_reserve},
                {"cuMemAddressFree", &driver->address_free},
                {"cuMemCreate", &driver->create},
                {"cuMemMap", &driver->map},
                {"cuMemUnmap", &driver->unmap},
                {"cuMemRelease", &driver->release},
                {"cuMemSetAccess", &driver->set_access},
                {"cuMemGetAllocationGranularity", &driver->granularity},
                {"cuStreamWriteValue64", &driver->write_value}};
    for (int i = 0; i < UP_COUNT(rows); i++) {
        enum cudaDriverEntryPointQueryResult result;
        void *function = NULL;
        if (cudaGetDriverEntryPointByVersion(rows[i].name, &function, 12000, cudaEnableDefault,
                                             &result) ||
            !function)
            return false;
        memcpy(rows[i].at, &function, sizeof function);
    }
    return true;
}

enum up_status up_cuda_memory_open(struct up_cuda_memory *memory, int index, int64_t *backed,
                                   struct up_error *err)
{
    *memory = (struct up_cuda_memory){.index = index, .backed = backed};
    CUmemAllocationProp where = on_device(memory);
    if (find_driver(&memory->driver) &&
        !memory->driver.granularity(&memory->granularity, &where,
                                    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
        return UP_OK;
    return up_fail(err, UP_FAILED, "GPU %d: the driver has no virtual memory functions", index);
}
