/* diff: two runs side by side: what was configured otherwise, and what grew and shrank at the peak.
 * Each run is taken at its own peak. */
#include "report/analysis/measured.h"
#include "report/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct diff_options {
    struct up_report_options report;
    int64_t limit;
};

static const struct up_option options[] = {{.name = "limit",
                                            .kind = UP_OPTION_INTEGER,
                                            .field = offsetof(struct diff_options, limit),
                                            .fallback = "8",
                                            .value = "N|all",
                                            .help = "how many layers and kinds of tensors to list",
                                            .min = 1,
                                            .off = "all",
                                            .group = "What to show"},
                                           UP_REPORT_OPTIONS,
                                           {0}};

static const char *or_null(const char *text)
{
    return text && *text ? text : NULL;
}

static void emit_run(struct up_emitter *emitter, const char *key, const char *label,
                     const struct up_measured *m)
{
    const struct up_run_facts *facts = &m->facts;
    up_emit_object_begin(emitter, key);
    up_emit_line_begin(emitter, label);
    up_emit_text(emitter, "path", "{}", m->run.path);
    up_emit_text(emitter, "model", "{}", or_null(facts->model));
    up_emit_text(emitter, "device", "{}", or_null(facts->device));
    up_emit_text(emitter, "dtype", "{}", or_null(facts->dtype));
    up_emit_text(emitter, "started", "{}", or_null(facts->started));
    up_emit_text(emitter, "config_hash", NULL, or_null(facts->config_hash));
    up_emit_text(emitter, "run_id", NULL, or_null(facts->run_id));
    up_emit_flag(emitter, "complete", NULL, facts->complete);
    up_emit_text(emitter, "outcome", NULL, or_null(facts->outcome));
    up_emit_line_end(emitter);
    up_emit_object_end(emitter);
}

static void emit_config(struct up_emitter *emitter, const struct up_config_differences *differences)
{
    static const struct up_column columns[] = {{"option", "configured otherwise", false, 24, 40},
                                               {"a", "A", false, 12, 28},
                                               {"b", "B", false, 12, 28}};
    up_emit_table_begin(emitter, "config", columns, UP_COUNT(columns));
    for (int64_t i = 0; i < differences->count; i++) {
        const struct up_config_difference *d = &differences->items[i];
        up_emit_row_begin(emitter);
        up_emit_text(emitter, "option", NULL, d->name);
        up_emit_text(emitter, "a", NULL, or_null(d->value[0]));
        up_emit_text(emitter, "b", NULL, or_null(d->value[1]));
        char text[64];
        up_emit_cell(emitter, "a", up_config_value_text(d, 0, text));
        up_emit_cell(emitter, "b", up_config_value_text(d, 1, text));
        up_emit_row_end(emitter);
    }
    up_emit_table_end(emitter);
}

/* --- Figures ------------------------------------------------------------------------------------
 */

static void emit_bytes_row(struct up_emitter *emitter, const char *name, int64_t a, int64_t b)
{
    up_emit_row_begin(emitter);
    up_emit_text(emitter, "name", NULL, name);
    up_emit_text(emitter, "unit", NULL, "bytes");
    up_emit_known_bytes(emitter, "a", a);
    up_emit_known_bytes(emitter, "b", b);
    if (a != UP_NONE && b != UP_NONE) {
        up_emit_bytes_change(emitter, "change", NULL, up_difference(a, b));
        up_emit_share_change(emitter, "relative", NULL, up_relative_change((double)a, (double)b));
    } else {
        up_emit_null(emitter, "change");
        up_emit_null(emitter, "relative");
    }
    up_emit_row_end(emitter);
}

static void emit_seconds_row(struct up_emitter *emitter, const char *name, double a, double b)
{
    if (!isfinite(a) && !isfinite(b)) return;
    up_emit_row_begin(emitter);
    up_emit_text(emitter, "name", NULL, name);
    up_emit_text(emitter, "unit", NULL, "s");
    up_emit_seconds(emitter, "a", NULL, a);
    up_emit_seconds(emitter, "b", NULL, b);
    up_emit_seconds_change(emitter, "change", NULL, b - a);
    up_emit_share_change(emitter, "relative", NULL, up_relative_change(a, b));
    up_emit_row_end(emitter);
}

static void emit_rate_row(struct up_emitter *emitter, const char *name, double a, double b)
{
    if (!isfinite(a) && !isfinite(b)) return;
    up_emit_row_begin(emitter);
    up_emit_text(emitter, "name", NULL, name);
    up_emit_text(emitter, "unit", NULL, "tokens/s");
    up_emit_rate(emitter, "a", NULL, a);
    up_emit_rate(emitter, "b", NULL, b);
    up_emit_real(emitter, "change", NULL, b - a);
    up_emit_cell(emitter, "change", "");
    up_emit_share_change(emitter, "relative", NULL, up_relative_change(a, b));
    up_emit_row_end(emitter);
}

