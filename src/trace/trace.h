/* What a rank tells the recorder: typed events of one fixed size, pushed into a ring by the rank's
 * thread and taken out by the recorder's.
 *
 * A push writes 128 bytes and one index: no lock, no allocation, no system call. A full ring makes
 * the rank wait (in naps); nothing is ever dropped. The trace knows nothing of files: what becomes
 * of the events is the reader's business (profiler/recorder.h), and so is leaving out steps that
 * repeat the one before.
 *
 * Tracing off is a NULL `struct up_trace *`: every function here accepts it and returns at once.
 *
 * Strings in events are static (literals, or alive until the ring is destroyed): only the pointer
 * is stored. Times are nanoseconds since the run began, on the device's clock (device.h).
 */
#ifndef UP_TRACE_TRACE_H
#define UP_TRACE_TRACE_H

#include "base/base.h"
#include "trace/names.h"

enum up_event_kind {
    UP_EVENT_ALLOC = 1,
    UP_EVENT_FREE,
    UP_EVENT_RANGE_BEGIN,
    UP_EVENT_RANGE_END,
    UP_EVENT_KERNEL,
    UP_EVENT_COPY,
    UP_EVENT_COLLECTIVE,
    UP_EVENT_STEP_BEGIN,
    UP_EVENT_STEP_END,
    UP_EVENT_USAGE,
    UP_EVENT_DIAGNOSTIC,
    UP_EVENT_OOM,
    UP_EVENT_MEMORY,
};

/* What an UP_EVENT_MEMORY tells of memory that was taken from the driver, or of address space. */
enum up_memory_news {
    UP_MEMORY_RANGE,   // an arena's addresses: what is mapped there is told by the arena itself
    UP_MEMORY_TAKEN,   // so many bytes were taken
    UP_MEMORY_BRACKET, // between `ns` and `end_ns` use of the device grew by `bytes`
};

enum { UP_MAX_DIMS = 4, UP_NO_LAYER = -1, UP_NO_INDEX = -1 };

/* What a tensor or range is called. The full name is "layers.<layer>.<name>.<index>", without the
 * parts that are negative: "layers.12.attn.o.3", "layers.12.mlp.gate", "step.scalars". */
struct up_label {
    const char *name;
    int16_t layer; // UP_NO_LAYER outside layers
    int16_t index; // UP_NO_INDEX where there is but one
};

enum { UP_LABEL_TEXT = 96 };
const char *up_label_text(char out[UP_LABEL_TEXT], const struct up_label *label);

/* One event. `seq` counts this rank's events of the kinds ALLOC, FREE, RANGE_BEGIN and RANGE_END,
 * from 1; other kinds carry the count so far. `ns` is when it happened, or began. */
struct up_event {
    _Alignas(64) uint8_t kind; // enum up_event_kind
    uint8_t phase;             // enum up_phase
    int32_t step;              // -1 before the first
    uint64_t seq;
    int64_t ns;
    struct up_label label;
    union {
        struct {
            uint64_t id;       // unique within the rank, from 1
            uint64_t storage;  // the id of the tensor whose bytes these were first
            uint64_t range_id; // the innermost open range, 0 outside
            int64_t bytes, reserved, offset;
            uint32_t shape_low[UP_MAX_DIMS];  // low words of the dimensions ...
            uint16_t shape_high[UP_MAX_DIMS]; // ... and the 16 bits above them
            uint8_t space, category, dtype, stream, dims;
            bool outlives_step; // allocated outside any step
        } tensor;               // ALLOC; FREE has id, storage, bytes, space, category and stream
        struct {
            uint64_t id, parent; // parent 0: outermost
            uint8_t stream;
        } range; // RANGE_BEGIN, RANGE_END
        struct {
            uint64_t id; // counts the rank's kernels, copies and collectives, from 1; 0: not known
            uint64_t range_id;
            int64_t end_ns, bytes; // bytes moved; 0 for kernels
            double flops;
            uint8_t stream, from, to; // spaces, for copies
        } work;                       // KERNEL, COPY, COLLECTIVE; label.name is the operation
        struct {
            double loss, grad_norm; // NaN where there is none
            int64_t tokens, peak_bytes;
            uint64_t peak_seq, event_hash;
        } result; // STEP_END; STEP_BEGIN has none of it
        struct {
            int64_t device_used_bytes;
        } usage;
        struct {
            int64_t bytes, live_bytes, limit_bytes;
            int64_t free_bytes, largest_free_bytes; // of the arena it was looked for in
            uint8_t space, category;
        } oom; // label: the tensor that did not fit
        struct {
            uint64_t address; // RANGE: where it begins
            int64_t bytes, end_ns;
            uint8_t news, space; // enum up_memory_news; a BRACKET's space is the device
        } memory;                // label.name: the owner
    };
};
_Static_assert(sizeof(struct up_event) == 128, "an event is two cache lines");

static inline void up_event_set_dim(struct up_event *event, int i, int64_t extent)
{
    event->tensor.shape_low[i] = (uint32_t)extent;
    event->tensor.shape_high[i] = (uint16_t)(extent >> 32);
}

static inline int64_t up_event_dim(const struct up_event *event, int i)
{
    return (int64_t)event->tensor.shape_high[i] << 32 | event->tensor.shape_low[i];
}

/* Equal for two events that say the same thing at different times: everything but seq, ns, end_ns,
 * ids, where the arena put it (offset, reserved), flops, results and the step number. What "a step
 * repeats the one before" means. */
uint64_t up_event_key(const struct up_event *event);

/* The exactness contract's hash of a step: chained over its ALLOC and FREE events, from (kind,
 * space, label, category, phase, bytes) alone, so that it is equal between devices and processes.
 */
#define UP_EVENT_HASH_START UINT64_C(0x75706970652d3031)
uint64_t up_event_hash(uint64_t before, bool alloc, enum up_space space,
                       const struct up_label *label, enum up_category category, enum up_phase phase,
                       int64_t bytes);

/* One rank's ring. One thread pushes, one takes. */
struct up_trace;

/* `capacity` events, rounded up to a power of two, 128 bytes each. NULL when memory is short. */
struct up_trace *up_trace_create(int rank, int capacity);
void up_trace_destroy(struct up_trace *trace); // NULL is fine
int up_trace_rank(const struct up_trace *trace);

/* The rank's side. Fills in nothing: the caller sets every field that the kind has. */
void up_trace_push(struct up_trace *trace, const struct up_event *event);

/* Tells the reader that no more will come. */
void up_trace_close(struct up_trace *trace);

/* The reader's side: up to `max` events, oldest first; the number taken, 0 if none is there. */
int up_trace_take(struct up_trace *trace, struct up_event *events, int max);
bool up_trace_closed(struct up_trace *trace); // closed, and all taken

/* The reader gives up (a disk is full): pushes return at once from now on, and events vanish. */
void up_trace_abandon(struct up_trace *trace);

/* The rank's side: waits until the reader has said, by up_trace_written, that all pushed so far is
 * on its way to the disk, but no longer than `patience_ns`. For what must not be lost. */
void up_trace_flush(struct up_trace *trace, int64_t patience_ns);
/* The reader's side: what has been taken so far is written. */
void up_trace_written(struct up_trace *trace);

/* How many times a push found the ring full and waited. */
uint64_t up_trace_waits(const struct up_trace *trace);

#endif
