/* Ranks with a GPU each, threads of one process or of several: NCCL moves the data; the threads'
 * own group, or the processes' (comm/peers), is where they meet and tell each other of failure. */
#ifndef UP_COMM_NCCL_NCCL_H
#define UP_COMM_NCCL_NCCL_H

#include "comm/comm.h"

/* What the ranks of a new group must agree on: made by one of them, given to all of its process. In
 * several processes NCCL_COMM_ID says it, an address with a port at which rank 0 is to be met: set
 * alike in all of them, before the first call of NCCL. */
struct up_nccl_id {
    char bytes[128];
};
enum up_status up_nccl_id_make(struct up_nccl_id *id, struct up_error *err);

/* Called by every rank of the group on its own thread, with its device bound; returns when all
 * have. `local` is the rank's communicator of the same group elsewhere, and belongs to the new one
 * from now on (even where this fails). */
enum up_status up_comm_nccl_create(const struct up_nccl_id *id, struct up_comm *local,
                                   struct up_comm **comm, struct up_error *err);

/* A part of such a group: the ranks that give the same `color`, from 0; `local` as above. Called by
 * every rank of `parent`, which is destroyed after its parts. */
enum up_status up_comm_nccl_split(struct up_comm *parent, int color, struct up_comm *local,
                                  struct up_comm **comm, struct up_error *err);

#endif
