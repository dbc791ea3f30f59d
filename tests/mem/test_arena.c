/* The arena against a brute-force picture of it, and the rank's bookkeeping. */
#include "mem/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

// The arena itself, with an allocator that can be made to fail.
static bool memory_is_short;

static void *test_calloc_or_fail(size_t count, size_t size)
{
    return memory_is_short ? NULL : calloc(count, size);
}

#define calloc test_calloc_or_fail
// NOLINTNEXTLINE(bugprone-suspicious-include): its calls are to reach the one above
#include "mem/arena.c"
#undef calloc

enum { UNITS = 200 }; // of UP_ARENA_ALIGN bytes

static void test_random_use(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        struct up_arena *arena = up_arena_create(UNITS * UP_ARENA_ALIGN);
        struct up_block *held[UNITS] = {0};
        int owner[UNITS];
        memset(owner, -1, sizeof owner);
        for (uint64_t i = 0; i < 2000; i++) {
            int k = (int)(up_random_u64(seed, 1, i) % UNITS);
            if (held[k]) {
                for (int u = 0; u < UNITS; u++)
                    if (owner[u] == k) owner[u] = -1;
                up_arena_give(held[k], (struct up_moment){UP_STREAM_COMPUTE, i + 1});
                held[k] = NULL;
                continue;
            }
            int64_t bytes = (int64_t)(up_random_u64(seed, 2, i) % (12 * UP_ARENA_ALIGN));
            held[k] = up_arena_take(arena, bytes);
            int need = (int)up_max(up_ceil_div(bytes, UP_ARENA_ALIGN), 1), run = 0, longest = 0;
            for (int u = 0; u < UNITS; u++) {
                run = owner[u] < 0 ? run + 1 : 0;
                if (run > longest) longest = run;
            }
            // Taken if and only if there is a stretch for it; never over another's bytes.
            assert_int_equal(held[k] != NULL, longest >= need);
            if (!held[k]) continue;
            assert_int_equal(held[k]->bytes, need * UP_ARENA_ALIGN);
            int first = (int)(held[k]->offset / UP_ARENA_ALIGN);
            for (int u = first; u < first + need; u++) {
                assert_true(u < UNITS && owner[u] < 0);
                owner[u] = k;
            }
        }
        for (int k = 0; k < UNITS; k++)
            if (held[k]) up_arena_give(held[k], (struct up_moment){UP_STREAM_COMPUTE, 1});
        assert_int_equal(up_arena_largest_free(arena), UNITS * UP_ARENA_ALIGN);
        up_arena_destroy(arena);
    }
}

// Joined stretches remember every stream that used any part of them.
static void test_tickets_survive_joining(void **state)
{
    (void)state;
    struct up_arena *arena = up_arena_create(4 * UP_ARENA_ALIGN);
    struct up_block *a = up_arena_take(arena, 2 * UP_ARENA_ALIGN);
    struct up_block *b = up_arena_take(arena, 2 * UP_ARENA_ALIGN);
    up_arena_give(a, (struct up_moment){UP_STREAM_COPY_OUT, 5});
    up_arena_give(b, (struct up_moment){UP_STREAM_COMPUTE, 9});
    struct up_block *all = up_arena_take(arena, 4 * UP_ARENA_ALIGN);
    assert_non_null(all);
    assert_int_equal(all->ticket[UP_STREAM_COPY_OUT], 5);
    assert_int_equal(all->ticket[UP_STREAM_COMPUTE], 9);
    assert_int_equal(all->ticket[UP_STREAM_COMM], 0);
    up_arena_destroy(arena);
}

