/* The recorder's thread: takes from all rings, passes on what is to be kept, commits, and samples
 * the process' memory. */
#define _GNU_SOURCE // gethostname
#include "profiler/recorder.h"
#include "profiler/steps_impl.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    RING_EVENTS = 1 << 15,
    BATCH_EVENTS = 512, // taken from a ring at a time, so that no rank waits long for its turn
    STACK_BYTES = 512 << 10,
    // SQLite: its page cache (writer.c's CACHE_KIB) and as much again for the sort behind an index;
    // statements, schema, lookaside and the WAL's index.
    SQLITE_BYTES = (2 * 2048 + 2048) << 10,
    NAP_NS = 2000000,
};
static const int64_t commit_interval_ns = 100000000, sample_interval_ns = 100000000;

struct source {
    struct up_trace *trace;
    struct up_step_log log;
    int64_t last_ns, seen_ns;  // the newest event's moment, and ours when it was taken
    int64_t device_used_bytes; // as last told; -1: not yet
};

struct up_recorder {
    struct up_store *store;
    struct up_span span;
    struct source *sources; // one a rank
    int source_count;
    bool started, abandoned;
    pthread_t thread;
    int64_t committed_ns, sampled_ns;
    int64_t cpu_ns; // the thread's, once it has ended
    struct up_event batch[BATCH_EVENTS];
};

// --- The thread --------------------------------------------------------------------------------

static int64_t resident_bytes(void)
{
    char text[128] = "";
    long long total = 0, resident = -1;
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0 || sscanf(text, "%lld %lld", &total, &resident) != 2) return -1;
    return resident * sysconf(_SC_PAGESIZE);
}

// On the device's clock, as far as the newest event tells it.
static void sample(struct up_recorder *recorder)
{
    int64_t now = up_clock_ns(), host = resident_bytes();
    recorder->sampled_ns = now;
    for (int i = 0; i < recorder->source_count; i++) {
        const struct source *source = &recorder->sources[i];
        up_store_usage(recorder->store, up_trace_rank(source->trace),
                       source->last_ns + now - source->seen_ns, source->device_used_bytes, host);
    }
}

static void commit(struct up_recorder *recorder)
{
    up_store_commit(recorder->store);
    recorder->committed_ns = up_clock_ns();
}

static void note(struct source *source, const struct up_event *event, int64_t now)
{
    source->last_ns = up_max(source->last_ns, event->ns);
    source->seen_ns = now;
    if (event->kind == UP_EVENT_USAGE) source->device_used_bytes = event->usage.device_used_bytes;
}

// The number of events that were there.
static int drain(struct up_recorder *recorder)
{
    int sum = 0;
    for (int i = 0; i < recorder->source_count; i++) {
        struct source *source = &recorder->sources[i];
        int taken = up_trace_take(source->trace, recorder->batch, BATCH_EVENTS);
        int64_t now = up_clock_ns();
        for (int j = 0; j < taken; j++) {
            up_step_log_take(&source->log, &recorder->batch[j]);
            note(source, &recorder->batch[j], now);
        }
        sum += taken;
    }
    return sum;
}

static bool all_closed(const struct up_recorder *recorder)
{
    for (int i = 0; i < recorder->source_count; i++)
        if (!up_trace_closed(recorder->sources[i].trace)) return false;
    return true;
}

// Once the disk fails no rank is to wait for it. What still comes is taken and forgotten.
static void abandon_if_failed(struct up_recorder *recorder)
{
    if (recorder->abandoned || !up_store_failed(recorder->store)) return;
    recorder->abandoned = true;
    for (int i = 0; i < recorder->source_count; i++) up_trace_abandon(recorder->sources[i].trace);
}

static void keep_time(struct up_recorder *recorder)
{
    int64_t now = up_clock_ns();
    if (now - recorder->sampled_ns >= sample_interval_ns) sample(recorder);
    if (!up_store_pending(recorder->store))
        recorder->committed_ns = now;
    else if (now - recorder->committed_ns >= commit_interval_ns)
        commit(recorder);
}

static void end_logs(struct up_recorder *recorder)
{
    for (int i = 0; i < recorder->source_count; i++) up_step_log_end(&recorder->sources[i].log);
    sample(recorder);
    commit(recorder);
}

static void *record(void *argument)
{
    struct up_recorder *recorder = argument;
    struct timespec cpu;
    sample(recorder);
    for (;;) {
        bool closed = all_closed(recorder);
        int taken = drain(recorder);
        if (closed && !taken) break;
        abandon_if_failed(recorder);
        keep_time(recorder);
        if (!taken) nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    }
    end_logs(recorder);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &cpu);
    recorder->cpu_ns = (int64_t)cpu.tv_sec * 1000000000 + cpu.tv_nsec;
    return NULL;
}

// --- The life of a recorder --------------------------------------------------------------------

