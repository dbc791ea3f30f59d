/* CUPTI as a source of what GPUs did: their kernels, copies and fills, and the driver's
 * allocations and pools.
 *
 * CUPTI is looked for at run time. Whatever it refuses (it is not installed, another tool has it,
 * it lacks a privilege) is told to the trace as one diagnostic, and the run goes on without. One
 * watcher at a time: CUPTI's buffers know of no other. */
#ifndef UP_PROFILER_CUDA_WATCHER_H
#define UP_PROFILER_CUDA_WATCHER_H

#include "mem/mem.h"
#include "profiler/recorder.h"

struct up_watcher;

/* Instead of ranks of ours: a program that knows nothing of upipe. */
struct up_watcher_guest {
    void *context;
    // On any thread, which is about to give its GPU work or to ask for memory: for whom.
    void (*who)(void *context, struct up_mark *mark);
    // On the recorder's thread: memory that was taken or given back, within a range (0: none).
    void (*seen)(void *context, const struct up_activity *activity, uint64_t range_id);
    // After all that has been collected: `last`, or more is to come.
    void (*told)(void *context, struct up_recorder *recorder, bool last);
};

struct up_watcher_options {
    bool kernels; // also when work ran, not only memory
    int buffers;  // of 2 MiB, that CUPTI may fill before it drops records; 0: 128
    const struct up_watcher_guest *guest; // copied; NULL: the ranks are ours
};
/* Before the first CUDA context of the process. NULL when memory is short; a watcher that got
 * nothing from CUPTI is one all the same. */
struct up_watcher *up_watcher_create(const struct up_watcher_options *options);

/* GPU `index` is rank `rank`'s, whose device is made. Before the recorder starts. */
void up_watcher_add(struct up_watcher *watcher, int index, int rank, struct up_device *device);

/* Once devices are made, before ranks start: takes memory once (not a guest's) and looks whether
 * that is seen, then gives the recorder all it sees. UP_FAILED when memory is short. */
enum up_status up_watcher_attach(struct up_watcher *watcher, struct up_recorder *recorder,
                                 struct up_error *err);

/* On the rank's thread: what it gives its device from now on is known to be for what the rank is
 * at. `rank` must stay until the watcher is destroyed, or is bound to NULL. */
void up_watcher_bind(struct up_watcher *watcher, const struct up_rank *rank);

/* After the recorder has finished, or without one. Threads may still use CUDA. NULL is fine. */
void up_watcher_destroy(struct up_watcher *watcher);

/* In a child that was forked: the watcher is the parent's. Nobody would read what CUPTI is lent
 * here, and a lock may have stayed behind with a thread of the parent's. */
void up_watcher_forget(void);

#endif
