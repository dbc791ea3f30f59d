/* What a run has timed: rows of kernel, copy and collective. The rows of kernels tell of operations
 * but not of bytes; those are found by running the step once more, dry, and laying the two side by
 * side. */
#include "report/calibration/calibration.h"
#include "ops/attention.h"
#include "report/analysis/measured.h"
#include "report/calibration/rerun.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static enum up_status add(struct up_timed_list *list, struct up_timed timed, struct up_error *err)
{
    enum up_status rc = up_grow(&list->items, list->count, &list->capacity, sizeof timed, err);
    if (rc == UP_OK) list->items[list->count++] = timed;
    return rc;
}

/* --- Which steps -------------------------------------------------------------------------------
 */

// The lowest rank that has kernels in steps, and of its steps the first and the last with rows.
struct stretch {
    int64_t rank, first, last, count;
};

static enum up_status find_stretch(const struct up_run *run, struct stretch *stretch,
                                   struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    bool row;
    UP_TRY(up_query_open(&query, run,
                         "SELECT k.rank, min(k.step), max(k.step), count(DISTINCT k.step)"
                         " FROM kernel k JOIN step s ON s.rank = k.rank AND s.step = k.step"
                         " WHERE k." UP_SQL_TOLD
                         " AND s.end_ns IS NOT NULL AND s.same_as_step IS NULL"
                         " GROUP BY k.rank ORDER BY k.rank LIMIT 1",
                         UP_BIND_NONE, err));
    UP_TRY(up_query_next(&query, &row, err));
    stretch->rank = up_query_integer(&query, 0, UP_NONE);
    stretch->first = up_query_integer(&query, 1, UP_NONE);
    stretch->last = up_query_integer(&query, 2, UP_NONE);
    stretch->count = up_query_integer(&query, 3, 0);
    // The first step finds cold caches, and libraries that set themselves up.
    if (stretch->count > 1) {
        stretch->first++;
        stretch->count--;
    }
out:
    up_query_close(&query);
    return rc;
}

/* --- Once more --------------------------------------------------------------------------------
 */

enum up_status up_timed_rerun(const struct up_run *run, int64_t rank,
                              const struct up_figures *figures, int64_t most,
                              struct up_rerun *rerun, struct up_error *why, struct up_error *err)
{
    enum up_status rc = UP_OK;
    char *config = NULL, *hash = NULL;
    *rerun = (struct up_rerun){.step_s = NAN};
    UP_TRY(up_query_meta(run, "config", &config, err));
    UP_TRY(up_query_meta(run, "config_hash", &hash, err));
    rc = up_rerun_step(&(struct up_rerun_of){run->path, config, hash, rank}, figures, most, rerun,
                       why);
    if (rc == UP_FAILED) UP_TRY(up_fail(err, UP_FAILED, "%s", why->text));
    rc = UP_OK;
out:
    free(config);
    free(hash);
    return rc;
}

/* --- Kernels -----------------------------------------------------------------------------------
 */

// Of what only moves bytes the name does not tell the class.
static enum up_cost_class class_of_name(const char *name)
{
    int i = 0;
    while (i < UP_COST_POINTWISE && strcmp(name, up_cost_class_names[i]) != 0) i++;
    return (enum up_cost_class)i;
}

// Rows of the ended steps ?2 to ?3 of rank ?1, in the order in which their work was given.
static const char kernel_sql[] =
    "SELECT k.step, k.name, (k.end_ns - k.begin_ns) * 1e-9, k.flops FROM kernel k"
    " JOIN step s ON s.rank = k.rank AND s.step = k.step"
    " WHERE k." UP_SQL_TOLD " AND k.rank = ?1 AND k.step BETWEEN ?2 AND ?3"
    " AND s.end_ns IS NOT NULL AND s.same_as_step IS NULL ORDER BY k.step, k.id";

// The cost of a step's n-th operation, if it is the same as the recorded one.
static const struct up_cost *cost_of(const struct up_rerun *rerun, int64_t n, double flops,
                                     const char *name)
{
    if (n >= rerun->count) return NULL;
    const struct up_cost *cost = &rerun->costs[n];
    bool same = fabs(cost->flops - flops) <= 1e-6 * cost->flops || cost->flops == flops;
    enum up_cost_class class = up_min(cost->class, UP_COST_POINTWISE);
    return same && class == class_of_name(name) ? cost : NULL;
}

// Adds the kernels; *matched tells whether every step is the dry one's, operation for operation.
static enum up_status read_kernels(const struct up_run *run, const struct stretch *stretch,
                                   const struct up_rerun *rerun, struct up_timed_list *list,
                                   bool *matched, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    int64_t step = UP_NONE, n = 0;
    bool row;
    *matched = rerun->count > 0;
    UP_TRY(up_query_open(&query, run, kernel_sql,
                         UP_BIND(stretch->rank, stretch->first, stretch->last), err));
    for (;; n++) {
        char name[64];
        UP_TRY(up_query_next(&query, &row, err));
        if (!row || up_query_integer(&query, 0, UP_NONE) != step) {
            *matched &= step == UP_NONE || n == rerun->count;
            n = 0;
        }
        if (!row) break;
        step = up_query_integer(&query, 0, UP_NONE);
        up_query_copy(&query, 1, name, sizeof name);
        double seconds = up_query_real(&query, 2), flops = up_query_real(&query, 3);
        const struct up_cost *cost = cost_of(rerun, n, isfinite(flops) ? flops : 0, name);
        *matched &= cost != NULL;
        if (!(seconds > 0)) continue;
        UP_TRY(add(list,
                   (struct up_timed){.sort = cost ? cost->class : class_of_name(name),
                                     .seconds = seconds,
                                     .flops = isfinite(flops) ? flops : 0,
                                     .bytes = cost ? cost->bytes : NAN,
                                     .runs = cost ? cost->runs : 0},
                   err));
    }
out:
    up_query_close(&query);
    return rc;
}

