/* The arena against a brute-force picture of it, and the rank's bookkeeping. */
#include "mem/arena.h"
#include "mem/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

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
        cmocka_unit_test(test_tickets_survive_joining),
        cmocka_unit_test(test_usage_counts_what_was_asked),
        cmocka_unit_test(test_out_of_memory_is_sticky),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
