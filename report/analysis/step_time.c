#include "report/analysis/step_time.h"

#include <stdlib.h>
#include <string.h>

const char *const up_work_kind_names[UP_WORK_KINDS] = {
    [UP_WORK_ATTENTION_BACKWARD] = "attention backward",
    [UP_WORK_ATTENTION_FORWARD] = "attention forward",
    [UP_WORK_MATMUL] = "matmul",
    [UP_WORK_POINTWISE] = "pointwise",
    [UP_WORK_OPTIMIZER] = "optimizer",
};

// Kernels that are not UP_WORK_POINTWISE.
static const struct {
    const char *kernel;
    enum up_work_kind kind;
} kinds_of_kernels[] = {
    {"attention_backward", UP_WORK_ATTENTION_BACKWARD},
    {"attention_forward", UP_WORK_ATTENTION_FORWARD},
    {"matmul", UP_WORK_MATMUL},
    {"sum_squares", UP_WORK_OPTIMIZER},
    {"adamw", UP_WORK_OPTIMIZER},
};

/* --- Spans -------------------------------------------------------------------------------------
 */

/* Stretches of time within the step: after `settle` in order and without overlap. What a stream
 * does comes in order, so that a step's hundred thousands of kernels are few spans from the start.
 */
struct spans {
    struct span {
        int64_t begin, end;
    } * items;
    int64_t count, capacity;
};

static void spans_release(struct spans *spans)
{
    free(spans->items);
    *spans = (struct spans){0};
}

static enum up_status spans_add(struct spans *spans, struct span span, struct up_error *err)
{
    struct span *last = spans->count ? &spans->items[spans->count - 1] : NULL;
    if (span.end <= span.begin) return UP_OK;
    if (last && span.begin >= last->begin && span.begin <= last->end) {
        last->end = up_max(last->end, span.end);
        return UP_OK;
    }
    enum up_status rc =
        up_grow(&spans->items, spans->count, &spans->capacity, sizeof *spans->items, err);
    if (rc == UP_OK) spans->items[spans->count++] = span;
    return rc;
}

