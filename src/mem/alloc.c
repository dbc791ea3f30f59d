/* Tensors: allocation, freeing and renaming, each told to the trace. */
#include "mem/arena.h"
#include "mem/mem.h"
#include "mem/mem_impl.h"

#include <stdlib.h>

int64_t up_shape_count(const struct up_shape *shape)
{
    int64_t count = 1;
    for (int i = 0; i < shape->dims; i++) count *= shape->extent[i];
    return count;
}

// What ALLOC and FREE have in common; counts the event.
static struct up_event tensor_event(struct up_rank *rank, enum up_event_kind kind,
                                    const struct up_tensor *tensor)
{
    struct up_usage *usage = &rank->usage;
    const struct up_tag *tag = &tensor->tag;
    rank->seq++;
    usage->events++;
    usage->event_hash = up_event_hash(usage->event_hash, kind == UP_EVENT_ALLOC, tensor->space,
                                      &tag->label, tag->category, rank->phase, tensor->bytes);
    return (struct up_event){.kind = (uint8_t)kind,
                             .phase = (uint8_t)rank->phase,
                             .step = (int32_t)rank->step,
                             .seq = rank->seq,
                             .label = tag->label,
                             .tensor = {.id = tensor->id,
                                        .storage = tensor->storage,
                                        .bytes = tensor->bytes,
                                        .space = (uint8_t)tensor->space,
                                        .category = (uint8_t)tag->category}};
}

static void tell_alloc(struct up_rank *rank, const struct up_tensor *tensor, enum up_stream stream)
{
    struct up_event event = tensor_event(rank, UP_EVENT_ALLOC, tensor);
    if (!rank->trace) return;
    event.ns = rank->device->ops->clock_ns(rank->device);
    event.tensor.range_id = rank->range_depth ? rank->open_ranges[rank->range_depth - 1] : 0;
    event.tensor.reserved = tensor->reserved;
    event.tensor.offset = tensor->offset;
    event.tensor.dtype = (uint8_t)tensor->dtype;
    event.tensor.stream = (uint8_t)stream;
    event.tensor.dims = (uint8_t)tensor->shape.dims;
    event.tensor.outlives_step = rank->step < 0;
    for (int i = 0; i < tensor->shape.dims; i++)
        up_event_set_dim(&event, i, tensor->shape.extent[i]);
    up_trace_push(rank->trace, &event);
}

static void tell_free(struct up_rank *rank, const struct up_tensor *tensor, enum up_stream stream)
{
    struct up_event event = tensor_event(rank, UP_EVENT_FREE, tensor);
    if (!rank->trace) return;
    event.ns = rank->device->ops->clock_ns(rank->device);
    event.tensor.stream = (uint8_t)stream;
    up_trace_push(rank->trace, &event);
}

static void count_live(struct up_rank *rank, enum up_space space, int64_t bytes)
{
    struct up_usage *usage = &rank->usage;
    usage->live_bytes[space] += bytes;
    if (usage->live_bytes[space] <= usage->peak_bytes[space]) return;
    usage->peak_bytes[space] = usage->live_bytes[space];
    usage->peak_seq[space] = rank->seq;
    usage->peak_event[space] = usage->events;
}

static void look(const struct up_rank *rank)
{
    const struct up_lookout *lookout = rank->lookout;
    if (lookout && rank->step >= 0 && rank->usage.events == lookout->event)
        lookout->reached(rank, lookout->context);
}

static void link_newest(struct up_rank *rank, struct up_tensor *tensor)
{
    tensor->older = rank->newest;
    tensor->newer = NULL;
    *(rank->newest ? &rank->newest->newer : &rank->oldest) = tensor;
    rank->newest = tensor;
}

static void unlink_tensor(struct up_rank *rank, struct up_tensor *tensor)
{
    *(tensor->older ? &tensor->older->newer : &rank->oldest) = tensor->newer;
    *(tensor->newer ? &tensor->newer->older : &rank->newest) = tensor->older;
}

