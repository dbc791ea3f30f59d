#include "trace/trace.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { CACHE_LINE = 64, FULL_NAP_NS = 20000, FLUSH_NAP_NS = 200000 };

struct up_trace {
    // Written by the rank's thread.
    _Alignas(CACHE_LINE) atomic_uint_fast64_t head;
    uint64_t
        tail_seen; // the reader's index as last looked at: saves sharing its line on every push
    atomic_uint_fast64_t waits;
    atomic_bool closed;
    // Written by the reader.
    _Alignas(CACHE_LINE) atomic_uint_fast64_t tail;
    atomic_bool abandoned;
    atomic_uint_fast64_t written; // events that are on their way to the disk
    // Constant.
    _Alignas(CACHE_LINE) uint64_t mask;
    int rank;
    struct up_event *events;
};

struct up_trace *up_trace_create(int rank, int capacity)
{
    uint64_t size = 2;
    while (size < (uint64_t)capacity) size *= 2;
    struct up_trace *trace = aligned_alloc(CACHE_LINE, sizeof *trace);
    struct up_event *events = aligned_alloc(CACHE_LINE, size * sizeof *events);
    if (!trace || !events) {
        free(trace);
        free(events);
        return NULL;
    }
    // Touched now, so that no push meets a page fault.
    memset(events, 0, size * sizeof *events);
    memset(trace, 0, sizeof *trace);
    trace->mask = size - 1;
    trace->rank = rank;
    trace->events = events;
    return trace;
}

void up_trace_destroy(struct up_trace *trace)
{
    if (!trace) return;
    free(trace->events);
    free(trace);
}

int up_trace_rank(const struct up_trace *trace)
{
    return trace->rank;
}

// The slow path of a push: the ring is full. False when the reader has given up.
static bool wait_for_room(struct up_trace *trace, uint64_t head)
{
    bool counted = false;
    for (;;) {
        if (atomic_load_explicit(&trace->abandoned, memory_order_acquire)) return false;
        trace->tail_seen = atomic_load_explicit(&trace->tail, memory_order_acquire);
        if (head - trace->tail_seen <= trace->mask) return true;
        if (!counted) atomic_fetch_add_explicit(&trace->waits, 1, memory_order_relaxed);
        counted = true;
        nanosleep(&(struct timespec){.tv_nsec = FULL_NAP_NS}, NULL);
    }
}

void up_trace_push(struct up_trace *trace, const struct up_event *event)
{
    if (!trace) return;
    uint64_t head = atomic_load_explicit(&trace->head, memory_order_relaxed);
    if (head - trace->tail_seen > trace->mask && !wait_for_room(trace, head)) return;
    trace->events[head & trace->mask] = *event;
    atomic_store_explicit(&trace->head, head + 1, memory_order_release);
}

void up_trace_flush(struct up_trace *trace, int64_t patience_ns)
{
    if (!trace) return;
    uint64_t head = atomic_load_explicit(&trace->head, memory_order_relaxed);
    for (int64_t waited = 0; waited < patience_ns; waited += FLUSH_NAP_NS) {
        if (atomic_load_explicit(&trace->written, memory_order_acquire) >= head ||
            atomic_load_explicit(&trace->abandoned, memory_order_acquire))
            return;
        nanosleep(&(struct timespec){.tv_nsec = FLUSH_NAP_NS}, NULL);
    }
}

void up_trace_written(struct up_trace *trace)
{
    uint64_t tail = atomic_load_explicit(&trace->tail, memory_order_relaxed);
    atomic_store_explicit(&trace->written, tail, memory_order_release);
}

void up_trace_close(struct up_trace *trace)
{
    if (trace) atomic_store_explicit(&trace->closed, true, memory_order_release);
}

int up_trace_take(struct up_trace *trace, struct up_event *events, int max)
{
    uint64_t tail = atomic_load_explicit(&trace->tail, memory_order_relaxed);
    uint64_t head = atomic_load_explicit(&trace->head, memory_order_acquire);
    int taken = 0;
    for (; taken < max && tail != head; taken++, tail++)
        events[taken] = trace->events[tail & trace->mask];
    atomic_store_explicit(&trace->tail, tail, memory_order_release);
    return taken;
}

bool up_trace_closed(struct up_trace *trace)
{
    // In this order: an event pushed before the close is seen after it.
    bool closed = atomic_load_explicit(&trace->closed, memory_order_acquire);
    return closed && atomic_load_explicit(&trace->head, memory_order_acquire) ==
                         atomic_load_explicit(&trace->tail, memory_order_relaxed);
}

void up_trace_abandon(struct up_trace *trace)
{
    if (trace) atomic_store_explicit(&trace->abandoned, true, memory_order_release);
}

uint64_t up_trace_waits(const struct up_trace *trace)
{
    return atomic_load_explicit(&((struct up_trace *)trace)->waits, memory_order_relaxed);
}
