#include "report/analysis/breakdown.h"
#include "report/analysis/replay.h"

#include <stdlib.h>
#include <string.h>

/* Driver-level allocations in space ?3, by owner, that are held at ?2 (all, where that is
 * negative). */
static const char held_sql[] =
    "SELECT owner, CAST(total(max(bytes, 0)) AS INTEGER) FROM device_alloc WHERE rank = ?1 AND "
    "space = ?3"
    " AND (?2 < 0 OR (alloc_ns <= ?2 AND (free_ns IS NULL OR free_ns > ?2)))"
    " AND " UP_SQL_NO_TENSOR " GROUP BY owner ORDER BY 2 DESC, 1";

/* The sample nearest to ?2, of those between the same changes of what the driver has given, if
 * there are any: a sample from before a library was set up would not speak of the same memory. */
static const char sample_sql[] =
    "WITH change(ns) AS (SELECT alloc_ns FROM device_alloc WHERE rank = ?1 AND space = 'device'"
    "  UNION ALL SELECT free_ns FROM device_alloc WHERE rank = ?1 AND space = 'device'"
    "  AND free_ns IS NOT NULL),"
    " span(first, next) AS (SELECT max(CASE WHEN ns <= ?2 THEN ns END),"
    "  min(CASE WHEN ns > ?2 THEN ns END) FROM change)"
    "SELECT device_used_bytes, ns FROM usage, span"
    " WHERE rank = ?1 AND device_used_bytes IS NOT NULL"
    " ORDER BY ns < ifnull(first, ns) OR ns >= ifnull(next, ns + 1),"
    "  max(ns - max(?2, 0), max(?2, 0) - ns) LIMIT 1";

static enum up_status read_held(const struct up_run *run, int64_t rank, enum up_space space,
                                int64_t ns, struct up_reconciliation *sums, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    int64_t capacity = 0;
    bool row;
    UP_TRY(up_query_open(&query, run, held_sql, UP_BIND(rank, ns), err));
    up_query_bind_text(&query, 3, up_space_names[space]);
    for (;;) {
        UP_TRY(up_query_next(&query, &row, err));
        if (!row) break;
        int64_t bytes = up_query_integer(&query, 1, 0);
        char *owner = up_query_text(&query, 0);
        if (owner && !strcmp(owner, "arena")) {
            sums->arena_known = true;
            sums->free_bytes = up_max(0, bytes - (sums->categories_bytes + sums->slack_bytes));
            free(owner);
            continue;
        }
        rc = owner ? up_grow(&sums->libraries, sums->library_count, &capacity,
                             sizeof *sums->libraries, err)
                   : up_no_memory(err);
        if (rc != UP_OK) free(owner);
        UP_TRY(rc);
        sums->libraries[sums->library_count].owner = owner;
        sums->libraries[sums->library_count++].bytes = bytes;
    }
out:
    up_query_close(&query);
    return rc;
}

/* By how much what the driver has given is more at ?3 than it was at ?2. */
static const char changed_sql[] =
    "SELECT CAST(total(max(bytes, 0) * ((alloc_ns <= ?3 AND (free_ns IS NULL OR free_ns > ?3))"
    " - (alloc_ns <= ?2 AND (free_ns IS NULL OR free_ns > ?2)))) AS INTEGER)"
    " FROM device_alloc WHERE rank = ?1 AND space = 'device'";

static enum up_status read_sample(const struct up_run *run, int64_t rank, int64_t ns,
                                  struct up_reconciliation *sums, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    bool row;
    sums->device_used_bytes = UP_NONE;
    UP_TRY(up_query_open(&query, run, sample_sql, UP_BIND(rank, ns), err));
    UP_TRY(up_query_next(&query, &row, err));
    if (row) {
        sums->device_used_bytes = up_max(UP_NONE, up_query_integer(&query, 0, UP_NONE));
        sums->sample_ns = up_query_integer(&query, 1, 0);
    }
    if (sums->device_used_bytes == UP_NONE || ns < 0) goto out;
    UP_TRY(up_query_value(run, changed_sql, UP_BIND(rank, sums->sample_ns, ns), 0,
                          &sums->changed_bytes, err));
    sums->device_used_bytes = up_max(0, up_sum(sums->device_used_bytes, sums->changed_bytes));
out:
    up_query_close(&query);
    return rc;
}

static void attribute(struct up_reconciliation *sums)
{
    int64_t known = up_sum(up_sum(sums->categories_bytes, sums->slack_bytes),
                           up_sum(sums->free_bytes, sums->before_bytes));
    for (int64_t i = 0; i < sums->library_count; i++)
        known = up_sum(known, sums->libraries[i].bytes);
    sums->unattributed_bytes = sums->device_used_bytes - known;
}

static enum up_status reconcile(const struct up_run *run, const struct up_breakdown *breakdown,
                                struct up_reconciliation *sums, struct up_error *err)
{
    enum up_status rc = UP_OK;
    int64_t rank = breakdown->peak.rank;
    sums->categories_bytes = breakdown->live.bytes;
    sums->slack_bytes = breakdown->live.reserved_bytes - breakdown->live.bytes;
    UP_TRY(read_sample(run, rank, breakdown->place.ns, sums, err));
    if (sums->device_used_bytes == UP_NONE) return UP_OK;
    UP_TRY(read_held(run, rank, UP_SPACE_DEVICE, breakdown->place.ns, sums, err));
    UP_TRY(up_query_value(run, "SELECT max(baseline_used_bytes, 0) FROM rank WHERE rank = ?1",
                          UP_BIND(rank), 0, &sums->before_bytes, err));
    attribute(sums);
out:
    return rc;
}

