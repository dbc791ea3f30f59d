/* A rank's context: arenas, steps, ranges, launches. */
#include "mem/arena.h"
#include "mem/mem_impl.h"

#include <stdio.h>
#include <stdlib.h>

enum up_status up_rank_fail(struct up_rank *rank, enum up_status status, const char *format, ...)
{
    if (up_rank_failed(rank)) return rank->error.status;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(rank->error.text, sizeof rank->error.text, format, arguments);
    va_end(arguments);
    return rank->error.status = status;
}

enum up_status up_rank_init(struct up_rank *rank, int number, struct up_device *device,
                            struct up_trace *trace, const int64_t limit_bytes[UP_SPACE_COUNT],
                            struct up_error *err)
{
    enum up_status rc = UP_OK;
    *rank = (struct up_rank){.rank = number, .device = device, .trace = trace, .step = -1};
    rank->usage.event_hash = UP_EVENT_HASH_START;
    for (int space = 0; space < UP_SPACE_COUNT; space++) {
        int64_t limit = limit_bytes ? limit_bytes[space] : 0;
        rank->capacity[space] =
            limit ? up_min(limit, device->capacity[space]) : device->capacity[space];
        rank->arena[space] = up_arena_create(rank->capacity[space]);
        if (!rank->arena[space]) UP_TRY(up_fail(err, UP_FAILED, "out of host memory"));
        UP_TRY(device->ops->reserve(device, (enum up_space)space, rank->capacity[space],
                                    &rank->base[space], err));
    }
    up_tell_start(rank);
out:
    if (rc) {
        for (int space = 0; space < UP_SPACE_COUNT; space++)
            if (!rank->base[space]) rank->capacity[space] = 0;
        up_rank_release(rank);
    }
    return rc;
}

void up_rank_release(struct up_rank *rank)
{
    while (rank->oldest) {
        struct up_tensor *newer = rank->oldest->newer;
        free(rank->oldest);
        rank->oldest = newer;
    }
    rank->newest = NULL;
    for (int space = 0; space < UP_SPACE_COUNT; space++) {
        if (rank->arena[space] && rank->capacity[space])
            rank->device->ops->release(rank->device, (enum up_space)space, rank->base[space],
                                       rank->capacity[space]);
        up_arena_destroy(rank->arena[space]);
        up_arena_destroy(rank->step_arena[space]);
        rank->arena[space] = rank->step_arena[space] = NULL;
    }
}

static uint64_t range_at(const struct up_rank *rank, int depth)
{
    return depth > 0 ? rank->open_ranges[depth - 1] : 0;
}

static void tell_range(struct up_rank *rank, enum up_event_kind kind)
{
    if (!rank->trace) return;
    int depth = rank->range_depth;
    struct up_event event = up_event_now(rank, kind);
    event.label = rank->open_labels[depth - 1];
    event.range.id = range_at(rank, depth);
    event.range.parent = range_at(rank, depth - 1);
    event.range.stream = UP_STREAM_COMPUTE;
    up_trace_push(rank->trace, &event);
}

void up_range_begin(struct up_rank *rank, const char *name, int layer)
{
    UP_ASSERT(rank->range_depth < UP_MAX_RANGES);
    rank->open_labels[rank->range_depth] = (struct up_label){name, (int16_t)layer, UP_NO_INDEX};
    rank->open_ranges[rank->range_depth++] = ++rank->last_range_id;
    rank->seq++;
    if (rank->device->ops->range)
        rank->device->ops->range(rank->device, &rank->open_labels[rank->range_depth - 1]);
    tell_range(rank, UP_EVENT_RANGE_BEGIN);
}

void up_range_end(struct up_rank *rank)
{
    UP_ASSERT(rank->range_depth > 0);
    rank->seq++;
    tell_range(rank, UP_EVENT_RANGE_END);
    if (rank->device->ops->range) rank->device->ops->range(rank->device, NULL);
    rank->range_depth--;
}

void up_rank_step_begin(struct up_rank *rank, int64_t step)
{
    struct up_usage *usage = &rank->usage;
    rank->step = step;
    usage->events = 0;
    usage->event_hash = UP_EVENT_HASH_START;
    for (int space = 0; space < UP_SPACE_COUNT; space++) {
        usage->peak_bytes[space] = usage->live_bytes[space];
        usage->peak_seq[space] = rank->seq;
        usage->peak_event[space] = 0;
        rank->taken_in_step[space] = 0;
    }
    if (!rank->trace) return;
    struct up_event event = up_event_now(rank, UP_EVENT_STEP_BEGIN);
    up_trace_push(rank->trace, &event);
}

