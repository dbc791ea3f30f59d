#include "profiler/addresses.h"

#include <stdlib.h>

enum { ROOM_FIRST = 256 };

static uint64_t place_of(const struct up_addresses *table, uint64_t address)
{
    return (address * UINT64_C(0x9e3779b97f4a7c15) >> 20) & (table->room - 1);
}

struct up_held *up_addresses_find(const struct up_addresses *table, uint64_t address)
{
    uint64_t at = place_of(table, address);
    while (table->rows[at].id && table->rows[at].address != address)
        at = (at + 1) & (table->room - 1);
    return &table->rows[at];
}

bool up_addresses_grow(struct up_addresses *table)
{
    if (table->room && table->count * 2 < table->room) return true;
    struct up_addresses grown = *table;
    grown.room = table->room ? 2 * table->room : ROOM_FIRST;
    grown.rows = calloc(grown.room, sizeof *grown.rows);
    if (!grown.rows) return false;
    for (uint64_t i = 0; i < table->room; i++)
        if (table->rows[i].id) *up_addresses_find(&grown, table->rows[i].address) = table->rows[i];
    free(table->rows);
    *table = grown;
    return true;
}

void up_addresses_put(struct up_addresses *table, struct up_held *row, const struct up_held *held)
{
    *row = *held;
    table->count++;
}

// Moves up those behind the row that were displaced by it.
void up_addresses_remove(struct up_addresses *table, struct up_held *row)
{
    uint64_t mask = table->room - 1, hole = (uint64_t)(row - table->rows);
    table->count--;
    for (uint64_t at = (hole + 1) & mask; table->rows[at].id; at = (at + 1) & mask) {
        uint64_t home = place_of(table, table->rows[at].address);
        if (((at - home) & mask) < ((at - hole) & mask)) continue;
        table->rows[hole] = table->rows[at];
        hole = at;
    }
    table->rows[hole] = (struct up_held){0};
}

void up_addresses_release(struct up_addresses *table)
{
    free(table->rows);
    *table = (struct up_addresses){0};
}
