/* Collective operations between ranks: one communicator per rank and group.
 *
 *   threads   ranks are threads of this process; they meet in shared memory
 *   nccl      a GPU each, in one process or several (comm/nccl/nccl.h)
 *   dry       arithmetic only: the ranks other than this one do not exist
 *
 * Every collective is work on a stream: all ranks of the group give the same collectives in the
 * same order, and each returns at once (or, where streams run work at once, when it is done).
 * Buffers are read and written until that work is done. Sums are formed in rank order, in fp32 or
 * fp64, so every rank gets the same bits whatever the timing.
 *
 * A rank that fails tells its group (up_comm_abort); ranks that wait for it, or will, then go on at
 * once with buffers of no meaning, and up_comm_check says why.
 */
#ifndef UP_COMM_COMM_H
#define UP_COMM_COMM_H

#include "mem/mem.h"

struct up_comm;

/* The communicators of a new group of `size` threads, comms[i] for its rank i. All of them must be
 * destroyed; the last one takes the group along. */
enum up_status up_comm_threads_create(int size, struct up_comm **comms, struct up_error *err);
/* A group of `size` in which only `rank` exists. */
enum up_status up_comm_dry_create(int size, int rank, struct up_comm **comm, struct up_error *err);
void up_comm_destroy(struct up_comm *comm); // NULL is fine

int up_comm_size(const struct up_comm *comm);
int up_comm_rank(const struct up_comm *comm);

/* Element offsets of an all-to-all: what goes to rank i is [send_at[i], send_at[i + 1]) of `send`,
 * what comes from it goes to [receive_at[i], receive_at[i + 1]) of `receive`. Both arrays have size
 * + 1 entries, and must stay as they are until the work is done. */
struct up_exchange {
    const int64_t *send_at, *receive_at;
};

void up_comm_all_to_all(struct up_rank *rank, struct up_comm *comm, enum up_stream stream,
                        const void *send, void *receive, const struct up_exchange *exchange,
                        enum up_dtype dtype);

/* buffer [size, share]: each rank's own part is there before, all parts after. */
void up_comm_all_gather(struct up_rank *rank, struct up_comm *comm, enum up_stream stream,
                        void *buffer, int64_t share, enum up_dtype dtype);

/* buffer [size, share], fp32: part `rank` becomes the sum over all ranks; the rest loses its
 * meaning. */
void up_comm_reduce_scatter(struct up_rank *rank, struct up_comm *comm, enum up_stream stream,
                            float *buffer, int64_t share);

/* buffer [count], fp32 or fp64: becomes the sum over all ranks. */
void up_comm_all_reduce(struct up_rank *rank, struct up_comm *comm, enum up_stream stream,
                        void *buffer, int64_t count, enum up_dtype dtype);

/* buffer [count]: becomes that of rank `root`. */
void up_comm_broadcast(struct up_rank *rank, struct up_comm *comm, enum up_stream stream,
                       void *buffer, int64_t count, enum up_dtype dtype, int root);

/* Each kind of collective once with a few bytes and once with nearly all of `buffer`, without
 * leaving a trace: NCCL connects ranks, and takes memory for it, when they first speak. All ranks
 * of the group at once, with equal `bytes` of device memory, at least 256 a rank, whose contents
 * are lost. The host waits. UP_FAILED when host memory is short. */
enum up_status up_comm_rehearse(struct up_rank *rank, struct up_comm *comm, enum up_stream stream,
                                void *buffer, int64_t bytes, struct up_error *err);

/* On the host: returns when every rank has come here. UP_FAILED when the group has been aborted. */
enum up_status up_comm_barrier(struct up_comm *comm, struct up_error *err);
/* A barrier with a question: *any, the same for all, says whether one of them came with `mine`. */
enum up_status up_comm_agree(struct up_comm *comm, bool mine, bool *any, struct up_error *err);

/* The first reason given is kept. */
void up_comm_abort(struct up_comm *comm, const char *reason);
/* UP_FAILED with the reason when the group has been aborted. */
enum up_status up_comm_check(struct up_comm *comm, struct up_error *err);

#endif
