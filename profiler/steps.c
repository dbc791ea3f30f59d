/* Which steps repeat, and what is kept of those that do (steps_impl.h). */
#include "profiler/steps_impl.h"

#include <stdio.h>
#include <stdlib.h>

bool up_step_log_init(struct up_step_log *log, struct up_store *store, int rank,
                      struct up_span span)
{
    *log = (struct up_step_log){.store = store,
                                .rank = rank,
                                .span = span,
                                .key_count = -1,
                                .newest = -1,
                                .whole.step = -1};
    // Large enough to be mapped, so that the system gives a page only once it is used.
    log->keys = malloc(UP_STEP_EVENTS_MAX * sizeof *log->keys);
    log->held = aligned_alloc(_Alignof(struct up_event), UP_STEP_EVENTS_MAX * sizeof *log->held);
    log->lifetimes = malloc(UP_STEP_EVENTS_MAX * sizeof *log->lifetimes);
    return log->keys && log->held && log->lifetimes;
}

void up_step_log_release(struct up_step_log *log)
{
    free(log->keys);
    free(log->held);
    free(log->lifetimes);
}

// Twice the lifetimes: qsort sorts them in a second array.
static int64_t bytes_of(int64_t keys, int64_t held)
{
    return keys * (int64_t)sizeof(uint64_t) +
           held * (int64_t)(sizeof(struct up_event) + 2 * sizeof(uint64_t));
}

int64_t up_step_log_bytes(const struct up_step_log *log)
{
    return bytes_of(log->most_keys, log->most_held);
}

int64_t up_step_log_bytes_max(void)
{
    return bytes_of(UP_STEP_EVENTS_MAX, UP_STEP_EVENTS_MAX);
}

// --- Writing and holding -----------------------------------------------------------------------

static bool is_work(const struct up_event *event)
{
    return event->kind == UP_EVENT_KERNEL || event->kind == UP_EVENT_COPY ||
           event->kind == UP_EVENT_COLLECTIVE;
}

static void settle(struct up_step_log *log, const struct up_event *event)
{
    if (is_work(event)) log->settled = event->work.id;
}

static void write_event(struct up_step_log *log, const struct up_event *event)
{
    settle(log, event);
    up_store_event(log->store, log->rank, event);
    if (up_store_pending(log->store) >= UP_COMMIT_ROWS) up_store_commit(log->store);
}

static void hold(struct up_step_log *log, const struct up_event *event)
{
    log->held[log->held_count++] = *event;
    log->most_held = up_max(log->most_held, log->held_count);
}

static void set_fate(struct up_step_log *log, bool kept)
{
    uint64_t at = (uint64_t)log->newest % UP_STEP_FATES, bit = UINT64_C(1) << at % 64;
    log->kept[at / 64] = kept ? log->kept[at / 64] | bit : log->kept[at / 64] & ~bit;
}

enum up_step_fate up_step_log_fate(const struct up_step_log *log, int64_t step)
{
    if (step < 0) return UP_STEP_KEPT;
    if (step > log->newest) return UP_STEP_UNDECIDED;
    if (step == log->newest && log->mode == UP_STEP_REPEATING) return UP_STEP_UNDECIDED;
    if (log->newest - step >= UP_STEP_FATES) return UP_STEP_DROPPED;
    uint64_t at = (uint64_t)step % UP_STEP_FATES;
    return log->kept[at / 64] >> at % 64 & 1 ? UP_STEP_KEPT : UP_STEP_DROPPED;
}

// From here on the step is written as it comes.
static void write_held(struct up_step_log *log)
{
    for (int i = 0; i < log->held_count; i++) write_event(log, &log->held[i]);
    log->held_count = 0;
    log->mode = UP_STEP_WHOLE;
    set_fate(log, true);
}

