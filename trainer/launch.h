/* Which of a run's processes this one is, as torchrun, mpirun or srun tell it in the environment.
 *
 *   torchrun   RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT
 *   Open MPI   OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK
 *   SLURM      SLURM_PROCID SLURM_NTASKS SLURM_LOCALID, in a job step (srun) alone: a batch script
 *              has them as well, and is one process
 *
 * The first of them that is there counts. MASTER_ADDR and MASTER_PORT say for all three where
 * process 0 is to be met; else it is this node where all processes are here, and SLURM's first
 * node; port 29500. From that port upwards: the launcher's own, NCCL's, and src/comm/peers'.
 *
 * Two runs that come to the same port are told apart by what the launcher calls them:
 * TORCHELASTIC_RUN_ID, PMIX_NAMESPACE (mpirun), SLURM_JOB_ID with SLURM_STEP_ID. */
#ifndef UP_TRAINER_LAUNCH_H
#define UP_TRAINER_LAUNCH_H

#include "trainer/options/options.h"

enum { UP_LAUNCH_HASH = 17 };

struct up_launch {
    int process, processes;   // 0 of 1: alone, and what follows means nothing
    int local;                // which of those on this node
    int here;                 // how many there are on it: all, where nobody tells
    const char *size_name;    // the variable that says how many there are
    char address[256];        // of process 0's node: a name, or a number of IPv4 or IPv6
    int nccl_port, port;      // on it: where NCCL's ranks meet, and where upipe's processes do
    char nccl_id[300];        // the two as NCCL_COMM_ID wants them
    char job[UP_LAUNCH_HASH]; // hash of the launcher's word for this run; "": it has none
};

/* The value of a variable; NULL where it is not set. */
typedef const char *up_getenv(void *context, const char *name);
const char *up_launch_getenv(void *unused, const char *name); // the process's own environment

/* UP_USAGE with one line for what is malformed or contradicts itself; of a place among the
 * processes that is not known *launch has one process. */
enum up_status up_launch_find(up_getenv *get, void *context, struct up_launch *launch,
                              struct up_error *err);

/* The ranks of this process: [*first, *first + *count) of the run's. UP_USAGE where they cannot be
 * shared out, or would not be trained together: only cuda takes several processes. */
enum up_status up_launch_ranks(const struct up_launch *launch,
                               const struct up_train_options *options,
                               const struct up_config *config, int *first, int *count,
                               struct up_error *err);

/* The first of `count` GPUs that are this process's among the `visible`. UP_USAGE if there are too
 * few. */
enum up_status up_launch_gpus(const struct up_launch *launch, int count, int visible, int *first,
                              struct up_error *err);

/* What all processes of a run must have been given alike, as a hash: the config and the options,
 * but for paths, which a node may have of its own, and the steps done before. */
enum up_status up_launch_hash(const struct up_train_options *options,
                              const struct up_config *config, int64_t steps_done,
                              char out[UP_LAUNCH_HASH], struct up_error *err);

/* "run.db" becomes "run.1.db" in process 1 of several. For free(); NULL when memory is short. */
char *up_launch_trace_path(const struct up_launch *launch, const char *path);

#endif
