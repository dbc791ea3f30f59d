#include "trainer/group.h"

#include <omp.h>
#include <stdlib.h>

#if UPIPE_CUDA
#include "comm/nccl/nccl.h"
#include "device/cuda/cuda.h"
#include "ops/cuda/attention_cuda.h"
#include "ops/rehearsal.h"
#endif

/* --- Devices
 * -------------------------------------------------------------------------------------- */

static enum up_status no_cuda(const struct up_config *config, struct up_error *err)
{
#if UPIPE_CUDA
    long long found = up_device_cuda_count(), asked = up_config_ranks(config);
    if (found >= asked) return UP_OK;
    return up_fail(err, UP_USAGE, "--device cuda: %lld ranks need as many GPUs: %lld %s here",
                   asked, found, found == 1 ? "is" : "are");
#else
    (void)config;
    return up_fail(err, UP_USAGE,
                   "--device cuda: this upipe was built without CUDA: expected cpu or dry");
#endif
}

static struct up_device *cuda_device(int index, struct up_error *err)
{
#if UPIPE_CUDA
    return up_device_cuda_create(index, err);
#else
    (void)index;
    (void)err;
    return NULL;
#endif
}

static struct up_device *open_device(const struct up_group *group, int number,
                                     const struct up_train_options *options,
                                     const struct up_machine *machine, struct up_error *err)
{
    int threads = options->threads ? (int)options->threads : group->count > 1 ? 1 : 0;
    uint64_t chaos = options->chaos ? (uint64_t)options->chaos + (uint64_t)number * 1000003 : 0;
    switch (group->kind) {
    case UP_DEVICE_CPU:
        return up_device_cpu_create(threads, chaos, err);
    case UP_DEVICE_DRY:
        return up_device_dry_create(group->config->as, machine, err);
    case UP_DEVICE_CUDA:
        return cuda_device(number, err);
    default:
        UP_BUG("unknown kind of device");
    }
}

/* --- Communicators
 * -------------------------------------------------------------------------------- */

static enum up_status open_dry_comms(struct up_group *group, struct up_error *err)
{
    enum up_status rc = UP_OK;
    UP_TRY(up_comm_dry_create((int)up_config_ranks(group->config), 0, &group->seat[0].world, err));
    UP_TRY(up_comm_dry_create((int)group->config->cp, 0, &group->seat[0].cp, err));
out:
    return rc;
}

// The group of all ranks, and one for each replica where that is another.
static enum up_status open_thread_comms(struct up_group *group, struct up_error *err)
{
    enum up_status rc = UP_OK;
    int cp = (int)group->config->cp, ranks = group->count;
    struct up_comm **comms = calloc((size_t)ranks, sizeof *comms);
    if (!comms) return up_fail(err, UP_FAILED, "out of host memory");
    UP_TRY(up_comm_threads_create(ranks, comms, err));
    for (int r = 0; r < ranks; r++) group->seat[r].world = group->seat[r].cp = comms[r];
    for (int first = 0; cp < ranks && first < ranks; first += cp) {
        UP_TRY(up_comm_threads_create(cp, comms, err));
        for (int r = 0; r < cp; r++) group->seat[first + r].cp = comms[r];
    }
out:
    free(comms);
    return rc;
}

#if UPIPE_CUDA
static enum up_status make_ids(struct up_group *group, struct up_error *err)
{
    enum up_status rc = UP_OK;
    int64_t count = 1 + group->config->dp;
    group->ids = calloc((size_t)count, sizeof *group->ids);
    if (!group->ids) return up_fail(err, UP_FAILED, "out of host memory");
    for (int64_t i = 0; i < count; i++) UP_TRY(up_nccl_id_make(&group->ids[i], err));
out:
    return rc;
}

static bool seat_given_up(void *context)
{
    struct up_error error;
    return up_comm_check(context, &error) != UP_OK;
}

// The threads' groups become NCCL's, all ranks together.
static enum up_status join_nccl(struct up_group *group, int number, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_seat *seat = &group->seat[number];
    bool same = seat->cp == seat->world;
    UP_TRY(up_comm_barrier(seat->world, err));
    struct up_comm *local = seat->world;
    seat->world = NULL;
    if (same) seat->cp = NULL;
    UP_TRY(up_comm_nccl_create(&group->ids[0], local, &seat->world, err));
    if (same) {
        seat->cp = seat->world;
    } else if (up_comm_size(seat->cp) > 1) {
        local = seat->cp;
        seat->cp = NULL;
        int64_t replica = up_config_dp_rank(group->config, number);
        UP_TRY(up_comm_nccl_create(&group->ids[1 + replica], local, &seat->cp, err));
    }
    seat->device->given_up = seat_given_up;
    seat->device->given_up_context = seat->world;
out:
    return rc;
}
#endif

