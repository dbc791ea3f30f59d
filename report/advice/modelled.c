#include "report/advice/modelled.h"
#include "report/analysis/live.h"

#include <stdlib.h>
#include <string.h>

/* --- The peak under a set of techniques ----------------------------------------------------------
 */

static int64_t moment_of(const struct up_recorded *r, const struct up_ruled *ruled, bool end)
{
    int64_t seq = end ? ruled->life.free_seq : ruled->life.alloc_seq;
    const struct up_recorded_tensor *of = ruled->of;
    if (of && seq == (end ? of->life.free_seq : of->life.alloc_seq))
        return end ? of->free_at : of->alloc_at;
    return up_recorded_moment(r, seq);
}

// Storages of several names count with the largest alive: the replay knows how.
static enum up_status add_shared(const struct up_recorded *r, const struct up_ruled *ruled,
                                 int64_t count, int64_t *change, struct up_error *err)
{
    struct up_replay replay = {0};
    int64_t shared = 0, before = 0;
    struct up_lifetime *lifetimes = calloc((size_t)count + 1, sizeof *lifetimes);
    if (!lifetimes) return up_no_memory(err);
    for (int64_t i = 0; i < count; i++)
        if (ruled[i].of && ruled[i].of->shared) lifetimes[shared++] = ruled[i].life;
    enum up_status rc = up_replay_make(lifetimes, shared, &replay, err);
    for (int64_t i = 0; i < replay.count; i++) {
        int64_t at = up_recorded_moment(r, replay.points[i].seq);
        change[at] = up_sum(change[at], up_sum(replay.points[i].live_bytes, -before));
        before = replay.points[i].live_bytes;
    }
    up_replay_release(&replay);
    free(lifetimes);
    return rc;
}

// By how much the bytes alive change at each of the run's moments; one more for what never ends.
static enum up_status list_changes(const struct up_recorded *r, const struct up_ruled *ruled,
                                   int64_t count, int64_t **change, struct up_error *err)
{
    int64_t *at = *change = calloc((size_t)r->moment_count + 1, sizeof *at);
    if (!at) return up_no_memory(err);
    for (int64_t i = 0; i < count; i++) {
        if (ruled[i].of && ruled[i].of->shared) continue;
        int64_t begin = moment_of(r, &ruled[i], false), end = moment_of(r, &ruled[i], true);
        at[begin] = up_sum(at[begin], ruled[i].life.bytes);
        at[end] = up_sum(at[end], -ruled[i].life.bytes);
    }
    return add_shared(r, ruled, count, at, err);
}

// The first highest moment of the step; of what was before it only what is alive at its begin.
static void find_highest(const struct up_recorded *r, const int64_t *change, int64_t *bytes,
                         int64_t *seq)
{
    int64_t live = 0;
    *bytes = INT64_MIN;
    *seq = r->first_seq;
    for (int64_t i = 0; i < r->moment_count && r->moments[i] <= r->last_seq; i++) {
        live = up_sum(live, change[i]);
        if (r->moments[i] < r->first_seq || live <= *bytes) continue;
        *bytes = live;
        *seq = r->moments[i];
    }
    *bytes = up_max(0, *bytes);
}

static enum up_status find_peak(const struct up_recorded *r, up_rule_set set, enum up_space space,
                                int64_t *bytes, int64_t *seq, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_ruled *ruled = NULL;
    int64_t count = 0, *change = NULL;
    UP_TRY(up_rules_apply(r, set, space, &ruled, &count, err));
    UP_TRY(list_changes(r, ruled, count, &change, err));
    find_highest(r, change, bytes, seq);
out:
    free(change);
    free(ruled);
    return rc;
}

/* --- What is alive there -------------------------------------------------------------------------
 */

