/* Several ranks on one GPU, for tests where there are fewer GPUs than ranks: each rank has its own
 * streams, libraries and memory, as on a GPU of its own, and only NCCL, which wants a GPU for every
 * rank, is left out. In its place: post my buffers and an event on my stream, meet, have the stream
 * wait for the others' events, copy or add from their buffers, and the same again before anybody
 * uses its buffers further. */
#ifndef UP_TESTS_GPU_ONE_GPU_H
#define UP_TESTS_GPU_ONE_GPU_H

#include "comm/comm_impl.h"
#include "device/cuda/cuda.h"
#include "tests/trainer/fixture.h"

struct one_gpu_group {
    int size, users;
    pthread_mutex_t lock; // of users
    // Per rank: what it is at, and that its buffers are filled, its part is summed, it has read
    // all.
    const struct up_collective_args *posted[MAX_RANKS];
    cudaEvent_t filled[MAX_RANKS], summed[MAX_RANKS], read[MAX_RANKS];
};

struct one_gpu_comm {
    struct up_comm base;
    struct one_gpu_group *group;
    struct up_comm *local; // where the threads meet
    cublasHandle_t blas;   // for sums; the device's own is the compute stream's
};

static inline struct one_gpu_comm *one_gpu_of(struct up_comm *comm)
{
    return (struct one_gpu_comm *)comm;
}

/* My stream goes on when those of all ranks have come to this event. False: the group has been
 * given up. */
static inline bool one_gpu_meet(struct one_gpu_comm *comm, struct up_cuda *cuda,
                                cudaEvent_t event[MAX_RANKS])
{
    struct up_error error;
    cudaStream_t stream = up_cuda_stream(cuda);
    up_cuda_try(cuda, cudaEventRecord(event[comm->base.rank], stream), "an event");
    if (up_comm_barrier(comm->local, &error)) return false;
    for (int r = 0; r < comm->base.size; r++)
        up_cuda_try(cuda, cudaStreamWaitEvent(stream, event[r], 0), "waiting for an event");
    return true;
}

static inline void one_gpu_copy(struct up_cuda *cuda, void *to, const void *from, int64_t bytes)
{
    if (bytes > 0 && to != from)
        up_cuda_try(cuda,
                    cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDeviceToDevice,
                                    up_cuda_stream(cuda)),
                    "a copy");
}

/* Elements [first, last) of my buffer become the sum of everybody's. */
static inline void one_gpu_sum(struct one_gpu_comm *comm, struct up_cuda *cuda,
                               const struct up_collective_args *mine, int64_t first, int64_t last)
{
    const float one32 = 1;
    const double one64 = 1;
    cublasHandle_t blas = comm->blas;
    int count = (int)(last - first);
    if (cublasSetStream(blas, up_cuda_stream(cuda))) up_cuda_fail(cuda, "a sum has no stream");
    for (int r = 0; r < comm->base.size; r++) {
        const void *theirs = comm->group->posted[r]->buffer;
        cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
        if (r == comm->base.rank || count <= 0) continue;
        if (mine->dtype == UP_F64)
            status = cublasDaxpy(blas, count, &one64, (const double *)theirs + first, 1,
                                 (double *)mine->buffer + first, 1);
        else
            status = cublasSaxpy(blas, count, &one32, (const float *)theirs + first, 1,
                                 (float *)mine->buffer + first, 1);
        if (status) up_cuda_fail(cuda, "a sum: %s", cublasGetStatusString(status));
    }
}

static inline void one_gpu_all_to_all(struct one_gpu_comm *comm, struct up_cuda *cuda,
                                      const struct up_collective_args *mine)
{
    int64_t size = up_dtype_bytes[mine->dtype], me = comm->base.rank;
    for (int from = 0; from < comm->base.size; from++) {
        const struct up_collective_args *theirs = comm->group->posted[from];
        int64_t at = theirs->exchange.send_at[me], count = theirs->exchange.send_at[me + 1] - at;
        int64_t to = mine->exchange.receive_at[from];
        UP_ASSERT(count == mine->exchange.receive_at[from + 1] - to);
        one_gpu_copy(cuda, (char *)mine->buffer + to * size, (const char *)theirs->send + at * size,
                     count * size);
    }
}

/* Part r, of `share` elements of `count` in all, from rank r's buffer to mine, for all r. */
static inline void one_gpu_gather(struct one_gpu_comm *comm, struct up_cuda *cuda,
                                  const struct up_collective_args *mine, int64_t share,
                                  int64_t count)
{
    int64_t size = up_dtype_bytes[mine->dtype];
    for (int r = 0; r < comm->base.size; r++) {
        int64_t first = up_min(r * share, count), last = up_min((r + 1) * share, count);
        one_gpu_copy(cuda, (char *)mine->buffer + first * size,
                     (const char *)comm->group->posted[r]->buffer + first * size,
                     (last - first) * size);
    }
}

