#include "trainer/forecast/forecaster.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_THREADS = 4 };

// One config's forecast, at the deepest that was asked for.
struct entry {
    struct up_config config;
    char hash[17];
    enum up_forecast_depth wanted;
    bool known;
    enum up_status status;
    struct up_error error;
    struct up_forecast forecast;
    struct entry *next;
};

struct up_forecaster {
    struct up_machine machine;
    volatile const int *stop; // NULL: nobody stops it
    int threads;
    struct entry *entries;
};

struct up_forecaster *up_forecaster_create(const struct up_machine *machine, int threads)
{
    struct up_forecaster *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    made->machine = *machine;
    int64_t cores = sysconf(_SC_NPROCESSORS_ONLN);
    made->threads = (int)up_max(1, up_min(threads ? threads : cores, MAX_THREADS));
    return made;
}

void up_forecaster_destroy(struct up_forecaster *forecaster)
{
    if (!forecaster) return;
    while (forecaster->entries) {
        struct entry *next = forecaster->entries->next;
        free(forecaster->entries);
        forecaster->entries = next;
    }
    free(forecaster);
}

void up_forecaster_stop_at(struct up_forecaster *forecaster, volatile const int *stop)
{
    forecaster->stop = stop;
}

const struct up_machine *up_forecaster_machine(const struct up_forecaster *forecaster)
{
    return &forecaster->machine;
}

static enum up_status find_entry(struct up_forecaster *forecaster, const struct up_config *config,
                                 struct entry **found, struct up_error *err)
{
    char hash[17];
    if (!up_config_hash(config, hash)) return up_fail(err, UP_FAILED, "out of host memory");
    struct entry *entry = forecaster->entries;
    while (entry && strcmp(entry->hash, hash) != 0) entry = entry->next;
    if (!entry) {
        entry = calloc(1, sizeof *entry);
        if (!entry) return up_fail(err, UP_FAILED, "out of host memory");
        entry->config = *config;
        memcpy(entry->hash, hash, sizeof hash);
        entry->next = forecaster->entries;
        forecaster->entries = entry;
    }
    *found = entry;
    return UP_OK;
}

/* --- Several at a time ---------------------------------------------------------------------------
 */

struct work {
    const struct up_forecaster *forecaster;
    struct entry **entries;
    int count;
    atomic_int next;
};

// A shallower forecast that the entry has stays where a deeper one fails.
static void make(const struct up_forecaster *forecaster, struct entry *entry)
{
    struct up_forecast made;
    entry->status = up_forecast_make(&entry->config, &forecaster->machine, entry->wanted,
                                     forecaster->stop, &made, &entry->error);
    if (entry->status) return;
    entry->forecast = made;
    entry->known = true;
}

static void *run(void *argument)
{
    struct work *work = argument;
    for (;;) {
        int i = atomic_fetch_add(&work->next, 1);
        if (i >= work->count) return NULL;
        make(work->forecaster, work->entries[i]);
    }
}

// Threads that cannot be had are done without.
static void run_all(struct up_forecaster *forecaster, struct work *work)
{
    pthread_t thread[MAX_THREADS];
    int started = 0, wanted = (int)up_min(forecaster->threads, work->count) - 1;
    while (started < wanted && !pthread_create(&thread[started], NULL, run, work)) started++;
    run(work);
    for (int i = 0; i < started; i++) pthread_join(thread[i], NULL);
}

static bool listed(struct entry *const *entries, int count, const struct entry *entry)
{
    for (int i = 0; i < count; i++)
        if (entries[i] == entry) return true;
    return false;
}

enum up_status up_forecaster_ask_all(struct up_forecaster *forecaster,
                                     struct up_candidate *const candidates[], int count,
                                     enum up_forecast_depth depth, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct work work = {.forecaster = forecaster};
    struct entry **all = calloc(2 * (size_t)count + 1, sizeof *all);
    if (!all) return up_fail(err, UP_FAILED, "out of host memory");
    work.entries = all + count;
    for (int i = 0; i < count; i++) {
        UP_TRY(find_entry(forecaster, &candidates[i]->config, &all[i], err));
        struct entry *entry = all[i];
        bool deep = entry->known && entry->forecast.depth >= depth;
        if (deep) entry->status = UP_OK; // whatever came of a deeper one
        if (deep || listed(work.entries, work.count, entry)) continue;
        entry->wanted = depth;
        work.entries[work.count++] = entry;
    }
    run_all(forecaster, &work);
    for (int i = 0; i < count; i++) {
        if (all[i]->status) *err = all[i]->error;
        UP_TRY(all[i]->status);
        candidates[i]->forecast = &all[i]->forecast;
    }
out:
    free(all);
    return rc;
}

enum up_status up_forecaster_ask(struct up_forecaster *forecaster, const struct up_config *config,
                                 enum up_forecast_depth depth, const struct up_forecast **answer,
                                 struct up_error *err)
{
    struct up_candidate candidate = {.config = *config}, *one = &candidate;
    enum up_status rc = up_forecaster_ask_all(forecaster, &one, 1, depth, err);
    *answer = candidate.forecast;
    return rc;
}
