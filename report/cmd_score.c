/* score: forecasts against what came of them. Of the forecasts that one run.db holds, those about
 * the configuration of another are held against what that one measured, line by line. */
#include "report/analysis/measured.h"
#include "report/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct up_option options[] = {UP_REPORT_OPTIONS, {0}};

struct forecast {
    int64_t id, peak_bytes;
    int64_t host_bytes; // UP_NONE where it was not told
    double step_s;      // NaN likewise
    char options[UP_META_TEXT], config_hash[UP_META_TEXT];
};

struct forecasts {
    struct forecast *items;
    int64_t count, capacity;
};

static enum up_status read_forecasts(const struct up_run *run, struct forecasts *forecasts,
                                     struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    bool row;
    UP_TRY(up_query_open(&query, run,
                         "SELECT id, peak_bytes, host_bytes, step_s, options, config_hash"
                         " FROM prediction ORDER BY id",
                         UP_BIND_NONE, err));
    for (;;) {
        UP_TRY(up_query_next(&query, &row, err));
        if (!row) break;
        UP_TRY(up_grow(&forecasts->items, forecasts->count, &forecasts->capacity,
                       sizeof *forecasts->items, err));
        struct forecast *f = &forecasts->items[forecasts->count++];
        *f = (struct forecast){.id = up_query_integer(&query, 0, UP_NONE),
                               .peak_bytes = up_query_integer(&query, 1, 0),
                               .host_bytes = up_query_integer(&query, 2, UP_NONE),
                               .step_s = up_query_real(&query, 3)};
        up_query_copy(&query, 4, f->options, sizeof f->options);
        up_query_copy(&query, 5, f->config_hash, sizeof f->config_hash);
    }
out:
    up_query_close(&query);
    return rc;
}

// The categories of a forecast, as a live set has them, and what the device holds beside tensors.
static enum up_status read_categories(const struct up_run *run, int64_t id,
                                      struct up_live_groups *groups, int64_t *beside,
                                      struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    int64_t capacity = 0;
    bool row;
    *groups = (struct up_live_groups){0};
    *beside = UP_NONE;
    UP_TRY(up_query_open(&query, run,
                         "SELECT category, bytes FROM prediction_category"
                         " WHERE prediction_id = ?1 ORDER BY category",
                         UP_BIND(id), err));
    for (;;) {
        UP_TRY(up_query_next(&query, &row, err));
        if (!row) break;
        UP_TRY(up_grow(&groups->items, groups->count, &capacity, sizeof *groups->items, err));
        char *name = up_query_text(&query, 0);
        int64_t bytes = up_query_integer(&query, 1, 0);
        if (!name) UP_TRY(up_no_memory(err));
        if (!strcmp(name, UP_STORE_BESIDE)) {
            *beside = up_max(bytes, 0);
            free(name);
            continue;
        }
        groups->items[groups->count++] = (struct up_live_group){.name = name, .bytes = bytes};
    }
out:
    up_query_close(&query);
    return rc;
}

/* --- Lines -------------------------------------------------------------------------------------
 */

static const struct up_column columns[] = {{"forecast", "forecast for", false, 12, 40},
                                           {"name", "", false, 12, 24},
                                           {"forecast_value", "forecast", true, 12, 0},
                                           {"measured", "measured", true, 12, 0},
                                           {"error", "error", true, 12, 0},
                                           {"relative", "", true, 8, 0}};

static void begin_line(struct up_emitter *emitter, const struct forecast *f, const char *name,
                       const char *unit)
{
    // A forecast's name stands once, on its first line.
    const char *shown = strcmp(name, "peak") != 0 ? "" : *f->options ? f->options : "as it is";
    up_emit_row_begin(emitter);
    up_emit_cell(emitter, "forecast", shown);
    up_emit_known(emitter, "prediction_id", NULL, f->id);
    up_emit_text(emitter, "options", NULL, f->options);
    up_emit_text(emitter, "name", NULL, name);
    up_emit_text(emitter, "unit", NULL, unit);
}

// `category` where it is one, which is set in under the peak.
static void emit_bytes_line(struct up_emitter *emitter, const struct forecast *f, const char *name,
                            bool category, int64_t forecast, int64_t measured)
{
    char text[UP_META_TEXT];
    snprintf(text, sizeof text, "%s%s", category ? "  " : "", name);
    begin_line(emitter, f, category ? "category" : name, "bytes");
    up_emit_text(emitter, "name", NULL, name);
    up_emit_cell(emitter, "name", text);
    up_emit_text(emitter, "category", NULL, category ? name : NULL);
    up_emit_bytes(emitter, "forecast_value", NULL, forecast);
    up_emit_bytes(emitter, "measured", NULL, measured);
    up_emit_bytes_change(emitter, "error", NULL, up_difference(measured, forecast));
    up_emit_share_change(
        emitter, "relative", NULL,
        forecast == measured ? 0 : up_relative_change((double)measured, (double)forecast));
    up_emit_row_end(emitter);
}

static void emit_time_line(struct up_emitter *emitter, const struct forecast *f, double measured)
{
    if (!isfinite(f->step_s) || !isfinite(measured)) return;
    begin_line(emitter, f, "step time", "s");
    up_emit_seconds(emitter, "forecast_value", NULL, f->step_s);
    up_emit_seconds(emitter, "measured", NULL, measured);
    up_emit_seconds_change(emitter, "error", NULL, f->step_s - measured);
    up_emit_share_change(emitter, "relative", NULL, up_relative_change(measured, f->step_s));
    up_emit_row_end(emitter);
}

