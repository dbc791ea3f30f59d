/* Offsets from lifetimes: best fit in a good order, over an index of time.
 *
 * Packing rectangles of given width (time) and height (bytes) under the lowest ceiling is NP-hard;
 * the lives of a training step are nearly nested, and for those a greedy placement comes out at the
 * live peak or just above if the order is right. So:
 *
 *   slots   Time is cut where it matters: two lives meet if and only if they share a slot.
 *
 *   index   A segment tree over the slots. Each node knows which addresses are taken, as a set
 *           of disjoint ranges: small, since a dense placement has few holes.
 *
 *   place   In a given order, each life takes the tightest hole that is free all its life.
 *
 *   search  The classical orders, then repairs of each: what stuck out above the live peak goes
 *           first in the next try, before all that did so less often. Reaching the live peak
 *           ends it.
 */
#include "mem/plan.h"

#include <stdlib.h>
#include <string.h>

enum {
    /* What all tries together may cost, in address ranges gone through, for each percent that the
     * height is above the live peak; and at most. Bounds the time, and unlike a clock gives equal
     * plans on all machines. */
    WORK_FOR_PERCENT = 160000000,
    MOST_WORK = 400000000,
    REPAIRS = 40, // tries of one order
    VISIT = 8,    // what visiting a node costs besides, in ranges
    /* Ranges in a node's set: ALL_RANGES over the number of lives, within these. Steps stay far
     * below; it keeps large random inputs from quadratic time, at the price of some height. */
    ALL_RANGES = 1 << 22,
    LEAST_RANGES = 16,
    MOST_RANGES = 1024,
};

/* A life that takes room. */
struct block {
    int64_t index;       // in the caller's array
    int64_t size;        // rounded, above 0
    int64_t begin, end;  // as the caller gave them
    int64_t first, last; // slots, both inclusive
    int64_t load;        // the largest sum of sizes alive in any of its slots
    int64_t rank;        // in the order that is being repaired
    int64_t misses;      // tries of that order in which it ended above the live peak
    int64_t offset;
};

/* --- The timeline ----------------------------------------------------------------------------- */

struct timeline {
    struct block *blocks;
    int64_t count;
    int64_t slots; // at least 1
    int64_t peak;  // the live peak; INT64_MAX if it is 2^63 or more
};

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
    return bytes > INT64_MAX - (align - 1) ? INT64_MAX : (bytes + (align - 1)) & -align;
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

/* A slot that is more loaded than all after it. A slot is a stretch of begins and the ends after
 * it: at its last begin everything that lives in it is alive at once, and `bytes` is the sum of
 * that. */
struct load {
    int64_t slot;
    int64_t bytes; // INT64_MAX if it is 2^63 or more
};

// Adds a slot after those of the stack; the new depth.
static int64_t push_load(struct load *stack, int64_t depth, struct load added)
{
    while (depth > 0 && stack[depth - 1].bytes <= added.bytes) depth--;
    stack[depth] = added;
    return depth + 1;
}

// The most loaded slot from `first` on.
static int64_t load_since(const struct load *stack, int64_t depth, int64_t first)
{
    int64_t from = 0, to = depth - 1;
    while (from < to) {
        int64_t middle = (from + to) / 2;
        if (stack[middle].slot < first)
            from = middle + 1;
        else
            to = middle;
    }
    return stack[from].bytes;
}

/* Sets first, last and load of the timeline's blocks, its slots and its peak. `stack` has room for
 * every slot: one a block. */
static void cut_slots(struct timeline *timeline, const struct moment *moments, struct load *stack)
{
    int64_t slot = 0, depth = 0;
    __int128 alive = 0;
    for (int64_t i = 0; i < 2 * timeline->count; i++) {
        struct block *block = &timeline->blocks[moments[i].block];
        bool after_begin = i > 0 && moments[i - 1].begins;
        if (moments[i].begins) {
            if (i > 0 && !after_begin) slot++;
            block->first = slot;
            alive += block->size;
        } else {
            int64_t bytes = alive < INT64_MAX ? (int64_t)alive : INT64_MAX;
            if (after_begin) depth = push_load(stack, depth, (struct load){slot, bytes});
            block->last = slot;
            block->load = load_since(stack, depth, block->first);
            alive -= block->size;
        }
    }
    timeline->slots = slot + 1;
    timeline->peak = depth ? stack[0].bytes : 0;
}

static void timeline_release(struct timeline *timeline)
{
    free(timeline->blocks);
}

