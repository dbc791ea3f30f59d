/* The arena and the tensors in it, for tools that check accesses through NVTX's memory extension
 * (compute-sanitizer): the arena is a heap, of which tensors alone may be touched. One that lies
 * across two heaps is two regions of one name. */
#include "device/cuda/cuda_impl.h"
#include "trace/trace.h"

#if __has_include(<nvtx3/nvToolsExtMem.h>)

#include <nvtx3/nvToolsExtMem.h>
#include <stdio.h>
#include <stdlib.h>

enum { NAME_MAX_BYTES = 50 }; // what compute-sanitizer takes, with the 0 at its end

struct heap {
    struct heap *next;
    const char *at;
    int64_t bytes;
    nvtxMemHeapHandle_t handle;
};

// Without heaps nobody listens, or no memory has been mapped.
struct up_regions {
    nvtxDomainHandle_t domain; // may be NULL though a tool is there: not every one knows domains
    struct heap *heaps;
};

struct up_regions *up_regions_create(void)
{
    struct up_regions *regions = calloc(1, sizeof *regions);
    if (regions) regions->domain = nvtxDomainCreateA("upipe");
    return regions;
}

void up_regions_destroy(struct up_regions *regions)
{
    if (regions) up_regions_drop_heaps(regions);
    free(regions);
}

bool up_regions_listened(struct up_regions *regions, const void *at, int64_t bytes)
{
    up_regions_add_heap(regions, at, bytes);
    bool listened = regions->heaps != NULL;
    up_regions_drop_heaps(regions);
    return listened;
}

void up_regions_add_heap(struct up_regions *regions, const void *at, int64_t bytes)
{
    nvtxMemVirtualRangeDesc_t range = {.size = (size_t)bytes, .ptr = at};
    nvtxMemHeapDesc_t desc = {.extCompatID = NVTX_EXT_COMPATID_MEM,
                              .structSize = sizeof desc,
                              .usage = NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR,
                              .type = NVTX_MEM_TYPE_VIRTUAL_ADDRESS,
                              .typeSpecificDescSize = sizeof range,
                              .typeSpecificDesc = &range};
    struct heap *heap = malloc(sizeof *heap);
    if (!heap) return;
    *heap = (struct heap){regions->heaps, at, bytes, nvtxMemHeapRegister(regions->domain, &desc)};
    if (heap->handle && heap->handle != NVTX_MEM_HEAP_HANDLE_NO_TOOL)
        regions->heaps = heap;
    else
        free(heap);
}

void up_regions_drop_heaps(struct up_regions *regions)
{
    for (struct heap *heap = regions->heaps, *next; heap; heap = next) {
        next = heap->next;
        nvtxMemHeapUnregister(regions->domain, heap->handle);
        free(heap);
    }
    regions->heaps = NULL;
}

// What of the bytes lies in the heap; size 0: nothing.
static nvtxMemVirtualRangeDesc_t part_in(const struct heap *heap, const void *at, int64_t bytes)
{
    const char *first = at, *last = first + bytes;
    if (first < heap->at) first = heap->at;
    if (last > heap->at + heap->bytes) last = heap->at + heap->bytes;
    return (nvtxMemVirtualRangeDesc_t){.size = last > first ? (size_t)(last - first) : 0,
                                       .ptr = first};
}

bool up_regions_hold(const struct up_regions *regions, const void *at, int64_t bytes)
{
    for (const struct heap *heap = regions->heaps; heap; heap = heap->next)
        if (part_in(heap, at, bytes).size) return true;
    return false;
}

void up_regions_add(struct up_regions *regions, const void *at, int64_t bytes)
{
    for (const struct heap *heap = regions->heaps; heap; heap = heap->next) {
        nvtxMemVirtualRangeDesc_t part = part_in(heap, at, bytes);
        nvtxMemRegionsRegisterBatch_t batch = {.extCompatID = NVTX_EXT_COMPATID_MEM,
                                               .structSize = sizeof batch,
                                               .regionType = NVTX_MEM_TYPE_VIRTUAL_ADDRESS,
                                               .heap = heap->handle,
                                               .regionCount = 1,
                                               .regionDescElementSize = sizeof part,
                                               .regionDescElements = &part};
        if (part.size) nvtxMemRegionsRegister(regions->domain, &batch);
    }
}

void up_regions_name(struct up_regions *regions, const void *at, int64_t bytes,
                     const struct up_label *label)
{
    char text[UP_LABEL_TEXT], name[NAME_MAX_BYTES];
    if (!regions->heaps) return;
    snprintf(name, sizeof name, "%s", up_label_text(text, label));
    for (const struct heap *heap = regions->heaps; heap; heap = heap->next) {
        nvtxMemVirtualRangeDesc_t part = part_in(heap, at, bytes);
        nvtxMemRegionNameDesc_t desc = {.regionRefType = NVTX_MEM_REGION_REF_TYPE_POINTER,
                                        .nameType = NVTX_MESSAGE_TYPE_ASCII,
                                        .region.pointer = part.ptr,
                                        .name.ascii = name};
        nvtxMemRegionsNameBatch_t batch = {.extCompatID = NVTX_EXT_COMPATID_MEM,
                                           .structSize = sizeof batch,
                                           .regionCount = 1,
                                           .regionElementSize = sizeof desc,
                                           .regionElements = &desc};
        if (part.size) nvtxMemRegionsName(regions->domain, &batch);
    }
}

void up_regions_remove(struct up_regions *regions, const void *at, int64_t bytes)
{
    for (const struct heap *heap = regions->heaps; heap; heap = heap->next) {
        nvtxMemVirtualRangeDesc_t part = part_in(heap, at, bytes);
        nvtxMemRegionRef_t region = {.pointer = part.ptr};
        nvtxMemRegionsUnregisterBatch_t batch = {.extCompatID = NVTX_EXT_COMPATID_MEM,
                                                 .structSize = sizeof batch,
                                                 .refType = NVTX_MEM_REGION_REF_TYPE_POINTER,
                                                 .refCount = 1,
                                                 .refElementSize = sizeof region,
                                                 .refElements = &region};
        if (part.size) nvtxMemRegionsUnregister(regions->domain, &batch);
    }
}

#else

struct up_regions *up_regions_create(void)
{
    return NULL;
}

void up_regions_destroy(struct up_regions *regions)
{
    (void)regions;
}

void up_regions_add_heap(struct up_regions *regions, const void *at, int64_t bytes)
{
    (void)regions;
    (void)at;
    (void)bytes;
}

bool up_regions_listened(struct up_regions *regions, const void *at, int64_t bytes)
{
    up_regions_add_heap(regions, at, bytes);
    return false;
}

void up_regions_drop_heaps(struct up_regions *regions)
{
    (void)regions;
}

bool up_regions_hold(const struct up_regions *regions, const void *at, int64_t bytes)
{
    (void)regions;
    (void)at;
    (void)bytes;
    return false;
}

void up_regions_add(struct up_regions *regions, const void *at, int64_t bytes)
{
    up_regions_add_heap(regions, at, bytes);
}

void up_regions_name(struct up_regions *regions, const void *at, int64_t bytes,
                     const struct up_label *label)
{
    up_regions_add_heap(regions, at, bytes);
    (void)label;
}

void up_regions_remove(struct up_regions *regions, const void *at, int64_t bytes)
{
    up_regions_add_heap(regions, at, bytes);
}

#endif
