#include "profiler/cuda/cupti.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static void *open_library(void)
{
    static const char *const names[] = {
        "libcupti.so." UP_CUPTI_MAJOR, "libcupti.so",
        "/usr/local/cuda/lib64/libcupti.so." UP_CUPTI_MAJOR,
        "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so." UP_CUPTI_MAJOR};
    for (int i = 0; i < UP_COUNT(names); i++) {
        void *library = dlopen(names[i], RTLD_LAZY | RTLD_LOCAL);
        if (library) return library;
    }
    return NULL;
}

static const char *find_functions(struct up_cupti *cupti)
{
    const struct {
        const char *name;
        void *at;
    } rows[] = {{"cuptiSubscribe_v2", &cupti->subscribe},
                {"cuptiUnsubscribe", &cupti->unsubscribe},
                {"cuptiEnableCallback", &cupti->enable_callback},
                {"cuptiActivityRegisterCallbacks", &cupti->register_buffers},
                {"cuptiActivityEnable", &cupti->enable},
                {"cuptiActivityDisable", &cupti->disable},
                {"cuptiActivityFlushAll", &cupti->flush},
                {"cuptiActivityGetNextRecord", &cupti->next_record},
                {"cuptiActivityGetNumDroppedRecords", &cupti->dropped},
                {"cuptiActivityEnableAllocationSource", &cupti->enable_source},
                {"cuptiGetTimestamp", &cupti->timestamp},
                {"cuptiGetResultString", &cupti->result_text},
                {"cuptiGetVersion", &cupti->version}};
    for (int i = 0; i < UP_COUNT(rows); i++) {
        void *function = dlsym(cupti->library, rows[i].name);
        if (!function) return rows[i].name;
        memcpy(rows[i].at, &function, sizeof function);
    }
    return NULL;
}

bool up_cupti_open(struct up_cupti *cupti, char *why, size_t size)
{
    uint32_t version = 0;
    *cupti = (struct up_cupti){.library = open_library()};
    if (!cupti->library) {
        snprintf(why, size, "CUPTI is not here (libcupti.so." UP_CUPTI_MAJOR ")");
        return false;
    }
    const char *missing = find_functions(cupti);
    if (!missing && !cupti->version(&version) && version / 10000 == CUPTI_API_VERSION / 10000)
        return true;
    // Records of another major version may be laid out in another way.
    if (missing)
        snprintf(why, size, "the CUPTI that is here has no %s", missing);
    else
        snprintf(why, size, "the CUPTI that is here has version %u, expected %d", version,
                 CUPTI_API_VERSION);
    up_cupti_close(cupti);
    return false;
}

void up_cupti_close(struct up_cupti *cupti)
{
    // The library stays: threads of its own may still be in it.
    *cupti = (struct up_cupti){0};
}

const char *up_cupti_text(const struct up_cupti *cupti, CUptiResult result)
{
    const char *text = NULL;
    if (cupti->result_text(result, &text) || !text) text = "an unknown error";
    return text;
}