static void emit_figures(struct up_emitter *emitter, const struct up_measured *a,
                         const struct up_measured *b)
{
    static const struct up_column columns[] = {{"name", "", false, 28, 40},
                                               {"a", "A", true, 12, 0},
                                               {"b", "B", true, 12, 0},
                                               {"change", "change", true, 12, 0},
                                               {"relative", "", true, 8, 0}};
    up_emit_table_begin(emitter, "figures", columns, UP_COUNT(columns));
    emit_bytes_row(emitter, "peak", up_measured_peak(a), up_measured_peak(b));
    emit_bytes_row(emitter, "host memory", up_measured_host(a), up_measured_host(b));
    emit_seconds_row(emitter, "step time", a->facts.step_s, b->facts.step_s);
    emit_rate_row(emitter, "tokens/s", a->facts.tokens_per_s, b->facts.tokens_per_s);
    up_emit_table_end(emitter);
}

static void emit_place(struct up_emitter *emitter, const char *key, const char *label,
                       const struct up_measured *m)
{
    const struct up_breakdown *breakdown = &m->breakdown;
    up_emit_object_begin(emitter, key);
    up_emit_line_begin(emitter, label);
    if (breakdown->peak.rank != UP_NONE) {
        up_emit_known(emitter, "rank", "rank {}", breakdown->peak.rank);
        up_emit_known(emitter, "step", "step {}", breakdown->peak.step);
        up_emit_text(emitter, "phase", "{}", or_null(breakdown->place.phase));
        up_emit_known(emitter, "layer", "layer {}", breakdown->place.layer);
        up_emit_text(emitter, "range", "in {}", or_null(breakdown->place.range));
        up_emit_text(emitter, "name", "reached by {}", or_null(breakdown->place.name));
    }
    up_emit_line_end(emitter);
    up_emit_object_end(emitter);
}

/* --- What grew and shrank ----------------------------------------------------------------------
 */

static void emit_pairs(struct up_emitter *emitter, const char *key, const char *heading,
                       const struct up_pairs *pairs, int64_t limit, bool same_too)
{
    const struct up_column columns[] = {{"name", heading, false, 28, 40},
                                        {"a", "A", true, 12, 0},
                                        {"b", "B", true, 12, 0},
                                        {"change", "change", true, 12, 0},
                                        {"relative", "", true, 8, 0}};
    int64_t shown = 0;
    up_emit_table_begin(emitter, key, columns, UP_COUNT(columns));
    for (int64_t i = 0; i < pairs->count && (!limit || shown < limit); i++) {
        const struct up_pair *pair = &pairs->items[i];
        if (!same_too && pair->bytes[0] == pair->bytes[1]) continue;
        emit_bytes_row(emitter, pair->name, pair->bytes[0], pair->bytes[1]);
        shown++;
    }
    up_emit_table_end(emitter);
}

static enum up_status emit_groups(struct up_emitter *emitter, const char *key, const char *heading,
                                  const struct up_live_groups *a, const struct up_live_groups *b,
                                  int64_t limit, bool same_too, struct up_error *err)
{
    struct up_pairs pairs;
    enum up_status rc = up_pairs_make(a, b, &pairs, err);
    if (rc != UP_OK) return rc;
    emit_pairs(emitter, key, heading, &pairs, limit, same_too);
    up_pairs_release(&pairs);
    return UP_OK;
}

// "layer 12"; -1 of what is outside layers.
static long long layer_number(const struct up_pair *pair)
{
    long long layer = -1;
    sscanf(pair->name, "layer %lld", &layer);
    return layer;
}

static int by_layer(const void *a, const void *b)
{
    long long x = layer_number(a), y = layer_number(b);
    return (x > y) - (x < y);
}

static bool alike(const struct up_pair *a, const struct up_pair *b)
{
    return a->bytes[0] == b->bytes[0] && a->bytes[1] == b->bytes[1];
}

// In order; neighbours that changed alike are one line, which tells the change of each.
static void emit_layer_pairs(struct up_emitter *emitter, struct up_pairs *pairs, int64_t limit)
{
    static const struct up_column columns[] = {{"name", "layer", false, 28, 40},
                                               {"a", "A", true, 12, 0},
                                               {"b", "B", true, 12, 0},
                                               {"change", "change", true, 12, 0},
                                               {"relative", "", true, 8, 0}};
    int64_t shown = 0;
    if (pairs->count) qsort(pairs->items, (size_t)pairs->count, sizeof *pairs->items, by_layer);
    up_emit_table_begin(emitter, "layers", columns, UP_COUNT(columns));
    for (int64_t i = 0, next; i < pairs->count && (!limit || shown < limit); i = next) {
        const struct up_pair *pair = &pairs->items[i];
        char name[64];
        for (next = i + 1; next < pairs->count && layer_number(pair) >= 0; next++)
            if (!alike(pair, &pairs->items[next])) break;
        if (pair->bytes[0] == pair->bytes[1]) continue;
        snprintf(name, sizeof name, "%s", pair->name);
        if (next - i > 1)
            snprintf(name, sizeof name, "layers %lld-%lld, each", layer_number(pair),
                     layer_number(&pairs->items[next - 1]));
        emit_bytes_row(emitter, name, pair->bytes[0], pair->bytes[1]);
        shown++;
    }
    up_emit_table_end(emitter);
}