// How many kernels a step has at most.
static enum up_status most_kernels(const struct up_run *run, const struct stretch *stretch,
                                   int64_t *most, struct up_error *err)
{
    return up_query_value(run,
                          "SELECT max(n) FROM (SELECT count(*) AS n FROM kernel WHERE " UP_SQL_TOLD
                          " AND rank = ?1 AND step BETWEEN ?2 AND ?3 GROUP BY step)",
                          UP_BIND(stretch->rank, stretch->first, stretch->last), 0, most, err);
}

// Where it cannot be run again the bytes are not known, which is no failure.
static enum up_status run_again(const struct up_run *run, const struct stretch *stretch,
                                struct up_rerun *rerun, struct up_timed_run *timed,
                                struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_figures generic;
    struct up_error why = {0};
    int64_t most;
    UP_TRY(most_kernels(run, stretch, &most, err));
    UP_TRY(up_figures_find("generic", &generic, err));
    UP_TRY(up_timed_rerun(run, stretch->rank, &generic, up_max(most, 1), rerun, &why, err));
    snprintf(timed->why, sizeof timed->why, "%s", why.text);
out:
    return rc;
}

/* --- Copies and collectives --------------------------------------------------------------------
 */

static const char other_sql[] =
    "SELECT sort, (end_ns - begin_ns) * 1e-9, bytes FROM ("
    "  SELECT CASE WHEN from_space = 'device' AND to_space = 'host' THEN 0"
    "    WHEN from_space = 'host' AND to_space = 'device' THEN 1 END AS sort,"
    "    rank, step, begin_ns, end_ns, bytes FROM copy"
    "  UNION ALL SELECT 2, rank, step, begin_ns, end_ns, bytes FROM collective)"
    " WHERE sort IS NOT NULL AND rank = ?1 AND step BETWEEN ?2 AND ?3";

static enum up_status read_others(const struct up_run *run, const struct stretch *stretch,
                                  struct up_timed_list *list, struct up_error *err)
{
    static const int sorts[] = {UP_SORT_TO_HOST, UP_SORT_FROM_HOST, UP_COST_COLLECTIVE};
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    bool row;
    UP_TRY(up_query_open(&query, run, other_sql,
                         UP_BIND(stretch->rank, stretch->first, stretch->last), err));
    for (;;) {
        UP_TRY(up_query_next(&query, &row, err));
        if (!row) break;
        double seconds = up_query_real(&query, 1);
        if (!(seconds > 0)) continue;
        UP_TRY(add(list,
                   (struct up_timed){.sort = sorts[up_query_integer(&query, 0, 0)],
                                     .seconds = seconds,
                                     .bytes = up_query_real(&query, 2)},
                   err));
    }
out:
    up_query_close(&query);
    return rc;
}

static bool is_word(const json_t *object, const char *key, const char *word)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text && !strcmp(text, word);
}

static bool has_own(const struct up_rerun *rerun)
{
    for (int64_t i = 0; i < rerun->count; i++)
        if (rerun->costs[i].own) return true;
    return false;
}

// From the configuration, which tells it also where its step cannot be run again. Which kernels did
// it its shapes tell, too.
static enum up_status read_attention(const struct up_run *run, const struct up_rerun *rerun,
                                     struct up_timed_list *list, struct up_error *err)
{
    json_t *root;
    enum up_status rc = up_config_stored(run, &root, err);
    const json_t *config = json_object_get(root, "config");
    const json_t *head_dim = json_object_get(json_object_get(config, "model"), "head_dim");
    list->head_dim = json_integer_value(head_dim);
    bool on_gpu = is_word(config, "as", "cuda");
    bool own = is_word(root, "attention", "own") || has_own(rerun) ||
               (list->head_dim > 0 && !up_attention_on_cudnn(list->head_dim));
    list->own_attention = on_gpu && own;
    list->in_runs = on_gpu && !own;
    json_decref(root);
    return rc;
}

static void forget_bytes(struct up_timed_list *list)
{
    for (int64_t i = 0; i < list->count; i++) list->items[i].bytes = NAN;
}

enum up_status up_timed_read(const struct up_run *run, struct up_timed_run *timed,
                             struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct stretch stretch;
    struct up_rerun rerun = {0};
    *timed = (struct up_timed_run){.rank = UP_NONE};
    UP_TRY(find_stretch(run, &stretch, err));
    if (!stretch.count || stretch.rank < 0) goto out;
    timed->rank = stretch.rank;
    timed->steps = stretch.count;
    UP_TRY(run_again(run, &stretch, &rerun, timed, err));
    UP_TRY(read_attention(run, &rerun, &timed->list, err));
    UP_TRY(read_kernels(run, &stretch, &rerun, &timed->list, &timed->bytes_known, err));
    if (!timed->bytes_known) forget_bytes(&timed->list);
    if (!timed->bytes_known && !*timed->why)
        snprintf(timed->why, sizeof timed->why,
                 "%s: its kernels are not those of its configuration's step", run->path);
    UP_TRY(read_others(run, &stretch, &timed->list, err));
out:
    up_rerun_release(&rerun);
    return rc;
}

void up_timed_release(struct up_timed_run *timed)
{
    free(timed->list.items);
    timed->list = (struct up_timed_list){0};
}
