#include "comm/nccl/nccl.h"
#include "comm/comm_impl.h"
#include "device/cuda/cuda.h"

#include <nccl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct nccl_comm {
    struct up_comm base;
    ncclComm_t comm;
    struct up_comm *local;
};

static struct nccl_comm *nccl_of(struct up_comm *comm)
{
    return (struct nccl_comm *)comm;
}

enum up_status up_nccl_id_make(struct up_nccl_id *id, struct up_error *err)
{
    _Static_assert(sizeof(ncclUniqueId) == sizeof id->bytes, "NCCL's id fits");
    ncclUniqueId unique;
    ncclResult_t result = ncclGetUniqueId(&unique);
    if (result) return up_fail(err, UP_FAILED, "NCCL: %s", ncclGetErrorString(result));
    memcpy(id->bytes, &unique, sizeof unique);
    return UP_OK;
}

static ncclDataType_t type_of(enum up_dtype dtype)
{
    switch (dtype) {
    case UP_F32:
        return ncclFloat32;
    case UP_F64:
        return ncclFloat64;
    case UP_BF16:
        return ncclBfloat16;
    case UP_I32:
        return ncclInt32;
    default:
        return ncclUint8;
    }
}

static ncclResult_t all_to_all(const struct up_collective_args *args, ncclComm_t comm,
                               cudaStream_t stream)
{
    int64_t size = up_dtype_bytes[args->dtype];
    const int64_t *send_at = args->exchange.send_at, *receive_at = args->exchange.receive_at;
    ncclResult_t result = ncclGroupStart();
    for (int peer = 0; peer < args->comm->size && !result; peer++) {
        size_t send = (size_t)((send_at[peer + 1] - send_at[peer]) * size);
        size_t receive = (size_t)((receive_at[peer + 1] - receive_at[peer]) * size);
        result = ncclSend((const char *)args->send + send_at[peer] * size, send, ncclUint8, peer,
                          comm, stream);
        if (!result)
            result = ncclRecv((char *)args->buffer + receive_at[peer] * size, receive, ncclUint8,
                              peer, comm, stream);
    }
    ncclResult_t ended = ncclGroupEnd();
    return result ? result : ended;
}

static ncclResult_t start(const struct up_collective_args *args, ncclComm_t comm,
                          cudaStream_t stream)
{
    size_t count = (size_t)args->count;
    ncclDataType_t type = type_of(args->dtype);
    char *buffer = args->buffer;
    char *own = buffer + (int64_t)args->comm->rank * args->count * up_dtype_bytes[args->dtype];
    switch (args->kind) {
    case UP_ALL_TO_ALL:
        return all_to_all(args, comm, stream);
    case UP_ALL_GATHER:
        return ncclAllGather(own, buffer, count, type, comm, stream);
    case UP_REDUCE_SCATTER:
        return ncclReduceScatter(buffer, own, count, type, ncclSum, comm, stream);
    case UP_ALL_REDUCE:
        return ncclAllReduce(buffer, buffer, count, type, ncclSum, comm, stream);
    case UP_BROADCAST:
        return ncclBroadcast(buffer, buffer, count, type, args->root, comm, stream);
    }
    UP_BUG("unknown collective");
}

static void run(const void *pointer, struct up_cuda *cuda)
{
    const struct up_collective_args *args = pointer;
    ncclResult_t result = start(args, nccl_of(args->comm)->comm, up_cuda_stream(cuda));
    if (result) up_cuda_fail(cuda, "NCCL: %s", ncclGetErrorString(result));
}

static enum up_status agree(struct up_comm *comm, bool mine, bool *any, struct up_error *err)
{
    return up_comm_agree(nccl_of(comm)->local, mine, any, err);
}

static void abort_group(struct up_comm *comm, const char *reason)
{
    up_comm_abort(nccl_of(comm)->local, reason);
}

// NCCL notices that another process has died, but not why: who knows is given a second to say it.
static void abort_for(struct up_comm *local, const char *reason)
{
    struct up_error error;
    for (int i = 0; i < 100 && !up_comm_check(local, &error); i++)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    up_comm_abort(local, reason);
}

// An error that NCCL meets later, in its own threads, counts as well.
static enum up_status check(struct up_comm *comm, struct up_error *err)
{
    struct nccl_comm *nccl = nccl_of(comm);
    ncclResult_t result = ncclSuccess;
    if (!ncclCommGetAsyncError(nccl->comm, &result) && result && result != ncclInProgress)
        abort_for(nccl->local, ncclGetErrorString(result));
    return up_comm_check(nccl->local, err);
}

// Of a group that was given up the collectives under way are given up too: they would never end.
static void destroy(struct up_comm *comm)
{
    struct nccl_comm *nccl = nccl_of(comm);
    struct up_error error;
    if (nccl->comm && up_comm_check(nccl->local, &error))
        ncclCommAbort(nccl->comm);
    else if (nccl->comm)
        ncclCommDestroy(nccl->comm);
    up_comm_destroy(nccl->local);
    free(nccl);
}

static const struct up_comm_ops nccl_ops = {
    .run = {.cuda = run}, .agree = agree, .abort = abort_group, .check = check, .destroy = destroy};

// Takes `local`, in any case.
static struct nccl_comm *wrap(struct up_comm *local, struct up_error *err)
{
    struct nccl_comm *nccl = calloc(1, sizeof *nccl);
    if (nccl)
        *nccl =
            (struct nccl_comm){{&nccl_ops, up_comm_size(local), up_comm_rank(local)}, NULL, local};
    else {
        up_comm_destroy(local);
        up_fail(err, UP_FAILED, "out of host memory");
    }
    return nccl;
}

// What NCCL made of it; a communicator that it did not make is none.
static enum up_status finish(struct nccl_comm *nccl, ncclResult_t result, struct up_comm **comm,
                             struct up_error *err)
{
    if (!result) {
        *comm = &nccl->base;
        return UP_OK;
    }
    enum up_status rc = up_comm_check(nccl->local, err); // it may be no more than the consequence
    if (!rc) rc = up_fail(err, UP_FAILED, "NCCL: %s", ncclGetErrorString(result));
    nccl->comm = NULL;
    destroy(&nccl->base);
    return rc;
}

enum up_status up_comm_nccl_create(const struct up_nccl_id *id, struct up_comm *local,
                                   struct up_comm **comm, struct up_error *err)
{
    ncclUniqueId unique;
    struct nccl_comm *nccl = wrap(local, err);
    if (!nccl) return UP_FAILED;
    memcpy(&unique, id->bytes, sizeof unique);
    ncclResult_t result = ncclCommInitRank(&nccl->comm, nccl->base.size, unique, nccl->base.rank);
    return finish(nccl, result, comm, err);
}

enum up_status up_comm_nccl_split(struct up_comm *parent, int color, struct up_comm *local,
                                  struct up_comm **comm, struct up_error *err)
{
    struct nccl_comm *nccl = wrap(local, err);
    if (!nccl) return UP_FAILED;
    ncclResult_t result =
        ncclCommSplit(nccl_of(parent)->comm, color, nccl->base.rank, &nccl->comm, NULL);
    return finish(nccl, result, comm, err);
}
