/* What a rank takes from the system, and what it is told when there is no more: to the trace. */
#include "mem/arena.h"
#include "mem/mem_impl.h"

static const int64_t flush_patience_ns = 2000000000;

struct up_event up_event_now(struct up_rank *rank, enum up_event_kind kind)
{
    return (struct up_event){.kind = (uint8_t)kind,
                             .phase = (uint8_t)rank->phase,
                             .step = (int32_t)rank->step,
                             .seq = rank->seq,
                             .ns = rank->device->ops->clock_ns(rank->device),
                             .label = {NULL, UP_NO_LAYER, UP_NO_INDEX}};
}

/* --- Shortage ------------------------------------------------------------------------------------
 */

void up_tell_shortage(struct up_rank *rank, const struct up_shortage *shortage)
{
    if (!rank->trace) return;
    enum up_space space = shortage->space;
    struct up_event event = up_event_now(rank, UP_EVENT_OOM);
    event.label = shortage->tag->label;
    event.oom.category = (uint8_t)shortage->tag->category;
    event.oom.space = (uint8_t)space;
    event.oom.bytes = shortage->bytes;
    event.oom.live_bytes = rank->usage.live_bytes[space];
    event.oom.limit_bytes = rank->capacity[space];
    event.oom.free_bytes = shortage->free_bytes;
    event.oom.largest_free_bytes = shortage->largest_free_bytes;
    up_trace_push(rank->trace, &event);
    // Whatever becomes of the process, what filled the memory is known.
    up_trace_flush(rank->trace, flush_patience_ns);
}

/* --- The system's memory -------------------------------------------------------------------------
 */

static void tell_memory(struct up_rank *rank, const struct up_event *event)
{
    if (rank->trace && rank->device->ops->used_bytes) up_trace_push(rank->trace, event);
}

// What is left on the device, as far as anybody can tell; else nothing.
static int64_t left_on_device(const struct up_rank *rank)
{
    struct up_device *device = rank->device;
    int64_t used = device->ops->used_bytes ? device->ops->used_bytes(device) : -1;
    return used < 0 ? 0 : up_max(0, device->capacity[UP_SPACE_DEVICE] - used);
}

enum up_status up_back(struct up_rank *rank, enum up_space space, int64_t bytes, bool for_good,
                       const struct up_tag *tag, int64_t asked, struct up_error *err)
{
    struct up_device *device = rank->device;
    int64_t before = device->backed[space];
    enum up_status rc = device->ops->back(device, space, rank->base[space], bytes, for_good, err);
    if (rc) {
        int64_t left = space == UP_SPACE_DEVICE ? left_on_device(rank) : 0;
        up_tell_shortage(rank, &(struct up_shortage){tag, space, asked, left, left});
        return rc;
    }
    if (device->backed[space] <= before) return UP_OK;
    struct up_event event = up_event_now(rank, UP_EVENT_MEMORY);
    event.label.name = "arena";
    event.memory.news = UP_MEMORY_TAKEN;
    event.memory.space = (uint8_t)space;
    event.memory.bytes = device->backed[space] - before;
    tell_memory(rank, &event);
    return UP_OK;
}

void up_tell_start(struct up_rank *rank)
{
    struct up_device *device = rank->device;
    struct up_event event = up_event_now(rank, UP_EVENT_MEMORY);
    event.label.name = "arena";
    event.memory.news = UP_MEMORY_RANGE;
    for (int space = 0; space < UP_SPACE_COUNT; space++) {
        event.memory.space = (uint8_t)space;
        event.memory.address = (uintptr_t)rank->base[space];
        event.memory.bytes = rank->capacity[space];
        tell_memory(rank, &event);
    }
    event.memory.news = UP_MEMORY_BRACKET;
    event.memory.space = UP_SPACE_DEVICE;
    for (int i = 0; i < UP_DEVICE_TOOK_MAX && device->took[i].owner; i++) {
        event.label.name = device->took[i].owner;
        event.ns = device->took[i].begin_ns;
        event.memory.end_ns = device->took[i].end_ns;
        event.memory.bytes = device->took[i].bytes;
        tell_memory(rank, &event);
    }
}

struct up_bracket up_bracket_begin(struct up_rank *rank)
{
    struct up_device *device = rank->device;
    struct up_bracket bracket = {0, -1};
    if (!rank->trace || !device->ops->used_bytes) return bracket;
    bracket.used_bytes = device->ops->used_bytes(device);
    bracket.begin_ns = device->ops->clock_ns(device);
    return bracket;
}

struct up_bracket up_bracket_since_made(struct up_rank *rank)
{
    const struct up_device *device = rank->device;
    struct up_bracket bracket = {0, -1};
    if (!rank->trace || !device->ops->used_bytes || !device->took[0].owner) return bracket;
    bracket.used_bytes = device->used_before_bytes;
    for (int i = 0; i < UP_DEVICE_TOOK_MAX && device->took[i].owner; i++) {
        bracket.used_bytes += device->took[i].bytes;
        bracket.begin_ns = device->took[i].end_ns;
    }
    return bracket;
}

void up_bracket_end(struct up_rank *rank, const struct up_bracket *bracket, const char *owner)
{
    struct up_device *device = rank->device;
    if (bracket->used_bytes < 0) return;
    int64_t used = device->ops->used_bytes(device);
    if (used < 0 || used == bracket->used_bytes) return;
    struct up_event event = up_event_now(rank, UP_EVENT_MEMORY);
    event.memory.end_ns = event.ns;
    event.ns = bracket->begin_ns;
    event.label.name = owner;
    event.memory.news = UP_MEMORY_BRACKET;
    event.memory.space = UP_SPACE_DEVICE;
    event.memory.bytes = used - bracket->used_bytes;
    tell_memory(rank, &event);
}

void up_rank_tell_usage(struct up_rank *rank)
{
    struct up_device *device = rank->device;
    if (!rank->trace || !device->ops->used_bytes) return;
    struct up_event event = up_event_now(rank, UP_EVENT_USAGE);
    event.usage.device_used_bytes = device->ops->used_bytes(device);
    up_trace_push(rank->trace, &event);
}