static enum up_status score_one(struct up_emitter *emitter, const struct up_run *old,
                                const struct forecast *f, const struct up_measured *m,
                                struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_live_groups groups = {0};
    struct up_pairs pairs = {0};
    int64_t beside, device = up_measured_device(m);
    emit_bytes_line(emitter, f, "peak", false, f->peak_bytes, up_measured_peak(m));
    UP_TRY(read_categories(old, f->id, &groups, &beside, err));
    UP_TRY(up_pairs_make(&groups, &m->breakdown.categories, &pairs, err));
    for (int64_t i = 0; i < pairs.count; i++) {
        const struct up_pair *pair = &pairs.items[i];
        emit_bytes_line(emitter, f, pair->name, true, pair->bytes[0], pair->bytes[1]);
    }
    if (beside != UP_NONE && device != UP_NONE)
        emit_bytes_line(emitter, f, "device in all", false, up_sum(f->peak_bytes, beside), device);
    if (f->host_bytes != UP_NONE)
        emit_bytes_line(emitter, f, "host memory", false, f->host_bytes, up_measured_host(m));
    emit_time_line(emitter, f, m->facts.step_s);
out:
    up_pairs_release(&pairs);
    up_live_groups_release(&groups);
    return rc;
}

/* --- The whole ----------------------------------------------------------------------------------
 */

static enum up_status refuse(const struct up_run *old, const struct up_measured *m,
                             const struct forecasts *forecasts, struct up_error *err)
{
    char known[512] = "";
    if (!*m->facts.config_hash)
        return up_fail(err, UP_USAGE,
                       "%s: expected a run that tells its configuration (config_hash in meta), "
                       "which is what forecasts are for",
                       m->run.path);
    if (!forecasts->count)
        return up_fail(err, UP_USAGE,
                       "%s: expected a run.db with forecasts, it holds none (upipe-report advise "
                       "makes them)",
                       old->path);
    for (int64_t i = 0; i < forecasts->count; i++) {
        const struct forecast *f = &forecasts->items[i];
        size_t used = strlen(known);
        int length = snprintf(known + used, sizeof known - used, "%s%s (%s)", i ? ", " : "",
                              *f->options ? f->options : "as it is", f->config_hash);
        if (length < 0 || used + (size_t)length >= sizeof known) break; // cut
    }
    return up_fail(err, UP_USAGE,
                   "%s: expected a forecast for the configuration of %s (%s); it holds forecasts "
                   "for: %s",
                   old->path, m->run.path, m->facts.config_hash, known);
}

static enum up_status score_all(struct up_emitter *emitter, const struct up_run *old,
                                const struct up_measured *m, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct forecasts forecasts = {0};
    int64_t scored = 0;
    UP_TRY(read_forecasts(old, &forecasts, err));
    up_emit_heading_begin(emitter);
    up_emit_text(emitter, "forecasts", "forecasts of {}", old->path);
    up_emit_text(emitter, "run", "against {}", m->run.path);
    up_emit_text(emitter, "config_hash", NULL, m->facts.config_hash);
    up_emit_line_end(emitter);
    if (m->facts.dry)
        up_emit_note(emitter, "%s is a dry run: its step time is a forecast, too", m->run.path);
    up_emit_table_begin(emitter, "scores", columns, UP_COUNT(columns));
    for (int64_t i = 0; i < forecasts.count; i++) {
        const struct forecast *f = &forecasts.items[i];
        if (!*f->config_hash || strcmp(f->config_hash, m->facts.config_hash) != 0) continue;
        UP_TRY(score_one(emitter, old, f, m, err));
        scored++;
    }
    up_emit_table_end(emitter);
    if (!scored) rc = refuse(old, m, &forecasts, err);
out:
    free(forecasts.items);
    return rc;
}

static enum up_status run_score(const void *values, const struct up_arguments *arguments,
                                struct up_emitter *emitter, struct up_error *err)
{
    (void)values;
    enum up_status rc = UP_OK;
    int count = arguments->positional_count;
    struct up_run old = {0};
    struct up_measured measured = {0};
    if (count != 1 && count != 2)
        return up_fail(err, UP_USAGE,
                       "score: expected the run.db that holds forecasts and the one to hold them "
                       "against, not %d",
                       count);
    UP_TRY(up_run_open(arguments->positional[0], &old, err));
    UP_TRY(up_measured_open(arguments->positional[count - 1], &measured, err));
    UP_TRY(up_measured_whole(&measured, err));
    if (*measured.facts.outcome && strcmp(measured.facts.outcome, "ok") != 0)
        UP_TRY(up_fail(err, UP_USAGE, "%s: expected a run that got to its end, its outcome is %s",
                       measured.run.path, measured.facts.outcome));
    UP_TRY(score_all(emitter, &old, &measured, err));
out:
    up_run_close(&old);
    up_measured_release(&measured);
    return rc;
}

const struct up_command up_command_score = {
    .name = "score",
    .summary = "the forecasts stored in a run against what another, or itself, measured",
    .operands = "OLD.DB [NEW.DB]",
    .options = options,
    .options_size = sizeof(struct up_report_options),
    .defaults = &(const struct up_report_options){0},
    .run = run_score,
};