static enum up_status emit_layers(struct up_emitter *emitter, const struct up_measured *a,
                                  const struct up_measured *b, int64_t limit, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_live_groups groups[2] = {{0}, {0}};
    struct up_pairs pairs = {0};
    UP_TRY(up_live_group(&a->breakdown.live, UP_LIVE_BY_LAYER, &groups[0], err));
    UP_TRY(up_live_group(&b->breakdown.live, UP_LIVE_BY_LAYER, &groups[1], err));
    UP_TRY(up_pairs_make(&groups[0], &groups[1], &pairs, err));
    emit_layer_pairs(emitter, &pairs, limit);
out:
    up_pairs_release(&pairs);
    up_live_groups_release(&groups[0]);
    up_live_groups_release(&groups[1]);
    return rc;
}

static void note_state(struct up_emitter *emitter, const char *side, const struct up_measured *m)
{
    if (!m->facts.complete)
        up_emit_note(emitter, "%s is INCOMPLETE: the run was killed or is still going", side);
    else if (*m->facts.outcome && strcmp(m->facts.outcome, "ok") != 0)
        up_emit_note(emitter, "%s did not get to its end: %s", side, m->facts.outcome);
    if (m->breakdown.peak.rank == UP_NONE)
        up_emit_note(emitter, "nothing was recorded in %s", side);
    else if (m->breakdown.peak.unkept_bytes != UP_NONE)
        up_emit_note(emitter,
                     "the rows of %s's highest step were not kept: what it consists of is told of "
                     "the highest moment of those that were",
                     side);
}

static enum up_status emit_diff(struct up_emitter *emitter, const struct up_measured *a,
                                const struct up_measured *b,
                                const struct up_config_differences *differences, int64_t limit,
                                struct up_error *err)
{
    enum up_status rc = UP_OK;
    emit_run(emitter, "a", "A", a);
    emit_run(emitter, "b", "B", b);
    note_state(emitter, "A", a);
    note_state(emitter, "B", b);
    if (differences->unknown[0] || differences->unknown[1])
        up_emit_note(emitter, "how %s configured was not recorded",
                     !differences->unknown[1]   ? "A was"
                     : !differences->unknown[0] ? "B was"
                                                : "A and B were");
    else if (!differences->count)
        up_emit_note(emitter, "both were configured alike");
    emit_config(emitter, differences);
    emit_figures(emitter, a, b);
    emit_place(emitter, "peak_a", "peak of A", a);
    emit_place(emitter, "peak_b", "peak of B", b);
    UP_TRY(emit_groups(emitter, "categories", "category, at the peak", &a->breakdown.categories,
                       &b->breakdown.categories, 0, true, err));
    UP_TRY(emit_layers(emitter, a, b, limit, err));
    UP_TRY(emit_groups(emitter, "kinds", "kind of tensor", &a->breakdown.kinds, &b->breakdown.kinds,
                       limit, false, err));
out:
    return rc;
}

static enum up_status run_diff(const void *values, const struct up_arguments *arguments,
                               struct up_emitter *emitter, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct diff_options *o = values;
    struct up_measured a = {0}, b = {0};
    struct up_config_differences differences = {0};
    if (arguments->positional_count != 2)
        return up_fail(err, UP_USAGE, "diff: expected two run.db, A and B, not %d",
                       arguments->positional_count);
    UP_TRY(up_measured_open(arguments->positional[0], &a, err));
    UP_TRY(up_measured_open(arguments->positional[1], &b, err));
    UP_TRY(up_config_compare(&a.run, &b.run, &differences, err));
    UP_TRY(emit_diff(emitter, &a, &b, &differences, o->limit, err));
out:
    up_config_differences_release(&differences);
    up_measured_release(&a);
    up_measured_release(&b);
    return rc;
}

const struct up_command up_command_diff = {
    .name = "diff",
    .summary = "two runs side by side: configuration, and what grew and shrank at the peak",
    .operands = "A.DB B.DB",
    .options = options,
    .options_size = sizeof(struct diff_options),
    .defaults = &(const struct diff_options){.limit = 8},
    .run = run_diff,
};
