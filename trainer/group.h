/* The ranks of a run that are in this process: a device each, and the communicators between them.
 */
#ifndef UP_TRAINER_GROUP_H
#define UP_TRAINER_GROUP_H

#include "comm/comm.h"
#include "trainer/options.h"

struct up_nccl_id;

/* One rank's place. */
struct up_seat {
    struct up_device *device;
    struct up_comm *world; // all ranks
    struct up_comm *cp;    // those that share its sequences; `world` where that is all
};

struct up_group {
    int count; // ranks that exist here: one on dry
    struct up_seat *seat;
    enum up_device_kind kind;
    const struct up_config *config;
    bool deterministic;     // cuda: only kernels whose results do not vary
    int threads;            // cuda: of the host, that each rank may use
    struct up_nccl_id *ids; // cuda: of the world, then of each replica
};

/* On the run's thread. UP_USAGE for a kind of device that is not to be had. */
enum up_status up_group_open(struct up_group *group, const struct up_train_options *options,
                             const struct up_config *config, const struct up_machine *machine,
                             struct up_error *err);
/* On the rank's own thread, before all else: makes the device the thread's and joins the others. */
enum up_status up_group_join(struct up_group *group, int number, struct up_error *err);
/* On the rank's own thread, before its first step and with its plan in use: what libraries build,
 * load or connect at first use, they do here; then all ranks meet. After it nothing is built,
 * loaded or allocated, so that no rank waits for another's collectives and for itself at once.
 * `rehearsal` is the plan's. */
enum up_status up_group_prepare(struct up_group *group, struct up_rank *rank,
                                const struct up_rehearsal *rehearsal, struct up_error *err);
/* Forward attention of a cuda seat takes so many query rows at a time (0: as it chooses itself);
 * false on other devices, which do not cut rows. */
bool up_seat_force_block_rows(struct up_seat *seat, int64_t rows);
/* Gives up the seat's communicators; of a group that was aborted, what is under way. */
void up_seat_leave(struct up_seat *seat);
void up_group_close(struct up_group *group);

#endif
