/* CUPTI's functions, found at run time. */
#ifndef UP_PROFILER_CUDA_CUPTI_H
#define UP_PROFILER_CUDA_CUPTI_H

#include "base/base.h"

#include <cupti.h>

/* Those of CUDA 13.0's CUPTI that are used here. */
struct up_cupti {
    void *library;
    __typeof__(cuptiSubscribe_v2) *subscribe;
    __typeof__(cuptiUnsubscribe) *unsubscribe;
    __typeof__(cuptiEnableCallback) *enable_callback;
    __typeof__(cuptiActivityRegisterCallbacks) *register_buffers;
    __typeof__(cuptiActivityEnable) *enable;
    __typeof__(cuptiActivityDisable) *disable;
    __typeof__(cuptiActivityFlushAll) *flush;
    __typeof__(cuptiActivityGetNextRecord) *next_record;
    __typeof__(cuptiActivityGetNumDroppedRecords) *dropped;
    __typeof__(cuptiActivityEnableAllocationSource) *enable_source;
    __typeof__(cuptiGetTimestamp) *timestamp;
    __typeof__(cuptiGetResultString) *result_text;
    __typeof__(cuptiGetVersion) *version;
};

/* False, and why not in `why`. */
bool up_cupti_open(struct up_cupti *cupti, char *why, size_t size);
void up_cupti_close(struct up_cupti *cupti);
const char *up_cupti_text(const struct up_cupti *cupti, CUptiResult result);

#endif
