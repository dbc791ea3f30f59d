#include "mem/arena.h"

#include <stdlib.h>

struct up_arena {
    struct up_block *first;
    struct up_block *spare; // block structs to use again, by `after`
};

static struct up_block *block_new(struct up_arena *arena)
{
    struct up_block *block = arena->spare;
    if (!block) return calloc(1, sizeof *block);
    arena->spare = block->after;
    *block = (struct up_block){0};
    return block;
}

struct up_arena *up_arena_create(int64_t capacity)
{
    struct up_arena *arena = calloc(1, sizeof *arena);
    struct up_block *all = calloc(1, sizeof *all);
    if (!arena || !all) {
        free(arena);
        free(all);
        return NULL;
    }
    all->bytes = capacity / UP_ARENA_ALIGN * UP_ARENA_ALIGN;
    arena->first = all;
    return arena;
}

static void free_chain(struct up_block *block)
{
    while (block) {
        struct up_block *after = block->after;
        free(block);
        block = after;
    }
}

void up_arena_destroy(struct up_arena *arena)
{
    if (!arena) return;
    free_chain(arena->first);
    free_chain(arena->spare);
    free(arena);
}

struct up_block *up_arena_take(struct up_arena *arena, int64_t bytes)
{
    struct up_block *best = NULL;
    int64_t rounded = up_max(up_ceil_div(bytes, UP_ARENA_ALIGN), 1) * UP_ARENA_ALIGN;
    for (struct up_block *block = arena->first; block; block = block->after)
        if (!block->taken && block->bytes >= rounded && (!best || block->bytes < best->bytes))
            best = block;
    if (!best) return NULL;
    if (best->bytes > rounded) {
        struct up_block *rest = block_new(arena);
        if (!rest) return NULL;
        *rest = *best;
        rest->offset += rounded;
        rest->bytes -= rounded;
        rest->before = best;
        if (rest->after) rest->after->before = rest;
        best->after = rest;
        best->bytes = rounded;
    }
    best->taken = true;
    return best;
}

// Makes `block` and the free one after it one.
static void join_next(struct up_arena *arena, struct up_block *block)
{
    struct up_block *next = block->after;
    block->bytes += next->bytes;
    for (int s = 0; s < UP_STREAM_COUNT; s++)
        if (next->ticket[s] > block->ticket[s]) block->ticket[s] = next->ticket[s];
    block->after = next->after;
    if (next->after) next->after->before = block;
    next->after = arena->spare;
    arena->spare = next;
}

void up_arena_give(struct up_arena *arena, struct up_block *block, struct up_moment moment)
{
    UP_ASSERT(block->taken);
    block->taken = false;
    for (int s = 0; s < UP_STREAM_COUNT; s++) block->ticket[s] = 0;
    block->ticket[moment.stream] = moment.ticket;
    if (block->after && !block->after->taken) join_next(arena, block);
    if (block->before && !block->before->taken) join_next(arena, block->before);
}

int64_t up_arena_largest_free(const struct up_arena *arena)
{
    int64_t largest = 0;
    for (const struct up_block *block = arena->first; block; block = block->after)
        if (!block->taken) largest = up_max(largest, block->bytes);
    return largest;
}
