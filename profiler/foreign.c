#define _GNU_SOURCE // strcasestr
#include "profiler/foreign.h"
#include "profiler/addresses.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    WAITING_MAX = 1 << 20,
    NAMES = 1 << 14,       // chains
    NAME_MAX_BYTES = 1024, // of one without its numbers
    PHASES_KEPT = 1 << 16, // of the newest ranges
};

enum kind { RANGE_BEGIN, RANGE_END, ALLOC, RELEASE };

struct item {
    enum kind kind;
    int rank;
    enum up_space space;
    int64_t ns, bytes;
    uint64_t order;      // in which it came: of equal moments the first is first
    uint64_t id, around; // of ranges; `around` the enclosing one, of an allocation the one it is in
    uint64_t address;
    const char *name;
};

struct name {
    struct name *next;
    char text[];
};

struct up_foreign {
    pthread_mutex_t lock; // of what follows
    struct item *waiting;
    int64_t count, room, lost;
    uint64_t last_range, last_order;
    int64_t name_count;
    struct name *names[NAMES];
    // The teller's alone.
    uint64_t seq[UP_FOREIGN_RANKS], last_tensor[UP_FOREIGN_RANKS];
    struct up_addresses alive[UP_FOREIGN_RANKS];
    uint8_t phase[PHASES_KEPT];
};

struct up_foreign *up_foreign_create(void)
{
    struct up_foreign *foreign = calloc(1, sizeof *foreign);
    if (foreign && pthread_mutex_init(&foreign->lock, NULL)) {
        free(foreign);
        return NULL;
    }
    return foreign;
}

void up_foreign_destroy(struct up_foreign *foreign)
{
    if (!foreign) return;
    for (int i = 0; i < NAMES; i++)
        for (struct name *name = foreign->names[i], *next; name; name = next) {
            next = name->next;
            free(name);
        }
    for (int i = 0; i < UP_FOREIGN_RANKS; i++) up_addresses_release(&foreign->alive[i]);
    free(foreign->waiting);
    pthread_mutex_destroy(&foreign->lock);
    free(foreign);
}

/* --- From any thread -----------------------------------------------------------------------------
 */

static struct name *find_name(struct name *name, const char *text)
{
    while (name && strcmp(name->text, text)) name = name->next;
    return name;
}

// With the lock held: the text where it is known, or there are fewer than `most` names; else NULL.
static const char *intern(struct up_foreign *foreign, const char *text, int64_t most)
{
    uint64_t hash = 5381;
    for (const char *at = text; *at; at++) hash = hash * 33 + (unsigned char)*at;
    struct name **chain = &foreign->names[hash % NAMES], *name = find_name(*chain, text);
    size_t size = strlen(text) + 1;
    if (!name && foreign->name_count < most && (name = malloc(sizeof *name + size))) {
        memcpy(name->text, text, size);
        name->next = *chain;
        *chain = name;
        foreign->name_count++;
    }
    return name ? name->text : NULL;
}

const char *up_foreign_name(struct up_foreign *foreign, const char *text)
{
    pthread_mutex_lock(&foreign->lock);
    const char *name = intern(foreign, text, INT64_MAX);
    pthread_mutex_unlock(&foreign->lock);
    return name;
}

// "add, seq = *": what differs by numbers alone has one name.
static const char *without_numbers(char out[NAME_MAX_BYTES], const char *text)
{
    static const char digits[] = "0123456789";
    size_t used = 0;
    while (*text && used + 1 < NAME_MAX_BYTES) {
        size_t number = strspn(text, digits);
        out[used++] = number ? '*' : *text;
        text += number ? number : 1;
    }
    out[used] = 0;
    return out;
}

const char *up_foreign_range_name(struct up_foreign *foreign, const char *text)
{
    char folded[NAME_MAX_BYTES];
    pthread_mutex_lock(&foreign->lock);
    const char *name = intern(foreign, text, UP_FOREIGN_NAMES);
    if (!name) name = intern(foreign, without_numbers(folded, text), 2 * UP_FOREIGN_NAMES);
    pthread_mutex_unlock(&foreign->lock);
    return name ? name : "other";
}

