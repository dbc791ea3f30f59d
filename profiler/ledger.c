#include "profiler/ledger.h"

#include <stdlib.h>

enum {
    CHANGES_MAX = 1 << 14, // of those the oldest are forgotten, with the brackets they might be in
    OPEN_FIRST = 256,
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

// Seen taken and not given back. A table in which a row lies at its address' place or behind it.
struct open_alloc {
    uint64_t address, id; // id 0: free
    int64_t bytes;
    enum up_space space;
};

struct up_ledger {
    struct up_store *store;
    int rank;
    uint64_t last_id;
    struct {
        uint64_t address;
        int64_t bytes;
    } arena[UP_SPACE_COUNT];
    struct open_alloc *open;
    uint64_t open_count, open_room; // room: a power of two
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
    free(ledger->open);
    free(ledger->brackets);
    free(ledger);
}

int64_t up_ledger_bytes(const struct up_ledger *ledger)
{
    return (int64_t)sizeof *ledger + (int64_t)ledger->open_room * (int64_t)sizeof *ledger->open +
           ledger->bracket_room * (int64_t)sizeof *ledger->brackets;
}

int64_t up_ledger_lost(const struct up_ledger *ledger)
{
    return ledger->lost;
}

/* --- What is held --------------------------------------------------------------------------------
 */

static uint64_t place_of(const struct up_ledger *ledger, uint64_t address)
{
    return (address * UINT64_C(0x9e3779b97f4a7c15) >> 20) & (ledger->open_room - 1);
}

// The row of an address, or the free one where it would go. There is always a free one.
static struct open_alloc *find_open(const struct up_ledger *ledger, uint64_t address)
{
    uint64_t at = place_of(ledger, address);
    while (ledger->open[at].id && ledger->open[at].address != address)
        at = (at + 1) & (ledger->open_room - 1);
    return &ledger->open[at];
}

static bool grow_open(struct up_ledger *ledger)
{
    if (ledger->open_room && ledger->open_count * 2 < ledger->open_room) return true;
    struct up_ledger grown = *ledger;
    grown.open_room = ledger->open_room ? 2 * ledger->open_room : OPEN_FIRST;
    grown.open = calloc(grown.open_room, sizeof *grown.open);
    if (!grown.open) return false;
    for (uint64_t i = 0; i < ledger->open_room; i++)
        if (ledger->open[i].id) *find_open(&grown, ledger->open[i].address) = ledger->open[i];
    free(ledger->open);
    ledger->open = grown.open;
    ledger->open_room = grown.open_room;
    return true;
}

// Frees a row, and moves up those behind it that were displaced by it.
static void remove_open(struct up_ledger *ledger, struct open_alloc *alloc)
{
    uint64_t mask = ledger->open_room - 1, hole = (uint64_t)(alloc - ledger->open);
    ledger->open_count--;
    for (uint64_t at = (hole + 1) & mask; ledger->open[at].id; at = (at + 1) & mask) {
        uint64_t home = place_of(ledger, ledger->open[at].address);
        if (((at - home) & mask) < ((at - hole) & mask)) continue;
        ledger->open[hole] = ledger->open[at];
        hole = at;
    }
    ledger->open[hole] = (struct open_alloc){0};
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

static bool grow_brackets(struct up_ledger *ledger)
{
    if (ledger->bracket_count < ledger->bracket_room) return true;
    int64_t room = ledger->bracket_room ? 2 * ledger->bracket_room : 64;
    struct bracket *grown = realloc(ledger->brackets, (size_t)room * sizeof *grown);
    if (!grown) return false;
    ledger->brackets = grown;
    ledger->bracket_room = room;
    return true;
}

static void add_bracket(struct up_ledger *ledger, const struct up_event *event)
{
    int64_t end_ns = event->memory.end_ns;
    if (!grow_brackets(ledger)) {
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

static void close_alloc(struct up_ledger *ledger, struct open_alloc *alloc, int64_t ns)
{
    up_store_device_free(ledger->store, ledger->rank, alloc->id, ns);
    if (alloc->space == UP_SPACE_DEVICE) change_device(ledger, ns, -alloc->bytes);
    remove_open(ledger, alloc);
}

static void open_alloc(struct up_ledger *ledger, const struct up_activity *activity)
{
    char owner[UP_OWNER_TEXT];
    struct open_alloc *alloc = find_open(ledger, activity->address);
    *alloc =
        (struct open_alloc){activity->address, ++ledger->last_id, activity->bytes, activity->space};
    ledger->open_count++;
    struct up_store_device_alloc row = {.id = alloc->id,
                                        .owner = up_owner_of(owner, activity->name),
                                        .space = activity->space,
                                        .bytes = activity->bytes,
                                        .alloc_ns = activity->begin_ns};
    up_store_device_alloc(ledger->store, ledger->rank, &row);
    if (row.space == UP_SPACE_DEVICE) change_device(ledger, row.alloc_ns, row.bytes);
}

void up_ledger_seen(struct up_ledger *ledger, const struct up_activity *activity)
{
    if (in_arena(ledger, activity->address)) return;
    if (!grow_open(ledger)) {
        ledger->lost++;
        return;
    }
    // Also where its release was not seen, since the driver has given the address anew.
    struct open_alloc *alloc = find_open(ledger, activity->address);
    if (alloc->id) close_alloc(ledger, alloc, activity->begin_ns);
    if (activity->kind == UP_ACTIVITY_ALLOC) open_alloc(ledger, activity);
}
