/* From timed work to rates: no files here, numbers only. */
#include "report/calibration.h"

#include <math.h>
#include <stdlib.h>

// A value that work of some seconds speaks for.
struct vote {
    double value, seconds;
};
struct votes {
    struct vote *items;
    int64_t count;
};

static int by_value(const void *a, const void *b)
{
    const struct vote *x = a, *y = b;
    return (x->value > y->value) - (x->value < y->value);
}

static struct up_rate median_by_time(struct votes *votes)
{
    double all = 0, below = 0;
    if (!votes->count) return (struct up_rate){NAN, 0};
    qsort(votes->items, (size_t)votes->count, sizeof *votes->items, by_value);
    for (int64_t i = 0; i < votes->count; i++) all += votes->items[i].seconds;
    int64_t at = 0;
    while (at + 1 < votes->count && (below += votes->items[at].seconds) < all / 2) at++;
    return (struct up_rate){votes->items[at].value, votes->count};
}

static void vote(struct votes *votes, double amount, const struct up_timed *timed)
{
    double value = amount / timed->seconds;
    if (value > 0 && value < 0x1p60)
        votes->items[votes->count++] = (struct vote){value, timed->seconds};
}

static bool is_kernel(const struct up_timed *timed)
{
    return timed->sort <= UP_SORT_POINTWISE;
}

// The shortest of all kernels; infinite where there is none.
static double shortest(const struct up_timed_list *list)
{
    double least = INFINITY;
    for (int64_t i = 0; i < list->count; i++)
        if (is_kernel(&list->items[i])) least = fmin(least, list->items[i].seconds);
    return least;
}

// Bytes a second of one sort, from work well longer than a launch.
static struct up_rate bytes_rate(const struct up_timed_list *list, enum up_work_sort sort,
                                 double longer_than, struct votes *votes)
{
    votes->count = 0;
    for (int64_t i = 0; i < list->count; i++) {
        const struct up_timed *timed = &list->items[i];
        if (timed->sort == sort && timed->seconds > longer_than) vote(votes, timed->bytes, timed);
    }
    return median_by_time(votes);
}

// Whether it took what memory takes for its bytes; not where bytes or the rate are not known. What
// was quicker than that was not held up by memory, whatever others were.
static bool bound_by_memory(const struct up_timed *timed, double memory_bytes_per_s)
{
    return fabs(timed->seconds / (timed->bytes / memory_bytes_per_s) - 1) <= 0.05;
}

static struct up_rate flops_rate(const struct up_timed_list *list, enum up_work_sort sort,
                                 double longer_than, double memory, struct votes *votes)
{
    votes->count = 0;
    for (int64_t i = 0; i < list->count; i++) {
        const struct up_timed *timed = &list->items[i];
        if (timed->sort == sort && timed->seconds > longer_than && !bound_by_memory(timed, memory))
            vote(votes, timed->flops, timed);
    }
    return median_by_time(votes);
}

// Of kernels whose work would take less than half of the shortest kernel's time the lower quartile:
// what else makes a kernel slow makes it longer.
static struct up_rate launch_time(const struct up_timed_list *list, const struct up_rates *rates,
                                  double shortest_s, struct votes *votes)
{
    static const enum up_machine_figure rate_of[] = {
        [UP_SORT_MATMUL] = UP_FIGURE_MATMUL,
        [UP_SORT_ATTENTION_FORWARD] = UP_FIGURE_ATTENTION_FORWARD,
        [UP_SORT_ATTENTION_BACKWARD] = UP_FIGURE_ATTENTION_BACKWARD};
    double memory = rates->of[UP_FIGURE_MEMORY].value;
    votes->count = 0;
    for (int64_t i = 0; i < list->count; i++) {
        const struct up_timed *timed = &list->items[i];
        if (!is_kernel(timed)) continue;
        double work_s = timed->bytes / memory;
        if (timed->sort != UP_SORT_POINTWISE)
            work_s = fmax(work_s, timed->flops / rates->of[rate_of[timed->sort]].value);
        if (work_s < shortest_s / 2)
            votes->items[votes->count++] = (struct vote){timed->seconds, 1};
    }
    if (!votes->count) return (struct up_rate){NAN, 0};
    qsort(votes->items, (size_t)votes->count, sizeof *votes->items, by_value);
    return (struct up_rate){votes->items[votes->count / 4].value, votes->count};
}