// With the lock held.
static bool grow(struct up_foreign *foreign)
{
    return foreign->count < WAITING_MAX && !up_grow(&foreign->waiting, foreign->count,
                                                    &foreign->room, sizeof *foreign->waiting, NULL);
}

static bool add(struct up_foreign *foreign, struct item *item)
{
    if (item->rank < 0 || item->rank >= UP_FOREIGN_RANKS) item->rank = 0;
    pthread_mutex_lock(&foreign->lock);
    bool room = grow(foreign);
    if (room) {
        if (item->kind == RANGE_BEGIN) item->id = ++foreign->last_range;
        item->order = ++foreign->last_order;
        foreign->waiting[foreign->count++] = *item;
    } else {
        foreign->lost++;
    }
    pthread_mutex_unlock(&foreign->lock);
    return room;
}

// As it was, in its old place among the others.
static void add_again(struct up_foreign *foreign, const struct item *item)
{
    pthread_mutex_lock(&foreign->lock);
    if (grow(foreign))
        foreign->waiting[foreign->count++] = *item;
    else
        foreign->lost++;
    pthread_mutex_unlock(&foreign->lock);
}

uint64_t up_foreign_range_begin(struct up_foreign *foreign, int rank, uint64_t parent,
                                const char *name, int64_t ns)
{
    struct item item = {
        .kind = RANGE_BEGIN, .rank = rank, .ns = ns, .around = parent, .name = name};
    return name && add(foreign, &item) ? item.id : 0;
}

void up_foreign_range_end(struct up_foreign *foreign, int rank, uint64_t id, int64_t ns)
{
    if (id) add(foreign, &(struct item){.kind = RANGE_END, .rank = rank, .ns = ns, .id = id});
}

void up_foreign_seen(struct up_foreign *foreign, const struct up_activity *activity,
                     uint64_t range_id)
{
    char owner[UP_OWNER_TEXT];
    const char *name = up_foreign_name(foreign, up_owner_of(owner, activity->name));
    add(foreign, &(struct item){.kind = activity->kind == UP_ACTIVITY_ALLOC ? ALLOC : RELEASE,
                                .rank = activity->rank,
                                .space = activity->space,
                                .ns = activity->begin_ns,
                                .bytes = activity->bytes,
                                .around = range_id,
                                .address = activity->address,
                                .name = name ? name : "unknown"});
}

int64_t up_foreign_lost(struct up_foreign *foreign)
{
    pthread_mutex_lock(&foreign->lock);
    int64_t lost = foreign->lost;
    pthread_mutex_unlock(&foreign->lock);
    return lost;
}

/* --- From the teller's ---------------------------------------------------------------------------
 */

// What people call the phases of their steps.
static enum up_phase phase_of(const char *name, enum up_phase around)
{
    if (strcasestr(name, "backward")) return UP_PHASE_BACKWARD;
    if (strcasestr(name, "optimizer")) return UP_PHASE_OPTIMIZER;
    if (strcasestr(name, "forward")) return UP_PHASE_FORWARD;
    return around;
}

static enum up_phase phase_in(const struct up_foreign *foreign, uint64_t range)
{
    return range ? (enum up_phase)foreign->phase[range % PHASES_KEPT] : UP_PHASE_INIT;
}

static struct up_event event_of(struct up_foreign *foreign, const struct item *item,
                                enum up_event_kind kind, enum up_phase phase)
{
    return (struct up_event){.kind = (uint8_t)kind,
                             .phase = (uint8_t)phase,
                             .step = -1,
                             .seq = ++foreign->seq[item->rank],
                             .ns = item->ns,
                             .label = {item->name, UP_NO_LAYER, UP_NO_INDEX}};
}

