#include "comm/comm_impl.h"

#include <stdlib.h>

static const char *const names[] = {"all_to_all", "all_gather", "reduce_scatter", "all_reduce",
                                    "broadcast"};

int up_comm_size(const struct up_comm *comm)
{
    return comm->size;
}

int up_comm_rank(const struct up_comm *comm)
{
    return comm->rank;
}

// Bytes that this rank sends to others.
static int64_t bytes_sent(const struct up_collective_args *args)
{
    const struct up_comm *comm = args->comm;
    int64_t bytes = args->count * up_dtype_bytes[args->dtype], others = comm->size - 1;
    switch (args->kind) {
    case UP_ALL_TO_ALL: {
        const int64_t *at = args->exchange.send_at;
        int64_t elements = at[comm->size] - at[0] - (at[comm->rank + 1] - at[comm->rank]);
        return elements * up_dtype_bytes[args->dtype];
    }
    case UP_ALL_GATHER:
    case UP_REDUCE_SCATTER:
        return bytes * others;
    // A reduce-scatter and an all-gather of shares.
    case UP_ALL_REDUCE:
        return bytes / comm->size * 2 * others + bytes % comm->size * 2 * others / comm->size;
    case UP_BROADCAST:
        return args->root == comm->rank ? bytes : 0;
    }
    UP_BUG("unknown collective");
}

static void launch(struct up_rank *rank, enum up_stream stream,
                   const struct up_collective_args *args)
{
    if (args->comm->size == 1) return;
    up_launch_collective(rank, stream, names[args->kind], args->comm->ops->run, args, sizeof *args,
                         bytes_sent(args));
}

void up_comm_all_to_all(struct up_rank *rank, struct up_comm *comm, enum up_stream stream,
                        const void *send, void *receive, const struct up_exchange *exchange,
                        enum up_dtype dtype)
{
    UP_ASSERT(comm->size > 1); // alone there is nothing to exchange, and nowhere to put it
    launch(rank, stream,
           &(struct up_collective_args){.comm = comm,
                                        .kind = UP_ALL_TO_ALL,
                                        .send = send,
                                        .buffer = receive,
                                        .exchange = *exchange,
                                        .dtype = dtype});
}

void up_comm_all_gather(struct up_rank *rank, struct up_comm *comm, enum up_stream stream,
                        void *buffer, int64_t share, enum up_dtype dtype)
{
    launch(
        rank, stream,
        &(struct up_collective_args){
            .comm = comm, .kind = UP_ALL_GATHER, .buffer = buffer, .count = share, .dtype = dtype});
}

void up_comm_reduce_scatter(struct up_rank *rank, struct up_comm *comm, enum up_stream stream,
                            float *buffer, int64_t share)
{
    launch(rank, stream,
           &(struct up_collective_args){.comm = comm,
                                        .kind = UP_REDUCE_SCATTER,
                                        .buffer = buffer,
                                        .count = share,
                                        .dtype = UP_F32});
}

void up_comm_all_reduce(struct up_rank *rank, struct up_comm *comm, enum up_stream stream,
                        void *buffer, int64_t count, enum up_dtype dtype)
{
    launch(
        rank, stream,
        &(struct up_collective_args){
            .comm = comm, .kind = UP_ALL_REDUCE, .buffer = buffer, .count = count, .dtype = dtype});
}

void up_comm_broadcast(struct up_rank *rank, struct up_comm *comm, enum up_stream stream,
                       void *buffer, int64_t count, enum up_dtype dtype, int root)
{
    launch(rank, stream,
           &(struct up_collective_args){.comm = comm,
                                        .kind = UP_BROADCAST,
                                        .buffer = buffer,
                                        .count = count,
                                        .dtype = dtype,
                                        .root = root});
}

// In the first half of the buffer, and for what is received the second.
static void rehearse_all(struct up_rank *rank, struct up_comm *comm, enum up_stream stream,
                         char *buffer, int64_t bytes, int64_t *at)
{
    static const struct up_cost nothing = {.class = UP_COST_COLLECTIVE};
    int64_t half = bytes / 2 / 8 * 8, share = half / 8 / comm->size;
    for (int peer = 0; peer <= comm->size; peer++) at[peer] = peer * share;
    for (int kind = 0; kind < UP_COUNT(names); kind++) {
        struct up_collective_args args = {.comm = comm,
                                          .kind = (enum up_collective)kind,
                                          .send = buffer + half,
                                          .buffer = buffer,
                                          .count = share,
                                          .exchange = {at, at},
                                          .dtype = UP_F64};
        rank->device->ops->launch(rank->device, stream, comm->ops->run, &args, sizeof args,
                                  &nothing);
    }
    up_stream_synchronize(rank, stream); // `at` is read until then
}

enum up_status up_comm_rehearse(struct up_rank *rank, struct up_comm *comm, enum up_stream stream,
                                void *buffer, int64_t bytes, struct up_error *err)
{
    int64_t few = 256 * (int64_t)comm->size;
    if (comm->size == 1) return UP_OK;
    UP_ASSERT(bytes >= few);
    int64_t *at = calloc((size_t)comm->size + 1, sizeof *at);
    if (!at) return up_fail(err, UP_FAILED, "out of host memory");
    rehearse_all(rank, comm, stream, buffer, few, at);
    rehearse_all(rank, comm, stream, buffer, bytes, at);
    free(at);
    return up_comm_check(comm, err);
}

enum up_status up_comm_barrier(struct up_comm *comm, struct up_error *err)
{
    bool any;
    return comm->ops->agree(comm, false, &any, err);
}

enum up_status up_comm_agree(struct up_comm *comm, bool mine, bool *any, struct up_error *err)
{
    return comm->ops->agree(comm, mine, any, err);
}

void up_comm_abort(struct up_comm *comm, const char *reason)
{
    comm->ops->abort(comm, reason);
}

enum up_status up_comm_check(struct up_comm *comm, struct up_error *err)
{
    return comm->ops->check(comm, err);
}

void up_comm_destroy(struct up_comm *comm)
{
    if (comm) comm->ops->destroy(comm);
}
