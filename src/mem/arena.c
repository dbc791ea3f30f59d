#include "mem/arena.h"

#include <stdlib.h>
#include <string.h>

struct up_arena {
    struct up_block *first;
    struct up_block *last;
    struct up_block *spare;                 // block structs to use again, by `after`
    struct up_block *free[UP_ARENA_ORDERS]; // roots
    uint32_t drawn;
    int64_t high;
};

/* --- The free stretches, in two orders -----------------------------------------------------------
 * Each a treap: a search tree in which no child's priority is above its parent's. Priorities are
 * drawn, so that it is about as deep as a balanced one, whatever is taken and given. */

static bool comes_before(enum up_arena_order order, const struct up_block *a,
                         const struct up_block *b)
{
    if (order == UP_ARENA_BY_SIZE && a->bytes != b->bytes) return a->bytes < b->bytes;
    return a->offset < b->offset;
}

static struct up_block **child_towards(enum up_arena_order order, struct up_block *parent,
                                       const struct up_block *block)
{
    struct up_branches *in = &parent->in[order];
    return comes_before(order, block, parent) ? &in->before : &in->after;
}

// In the place of the first on its way with a lower priority, whose tree becomes its branches.
static void insert(enum up_arena_order order, struct up_block **at, struct up_block *block)
{
    struct up_block **before = &block->in[order].before, **after = &block->in[order].after;
    while (*at && (*at)->priority >= block->priority) at = child_towards(order, *at, block);
    struct up_block *rest = *at;
    *at = block;
    while (rest) {
        if (comes_before(order, rest, block)) {
            *before = rest;
            before = &rest->in[order].after;
            rest = *before;
        } else {
            *after = rest;
            after = &rest->in[order].before;
            rest = *after;
        }
    }
    *before = *after = NULL;
}

// Its branches become one tree in its place.
static void take_out(enum up_arena_order order, struct up_block **at, const struct up_block *block)
{
    struct up_block *before = block->in[order].before, *after = block->in[order].after;
    while (*at != block) at = child_towards(order, *at, block);
    while (before && after) {
        if (before->priority > after->priority) {
            *at = before;
            at = &before->in[order].after;
            before = *at;
        } else {
            *at = after;
            at = &after->in[order].before;
            after = *at;
        }
    }
    *at = before ? before : after;
}

static void add_free(struct up_arena *arena, struct up_block *block)
{
    for (enum up_arena_order o = 0; o < UP_ARENA_ORDERS; o++) insert(o, &arena->free[o], block);
}

// To be done before its size or offset changes.
static void drop_free(struct up_arena *arena, const struct up_block *block)
{
    for (enum up_arena_order o = 0; o < UP_ARENA_ORDERS; o++) take_out(o, &arena->free[o], block);
}

// The smallest that holds `bytes`, the first of equals.
static struct up_block *best_fit(const struct up_arena *arena, int64_t bytes)
{
    struct up_block *best = NULL, *at = arena->free[UP_ARENA_BY_SIZE];
    while (at) {
        const struct up_branches *in = &at->in[UP_ARENA_BY_SIZE];
        if (at->bytes >= bytes) best = at;
        at = at->bytes >= bytes ? in->before : in->after;
    }
    return best;
}

// The last that begins at `offset` or before.
static struct up_block *free_at(const struct up_arena *arena, int64_t offset)
{
    struct up_block *last = NULL, *at = arena->free[UP_ARENA_BY_OFFSET];
    while (at) {
        const struct up_branches *in = &at->in[UP_ARENA_BY_OFFSET];
        if (at->offset <= offset) last = at;
        at = at->offset <= offset ? in->after : in->before;
    }
    return last;
}

/* --- Blocks --------------------------------------------------------------------------------------
 */

static struct up_block *block_new(struct up_arena *arena)
{
    struct up_block *block = calloc(1, sizeof *block);
    if (!block) return NULL;
    block->arena = arena;
    block->priority = arena->drawn = arena->drawn * 1664525 + 1013904223;
    return block;
}

// That many spare blocks, so that nothing is left half done; false when memory is short.
static bool have_spare(struct up_arena *arena, int count)
{
    struct up_block **at = &arena->spare;
    for (; count; count--, at = &(*at)->after)
        if (!*at && !(*at = block_new(arena))) return false;
    return true;
}

struct up_arena *up_arena_create(int64_t capacity)
{
    struct up_arena *arena = calloc(1, sizeof *arena);
    struct up_block *all = arena ? block_new(arena) : NULL;
    if (!all) {
        free(arena);
        return NULL;
    }
    all->bytes = capacity / UP_ARENA_ALIGN * UP_ARENA_ALIGN;
    arena->first = arena->last = all;
    add_free(arena, all);
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

// Cuts a block in two with a spare one. It is free, but in no order; the rest is in them.
static void split(struct up_arena *arena, struct up_block *block, int64_t bytes)
{
    struct up_block *rest = arena->spare;
    arena->spare = rest->after;
    rest->offset = block->offset + bytes;
    rest->bytes = block->bytes - bytes;
    rest->taken = false;
    memcpy(rest->ticket, block->ticket, sizeof rest->ticket);
    rest->before = block;
    rest->after = block->after;
    *(rest->after ? &rest->after->before : &arena->last) = rest;
    block->after = rest;
    block->bytes = bytes;
    add_free(arena, rest);
}

static struct up_block *take(struct up_arena *arena, struct up_block *block, int64_t bytes)
{
    drop_free(arena, block);
    if (block->bytes > bytes) split(arena, block, bytes);
    block->taken = true;
    arena->high = up_max(arena->high, block->offset + bytes);
    return block;
}

struct up_block *up_arena_take(struct up_arena *arena, int64_t bytes)
{
    int64_t rounded = round_up(bytes);
    struct up_block *best = best_fit(arena, rounded);
    return best && have_spare(arena, 1) ? take(arena, best, rounded) : NULL;
}

struct up_block *up_arena_take_at(struct up_arena *arena, int64_t offset, int64_t bytes)
{
    int64_t rounded = round_up(bytes);
    struct up_block *block = free_at(arena, offset);
    if (!block || block->offset + block->bytes < offset + rounded) return NULL;
    if (!have_spare(arena, 2)) return NULL;
    if (block->offset < offset) {
        drop_free(arena, block);
        split(arena, block, offset - block->offset);
        add_free(arena, block);
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
    if (last->taken) return;
    drop_free(arena, last);
    last->bytes = arena->high - last->offset;
    add_free(arena, last);
}

// Makes `block` and the free one after it, both dropped, one.
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
    struct up_block *before = block->before, *after = block->after;
    UP_ASSERT(block->taken);
    block->taken = false;
    for (int s = 0; s < UP_STREAM_COUNT; s++) block->ticket[s] = 0;
    block->ticket[moment.stream] = moment.ticket;
    if (after && !after->taken) {
        drop_free(arena, after);
        join_next(arena, block);
    }
    if (before && !before->taken) {
        drop_free(arena, before);
        join_next(arena, before);
        block = before;
    }
    add_free(arena, block);
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
    const struct up_block *largest = arena->free[UP_ARENA_BY_SIZE], *at = largest;
    for (; at; at = at->in[UP_ARENA_BY_SIZE].after) largest = at;
    return largest ? largest->bytes : 0;
}