// A planned place is taken if and only if it is free.
static void test_take_at(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 50; seed++) {
        struct up_arena *arena = up_arena_create(UNITS * UP_ARENA_ALIGN);
        struct up_block *held[UNITS] = {0}; // by first unit
        int owner[UNITS], high = 0;
        memset(owner, -1, sizeof owner);
        for (uint64_t i = 0; i < 2000; i++) {
            int first = (int)(up_random_u64(seed, 3, i) % UNITS);
            int need = 1 + (int)(up_random_u64(seed, 4, i) % 9);
            if (held[first]) {
                for (int u = 0; u < UNITS; u++)
                    if (owner[u] == first) owner[u] = -1;
                up_arena_give(held[first], (struct up_moment){UP_STREAM_COMPUTE, i + 1});
                held[first] = NULL;
                continue;
            }
            bool is_free = first + need <= UNITS;
            for (int u = first; is_free && u < first + need; u++) is_free = owner[u] < 0;
            struct up_block *block = up_arena_take_at(arena, first * (int64_t)UP_ARENA_ALIGN,
                                                      need * (int64_t)UP_ARENA_ALIGN - 7);
            assert_int_equal(block != NULL, is_free);
            if (!block) continue;
            assert_int_equal(block->offset, first * UP_ARENA_ALIGN);
            assert_int_equal(block->bytes, need * UP_ARENA_ALIGN);
            held[first] = block;
            for (int u = first; u < first + need; u++) owner[u] = first;
            if (first + need > high) high = first + need;
        }
        assert_int_equal(up_arena_high(arena), high * UP_ARENA_ALIGN);
        for (int u = 0; u < UNITS; u++)
            if (held[u]) up_arena_give(held[u], (struct up_moment){UP_STREAM_COMPUTE, 1});
        up_arena_end_at_high(arena);
        assert_int_equal(up_arena_largest_free(arena), high * UP_ARENA_ALIGN);
        up_arena_destroy(arena);
    }
}

/* --- The rule, by looking at every stretch ------------------------------------------------------
 * The range as a row of stretches: the picture that the arena is held against. */

enum { STRETCHES = 512 };

struct stretch {
    int64_t offset, bytes;
    bool taken;
    uint64_t ticket[UP_STREAM_COUNT];
};

struct row {
    struct stretch at[STRETCHES];
    int count;
    int64_t high;
};

static void row_insert(struct row *row, int i, struct stretch stretch)
{
    assert_true(row->count < STRETCHES);
    memmove(&row->at[i + 1], &row->at[i], (size_t)(row->count - i) * sizeof *row->at);
    row->at[i] = stretch;
    row->count++;
}

// Stretch i becomes two, the first of `bytes`.
static void row_cut(struct row *row, int i, int64_t bytes)
{
    struct stretch rest = row->at[i];
    rest.offset += bytes;
    rest.bytes -= bytes;
    row->at[i].bytes = bytes;
    row_insert(row, i + 1, rest);
}

static int row_take(struct row *row, int i, int64_t bytes)
{
    if (row->at[i].bytes > bytes) row_cut(row, i, bytes);
    row->at[i].taken = true;
    row->high = up_max(row->high, row->at[i].offset + bytes);
    return i;
}

// The smallest that holds it, the first of equals; -1: none.
static int row_best(const struct row *row, int64_t bytes)
{
    int best = -1;
    for (int i = 0; i < row->count; i++)
        if (!row->at[i].taken && row->at[i].bytes >= bytes &&
            (best < 0 || row->at[i].bytes < row->at[best].bytes))
            best = i;
    return best;
}

// The free one that has all of it; -1: none.
static int row_holder(const struct row *row, int64_t offset, int64_t bytes)
{
    for (int i = 0; i < row->count; i++) {
        const struct stretch *s = &row->at[i];
        if (!s->taken && s->offset <= offset && s->offset + s->bytes >= offset + bytes) return i;
    }
    return -1;
}

static int row_take_at(struct row *row, int64_t offset, int64_t bytes)
{
    int i = row_holder(row, offset, bytes);
    if (i < 0) return -1;
    int64_t before = offset - row->at[i].offset;
    if (before) row_cut(row, i, before);
    return row_take(row, before ? i + 1 : i, bytes);
}

static void row_join_next(struct row *row, int i)
{
    if (i < 0 || i + 1 >= row->count || row->at[i].taken || row->at[i + 1].taken) return;
    struct stretch *s = &row->at[i];
    s->bytes += s[1].bytes;
    for (int t = 0; t < UP_STREAM_COUNT; t++)
        if (s[1].ticket[t] > s->ticket[t]) s->ticket[t] = s[1].ticket[t];
    row->count--;
    memmove(s + 1, s + 2, (size_t)(row->count - i - 1) * sizeof *s);
}

static void row_give(struct row *row, int64_t offset, struct up_moment moment)
{
    int i = 0;
    while (row->at[i].offset != offset) i++;
    row->at[i].taken = false;
    memset(row->at[i].ticket, 0, sizeof row->at[i].ticket);
    row->at[i].ticket[moment.stream] = moment.ticket;
    row_join_next(row, i);
    row_join_next(row, i - 1);
}

