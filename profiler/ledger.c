#include "profiler/addresses.h"
#include "profiler/ledger.h"

#include <stdlib.h>

enum {
    CHANGES_MAX = 1 << 14, // of those the oldest are forgotten, with the brackets they might be in
};

// Taken or, negative, given back: device memory that was seen, or that the arena told of.
struct change {
    int64_t ns, bytes;
};

struct bracket {
    int64_t begin_ns, end_ns, rest; // the rest may be negative, which no row says
    const char *owner;
    uint64_t id; // of its row
};

struct up_ledger {
    struct up_store *store;
    int rank;
    uint64_t last_id;
    struct {
        uint64_t address;
        int64_t bytes;
    } arena[UP_SPACE_COUNT];
    struct up_addresses open;  // seen taken and not given back
    struct up_addresses pools; // that keep something
    struct bracket *brackets;
    int64_t bracket_count, bracket_room, change_count, lost;
    struct change change[CHANGES_MAX];
};

struct up_ledger *up_ledger_create(struct up_store *store, int rank)
{
    struct up_ledger *ledger = calloc(1, sizeof *ledger);
    if (!ledger) return NULL;
    ledger->store = store;
    ledger->rank = rank;
    return ledger;
}

void up_ledger_destroy(struct up_ledger *ledger)
{
    if (!ledger) return;
    up_addresses_release(&ledger->open);
    up_addresses_release(&ledger->pools);
    free(ledger->brackets);
    free(ledger);
}

int64_t up_ledger_bytes(const struct up_ledger *ledger)
{
    return (int64_t)sizeof *ledger +
           (int64_t)(ledger->open.room + ledger->pools.room) * (int64_t)sizeof *ledger->open.rows +
           ledger->bracket_room * (int64_t)sizeof *ledger->brackets;
}

int64_t up_ledger_lost(const struct up_ledger *ledger)
{
    return ledger->lost;
}

/* --- Brackets ------------------------------------------------------------------------------------
 */

static void write_bracket(struct up_ledger *ledger, const struct bracket *bracket)
{
    struct up_store_device_alloc row = {.id = bracket->id,
                                        .owner = bracket->owner,
                                        .space = UP_SPACE_DEVICE,
                                        .bytes = up_max(0, bracket->rest),
                                        .alloc_ns = bracket->end_ns};
    up_store_device_alloc(ledger->store, ledger->rank, &row);
}

// The innermost that is known so far is the first, since it ended first.
static void change_device(struct up_ledger *ledger, int64_t ns, int64_t bytes)
{
    ledger->change[ledger->change_count++ % CHANGES_MAX] = (struct change){ns, bytes};
    for (int64_t i = 0; i < ledger->bracket_count; i++) {
        struct bracket *bracket = &ledger->brackets[i];
        if (ns <= bracket->begin_ns || ns > bracket->end_ns) continue;
        bracket->rest -= bytes;
        write_bracket(ledger, bracket);
        return;
    }
}

// What is known to have changed after begin_ns and until end_ns.
static int64_t known_between(const struct up_ledger *ledger, int64_t begin_ns, int64_t end_ns)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < up_min(ledger->change_count, CHANGES_MAX); i++)
        if (ledger->change[i].ns > begin_ns && ledger->change[i].ns <= end_ns)
            sum += ledger->change[i].bytes;
    for (int64_t i = 0; i < ledger->bracket_count; i++)
        if (ledger->brackets[i].end_ns > begin_ns && ledger->brackets[i].end_ns <= end_ns)
            sum += ledger->brackets[i].rest;
    return sum;
}

static void add_bracket(struct up_ledger *ledger, const struct up_event *event)
{
    int64_t end_ns = event->memory.end_ns;
    if (up_grow(&ledger->brackets, ledger->bracket_count, &ledger->bracket_room,
                sizeof *ledger->brackets, NULL)) {
        ledger->lost++;
        return;
    }
    int64_t rest = event->memory.bytes - known_between(ledger, event->ns, end_ns);
    struct bracket *bracket = &ledger->brackets[ledger->bracket_count++];
    *bracket = (struct bracket){event->ns, end_ns, rest, event->label.name, ++ledger->last_id};
    write_bracket(ledger, bracket);
}

