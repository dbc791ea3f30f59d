/* The words of the trace: categories, phases, dtypes, streams and spaces, as enums with their
 * names. */
#ifndef UP_TRACE_NAMES_H
#define UP_TRACE_NAMES_H

#include <stdint.h>

enum up_category {
#define UP_CATEGORY(id, name) UP_CATEGORY_##id,
#include "trace/names.def"
#undef UP_CATEGORY
    UP_CATEGORY_COUNT
};

enum up_phase {
#define UP_PHASE(id, name) UP_PHASE_##id,
#include "trace/names.def"
#undef UP_PHASE
    UP_PHASE_COUNT
};

enum up_dtype {
#define UP_DTYPE(id, name, bytes) UP_##id,
#include "trace/names.def"
#undef UP_DTYPE
    UP_DTYPE_COUNT
};

/* The device's queues. Work within a stream runs in order; between streams only events order it. */
enum up_stream {
#define UP_STREAM(id, name) UP_STREAM_##id,
#include "trace/names.def"
#undef UP_STREAM
    UP_STREAM_COUNT
};

/* Where memory is: the device's own, or (pinned) host memory. */
enum up_space {
#define UP_SPACE(id, name) UP_SPACE_##id,
#include "trace/names.def"
#undef UP_SPACE
    UP_SPACE_COUNT
};

extern const char *const up_category_names[UP_CATEGORY_COUNT];
extern const char *const up_phase_names[UP_PHASE_COUNT];
extern const char *const up_dtype_names[UP_DTYPE_COUNT];
extern const char *const up_stream_names[UP_STREAM_COUNT];
extern const char *const up_space_names[UP_SPACE_COUNT];
extern const uint8_t up_dtype_bytes[UP_DTYPE_COUNT];

#endif
