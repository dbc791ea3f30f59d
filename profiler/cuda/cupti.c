#define _GNU_SOURCE // dl_iterate_phdr
#include "profiler/cuda/cupti.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CUPTI_FILE "libcupti.so." UP_CUPTI_MAJOR

enum { PATH_TEXT = 4096 };

static void *open_file(const char *path)
{
    return dlopen(path, RTLD_LAZY | RTLD_LOCAL);
}

// Leaves the folder of the CUDA runtime that the program has loaded, or "".
static int find_runtime(struct dl_phdr_info *object, size_t size, void *folder)
{
    const char *slash = object->dlpi_name ? strrchr(object->dlpi_name, '/') : NULL;
    (void)size;
    if (!slash || strncmp(slash, "/libcudart.so", strlen("/libcudart.so")) != 0) return 0;
    snprintf(folder, PATH_TEXT, "%.*s", (int)(slash - object->dlpi_name), object->dlpi_name);
    return 1;
}

// As toolkits and Python's packages lay their libraries out.
static void *open_beside_runtime(void)
{
    static const char *const places[] = {"", "/../../cuda_cupti/lib", "/../extras/CUPTI/lib64"};
    char folder[PATH_TEXT] = "", path[PATH_TEXT + 64];
    void *library = NULL;
    dl_iterate_phdr(find_runtime, folder);
    for (int i = 0; *folder && !library && i < UP_COUNT(places); i++) {
        snprintf(path, sizeof path, "%s%s/" CUPTI_FILE, folder, places[i]);
        library = open_file(path);
    }
    return library;
}

// The file of UPIPE_CUPTI alone, where that is set.
static const char *wanted(void)
{
    const char *path = getenv("UPIPE_CUPTI");
    return path && *path ? path : NULL;
}

/* What the program has loaded itself, as PyTorch has, comes first, then what belongs to its CUDA,
 * then the system's. */
static void *open_library(void)
{
    static const char *const names[] = {CUPTI_FILE, "libcupti.so",
                                        "/usr/local/cuda/lib64/" CUPTI_FILE,
                                        "/usr/local/cuda/extras/CUPTI/lib64/" CUPTI_FILE};
    if (wanted()) return open_file(wanted());
    void *library = dlopen(CUPTI_FILE, RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    if (!library) library = open_beside_runtime();
    for (int i = 0; !library && i < UP_COUNT(names); i++) library = open_file(names[i]);
    return library;
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
        snprintf(why, size, "CUPTI is not here (%s)", wanted() ? wanted() : CUPTI_FILE);
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
