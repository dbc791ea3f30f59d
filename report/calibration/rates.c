/* From timed work to rates: no files here, numbers only. */
#include "report/calibration/calibration.h"

#include <math.h>
#include <stdlib.h>

/* --- Alike -------------------------------------------------------------------------------------
 */

// Pieces of work that are alike, and how long one of them takes.
struct alike {
    int sort;
    double seconds, flops, bytes;
    int64_t runs, count;
};

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
// for the other ranks: it takes as long as the shortest. Returns how many sorts of work there are.
static int64_t gather_alike(struct up_timed_list *list, struct alike *alike)
{
    int64_t found = 0;
    if (list->count) qsort(list->items, (size_t)list->count, sizeof *list->items, by_work_and_time);
    for (int64_t i = 0, next; i < list->count; i = next) {
        const struct up_timed *first = &list->items[i];
        // Of work of which neither operations nor bytes are known nobody can say what it is like.
        bool known = first->flops > 0 || !isnan(first->bytes);
        for (next = i + 1; next < list->count && known; next++)
            if (by_work(first, &list->items[next]) != 0) break;
        bool waits = first->sort == UP_COST_COLLECTIVE;
        double seconds = list->items[waits ? i : i + (next - i - 1) / 2].seconds;
        alike[found++] =
            (struct alike){first->sort, seconds, first->flops, first->bytes, first->runs, next - i};
    }
    return found;
}

/* --- Votes -------------------------------------------------------------------------------------
 */

// A value that so many pieces of work of some seconds each speak for.
struct vote {
    double value, seconds;
    int64_t count;
};

/* What is learnt from. Times are without what a launch takes, as far as that is known. */
struct lesson {
    const struct alike *alike;
    int64_t count;
    int64_t head_dim; // of attention
    bool own_attention;
    const double *run_s; // likewise, of each class of kernels
    struct vote *votes;  // room for one of each
    int64_t voted;
    double launch_s;
    double kernel_floor_s; // kernels that take no longer are bound by their launch
    double other_floor_s;  // likewise copies and collectives
};

static int by_value(const void *a, const void *b)
{
    return compare(((const struct vote *)a)->value, ((const struct vote *)b)->value);
}

static void vote(struct lesson *lesson, double value, double seconds, int64_t count)
{
    if (value > 0 && value < 0x1p60)
        lesson->votes[lesson->voted++] = (struct vote){value, seconds * (double)count, count};
}

static int64_t samples(const struct lesson *lesson)
{
    int64_t count = 0;
    for (int64_t i = 0; i < lesson->voted; i++) count += lesson->votes[i].count;
    return count;
}

// Shapes differ in how near they come to a machine's best, and it is the sum of their times that a
// forecast is to meet.
static struct up_rate mean_by_time(const struct lesson *lesson)
{
    double amount = 0, seconds = 0;
    for (int64_t i = 0; i < lesson->voted; i++) {
        amount += lesson->votes[i].value * lesson->votes[i].seconds;
        seconds += lesson->votes[i].seconds;
    }
    double mean = amount / seconds;
    if (!(mean < 0x1p60)) return (struct up_rate){NAN, 0}; // no votes, or an absurd sum
    return (struct up_rate){mean, samples(lesson)};
}

static struct up_rate median_by_time(struct lesson *lesson)
{
    double all = 0, below = 0;
    if (!lesson->voted) return (struct up_rate){NAN, 0};
    qsort(lesson->votes, (size_t)lesson->voted, sizeof *lesson->votes, by_value);
    for (int64_t i = 0; i < lesson->voted; i++) all += lesson->votes[i].seconds;
    int64_t at = 0;
    while (at + 1 < lesson->voted && (below += lesson->votes[at].seconds) < all / 2) at++;
    return (struct up_rate){lesson->votes[at].value, samples(lesson)};
}

static bool is_kernel(int sort)
{
    return sort < UP_COST_COLLECTIVE;
}

