#include "report/analysis/peak.h"
#include "report/analysis/device_time.h"
#include "report/analysis/ranges.h"
#include "report/analysis/replay.h"

#include <stdlib.h>
#include <string.h>

/* Steps that have rows of their own. ?1 a rank or UP_NONE; ?2 a step or UP_NONE: a step whose rows
 * were not kept finds those of the step it repeated. The peak is NULL where the step did not end.
 */
static const char recorded_sql[] =
    "WITH recorded AS ("
    "  SELECT rank, step, peak_bytes, peak_seq FROM step"
    "    WHERE peak_seq IS NOT NULL AND same_as_step IS NULL"
    "  UNION ALL"
    "  SELECT t.rank, t.step, NULL, NULL"
    "    FROM (SELECT DISTINCT rank, step FROM tensor WHERE step IS NOT NULL) t"
    "    LEFT JOIN step s ON s.rank = t.rank AND s.step = t.step"
    "    WHERE s.peak_seq IS NULL AND s.same_as_step IS NULL) "
    "SELECT rank, step, peak_bytes, peak_seq FROM recorded r "
    "WHERE (?1 < 0 OR rank = ?1) AND (?2 < 0 OR step = coalesce("
    "  (SELECT same_as_step FROM step s WHERE s.rank = r.rank AND s.step = ?2), ?2)) "
    "ORDER BY rank, step";

static const char ranks_sql[] =
    "SELECT rank FROM rank UNION SELECT rank FROM step UNION SELECT rank FROM tensor ORDER BY rank";

static void note_number(int64_t number, int64_t *first, int64_t *last, char *text, size_t size)
{
    size_t used = strlen(text);
    if (*first >= 0 && number == *last + 1) {
        *last = number;
        return;
    }
    if (*first >= 0 && used + 1 < size) {
        const char *comma = used ? ", " : "";
        if (*first == *last)
            snprintf(text + used, size - used, "%s%lld", comma, (long long)*first);
        else
            snprintf(text + used, size - used, "%s%lld-%lld", comma, (long long)*first,
                     (long long)*last);
    }
    *first = *last = number;
}

// The numbers that `sql` gives, ascending, as "0-2, 7"; "none".
static enum up_status list_numbers(const struct up_run *run, const char *sql, const int64_t *bind,
                                   int count, char *text, size_t size, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    int64_t first = UP_NONE, last = UP_NONE;
    bool row;
    text[0] = 0;
    UP_TRY(up_query_open(&query, run, sql, bind, count, err));
    for (;;) {
        UP_TRY(up_query_next(&query, &row, err));
        if (!row) break;
        int64_t number = up_query_integer(&query, 0, UP_NONE);
        if (number >= 0) note_number(number, &first, &last, text, size);
    }
    note_number(INT64_MAX, &first, &last, text, size);
    if (!*text) snprintf(text, size, "none");
out:
    up_query_close(&query);
    return rc;
}

enum up_status up_rank_check(const struct up_run *run, int64_t rank, struct up_error *err)
{
    enum up_status rc = UP_OK;
    int64_t found = 0;
    char ranks[256];
    if (rank == UP_NONE) return UP_OK;
    UP_TRY(up_query_value(run,
                          "SELECT EXISTS (SELECT 1 FROM rank WHERE rank = ?1)"
                          " OR EXISTS (SELECT 1 FROM step WHERE rank = ?1)"
                          " OR EXISTS (SELECT 1 FROM tensor WHERE rank = ?1)",
                          UP_BIND(rank), 0, &found, err));
    if (found) return UP_OK;
    UP_TRY(list_numbers(run, ranks_sql, UP_BIND_NONE, ranks, sizeof ranks, err));
    rc = up_fail(err, UP_USAGE, "--rank: %s has no rank %lld; ranks in it: %s", run->path,
                 (long long)rank, ranks);
out:
    return rc;
}

static enum up_status refuse_step(const struct up_run *run, int64_t rank, int64_t step,
                                  struct up_error *err)
{
    enum up_status rc = UP_OK;
    char steps[256], sql[sizeof recorded_sql + 64];
    int64_t known = 0;
    snprintf(sql, sizeof sql, "SELECT DISTINCT step FROM (%s) ORDER BY step", recorded_sql);
    UP_TRY(list_numbers(run, sql, UP_BIND(rank, UP_NONE), steps, sizeof steps, err));
    UP_TRY(up_query_value(run, "SELECT 1 FROM step WHERE step = ?2 AND (?1 < 0 OR rank = ?1)",
                          UP_BIND(rank, step), 0, &known, err));
    rc = up_fail(err, UP_USAGE, "--step: %s has no %sstep %lld; steps with rows: %s", run->path,
                 known ? "rows of " : "", (long long)step, steps);
out:
    return rc;
}