static int by_begin(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

static void spans_settle(struct spans *spans)
{
    int64_t kept = 0;
    if (!spans->count) return;
    qsort(spans->items, (size_t)spans->count, sizeof *spans->items, by_begin);
    for (int64_t i = 1; i < spans->count; i++) {
        struct span *last = &spans->items[kept], next = spans->items[i];
        if (next.begin <= last->end)
            last->end = up_max(last->end, next.end);
        else
            spans->items[++kept] = next;
    }
    spans->count = kept + 1;
}

static double spans_seconds(const struct spans *spans)
{
    int64_t ns = 0;
    for (int64_t i = 0; i < spans->count; i++) ns += spans->items[i].end - spans->items[i].begin;
    return (double)ns * 1e-9;
}

// How long both go on at once.
static double spans_common_seconds(const struct spans *a, const struct spans *b)
{
    int64_t ns = 0;
    for (int64_t i = 0, j = 0; i < a->count && j < b->count;) {
        const struct span *x = &a->items[i], *y = &b->items[j];
        ns += up_max(0, up_min(x->end, y->end) - up_max(x->begin, y->begin));
        if (x->end < y->end)
            i++;
        else
            j++;
    }
    return (double)ns * 1e-9;
}

// What of `whole` is not in `spans`.
static enum up_status spans_gaps(const struct spans *spans, struct span whole, struct spans *gaps,
                                 struct up_error *err)
{
    enum up_status rc = UP_OK;
    int64_t at = whole.begin;
    for (int64_t i = 0; i < spans->count; i++) {
        UP_TRY(spans_add(gaps, (struct span){at, spans->items[i].begin}, err));
        at = spans->items[i].end;
    }
    UP_TRY(spans_add(gaps, (struct span){at, whole.end}, err));
out:
    return rc;
}

/* --- Rows --------------------------------------------------------------------------------------
 */

// Work of rank ?1 in step ?2: begin_ns, end_ns, name, flops; a stream's rows come in order.
static const char compute_sql[] = "SELECT begin_ns, end_ns, name, flops FROM kernel"
                                  " WHERE rank = ?1 AND step = ?2 AND stream = 'compute'"
                                  " UNION ALL SELECT begin_ns, end_ns, '', 0 FROM copy"
                                  " WHERE rank = ?1 AND step = ?2 AND stream = 'compute'"
                                  " UNION ALL SELECT begin_ns, end_ns, '', 0 FROM collective"
                                  " WHERE rank = ?1 AND step = ?2 AND stream = 'compute'";
static const char collectives_sql[] =
    "SELECT begin_ns, end_ns FROM collective WHERE rank = ?1 AND step = ?2 AND stream <> 'compute'"
    " UNION ALL SELECT begin_ns, end_ns FROM kernel"
    " WHERE rank = ?1 AND step = ?2 AND stream = 'comm'";
static const char copies_sql[] =
    "SELECT begin_ns, end_ns FROM copy WHERE rank = ?1 AND step = ?2 AND stream <> 'compute'";

static enum up_work_kind kind_of(const struct up_query *query)
{
    char name[64];
    up_query_copy(query, 2, name, sizeof name);
    for (int i = 0; i < UP_COUNT(kinds_of_kernels); i++)
        if (!strcmp(kinds_of_kernels[i].kernel, name)) return kinds_of_kernels[i].kind;
    return UP_WORK_POINTWISE;
}

static void count_row(const struct up_query *query, struct span span, struct up_step_time *time)
{
    enum up_work_kind kind = kind_of(query);
    double flops = up_query_real(query, 3);
    if (span.end > span.begin) time->kinds[kind].seconds += (double)(span.end - span.begin) * 1e-9;
    if (flops > 0) time->kinds[kind].flops += flops;
    time->kinds[kind].operations++;
}

// Adds what the rows of `sql` say of the step; with `kinds` also to those of `time`.
static enum up_status read_spans(const struct up_run *run, const char *sql, struct span whole,
                                 struct up_step_time *time, bool kinds, struct spans *spans,
                                 struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    bool row;
    UP_TRY(up_query_open(&query, run, sql, UP_BIND(time->rank, time->step), err));
    for (;;) {
        UP_TRY(up_query_next(&query, &row, err));
        if (!row) break;
        struct span span = {up_max(whole.begin, up_query_integer(&query, 0, 0)),
                            up_min(whole.end, up_query_integer(&query, 1, 0))};
        if (kinds) count_row(&query, span, time);
        UP_TRY(spans_add(spans, span, err));
    }
    spans_settle(spans);
out:
    up_query_close(&query);
    return rc;
}

// Rows are written in the order of steps: from the last kernel back to one whose step ended.
static const char step_sql[] =
    "SELECT step, rank, begin_ns, end_ns FROM step s"
    " WHERE step = (SELECT k.step FROM kernel k JOIN step e ON e.step = k.step AND e.rank = k.rank"
    " WHERE k." UP_SQL_TOLD " AND e.begin_ns >= 0 AND e.end_ns > e.begin_ns"
    " ORDER BY k.id DESC LIMIT 1)"
    " AND begin_ns >= 0 AND end_ns > begin_ns"
    " AND EXISTS (SELECT 1 FROM kernel k WHERE k." UP_SQL_TOLD
    " AND k.step = s.step AND k.rank = s.rank)"
    " ORDER BY rank LIMIT 1";

// The step, its rank and its ends; UP_NONE where no step that ended has kernels.
static enum up_status find_step(const struct up_run *run, struct up_step_time *time,
                                struct span *whole, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    bool row;
    UP_TRY(up_query_open(&query, run, step_sql, UP_BIND_NONE, err));
    UP_TRY(up_query_next(&query, &row, err));
    time->step = up_query_integer(&query, 0, UP_NONE);
    time->rank = up_query_integer(&query, 1, UP_NONE);
    *whole = (struct span){up_query_integer(&query, 2, 0), up_query_integer(&query, 3, 0)};
    time->step_s = (double)(whole->end - whole->begin) * 1e-9;
out:
    up_query_close(&query);
    return rc;
}

enum up_status up_step_time_read(const struct up_run *run, struct up_step_time *time,
                                 struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct spans compute = {0}, collectives = {0}, copies = {0}, gaps = {0};
    struct span whole = {0};
    *time = (struct up_step_time){.step = UP_NONE, .rank = UP_NONE};
    UP_TRY(find_step(run, time, &whole, err));
    if (time->step == UP_NONE) goto out;
    UP_TRY(read_spans(run, compute_sql, whole, time, true, &compute, err));
    UP_TRY(read_spans(run, collectives_sql, whole, time, false, &collectives, err));
    UP_TRY(read_spans(run, copies_sql, whole, time, false, &copies, err));
    if (!(spans_seconds(&compute) > 0)) {
        // Rows without times: a GPU's, when nobody asked it for them.
        *time = (struct up_step_time){.step = UP_NONE, .rank = UP_NONE};
        goto out;
    }
    UP_TRY(spans_gaps(&compute, whole, &gaps, err));
    time->idle_s = spans_seconds(&gaps);
    time->collectives.busy_s = spans_seconds(&collectives);
    time->collectives.exposed_s = spans_common_seconds(&gaps, &collectives);
    time->copies.busy_s = spans_seconds(&copies);
    for (int64_t i = 0; i < collectives.count; i++)
        UP_TRY(spans_add(&copies, collectives.items[i], err));
    spans_settle(&copies); // both together from here on
    time->copies.exposed_s = spans_common_seconds(&gaps, &copies) - time->collectives.exposed_s;
out:
    spans_release(&compute);
    spans_release(&collectives);
    spans_release(&copies);
    spans_release(&gaps);
    return rc;
}