// What its runs take whatever their work.
static double runs_s(const struct lesson *lesson, const struct alike *alike)
{
    return is_kernel(alike->sort) ? (double)alike->runs * lesson->run_s[alike->sort] : 0;
}

// Well longer than its launch, and than what its runs take.
static bool has_say(const struct lesson *lesson, const struct alike *alike)
{
    return alike->seconds > 2 * runs_s(lesson, alike) &&
           alike->seconds >
               (is_kernel(alike->sort) ? lesson->kernel_floor_s : lesson->other_floor_s);
}

static double work_s(const struct lesson *lesson, const struct alike *alike)
{
    return alike->seconds - lesson->launch_s - runs_s(lesson, alike);
}

/* --- Bytes and operations ----------------------------------------------------------------------
 */

static const struct pace {
    int sort;
    enum up_machine_figure figure;
} paces[] = {{UP_COST_POINTWISE, UP_FIGURE_MEMORY},
             {UP_COST_NORM_FORWARD, UP_FIGURE_NORM_FORWARD},
             {UP_COST_NORM_BACKWARD, UP_FIGURE_NORM_BACKWARD},
             {UP_COST_ROPE, UP_FIGURE_ROPE},
             {UP_COST_EMBED_BACKWARD, UP_FIGURE_EMBED_BACKWARD},
             {UP_COST_CROSS_ENTROPY, UP_FIGURE_CROSS_ENTROPY},
             {UP_COST_ADAMW, UP_FIGURE_ADAMW},
             {UP_SORT_TO_HOST, UP_FIGURE_TO_HOST},
             {UP_SORT_FROM_HOST, UP_FIGURE_FROM_HOST},
             {UP_COST_COLLECTIVE, UP_FIGURE_LINK}};

static struct up_rate bytes_rate(struct lesson *lesson, int sort)
{
    lesson->voted = 0;
    for (int64_t i = 0; i < lesson->count; i++) {
        const struct alike *alike = &lesson->alike[i];
        double seconds = work_s(lesson, alike);
        if (alike->sort == sort && has_say(lesson, alike))
            vote(lesson, alike->bytes / seconds, seconds, alike->count);
    }
    return is_kernel(sort) ? mean_by_time(lesson) : median_by_time(lesson);
}

// Whether it took what memory takes for its bytes; not where bytes or the rate are not known. What
// was quicker than that was not held up by memory, whatever others were.
static bool bound_by_memory(const struct lesson *lesson, const struct alike *alike, double memory)
{
    return fabs(work_s(lesson, alike) / (alike->bytes / memory) - 1) <= 0.05;
}

// Whose operations' rate it is, of the first three classes.
static enum up_machine_figure flops_figure(const struct lesson *lesson, int sort)
{
    if (sort == UP_COST_MATMUL) return UP_FIGURE_MATMUL;
    return up_figure_of_attention(sort == UP_COST_ATTENTION_BACKWARD, lesson->head_dim,
                                  lesson->own_attention);
}

static struct up_rate attention_rate(struct lesson *lesson, int sort, double memory)
{
    lesson->voted = 0;
    for (int64_t i = 0; i < lesson->count; i++) {
        const struct alike *alike = &lesson->alike[i];
        double seconds = work_s(lesson, alike);
        if (alike->sort == sort && has_say(lesson, alike) &&
            !bound_by_memory(lesson, alike, memory))
            vote(lesson, alike->flops / seconds, seconds, alike->count);
    }
    return mean_by_time(lesson);
}

/* --- Products ----------------------------------------------------------------------------------
 *
 * A product takes what its operations or its bytes take, whichever is more. Bytes it moves at a
 * pace of its own: thin ones reach about half of what copies do. Which of them are thin is not
 * known: of all ways to call the ones with fewest operations a byte so, that one is taken with
 * which the rates explain the times best.
 */

enum { MOST_WAYS = 256 };
// What moves bytes more slowly than this share of memory's pace is held up by something else.
static const double least_pace = 0.4;
// Of all products' time what a pace of their own has to explain to be believed.
static const double least_gain = 1e-3;

