/* The processes of one run: how they find each other, meet, and learn that one has failed or died.
 *
 * All are connected by TCP to process 0, which passes on what concerns the others. Nothing of the
 * training's goes this way: NCCL moves the data, and its communicators stand on those of here for
 * barrier, abort and check. A process whose connection ends without its having taken leave has
 * died; then, and when a rank anywhere aborts, all groups of all processes are aborted with one
 * reason. */
#ifndef UP_COMM_PEERS_PEERS_H
#define UP_COMM_PEERS_PEERS_H

#include "comm/comm.h"

struct up_peers;

struct up_peers_place {
    int process, processes;
    int ranks;           // in all: each process has an equal part, in order
    int groups;          // of ranks, that up_peers_comms_create will be asked for
    const char *address; // of process 0: a name, or a number of IPv4 or IPv6
    int port;
    const char *hash; // of what all must agree on: at most 31 characters, none a blank
    const char *job;  // the launcher's word for this run, likewise; NULL or "": none is known
    double limit_s;   // within which all must have come
    volatile const int *stop; // set by someone: the waiting ends; NULL: nobody
    // (optional) called once when all has been aborted, on some thread, with one line
    void (*aborted)(void *context, const char *reason);
    void *context;
};

/* Returns when all processes have come. UP_USAGE where another was given other options, and in a
 * process that came to another run's process 0, to which it does nothing where both know their
 * jobs; UP_FAILED where one does not come, the port is taken, or the wait was ended. Nobody but
 * process 0 need be there first. */
enum up_status up_peers_join(const struct up_peers_place *place, struct up_peers **peers,
                             struct up_error *err);

/* Communicators of a group of ranks [first, first + size) for those of them that are in this
 * process: comms[i] for the i-th. They have barrier, abort and check, and no collectives. `group` <
 * place->groups is the same in all processes of it. To be destroyed before the process leaves. */
enum up_status up_peers_comms_create(struct up_peers *peers, int group, int first, int size,
                                     struct up_comm **comms, struct up_error *err);

/* One thread of each process: returns when all have come here. UP_FAILED with the reason when all
 * has been aborted. */
enum up_status up_peers_meet(struct up_peers *peers, struct up_error *err);
/* The first reason is kept, and told to the other processes. */
void up_peers_abort(struct up_peers *peers, const char *reason);

/* Waits until all take leave, unless all has been aborted, but no longer than place->limit_s. NULL
 * is fine. */
void up_peers_leave(struct up_peers *peers);

#endif