void up_rank_step_end(struct up_rank *rank, double loss, double grad_norm, int64_t tokens)
{
    const struct up_usage *usage = &rank->usage;
    if (rank->trace) {
        struct up_event event = up_event_now(rank, UP_EVENT_STEP_END);
        event.result.loss = loss;
        event.result.grad_norm = grad_norm;
        event.result.tokens = tokens;
        event.result.peak_bytes = usage->peak_bytes[UP_SPACE_DEVICE];
        event.result.peak_seq = usage->peak_seq[UP_SPACE_DEVICE];
        event.result.event_hash = usage->event_hash;
        up_trace_push(rank->trace, &event);
    }
    rank->step = -1;
}

// Whoever listens to what the device is given can tell from the rank what it is.
static void work_begin(struct up_rank *rank, enum up_event_kind kind)
{
    rank->work_now = ++rank->last_work_id;
    rank->work_kind = kind;
}

static struct up_event work_end(struct up_rank *rank, enum up_event_kind kind,
                                enum up_stream stream, struct up_interval interval)
{
    struct up_event event = up_event_now(rank, kind);
    event.ns = interval.begin_ns;
    event.work.id = rank->work_now;
    event.work.end_ns = interval.end_ns;
    event.work.range_id = range_at(rank, rank->range_depth);
    event.work.stream = (uint8_t)stream;
    rank->work_now = 0;
    return event;
}

void up_launch(struct up_rank *rank, enum up_stream stream, const char *name, union up_call run,
               const void *args, size_t size, const struct up_cost *cost)
{
    if (up_rank_failed(rank)) return;
    work_begin(rank, UP_EVENT_KERNEL);
    struct up_interval interval =
        rank->device->ops->launch(rank->device, stream, run, args, size, cost);
    if (!rank->trace) return;
    struct up_event event = work_end(rank, UP_EVENT_KERNEL, stream, interval);
    event.label.name = name;
    event.work.flops = cost->flops;
    up_trace_push(rank->trace, &event);
}

void up_launch_collective(struct up_rank *rank, enum up_stream stream, const char *name,
                          union up_call run, const void *args, size_t size, int64_t bytes)
{
    if (up_rank_failed(rank)) return;
    struct up_cost cost = {.class = UP_COST_COLLECTIVE, .bytes = (double)bytes};
    work_begin(rank, UP_EVENT_COLLECTIVE);
    struct up_interval interval =
        rank->device->ops->launch(rank->device, stream, run, args, size, &cost);
    if (!rank->trace) return;
    struct up_event event = work_end(rank, UP_EVENT_COLLECTIVE, stream, interval);
    event.label.name = name;
    event.work.bytes = bytes;
    up_trace_push(rank->trace, &event);
}

void up_copy(struct up_rank *rank, enum up_stream stream, struct up_tensor *to,
             const struct up_tensor *from)
{
    if (up_rank_failed(rank)) return;
    UP_ASSERT(to->bytes == from->bytes);
    work_begin(rank, UP_EVENT_COPY);
    struct up_interval interval = rank->device->ops->copy(rank->device, stream, to->data, to->space,
                                                          from->data, from->space, to->bytes);
    if (!rank->trace) return;
    struct up_event event = work_end(rank, UP_EVENT_COPY, stream, interval);
    event.label = to->tag.label;
    event.work.bytes = to->bytes;
    event.work.from = (uint8_t)from->space;
    event.work.to = (uint8_t)to->space;
    up_trace_push(rank->trace, &event);
}

void up_stream_wait(struct up_rank *rank, enum up_stream stream, enum up_stream other)
{
    struct up_device *device = rank->device;
    device->ops->wait(device, stream, device->ops->now_in(device, other));
}

struct up_moment up_stream_moment(struct up_rank *rank, enum up_stream stream)
{
    const struct up_device_ops *ops = rank->device->ops;
    return ops->mark ? ops->mark(rank->device, stream) : ops->now_in(rank->device, stream);
}

void up_stream_wait_moment(struct up_rank *rank, enum up_stream stream, struct up_moment moment)
{
    if (moment.stream != stream) rank->device->ops->wait(rank->device, stream, moment);
}

void up_stream_synchronize(struct up_rank *rank, enum up_stream stream)
{
    struct up_device *device = rank->device;
    device->ops->synchronize(device, device->ops->now_in(device, stream));
}
