#include "trainer/group.h"
#include "trainer/forecast/machine.h"

#include <omp.h>
#include <stdlib.h>

#if UPIPE_CUDA
#include "comm/nccl/nccl.h"
#include "device/cuda/cuda.h"
#include "ops/cuda/attention_cuda.h"
#include "ops/rehearsal.h"
#endif

enum { JOIN_LIMIT_S = 60 };

/* --- Devices
 * -------------------------------------------------------------------------------------- */

// The first of this process's GPUs.
static enum up_status find_gpus(const struct up_group *group, const struct up_launch *launch,
                                int *first, struct up_error *err)
{
#if UPIPE_CUDA
    return up_launch_gpus(launch, group->count, up_device_cuda_count(), first, err);
#else
    (void)group;
    (void)launch;
    (void)first;
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

static struct up_device *open_device(const struct up_group *group, int number, int gpu,
                                     const struct up_train_options *options,
                                     const struct up_machine *machine, struct up_error *err)
{
    int threads = options->threads ? (int)options->threads : group->count > 1 ? 1 : 0;
    uint64_t chaos = options->chaos ? (uint64_t)options->chaos + (uint64_t)number * 1000003 : 0;
    switch (group->kind) {
    case UP_DEVICE_CPU:
        return up_device_cpu_create(threads, chaos, err);
    case UP_DEVICE_DRY:
        return up_machine_dry_device(machine, group->config, err);
    case UP_DEVICE_CUDA:
        return cuda_device(gpu, err);
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

// The same with ranks in several processes: what they meet in.
static enum up_status open_peer_comms(struct up_group *group, struct up_error *err)
{
    enum up_status rc = UP_OK;
    int cp = (int)group->config->cp, ranks = (int)up_config_ranks(group->config);
    int end = group->first + group->count;
    struct up_comm **comms = calloc((size_t)group->count, sizeof *comms);
    if (!comms) return up_fail(err, UP_FAILED, "out of host memory");
    UP_TRY(up_peers_comms_create(group->peers, 0, 0, ranks, comms, err));
    for (int i = 0; i < group->count; i++) group->seat[i].world = group->seat[i].cp = comms[i];
    for (int replica = group->first / cp; cp < ranks && replica * cp < end; replica++) {
        int from = (int)up_max(replica * cp, group->first);
        int to = (int)up_min((replica + 1) * cp, end);
        UP_TRY(up_peers_comms_create(group->peers, 1 + replica, replica * cp, cp, comms, err));
        for (int r = from; r < to; r++) group->seat[r - group->first].cp = comms[r - from];
    }
out:
    free(comms);
    return rc;
}

static enum up_status open_comms(struct up_group *group, struct up_error *err)
{
    if (group->kind == UP_DEVICE_DRY) return open_dry_comms(group, err);
    return group->peers ? open_peer_comms(group, err) : open_thread_comms(group, err);
}

static enum up_status join_peers(struct up_group *group, const struct up_train_options *options,
                                 const struct up_group_place *place, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct up_launch *launch = place->launch;
    char hash[UP_LAUNCH_HASH];
    UP_TRY(up_launch_hash(options, group->config, place->steps_done, hash, err));
    struct up_peers_place peers = {.process = launch->process,
                                   .processes = launch->processes,
                                   .ranks = (int)up_config_ranks(group->config),
                                   .groups = 1 + (int)group->config->dp,
                                   .address = launch->address,
                                   .port = launch->port,
                                   .hash = hash,
                                   .job = launch->job,
                                   .limit_s = JOIN_LIMIT_S,
                                   .stop = place->stop,
                                   .aborted = place->aborted,
                                   .context = place->context};
    UP_TRY(up_peers_join(&peers, &group->peers, err));
out:
    return rc;
}

#if UPIPE_CUDA
static enum up_status make_id(struct up_group *group, struct up_error *err)
{
    group->id = calloc(1, sizeof *group->id);
    if (!group->id) return up_fail(err, UP_FAILED, "out of host memory");
    return up_nccl_id_make(group->id, err);
}

static bool seat_given_up(void *context)
{
    const struct up_seat *seat = context;
    struct up_error error;
    return up_comm_check(seat->world, &error) || up_comm_check(seat->cp, &error);
}

// The ranks' groups become NCCL's, all ranks together.
static enum up_status join_nccl(struct up_group *group, struct up_seat *seat, struct up_error *err)
{
    enum up_status rc = UP_OK;
    bool same = seat->cp == seat->world;
    UP_TRY(up_comm_barrier(seat->world, err));
    struct up_comm *local = seat->world;
    seat->world = NULL;
    if (same) seat->cp = NULL;
    UP_TRY(up_comm_nccl_create(group->id, local, &seat->world, err));
    if (same) {
        seat->cp = seat->world;
    } else if (up_comm_size(seat->cp) > 1) {
        local = seat->cp;
        seat->cp = NULL;
        int rank = up_comm_rank(seat->world);
        int replica = (int)up_config_dp_rank(group->config, rank);
        UP_TRY(up_comm_nccl_split(seat->world, replica, local, &seat->cp, err));
    }
    seat->device->given_up = seat_given_up;
    seat->device->given_up_context = seat;
out:
    return rc;
}
#endif

/* --- Life
 * ----------------------------------------------------------------------------------------- */

static enum up_status open_seats(struct up_group *group, const struct up_train_options *options,
                                 const struct up_machine *machine, int gpu, struct up_error *err)
{
    enum up_status rc = UP_OK;
    int cores = omp_get_max_threads() / group->count;
    group->threads = options->threads ? (int)options->threads : cores > 1 ? cores : 1;
    group->seat = calloc((size_t)group->count, sizeof *group->seat);
    if (!group->seat) UP_TRY(up_fail(err, UP_FAILED, "out of host memory"));
    for (int i = 0; i < group->count; i++) {
        group->seat[i].device = open_device(group, i, gpu + i, options, machine, err);
        if (!group->seat[i].device) UP_TRY(err->status);
    }
out:
    return rc;
}

enum up_status up_group_open(struct up_group *group, const struct up_train_options *options,
                             const struct up_config *config, const struct up_machine *machine,
                             const struct up_group_place *place, struct up_error *err)
{
    static const struct up_launch alone = {.processes = 1};
    enum up_status rc = UP_OK;
    const struct up_launch *launch = place ? place->launch : &alone;
    int gpu = 0;
    *group = (struct up_group){.kind = up_train_device(options),
                               .config = config,
                               .deterministic = options->deterministic};
    UP_TRY(up_launch_ranks(launch, options, config, &group->first, &group->count, err));
    if (group->kind == UP_DEVICE_CUDA) UP_TRY(find_gpus(group, launch, &gpu, err));
    if (launch->processes > 1) UP_TRY(join_peers(group, options, place, err));
    UP_TRY(open_seats(group, options, machine, gpu, err));
    UP_TRY(open_comms(group, err));
#if UPIPE_CUDA
    if (group->kind == UP_DEVICE_CUDA && up_config_ranks(config) > 1) UP_TRY(make_id(group, err));
#endif
out:
    if (rc) {
        up_group_abort(group, err->text);
        up_group_close(group);
    }
    return rc;
}

enum up_status up_group_meet(struct up_group *group, struct up_error *err)
{
    return group->peers ? up_peers_meet(group->peers, err) : UP_OK;
}

void up_group_abort(struct up_group *group, const char *reason)
{
    if (group->peers) {
        up_peers_abort(group->peers, reason);
        return;
    }
    for (int i = 0; group->seat && i < group->count; i++) up_seat_abort(&group->seat[i], reason);
}

enum up_status up_group_join(struct up_group *group, struct up_seat *seat, struct up_error *err)
{
    up_device_bind(seat->device);
#if UPIPE_CUDA
    // Beside a GPU the host makes random weights and casts what it loads.
    if (group->kind == UP_DEVICE_CUDA) {
        omp_set_num_threads(group->threads);
        if (group->deterministic)
            up_cuda_attention_force_own(up_device_cuda_launch(seat->device), true);
    }
    if (group->id) return join_nccl(group, seat, err);
#endif
    (void)group;
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
    const struct up_seat *seat = &group->seat[rank->rank - group->first];
    struct up_cuda *cuda = up_device_cuda_launch(seat->device);
    // A plan that does not fit has no place to rehearse in; the step will find no memory either.
    if (rank->plan) {
        void *scrap = up_step_scrap(rank);
        up_rehearse(rank, rehearsal, scrap);
        up_step_scrap_end(rank, scrap);
    }
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
    UP_TRY(up_comm_barrier(group->seat[rank->rank - group->first].world, err));
out:
    return rc;
}

bool up_seat_force_block_rows(struct up_seat *seat, int64_t rows)
{
    if (seat->device->kind != UP_DEVICE_CUDA) return false;
#if UPIPE_CUDA
    up_cuda_attention_force_block_rows(up_device_cuda_launch(seat->device), rows);
#endif
    (void)rows;
    return true;
}

void up_seat_abort(struct up_seat *seat, const char *reason)
{
    if (seat->world) up_comm_abort(seat->world, reason);
    if (seat->cp) up_comm_abort(seat->cp, reason);
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
    struct up_error error;
    // What one frees another may still look at: none goes before all are done.
    up_group_meet(group, &error);
    for (int i = 0; group->seat && i < group->count; i++) {
        if (group->seat[i].device) up_seat_leave(&group->seat[i]);
        up_device_destroy(group->seat[i].device);
    }
    up_peers_leave(group->peers);
    free(group->seat);
    free(group->id);
    *group = (struct up_group){0};
}