struct products {
    struct alike *items; // most operations a byte first
    int64_t count;
    double seconds; // of all
};

static int by_intensity(const void *a, const void *b)
{
    const struct alike *x = a, *y = b;
    return compare(x->bytes / x->flops, y->bytes / y->flops);
}

static void gather_products(const struct lesson *lesson, struct products *products)
{
    products->count = 0;
    products->seconds = 0;
    for (int64_t i = 0; i < lesson->count; i++) {
        const struct alike *alike = &lesson->alike[i];
        if (alike->sort != UP_COST_MATMUL || !has_say(lesson, alike)) continue;
        products->items[products->count++] = *alike;
        products->seconds += work_s(lesson, alike) * (double)alike->count;
    }
    if (products->count)
        qsort(products->items, (size_t)products->count, sizeof *products->items, by_intensity);
}

// FLOP/s of the products from `begin` to `end`, or bytes/s.
static struct up_rate product_rate(struct lesson *lesson, const struct products *products,
                                   int64_t begin, int64_t end, bool bytes)
{
    lesson->voted = 0;
    for (int64_t i = begin; i < end; i++) {
        const struct alike *product = &products->items[i];
        double seconds = work_s(lesson, product);
        vote(lesson, (bytes ? product->bytes : product->flops) / seconds, seconds, product->count);
    }
    return mean_by_time(lesson);
}

// By how many seconds the times are missed in all.
static double missed_s(const struct lesson *lesson, const struct products *products, double flops,
                       double pace)
{
    double missed = 0;
    for (int64_t i = 0; i < products->count; i++) {
        const struct alike *product = &products->items[i];
        double forecast = fmax(product->flops / flops, product->bytes / pace);
        missed += fabs(work_s(lesson, product) - forecast) * (double)product->count;
    }
    return missed;
}

// Without thin ones their pace is not learnt, and memory's stands for it.
static void learn_products(struct lesson *lesson, struct products *products, struct up_rates *rates)
{
    struct up_rate *flops = &rates->of[UP_FIGURE_MATMUL];
    double memory = rates->of[UP_FIGURE_MEMORY].value;
    gather_products(lesson, products);
    int64_t count = products->count, step = 1 + count / MOST_WAYS;
    *flops = product_rate(lesson, products, 0, count, false);
    double least = missed_s(lesson, products, flops->value, memory);
    for (int64_t thin = 1; thin < count; thin += step) {
        struct up_rate rate = product_rate(lesson, products, 0, count - thin, false);
        struct up_rate pace = product_rate(lesson, products, count - thin, count, true);
        double missed = missed_s(lesson, products, rate.value, pace.value);
        if (!(pace.value >= least_pace * memory) ||
            !(missed < least - least_gain * products->seconds))
            continue;
        least = missed;
        *flops = rate;
        rates->of[UP_FIGURE_MATMUL_PACE] = pace;
    }
}

/* --- Launches ----------------------------------------------------------------------------------
 */

// Bytes/s of a class: memory's where it has none of its own.
static double pace_of(int sort, const struct up_rates *rates)
{
    for (int i = 0; i < UP_COUNT(paces); i++)
        if (paces[i].sort == sort && rates->of[paces[i].figure].value > 0)
            return rates->of[paces[i].figure].value;
    return rates->of[UP_FIGURE_MEMORY].value;
}

// What its rates say that the work of a kernel takes; NaN where they are not known.
static double forecast_s(const struct lesson *lesson, const struct alike *alike,
                         const struct up_rates *rates)
{
    double seconds = alike->bytes / pace_of(alike->sort, rates);
    if (alike->sort < UP_COST_POINTWISE)
        seconds = fmax(seconds, alike->flops / rates->of[flops_figure(lesson, alike->sort)].value);
    return seconds + runs_s(lesson, alike);
}