static struct up_event event_of_range(struct up_foreign *foreign, const struct item *item)
{
    bool begins = item->kind == RANGE_BEGIN;
    enum up_phase phase = phase_in(foreign, begins ? item->around : item->id);
    if (begins) phase = phase_of(item->name, phase);
    struct up_event event =
        event_of(foreign, item, begins ? UP_EVENT_RANGE_BEGIN : UP_EVENT_RANGE_END, phase);
    event.range.id = item->id;
    event.range.parent = item->around;
    foreign->phase[item->id % PHASES_KEPT] = (uint8_t)phase;
    return event;
}

static struct up_event event_of_alloc(struct up_foreign *foreign, const struct item *item)
{
    struct up_event event =
        event_of(foreign, item, UP_EVENT_ALLOC, phase_in(foreign, item->around));
    event.tensor.id = event.tensor.storage = ++foreign->last_tensor[item->rank];
    event.tensor.range_id = item->around;
    event.tensor.bytes = event.tensor.reserved = item->bytes;
    event.tensor.space = (uint8_t)item->space;
    event.tensor.category =
        (uint8_t)(strcmp(item->name, "nccl") ? UP_CATEGORY_WORKSPACE : UP_CATEGORY_COMM);
    event.tensor.dtype = UP_U8;
    event.tensor.dims = 1;
    event.tensor.outlives_step = true;
    up_event_set_dim(&event, 0, item->bytes);
    return event;
}

static struct up_event event_of_free(struct up_foreign *foreign, const struct item *item,
                                     const struct up_held *held)
{
    struct up_event event = event_of(foreign, item, UP_EVENT_FREE, UP_PHASE_INIT);
    event.tensor.id = event.tensor.storage = held->id;
    event.tensor.bytes = held->bytes;
    event.tensor.space = (uint8_t)held->space;
    return event;
}

struct teller {
    void (*tell)(void *context, int rank, const struct up_event *event);
    void *context;
};

// An allocation where one is alive ends that: its release was not seen.
static void tell_memory(struct up_foreign *foreign, const struct item *item,
                        const struct teller *teller)
{
    struct up_addresses *alive = &foreign->alive[item->rank];
    struct up_event event;
    if (!up_addresses_grow(alive)) return;
    struct up_held *held = up_addresses_find(alive, item->address);
    if (held->id) {
        event = event_of_free(foreign, item, held);
        up_addresses_remove(alive, held);
        teller->tell(teller->context, item->rank, &event);
    }
    if (item->kind == RELEASE) return;
    event = event_of_alloc(foreign, item);
    struct up_held now = {item->address, event.tensor.id, item->bytes, item->space};
    up_addresses_put(alive, up_addresses_find(alive, item->address), &now);
    teller->tell(teller->context, item->rank, &event);
}

static int in_order(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    if (x->ns != y->ns) return x->ns < y->ns ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

void up_foreign_tell(struct up_foreign *foreign, int64_t until_ns,
                     void (*tell)(void *context, int rank, const struct up_event *event),
                     void *context)
{
    struct teller teller = {tell, context};
    pthread_mutex_lock(&foreign->lock);
    struct item *items = foreign->waiting;
    int64_t count = foreign->count, done = 0;
    foreign->waiting = NULL;
    foreign->count = foreign->room = 0;
    pthread_mutex_unlock(&foreign->lock);
    if (count) qsort(items, (size_t)count, sizeof *items, in_order);
    for (; done < count && items[done].ns <= until_ns; done++) {
        if (items[done].kind == ALLOC || items[done].kind == RELEASE) {
            tell_memory(foreign, &items[done], &teller);
        } else {
            struct up_event event = event_of_range(foreign, &items[done]);
            tell(context, items[done].rank, &event);
        }
    }
    // The rest waits on, before what has come meanwhile.
    for (; done < count; done++) add_again(foreign, &items[done]);
    free(items);
}
