#include "mem/arena.h"

#include <stdlib.h>

struct up_arena {
    struct up_block *first;
    struct up_block *last;
    struct up_block *spare; // block structs to use again, by `after`
    int64_t high;
};

static struct up_block *block_new(struct up_arena *arena)
{
    struct up_block *block = arena->spare;
    if (!block) return calloc(1, sizeof *block);
    arena->spare = block->after;
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
    all->arena = arena;
    arena->first = arena->last = all;
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

static int64_t round_up(int64_t bytes)
{
    return up_max(up_ceil_div(bytes, UP_ARENA_ALIGN), 1) * UP_ARENA_ALIGN;
}

// Cuts a free block in two; false when memory is short.
static bool split(struct up_arena *arena, struct up_block *block, int64_t bytes)
{
    struct up_block *rest = block_new(arena);
    if (!rest) return false;
    *rest = *block;
    rest->offset += bytes;
    rest->bytes -= bytes;
    rest->before = block;
    *(rest->after ? &rest->after->before : &arena->last) = rest;
    block->after = rest;
    block->bytes = bytes;
    return true;
}

static struct up_block *take(struct up_arena *arena, struct up_block *block, int64_t bytes)
{
    if (block->bytes > bytes && !split(arena, block, bytes)) return NULL;
    block->taken = true;
    arena->high = up_max(arena->high, block->offset + bytes);
    return block;
}

struct up_block *up_arena_take(struct up_arena *arena, int64_t bytes)
{
    struct up_block *best = NULL;
    int64_t rounded = round_up(bytes);
    for (struct up_block *block = arena->first; block; block = block->after)
        if (!block->taken && block->bytes >= rounded && (!best || block->bytes < best->bytes))
            best = block;
    return best ? take(arena, best, rounded) : NULL;
}

struct up_block *up_arena_take_at(struct up_arena *arena, int64_t offset, int64_t bytes)
{
    int64_t rounded = round_up(bytes);
    struct up_block *block = arena->first;
    while (block && block->offset + block->bytes <= offset) block = block->after;
    if (!block || block->taken || block->offset + block->bytes < offset + rounded) return NULL;
    if (block->offset < offset) {
        if (!split(arena, block, offset - block->offset)) return NULL;
        block = block->after;
    }
    return take(arena, block, rounded);
}

int64_t up_arena_high(const struct up_arena *arena)
{
    return arena->high;
}

void up_arena_end_at_high(struct up_arena *arena)
{
    struct up_block *last = arena->last;
    if (!last->taken) last->bytes = arena->high - last->offset;
}

// Makes `block` and the free one after it one.
static void join_next(struct up_arena *arena, struct up_block *block)
{
    struct up_block *next = block->after;
    block->bytes += next->bytes;
    for (int s = 0; s < UP_STREAM_COUNT; s++)
        if (next->ticket[s] > block->ticket[s]) block->ticket[s] = next->ticket[s];
    block->after = next->after;
    *(next->after ? &next->after->before : &arena->last) = block;
    next->after = arena->spare;
    arena->spare = next;
}

void up_arena_give(struct up_block *block, struct up_moment moment)
{
    struct up_arena *arena = block->arena;
    UP_ASSERT(block->taken);
    block->taken = false;
    for (int s = 0; s < UP_STREAM_COUNT; s++) block->ticket[s] = 0;
    block->ticket[moment.stream] = moment.ticket;
    if (block->after && !block->after->taken) join_next(arena, block);
    if (block->before && !block->before->taken) join_next(arena, block->before);
}

int64_t up_arena_free(const struct up_arena *arena)
{
    int64_t sum = 0;
    for (const struct up_block *block = arena->first; block; block = block->after)
        if (!block->taken) sum += block->bytes;
    return sum;
}

int64_t up_arena_largest_free(const struct up_arena *arena)
{
    int64_t largest = 0;
    for (const struct up_block *block = arena->first; block; block = block->after)
        if (!block->taken) largest = up_max(largest, block->bytes);
    return largest;
}