enum up_status up_step_find(const struct up_run *run, int64_t rank, int64_t step, int64_t *found,
                            struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    bool row;
    UP_TRY(up_query_open(&query, run, recorded_sql, UP_BIND(rank, step), err));
    UP_TRY(up_query_next(&query, &row, err));
    *found = up_query_integer(&query, 1, UP_NONE);
    if (!row) UP_TRY(refuse_step(run, rank, step, err));
out:
    up_query_close(&query);
    return rc;
}

/* --- The highest -------------------------------------------------------------------------------
 */

/* The replay of one rank, kept from one step to the next. */
struct replayed_rank {
    struct up_replay replay;
    int64_t rank;
};

static enum up_status replay_step(const struct up_run *run, struct replayed_rank *kept,
                                  struct up_peak *peak, struct up_error *err)
{
    int64_t first, end;
    if (kept->rank != peak->rank) {
        up_replay_release(&kept->replay);
        kept->rank = UP_NONE;
        enum up_status rc = up_replay_read(run, peak->rank, UP_SPACE_DEVICE, &kept->replay, err);
        if (rc != UP_OK) return rc;
        kept->rank = peak->rank;
    }
    peak->replayed = true;
    up_replay_span(&kept->replay, peak->step, &first, &end);
    if (first == end) return UP_OK;
    const struct up_replay_point *highest = up_replay_highest(&kept->replay, first, end);
    peak->seq = highest->seq;
    peak->peak_bytes = highest->live_bytes;
    return UP_OK;
}

static void keep_higher(struct up_peak *peak, const struct up_peak *other)
{
    if (peak->rank == UP_NONE || other->peak_bytes > peak->peak_bytes) *peak = *other;
}

/* Over the rows of `sql` (rank, step, peak_bytes, peak_seq), replaying those without a peak. */
static enum up_status find_highest(const struct up_run *run, const char *sql, const int64_t *bind,
                                   int count, struct up_peak *peak, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    struct replayed_rank kept = {.rank = UP_NONE};
    bool row;
    UP_TRY(up_query_open(&query, run, sql, bind, count, err));
    for (;;) {
        UP_TRY(up_query_next(&query, &row, err));
        if (!row) break;
        struct up_peak here = {.rank = up_query_integer(&query, 0, UP_NONE),
                               .step = up_query_integer(&query, 1, UP_NONE),
                               .same_step = UP_NONE,
                               .unkept_bytes = UP_NONE,
                               .peak_bytes = up_query_integer(&query, 2, UP_NONE),
                               .seq = up_query_integer(&query, 3, UP_NONE)};
        if (here.rank < 0) continue;
        if (here.peak_bytes < 0 || here.seq < 0) UP_TRY(replay_step(run, &kept, &here, err));
        if (here.seq >= 0) keep_higher(peak, &here);
    }
out:
    up_query_close(&query);
    up_replay_release(&kept.replay);
    return rc;
}

// Steps beyond --trace-steps tell how high they were, and not of what.
static enum up_status find_unkept(const struct up_run *run, int64_t rank, struct up_peak *peak,
                                  struct up_error *err)
{
    int64_t highest;
    enum up_status rc = up_query_value(run,
                                       "SELECT max(peak_bytes) FROM step WHERE peak_seq IS NULL"
                                       " AND same_as_step IS NULL AND (?1 < 0 OR rank = ?1)",
                                       UP_BIND(rank), UP_NONE, &highest, err);
    if (!rc && highest > peak->peak_bytes) peak->unkept_bytes = highest;
    return rc;
}

enum up_status up_peak_find(const struct up_run *run, int64_t rank, int64_t step,
                            struct up_peak *peak, struct up_error *err)
{
    enum up_status rc = UP_OK;
    *peak = (struct up_peak){
        .rank = UP_NONE, .step = UP_NONE, .same_step = UP_NONE, .unkept_bytes = UP_NONE};
    UP_TRY(up_rank_check(run, rank, err));
    UP_TRY(find_highest(run, recorded_sql, UP_BIND(rank, step), peak, err));
    if (peak->rank == UP_NONE && step != UP_NONE) UP_TRY(refuse_step(run, rank, step, err));
    if (step != UP_NONE && peak->step != step) peak->same_step = step;
    // No step left rows: what was there before the first.
    if (peak->rank == UP_NONE)
        UP_TRY(find_highest(run,
                            "SELECT DISTINCT rank, NULL, NULL, NULL FROM tensor"
                            " WHERE ?1 < 0 OR rank = ?1 ORDER BY rank",
                            UP_BIND(rank), peak, err));
    if (peak->rank != UP_NONE && step == UP_NONE) UP_TRY(find_unkept(run, rank, peak, err));
out:
    return rc;
}

int64_t up_peak_bytes(const struct up_peak *peak)
{
    return peak->rank == UP_NONE ? UP_NONE : up_max(peak->peak_bytes, peak->unkept_bytes);
}

