#include "profiler/cuda/translate.h"

// The rank whose GPU it was; false where it is nobody's.
static bool begin_activity(const struct up_translation *translation, uint32_t device,
                           uint64_t begin, uint64_t end, struct up_activity *activity)
{
    if (!begin || !end) return false; // CUPTI could not tell when
    if (device >= UP_GPU_SEATS || !translation->seat[device].taken) return false;
    const struct up_gpu_seat *seat = &translation->seat[device];
    *activity = (struct up_activity){
        .rank = seat->rank,
        .begin_ns = up_clock_map_ours(&translation->clock, (int64_t)begin) - seat->start_ns,
        .end_ns = up_clock_map_ours(&translation->clock, (int64_t)end) - seat->start_ns};
    return true;
}

static bool of_kernel(const struct up_translation *translation,
                      const CUpti_ActivityKernel10 *record, struct up_activity *activity)
{
    if (!begin_activity(translation, record->deviceId, record->start, record->end, activity))
        return false;
    activity->kind = UP_ACTIVITY_KERNEL;
    activity->correlation[0] = record->correlationId;
    activity->stream = record->streamId;
    activity->name = record->name;
    return true;
}

static enum up_space space_of(int kind)
{
    return kind == CUPTI_ACTIVITY_MEMORY_KIND_PINNED || kind == CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE
               ? UP_SPACE_HOST
               : UP_SPACE_DEVICE;
}

static bool of_copy(const struct up_translation *translation, const CUpti_ActivityMemcpy6 *record,
                    struct up_activity *activity)
{
    if (!begin_activity(translation, record->deviceId, record->start, record->end, activity))
        return false;
    activity->kind = UP_ACTIVITY_COPY;
    activity->correlation[0] = record->correlationId;
    activity->correlation[1] = record->runtimeCorrelationId;
    activity->stream = record->streamId;
    activity->bytes = (int64_t)record->bytes;
    activity->from = space_of(record->srcKind);
    activity->to = space_of(record->dstKind);
    return true;
}

static bool of_fill(const struct up_translation *translation, const CUpti_ActivityMemset4 *record,
                    struct up_activity *activity)
{
    if (!begin_activity(translation, record->deviceId, record->start, record->end, activity))
        return false;
    activity->kind = UP_ACTIVITY_FILL;
    activity->correlation[0] = record->correlationId;
    activity->stream = record->streamId;
    activity->bytes = (int64_t)record->bytes;
    return true;
}

// Pageable memory is the process' own business, static memory comes with its module.
static bool is_taken_memory(int kind)
{
    return kind != CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE &&
           kind != CUPTI_ACTIVITY_MEMORY_KIND_DEVICE_STATIC &&
           kind != CUPTI_ACTIVITY_MEMORY_KIND_MANAGED_STATIC;
}

static bool of_memory(const struct up_translation *translation, const CUpti_ActivityMemory4 *record,
                      struct up_activity *activity)
{
    if (!is_taken_memory((int)record->memoryKind) ||
        !begin_activity(translation, record->deviceId, record->timestamp, record->timestamp,
                        activity))
        return false;
    bool taken = record->memoryOperationType == CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION;
    activity->kind = taken ? UP_ACTIVITY_ALLOC : UP_ACTIVITY_RELEASE;
    activity->correlation[0] = record->correlationId;
    activity->address = record->address;
    activity->bytes = (int64_t)record->bytes;
    activity->space = space_of((int)record->memoryKind);
    activity->name = record->source;
    return true;
}

/* What a pool of cudaMallocAsync has taken from the driver beyond what it has handed out. It grows
 * by more than is asked for, and what is freed stays in it until somebody waits for the stream, or
 * for good where its release threshold says so. */
static bool of_pool(const struct up_translation *translation,
                    const CUpti_ActivityMemoryPool3 *record, struct up_activity *activity)
{
    bool gone =
        record->memoryPoolOperationType == CUPTI_ACTIVITY_MEMORY_POOL_OPERATION_TYPE_DESTROYED;
    if (record->memoryPoolType != CUPTI_ACTIVITY_MEMORY_POOL_TYPE_LOCAL || record->isManagedPool ||
        !begin_activity(translation, record->deviceId, record->timestamp, record->timestamp,
                        activity))
        return false;
    activity->kind = UP_ACTIVITY_POOL;
    activity->address = record->address;
    activity->bytes = gone ? 0 : up_max(0, (int64_t)(record->size - record->utilizedSize));
    return true;
}

// An allocation tells of its pool as it is then, a release as it was before.
static bool of_memorys_pool(const struct up_translation *translation,
                            const CUpti_ActivityMemory4 *record, struct up_activity *activity)
{
    if (record->memoryPoolConfig.memoryPoolType != CUPTI_ACTIVITY_MEMORY_POOL_TYPE_LOCAL ||
        record->memoryKind != CUPTI_ACTIVITY_MEMORY_KIND_DEVICE ||
        !of_memory(translation, record, activity))
        return false;
    int64_t kept =
        (int64_t)(record->memoryPoolConfig.pool.size - record->memoryPoolConfig.utilizedSize);
    if (activity->kind == UP_ACTIVITY_RELEASE) kept += activity->bytes;
    activity->kind = UP_ACTIVITY_POOL;
    activity->address = record->memoryPoolConfig.address;
    activity->bytes = up_max(0, kept);
    return true;
}

bool up_translate(const struct up_translation *translation, const CUpti_Activity *record,
                  struct up_activity *activity)
{
    switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_KERNEL:
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
        return of_kernel(translation, (const void *)record, activity);
    case CUPTI_ACTIVITY_KIND_MEMCPY:
        return of_copy(translation, (const void *)record, activity);
    case CUPTI_ACTIVITY_KIND_MEMSET:
        return of_fill(translation, (const void *)record, activity);
    case CUPTI_ACTIVITY_KIND_MEMORY2:
        return of_memory(translation, (const void *)record, activity);
    case CUPTI_ACTIVITY_KIND_MEMORY_POOL:
        return of_pool(translation, (const void *)record, activity);
    default:
        return false;
    }
}

bool up_translate_pool(const struct up_translation *translation, const CUpti_Activity *record,
                       struct up_activity *activity)
{
    return record->kind == CUPTI_ACTIVITY_KIND_MEMORY2 &&
           of_memorys_pool(translation, (const void *)record, activity);
}