/* --- News ----------------------------------------------------------------------------------------
 */

static void take(struct up_ledger *ledger, const struct up_event *event)
{
    struct up_store_device_alloc row = {.id = ++ledger->last_id,
                                        .owner = event->label.name,
                                        .space = (enum up_space)event->memory.space,
                                        .bytes = event->memory.bytes,
                                        .alloc_ns = event->ns};
    up_store_device_alloc(ledger->store, ledger->rank, &row);
    if (row.space == UP_SPACE_DEVICE) change_device(ledger, event->ns, event->memory.bytes);
}

void up_ledger_news(struct up_ledger *ledger, const struct up_event *event)
{
    switch ((enum up_memory_news)event->memory.news) {
    case UP_MEMORY_RANGE:
        ledger->arena[event->memory.space].address = event->memory.address;
        ledger->arena[event->memory.space].bytes = event->memory.bytes;
        return;
    case UP_MEMORY_TAKEN:
        take(ledger, event);
        return;
    case UP_MEMORY_BRACKET:
        add_bracket(ledger, event);
        return;
    }
}

static bool in_arena(const struct up_ledger *ledger, uint64_t address)
{
    for (int space = 0; space < UP_SPACE_COUNT; space++)
        if (address - ledger->arena[space].address < (uint64_t)ledger->arena[space].bytes)
            return true;
    return false;
}

static void close_row(struct up_ledger *ledger, struct up_addresses *table, struct up_held *held,
                      int64_t ns)
{
    up_store_device_free(ledger->store, ledger->rank, held->id, ns);
    if (held->space == UP_SPACE_DEVICE) change_device(ledger, ns, -held->bytes);
    up_addresses_remove(table, held);
}

static void open_row(struct up_ledger *ledger, struct up_addresses *table,
                     const struct up_activity *activity, const char *owner)
{
    struct up_held held = {activity->address, ++ledger->last_id, activity->bytes, activity->space};
    up_addresses_put(table, up_addresses_find(table, held.address), &held);
    struct up_store_device_alloc row = {.id = held.id,
                                        .owner = owner,
                                        .space = activity->space,
                                        .bytes = activity->bytes,
                                        .alloc_ns = activity->begin_ns};
    up_store_device_alloc(ledger->store, ledger->rank, &row);
    if (row.space == UP_SPACE_DEVICE) change_device(ledger, row.alloc_ns, row.bytes);
}

// What it keeps is one row for as long as that is the same.
static void see_pool(struct up_ledger *ledger, const struct up_activity *activity)
{
    struct up_held *held = up_addresses_find(&ledger->pools, activity->address);
    if (held->id && held->bytes == activity->bytes) return;
    if (held->id) close_row(ledger, &ledger->pools, held, activity->begin_ns);
    if (activity->bytes > 0) open_row(ledger, &ledger->pools, activity, "async pool");
}

static void see_alloc(struct up_ledger *ledger, const struct up_activity *activity)
{
    char owner[UP_OWNER_TEXT];
    // Also where its release was not seen, since the driver has given the address anew.
    struct up_held *held = up_addresses_find(&ledger->open, activity->address);
    if (held->id) close_row(ledger, &ledger->open, held, activity->begin_ns);
    if (activity->kind == UP_ACTIVITY_ALLOC)
        open_row(ledger, &ledger->open, activity, up_owner_of(owner, activity->name));
}

void up_ledger_seen(struct up_ledger *ledger, const struct up_activity *activity)
{
    bool pool = activity->kind == UP_ACTIVITY_POOL;
    if (!pool && in_arena(ledger, activity->address)) return;
    if (!up_addresses_grow(pool ? &ledger->pools : &ledger->open)) {
        ledger->lost++;
        return;
    }
    (pool ? see_pool : see_alloc)(ledger, activity);
}