// The bytes were last used on other streams: `stream` waits for those.
static void wait_for_bytes(struct up_rank *rank, const struct up_block *block,
                           enum up_stream stream)
{
    for (int other = 0; other < UP_STREAM_COUNT; other++)
        if (block->ticket[other] && other != (int)stream)
            rank->device->ops->wait(
                rank->device, stream,
                (struct up_moment){(enum up_stream)other, block->ticket[other]});
}

static void tell_out_of_memory(struct up_rank *rank, const struct up_tensor *tensor,
                               const struct up_arena *arena)
{
    char name[UP_LABEL_TEXT], needs[UP_UNITS_TEXT], live[UP_UNITS_TEXT], limit[UP_UNITS_TEXT],
        largest[UP_UNITS_TEXT];
    enum up_space space = tensor->space;
    int64_t live_bytes = rank->usage.live_bytes[space];
    int64_t largest_free = up_arena_largest_free(arena);
    up_tell_shortage(rank, &(struct up_shortage){&tensor->tag, space, tensor->bytes,
                                                 up_arena_free(arena), largest_free});
    // Otherwise it was the host's memory for the arena's books.
    rank->out_of_memory = tensor->bytes > largest_free;
    up_rank_fail(rank, UP_FAILED,
                 "out of %s memory: %s needs %s, %s of %s are in use and the largest free stretch "
                 "is %s",
                 up_space_names[space], up_label_text(name, &tensor->tag.label),
                 up_format_bytes(needs, (uint64_t)tensor->bytes),
                 up_format_bytes(live, (uint64_t)live_bytes),
                 up_format_bytes(limit, (uint64_t)rank->capacity[space]),
                 up_format_bytes(largest, (uint64_t)largest_free));
}

static void tell_unplanned(struct up_rank *rank, const struct up_tensor *tensor)
{
    rank->unplanned++;
    struct up_event event = up_event_now(rank, UP_EVENT_DIAGNOSTIC);
    event.label = tensor->tag.label;
    up_trace_push(rank->trace, &event);
}

// Where the plan has the step's next tensor of that space, if it has it; else NULL.
static const struct up_planned *planned(struct up_rank *rank, const struct up_tensor *tensor)
{
    const struct up_step_plan *plan = rank->plan;
    enum up_space space = tensor->space;
    if (!plan || rank->step < 0) return NULL;
    const struct up_planned *place = &plan->tensor[space][tensor->step_index];
    if (tensor->step_index < plan->count[space] && place->bytes == tensor->bytes) return place;
    tell_unplanned(rank, tensor);
    return NULL;
}

// The device has memory for the arena as far as it reaches; false (and the rank failed) when not.
static bool back_arena(struct up_rank *rank, const struct up_tensor *tensor)
{
    enum up_space space = tensor->space;
    int64_t high = up_arena_high(rank->arena[space]);
    if (!rank->device->ops->back || high <= rank->backed[space]) return true;
    struct up_error error;
    if (up_back(rank, space, high, false, &tensor->tag, tensor->bytes, &error))
        up_rank_fail(rank, error.status, "%s", error.text);
    rank->backed[space] = high;
    return !up_rank_failed(rank);
}

// Takes the tensor's bytes from its arena; false (and the rank failed) when there are none.
static bool place(struct up_rank *rank, struct up_tensor *tensor, enum up_stream stream)
{
    enum up_space space = tensor->space;
    tensor->step_index = rank->step < 0 ? -1 : rank->taken_in_step[space]++;
    const struct up_planned *at = planned(rank, tensor);
    struct up_arena *arena = at ? rank->step_arena[space] : rank->arena[space];
    tensor->block = at ? up_arena_take_at(arena, at->offset, tensor->bytes)
                       : up_arena_take(arena, tensor->bytes);
    if (!tensor->block) {
        tell_out_of_memory(rank, tensor, arena);
        return false;
    }
    if (!at && !back_arena(rank, tensor)) return false;
    wait_for_bytes(rank, tensor->block, stream);
    tensor->offset = tensor->block->offset + (at ? rank->step_base[space] : 0);
    tensor->reserved = tensor->block->bytes;
    tensor->data = (char *)rank->base[space] + tensor->offset;
    return true;
}