/* --- What was going on -------------------------------------------------------------------------
 */

static enum up_status read_range(const struct up_run *run, int64_t rank, int64_t seq,
                                 struct up_place *place, struct up_error *err)
{
    struct up_ranges ranges;
    enum up_status rc = up_ranges_read(run, rank, seq, seq, &ranges, err);
    if (rc != UP_OK) return rc;
    const struct up_range *range = up_ranges_at(&ranges, seq);
    up_ranges_path(&ranges, place->range, sizeof place->range);
    if (range) {
        place->layer = range->layer;
        place->phase = strdup(range->phase);
        if (!place->phase) rc = up_no_memory(err);
    }
    up_ranges_release(&ranges);
    return rc;
}

// From the range that the allocation was made in outwards: it knows that better than the moment,
// in which other threads have ranges open too.
static enum up_status read_own_range(const struct up_run *run, int64_t range_id,
                                     struct up_place *place, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    size_t used = 0;
    bool row;
    UP_TRY(up_query_open(&query, run,
                         "WITH RECURSIVE around(name, parent, depth) AS ("
                         "  SELECT name, parent, 0 FROM range WHERE id = ?1 UNION ALL"
                         "  SELECT r.name, r.parent, depth + 1 FROM around a JOIN range r"
                         "  ON r.id = a.parent WHERE depth < 32)"
                         " SELECT name FROM around ORDER BY depth DESC",
                         UP_BIND(range_id), err));
    for (;;) {
        char name[256];
        UP_TRY(up_query_next(&query, &row, err));
        if (!row || used >= sizeof place->range) break;
        up_query_copy(&query, 0, name, sizeof name);
        used += (size_t)snprintf(place->range + used, sizeof place->range - used, "%s%s",
                                 used ? " > " : "", name);
    }
out:
    up_query_close(&query);
    return rc;
}

// The allocation knows its phase and layer better than the range around it.
static enum up_status read_allocation(const struct up_run *run, int64_t rank, enum up_space space,
                                      int64_t seq, struct up_place *place, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    bool row;
    UP_TRY(up_query_open(
        &query, run,
        "SELECT name, category, dtype, shape, bytes, alloc_ns, phase, layer,"
        " range_id FROM tensor WHERE rank = ?1 AND alloc_seq = ?2 AND space = ?3 LIMIT 1",
        UP_BIND(rank, seq), err));
    up_query_bind_text(&query, 3, up_space_names[space]);
    UP_TRY(up_query_next(&query, &row, err));
    place->name = up_query_text(&query, 0);
    place->category = up_query_text(&query, 1);
    place->dtype = up_query_text(&query, 2);
    place->shape = up_query_text(&query, 3);
    place->bytes = up_query_integer(&query, 4, 0);
    place->ns = row ? up_query_integer(&query, 5, UP_NONE) : UP_NONE;
    if (row) {
        free(place->phase);
        place->phase = up_query_text(&query, 6);
        place->layer = up_max(UP_NONE, up_query_integer(&query, 7, place->layer));
    }
    if (!place->name || !place->category || !place->dtype || !place->shape ||
        (row && !place->phase))
        UP_TRY(up_no_memory(err));
    int64_t range_id = up_query_integer(&query, 8, UP_NONE);
    UP_TRY(up_query_end(&query, err));
    if (range_id != UP_NONE) UP_TRY(read_own_range(run, range_id, place, err));
out:
    up_query_close(&query);
    return rc;
}

static const struct up_place nowhere = {
    .layer = UP_NONE, .ns = UP_NONE, .device_ns = UP_NONE, .step_begin_ns = UP_NONE};

enum up_status up_place_read(const struct up_run *run, int64_t rank, enum up_space space,
                             int64_t seq, struct up_place *place, struct up_error *err)
{
    enum up_status rc = UP_OK;
    *place = nowhere;
    UP_TRY(read_range(run, rank, seq, place, err));
    UP_TRY(read_allocation(run, rank, space, seq, place, err));
out:
    if (rc != UP_OK) up_place_release(place);
    return rc;
}

enum up_status up_place_read_times(const struct up_run *run, int64_t rank, int64_t step,
                                   int64_t seq, struct up_place *place, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_device_times times;
    UP_TRY(up_device_times_read(run, rank, step, &times, err));
    place->device_ns = up_device_time_at(&times, seq);
    up_device_times_release(&times);
    UP_TRY(up_query_value(run, "SELECT begin_ns FROM step WHERE rank = ?1 AND step = ?2",
                          UP_BIND(rank, step), UP_NONE, &place->step_begin_ns, err));
out:
    return rc;
}

void up_place_release(struct up_place *place)
{
    free(place->phase);
    free(place->name);
    free(place->category);
    free(place->dtype);
    free(place->shape);
    *place = nowhere;
}