static inline void one_gpu_run(const void *args, struct up_cuda *cuda)
{
    const struct up_collective_args *mine = args;
    struct one_gpu_comm *comm = one_gpu_of(mine->comm);
    struct one_gpu_group *group = comm->group;
    int64_t me = comm->base.rank, size = comm->base.size, count = mine->count;
    int64_t part = up_ceil_div(count, size);
    group->posted[me] = mine;
    if (!one_gpu_meet(comm, cuda, group->filled)) return;
    switch (mine->kind) {
    case UP_ALL_TO_ALL:
        one_gpu_all_to_all(comm, cuda, mine);
        break;
    case UP_ALL_GATHER:
        one_gpu_gather(comm, cuda, mine, count, count * size);
        break;
    case UP_REDUCE_SCATTER:
        one_gpu_sum(comm, cuda, mine, me * count, (me + 1) * count);
        break;
    case UP_ALL_REDUCE: // each a part, which the others read nothing of until it is summed
        one_gpu_sum(comm, cuda, mine, up_min(me * part, count), up_min((me + 1) * part, count));
        if (!one_gpu_meet(comm, cuda, group->summed)) return;
        one_gpu_gather(comm, cuda, mine, part, count);
        break;
    case UP_BROADCAST:
        one_gpu_copy(cuda, mine->buffer, group->posted[mine->root]->buffer,
                     count * up_dtype_bytes[mine->dtype]);
        break;
    }
    one_gpu_meet(comm, cuda, group->read);
}

static inline enum up_status one_gpu_agree(struct up_comm *comm, bool mine, bool *any,
                                           struct up_error *err)
{
    return up_comm_agree(one_gpu_of(comm)->local, mine, any, err);
}

static inline void one_gpu_abort(struct up_comm *comm, const char *reason)
{
    up_comm_abort(one_gpu_of(comm)->local, reason);
}

static inline enum up_status one_gpu_check(struct up_comm *comm, struct up_error *err)
{
    return up_comm_check(one_gpu_of(comm)->local, err);
}

static inline void one_gpu_destroy(struct up_comm *comm)
{
    struct one_gpu_group *group = one_gpu_of(comm)->group;
    up_comm_destroy(one_gpu_of(comm)->local);
    cublasDestroy(one_gpu_of(comm)->blas);
    free(comm);
    pthread_mutex_lock(&group->lock);
    bool last = --group->users == 0;
    pthread_mutex_unlock(&group->lock);
    if (!last) return;
    for (int r = 0; r < group->size; r++) {
        cudaEventDestroy(group->filled[r]);
        cudaEventDestroy(group->summed[r]);
        cudaEventDestroy(group->read[r]);
    }
    pthread_mutex_destroy(&group->lock);
    free(group);
}

static const struct up_comm_ops one_gpu_ops = {.run = {.cuda = one_gpu_run},
                                               .agree = one_gpu_agree,
                                               .abort = one_gpu_abort,
                                               .check = one_gpu_check,
                                               .destroy = one_gpu_destroy};

/* The communicators of a group of `size` ranks on the GPU that is bound. */
static inline void one_gpu_create(int size, struct up_comm **comms)
{
    struct up_error error = {0};
    struct one_gpu_group *group = calloc(1, sizeof *group);
    assert_non_null(group);
    group->size = group->users = size;
    pthread_mutex_init(&group->lock, NULL);
    must(up_comm_threads_create(size, comms, &error));
    for (int r = 0; r < size; r++) {
        struct one_gpu_comm *comm = calloc(1, sizeof *comm);
        assert_non_null(comm);
        *comm = (struct one_gpu_comm){{&one_gpu_ops, size, r}, group, comms[r], NULL};
        assert_int_equal(cublasCreate(&comm->blas), 0);
        comms[r] = &comm->base;
        cudaEvent_t *event[] = {&group->filled[r], &group->summed[r], &group->read[r]};
        for (int i = 0; i < UP_COUNT(event); i++)
            assert_int_equal(cudaEventCreateWithFlags(event[i], cudaEventDisableTiming), 0);
    }
}

/* As bench_open on cuda, with all ranks on the first GPU. */
static inline void bench_open_on_one_gpu(struct bench *bench, const struct up_config *config)
{
    struct up_error error = {0};
    struct up_comm *comms[MAX_RANKS];
    struct up_train_options options = {.device = UP_DEVICE_CUDA};
    int ranks = (int)up_config_ranks(config), cp = (int)config->cp;
    bench_prepare(bench, config, &options);
    struct up_group *group = &bench->group;
    *group = (struct up_group){
        .kind = UP_DEVICE_CUDA, .config = &bench->config, .count = ranks, .threads = 1};
    group->seat = calloc((size_t)ranks, sizeof *group->seat);
    assert_non_null(group->seat);
    for (int r = 0; r < ranks; r++) {
        group->seat[r].device = up_device_cuda_create(0, &error);
        if (!group->seat[r].device) fail_msg("rank %d: %s", r, error.text);
    }
    up_device_bind(group->seat[0].device);
    one_gpu_create(ranks, comms);
    for (int r = 0; r < ranks; r++) group->seat[r].world = group->seat[r].cp = comms[r];
    for (int first = 0; cp < ranks && first < ranks; first += cp) {
        one_gpu_create(cp, comms);
        for (int r = 0; r < cp; r++) group->seat[first + r].cp = comms[r];
    }
    bench_seat(bench, NULL);
}

#endif