static int by_storage(const void *a, const void *b)
{
    const struct up_ruled *x = a, *y = b;
    if (x->life.storage != y->life.storage) return x->life.storage < y->life.storage ? -1 : 1;
    if (x->life.bytes != y->life.bytes) return x->life.bytes > y->life.bytes ? -1 : 1;
    return (x->life.alloc_seq < y->life.alloc_seq) - (x->life.alloc_seq > y->life.alloc_seq);
}

// Leaves those alive at `seq`, each storage once, under the name that takes most.
static int64_t only_alive(struct up_ruled *ruled, int64_t count, int64_t seq)
{
    int64_t alive = 0, left = 0;
    for (int64_t i = 0; i < count; i++)
        if (ruled[i].life.alloc_seq <= seq && seq < ruled[i].life.free_seq)
            ruled[alive++] = ruled[i];
    qsort(ruled, (size_t)alive, sizeof *ruled, by_storage);
    for (int64_t i = 0; i < alive; i++)
        if (!left || ruled[left - 1].life.storage != ruled[i].life.storage)
            ruled[left++] = ruled[i];
    return left;
}

static int category_of(const struct up_ruled *ruled)
{
    return ruled->of ? ruled->of->category : (int)ruled->category;
}

static const char *category_name(const struct up_ruled *ruled)
{
    int category = category_of(ruled);
    return category == UP_NONE ? "unknown" : up_category_names[category];
}

// A view of the live set for up_live_group: texts stay whose they are.
static struct up_live_tensor as_live(const struct up_ruled *ruled)
{
    const char *category = category_name(ruled);
    const char *name = ruled->of ? ruled->of->name : ruled->name;
    return (struct up_live_tensor){.name = (char *)(uintptr_t)(*name ? name : category),
                                   .category = (char *)(uintptr_t)category,
                                   .bytes = ruled->life.bytes};
}

static enum up_status sum_kinds(const struct up_ruled *alive, int64_t count,
                                struct up_modelled_line *line, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_live live = {.tensors = calloc((size_t)count + 1, sizeof *live.tensors)};
    struct up_live_groups kinds = {0};
    if (!live.tensors) return up_no_memory(err);
    for (; live.count < count; live.count++) live.tensors[live.count] = as_live(&alive[live.count]);
    UP_TRY(up_live_group(&live, UP_LIVE_BY_KIND, &kinds, err));
    for (int64_t i = 0; i < up_min(kinds.count, UP_MODELLED_KINDS); i++) {
        struct up_modelled_kind *kind = &line->kind[i];
        snprintf(kind->name, sizeof kind->name, "%s", kinds.items[i].name);
        snprintf(kind->category, sizeof kind->category, "%s", kinds.items[i].category);
        kind->bytes = kinds.items[i].bytes;
    }
out:
    up_live_groups_release(&kinds);
    free(live.tensors);
    return rc;
}

static void sum_categories(const struct up_ruled *alive, int64_t count,
                           struct up_modelled_line *line)
{
    for (int64_t i = 0; i < count; i++) {
        int category = category_of(&alive[i]);
        if (category == UP_NONE) continue;
        line->category[category] = up_sum(line->category[category], alive[i].life.bytes);
    }
}

// What the run was doing at that moment, also where the tensor allocated then is not there any
// more.
static enum up_status read_place(const struct up_run *run, const struct up_recorded *r,
                                 struct up_modelled_line *line, struct up_error *err)
{
    struct up_place place;
    enum up_status rc = up_place_read(run, r->rank, UP_SPACE_DEVICE, line->seq, &place, err);
    if (rc != UP_OK) return rc;
    snprintf(line->phase, sizeof line->phase, "%s", place.phase ? place.phase : "");
    snprintf(line->range, sizeof line->range, "%.*s", (int)sizeof line->range - 1, place.range);
    snprintf(line->reached_by, sizeof line->reached_by, "%s", place.name);
    line->layer = place.layer;
    up_place_release(&place);
    return UP_OK;
}

