/* Ranks as threads of this process, each with a GPU: NCCL moves the data, the threads' own group is
 * where they meet and tell each other of failure. */
#ifndef UP_COMM_NCCL_NCCL_H
#define UP_COMM_NCCL_NCCL_H

#include "comm/comm.h"

/* What the ranks of a new group must agree on: made by one of them, given to all. */
struct up_nccl_id {
    char bytes[128];
};
enum up_status up_nccl_id_make(struct up_nccl_id *id, struct up_error *err);

/* Called by every rank of the group on its own thread, with its device bound; returns when all
 * have. `local` is the rank's communicator in the threads' group, and belongs to the new one from
 * now on (even where this fails). */
enum up_status up_comm_nccl_create(const struct up_nccl_id *id, struct up_comm *local,
                                   struct up_comm **comm, struct up_error *err);

#endif
