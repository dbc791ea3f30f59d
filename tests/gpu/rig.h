/* A GPU to test on: the device, a rank, and what the step gives them before its first launch. */
#ifndef UP_TESTS_GPU_RIG_H
#define UP_TESTS_GPU_RIG_H

#include "ops/ops_impl.h"
#include "tests/gpu/need.h"

#include <math.h>
#include <stdlib.h>

struct rig {
    struct up_device *device;
    struct up_rank rank;
    struct up_tensor *workspace;
};

/* GPU 0, or NULL with why not. */
static inline struct up_device *rig_device(struct up_error *err)
{
#if UPIPE_CUDA
    if (up_device_cuda_count() > 0) return up_device_cuda_create(0, err);
    if (gpu_is_here())
        up_fail(err, UP_FAILED, "there is a GPU here, but CUDA finds none");
    else
        up_fail(err, UP_USAGE, "there is no GPU here");
#else
    up_fail(err, UP_USAGE, "built without the cuda device");
#endif
    return NULL;
}

static inline enum up_status rig_init(struct rig *rig, struct up_error *err)
{
    enum up_status rc = UP_OK;
    rig->device = rig_device(err);
    if (!rig->device) return err->status;
    up_device_bind(rig->device);
    UP_TRY(up_rank_init(&rig->rank, 0, rig->device, NULL, NULL, err));
    rig->workspace = up_alloc(&rig->rank, UP_TAG(WORKSPACE, "test.workspace"), UP_U8,
                              UP_SHAPE(up_device_workspace_bytes(UP_DEVICE_CUDA)));
    if (rig->device->ops->give_workspace)
        rig->device->ops->give_workspace(rig->device, rig->workspace->data);
    if (up_rank_failed(&rig->rank)) rc = up_fail(err, UP_FAILED, "%s", rig->rank.error.text);
out:
    return rc;
}

/* Set-up and tear-down of a group. *state is the rig, or NULL where there is no GPU to be had. */
static inline int rig_start(void **state)
{
    struct up_error err = {0};
    struct rig *rig = calloc(1, sizeof *rig);
    enum up_status status = rig_init(rig, &err);
    *state = rig;
    if (status == UP_OK) return 0;
    print_message("%s: %s\n", status == UP_USAGE ? "skipped" : "cannot start", err.text);
    free(rig);
    *state = NULL;
    return status == UP_USAGE ? 0 : -1;
}

static inline int rig_stop(void **state)
{
    struct rig *rig = *state;
    if (!rig) return 0;
    up_stream_synchronize(&rig->rank, UP_STREAM_COMPUTE);
    up_rank_release(&rig->rank);
    up_device_destroy(rig->device);
    free(rig);
    return 0;
}

static inline struct rig *rig_or_skip(void **state)
{
    if (!*state) skip();
    return *state;
}

/* All work is done; fails if some of it, or an allocation, did. */
static inline void rig_finish(struct rig *rig)
{
    up_stream_synchronize(&rig->rank, UP_STREAM_COMPUTE);
    struct up_error err = rig->rank.error;
    if (!err.status && rig->device->ops->check) rig->device->ops->check(rig->device, &err);
    if (err.status) fail_msg("%s", err.text);
}

/* Between the GPU and memory of the test's own; waits for it. */
static inline void rig_upload(struct rig *rig, void *to, const void *from, int64_t bytes)
{
    if (bytes)
        rig->device->ops->copy(rig->device, UP_STREAM_COMPUTE, to, UP_SPACE_DEVICE, from,
                               UP_SPACE_HOST, bytes);
    rig_finish(rig);
}

static inline void rig_download(struct rig *rig, void *to, const void *from, int64_t bytes)
{
    if (bytes)
        rig->device->ops->copy(rig->device, UP_STREAM_COMPUTE, to, UP_SPACE_HOST, from,
                               UP_SPACE_DEVICE, bytes);
    rig_finish(rig);
}

/* Uniform, of mean 0 and variance 1. */
static inline double rig_random(uint64_t stream, int64_t index)
{
    int64_t bits = (int64_t)up_random_u64(11, stream, (uint64_t)index);
    return (double)bits * 0x1p-63 * 1.7320508075688772;
}

/* Numbers as a dtype has them, and back. */
static inline void rig_encode(const double *from, int64_t count, enum up_dtype dtype, void *to)
{
    float *rounded = dtype == UP_BF16 ? malloc((size_t)count * sizeof *rounded + 1) : NULL;
    for (int64_t i = 0; i < count; i++) switch (dtype) {
        case UP_F64:
            ((double *)to)[i] = from[i];
            break;
        case UP_I32:
            ((int32_t *)to)[i] = (int32_t)from[i];
            break;
        case UP_F32:
            ((float *)to)[i] = (float)from[i];
            break;
        default:
            rounded[i] = (float)from[i];
        }
    if (rounded) up_cpu_cast(&(struct up_cast_args){rounded, to, count, UP_F32, UP_BF16});
    free(rounded);
}

static inline void rig_decode(const void *from, int64_t count, enum up_dtype dtype, double *to)
{
    float *wide = dtype == UP_BF16 ? malloc((size_t)count * sizeof *wide + 1) : NULL;
    if (wide) up_cpu_cast(&(struct up_cast_args){from, wide, count, UP_BF16, UP_F32});
    for (int64_t i = 0; i < count; i++) switch (dtype) {
        case UP_F64:
            to[i] = ((const double *)from)[i];
            break;
        case UP_I32:
            to[i] = ((const int32_t *)from)[i];
            break;
        case UP_F32:
            to[i] = (double)((const float *)from)[i];
            break;
        default:
            to[i] = (double)wide[i];
        }
    free(wide);
}

/* Norm of the difference over norm. Where what is expected is smaller than `floor` (root mean
 * square) it is what rounding leaves of differences of equal numbers: the difference then counts as
 * it is. */
static inline double rig_error(const double *actual, const double *expected, int64_t count,
                               double floor)
{
    double difference = 0, norm = 0, elements = (double)up_max(count, 1);
    for (int64_t i = 0; i < count; i++) {
        double d = actual[i] - expected[i];
        difference += d * d;
        norm += expected[i] * expected[i];
    }
    double size = sqrt(norm / elements);
    return sqrt(difference / elements) / (size > floor ? size : 1);
}

#endif