static void release(struct up_recorder *recorder)
{
    for (int i = 0; i < recorder->source_count; i++) {
        up_step_log_release(&recorder->sources[i].log);
        up_trace_destroy(recorder->sources[i].trace);
    }
    free(recorder->sources);
    free(recorder);
}

enum up_status up_recorder_create(const char *path, struct up_span span,
                                  const struct up_store_meta *meta, int meta_count,
                                  struct up_recorder **recorder, struct up_error *err)
{
    struct up_recorder *made = aligned_alloc(_Alignof(struct up_recorder), sizeof *made);
    if (!made) return up_fail(err, UP_FAILED, "--trace %s: out of host memory", path);
    int64_t now = up_clock_ns();
    *made = (struct up_recorder){.span = span, .committed_ns = now, .sampled_ns = now};
    enum up_status rc = up_store_create(path, meta, meta_count, &made->store, err);
    if (rc != UP_OK) {
        release(made);
        return rc;
    }
    *recorder = made;
    return UP_OK;
}

static bool source_init(struct source *source, struct up_recorder *recorder, int rank)
{
    *source = (struct source){.seen_ns = up_clock_ns(), .device_used_bytes = -1};
    source->trace = up_trace_create(rank, RING_EVENTS);
    if (source->trace && up_step_log_init(&source->log, recorder->store, rank, recorder->span))
        return true;
    up_step_log_release(&source->log);
    up_trace_destroy(source->trace);
    return false;
}

struct up_trace *up_recorder_add_rank(struct up_recorder *recorder, int rank,
                                      const char *device_name, int64_t capacity_bytes)
{
    UP_ASSERT(!recorder->started);
    struct source *sources = realloc(recorder->sources, (size_t)(recorder->source_count + 1) *
                                                            sizeof *recorder->sources);
    if (!sources) return NULL;
    recorder->sources = sources;
    struct source *source = &sources[recorder->source_count];
    if (!source_init(source, recorder, rank)) return NULL;
    recorder->source_count++;
    char node[256] = "";
    gethostname(node, sizeof node - 1);
    bool bounded = capacity_bytes > 0 && capacity_bytes < INT64_MAX;
    up_store_rank(recorder->store, rank, node, device_name, bounded ? capacity_bytes : -1, -1);
    commit(recorder);
    return source->trace;
}

void up_recorder_predict(struct up_recorder *recorder, const struct up_store_prediction *prediction)
{
    UP_ASSERT(!recorder->started);
    up_store_prediction(recorder->store, prediction);
    commit(recorder);
}

// Signals are for the program's own threads to see.
static int create_thread(struct up_recorder *recorder)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&recorder->thread, &attributes, record, recorder);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return error;
}

enum up_status up_recorder_start(struct up_recorder *recorder, struct up_error *err)
{
    int error = create_thread(recorder);
    recorder->started = !error;
    if (!error) return UP_OK;
    return up_fail(err, UP_FAILED, "the recorder's thread cannot be started: %s", strerror(error));
}

static void set_number(struct up_recorder *recorder, const char *key, int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    up_store_meta_set(recorder->store, key, text);
}

static int64_t ring_bytes(void)
{
    return (int64_t)RING_EVENTS * (int64_t)sizeof(struct up_event);
}

static void tell_costs(struct up_recorder *recorder)
{
    int64_t waits = 0;
    int64_t bytes =
        (int64_t)sizeof *recorder + STACK_BYTES + up_store_memory_bytes(recorder->store);
    for (int i = 0; i < recorder->source_count; i++) {
        waits += (int64_t)up_trace_waits(recorder->sources[i].trace);
        bytes += ring_bytes() + up_step_log_bytes(&recorder->sources[i].log);
    }
    set_number(recorder, "events_written", up_store_rows(recorder->store));
    set_number(recorder, "recorder_ns", recorder->cpu_ns);
    set_number(recorder, "recorder_bytes", bytes);
    set_number(recorder, "ring_waits", waits);
}

// Before the start: what the ranks have pushed so far is written by the caller's thread.
static void record_unstarted(struct up_recorder *recorder)
{
    while (drain(recorder)) continue;
    end_logs(recorder);
}

enum up_status up_recorder_finish(struct up_recorder *recorder, const char *outcome,
                                  struct up_error *err)
{
    if (!recorder) return UP_OK;
    if (recorder->started)
        pthread_join(recorder->thread, NULL);
    else
        record_unstarted(recorder);
    tell_costs(recorder);
    up_store_meta_set(recorder->store, "outcome", outcome);
    enum up_status rc = up_store_finish(recorder->store, true, err);
    release(recorder);
    return rc;
}

int64_t up_recorder_memory_bound(int ranks)
{
    int64_t rank_bytes = ring_bytes() + up_step_log_bytes_max() + (int64_t)sizeof(struct source);
    return ranks * rank_bytes + (int64_t)sizeof(struct up_recorder) + STACK_BYTES + SQLITE_BYTES;
}
