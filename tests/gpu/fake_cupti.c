#include "tests/gpu/fake_cupti.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { KINDS = 256, DOMAINS = 8, CALLS = 2048 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUpti_CallbackFunc subscriber;
static void *subscriber_context;
static char rival_name[64];
static CUpti_BuffersCallbackRequestFunc request;
static CUpti_BuffersCallbackCompleteFunc complete;
static uint8_t *buffer;
static size_t buffer_size, buffer_used, dropped;
static bool enabled[KINDS], called[DOMAINS][CALLS];
static CUpti_ActivityKind refused;

static size_t size_of(const CUpti_Activity *record)
{
    switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
        return sizeof(CUpti_ActivityKernel10);
    case CUPTI_ACTIVITY_KIND_MEMCPY:
        return sizeof(CUpti_ActivityMemcpy6);
    case CUPTI_ACTIVITY_KIND_MEMSET:
        return sizeof(CUpti_ActivityMemset4);
    case CUPTI_ACTIVITY_KIND_MEMORY_POOL:
        return sizeof(CUpti_ActivityMemoryPool3);
    default:
        return sizeof(CUpti_ActivityMemory4);
    }
}

static void put(const void *record, size_t size)
{
    size_t most = 0;
    if (!enabled[((const CUpti_Activity *)record)->kind]) return;
    pthread_mutex_lock(&lock);
    if (buffer && buffer_used + size > buffer_size) {
        complete(NULL, 0, buffer, buffer_size, buffer_used);
        buffer = NULL;
    }
    if (!buffer) {
        buffer_used = 0;
        request(&buffer, &buffer_size, &most);
    }
    if (buffer) {
        memcpy(buffer + buffer_used, record, size);
        buffer_used += size;
    } else {
        dropped++;
    }
    pthread_mutex_unlock(&lock);
}

static int call(CUpti_CallbackDomain domain, CUpti_CallbackId id, uint32_t correlation)
{
    CUpti_CallbackData data = {.callbackSite = CUPTI_API_ENTER, .correlationId = correlation};
    CUpti_CallbackFunc told = subscriber; // also once it has unsubscribed meanwhile
    if (!told || !called[domain][id]) return 0;
    told(subscriber_context, domain, id, &data);
    data.callbackSite = CUPTI_API_EXIT;
    told(subscriber_context, domain, id, &data);
    return 1;
}

static void rival(const char *name)
{
    snprintf(rival_name, sizeof rival_name, "%s", name ? name : "");
}

static void refuse(CUpti_ActivityKind kind)
{
    refused = kind;
}

struct fake_cupti fake_cupti = {put, call, rival, refuse, 0};

CUptiResult cuptiSubscribe_v2(CUpti_SubscriberHandle *handle, CUpti_CallbackFunc callback,
                              void *context, CUpti_SubscriberParams *params)
{
    if (params->structSize != CUpti_SubscriberParams_STRUCT_SIZE)
        return CUPTI_ERROR_INVALID_PARAMETER;
    if (*rival_name) {
        snprintf(params->oldSubscriberName, params->oldSubscriberSize, "CUPTI for %s", rival_name);
        return CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED;
    }
    subscriber = callback;
    subscriber_context = context;
    *handle = (CUpti_SubscriberHandle)&subscriber;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle handle)
{
    (void)handle;
    subscriber = NULL;
    memset(called, 0, sizeof called);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiEnableCallback(uint32_t enable, CUpti_SubscriberHandle handle,
                                CUpti_CallbackDomain domain, CUpti_CallbackId id)
{
    (void)handle;
    if ((int)domain >= DOMAINS || id >= CALLS) return CUPTI_ERROR_INVALID_PARAMETER;
    called[domain][id] = enable;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc requested,
                                           CUpti_BuffersCallbackCompleteFunc completed)
{
    request = requested;
    complete = completed;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind)
{
    if (kind == refused) return CUPTI_ERROR_INSUFFICIENT_PRIVILEGES;
    enabled[kind] = true;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind)
{
    enabled[kind] = false;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityFlushAll(uint32_t flag)
{
    (void)flag;
    pthread_mutex_lock(&lock);
    if (buffer) complete(NULL, 0, buffer, buffer_size, buffer_used);
    buffer = NULL;
    pthread_mutex_unlock(&lock);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNextRecord(uint8_t *bytes, size_t valid, CUpti_Activity **record)
{
    uint8_t *next = *record ? (uint8_t *)*record + size_of(*record) : bytes;
    if (next >= bytes + valid) return CUPTI_ERROR_MAX_LIMIT_REACHED;
    *record = (CUpti_Activity *)next;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext context, uint32_t stream, size_t *count)
{
    (void)context;
    (void)stream;
    pthread_mutex_lock(&lock);
    *count = dropped;
    dropped = 0;
    pthread_mutex_unlock(&lock);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiActivityEnableAllocationSource(uint8_t enable)
{
    (void)enable;
    return CUPTI_SUCCESS;
}

CUptiResult cuptiGetTimestamp(uint64_t *timestamp)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    *timestamp = (uint64_t)(now.tv_sec * 1000000000 + now.tv_nsec + fake_cupti.ahead_ns);
    return CUPTI_SUCCESS;
}

CUptiResult cuptiGetResultString(CUptiResult result, const char **text)
{
    *text = result == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES ? "INSUFFICIENT_PRIVILEGES" : "AN_ERROR";
    return CUPTI_SUCCESS;
}

CUptiResult cuptiGetVersion(uint32_t *version)
{
    *version = CUPTI_API_VERSION;
    return CUPTI_SUCCESS;
}
