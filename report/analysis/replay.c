/* In three sorts: lifetimes by storage, which gives each storage's changes of size; the changes of
 * all by seq; their running sum is the answer. n log n throughout, whatever the file claims. */
#include "report/analysis/replay.h"

#include <stdlib.h>
#include <string.h>

struct change {
    int64_t seq, ns, step, delta;
};

struct changes {
    struct change *items;
    int64_t count;
};

static int compare(int64_t a, int64_t b)
{
    return (a > b) - (a < b);
}

static int by_storage(const void *a, const void *b)
{
    const struct up_lifetime *x = a, *y = b;
    int order = compare(x->storage, y->storage);
    return order ? order : compare(x->alloc_seq, y->alloc_seq);
}

static int by_seq(const void *a, const void *b)
{
    return compare(((const struct change *)a)->seq, ((const struct change *)b)->seq);
}

static enum up_status read_lifetimes(const struct up_run *run, int64_t rank, enum up_space space,
                                     struct up_lifetime **lifetimes, int64_t *count,
                                     struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    int64_t capacity = 0;
    bool row;
    UP_TRY(up_query_open(&query, run,
                         "SELECT storage_id, bytes, alloc_seq, free_seq, alloc_ns, free_ns, step,"
                         " free_step FROM tensor WHERE rank = ?1 AND space = ?2",
                         UP_BIND(rank), err));
    up_query_bind_text(&query, 2, up_space_names[space]);
    for (*count = 0;; (*count)++) {
        UP_TRY(up_query_next(&query, &row, err));
        if (!row) break;
        UP_TRY(up_grow(lifetimes, *count, &capacity, sizeof **lifetimes, err));
        struct up_lifetime *l = &(*lifetimes)[*count];
        *l = (struct up_lifetime){.storage = up_query_integer(&query, 0, 0),
                                  .bytes = up_max(0, up_query_integer(&query, 1, 0)),
                                  .alloc_seq = up_query_integer(&query, 2, 0),
                                  .free_seq = up_query_integer(&query, 3, INT64_MAX),
                                  .alloc_ns = up_query_integer(&query, 4, 0),
                                  .free_ns = up_query_integer(&query, 5, 0),
                                  .step = up_query_integer(&query, 6, UP_NONE),
                                  .free_step = up_query_integer(&query, 7, UP_NONE)};
        if (l->free_seq <= l->alloc_seq) (*count)--; // never alive
    }
out:
    up_query_close(&query);
    return rc;
}

/* --- One storage: its names overlap or follow each other ---------------------------------------
 */

// A heap of lifetimes with the largest on top; those that have ended are dropped when they get
// there.
struct heap {
    const struct up_lifetime **items;
    int64_t count;
};

static void heap_push(struct heap *heap, const struct up_lifetime *item)
{
    int64_t at = heap->count++;
    for (; at > 0 && heap->items[(at - 1) / 2]->bytes < item->bytes; at = (at - 1) / 2)
        heap->items[at] = heap->items[(at - 1) / 2];
    heap->items[at] = item;
}

static void heap_pop(struct heap *heap)
{
    const struct up_lifetime *item = heap->items[--heap->count];
    int64_t at = 0;
    for (int64_t child; (child = 2 * at + 1) < heap->count; at = child) {
        if (child + 1 < heap->count && heap->items[child + 1]->bytes > heap->items[child]->bytes)
            child++;
        if (heap->items[child]->bytes <= item->bytes) break;
        heap->items[at] = heap->items[child];
    }
    if (heap->count) heap->items[at] = item;
}

static int64_t heap_bytes(struct heap *heap, int64_t seq)
{
    while (heap->count && heap->items[0]->free_seq <= seq) heap_pop(heap);
    return heap->count ? heap->items[0]->bytes : 0;
}

// The moments at which one storage may change, unsorted, `delta` still empty.
static int64_t list_moments(const struct up_lifetime *names, int64_t count, struct change *out)
{
    int64_t made = 0;
    for (int64_t i = 0; i < count; i++) {
        const struct up_lifetime *l = &names[i];
        out[made++] = (struct change){l->alloc_seq, l->alloc_ns, l->step, 0};
        if (l->free_seq != INT64_MAX)
            out[made++] = (struct change){l->free_seq, l->free_ns, l->free_step, 0};
    }
    return made;
}

