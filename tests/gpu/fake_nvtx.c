#include "tests/gpu/fake_nvtx.h"

#include <nvtx3/nvToolsExtMem.h>

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MOST = 64 };

struct stretch {
    const char *at;
    size_t bytes; // 0: not there
    char name[64];
};

static struct stretch heaps[MOST], regions[MOST];
static char mistake[256];
static int refused;

__attribute__((format(printf, 1, 2))) static void complain(const char *format, ...)
{
    va_list arguments;
    if (*mistake) return;
    va_start(arguments, format);
    vsnprintf(mistake, sizeof mistake, format, arguments);
    va_end(arguments);
}

// Behind the others, which keep their order.
static struct stretch *add(struct stretch *table, const char *at, size_t bytes)
{
    for (int i = 0; i < MOST; i++) {
        if (table[i].bytes) continue;
        table[i] = (struct stretch){.at = at, .bytes = bytes};
        return &table[i];
    }
    return NULL;
}

static struct stretch *find(struct stretch *table, const char *at)
{
    for (int i = 0; i < MOST; i++)
        if (table[i].bytes && table[i].at == at) return &table[i];
    return NULL;
}

static void take_out(struct stretch *table, struct stretch *which)
{
    memmove(which, which + 1, (size_t)(table + MOST - 1 - which) * sizeof *which);
    table[MOST - 1].bytes = 0;
}

static int meet(const struct stretch *table, const char *at, size_t bytes)
{
    for (int i = 0; i < MOST; i++)
        if (table[i].bytes && at < table[i].at + table[i].bytes && table[i].at < at + bytes)
            return 1;
    return 0;
}

static nvtxMemHeapHandle_t heap_register(nvtxDomainHandle_t domain, const nvtxMemHeapDesc_t *desc)
{
    const nvtxMemVirtualRangeDesc_t *range = desc->typeSpecificDesc;
    (void)domain;
    if (refused) return NULL;
    if (desc->extCompatID != NVTX_EXT_COMPATID_MEM || desc->structSize != sizeof *desc ||
        desc->usage != NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR ||
        desc->type != NVTX_MEM_TYPE_VIRTUAL_ADDRESS ||
        desc->typeSpecificDescSize != sizeof *range || !range->size)
        complain("a heap's description");
    if (meet(heaps, range->ptr, range->size)) complain("two heaps meet");
    return (nvtxMemHeapHandle_t)add(heaps, range->ptr, range->size)->at;
}

static void heap_unregister(nvtxDomainHandle_t domain, nvtxMemHeapHandle_t handle)
{
    struct stretch *heap = find(heaps, (const char *)handle);
    (void)domain;
    if (!heap) {
        complain("a heap that is not there");
        return;
    }
    for (int i = MOST - 1; i >= 0; i--)
        if (regions[i].bytes && regions[i].at >= heap->at && regions[i].at < heap->at + heap->bytes)
            take_out(regions, &regions[i]);
    take_out(heaps, heap);
}

static void regions_register(nvtxDomainHandle_t domain, const nvtxMemRegionsRegisterBatch_t *batch)
{
    const nvtxMemVirtualRangeDesc_t *range = batch->regionDescElements;
    struct stretch *heap = find(heaps, (const char *)batch->heap);
    const char *at = range->ptr;
    (void)domain;
    if (batch->extCompatID != NVTX_EXT_COMPATID_MEM || batch->structSize != sizeof *batch ||
        batch->regionType != NVTX_MEM_TYPE_VIRTUAL_ADDRESS || batch->regionCount != 1 ||
        batch->regionDescElementSize != sizeof *range || !range->size)
        complain("a region's description");
    if (!heap || at < heap->at || at + range->size > heap->at + heap->bytes)
        complain("a region outside its heap");
    if (meet(regions, at, range->size)) complain("two regions meet");
    add(regions, at, range->size);
}

static void regions_unregister(nvtxDomainHandle_t domain,
                               const nvtxMemRegionsUnregisterBatch_t *batch)
{
    struct stretch *region = find(regions, batch->refElements->pointer);
    (void)domain;
    if (batch->extCompatID != NVTX_EXT_COMPATID_MEM || batch->structSize != sizeof *batch ||
        batch->refType != NVTX_MEM_REGION_REF_TYPE_POINTER || batch->refCount != 1 ||
        batch->refElementSize != sizeof *batch->refElements)
        complain("what ends a region");
    if (region)
        take_out(regions, region);
    else
        complain("a region that is not there");
}

static void regions_name(nvtxDomainHandle_t domain, const nvtxMemRegionsNameBatch_t *batch)
{
    const nvtxMemRegionNameDesc_t *desc = batch->regionElements;
    struct stretch *region = find(regions, desc->region.pointer);
    size_t length = strlen(desc->name.ascii);
    (void)domain;
    if (batch->extCompatID != NVTX_EXT_COMPATID_MEM || batch->structSize != sizeof *batch ||
        batch->regionCount != 1 || batch->regionElementSize != sizeof *desc ||
        desc->regionRefType != NVTX_MEM_REGION_REF_TYPE_POINTER ||
        desc->nameType != NVTX_MESSAGE_TYPE_ASCII || length < 1 || length > 49)
        complain("a name's description: %s", desc->name.ascii);
    for (size_t i = 0; i < length; i++)
        if (!isprint((unsigned char)desc->name.ascii[i])) complain("a name that cannot be printed");
    if (region)
        snprintf(region->name, sizeof region->name, "%s", desc->name.ascii);
    else
        complain("a name for a region that is not there");
}

static size_t print(char *out, size_t room, const char *what, const struct stretch *table,
                    const char *from)
{
    size_t used = 0;
    for (int i = 0; i < MOST && table[i].bytes; i++)
        used +=
            (size_t)snprintf(out + used, room - used, "%s %td+%zu%s%s; ", what, table[i].at - from,
                             table[i].bytes, *table[i].name ? " " : "", table[i].name);
    return used;
}

static const char *state(void)
{
    static char text[MOST * 256];
    size_t used = print(text, sizeof text, "heap", heaps, heaps[0].at);
    used += print(text + used, sizeof text - used, "region", regions, heaps[0].at);
    text[used ? used - 2 : 0] = 0;
    return text;
}

static const char *first_mistake(void)
{
    return mistake;
}

static void refuse(int whether)
{
    refused = whether;
}

#define EXPORT __attribute__((visibility("default")))

EXPORT struct fake_nvtx fake_nvtx = {state, first_mistake, refuse};

EXPORT int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table);
EXPORT int InitializeInjectionNvtxExtension(nvtxExtModuleInfo_t *module);

// As one that knows nothing of domains.
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table)
{
    (void)get_table;
    return 1;
}

int InitializeInjectionNvtxExtension(nvtxExtModuleInfo_t *module)
{
    intptr_t *slots = module->segments[0].functionSlots;
    if (module->moduleId != NVTX_EXT_MODULEID_MEM) return 0;
    slots[NVTX3EXT_CBID_nvtxMemHeapRegister] = (intptr_t)heap_register;
    slots[NVTX3EXT_CBID_nvtxMemHeapUnregister] = (intptr_t)heap_unregister;
    slots[NVTX3EXT_CBID_nvtxMemRegionsRegister] = (intptr_t)regions_register;
    slots[NVTX3EXT_CBID_nvtxMemRegionsUnregister] = (intptr_t)regions_unregister;
    slots[NVTX3EXT_CBID_nvtxMemRegionsName] = (intptr_t)regions_name;
    return 1;
}