/* --- Life
 * ----------------------------------------------------------------------------------------- */

enum up_status up_group_open(struct up_group *group, const struct up_train_options *options,
                             const struct up_config *config, const struct up_machine *machine,
                             struct up_error *err)
{
    enum up_status rc = UP_OK;
    *group = (struct up_group){.kind = up_train_device(options),
                               .config = config,
                               .deterministic = options->deterministic};
    if (group->kind == UP_DEVICE_CUDA) UP_TRY(no_cuda(config, err));
    int cores = omp_get_max_threads() / (int)up_max(1, up_config_ranks(config));
    group->threads = options->threads ? (int)options->threads : cores > 1 ? cores : 1;
    group->count = group->kind == UP_DEVICE_DRY ? 1 : (int)up_config_ranks(config);
    group->seat = calloc((size_t)group->count, sizeof *group->seat);
    if (!group->seat) UP_TRY(up_fail(err, UP_FAILED, "out of host memory"));
    for (int i = 0; i < group->count; i++) {
        group->seat[i].device = open_device(group, i, options, machine, err);
        if (!group->seat[i].device) UP_TRY(err->status);
    }
    UP_TRY(group->kind == UP_DEVICE_DRY ? open_dry_comms(group, err)
                                        : open_thread_comms(group, err));
#if UPIPE_CUDA
    if (group->kind == UP_DEVICE_CUDA && group->count > 1) UP_TRY(make_ids(group, err));
#endif
out:
    if (rc) up_group_close(group);
    return rc;
}

enum up_status up_group_join(struct up_group *group, int number, struct up_error *err)
{
    up_device_bind(group->seat[number].device);
#if UPIPE_CUDA
    // Beside a GPU the host makes random weights and casts what it loads.
    if (group->kind == UP_DEVICE_CUDA) omp_set_num_threads(group->threads);
    if (group->ids) return join_nccl(group, number, err);
#endif
    (void)err;
    return UP_OK;
}

#if UPIPE_CUDA
// Ranks first make their own calls of libraries, and only then speak with each other: the other way
// round one rank's loading of code would wait for a collective that waits for the rank.
static enum up_status rehearse(struct up_group *group, struct up_rank *rank,
                               const struct up_rehearsal *rehearsal, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct up_seat *seat = &group->seat[rank->rank];
    struct up_cuda *cuda = up_device_cuda_launch(seat->device);
    if (group->deterministic) up_cuda_attention_force_own(cuda, true);
    // A plan that does not fit has no place to rehearse in; the step will find no memory either.
    if (rank->plan) up_rehearse(rank, rehearsal, up_step_scrap(rank));
    UP_TRY(up_cuda_check(seat->device, err));
    UP_TRY(up_comm_barrier(seat->world, err));
    void *scratch = up_cuda_scratch(cuda);
    int64_t bytes = up_cuda_scratch_bytes(cuda);
    struct up_bracket bracket = up_bracket_begin(rank);
    UP_TRY(up_comm_rehearse(rank, seat->world, UP_STREAM_COMM, scratch, bytes, err));
    if (seat->cp != seat->world)
        UP_TRY(up_comm_rehearse(rank, seat->cp, UP_STREAM_COMM, scratch, bytes, err));
    up_bracket_end(rank, &bracket, "nccl");
    UP_TRY(up_cuda_check(seat->device, err));
out:
    return rc;
}
#endif

enum up_status up_group_prepare(struct up_group *group, struct up_rank *rank,
                                const struct up_rehearsal *rehearsal, struct up_error *err)
{
    enum up_status rc = UP_OK;
#if UPIPE_CUDA
    if (group->kind == UP_DEVICE_CUDA) UP_TRY(rehearse(group, rank, rehearsal, err));
#endif
    (void)rehearsal;
    UP_TRY(up_comm_barrier(group->seat[rank->rank].world, err));
out:
    return rc;
}

void up_seat_leave(struct up_seat *seat)
{
    seat->device->given_up = NULL;
    if (seat->cp != seat->world) up_comm_destroy(seat->cp);
    up_comm_destroy(seat->world);
    seat->cp = seat->world = NULL;
}

void up_group_close(struct up_group *group)
{
    for (int i = 0; group->seat && i < group->count; i++) {
        if (group->seat[i].device) up_seat_leave(&group->seat[i]);
        up_device_destroy(group->seat[i].device);
    }
    free(group->seat);
    free(group->ids);
    *group = (struct up_group){0};
}