/* --- Alike -------------------------------------------------------------------------------------
 */

static int compare(double a, double b)
{
    if (isnan(a) || isnan(b)) return isnan(a) - isnan(b);
    return (a > b) - (a < b);
}

static int by_work(const void *a, const void *b)
{
    const struct up_timed *x = a, *y = b;
    if (x->sort != y->sort) return x->sort < y->sort ? -1 : 1;
    int order = compare(x->flops, y->flops);
    return order ? order : compare(x->bytes, y->bytes);
}

static int by_work_and_time(const void *a, const void *b)
{
    int order = by_work(a, b);
    return order ? order
                 : compare(((const struct up_timed *)a)->seconds,
                           ((const struct up_timed *)b)->seconds);
}

// Work that is alike takes as long as its median: what was held up by something else, on a machine
// that others use too, would otherwise have the most to say. A collective also lasts while it waits
// for the other ranks: it takes as long as the shortest.
static void level(struct up_timed_list *list)
{
    if (list->count) qsort(list->items, (size_t)list->count, sizeof *list->items, by_work_and_time);
    for (int64_t i = 0, next; i < list->count; i = next) {
        for (next = i + 1; next < list->count; next++)
            if (by_work(&list->items[i], &list->items[next]) != 0) break;
        bool waits = list->items[i].sort == UP_SORT_COLLECTIVE;
        double seconds = list->items[waits ? i : i + (next - i - 1) / 2].seconds;
        for (int64_t k = i; k < next; k++) list->items[k].seconds = seconds;
    }
}

enum up_status up_rates_learn(struct up_timed_list *list, struct up_rates *rates,
                              struct up_error *err)
{
    struct votes votes = {.items = calloc((size_t)list->count + 1, sizeof *votes.items)};
    if (!votes.items) return up_no_memory(err);
    level(list);
    double floor_s = 2 * shortest(list);
    if (!isfinite(floor_s)) floor_s = 0; // copies and collectives alone
    for (int i = 0; i < UP_FIGURE_COUNT; i++) rates->of[i] = (struct up_rate){NAN, 0};
    rates->of[UP_FIGURE_MEMORY] = bytes_rate(list, UP_SORT_POINTWISE, floor_s, &votes);
    rates->of[UP_FIGURE_TO_HOST] = bytes_rate(list, UP_SORT_TO_HOST, floor_s, &votes);
    rates->of[UP_FIGURE_FROM_HOST] = bytes_rate(list, UP_SORT_FROM_HOST, floor_s, &votes);
    rates->of[UP_FIGURE_LINK] = bytes_rate(list, UP_SORT_COLLECTIVE, floor_s, &votes);
    double memory = rates->of[UP_FIGURE_MEMORY].value;
    rates->of[UP_FIGURE_MATMUL] = flops_rate(list, UP_SORT_MATMUL, floor_s, memory, &votes);
    rates->of[UP_FIGURE_ATTENTION_FORWARD] =
        flops_rate(list, UP_SORT_ATTENTION_FORWARD, floor_s, memory, &votes);
    rates->of[UP_FIGURE_ATTENTION_BACKWARD] =
        flops_rate(list, UP_SORT_ATTENTION_BACKWARD, floor_s, memory, &votes);
    rates->of[UP_FIGURE_LAUNCH] = launch_time(list, rates, floor_s / 2, &votes);
    free(votes.items);
    return UP_OK;
}
