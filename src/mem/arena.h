/* Offsets in one address range: best fit with coalescing. Knows streams (bytes freed on one stream
 * and taken on another must be waited for) but no memory: it serves dry runs as well. */
#ifndef UP_MEM_ARENA_H
#define UP_MEM_ARENA_H

#include "device/device.h"

enum { UP_ARENA_ALIGN = 256 }; // bytes; what cuBLAS and cuDNN like

struct up_arena;

/* The free stretches lie in two trees, so that none is looked for one by one. */
enum up_arena_order {
    UP_ARENA_BY_SIZE, // those of one size by offset
    UP_ARENA_BY_OFFSET,
    UP_ARENA_ORDERS
};
struct up_branches {
    struct up_block *before, *after;
};

/* A stretch of the range, taken or free. While free, ticket[s] is the moment of stream s after
 * which its bytes are no longer used there (0: never were). */
struct up_block {
    int64_t offset, bytes;
    bool taken;
    uint64_t ticket[UP_STREAM_COUNT];
    struct up_arena *arena;
    struct up_block *before, *after;        // by offset
    struct up_branches in[UP_ARENA_ORDERS]; // while free
    uint32_t priority;                      // in the trees of both orders
};

struct up_arena *up_arena_create(int64_t capacity); // NULL when memory is short
void up_arena_destroy(struct up_arena *arena);      // NULL is fine

/* The smallest free stretch that holds `bytes` (the first of equals), cut to size rounded up to
 * UP_ARENA_ALIGN. Its tickets say what the taker has to wait for. NULL: none is large enough. */
struct up_block *up_arena_take(struct up_arena *arena, int64_t bytes);

/* The stretch [offset, offset + bytes rounded up), which must be free: where a plan says. `offset`
 * is a multiple of UP_ARENA_ALIGN. NULL: it is not free, or beyond the capacity. */
struct up_block *up_arena_take_at(struct up_arena *arena, int64_t offset, int64_t bytes);

/* Where the highest stretch ever taken ends; and ending the range there, for good. */
int64_t up_arena_high(const struct up_arena *arena);
void up_arena_end_at_high(struct up_arena *arena);

/* Gives the block back to its arena, last used at `moment`. */
void up_arena_give(struct up_block *block, struct up_moment moment);

int64_t up_arena_free(const struct up_arena *arena); // bytes that are free in all
int64_t up_arena_largest_free(const struct up_arena *arena);

#endif
