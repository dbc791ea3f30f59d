#include "trace/names.h"

const char *const up_category_names[UP_CATEGORY_COUNT] = {
#define UP_CATEGORY(id, name) [UP_CATEGORY_##id] = name,
#include "trace/names.def"
#undef UP_CATEGORY
};

const char *const up_phase_names[UP_PHASE_COUNT] = {
#define UP_PHASE(id, name) [UP_PHASE_##id] = name,
#include "trace/names.def"
#undef UP_PHASE
};

const char *const up_dtype_names[UP_DTYPE_COUNT] = {
#define UP_DTYPE(id, name, bytes) [UP_##id] = name,
#include "trace/names.def"
#undef UP_DTYPE
};

const uint8_t up_dtype_bytes[UP_DTYPE_COUNT] = {
#define UP_DTYPE(id, name, bytes) [UP_##id] = bytes,
#include "trace/names.def"
#undef UP_DTYPE
};

const char *const up_stream_names[UP_STREAM_COUNT] = {
#define UP_STREAM(id, name) [UP_STREAM_##id] = name,
#include "trace/names.def"
#undef UP_STREAM
};

const char *const up_space_names[UP_SPACE_COUNT] = {
#define UP_SPACE(id, name) [UP_SPACE_##id] = name,
#include "trace/names.def"
#undef UP_SPACE
};
