#include "trainer/profile.h"

#if UPIPE_CUPTI
#include "device/cuda/cuda.h"
#include "profiler/cuda/watcher.h"
#endif

#include <stdlib.h>

struct up_profile {
    struct up_watcher *watcher; // NULL where upipe was built without CUPTI
};

enum up_status up_profile_open(const struct up_train_options *options, struct up_profile **profile,
                               struct up_error *err)
{
    *profile = NULL;
    if (!options->trace || up_train_device(options) != UP_DEVICE_CUDA ||
        options->trace_level == UP_TRACE_TENSORS)
        return UP_OK;
    struct up_profile *made = calloc(1, sizeof *made);
    if (!made) return up_fail(err, UP_FAILED, "out of host memory");
#if UPIPE_CUPTI
    made->watcher = up_watcher_create(
        &(struct up_watcher_options){.kernels = options->trace_level == UP_TRACE_KERNELS});
    if (!made->watcher) {
        free(made);
        return up_fail(err, UP_FAILED, "out of host memory");
    }
#endif
    *profile = made;
    return UP_OK;
}

static enum up_status attach(struct up_profile *profile, const struct up_group *group,
                             struct up_recorder *recorder, struct up_error *err)
{
#if UPIPE_CUPTI
    for (int i = 0; i < group->count; i++) {
        struct up_device *device = group->seat[i].device;
        up_watcher_add(profile->watcher, up_device_cuda_index(device), group->first + i, device);
    }
    return up_watcher_attach(profile->watcher, recorder, err);
#else
    (void)profile;
    (void)group;
    (void)err;
    up_recorder_diagnostic(recorder, "cupti", "upipe was built without CUPTI 13 or later");
    return UP_OK;
#endif
}

enum up_status up_profile_attach(struct up_profile *profile, const struct up_group *group,
                                 struct up_recorder *recorder, struct up_error *err)
{
    for (int i = 0; i < group->count; i++)
        up_recorder_device(recorder, group->first + i, group->seat[i].device);
    return profile ? attach(profile, group, recorder, err) : UP_OK;
}

void up_profile_bind(struct up_profile *profile, const struct up_rank *rank)
{
#if UPIPE_CUPTI
    if (profile) up_watcher_bind(profile->watcher, rank);
#else
    (void)profile;
    (void)rank;
#endif
}

void up_profile_close(struct up_profile *profile)
{
#if UPIPE_CUPTI
    if (profile) up_watcher_destroy(profile->watcher);
#endif
    free(profile);
}
