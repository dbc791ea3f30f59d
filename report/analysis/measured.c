#include "report/analysis/measured.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum up_status up_measured_open(const char *path, struct up_measured *measured,
                                struct up_error *err)
{
    enum up_status rc = UP_OK;
    *measured = (struct up_measured){0};
    UP_TRY(up_run_open(path, &measured->run, err));
    UP_TRY(up_run_facts_read(&measured->run, &measured->facts, err));
    UP_TRY(up_breakdown_read(&measured->run, UP_NONE, UP_NONE, &measured->breakdown, err));
    UP_TRY(up_breakdown_host_most(&measured->run, &measured->host_bytes, err));
out:
    return rc;
}

void up_measured_release(struct up_measured *measured)
{
    up_breakdown_release(&measured->breakdown);
    up_run_close(&measured->run);
}

int64_t up_measured_peak(const struct up_measured *measured)
{
    return up_peak_bytes(&measured->breakdown.peak);
}

int64_t up_measured_host(const struct up_measured *measured)
{
    return measured->breakdown.peak.rank == UP_NONE ? UP_NONE : measured->host_bytes;
}

int64_t up_measured_device(const struct up_measured *measured)
{
    const struct up_reconciliation *sums = &measured->breakdown.sums;
    if (measured->breakdown.peak.rank == UP_NONE || sums->device_used_bytes == UP_NONE)
        return UP_NONE;
    return up_difference(sums->before_bytes, sums->device_used_bytes);
}

enum up_status up_measured_whole(const struct up_measured *measured, struct up_error *err)
{
    const char *path = measured->run.path;
    const struct up_run_facts *facts = &measured->facts;
    if (!facts->complete)
        return up_fail(err, UP_USAGE,
                       "%s: INCOMPLETE: the run was killed or is still going: expected one that "
                       "has ended",
                       path);
    if (up_measured_peak(measured) == UP_NONE)
        return up_fail(err, UP_USAGE, "%s: expected a run with recorded tensors, found none", path);
    if (measured->breakdown.peak.unkept_bytes != UP_NONE)
        return up_fail(err, UP_USAGE,
                       "%s: its highest step left no rows: expected a run that kept those of it "
                       "(--trace-steps)",
                       path);
    return UP_OK;
}

/* --- Numbers -----------------------------------------------------------------------------------
 */

double up_relative_change(double from, double to)
{
    return from > 0 ? to / from - 1 : NAN;
}

int64_t up_difference(int64_t a, int64_t b)
{
    int64_t difference;
    if (!__builtin_sub_overflow(b, a, &difference)) return difference;
    return b > a ? INT64_MAX : INT64_MIN;
}

/* --- Pairs -------------------------------------------------------------------------------------
 */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct up_pair *)a)->name, ((const struct up_pair *)b)->name);
}

// Neighbours of one name, of which each side has one at most, become one.
static void merge(struct up_pairs *pairs)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < pairs->count; i++) {
        struct up_pair *pair = &pairs->items[i], *last = &pairs->items[kept - (kept > 0)];
        if (!kept || strcmp(last->name, pair->name) != 0) {
            pairs->items[kept++] = *pair;
            continue;
        }
        int side = pair->there[1];
        last->bytes[side] = pair->bytes[side];
        last->there[side] = true;
    }
    pairs->count = kept;
}

static uint64_t magnitude(const struct up_pair *pair)
{
    int64_t change = up_difference(pair->bytes[0], pair->bytes[1]);
    return change < 0 ? -(uint64_t)change : (uint64_t)change;
}

static int by_change(const void *a, const void *b)
{
    const struct up_pair *x = a, *y = b;
    uint64_t p = magnitude(x), q = magnitude(y);
    int64_t most = up_max(x->bytes[0], x->bytes[1]), other = up_max(y->bytes[0], y->bytes[1]);
    if (p != q) return p < q ? 1 : -1;
    if (most != other) return most < other ? 1 : -1;
    return strcmp(x->name, y->name);
}

enum up_status up_pairs_make(const struct up_live_groups *a, const struct up_live_groups *b,
                             struct up_pairs *pairs, struct up_error *err)
{
    const struct up_live_groups *const sides[2] = {a, b};
    *pairs =
        (struct up_pairs){.items = calloc((size_t)(a->count + b->count) + 1, sizeof *pairs->items)};
    if (!pairs->items) return up_no_memory(err);
    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; i < sides[side]->count; i++) {
            struct up_pair *pair = &pairs->items[pairs->count++];
            *pair = (struct up_pair){.name = sides[side]->items[i].name};
            pair->bytes[side] = sides[side]->items[i].bytes;
            pair->there[side] = true;
        }
    }
    qsort(pairs->items, (size_t)pairs->count, sizeof *pairs->items, by_name);
    merge(pairs);
    qsort(pairs->items, (size_t)pairs->count, sizeof *pairs->items, by_change);
    return UP_OK;
}

void up_pairs_release(struct up_pairs *pairs)
{
    free(pairs->items);
    *pairs = (struct up_pairs){0};
}