/* Appends the changes of one storage with `count` names, by alloc_seq. A moment that changes
 * nothing (a second name of the same bytes) stays, as a change of 0: it is a point of the timeline.
 */
static void replay_storage(const struct up_lifetime *names, int64_t count, struct heap *heap,
                           struct changes *changes)
{
    struct change *out = changes->items + changes->count;
    int64_t made = list_moments(names, count, out);
    changes->count += made;
    qsort(out, (size_t)made, sizeof *out, by_seq);
    int64_t before = 0, pushed = 0;
    heap->count = 0;
    for (int64_t i = 0; i < made; i++) {
        for (; pushed < count && names[pushed].alloc_seq <= out[i].seq; pushed++)
            heap_push(heap, &names[pushed]);
        int64_t now = heap_bytes(heap, out[i].seq);
        out[i].delta = now - before;
        before = now;
    }
}

/* --- All of them -------------------------------------------------------------------------------
 */

static enum up_status list_changes(struct up_lifetime *lifetimes, int64_t count,
                                   struct changes *changes, struct up_error *err)
{
    struct heap heap = {.items = calloc((size_t)count + 1, sizeof(void *))};
    changes->items = calloc(2 * (size_t)count + 1, sizeof *changes->items);
    if (!heap.items || !changes->items) {
        free(heap.items);
        return up_no_memory(err);
    }
    if (count) qsort(lifetimes, (size_t)count, sizeof *lifetimes, by_storage);
    for (int64_t first = 0, end; first < count; first = end) {
        for (end = first + 1; end < count && lifetimes[end].storage == lifetimes[first].storage;)
            end++;
        replay_storage(lifetimes + first, end - first, &heap, changes);
    }
    if (changes->count)
        qsort(changes->items, (size_t)changes->count, sizeof *changes->items, by_seq);
    free(heap.items);
    return UP_OK;
}

static enum up_status sum_changes(const struct changes *changes, struct up_replay *replay,
                                  struct up_error *err)
{
    int64_t live = 0;
    replay->points = calloc((size_t)changes->count + 1, sizeof *replay->points);
    if (!replay->points) return up_no_memory(err);
    for (int64_t i = 0; i < changes->count; i++) {
        const struct change *c = &changes->items[i];
        live = up_sum(live, c->delta);
        if (replay->count && replay->points[replay->count - 1].seq == c->seq) replay->count--;
        replay->points[replay->count++] = (struct up_replay_point){c->seq, c->ns, c->step, live};
    }
    return UP_OK;
}

enum up_status up_replay_make(struct up_lifetime *lifetimes, int64_t count,
                              struct up_replay *replay, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct changes changes = {0};
    *replay = (struct up_replay){0};
    UP_TRY(list_changes(lifetimes, count, &changes, err));
    UP_TRY(sum_changes(&changes, replay, err));
out:
    free(changes.items);
    if (rc != UP_OK) up_replay_release(replay);
    return rc;
}

enum up_status up_replay_read(const struct up_run *run, int64_t rank, enum up_space space,
                              struct up_replay *replay, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_lifetime *lifetimes = NULL;
    int64_t count = 0;
    *replay = (struct up_replay){0};
    UP_TRY(read_lifetimes(run, rank, space, &lifetimes, &count, err));
    UP_TRY(up_replay_make(lifetimes, count, replay, err));
out:
    free(lifetimes);
    return rc;
}

void up_replay_release(struct up_replay *replay)
{
    free(replay->points);
    *replay = (struct up_replay){0};
}

void up_replay_span(const struct up_replay *replay, int64_t step, int64_t *first, int64_t *end)
{
    *first = 0;
    *end = step == UP_NONE ? replay->count : 0;
    if (step == UP_NONE) return;
    for (int64_t i = 0; i < replay->count; i++) {
        if (replay->points[i].step != step) continue;
        if (!*end) *first = i;
        *end = i + 1;
    }
}

const struct up_replay_point *up_replay_highest(const struct up_replay *replay, int64_t first,
                                                int64_t end)
{
    const struct up_replay_point *highest = &replay->points[first];
    for (int64_t i = first + 1; i < end; i++)
        if (replay->points[i].live_bytes > highest->live_bytes) highest = &replay->points[i];
    return highest;
}