// Where host memory was highest in steps, as it was when the first began or in one: what loading
// and saving take for a moment is no part of them. Without steps, of all.
static const struct up_replay_point *highest_in_steps(const struct up_replay *replay,
                                                      int64_t first_seq)
{
    const struct up_replay_point *highest = NULL;
    if (first_seq == UP_NONE) return up_replay_highest(replay, 0, replay->count);
    for (int64_t i = 0; i < replay->count; i++) {
        const struct up_replay_point *point = &replay->points[i];
        bool before = point->seq < first_seq;
        if (!before && point->step == UP_NONE) continue;
        if (before || !highest || point->live_bytes > highest->live_bytes) highest = point;
    }
    return highest ? highest : up_replay_highest(replay, 0, replay->count);
}

// *highest is all 0 where the rank has no host memory.
static enum up_status find_host_peak(const struct up_run *run, int64_t rank,
                                     struct up_replay_point *highest, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_replay replay = {0};
    int64_t first_seq = UP_NONE;
    *highest = (struct up_replay_point){0};
    UP_TRY(up_replay_read(run, rank, UP_SPACE_HOST, &replay, err));
    if (!replay.count) goto out;
    UP_TRY(up_query_value(run,
                          "SELECT min(alloc_seq) FROM tensor WHERE rank = ?1 AND step IS NOT NULL",
                          UP_BIND(rank), UP_NONE, &first_seq, err));
    *highest = *highest_in_steps(&replay, first_seq);
out:
    up_replay_release(&replay);
    return rc;
}

enum up_status up_breakdown_host_most(const struct up_run *run, int64_t *bytes,
                                      struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    struct up_replay_point highest;
    bool row;
    *bytes = 0;
    UP_TRY(up_query_open(&query, run, "SELECT DISTINCT rank FROM tensor WHERE space = 'host'",
                         UP_BIND_NONE, err));
    for (;;) {
        UP_TRY(up_query_next(&query, &row, err));
        if (!row) break;
        UP_TRY(find_host_peak(run, up_query_integer(&query, 0, UP_NONE), &highest, err));
        *bytes = up_max(*bytes, highest.live_bytes);
    }
out:
    up_query_close(&query);
    return rc;
}

static enum up_status read_host(const struct up_run *run, struct up_breakdown *breakdown,
                                struct up_error *err)
{
    enum up_status rc = UP_OK;
    int64_t rank = breakdown->peak.rank;
    struct up_replay_point highest;
    UP_TRY(find_host_peak(run, rank, &highest, err));
    if (!highest.seq && !highest.live_bytes) goto out;
    breakdown->host_peak = (struct up_peak){.rank = rank,
                                            .step = highest.step,
                                            .same_step = UP_NONE,
                                            .unkept_bytes = UP_NONE,
                                            .seq = highest.seq,
                                            .peak_bytes = highest.live_bytes,
                                            .replayed = true};
    UP_TRY(up_live_read(run, rank, UP_SPACE_HOST, highest.seq, &breakdown->host, err));
    UP_TRY(up_live_group(&breakdown->host, UP_LIVE_BY_CATEGORY, &breakdown->host_categories, err));
    breakdown->host_sums.categories_bytes = breakdown->host.bytes;
    breakdown->host_sums.slack_bytes = breakdown->host.reserved_bytes - breakdown->host.bytes;
    breakdown->host_sums.device_used_bytes = UP_NONE;
    UP_TRY(read_held(run, rank, UP_SPACE_HOST, highest.ns, &breakdown->host_sums, err));
out:
    return rc;
}

enum up_status up_breakdown_read(const struct up_run *run, int64_t rank, int64_t step,
                                 struct up_breakdown *breakdown, struct up_error *err)
{
    enum up_status rc = UP_OK;
    *breakdown = (struct up_breakdown){.host_peak = {.rank = UP_NONE, .seq = UP_NONE}};
    struct up_peak *peak = &breakdown->peak;
    int64_t injected;
    UP_TRY(up_query_value(run, "SELECT " UP_SQL_INJECTED, UP_BIND_NONE, 0, &injected, err));
    breakdown->injected = injected;
    UP_TRY(up_peak_find(run, rank, step, peak, err));
    if (peak->rank == UP_NONE) return UP_OK;
    UP_TRY(up_place_read(run, peak->rank, UP_SPACE_DEVICE, peak->seq, &breakdown->place, err));
    UP_TRY(up_place_read_times(run, peak->rank, peak->step, peak->seq, &breakdown->place, err));
    UP_TRY(up_live_read(run, peak->rank, UP_SPACE_DEVICE, peak->seq, &breakdown->live, err));
    UP_TRY(up_live_group(&breakdown->live, UP_LIVE_BY_CATEGORY, &breakdown->categories, err));
    UP_TRY(up_live_group(&breakdown->live, UP_LIVE_BY_KIND, &breakdown->kinds, err));
    UP_TRY(reconcile(run, breakdown, &breakdown->sums, err));
    UP_TRY(read_host(run, breakdown, err));
out:
    if (rc != UP_OK) up_breakdown_release(breakdown);
    return rc;
}

static void release_sums(struct up_reconciliation *sums)
{
    for (int64_t i = 0; i < sums->library_count; i++) free(sums->libraries[i].owner);
    free(sums->libraries);
    *sums = (struct up_reconciliation){0};
}

void up_breakdown_release(struct up_breakdown *breakdown)
{
    up_place_release(&breakdown->place);
    up_live_groups_release(&breakdown->categories);
    up_live_groups_release(&breakdown->kinds);
    up_live_groups_release(&breakdown->host_categories);
    up_live_release(&breakdown->live);
    up_live_release(&breakdown->host);
    release_sums(&breakdown->sums);
    release_sums(&breakdown->host_sums);
}