// The optimizer's own buffers are there in no other phase, whether or not the trace has that one.
static void place_update(const struct up_ruled *alive, int64_t count, struct up_modelled_line *line)
{
    for (int64_t i = 0; i < count; i++) {
        if (alive[i].of || alive[i].category != UP_CATEGORY_OPTIMIZER) continue;
        snprintf(line->phase, sizeof line->phase, "%s", up_phase_names[UP_PHASE_OPTIMIZER]);
        line->range[0] = line->reached_by[0] = 0;
        line->layer = UP_NONE;
    }
}

static enum up_status describe(const struct up_run *run, const struct up_recorded *r,
                               struct up_modelled_line *line, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_ruled *ruled = NULL;
    int64_t count = 0, ignored;
    UP_TRY(find_peak(r, line->set, UP_SPACE_DEVICE, &line->peak_bytes, &line->seq, err));
    UP_TRY(find_peak(r, line->set, UP_SPACE_HOST, &line->host_bytes, &ignored, err));
    line->host_bytes = up_sum(line->host_bytes, r->host_peak_bytes);
    UP_TRY(up_rules_apply(r, line->set, UP_SPACE_DEVICE, &ruled, &count, err));
    count = only_alive(ruled, count, line->seq);
    sum_categories(ruled, count, line);
    UP_TRY(sum_kinds(ruled, count, line, err));
    UP_TRY(read_place(run, r, line, err));
    place_update(ruled, count, line);
out:
    free(ruled);
    return rc;
}

/* --- Each by itself ------------------------------------------------------------------------------
 */

static struct up_modelled_line with(const struct up_recorded *r, up_rule_set set,
                                    enum up_technique technique)
{
    struct up_modelled_line line = {
        .technique = technique, .set = set | UP_RULE_BIT(technique), .layer = UP_NONE};
    up_rule_options(r, set, technique, line.options, sizeof line.options);
    return line;
}

// What can be had on top of `set`, with its peak.
static enum up_status neighbours(const struct up_recorded *r, up_rule_set set,
                                 struct up_modelled_line lines[UP_TECHNIQUE_COUNT], int *count,
                                 struct up_error *err)
{
    enum up_status rc = UP_OK;
    const char *obstacle[UP_TECHNIQUE_COUNT];
    *count = 0;
    up_rule_obstacles(r, set, obstacle);
    for (int t = 0; t < UP_TECHNIQUE_COUNT; t++) {
        if (obstacle[t]) continue;
        struct up_modelled_line *line = &lines[*count];
        *line = with(r, set, (enum up_technique)t);
        UP_TRY(find_peak(r, line->set, UP_SPACE_DEVICE, &line->peak_bytes, &line->seq, err));
        ++*count;
    }
out:
    return rc;
}

static enum up_status make_ladder(const struct up_run *run, struct up_modelled *m,
                                  struct up_error *err)
{
    enum up_status rc = UP_OK;
    up_rule_obstacles(&m->recorded, 0, m->obstacle);
    for (int t = 0; t < UP_TECHNIQUE_COUNT; t++) {
        enum up_technique technique = (enum up_technique)t;
        if (m->obstacle[t]) continue;
        struct up_modelled_line *line = &m->ladder[m->ladder_count++];
        *line = with(&m->recorded, 0, technique);
        UP_TRY(describe(run, &m->recorded, line, err));
    }
out:
    return rc;
}

/* --- One after the other -------------------------------------------------------------------------
 */

static bool helps(int64_t before, int64_t peak)
{
    return peak < before - before / 100;
}

static const struct up_modelled_line *lowest(const struct up_modelled_line *lines, int count)
{
    const struct up_modelled_line *best = NULL;
    for (int i = 0; i < count; i++)
        if (!best || lines[i].peak_bytes < best->peak_bytes) best = &lines[i];
    return best;
}