// False when memory is short; to be released in either case.
static bool timeline_init(struct timeline *timeline, const struct up_life *lives, int64_t count,
                          int64_t align)
{
    UP_ASSERT(count >= 0 && align > 0 && (align & (align - 1)) == 0);
    size_t room = (size_t)up_max(count, 1);
    struct moment *moments = calloc(room, 2 * sizeof *moments);
    struct load *stack = calloc(room, sizeof *stack);
    *timeline = (struct timeline){.blocks = calloc(room, sizeof *timeline->blocks)};
    bool ok = moments && stack && timeline->blocks;
    if (ok) {
        timeline->count = collect_blocks(lives, count, align, timeline->blocks);
        sort_moments(timeline->blocks, timeline->count, moments);
        cut_slots(timeline, moments, stack);
    }
    free(moments);
    free(stack);
    return ok;
}

/* --- Sets of address ranges ------------------------------------------------------------------- */

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

/* Adds one range, joined with those it overlaps or touches. Of more than `most` ranges the set
 * forgets a hole: it then covers more than was added. False when memory is short. */
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

/* The lowest address of the tightest hole for `size`; above all ranges where none is large enough.
 */
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

/* --- The index over time ---------------------------------------------------------------------- */

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
struct stretch {
    int64_t node, low, high;
};

static int64_t stretch_middle(struct stretch p)
{
    return p.low + (p.high - p.low) / 2;
}

static struct stretch stretch_lower(struct stretch p)
{
    return (struct stretch){p.node + 1, p.low, stretch_middle(p)};
}

// The lower half, of h slots, has 2h - 1 nodes.
static struct stretch stretch_upper(struct stretch p)
{
    int64_t middle = stretch_middle(p);
    return (struct stretch){p.node + 2 * (middle - p.low + 1), middle + 1, p.high};
}

static struct stretch index_root(const struct index *index)
{
    return (struct stretch){0, 0, index->slots - 1};
}

static bool covers(const struct block *block, struct stretch p)
{
    return block->first <= p.low && p.high <= block->last;
}

static bool meets(const struct block *block, struct stretch p)
{
    return block->first <= p.high && p.low <= block->last;
}