static void name_bytes(struct up_rank *rank, const struct up_tensor *tensor, bool renamed)
{
    struct up_device *device = rank->device;
    if (device->ops->name)
        device->ops->name(device, tensor->data, tensor->bytes, &tensor->tag.label, renamed);
}

struct up_tensor *up_alloc_on(struct up_rank *rank, enum up_space space, enum up_stream stream,
                              struct up_tag tag, enum up_dtype dtype, struct up_shape shape)
{
    int64_t bytes = up_shape_count(&shape) * up_dtype_bytes[dtype];
    struct up_tensor wanted = {.data = rank->base[space],
                               .shape = shape,
                               .dtype = dtype,
                               .space = space,
                               .bytes = bytes,
                               .tag = tag};
    struct up_tensor *tensor = NULL;
    if (!up_rank_failed(rank) && !(tensor = malloc(sizeof *tensor)))
        up_rank_fail(rank, UP_FAILED, "out of host memory for a tensor's bookkeeping");
    if (tensor) {
        *tensor = wanted;
        if (place(rank, tensor, stream)) {
            tensor->id = tensor->storage = ++rank->last_tensor_id;
            link_newest(rank, tensor);
            name_bytes(rank, tensor, false);
            tell_alloc(rank, tensor, stream);
            up_record_begin(rank, tensor);
            count_live(rank, space, bytes);
            look(rank);
            return tensor;
        }
        free(tensor);
    }
    rank->absent = wanted;
    return &rank->absent;
}

struct up_tensor *up_alloc(struct up_rank *rank, struct up_tag tag, enum up_dtype dtype,
                           struct up_shape shape)
{
    return up_alloc_on(rank, UP_SPACE_DEVICE, UP_STREAM_COMPUTE, tag, dtype, shape);
}

void up_free_on(struct up_rank *rank, struct up_tensor **slot, enum up_stream stream)
{
    struct up_tensor *tensor = *slot;
    *slot = NULL;
    if (!tensor || tensor == &rank->absent) return;
    struct up_device *device = rank->device;
    if (!up_rank_failed(rank)) {
        if (device->ops->discard)
            device->ops->discard(device, stream, tensor->data, tensor->reserved);
        tell_free(rank, tensor, stream);
        up_record_end(rank, tensor);
    }
    up_arena_give(tensor->block, device->ops->now_in(device, stream));
    rank->usage.live_bytes[tensor->space] -= tensor->bytes;
    unlink_tensor(rank, tensor);
    free(tensor);
}

void up_free(struct up_rank *rank, struct up_tensor **slot)
{
    up_free_on(rank, slot, UP_STREAM_COMPUTE);
}

void up_retag(struct up_rank *rank, struct up_tensor *tensor, struct up_tag tag,
              struct up_shape shape)
{
    if (up_rank_failed(rank)) return;
    UP_ASSERT(up_shape_count(&shape) * up_dtype_bytes[tensor->dtype] == tensor->bytes);
    struct up_tensor old = *tensor;
    tensor->tag = tag;
    tensor->shape = shape;
    tensor->id = ++rank->last_tensor_id;
    unlink_tensor(rank, tensor);
    link_newest(rank, tensor);
    name_bytes(rank, tensor, true);
    tell_alloc(rank, tensor, UP_STREAM_COMPUTE);
    tell_free(rank, &old, UP_STREAM_COMPUTE);
}

void up_rank_live(const struct up_rank *rank,
                  void (*visit)(const struct up_tensor *tensor, void *context), void *context)
{
    for (const struct up_tensor *tensor = rank->oldest; tensor; tensor = tensor->newer)
        visit(tensor, context);
}