// The arena's stretches are those of the row, in both directions, and their sums are right.
static void check_same(const struct up_arena *arena, const struct row *row)
{
    const struct up_block *block = arena->first, *before = NULL;
    int64_t sum = 0, largest = 0;
    for (int i = 0; i < row->count; i++, before = block, block = block->after) {
        const struct stretch *s = &row->at[i];
        assert_non_null(block);
        assert_ptr_equal(block->before, before);
        assert_int_equal(block->offset, s->offset);
        assert_int_equal(block->bytes, s->bytes);
        assert_int_equal(block->taken, s->taken);
        assert_memory_equal(block->ticket, s->ticket, sizeof s->ticket);
        if (s->taken) continue;
        sum += s->bytes;
        largest = up_max(largest, s->bytes);
    }
    assert_null(block);
    assert_ptr_equal(arena->last, before);
    assert_int_equal(up_arena_high(arena), row->high);
    assert_int_equal(up_arena_free(arena), sum);
    assert_int_equal(up_arena_largest_free(arena), largest);
}

// One seed's history: how large tensors are, how many live, and whether places are told.
struct history {
    struct up_arena *arena;
    struct row row;
    struct up_block *held[STRETCHES / 2];
    uint64_t seed, draws;
};

static int64_t draw(struct history *history, int64_t below)
{
    return (int64_t)(up_random_u64(history->seed, 5, history->draws++) % (uint64_t)below);
}

static void take_one(struct history *h, struct up_block **slot, int64_t most, bool told)
{
    int64_t bytes = draw(h, most * UP_ARENA_ALIGN), offset = draw(h, UNITS) * UP_ARENA_ALIGN;
    int64_t rounded = up_max(up_ceil_div(bytes, UP_ARENA_ALIGN), 1) * UP_ARENA_ALIGN;
    memory_is_short = draw(h, 8) == 0; // which matters only where a block is needed
    *slot = told ? up_arena_take_at(h->arena, offset, bytes) : up_arena_take(h->arena, bytes);
    if (!*slot && memory_is_short) {
        memory_is_short = false;
        check_same(h->arena, &h->row); // nothing is half done
        *slot = told ? up_arena_take_at(h->arena, offset, bytes) : up_arena_take(h->arena, bytes);
    }
    memory_is_short = false;
    int i = told ? row_take_at(&h->row, offset, rounded) : row_best(&h->row, rounded);
    if (!told && i >= 0) i = row_take(&h->row, i, rounded);
    assert_int_equal(*slot != NULL, i >= 0);
    if (*slot) assert_int_equal((*slot)->offset, h->row.at[i].offset);
}

static void give_one(struct history *h, struct up_block **slot)
{
    struct up_moment moment = {(enum up_stream)draw(h, UP_STREAM_COUNT), h->draws};
    int64_t offset = (*slot)->offset;
    up_arena_give(*slot, moment);
    row_give(&h->row, offset, moment);
    *slot = NULL;
}

static void end_at_high(struct history *h)
{
    struct stretch *last = &h->row.at[h->row.count - 1];
    up_arena_end_at_high(h->arena);
    if (!last->taken) last->bytes = h->row.high - last->offset;
}

// Whatever is taken and given, found or told, lies where the rule has it.
static void test_rule(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 100; seed++) {
        struct history h = {.arena = up_arena_create(UNITS * UP_ARENA_ALIGN + 5), .seed = seed};
        row_insert(&h.row, 0, (struct stretch){.bytes = UNITS * UP_ARENA_ALIGN});
        int64_t most = 1 + draw(&h, 12), slots = 1 + draw(&h, UP_COUNT(h.held));
        int64_t told = draw(&h, 3); // never, half the time, always
        int ends = 500 + (int)draw(&h, 1000);
        for (int i = 0; i < 1000; i++) {
            struct up_block **slot = &h.held[draw(&h, slots)];
            if (*slot)
                give_one(&h, slot);
            else
                take_one(&h, slot, most, draw(&h, 2) < told);
            if (i == ends) end_at_high(&h);
            check_same(h.arena, &h.row);
        }
        for (int64_t k = 0; k < slots; k++)
            if (h.held[k]) give_one(&h, &h.held[k]);
        check_same(h.arena, &h.row);
        assert_int_equal(h.row.count, 1);
        up_arena_destroy(h.arena);
    }
}

// A free stretch's depth in the tree of either order.
static int depth(const struct up_block *root, enum up_arena_order order)
{
    if (!root) return 0;
    int before = depth(root->in[order].before, order), after = depth(root->in[order].after, order);
    return 1 + (before > after ? before : after);
}