static bool index_init(struct index *index, int64_t slots, int32_t most)
{
    UP_ASSERT(slots > 0);
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
static bool index_file(struct index *index, const struct block *block, struct stretch p)
{
    if (!meets(block, p)) return true;
    struct node *node = &index->nodes[p.node];
    struct range range = {block->offset, block->offset + block->size};
    index->work += VISIT;
    if (!ranges_add(&node->within, range, index->most)) return false;
    bool leaf = p.low == p.high; // is never asked for what is filed at it alone
    if (covers(block, p)) return leaf || ranges_add(&node->filed, range, index->most);
    return index_file(index, block, stretch_lower(p)) && index_file(index, block, stretch_upper(p));
}

// Adds a node's ranges to those that are taken for the block.
static bool index_take(struct index *index, const struct block *block, const struct ranges *ranges)
{
    index->work += VISIT + index->taken.count + ranges->count;
    return ranges_unite(&index->taken, ranges, block->size, &index->spare);
}

// Takes what blocks filed at or below p take during the block's life.
static bool index_query(struct index *index, const struct block *block, struct stretch p)
{
    if (!meets(block, p)) return true;
    const struct node *node = &index->nodes[p.node];
    if (covers(block, p)) return index_take(index, block, &node->within);
    return index_take(index, block, &node->filed) && index_query(index, block, stretch_lower(p)) &&
           index_query(index, block, stretch_upper(p));
}

/* --- Orders ----------------------------------------------------------------------------------- */

static int descending(int64_t a, int64_t b)
{
    return (a < b) - (a > b);
}

static int64_t span(const struct block *block)
{
    return block->last - block->first + 1;
}

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

static int by_load(const void *left, const void *right)
{
    const struct block *a = left, *b = right;
    int by = descending(a->load, b->load);
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

typedef int order(const void *, const void *);

/* Largest first does well on anything. The steps of the full stack, which no order alone brings to
 * their live peak, come nearest to it by repairs of this one and of size x span. */
static order *const orders[] = {by_size, by_area, by_load, by_span};

static int by_misses(const void *left, const void *right)
{
    const struct block *a = left, *b = right;
    int by = descending(a->misses, b->misses);
    return by ? by : descending(b->rank, a->rank);
}

/* --- Search ----------------------------------------------------------------------------------- */

struct planner {
    struct block *blocks; // in the order in which they are placed
    struct block *best;   // as many, as they were placed in the lowest plan so far
    int64_t count;
    struct index index;
    int64_t live_peak;
    int64_t height;    // of the best; INT64_MAX before the first
    int64_t last_work; // what the last try cost
};

// Places every block in turn; *height is INT64_MAX if they do not end below 2^63.
static bool place_all(struct planner *planner, int64_t *height)
{
    struct index *index = &planner->index;
    struct stretch root = index_root(index);
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
    int64_t height, before = planner->index.work;
    if (!place_all(planner, &height)) return up_fail(err, UP_FAILED, "out of host memory");
    planner->last_work = planner->index.work - before;
    if (height >= planner->height) return UP_OK;
    planner->height = height;
    memcpy(planner->best, planner->blocks, (size_t)planner->count * sizeof *planner->best);
    return UP_OK;
}

// Whether what there is to gain is worth another try, which costs what the last did.
static bool worth_another(const struct planner *planner)
{
    int64_t gain = planner->height - planner->live_peak;
    double percent = 100 * (double)gain / (double)planner->live_peak;
    double work = (double)(planner->index.work + planner->last_work);
    return gain > 0 && work <= MOST_WORK && work <= percent * WORK_FOR_PERCENT;
}

static void count_misses(struct planner *planner)
{
    for (struct block *block = planner->blocks; block < planner->blocks + planner->count; block++)
        block->misses += block->offset > planner->live_peak - block->size;
}

// Tries the order, then repairs of it.
static enum up_status try_repairs(struct planner *planner, order *by, int tries,
                                  struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct block *blocks = planner->blocks;
    qsort(blocks, (size_t)planner->count, sizeof *blocks, by);
    for (int64_t i = 0; i < planner->count; i++) {
        blocks[i].rank = i;
        blocks[i].misses = 0;
    }
    for (int i = 0; i < tries && worth_another(planner); i++) {
        if (i) qsort(blocks, (size_t)planner->count, sizeof *blocks, by_misses);
        UP_TRY(try_order(planner, err));
        count_misses(planner);
    }
out:
    return rc;
}

static enum up_status search(struct planner *planner, struct up_error *err)
{
    enum up_status rc = UP_OK;
    for (int i = 0; i < UP_COUNT(orders) && worth_another(planner); i++)
        UP_TRY(try_repairs(planner, orders[i], 1, err));
    for (int i = 0; i < UP_COUNT(orders) && worth_another(planner); i++)
        UP_TRY(try_repairs(planner, orders[i], REPAIRS, err));
out:
    return rc;
}

/* --- The two functions ------------------------------------------------------------------------ */

int64_t up_plan_live_peak(const struct up_life *lives, int64_t count, int64_t align)
{
    struct timeline timeline;
    int64_t peak = timeline_init(&timeline, lives, count, align) ? timeline.peak : -1;
    timeline_release(&timeline);
    return peak;
}

// Takes the timeline's blocks over.
static enum up_status planner_init(struct planner *planner, struct timeline *timeline,
                                   struct up_error *err)
{
    int64_t room = up_max(timeline->count, 1);
    int64_t most = up_min(up_max(ALL_RANGES / room, LEAST_RANGES), MOST_RANGES);
    planner->count = timeline->count;
    planner->live_peak = timeline->peak;
    planner->blocks = timeline->blocks;
    timeline->blocks = NULL;
    planner->best = calloc((size_t)room, sizeof *planner->best);
    if (!planner->best || !index_init(&planner->index, timeline->slots, (int32_t)most))
        return up_fail(err, UP_FAILED, "out of host memory");
    return UP_OK;
}

static void planner_release(struct planner *planner)
{
    index_release(&planner->index);
    free(planner->blocks);
    free(planner->best);
}

enum up_status up_plan(const struct up_life *lives, int64_t count, int64_t align, int64_t *offsets,
                       int64_t *height, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct timeline timeline;
    struct planner planner = {.height = INT64_MAX};
    if (!timeline_init(&timeline, lives, count, align))
        UP_TRY(up_fail(err, UP_FAILED, "out of host memory"));
    UP_TRY(planner_init(&planner, &timeline, err));
    UP_TRY(search(&planner, err));
    if (planner.height == INT64_MAX)
        UP_TRY(up_fail(err, UP_FAILED, "the step's tensors do not fit into 2^63 bytes"));
    memset(offsets, 0, (size_t)count * sizeof *offsets);
    for (const struct block *block = planner.best; block < planner.best + planner.count; block++)
        offsets[block->index] = block->offset;
    *height = planner.height;
out:
    planner_release(&planner);
    timeline_release(&timeline);
    return rc;
}
