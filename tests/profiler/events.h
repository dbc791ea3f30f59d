/* Hand-made events: a rank that counts sequence numbers and ids as the allocator does, and sends
 * what it is told to a ring, to a function, or nowhere. */
#ifndef UP_TESTS_PROFILER_EVENTS_H
#define UP_TESTS_PROFILER_EVENTS_H

#include "trace/trace.h"

#include <math.h>

struct maker {
    void (*send)(void *context, const struct up_event *event);
    void *context;
    uint64_t seq, tensor_id, range_id, open_range;
    int64_t ns, live_bytes, peak_bytes;
    uint64_t peak_seq, hash;
    int32_t step;
};

static inline void send_to_ring(void *trace, const struct up_event *event)
{
    up_trace_push((struct up_trace *)trace, event);
}

static inline struct maker maker_on_ring(struct up_trace *trace)
{
    return (struct maker){.send = send_to_ring, .context = trace, .step = -1};
}

static inline struct up_event maker_event(struct maker *m, enum up_event_kind kind,
                                          const char *name, int layer)
{
    m->ns += 1000;
    return (struct up_event){.kind = (uint8_t)kind,
                             .phase = (uint8_t)(m->step < 0 ? UP_PHASE_INIT : UP_PHASE_FORWARD),
                             .step = m->step,
                             .seq = m->seq,
                             .ns = m->ns,
                             .label = {name, (int16_t)layer, UP_NO_INDEX}};
}

static inline void make_tensor(struct maker *m, enum up_event_kind kind, uint64_t id,
                               const char *name, int layer, int64_t bytes)
{
    struct up_event event = maker_event(m, kind, name, layer);
    bool alloc = kind == UP_EVENT_ALLOC;
    event.seq = ++m->seq;
    event.tensor.id = event.tensor.storage = id;
    event.tensor.bytes = event.tensor.reserved = bytes;
    event.tensor.category = UP_CATEGORY_MLP;
    event.tensor.outlives_step = m->step < 0;
    event.tensor.range_id = alloc ? m->open_range : 0;
    event.tensor.dims = alloc;
    if (alloc) up_event_set_dim(&event, 0, bytes / 4);
    m->hash = up_event_hash(m->hash, alloc, UP_SPACE_DEVICE, &event.label, UP_CATEGORY_MLP,
                            (enum up_phase)event.phase, bytes);
    m->live_bytes += alloc ? bytes : -bytes;
    if (m->live_bytes > m->peak_bytes) {
        m->peak_bytes = m->live_bytes;
        m->peak_seq = m->seq;
    }
    m->send(m->context, &event);
}

/* The id of the new tensor. */
static inline uint64_t make_alloc(struct maker *m, const char *name, int layer, int64_t bytes)
{
    make_tensor(m, UP_EVENT_ALLOC, ++m->tensor_id, name, layer, bytes);
    return m->tensor_id;
}

static inline void make_free(struct maker *m, uint64_t id, const char *name, int layer,
                             int64_t bytes)
{
    make_tensor(m, UP_EVENT_FREE, id, name, layer, bytes);
}

/* One range at a time; returns its id. */
static inline uint64_t make_range_begin(struct maker *m, const char *name, int layer)
{
    struct up_event event = maker_event(m, UP_EVENT_RANGE_BEGIN, name, layer);
    event.seq = ++m->seq;
    event.range.id = m->open_range = ++m->range_id;
    m->send(m->context, &event);
    return m->range_id;
}

static inline void make_range_end(struct maker *m, uint64_t id, const char *name, int layer)
{
    struct up_event event = maker_event(m, UP_EVENT_RANGE_END, name, layer);
    event.seq = ++m->seq;
    event.range.id = id;
    m->open_range = 0;
    m->send(m->context, &event);
}

static inline void make_kernel(struct maker *m, const char *name)
{
    struct up_event event = maker_event(m, UP_EVENT_KERNEL, name, UP_NO_LAYER);
    event.work.range_id = m->open_range;
    event.work.end_ns = event.ns + 500;
    event.work.flops = 1e6;
    m->send(m->context, &event);
}

static inline void make_step_begin(struct maker *m, int step)
{
    m->step = step;
    m->hash = UP_EVENT_HASH_START;
    m->peak_bytes = m->live_bytes;
    m->peak_seq = m->seq;
    struct up_event event = maker_event(m, UP_EVENT_STEP_BEGIN, NULL, UP_NO_LAYER);
    m->send(m->context, &event);
}

static inline void make_step_end(struct maker *m, double loss)
{
    struct up_event event = maker_event(m, UP_EVENT_STEP_END, NULL, UP_NO_LAYER);
    event.result.loss = loss;
    event.result.grad_norm = NAN;
    event.result.tokens = 64;
    event.result.peak_bytes = m->peak_bytes;
    event.result.peak_seq = m->peak_seq;
    event.result.event_hash = m->hash;
    m->step = -1;
    m->send(m->context, &event);
}

#endif
