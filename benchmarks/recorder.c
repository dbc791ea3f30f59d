/* What recording costs: on the training thread an event, at a pace that the writer keeps up with
 * and as fast as it goes; on the writer's a row; and memory. Usage: recorder [FILE to write].
 *
 * Events are a step's: a range with tensors and kernels in it. Every step differs from the one
 * before, so that all of it is written, which is the worst case. */
#include "profiler/recorder.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BURST_EVENTS = 5000, BURSTS = 200, SATURATED_EVENTS = 2000000, LAYERS = 32 };

struct feed {
    struct up_trace *trace;
    uint64_t seq, tensor_id;
    int64_t bytes;
};

// As src/mem fills it in: an allocation, its kernel, and its free, in turn.
static void push_one(struct feed *feed, int i, int64_t ns)
{
    static const char *const names[] = {"attn.q", "attn.k",   "attn.v",
                                        "attn.o", "mlp.gate", "mlp.up"};
    static const uint8_t kinds[] = {UP_EVENT_ALLOC, UP_EVENT_KERNEL, UP_EVENT_FREE};
    struct up_event event = {.kind = kinds[i % 3],
                             .phase = UP_PHASE_FORWARD,
                             .step = 1,
                             .ns = ns,
                             .label = {names[i / 3 % 6], (int16_t)(i / 18 % LAYERS), UP_NO_INDEX}};
    if (event.kind == UP_EVENT_KERNEL) {
        event.work.end_ns = ns + 1000;
        event.work.flops = 1e9;
    } else {
        event.tensor.id = event.tensor.storage = feed->tensor_id += event.kind == UP_EVENT_ALLOC;
        event.tensor.bytes = event.tensor.reserved = feed->bytes;
        event.tensor.category = UP_CATEGORY_ATTENTION;
        event.tensor.dims = 2;
        up_event_set_dim(&event, 0, 4096);
        up_event_set_dim(&event, 1, 4096);
        feed->seq++;
    }
    event.seq = feed->seq;
    up_trace_push(feed->trace, &event);
}

static int64_t push_many(struct feed *feed, int count)
{
    int64_t begin_ns = up_clock_ns();
    for (int i = 0; i < count; i++) push_one(feed, i, begin_ns);
    return up_clock_ns() - begin_ns;
}

static int compare_times(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void measure_paced(struct feed *feed)
{
    enum { median = BURSTS / 2, slow = BURSTS * 19 / 20 };
    int64_t times[BURSTS];
    for (int i = 0; i < BURSTS; i++) {
        times[i] = push_many(feed, BURST_EVENTS);
        nanosleep(&(struct timespec){.tv_nsec = 25000000}, NULL);
    }
    qsort(times, BURSTS, sizeof *times, compare_times);
    printf("paced: %.1f ns an event in the median burst of %d, %.1f in the slowest of 20; waits: "
           "%llu\n",
           (double)times[median] / BURST_EVENTS, BURST_EVENTS, (double)times[slow] / BURST_EVENTS,
           (unsigned long long)up_trace_waits(feed->trace));
}

static void report_file(const char *path)
{
    char value[64];
    struct stat status;
    sqlite3 *db = NULL;
    struct up_error err;
    if (up_store_open(path, &db, &err) != UP_OK || stat(path, &status) != 0) {
        fprintf(stderr, "%s\n", err.text);
        return;
    }
    up_store_meta_get(db, "events_written", value, sizeof value);
    double rows = strtod(value, NULL);
    up_store_meta_get(db, "recorder_ns", value, sizeof value);
    printf("writer: %.2f us of its thread's time a row (%.0f rows), %.0f bytes a row in the file\n",
           strtod(value, NULL) / rows / 1e3, rows, (double)status.st_size / rows);
    up_store_meta_get(db, "recorder_bytes", value, sizeof value);
    char used[UP_UNITS_TEXT], bound[UP_UNITS_TEXT];
    printf("memory: %s used, %s at most\n",
           up_format_bytes(used, (uint64_t)strtoull(value, NULL, 10)),
           up_format_bytes(bound, (uint64_t)up_recorder_memory_bound(1)));
    sqlite3_close(db);
}

int main(int argc, char **argv)
{
    char temporary[] = "/tmp/upipe-recorder-XXXXXX";
    const char *path = argc > 1 ? argv[1] : temporary;
    struct up_error err = {0};
    struct up_recorder *recorder = NULL;
    if (argc < 2) close(mkstemp(temporary));
    enum up_status rc =
        up_recorder_create(path, (struct up_span){-1, -1}, NULL, 0, &recorder, &err);
    if (rc != UP_OK) goto out;
    struct feed feed = {.trace = up_recorder_add_rank(recorder, 0, "none", 0), .bytes = 1 << 25};
    rc = up_recorder_start(recorder, &err);
    if (rc != UP_OK) goto out;

    measure_paced(&feed);
    int64_t begin_ns = up_clock_ns(), pushed_ns = push_many(&feed, SATURATED_EVENTS);
    up_trace_close(feed.trace);
    rc = up_recorder_finish(recorder, "ok", &err);
    double seconds = (double)(up_clock_ns() - begin_ns) / 1e9;
    printf(
        "saturated: %.1f ns an event, waiting for the writer: %.0f rows/s; indexes and all: %.0f\n",
        (double)pushed_ns / SATURATED_EVENTS, SATURATED_EVENTS / ((double)pushed_ns / 1e9),
        SATURATED_EVENTS / seconds);
    if (rc == UP_OK) report_file(path);
out:
    if (rc != UP_OK) fprintf(stderr, "%s\n", err.text);
    if (argc < 2) unlink(path);
    return (int)rc;
}
