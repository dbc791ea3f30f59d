/* What events say, without when: labels, keys and the step's hash. */
#include "trace/trace.h"

#include <stdio.h>
#include <string.h>

const char *up_label_text(char out[UP_LABEL_TEXT], const struct up_label *label)
{
    char layer[24] = "", index[24] = "";
    if (label->layer >= 0) snprintf(layer, sizeof layer, "layers.%d.", label->layer);
    if (label->index >= 0) snprintf(index, sizeof index, ".%d", label->index);
    snprintf(out, UP_LABEL_TEXT, "%s%s%s", layer, label->name, index);
    return out;
}

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 32);
}

static uint64_t mix_text(uint64_t hash, const char *text)
{
    uint64_t word = 0;
    for (int shift = 0; *text; text++) {
        word |= (uint64_t)(unsigned char)*text << shift;
        shift += 8;
        if (shift == 64) {
            hash = mix(hash, word);
            word = 0;
            shift = 0;
        }
    }
    return mix(hash, word);
}

static uint64_t mix_label(uint64_t hash, const struct up_label *label)
{
    hash = mix(hash, (uint64_t)(uint16_t)label->layer << 16 | (uint16_t)label->index);
    return mix_text(hash, label->name);
}

uint64_t up_event_hash(uint64_t before, bool alloc, enum up_space space,
                       const struct up_label *label, enum up_category category, enum up_phase phase,
                       int64_t bytes)
{
    uint64_t what =
        (uint64_t)alloc | (uint64_t)space << 8 | (uint64_t)category << 16 | (uint64_t)phase << 24;
    return mix_label(mix(mix(before, what), (uint64_t)bytes), label);
}

static uint64_t mix_shape(uint64_t hash, const struct up_event *event)
{
    hash = mix(hash, (uint64_t)event->tensor.dims | (uint64_t)event->tensor.dtype << 8);
    for (int i = 0; i < event->tensor.dims; i++) hash = mix(hash, (uint64_t)up_event_dim(event, i));
    return hash;
}

uint64_t up_event_key(const struct up_event *event)
{
    uint64_t hash = mix(event->kind, event->phase);
    if (event->label.name) hash = mix_label(hash, &event->label);
    switch ((enum up_event_kind)event->kind) {
    case UP_EVENT_ALLOC:
        hash = mix_shape(hash, event); // fall through
    case UP_EVENT_FREE:
        hash = mix(hash, (uint64_t)event->tensor.bytes);
        hash = mix(hash, (uint64_t)event->tensor.space | (uint64_t)event->tensor.category << 8 |
                             (uint64_t)event->tensor.stream << 16);
        break;
    case UP_EVENT_RANGE_BEGIN:
    case UP_EVENT_RANGE_END:
        hash = mix(hash, event->range.stream);
        break;
    case UP_EVENT_KERNEL:
    case UP_EVENT_COPY:
    case UP_EVENT_COLLECTIVE:
        hash = mix(hash, (uint64_t)event->work.bytes);
        hash = mix(hash, (uint64_t)event->work.stream | (uint64_t)event->work.from << 8 |
                             (uint64_t)event->work.to << 16);
        break;
    default:
        break;
    }
    return hash;
}
