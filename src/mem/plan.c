/* Offsets from lifetimes: best fit in a good order, over an index of time.
 *
 * Packing rectangles of given width (time) and height (bytes) under the lowest ceiling is NP-hard; the
 * lives of a training step are nearly nested, and for those a greedy placement comes out at the live
 * peak or just above if the order is right. So:
 *
 *   slots   Time is cut where it matters: two lives meet if and only if they share a slot.
 *   index   A segment tree over the slots. Each node knows which address ranges are taken, as a set of
 *           disjoint ranges: small, since a dense placement has few holes, however many lives made it.
 *   place   In a given order, each life takes the tightest hole that is free over its whole life.
 *   search  The classical orders one after the other, then repairs of the best of them: what stuck
 *           out above the live peak goes first in the next try. Reaching the live peak ends it.
 */
#include "mem/plan.h"

#include <stdlib.h>
#include <string.h>

/* How many lives may be placed in all tries together, beyond the first try of each order. Bounds the
 * time, and unlike a clock gives equal plans on all machines. */
enum { REPAIR_PLACEMENTS = 300000 };

/* A life that takes room. */
struct block {
    int64_t index;       // in the caller's array
    int64_t size;        // rounded, above 0
    int64_t begin, end;  // as the caller gave them
    int64_t first, last; // slots, both inclusive
    int64_t crowd;       // the largest sum of sizes alive in any of its slots
    int64_t offset;
};

/* --- Slots --------------------------------------------------------------------------------------- */

struct moment {
    int64_t time;
    int64_t block;
    bool begins;
};

// By time, at equal times ends first.
static int compare_moments(const void *left, const void *right)
{
    const struct moment *a = left, *b = right;
    if (a->time != b->time) return a->time < b->time ? -1 : 1;
    if (a->begins != b->begins) return a->begins ? 1 : -1;
    return (a->block > b->block) - (a->block < b->block);
}

// A multiple of align, INT64_MAX where there is none.
static int64_t round_up(int64_t bytes, int64_t align)
{
    return bytes > INT64_MAX - (align - 1) ? INT64_MAX : (bytes + align - 1) & -align;
}

// The lives that take room, in order of their index; the number of them.
static int64_t collect_blocks(const struct up_life *lives, int64_t count, int64_t align,
                              struct block *blocks)
{
    int64_t n = 0;
    for (int64_t i = 0; i < count; i++) {
        UP_ASSERT(lives[i].bytes >= 0);
        if (lives[i].bytes == 0 || lives[i].begin >= lives[i].end) continue;
        blocks[n++] = (struct block){.index = i,
                                     .size = round_up(lives[i].bytes, align),
                                     .begin = lives[i].begin,
                                     .end = lives[i].end};
    }
    return n;
}

static void sort_moments(const struct block *blocks, int64_t n, struct moment *moments)
{
    for (int64_t i = 0; i < n; i++) {
        moments[2 * i] = (struct moment){blocks[i].begin, i, true};
        moments[2 * i + 1] = (struct moment){blocks[i].end, i, false};
    }
    qsort(moments, (size_t)(2 * n), sizeof *moments, compare_moments);
}

/* Sets first and last of the blocks; returns the number of slots. A slot is a stretch of begins and the
 * ends after it: at its last begin everything that lives in the slot is alive at once, so that
 * crowds[slot], the sum of their sizes (INT64_MAX if it is 2^63 or more), is a clique's. */
static int64_t cut_slots(struct block *blocks, const struct moment *moments, int64_t n,
                         int64_t *crowds)
{
    int64_t slot = 0;
    __int128 alive = 0;
    for (int64_t i = 0; i < 2 * n; i++) {
        struct block *block = &blocks[moments[i].block];
        if (moments[i].begins) {
            if (i > 0 && !moments[i - 1].begins) slot++;
            block->first = slot;
            alive += block->size;
            crowds[slot] = alive < INT64_MAX ? (int64_t)alive : INT64_MAX;
        } else {
            block->last = slot;
            alive -= block->size;
        }
    }
    return n ? slot + 1 : 0;
}

static int64_t largest(const int64_t *values, int64_t count)
{
    int64_t most = 0;
    for (int64_t i = 0; i < count; i++) most = up_max(most, values[i]);
    return most;
}

/* --- Sets of address ranges ---------------------------------------------------------------------- */

struct range {
    int64_t low, high; // [low, high)
};

/* Disjoint, not even touching, ascending. */
struct ranges {
    struct range *at;
    int32_t count, room;
};