// Neither order gets deep, also where stretches are freed by rising size and offset.
static void test_trees_stay_shallow(void **state)
{
    (void)state;
    enum { HOLES = 20000 };
    static struct up_block *hole[HOLES];
    struct up_arena *arena = up_arena_create((int64_t)1 << 50);
    for (int i = 0; i < HOLES; i++) {
        hole[i] = up_arena_take(arena, (i + 1) * (int64_t)UP_ARENA_ALIGN);
        assert_non_null(up_arena_take(arena, 1)); // keeps it from its neighbour
    }
    for (int i = 0; i < HOLES; i++) up_arena_give(hole[i], (struct up_moment){0, 1});
    for (enum up_arena_order o = 0; o < UP_ARENA_ORDERS; o++)
        assert_in_range(depth(arena->free[o], o), 15, 60); // 15 levels hold 2^15 - 1
    assert_int_equal(up_arena_take(arena, 7 * UP_ARENA_ALIGN)->offset, (21 + 6) * UP_ARENA_ALIGN);
    up_arena_destroy(arena);
}

/* --- The rank's bookkeeping --------------------------------------------------------------------
 */

static void open_rank(struct up_rank *rank, int64_t limit)
{
    struct up_error error = {0};
    struct up_device *device = up_device_cpu_create(1, 0, &error);
    int64_t limits[UP_SPACE_COUNT] = {limit, limit};
    assert_non_null(device);
    assert_int_equal(up_rank_init(rank, 0, device, NULL, limits, &error), UP_OK);
}

static void close_rank(struct up_rank *rank)
{
    struct up_device *device = rank->device;
    up_rank_release(rank);
    up_device_destroy(device);
}

static void test_usage_counts_what_was_asked(void **state)
{
    (void)state;
    struct up_rank rank;
    open_rank(&rank, 1 << 20);
    up_rank_step_begin(&rank, 0);
    struct up_tensor *a = up_alloc(&rank, UP_TAG(MLP, "a"), UP_F32, UP_SHAPE(10, 3));
    struct up_tensor *b = up_alloc(&rank, UP_TAG(MLP, "b"), UP_BF16, UP_SHAPE(7));
    assert_int_equal(a->bytes, 120);
    assert_int_equal(rank.usage.live_bytes[UP_SPACE_DEVICE], 134);
    assert_int_equal(rank.usage.peak_seq[UP_SPACE_DEVICE], 2);
    up_free(&rank, &a);
    assert_null(a);
    up_retag(&rank, b, UP_TAG(GRADIENT, "c"), UP_SHAPE(1, 7));
    assert_int_equal(rank.usage.live_bytes[UP_SPACE_DEVICE], 14);
    assert_int_equal(b->storage, 2);
    assert_int_equal(b->id, 3);
    up_free(&rank, &b);
    assert_int_equal(rank.usage.live_bytes[UP_SPACE_DEVICE], 0);
    assert_int_equal(rank.usage.peak_bytes[UP_SPACE_DEVICE], 134);
    assert_int_equal(rank.usage.events, 6);
    close_rank(&rank);
}

// Running out is a result: named once, and everything after it does nothing.
static void test_out_of_memory_is_sticky(void **state)
{
    (void)state;
    struct up_rank rank;
    open_rank(&rank, 4096);
    up_rank_step_begin(&rank, 0);
    struct up_tensor *a = up_alloc(&rank, UP_TAG(MLP, "a"), UP_U8, UP_SHAPE(4000));
    struct up_tensor *b = up_alloc(&rank, UP_TAG_LAYER(LOSS, "logits", 3), UP_U8, UP_SHAPE(200));
    assert_true(up_rank_failed(&rank));
    assert_int_equal(rank.error.status, UP_FAILED);
    assert_non_null(strstr(rank.error.text, "layers.3.logits needs 200 B"));
    assert_non_null(strstr(rank.error.text, "out of device memory"));
    uint64_t hash = rank.usage.event_hash;
    struct up_tensor *c = up_alloc(&rank, UP_TAG(MLP, "c"), UP_U8, UP_SHAPE(1));
    up_free(&rank, &c);
    up_free(&rank, &b);
    up_free(&rank, &a);
    assert_true(rank.usage.event_hash == hash);
    assert_non_null(strstr(rank.error.text, "logits"));
    close_rank(&rank);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_use),
        cmocka_unit_test(test_take_at),
        cmocka_unit_test(test_rule),
        cmocka_unit_test(test_trees_stay_shallow),
        cmocka_unit_test(test_tickets_survive_joining),
        cmocka_unit_test(test_usage_counts_what_was_asked),
        cmocka_unit_test(test_out_of_memory_is_sticky),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
