#include "profiler/marks.h"

#include <stdatomic.h>
#include <stdlib.h>

// `call` is 0 while the rest is being written.
struct slot {
    _Atomic uint32_t call;
    _Atomic int32_t step;
    _Atomic uint64_t rank_and_kind, work_id, range_id;
};

struct up_marks {
    struct slot slot[UP_MARKS];
};

struct up_marks *up_marks_create(void)
{
    return calloc(1, sizeof(struct up_marks));
}

void up_marks_destroy(struct up_marks *marks)
{
    free(marks);
}

int64_t up_marks_bytes(void)
{
    return sizeof(struct up_marks);
}

#define SET(field, value) atomic_store_explicit(&(field), value, memory_order_relaxed)
#define GET(field)        atomic_load_explicit(&(field), memory_order_relaxed)

void up_marks_leave(struct up_marks *marks, uint32_t call, const struct up_mark *mark)
{
    struct slot *slot = &marks->slot[call % UP_MARKS];
    atomic_store_explicit(&slot->call, 0, memory_order_seq_cst);
    SET(slot->step, mark->step);
    SET(slot->rank_and_kind, (uint64_t)(uint32_t)mark->rank << 32 | (uint64_t)mark->kind);
    SET(slot->work_id, mark->work_id);
    SET(slot->range_id, mark->range_id);
    atomic_store_explicit(&slot->call, call, memory_order_release);
}

bool up_marks_find(const struct up_marks *marks, uint32_t call, struct up_mark *mark)
{
    struct slot *slot = (struct slot *)&marks->slot[call % UP_MARKS];
    if (!call || atomic_load_explicit(&slot->call, memory_order_acquire) != call) return false;
    uint64_t rank_and_kind = GET(slot->rank_and_kind);
    *mark = (struct up_mark){.rank = (int)(rank_and_kind >> 32),
                             .step = GET(slot->step),
                             .kind = (enum up_event_kind)(rank_and_kind & 0xff),
                             .work_id = GET(slot->work_id),
                             .range_id = GET(slot->range_id)};
    // The place may have been taken meanwhile by a later call.
    return atomic_load_explicit(&slot->call, memory_order_seq_cst) == call;
}
