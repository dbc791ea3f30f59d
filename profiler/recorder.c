/* The recorder's thread: takes from all rings, passes on what is to be kept, commits, and samples
 * the process' memory. */
#define _GNU_SOURCE // gethostname
#include "profiler/beside.h"
#include "profiler/ledger.h"
#include "profiler/recorder.h"
#include "profiler/steps_impl.h"
#include "profiler/works.h"

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
static const int64_t commit_interval_ns = 100000000, sample_interval_ns = 100000000,
                     device_interval_ns = 250000000, observe_interval_ns = 250000000;

struct source {
    struct up_trace *trace;
    struct up_step_log log;
    struct up_ledger *ledger; // NULL until there is something for it
    struct up_works *works;   // NULL where nobody tells when work ran
    struct up_beside beside;  // what was seen of steps whose rows may yet be dropped
    struct up_device *device; // NULL, or to be asked for its use
    int64_t unkept;           // news for a ledger that there was no memory for
    int64_t last_ns, seen_ns; // the newest event's moment, and ours when it was taken
};

struct up_recorder {
    struct up_store *store;
    struct up_span span;
    struct source *sources; // one a rank
    int source_count;
    bool started, abandoned;
    pthread_t thread;
    int64_t committed_ns, sampled_ns, asked_ns, observed_ns;
    struct up_observer observer;
    int64_t unmarked; // kernels and copies that no mark was found for
    int64_t cpu_ns;   // the thread's, once it has ended
    char why[512];    // the run failed; "": it did not
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

// The time of a source's device; where it is not to be asked, as far as the newest event tells it.
static int64_t device_ns(const struct source *source, int64_t now)
{
    if (source->device && source->device->kind != UP_DEVICE_DRY)
        return source->device->ops->clock_ns(source->device);
    return source->last_ns + now - source->seen_ns;
}

// Devices are asked less often than the host, since a driver takes its time. A sample between two
// answers has none of its own: an old one beside a new time would speak of what has changed since.
static void sample(struct up_recorder *recorder)
{
    int64_t now = up_clock_ns(), host = resident_bytes();
    bool ask = !recorder->asked_ns || now - recorder->asked_ns >= device_interval_ns;
    recorder->sampled_ns = now;
    if (ask) recorder->asked_ns = now;
    for (int i = 0; i < recorder->source_count; i++) {
        const struct source *source = &recorder->sources[i];
        struct up_device *device = ask ? source->device : NULL;
        up_store_usage(recorder->store, up_trace_rank(source->trace), device_ns(source, now),
                       device ? device->ops->used_bytes(device) : -1, host);
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
}

// NULL when memory is short.
static struct up_ledger *ledger_of(struct source *source)
{
    if (!source->ledger)
        source->ledger = up_ledger_create(source->log.store, up_trace_rank(source->trace));
    source->unkept += !source->ledger;
    return source->ledger;
}

static void take(struct source *source, const struct up_event *event)
{
    if (event->kind != UP_EVENT_MEMORY)
        up_step_log_take(&source->log, event);
    else if (ledger_of(source))
        up_ledger_news(source->ledger, event);
}

// The number of events that were there.
static int drain(struct up_recorder *recorder)
{
    int sum = 0;
    for (int i = 0; i < recorder->source_count; i++) {
        struct source *source = &recorder->sources[i];
        int taken = up_trace_take(source->trace, recorder->batch, BATCH_EVENTS);
        int64_t now = up_clock_ns();
        bool flush = false;
        for (int j = 0; j < taken; j++) {
            take(source, &recorder->batch[j]);
            note(source, &recorder->batch[j], now);
            flush |= recorder->batch[j].kind == UP_EVENT_OOM;
        }
        if (flush) commit(recorder);
        if (flush) up_trace_written(source->trace);
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

// --- What is seen of devices -------------------------------------------------------------------

static struct source *source_of(struct up_recorder *recorder, int rank)
{
    for (int i = 0; i < recorder->source_count; i++)
        if (up_trace_rank(recorder->sources[i].trace) == rank) return &recorder->sources[i];
    return NULL;
}

// In a step though none of its pieces of work: a row of its own, if the step has rows.
static void add_seen(struct source *source, const struct up_activity *activity,
                     const struct up_mark *mark)
{
    char stream[32];
    bool copy = activity->kind == UP_ACTIVITY_COPY;
    snprintf(stream, sizeof stream, "stream %u", activity->stream);
    up_beside_add(
        &source->beside, &source->log,
        &(struct up_store_seen){.kind = copy ? UP_EVENT_COPY : UP_EVENT_KERNEL,
                                .name = activity->name ? activity->name
                                        : copy         ? "copy"
                                                       : "fill",
                                .stream = stream,
                                .step = mark->step,
                                .range_id = mark->range_id,
                                .begin_ns = activity->begin_ns,
                                .end_ns = up_max(activity->end_ns, activity->begin_ns + 1),
                                .bytes = activity->bytes,
                                .from = activity->from,
                                .to = activity->to});
}

static bool find_mark(const struct up_recorder *recorder, const struct up_activity *activity,
                      struct up_mark *mark)
{
    struct up_marks *marks = recorder->observer.marks;
    return marks && (up_marks_find(marks, activity->correlation[0], mark) ||
                     up_marks_find(marks, activity->correlation[1], mark));
}

// Of a program that is not ours: on the GPU that ran it, in the range of the thread that asked.
static void take_foreign(struct up_recorder *recorder, const struct up_activity *activity)
{
    struct up_mark mark = {.rank = activity->rank, .step = -1}, found;
    struct source *source = source_of(recorder, mark.rank);
    if (find_mark(recorder, activity, &found) && found.rank == mark.rank)
        mark.range_id = found.range_id;
    if (source) add_seen(source, activity, &mark);
}

static void take_ran(struct up_recorder *recorder, const struct up_activity *activity)
{
    struct up_mark mark;
    if (recorder->observer.foreign) {
        take_foreign(recorder, activity);
        return;
    }
    if (!find_mark(recorder, activity, &mark)) {
        recorder->unmarked++;
        return;
    }
    struct source *source = source_of(recorder, mark.rank);
    if (!source || !source->works) return;
    if (mark.work_id)
        up_works_add(source->works, recorder->store, source->log.settled, mark.work_id, mark.kind,
                     activity->begin_ns, activity->end_ns);
    else if (mark.step >= 0)
        add_seen(source, activity, &mark);
}

void up_recorder_activity(struct up_recorder *recorder, const struct up_activity *activity)
{
    if (up_activity_is_memory(activity)) {
        struct source *source = source_of(recorder, activity->rank);
        if (source && ledger_of(source)) up_ledger_seen(source->ledger, activity);
    } else {
        take_ran(recorder, activity);
    }
    if (up_store_pending(recorder->store) >= UP_COMMIT_ROWS) commit(recorder);
}

void up_recorder_event(struct up_recorder *recorder, int rank, const struct up_event *event)
{
    struct source *source = source_of(recorder, rank);
    if (!source) return;
    take(source, event);
    note(source, event, up_clock_ns());
}

void up_recorder_diagnostic(struct up_recorder *recorder, const char *kind, const char *text)
{
    up_store_diagnostic(recorder->store, -1, -1, kind, text);
    if (!recorder->started) commit(recorder);
}

static void observe(struct up_recorder *recorder, bool last)
{
    const struct up_observer *observer = &recorder->observer;
    recorder->observed_ns = up_clock_ns();
    if (!observer->tell) return;
    observer->collect(observer->context, last);
    // All that was pushed until now, and not what goes on being pushed.
    for (int i = 0; i < RING_EVENTS / BATCH_EVENTS && drain(recorder); i++) continue;
    observer->tell(observer->context, recorder);
    for (int i = 0; i < recorder->source_count; i++) {
        struct source *source = &recorder->sources[i];
        if (source->works) up_works_write(source->works, recorder->store, source->log.settled);
        up_beside_settle(&source->beside, &source->log);
    }
}

static void tell_lost(struct up_recorder *recorder)
{
    int64_t memory = 0, works = 0, beside = 0;
    char text[256];
    for (int i = 0; i < recorder->source_count; i++) {
        const struct source *source = &recorder->sources[i];
        memory += source->unkept + (source->ledger ? up_ledger_lost(source->ledger) : 0);
        works += source->works ? up_works_lost(source->works) : 0;
        beside += source->beside.lost;
    }
    if (!memory && !works && !beside && !recorder->unmarked) return;
    snprintf(text, sizeof text,
             "not told: the call behind %lld kernels and copies, the times of %lld pieces of work, "
             "%lld allocations of the driver, %lld kernels and copies beside a step's own",
             (long long)recorder->unmarked, (long long)works, (long long)memory, (long long)beside);
    up_recorder_diagnostic(recorder, "observer", text);
}

static void keep_time(struct up_recorder *recorder)
{
    int64_t now = up_clock_ns();
    if (now - recorder->sampled_ns >= sample_interval_ns) sample(recorder);
    if (now - recorder->observed_ns >= observe_interval_ns) observe(recorder, false);
    if (!up_store_pending(recorder->store))
        recorder->committed_ns = now;
    else if (now - recorder->committed_ns >= commit_interval_ns)
        commit(recorder);
}

static void end_logs(struct up_recorder *recorder)
{
    for (int i = 0; i < recorder->source_count; i++) up_step_log_end(&recorder->sources[i].log);
    observe(recorder, true);
    if (recorder->observer.times) up_store_time_ranges(recorder->store);
    tell_lost(recorder);
    recorder->asked_ns = 0; // the end is asked about whatever was before
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
        up_ledger_destroy(recorder->sources[i].ledger);
        up_works_destroy(recorder->sources[i].works);
        up_beside_release(&recorder->sources[i].beside);
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
    *source = (struct source){.seen_ns = up_clock_ns()};
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

void up_recorder_device(struct up_recorder *recorder, int rank, struct up_device *device)
{
    struct source *source = source_of(recorder, rank);
    if (!source || !device->ops->used_bytes) return;
    source->device = device;
    up_store_baseline(recorder->store, rank, device->used_before_bytes);
    if (device->used_before_guessed)
        up_store_diagnostic(recorder->store, rank, -1, "baseline",
                            "nobody could tell what was used of the device before the run (no "
                            "NVML): it is taken to be what was used first, less a usual context");
    commit(recorder);
}

enum up_status up_recorder_observe(struct up_recorder *recorder, const struct up_observer *observer,
                                   struct up_error *err)
{
    recorder->observer = *observer;
    for (int i = 0; observer->times && i < recorder->source_count; i++) {
        struct source *source = &recorder->sources[i];
        if (!source->works) source->works = up_works_create(up_trace_rank(source->trace));
        if (!source->works) return up_fail(err, UP_FAILED, "out of host memory");
    }
    return UP_OK;
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
        if (recorder->sources[i].ledger) bytes += up_ledger_bytes(recorder->sources[i].ledger);
        if (recorder->sources[i].works) bytes += up_works_bytes_max();
        bytes += up_beside_bytes(&recorder->sources[i].beside);
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

void up_recorder_failed(struct up_recorder *recorder, const char *why)
{
    snprintf(recorder->why, sizeof recorder->why, "%s", why);
}

enum up_status up_recorder_finish(struct up_recorder *recorder, const char *outcome,
                                  struct up_error *err)
{
    if (!recorder) return UP_OK;
    if (recorder->started)
        pthread_join(recorder->thread, NULL);
    else
        record_unstarted(recorder);
    if (*recorder->why) up_store_diagnostic(recorder->store, -1, -1, "run", recorder->why);
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
