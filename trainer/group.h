/* The ranks of a run that are in this process: a device each, and the communicators between them.
 */
#ifndef UP_TRAINER_GROUP_H
#define UP_TRAINER_GROUP_H

#include "comm/comm.h"
#include "comm/peers/peers.h"
#include "trainer/launch.h"

struct up_nccl_id;

/* One rank's place. */
struct up_seat {
    struct up_device *device;
    struct up_comm *world; // all ranks
    struct up_comm *cp;    // those that share its sequences; `world` where that is all
};

struct up_group {
    int first, count;     // ranks that exist here, by their numbers among all; one on dry
    struct up_seat *seat; // per rank that exists here: number - first
    enum up_device_kind kind;
    const struct up_config *config;
    bool deterministic;     // cuda: only kernels whose results do not vary
    int threads;            // cuda: of the host, that each rank may use
    struct up_nccl_id *id;  // cuda: what the ranks agree on; NULL for one rank
    struct up_peers *peers; // NULL: this process is all there is
};

/* How this process stands among those of the run. */
struct up_group_place {
    const struct up_launch *launch;
    int64_t steps_done;       // before this run
    volatile const int *stop; // ends the wait for the others
    // called once, on some thread, when a process has given up or died, this one or another
    void (*aborted)(void *context, const char *reason);
    void *context;
};

/* On the run's thread; with several processes returns when all are there. `place` NULL: one.
 * UP_USAGE for a kind of device that is not to be had, and for processes that do not fit together.
 */
enum up_status up_group_open(struct up_group *group, const struct up_train_options *options,
                             const struct up_config *config, const struct up_machine *machine,
                             const struct up_group_place *place, struct up_error *err);
/* Returns when all processes have come here; UP_FAILED when one has given up. */
enum up_status up_group_meet(struct up_group *group, struct up_error *err);
/* Ends all ranks of the run, those of other processes too. */
void up_group_abort(struct up_group *group, const char *reason);
/* On the rank's own thread, before all else: makes the device the thread's and joins the others. */
enum up_status up_group_join(struct up_group *group, struct up_seat *seat, struct up_error *err);
/* On the rank's own thread, before its first step and with its plan in use: what libraries build,
 * load or connect at first use, they do here; then all ranks meet. After it nothing is built,
 * loaded or allocated, so that no rank waits for another's collectives and for itself at once.
 * `rehearsal` is the plan's. */
enum up_status up_group_prepare(struct up_group *group, struct up_rank *rank,
                                const struct up_rehearsal *rehearsal, struct up_error *err);
/* Forward attention of a cuda seat takes so many query rows at a time (0: as it chooses itself);
 * false on other devices, which do not cut rows. */
bool up_seat_force_block_rows(struct up_seat *seat, int64_t rows);
/* Nobody is to wait for this rank any more. */
void up_seat_abort(struct up_seat *seat, const char *reason);
/* Gives up the seat's communicators; of a group that was aborted, what is under way. */
void up_seat_leave(struct up_seat *seat);
void up_group_close(struct up_group *group);

#endif
