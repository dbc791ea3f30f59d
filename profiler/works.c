#include "profiler/works.h"

#include <stdlib.h>

enum { WAITING_MAX = 1 << 18 }; // as many as events of a step are held back

struct waiting {
    uint64_t id; // 0: free
    enum up_event_kind kind;
    int64_t begin_ns, end_ns;
};

struct up_works {
    int rank;
    uint64_t first, last; // ids that may be waiting; last 0: none
    int64_t lost;
    struct waiting waiting[WAITING_MAX]; // by the low bits of their ids
};

struct up_works *up_works_create(int rank)
{
    struct up_works *works = calloc(1, sizeof *works);
    if (works) works->rank = rank;
    return works;
}

void up_works_destroy(struct up_works *works)
{
    free(works);
}

int64_t up_works_bytes_max(void)
{
    return sizeof(struct up_works);
}

int64_t up_works_lost(const struct up_works *works)
{
    return works->lost;
}

static void wait_for_row(struct up_works *works, const struct waiting *work)
{
    struct waiting *slot = &works->waiting[work->id % WAITING_MAX];
    if (slot->id == work->id) {
        slot->begin_ns = up_min(slot->begin_ns, work->begin_ns);
        slot->end_ns = up_max(slot->end_ns, work->end_ns);
        return;
    }
    if (slot->id) {
        works->lost++;
        return;
    }
    *slot = *work;
    works->first = works->last ? (work->id < works->first ? work->id : works->first) : work->id;
    works->last = work->id > works->last ? work->id : works->last;
}

void up_works_add(struct up_works *works, struct up_store *store, uint64_t settled, uint64_t id,
                  enum up_event_kind kind, int64_t begin_ns, int64_t end_ns)
{
    end_ns = up_max(end_ns, begin_ns + 1); // what has no length has no times of the device
    if (id <= settled)
        up_store_work_times(store, works->rank, kind, id, begin_ns, end_ns);
    else
        wait_for_row(works, &(struct waiting){id, kind, begin_ns, end_ns});
}

void up_works_write(struct up_works *works, struct up_store *store, uint64_t settled)
{
    for (; works->last && works->first <= settled; works->first++) {
        struct waiting *slot = &works->waiting[works->first % WAITING_MAX];
        if (slot->id == works->first) {
            up_store_work_times(store, works->rank, slot->kind, slot->id, slot->begin_ns,
                                slot->end_ns);
            slot->id = 0;
        }
        if (works->first == works->last) works->last = 0;
    }
}