// Of kernels whose work would take less than half of the shortest kernel's time the lower quartile
// of what they took besides: what else makes a kernel slow makes it longer.
static struct up_rate launch_time(struct lesson *lesson, const struct up_rates *rates,
                                  double shortest_s)
{
    int64_t below = 0, at = 0;
    lesson->voted = 0;
    for (int64_t i = 0; i < lesson->count; i++) {
        const struct alike *alike = &lesson->alike[i];
        if (!is_kernel(alike->sort)) continue;
        double work = forecast_s(lesson, alike, rates);
        if (work < shortest_s / 2) vote(lesson, alike->seconds - work, 1, alike->count);
    }
    if (!lesson->voted) return (struct up_rate){NAN, 0};
    qsort(lesson->votes, (size_t)lesson->voted, sizeof *lesson->votes, by_value);
    while ((below += lesson->votes[at].count) <= samples(lesson) / 4) at++;
    return (struct up_rate){lesson->votes[at].value, samples(lesson)};
}

// The shortest of all kernels; infinite where there is none.
static double shortest(const struct lesson *lesson)
{
    double least = INFINITY;
    for (int64_t i = 0; i < lesson->count; i++)
        if (is_kernel(lesson->alike[i].sort)) least = fmin(least, lesson->alike[i].seconds);
    return least;
}

/* --- All of it ---------------------------------------------------------------------------------
 */

static void learn_rates(struct lesson *lesson, struct products *products, struct up_rates *rates)
{
    for (int i = 0; i < UP_FIGURE_COUNT; i++) rates->of[i] = (struct up_rate){NAN, 0};
    for (int i = 0; i < UP_COUNT(paces); i++)
        rates->of[paces[i].figure] = bytes_rate(lesson, paces[i].sort);
    double memory = rates->of[UP_FIGURE_MEMORY].value;
    for (int sort = UP_COST_ATTENTION_FORWARD; sort <= UP_COST_ATTENTION_BACKWARD; sort++)
        rates->of[flops_figure(lesson, sort)] = attention_rate(lesson, sort, memory);
    learn_products(lesson, products, rates);
}

// Rates are needed to tell which kernels are all launch, and what a launch takes to tell rates:
// first without, then with what came out. A copy's own start is longer than a kernel's.
static void learn(struct lesson *lesson, struct products *products, struct up_rates *rates)
{
    enum { PASSES = 5, KERNEL_LAUNCHES = 2, OTHER_LAUNCHES = 10 };
    double shortest_s = shortest(lesson), launch_s = shortest_s;
    if (!isfinite(launch_s)) launch_s = 0; // copies and collectives alone
    for (int pass = 0; pass < PASSES; pass++) {
        lesson->kernel_floor_s = KERNEL_LAUNCHES * launch_s;
        lesson->other_floor_s = OTHER_LAUNCHES * launch_s;
        learn_rates(lesson, products, rates);
        rates->of[UP_FIGURE_LAUNCH] = launch_time(lesson, rates, shortest_s);
        if (!(rates->of[UP_FIGURE_LAUNCH].value > 0)) return;
        launch_s = lesson->launch_s = rates->of[UP_FIGURE_LAUNCH].value;
    }
}

enum up_status up_rates_learn(struct up_timed_list *list, struct up_rates *rates,
                              struct up_error *err)
{
    enum up_status rc = UP_OK;
    size_t room = (size_t)list->count + 1;
    struct alike *alike = calloc(room, sizeof *alike);
    struct lesson lesson = {.alike = alike,
                            .head_dim = list->head_dim,
                            .own_attention = list->own_attention,
                            .run_s = list->run_s,
                            .votes = calloc(room, sizeof *lesson.votes)};
    struct products products = {.items = calloc(room, sizeof *products.items)};
    if (!alike || !lesson.votes || !products.items) UP_TRY(up_no_memory(err));
    lesson.count = gather_alike(list, alike);
    learn(&lesson, &products, rates);
out:
    free(products.items);
    free(lesson.votes);
    free(alike);
    return rc;
}
