/* The memory of one rank's GPU: its address range, backed by physical memory in pieces as it grows,
 * and the host's, which is touched and registered whole. */
#ifndef UP_DEVICE_CUDA_MEMORY_H
#define UP_DEVICE_CUDA_MEMORY_H

#include "device/cuda/cuda_impl.h"

#include <cuda.h>

// The driver's functions, found at run time: upipe starts on machines without a driver.
struct up_cuda_driver {
    __typeof__(cuMemAddressReserve) *address_reserve;
    __typeof__(cuMemAddressFree) *address_free;
    __typeof__(cuMemCreate) *create;
    __typeof__(cuMemMap) *map;
    __typeof__(cuMemUnmap) *unmap;
    __typeof__(cuMemRelease) *release;
    __typeof__(cuMemSetAccess) *set_access;
    __typeof__(cuMemGetAllocationGranularity) *granularity;
    __typeof__(cuStreamWriteValue64) *write_value;
};

struct up_cuda_piece;

struct up_cuda_memory {
    int index; // which GPU
    struct up_cuda_driver driver;
    size_t granularity;
    struct up_cuda_piece *piece; // in order
    int pieces;                  // how many there are
    int64_t room;                // and may be
    void *registered;            // the host range, once it is
    struct up_regions *regions;  // NVTX, set by the device; NULL: no tool checks accesses
    size_t whole;                // bytes of the device's range, where it is backed from the start
    int64_t *backed;             // the device's, per space
};

/* With the GPU bound. UP_FAILED where the driver lacks what is needed. */
enum up_status up_cuda_memory_open(struct up_cuda_memory *memory, int index, int64_t *backed,
                                   struct up_error *err);

/* As struct up_device_ops has them. */
enum up_status up_cuda_memory_reserve(struct up_cuda_memory *memory, enum up_space space,
                                      int64_t bytes, void **base, struct up_error *err);
void up_cuda_memory_release(struct up_cuda_memory *memory, enum up_space space, void *base,
                            int64_t bytes);
enum up_status up_cuda_memory_back(struct up_cuda_memory *memory, enum up_space space, void *base,
                                   int64_t bytes, bool for_good, struct up_error *err);

#endif
