#include "profiler/marks.h"

#include <stdatomic.h>
#include <stdlib.h>

enum {
    SLACK = 1024, // more threads than that do not leave marks in the same moment
    RING = UP_MARKS_UNREAD + SLACK,
    CHAINS = UP_MARKS,
    NONE = -1
};

struct left {
    atomic_uint_fast64_t turn; // 1 + the mark's place in the order of all: it is written
    uint32_t call;
    struct up_mark mark;
};

// A mark that was read, in a chain with others whose numbers have the same low bits.
struct kept {
    uint32_t call; // 0: none
    int32_t next;
    struct up_mark mark;
};

struct up_marks {
    atomic_uint_fast64_t head, tail; // marks left, and read
    struct left ring[RING];
    // The reader's.
    uint64_t kept_count;
    struct kept kept[UP_MARKS];
    int32_t chain[CHAINS];
};

struct up_marks *up_marks_create(void)
{
    struct up_marks *marks = calloc(1, sizeof *marks);
    for (int i = 0; marks && i < CHAINS; i++) marks->chain[i] = NONE;
    return marks;
}

void up_marks_destroy(struct up_marks *marks)
{
    free(marks);
}

void up_marks_leave(struct up_marks *marks, uint32_t call, const struct up_mark *mark)
{
    uint64_t tail = atomic_load_explicit(&marks->tail, memory_order_acquire);
    if (atomic_load_explicit(&marks->head, memory_order_relaxed) - tail >= UP_MARKS_UNREAD) return;
    // Others may have taken turns since this thread saw the tail, because they saw a later one:
    // what they know of it comes with their turns, or the place could still be being read.
    uint64_t turn = atomic_fetch_add_explicit(&marks->head, 1, memory_order_acq_rel);
    struct left *left = &marks->ring[turn % RING];
    left->call = call;
    left->mark = *mark;
    atomic_store_explicit(&left->turn, turn + 1, memory_order_release);
}

static void unlink_kept(struct up_marks *marks, int32_t index)
{
    int32_t *at = &marks->chain[marks->kept[index].call % CHAINS];
    while (*at != index) at = &marks->kept[*at].next;
    *at = marks->kept[index].next;
}

// In the place of the oldest.
static void keep(struct up_marks *marks, const struct left *left)
{
    int32_t index = (int32_t)(marks->kept_count++ % UP_MARKS);
    struct kept *kept = &marks->kept[index];
    if (kept->call) unlink_kept(marks, index);
    int32_t *chain = &marks->chain[left->call % CHAINS];
    *kept = (struct kept){left->call, *chain, left->mark};
    *chain = index;
}

static void read_left(struct up_marks *marks)
{
    uint64_t tail = atomic_load_explicit(&marks->tail, memory_order_relaxed);
    for (;; tail++) {
        struct left *left = &marks->ring[tail % RING];
        if (atomic_load_explicit(&left->turn, memory_order_acquire) != tail + 1) break;
        keep(marks, left);
        atomic_store_explicit(&marks->tail, tail + 1, memory_order_release);
    }
}

bool up_marks_find(struct up_marks *marks, uint32_t call, struct up_mark *mark)
{
    if (!call) return false;
    read_left(marks);
    for (int32_t at = marks->chain[call % CHAINS]; at != NONE; at = marks->kept[at].next) {
        if (marks->kept[at].call != call) continue;
        *mark = marks->kept[at].mark;
        return true;
    }
    return false;
}
