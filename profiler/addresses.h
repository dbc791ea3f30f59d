/* What lies at an address: a table of allocations that are alive. */
#ifndef UP_PROFILER_ADDRESSES_H
#define UP_PROFILER_ADDRESSES_H

#include "trace/trace.h"

struct up_held {
    uint64_t address, id; // id 0: nothing
    int64_t bytes;
    enum up_space space;
};

/* A row lies at its address' place or behind it; there is always a free one once there is room. A
 * zeroed table is empty. */
struct up_addresses {
    struct up_held *rows; // owned
    uint64_t count, room; // room: 0 or a power of two
};

/* Room for one more; false when memory is short. */
bool up_addresses_grow(struct up_addresses *table);
/* The row of the address, or (id 0) the free one where it would go. After up_addresses_grow. */
struct up_held *up_addresses_find(const struct up_addresses *table, uint64_t address);
/* Fills a free row that was found. */
void up_addresses_put(struct up_addresses *table, struct up_held *row, const struct up_held *held);
void up_addresses_remove(struct up_addresses *table, struct up_held *row);
void up_addresses_release(struct up_addresses *table);

#endif
