#include "trainer/watch.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct up_watch {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t stopped;
    bool stop;
    atomic_bool paused;
    _Atomic uint64_t *const *counters;
    int first, count; // ranks
    double limit_s;
    void (*hung)(void *context, const char *reason);
    void *context;
};

// What the counters say together, and the least of those still counting.
static uint64_t sum_of(const struct up_watch *watch, uint64_t *least)
{
    uint64_t sum = 0;
    *least = UP_WATCH_DONE;
    for (int i = 0; i < watch->count; i++) {
        uint64_t value = atomic_load(watch->counters[i]);
        sum += value;
        if (value < *least) *least = value;
    }
    return sum;
}

static void tell(const struct up_watch *watch, uint64_t least, double seconds)
{
    char ranks[256] = "", text[512];
    int listed = 0;
    for (int i = 0; i < watch->count && listed < 16; i++)
        if (atomic_load(watch->counters[i]) == least) {
            size_t used = strlen(ranks);
            snprintf(ranks + used, sizeof ranks - used, "%s%d", listed++ ? ", " : "",
                     watch->first + i);
        }
    snprintf(text, sizeof text,
             "hung: no rank has got on for %.0f s, five times what the longest layer should take; "
             "furthest "
             "behind: rank %s",
             seconds, ranks);
    watch->hung(watch->context, text);
}

// Looks ten times within the limit.
static bool pause_or_stop(struct up_watch *watch)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    int64_t ns = until.tv_nsec + (int64_t)(watch->limit_s * 1e8);
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    pthread_mutex_lock(&watch->lock);
    if (!watch->stop) pthread_cond_timedwait(&watch->stopped, &watch->lock, &until);
    bool stop = watch->stop;
    pthread_mutex_unlock(&watch->lock);
    return stop;
}

static void *run(void *argument)
{
    struct up_watch *watch = argument;
    uint64_t least, before = sum_of(watch, &least);
    int64_t since = up_clock_ns();
    while (!pause_or_stop(watch)) {
        uint64_t now = sum_of(watch, &least);
        if (now != before || least == UP_WATCH_DONE || atomic_load(&watch->paused)) {
            before = now;
            since = up_clock_ns();
            continue;
        }
        double seconds = (double)(up_clock_ns() - since) / 1e9;
        if (seconds < watch->limit_s) continue;
        tell(watch, least, seconds);
        break;
    }
    return NULL;
}

struct up_watch *up_watch_start(_Atomic uint64_t *const *counters, int first, int count,
                                double limit_s, void (*hung)(void *context, const char *reason),
                                void *context, struct up_error *err)
{
    struct up_watch *watch = calloc(1, sizeof *watch);
    if (watch) {
        *watch = (struct up_watch){.counters = counters,
                                   .first = first,
                                   .count = count,
                                   .limit_s = limit_s,
                                   .hung = hung,
                                   .context = context};
        pthread_mutex_init(&watch->lock, NULL);
        pthread_cond_init(&watch->stopped, NULL);
        if (!pthread_create(&watch->thread, NULL, run, watch)) return watch;
    }
    free(watch);
    up_fail(err, UP_FAILED, "cannot start the thread that watches for hangs");
    return NULL;
}

void up_watch_pause(struct up_watch *watch, bool paused)
{
    if (watch) atomic_store(&watch->paused, paused);
}

void up_watch_stop(struct up_watch *watch)
{
    if (!watch) return;
    pthread_mutex_lock(&watch->lock);
    watch->stop = true;
    pthread_cond_signal(&watch->stopped);
    pthread_mutex_unlock(&watch->lock);
    pthread_join(watch->thread, NULL);
    pthread_cond_destroy(&watch->stopped);
    pthread_mutex_destroy(&watch->lock);
    free(watch);
}