static void remember_key(struct up_step_log *log, uint64_t key)
{
    if (log->position < UP_STEP_EVENTS_MAX) log->keys[log->position] = key;
    log->position++;
    log->most_keys = up_max(log->most_keys, up_min(log->position, UP_STEP_EVENTS_MAX));
}

// --- What outlives a step that is dropped ------------------------------------------------------

// What begins or ends with the event, as one number for tensors and ranges; 0: nothing does.
static uint64_t lifetime(const struct up_event *event)
{
    switch (event->kind) {
    case UP_EVENT_ALLOC:
    case UP_EVENT_FREE:
        return event->tensor.id << 1;
    case UP_EVENT_RANGE_BEGIN:
    case UP_EVENT_RANGE_END:
        return event->range.id << 1 | 1;
    default:
        return 0;
    }
}

static int compare_lifetimes(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

// Leaves in log->lifetimes, sorted, what has only its beginning or only its end among the held.
static int find_open_lifetimes(struct up_step_log *log)
{
    int count = 0, open = 0;
    for (int i = 0; i < log->held_count; i++) {
        uint64_t id = lifetime(&log->held[i]);
        if (id) log->lifetimes[count++] = id;
    }
    qsort(log->lifetimes, (size_t)count, sizeof *log->lifetimes, compare_lifetimes);
    for (int i = 0; i < count; i++) {
        if (i + 1 < count && log->lifetimes[i] == log->lifetimes[i + 1])
            i++;
        else
            log->lifetimes[open++] = log->lifetimes[i];
    }
    return open;
}

// The ranges around it have no row to refer to.
static void write_without_range(struct up_step_log *log, const struct up_event *held)
{
    struct up_event event = *held;
    if (event.kind == UP_EVENT_ALLOC) event.tensor.range_id = 0;
    if (event.kind == UP_EVENT_RANGE_BEGIN) event.range.parent = 0;
    write_event(log, &event);
}

static void drop_held(struct up_step_log *log)
{
    int open = find_open_lifetimes(log);
    for (int i = 0; open && i < log->held_count; i++) {
        uint64_t id = lifetime(&log->held[i]);
        if (id && bsearch(&id, log->lifetimes, (size_t)open, sizeof id, compare_lifetimes))
            write_without_range(log, &log->held[i]);
    }
    for (int i = 0; i < log->held_count; i++) settle(log, &log->held[i]);
    log->held_count = 0;
}

// --- Steps -------------------------------------------------------------------------------------

static bool has_span(const struct up_step_log *log)
{
    return log->span.first >= 0;
}

static enum up_step_mode mode_of_step(const struct up_step_log *log, int64_t step)
{
    if (has_span(log))
        return step >= log->span.first && step <= log->span.last ? UP_STEP_WHOLE : UP_STEP_SKIPPED;
    if (log->steps < UP_STEPS_ALWAYS_WHOLE || log->key_count < 0) return UP_STEP_WHOLE;
    return UP_STEP_REPEATING;
}

// The step is left without its end: the run failed in it. It repeats nothing, and nothing repeats
// it.
static void abandon_step(struct up_step_log *log)
{
    if (log->mode == UP_STEP_OUTSIDE) return;
    if (log->mode == UP_STEP_REPEATING) write_held(log);
    if (log->mode == UP_STEP_SKIPPED) drop_held(log);
    log->key_count = -1;
    log->mode = UP_STEP_OUTSIDE;
}

static void begin_step(struct up_step_log *log, const struct up_event *event)
{
    abandon_step(log);
    log->mode = mode_of_step(log, event->step);
    log->newest = event->step;
    set_fate(log, log->mode == UP_STEP_WHOLE);
    log->position = 0;
    log->steps++;
    up_store_step_begin(log->store, log->rank, event);
    up_store_commit(log->store); // however long the step takes, its row is there
}

static void tell_too_long(struct up_step_log *log, const struct up_event *end)
{
    if (log->too_long_told || has_span(log) || log->position <= UP_STEP_EVENTS_MAX) return;
    char text[160];
    snprintf(text, sizeof text,
             "step %d has %lld events, more than the %d that are compared: such steps are written "
             "whole each time",
             end->step, (long long)log->position, UP_STEP_EVENTS_MAX);
    up_store_diagnostic(log->store, log->rank, end->ns, "step_too_long", text);
    log->too_long_told = true;
}

/* The events repeat; so must what they came to, which also depends on what was alive before the
 * step, or peak_seq would name the wrong moment. */
static bool repeats(const struct up_step_log *log, const struct up_event *end)
{
    return log->mode == UP_STEP_REPEATING && log->position == log->key_count &&
           end->result.peak_bytes == log->whole.peak_bytes &&
           end->result.event_hash == log->whole.event_hash;
}

static void end_whole_step(struct up_step_log *log, const struct up_event *event)
{
    up_store_step_end(log->store, log->rank, event, -1, event->result.peak_seq);
    log->whole.step = event->step;
    log->whole.peak_seq = event->result.peak_seq;
    log->whole.event_hash = event->result.event_hash;
    log->whole.peak_bytes = event->result.peak_bytes;
    tell_too_long(log, event);
}

static void end_dropped_step(struct up_step_log *log, const struct up_event *event)
{
    bool same = log->whole.step >= 0 && event->result.event_hash == log->whole.event_hash;
    drop_held(log);
    up_store_step_end(log->store, log->rank, event, same ? log->whole.step : -1,
                      same ? log->whole.peak_seq : 0);
}

static void end_step(struct up_step_log *log, const struct up_event *event)
{
    if (log->mode == UP_STEP_REPEATING && !repeats(log, event)) write_held(log);
    if (log->mode == UP_STEP_WHOLE)
        end_whole_step(log, event);
    else
        end_dropped_step(log, event);
    log->key_count = log->position <= UP_STEP_EVENTS_MAX ? log->position : -1;
    log->mode = UP_STEP_OUTSIDE;
}

// --- Events ------------------------------------------------------------------------------------

static void take_repeating(struct up_step_log *log, const struct up_event *event)
{
    uint64_t key = up_event_key(event);
    if (log->mode == UP_STEP_REPEATING && log->position < log->key_count &&
        log->keys[log->position] == key) {
        log->position++;
        hold(log, event);
        return;
    }
    if (log->mode == UP_STEP_REPEATING) write_held(log);
    remember_key(log, key);
    write_event(log, event);
}

static void take_skipped(struct up_step_log *log, const struct up_event *event)
{
    settle(log, event);
    if (!lifetime(event)) return;
    if (log->held_count == UP_STEP_EVENTS_MAX) drop_held(log);
    hold(log, event);
}

static void take_out_of_memory(struct up_step_log *log, const struct up_event *event)
{
    // What is alive now will be asked for, whatever the step was going to be.
    if (log->mode == UP_STEP_REPEATING || log->mode == UP_STEP_SKIPPED) write_held(log);
    write_event(log, event);
}

void up_step_log_take(struct up_step_log *log, const struct up_event *event)
{
    switch ((enum up_event_kind)event->kind) {
    case UP_EVENT_STEP_BEGIN:
        begin_step(log, event);
        return;
    case UP_EVENT_STEP_END:
        end_step(log, event);
        return;
    case UP_EVENT_OOM:
        take_out_of_memory(log, event);
        return;
    case UP_EVENT_USAGE:
    case UP_EVENT_DIAGNOSTIC:
        write_event(log, event);
        return;
    default:
        break;
    }
    switch (log->mode) {
    case UP_STEP_OUTSIDE:
        write_event(log, event);
        return;
    case UP_STEP_WHOLE:
    case UP_STEP_REPEATING:
        take_repeating(log, event);
        return;
    case UP_STEP_SKIPPED:
        take_skipped(log, event);
        return;
    }
}

void up_step_log_end(struct up_step_log *log)
{
    abandon_step(log);
}
