/* The lifetimes of one step of a run config, for the planner's test and benchmark: a step on the
 * dry device, its events taken by a thread while it runs.
 *
 * Only what is allocated within the step counts. A tensor that is renamed (up_retag) keeps its
 * bytes: all names of one storage are one life. */
#ifndef UP_TESTS_MEM_LIVES_H
#define UP_TESTS_MEM_LIVES_H

#include "mem/plan.h"
#include "trainer/machine.h"
#include "trainer/step.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

struct lives {
    struct up_life *life; // in the order of allocation
    uint64_t *storage;    // of each life; ascending, as storages are numbered in that order
    uint64_t *holder;     // the newest tensor of that storage
    int64_t count, room;
};

struct lives_reader {
    struct up_trace *trace;
    struct lives *lives; // [UP_SPACE_COUNT]
};

static inline void lives_release(struct lives *lives)
{
    free(lives->life);
    free(lives->storage);
    free(lives->holder);
    *lives = (struct lives){0};
}

// realloc that ends the program when memory is short: this is a test's.
static inline void *lives_grow(void *array, int64_t count, size_t size)
{
    void *grown = realloc(array, (size_t)count * size);
    if (!grown) abort();
    return grown;
}

static inline void lives_append(struct lives *lives, const struct up_event *event)
{
    if (lives->count == lives->room) {
        lives->room = up_max(1024, 2 * lives->room);
        lives->life = lives_grow(lives->life, lives->room, sizeof *lives->life);
        lives->storage = lives_grow(lives->storage, lives->room, sizeof *lives->storage);
        lives->holder = lives_grow(lives->holder, lives->room, sizeof *lives->holder);
    }
    int64_t i = lives->count++;
    lives->life[i] = (struct up_life){event->tensor.bytes, (int64_t)event->seq, INT64_MAX};
    lives->storage[i] = lives->holder[i] = event->tensor.storage;
}

// The life of this storage; -1 for one from before the step.
static inline int64_t lives_find(const struct lives *lives, uint64_t storage)
{
    int64_t low = 0, high = lives->count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        *(lives->storage[middle] < storage ? &low : &high) =
            lives->storage[middle] < storage ? middle + 1 : middle;
    }
    return low < lives->count && lives->storage[low] == storage ? low : -1;
}

// A new name comes before the old one goes: the life ends with the newest.
static inline void lives_tell(struct lives *lives, const struct up_event *event)
{
    bool alloc = event->kind == UP_EVENT_ALLOC;
    if (alloc && event->tensor.id == event->tensor.storage) {
        if (event->step >= 0) lives_append(lives, event);
        return;
    }
    int64_t i = lives_find(lives, event->tensor.storage);
    if (i < 0) return;
    if (alloc)
        lives->holder[i] = event->tensor.id;
    else if (lives->holder[i] == event->tensor.id)
        lives->life[i].end = (int64_t)event->seq;
}

static inline void *lives_read(void *context)
{
    struct lives_reader *reader = context;
    struct up_event events[64];
    while (!up_trace_closed(reader->trace)) {
        int taken = up_trace_take(reader->trace, events, UP_COUNT(events));
        for (int i = 0; i < taken; i++)
            if (events[i].kind == UP_EVENT_ALLOC || events[i].kind == UP_EVENT_FREE)
                lives_tell(&reader->lives[events[i].tensor.space], &events[i]);
        if (!taken) sched_yield();
    }
    return NULL;
}

// A step on a rank that is set up and torn down for it.
static inline enum up_status lives_step(const struct up_config *config, struct up_device *device,
                                        struct up_trace *trace, struct up_error *err)
{
    static const struct up_hyper hyper = {
        .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .decay = 0.1, .clip = 1};
    struct up_rank rank;
    struct up_trainer trainer = {0};
    struct up_step_result result;
    enum up_status rc = up_rank_init(&rank, 0, device, trace, NULL, err);
    if (rc) return rc;
    UP_TRY(up_trainer_init(&trainer, &rank, config, err));
    UP_TRY(up_trainer_step(&trainer, 0, config->batch * config->seq, &hyper, &result, err));
out:
    up_trainer_release(&trainer);
    up_rank_release(&rank);
    return rc;
}

/* The lives of the config's step by space; each to be released, on failure as well. */
static inline enum up_status lives_of(const struct up_config *config,
                                      struct lives lives[UP_SPACE_COUNT], struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_machine machine;
    struct up_device *device = NULL;
    struct lives_reader reader = {up_trace_create(0, 1 << 14), lives};
    pthread_t thread;
    for (int space = 0; space < UP_SPACE_COUNT; space++) lives[space] = (struct lives){0};
    UP_TRY(up_config_check(config, err));
    UP_TRY(up_machine_find("generic", &machine, err));
    device = up_device_dry_create(config->as, &machine, err);
    if (!device || !reader.trace) UP_TRY(up_fail(err, UP_FAILED, "out of host memory"));
    if (pthread_create(&thread, NULL, lives_read, &reader))
        UP_TRY(up_fail(err, UP_FAILED, "no thread to read the events"));
    rc = lives_step(config, device, reader.trace, err);
    up_trace_close(reader.trace);
    pthread_join(thread, NULL);
out:
    up_device_destroy(device);
    up_trace_destroy(reader.trace);
    return rc;
}

#endif