static bool ranges_reserve(struct ranges *set, int32_t room)
{
    if (room <= set->room) return true;
    if (room < 2 * set->room) room = 2 * set->room;
    struct range *grown = realloc(set->at, (size_t)room * sizeof *grown);
    if (!grown) return false;
    set->at = grown;
    set->room = room;
    return true;
}

// The first range that ends at `low` or later.
static int32_t ranges_find(const struct ranges *set, int64_t low)
{
    int32_t from = 0, to = set->count;
    while (from < to) {
        int32_t middle = (from + to) / 2;
        if (set->at[middle].high < low)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

// The range after the narrowest hole, and that before it, become one.
static void ranges_fill_narrowest(struct ranges *set)
{
    int32_t at = 1;
    for (int32_t i = 2; i < set->count; i++)
        if (set->at[i].low - set->at[i - 1].high < set->at[at].low - set->at[at - 1].high) at = i;
    set->at[at - 1].high = set->at[at].high;
    memmove(set->at + at, set->at + at + 1, (size_t)(set->count - at - 1) * sizeof *set->at);
    set->count--;
}

/* Adds one range, joined with those it overlaps or touches. Of more than `most` ranges the set forgets
 * a hole: it then covers more than was added. False when memory is short. */
static bool ranges_add(struct ranges *set, struct range added, int32_t most)
{
    int32_t from = ranges_find(set, added.low), to = from;
    for (; to < set->count && set->at[to].low <= added.high; to++) {
        added.low = up_min(added.low, set->at[to].low);
        added.high = up_max(added.high, set->at[to].high);
    }
    if (!ranges_reserve(set, set->count + 1)) return false;
    memmove(set->at + from + 1, set->at + to, (size_t)(set->count - to) * sizeof *set->at);
    set->at[from] = added;
    set->count += 1 - (to - from);
    if (set->count > most) ranges_fill_narrowest(set);
    return true;
}

/* *set = *set united with `other`, holes narrower than `size` filled: nothing of that size would go
 * there. `spare` is room to work in, and is exchanged with *set. False when memory is short. */
static bool ranges_unite(struct ranges *set, const struct ranges *other, int64_t size,
                         struct ranges *spare)
{
    if (!other->count) return true;
    if (!ranges_reserve(spare, set->count + other->count)) return false;
    struct range *out = spare->at;
    int32_t i = 0, j = 0, n = 0;
    while (i < set->count || j < other->count) {
        bool ours = j == other->count || (i < set->count && set->at[i].low <= other->at[j].low);
        struct range next = ours ? set->at[i++] : other->at[j++];
        if (n && next.low - out[n - 1].high < size)
            out[n - 1].high = up_max(out[n - 1].high, next.high);
        else
            out[n++] = next;
    }
    spare->count = n;
    struct ranges united = *spare;
    *spare = *set;
    *set = united;
    return true;
}

/* The lowest address of the tightest hole for `size`; above all ranges where none is large enough. */
static int64_t ranges_best_fit(const struct ranges *set, int64_t size)
{
    int64_t end = 0, best = -1, tightest = INT64_MAX;
    for (int32_t i = 0; i < set->count; i++) {
        int64_t hole = set->at[i].low - end;
        if (hole >= size && hole < tightest) {
            tightest = hole;
            best = end;
        }
        end = set->at[i].high;
    }
    return best < 0 ? end : best;
}

/* --- The index over time ------------------------------------------------------------------------- */

/* A node of the segment tree stands for a stretch of slots. A block is filed at the few nodes whose
 * stretches its life is made of. */
struct node {
    struct ranges filed;  // what the blocks filed here take
    struct ranges within; // what those filed here or below take
};

struct index {
    struct node *nodes; // in preorder: what is near in time is near in memory
    int64_t slots;
    int32_t most;               // ranges in a node's set
    int64_t work;               // ranges gone through since the beginning, about
    struct ranges taken, spare; // a query's
};

/* A node with its stretch [low, high]. */
struct place {
    int64_t node, low, high;
};

static int64_t place_middle(struct place p) { return p.low + (p.high - p.low) / 2; }

static struct place place_lower(struct place p)
{
    return (struct place){p.node + 1, p.low, place_middle(p)};
}

// The lower half, of h slots, has 2h - 1 nodes.
static struct place place_upper(struct place p)
{
    int64_t middle = place_middle(p);
    return (struct place){p.node + 2 * (middle - p.low + 1), middle + 1, p.high};
}

static struct place index_root(const struct index *index)
{
    return (struct place){0, 0, index->slots - 1};
}

static bool covers(const struct block *block, struct place p)
{
    return block->first <= p.low && p.high <= block->last;
}

static bool meets(const struct block *block, struct place p)
{
    return block->first <= p.high && p.low <= block->last;
}

static bool index_init(struct index *index, int64_t slots, int32_t most)
{
    *index = (struct index){.slots = slots, .most = most};
    index->nodes = calloc((size_t)(2 * slots), sizeof *index->nodes);
    return index->nodes != NULL;
}

static void index_release(struct index *index)
{
    for (int64_t k = 0; index->nodes && k < 2 * index->slots; k++) {
        free(index->nodes[k].filed.at);
        free(index->nodes[k].within.at);
    }
    free(index->nodes);
    free(index->taken.at);
    free(index->spare.at);
}

// Nothing is taken any more; the room for the sets stays.
static void index_clear(struct index *index)
{
    for (int64_t k = 0; k < 2 * index->slots; k++)
        index->nodes[k].filed.count = index->nodes[k].within.count = 0;
}

// Files the block, which has its offset, at and below p. False when memory is short.
static bool index_file(struct index *index, const struct block *block, struct place p)
{
    if (!meets(block, p)) return true;
    struct node *node = &index->nodes[p.node];
    struct range range = {block->offset, block->offset + block->size};
    if (!ranges_add(&node->within, range)) return false;
    if (covers(block, p)) return ranges_add(&node->filed, range);
    return index_file(index, block, place_lower(p)) && index_file(index, block, place_upper(p));
}

// Adds to index->taken what blocks filed at or below p take during the block's life.
static bool index_query(struct index *index, const struct block *block, struct place p)
{
    if (!meets(block, p)) return true;
    const struct node *node = &index->nodes[p.node];
    if (covers(block, p)) return ranges_unite(&index->taken, &node->within, block->size, &index->spare);
    return ranges_unite(&index->taken, &node->filed, block->size, &index->spare) &&
           index_query(index, block, place_lower(p)) && index_query(index, block, place_upper(p));
}

/* --- Orders -------------------------------------------------------------------------------------- */

static int descending(int64_t a, int64_t b) { return (a < b) - (a > b); }

static int64_t span(const struct block *block) { return block->last - block->first + 1; }

// Where an order leaves a tie: larger, longer, earlier, and of equal lives the first in the array.
static int compare_ties(const struct block *a, const struct block *b)
{
    int by = descending(a->size, b->size);
    if (!by) by = descending(span(a), span(b));
    if (!by) by = descending(b->begin, a->begin);
    if (!by) by = descending(a->end, b->end);
    return by ? by : descending(b->index, a->index);
}

static int by_size(const void *left, const void *right)
{
    return compare_ties(left, right);
}

static int by_crowd(const void *left, const void *right)
{
    const struct block *a = left, *b = right;
    int by = descending(a->crowd, b->crowd);
    return by ? by : compare_ties(a, b);
}

static int by_span(const void *left, const void *right)
{
    const struct block *a = left, *b = right;
    int by = descending(span(a), span(b));
    return by ? by : compare_ties(a, b);
}

static int by_area(const void *left, const void *right)
{
    const struct block *a = left, *b = right;
    __int128 area_a = (__int128)a->size * span(a), area_b = (__int128)b->size * span(b);
    if (area_a != area_b) return area_a > area_b ? -1 : 1;
    return compare_ties(a, b);
}

// In the order of the chance that each of them does it alone on training steps.
static int (*const orders[])(const void *, const void *) = {by_size, by_crowd, by_area, by_span};

/* --- Search -------------------------------------------------------------------------------------- */

struct planner {
    struct block *blocks; // in the order in which they are placed
    struct block *spare;  // as many
    int64_t count;
    struct index index;
    int64_t live_peak;
    int64_t *offsets; // the best plan so far, by the caller's index
    int64_t height;   // its height; INT64_MAX before the first
};

// Places every block in turn; *height is INT64_MAX if they do not end below 2^63.
static bool place_all(struct planner *planner, int64_t *height)
{
    struct index *index = &planner->index;
    struct place root = index_root(index);
    *height = 0;
    index_clear(index);
    for (struct block *block = planner->blocks; block < planner->blocks + planner->count; block++) {
        index->taken.count = 0;
        if (!index_query(index, block, root)) return false;
        block->offset = ranges_best_fit(&index->taken, block->size);
        if (block->offset > INT64_MAX - block->size) {
            *height = INT64_MAX;
            return true;
        }
        if (!index_file(index, block, root)) return false;
        *height = up_max(*height, block->offset + block->size);
    }
    return true;
}

// Places in the present order, and keeps the plan if it is the lowest yet.
static enum up_status try_order(struct planner *planner, struct up_error *err)
{
    int64_t height;
    if (!place_all(planner, &height)) return up_fail(err, UP_FAILED, "out of host memory");
    if (height >= planner->height) return UP_OK;
    planner->height = height;
    for (int64_t i = 0; i < planner->count; i++)
        planner->offsets[planner->blocks[i].index] = planner->blocks[i].offset;
    return UP_OK;
}

// What ended above the live peak comes first, the rest after it, both as they were.
static void promote(struct planner *planner)
{
    int64_t n = 0;
    for (int above = 1; above >= 0; above--)
        for (int64_t i = 0; i < planner->count; i++) {
            const struct block *block = &planner->blocks[i];
            if ((block->offset + block->size > planner->live_peak) == above)
                planner->spare[n++] = *block;
        }
    struct block *ordered = planner->spare;
    planner->spare = planner->blocks;
    planner->blocks = ordered;
}

static enum up_status search(struct planner *planner, struct up_error *err)
{
    enum up_status rc = UP_OK;
    for (int i = 0; i < UP_COUNT(orders) && planner->height > planner->live_peak; i++) {
        qsort(planner->blocks, (size_t)planner->count, sizeof *planner->blocks, orders[i]);
        UP_TRY(try_order(planner, err));
    }
    int64_t tries = planner->count ? REPAIR_PLACEMENTS / planner->count : 0;
    for (; tries > 0 && planner->height > planner->live_peak; tries--) {
        promote(planner);
        UP_TRY(try_order(planner, err));
    }
out:
    return rc;
}

/* --- The two functions --------------------------------------------------------------------------- */

/* What both begin with. */
struct timeline {
    struct block *blocks;
    int64_t count;
    int64_t *crowds; // [slots]
    int64_t slots;
};

static void timeline_release(struct timeline *timeline)
{
    free(timeline->blocks);
    free(timeline->crowds);
}

// False when memory is short; to be released in either case.
static bool timeline_init(struct timeline *timeline, const struct up_life *lives, int64_t count,
                          int64_t align)
{
    UP_ASSERT(count >= 0 && align > 0 && (align & (align - 1)) == 0);
    size_t room = (size_t)up_max(count, 1);
    struct moment *moments = calloc(room, 2 * sizeof *moments);
    *timeline = (struct timeline){.blocks = calloc(room, sizeof *timeline->blocks),
                                  .crowds = calloc(room, sizeof *timeline->crowds)};
    bool ok = moments && timeline->blocks && timeline->crowds;
    if (ok) {
        timeline->count = collect_blocks(lives, count, align, timeline->blocks);
        sort_moments(timeline->blocks, timeline->count, moments);
        timeline->slots =
            cut_slots(timeline->blocks, moments, timeline->count, timeline->crowds);
    }
    free(moments);
    return ok;
}

int64_t up_plan_live_peak(const struct up_life *lives, int64_t count, int64_t align)
{
    struct timeline timeline;
    int64_t peak = -1;
    if (timeline_init(&timeline, lives, count, align))
        peak = largest(timeline.crowds, timeline.slots);
    timeline_release(&timeline);
    return peak;
}

// Takes the timeline's blocks over.
static enum up_status planner_init(struct planner *planner, struct timeline *timeline,
                                   struct up_error *err)
{
    planner->count = timeline->count;
    planner->blocks = timeline->blocks;
    timeline->blocks = NULL;
    planner->spare = calloc((size_t)up_max(planner->count, 1), sizeof *planner->spare);
    if (!planner->spare || !index_init(&planner->index, timeline->crowds, timeline->slots))
        return up_fail(err, UP_FAILED, "out of host memory");
    for (struct block *block = planner->blocks; block < planner->blocks + planner->count; block++)
        block->crowd = index_crowd(&planner->index, block, index_root(&planner->index));
    return UP_OK;
}

static void planner_release(struct planner *planner)
{
    index_release(&planner->index);
    free(planner->blocks);
    free(planner->spare);
}

enum up_status up_plan(const struct up_life *lives, int64_t count, int64_t align, int64_t *offsets,
                       int64_t *height, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct timeline timeline;
    struct planner planner = {.offsets = offsets, .height = INT64_MAX};
    if (!timeline_init(&timeline, lives, count, align))
        UP_TRY(up_fail(err, UP_FAILED, "out of host memory"));
    planner.live_peak = largest(timeline.crowds, timeline.slots);
    UP_TRY(planner_init(&planner, &timeline, err));
    for (int64_t i = 0; i < count; i++) offsets[i] = 0;
    UP_TRY(search(&planner, err));
    if (planner.height == INT64_MAX)
        UP_TRY(up_fail(err, UP_FAILED, "tensors alive at once take 2^63 bytes or more"));
    *height = planner.height;
out:
    planner_release(&planner);
    timeline_release(&timeline);
    return rc;
}