// The pair that lowers the peak most, where no single one does.
static enum up_status best_pair(const struct up_recorded *r, const struct up_modelled_line *singles,
                                int count, struct up_modelled_line next[2], bool *found,
                                struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_modelled_line lines[UP_TECHNIQUE_COUNT];
    *found = false;
    for (int i = 0; i < count; i++) {
        int more = 0;
        UP_TRY(neighbours(r, singles[i].set, lines, &more, err));
        const struct up_modelled_line *best = lowest(lines, more);
        if (!best || (*found && best->peak_bytes >= next[1].peak_bytes)) continue;
        *found = true;
        next[0] = singles[i];
        next[1] = *best;
    }
out:
    return rc;
}

static enum up_status next_steps(const struct up_recorded *r, up_rule_set set, int64_t peak,
                                 struct up_modelled_line next[2], int *count, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_modelled_line lines[UP_TECHNIQUE_COUNT];
    int all = 0;
    bool found = false;
    *count = 0;
    UP_TRY(neighbours(r, set, lines, &all, err));
    const struct up_modelled_line *best = lowest(lines, all);
    if (best && helps(peak, best->peak_bytes)) {
        next[0] = *best;
        *count = 1;
        return UP_OK;
    }
    UP_TRY(best_pair(r, lines, all, next, &found, err));
    if (found && helps(peak, next[1].peak_bytes)) *count = 2;
out:
    return rc;
}

static enum up_status make_path(const struct up_run *run, struct up_modelled *m,
                                struct up_error *err)
{
    enum up_status rc = UP_OK;
    up_rule_set set = 0;
    int64_t peak = m->now.peak_bytes;
    while (m->path_count < UP_TECHNIQUE_COUNT) {
        struct up_modelled_line next[2];
        int more = 0;
        UP_TRY(next_steps(&m->recorded, set, peak, next, &more, err));
        if (!more) break;
        for (int i = 0; i < more && m->path_count < UP_TECHNIQUE_COUNT; i++) {
            struct up_modelled_line *line = &m->path[m->path_count++];
            *line = next[i];
            UP_TRY(describe(run, &m->recorded, line, err));
            set = line->set;
            peak = line->peak_bytes;
        }
    }
out:
    return rc;
}

/* --- All -----------------------------------------------------------------------------------------
 */

static int64_t nameless(const struct up_modelled_line *line)
{
    int64_t left = line->peak_bytes;
    for (int i = 0; i < UP_CATEGORY_COUNT; i++) left = up_max(0, left - line->category[i]);
    return left;
}

enum up_status up_modelled_read(const struct up_run *run, const struct up_breakdown *breakdown,
                                int64_t fit, bool ladder, struct up_modelled *modelled,
                                struct up_error *err)
{
    enum up_status rc = UP_OK;
    *modelled = (struct up_modelled){.now = {.layer = UP_NONE}};
    UP_TRY(up_recorded_read(run, breakdown, &modelled->recorded, err));
    UP_TRY(describe(run, &modelled->recorded, &modelled->now, err));
    modelled->recorded.peak_bytes = modelled->now.peak_bytes;
    modelled->recorded.nameless_bytes = nameless(&modelled->now);
    modelled->limit_bytes = modelled->recorded.capacity_bytes;
    if (fit && (!modelled->limit_bytes || fit < modelled->limit_bytes)) modelled->limit_bytes = fit;
    if (ladder) UP_TRY(make_ladder(run, modelled, err));
    UP_TRY(make_path(run, modelled, err));
out:
    if (rc != UP_OK) up_modelled_release(modelled);
    return rc;
}

void up_modelled_release(struct up_modelled *modelled)
{
    up_recorded_release(&modelled->recorded);
}

bool up_modelled_fits(const struct up_modelled *modelled, const struct up_modelled_line *line)
{
    return modelled->limit_bytes &&
           up_sum(line->peak_bytes, modelled->recorded.other_bytes) <= modelled->limit_bytes;
}
