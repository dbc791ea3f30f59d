/* The allocator, and the context that one rank's step works in.
 *
 * A rank has one arena per space. Every tensor is allocated under a tag, and every allocation and
 * free is told to the trace. For a given run config the list of them is a pure function (docs/
 * design.md, "the exactness contract"): nothing here looks at time, addresses or data.
 *
 * Failure is sticky: the first one (an arena that is full, say) is kept in `rank->error`, and from
 * then on allocations return a tensor without memory, launches and frees do nothing. A step need
 * not check each line; whoever drives it asks up_rank_failed() between layers.
 */
#ifndef UP_MEM_MEM_H
#define UP_MEM_MEM_H

#include "base/base.h"
#include "device/device.h"
#include "mem/plan.h"
#include "trace/trace.h"

struct up_shape {
    int dims;
    int64_t extent[UP_MAX_DIMS]; // outermost first; row-major, no padding
};
#define UP_SHAPE(...)                                                                              \
    ((struct up_shape){.dims = sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t),                 \
                       .extent = {__VA_ARGS__}})
int64_t up_shape_count(const struct up_shape *shape); // elements

/* What an allocation is for. */
struct up_tag {
    struct up_label label;
    enum up_category category;
};
#define UP_TAG(category_, name_)                                                                   \
    ((struct up_tag){{name_, UP_NO_LAYER, UP_NO_INDEX}, UP_CATEGORY_##category_})
#define UP_TAG_LAYER(category_, name_, layer_)                                                     \
    ((struct up_tag){{name_, (int16_t)(layer_), UP_NO_INDEX}, UP_CATEGORY_##category_})
#define UP_TAG_INDEX(category_, name_, layer_, index_)                                             \
    ((struct up_tag){{name_, (int16_t)(layer_), (int16_t)(index_)}, UP_CATEGORY_##category_})

struct up_tensor {
    void *data; // on dry an address that may be computed with but not dereferenced
    struct up_shape shape;
    enum up_dtype dtype;
    enum up_space space;
    int64_t bytes;    // exactly the elements'
    int64_t reserved; // what the arena gave
    int64_t offset;   // in the arena
    uint64_t id, storage;
    struct up_tag tag;
    struct up_block *block;          // the arena's; NULL for a tensor that could not be had
    int64_t step_index;              // which allocation of its step and space it is; -1 outside
    struct up_tensor *older, *newer; // the rank's live tensors
};

/* The address of row `row` of a tensor, a row being all but its first dimension. */
static inline void *up_row(const struct up_tensor *tensor, int64_t row)
{
    int64_t width = tensor->shape.extent[0] ? tensor->bytes / tensor->shape.extent[0] : 0;
    return (char *)tensor->data + row * width;
}

/* Bytes alive, highest, and the step's hash; `peak` and `hash` restart with up_rank_step_begin. */
struct up_usage {
    int64_t live_bytes[UP_SPACE_COUNT];
    int64_t peak_bytes[UP_SPACE_COUNT];
    uint64_t peak_seq[UP_SPACE_COUNT];
    int64_t peak_event[UP_SPACE_COUNT]; // which of the step's events reached it; 0: its beginning
    uint64_t event_hash;
    int64_t events; // allocations and frees in this step
};

struct up_arena;
struct up_rank;
struct up_rehearsal;

/* The lifetimes of a step's tensors, per space and in the order of their allocation. */
struct up_step_lives {
    struct up_life *life[UP_SPACE_COUNT]; // owned; see up_step_lives_release
    int64_t count[UP_SPACE_COUNT], room[UP_SPACE_COUNT];
};

/* Where each of them goes: the n-th allocation of a step in a space has `bytes` and lies at
 * `offset` of that space's step arena. */
struct up_planned {
    int64_t bytes, offset;
};
struct up_step_plan {
    struct up_planned *tensor[UP_SPACE_COUNT]; // owned; see up_step_plan_release
    int64_t count[UP_SPACE_COUNT];
    int64_t height[UP_SPACE_COUNT];    // of the step arena
    int64_t kept_high[UP_SPACE_COUNT]; // what lies below it: the arena of all that outlives steps
};

/* Calls `reached` in the step's `event`-th event, an allocation, when that is counted. */
struct up_lookout {
    int64_t event;
    void (*reached)(const struct up_rank *rank, void *context);
    void *context;
};

enum { UP_MAX_RANGES = 32 };

/* One rank at work. Set up by up_rank_init, used by its thread alone. */
struct up_rank {
    int rank;
    struct up_device *device;               // not owned
    struct up_trace *trace;                 // not owned; NULL: not traced
    struct up_arena *arena[UP_SPACE_COUNT]; // of what outlives steps
    struct up_arena
        *step_arena[UP_SPACE_COUNT]; // of steps, with a plan; begins where the other ends
    int64_t step_base[UP_SPACE_COUNT], backed[UP_SPACE_COUNT];
    const struct up_step_plan *plan;       // NULL: steps use `arena` as well; not owned
    struct up_step_lives *record;          // NULL: lifetimes are not recorded; not owned
    struct up_rehearsal *rehearsal;        // NULL: calls are not noted; ops/rehearsal.h, not owned
    const struct up_lookout *lookout;      // NULL: nobody looks; not owned
    int64_t taken_in_step[UP_SPACE_COUNT]; // allocations so far
    int64_t unplanned;                 // allocations that the plan did not know: a mistake of ours
    void *base[UP_SPACE_COUNT];        // where the arenas' address ranges begin
    int64_t capacity[UP_SPACE_COUNT];  // and how long they are
    struct up_tensor *oldest, *newest; // live tensors
    struct up_tensor absent;           // what allocations return after a failure
    struct up_usage usage;
    enum up_phase phase;
    int64_t step; // -1 outside steps
    uint64_t seq, last_tensor_id, last_range_id, last_work_id;
    uint64_t work_now; // the piece of work that is being given to the device; 0: none
    enum up_event_kind work_kind;
    uint64_t open_ranges[UP_MAX_RANGES];
    struct up_label open_labels[UP_MAX_RANGES];
    int range_depth;
    struct up_error error; // the first failure; status UP_OK while there is none
    bool out_of_memory;    // it was an arena that is too small
};

/* `limit_bytes`: what each arena may hold, 0 for the device's capacity. */
enum up_status up_rank_init(struct up_rank *rank, int number, struct up_device *device,
                            struct up_trace *trace, const int64_t limit_bytes[UP_SPACE_COUNT],
                            struct up_error *err);
/* Gives the arenas back, whatever is still alive in them; the device must have been synchronised.
 */
void up_rank_release(struct up_rank *rank);

/* From the next step on: the lifetimes of each step are written to `lives`, over those of the step
 * before; NULL ends it. */
void up_rank_record_lives(struct up_rank *rank, struct up_step_lives *lives);
void up_step_lives_release(struct up_step_lives *lives);

/* A plan for steps with these lifetimes, on a rank like this one (whose kept_high is taken). */
enum up_status up_step_plan_make(const struct up_rank *rank, const struct up_step_lives *lives,
                                 struct up_step_plan *plan, struct up_error *err);
void up_step_plan_release(struct up_step_plan *plan);

/* From now on steps take their tensors where the plan says. To be called when all that outlives
 * steps has been allocated: afterwards that arena does not grow. `plan` stays the caller's. A plan
 * that does not fit is not used: steps then take what they find, until there is none for a tensor,
 * which is named. An allocation that the plan does not know, or with other bytes, is taken from
 * what is free of that arena, counted in `unplanned`, and told to the trace. */
enum up_status up_rank_use_plan(struct up_rank *rank, const struct up_step_plan *plan,
                                struct up_error *err);

static inline bool up_rank_failed(const struct up_rank *rank)
{
    return rank->error.status != UP_OK;
}

/* A tensor, to be used first on `stream`: bytes last used on another stream are waited for there.
 * The tensor belongs to the rank and is alive until up_free. */
struct up_tensor *up_alloc_on(struct up_rank *rank, enum up_space space, enum up_stream stream,
                              struct up_tag tag, enum up_dtype dtype, struct up_shape shape);
/* On the device, for the compute stream: the usual case. */
struct up_tensor *up_alloc(struct up_rank *rank, struct up_tag tag, enum up_dtype dtype,
                           struct up_shape shape);

/* The tensor's bytes may be used again, by work after what `stream` has been given so far. Sets
 * *slot to NULL; NULL in it is fine. */
void up_free_on(struct up_rank *rank, struct up_tensor **slot, enum up_stream stream);
void up_free(struct up_rank *rank, struct up_tensor **slot); // last used on the compute stream

/* The same bytes become another tensor of as many bytes: in the trace a new lifetime with the
 * same storage. */
void up_retag(struct up_rank *rank, struct up_tensor *tensor, struct up_tag tag,
              struct up_shape shape);

/* A named stretch of the step; they nest. The name of a range in layer l is "layers.l.<name>". */
void up_range_begin(struct up_rank *rank, const char *name, int layer);
void up_range_end(struct up_rank *rank);

void up_rank_step_begin(struct up_rank *rank, int64_t step);
/* NaN for what is not known. */
void up_rank_step_end(struct up_rank *rank, double loss, double grad_norm, int64_t tokens);

/* Device work; traced as kernels and copies. up_copy: whole tensors of equal bytes. */
void up_launch(struct up_rank *rank, enum up_stream stream, const char *name, union up_call run,
               const void *args, size_t size, const struct up_cost *cost);
/* A collective, which sends `bytes` to other ranks. */
void up_launch_collective(struct up_rank *rank, enum up_stream stream, const char *name,
                          union up_call run, const void *args, size_t size, int64_t bytes);
void up_copy(struct up_rank *rank, enum up_stream stream, struct up_tensor *to,
             const struct up_tensor *from);
/* Work given to `stream` from now on waits for what `other` has been given so far. */
void up_stream_wait(struct up_rank *rank, enum up_stream stream, enum up_stream other);
/* The stream's present end, and waiting for such a moment instead of for all given since. */
struct up_moment up_stream_moment(struct up_rank *rank, enum up_stream stream);
void up_stream_wait_moment(struct up_rank *rank, enum up_stream stream, struct up_moment moment);
/* Around what a library sets up or does for the first time, outside steps: by how much the use of
 * the device grows in between is told to the trace as the owner's, less what was told of already
 * (profiler/ledger.h). Brackets nest. */
struct up_bracket {
    int64_t begin_ns, used_bytes; // -1: nobody can tell
};
struct up_bracket up_bracket_begin(struct up_rank *rank);
/* One that began when the device had been made. */
struct up_bracket up_bracket_since_made(struct up_rank *rank);
void up_bracket_end(struct up_rank *rank, const struct up_bracket *bracket, const char *owner);

/* Between steps: what is used of the device now, to the trace. */
void up_rank_tell_usage(struct up_rank *rank);

/* The host waits for the stream. */
void up_stream_synchronize(struct up_rank *rank, enum up_stream stream);

/* Keeps the first failure. Returns its status. */
enum up_status up_rank_fail(struct up_rank *rank, enum up_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Where the step's device tensors will lie: between steps, and with a plan in use, bytes that
 * nobody needs, as many as the plan is high. For the compute stream, until the end that is told. */
void *up_step_scrap(struct up_rank *rank);
void up_step_scrap_end(struct up_rank *rank, void *scrap);

/* Calls `visit` for each live tensor, oldest first. */
void up_rank_live(const struct up_rank *rank,
                  void (*visit)(const struct up_tensor *tensor, void *context), void *context);

#endif
