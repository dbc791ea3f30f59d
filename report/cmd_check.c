/* check: a gate. A run is held against a baseline, line by line; the exit status is 0 where all is
 * well, 1 where something got worse by more than was allowed, 2 where that cannot be told.
 *
 * What decides is the peak (of each rank where both runs tell of the same ranks), the host memory
 * and, where --time asks for it, the step time. A category's line says whose fault a change of the
 * peak is: its bytes are those at the peak, and a peak that moves elsewhere holds other categories,
 * so a category alone decides nothing. */
#include "report/analysis/measured.h"
#include "report/report.h"

#include <math.h>
#include <string.h>

struct check_options {
    struct up_report_options report;
    const char *baseline;
    double peak, host, time; // fractions; NaN: host as peak, time not asked for
};

static const struct up_option options[] = {
    {.name = "baseline",
     .kind = UP_OPTION_TEXT,
     .field = offsetof(struct check_options, baseline),
     .value = "BASE.DB",
     .help = "the run to hold it against",
     .group = "What is allowed"},
    {.name = "peak",
     .kind = UP_OPTION_PERCENT,
     .field = offsetof(struct check_options, peak),
     .fallback = "1%",
     .value = "PERCENT|off",
     .off = "off",
     .help = "how much higher the peak may be, of device memory and of host memory"},
    {.name = "host",
     .kind = UP_OPTION_PERCENT,
     .field = offsetof(struct check_options, host),
     .value = "PERCENT|off",
     .off = "off",
     .shown = "as --peak",
     .help = "how much more host memory there may be, where that is to differ"},
    {.name = "time",
     .kind = UP_OPTION_PERCENT,
     .field = offsetof(struct check_options, time),
     .value = "PERCENT",
     .help = "how much longer a step may take; without it time is not looked at"},
    UP_REPORT_OPTIONS,
    {0}};

enum verdict { PASS, WIN, REGRESSION, MISSING, VERDICTS };
static const char *const verdict_names[VERDICTS] = {"PASS", "WIN", "REGRESSION", "MISSING"};

struct check {
    struct up_emitter *emitter;
    const struct up_measured *run, *baseline;
    double peak_allowed, host_allowed, time_allowed;
    int64_t verdicts[VERDICTS]; // of the lines that decide
    enum verdict peak;          // the whole run's
};

// NaN is what is not known.
static enum verdict judge(double baseline, double value, double allowed)
{
    if (!isfinite(baseline) || !isfinite(value)) return MISSING;
    if (isinf(allowed)) return PASS;
    if (value > baseline * (1 + allowed)) return REGRESSION;
    if (value < baseline * (1 - allowed)) return WIN;
    return PASS;
}

/* --- Lines -------------------------------------------------------------------------------------
 */

static const struct up_column columns[] = {
    {"verdict", "", false, 10, 0},         {"name", "", false, 24, 40},
    {"baseline", "baseline", true, 12, 0}, {"value", "this run", true, 12, 0},
    {"relative", "change", true, 8, 0},    {"allowed", "allowed", true, 8, 0}};

static void emit_line(struct check *check, enum verdict verdict, const char *name, double baseline,
                      double value, double allowed)
{
    up_emit_row_begin(check->emitter);
    up_emit_text(check->emitter, "verdict", NULL, verdict_names[verdict]);
    up_emit_text(check->emitter, "name", NULL, name);
    up_emit_share_change(check->emitter, "relative", NULL, up_relative_change(baseline, value));
    up_emit_flag(check->emitter, "gated", NULL, !isnan(allowed));
    if (!isnan(allowed)) {
        char text[UP_UNITS_TEXT] = "any";
        if (isfinite(allowed)) snprintf(text, sizeof text, "%.4g%%", 100 * allowed);
        up_emit_real(check->emitter, "allowed_share", NULL, allowed);
        up_emit_cell(check->emitter, "allowed", text);
    }
}

static double bytes_or_nan(int64_t bytes)
{
    return bytes == UP_NONE ? NAN : (double)bytes;
}

static void emit_bytes_fields(struct check *check, int64_t baseline, int64_t value)
{
    up_emit_text(check->emitter, "unit", NULL, "bytes");
    up_emit_known_bytes(check->emitter, "baseline", baseline);
    up_emit_known_bytes(check->emitter, "value", value);
}

static enum verdict gate_bytes(struct check *check, const char *name, int64_t baseline,
                               int64_t value, double allowed)
{
    enum verdict verdict = judge(bytes_or_nan(baseline), bytes_or_nan(value), allowed);
    emit_line(check, verdict, name, bytes_or_nan(baseline), bytes_or_nan(value), allowed);
    emit_bytes_fields(check, baseline, value);
    up_emit_row_end(check->emitter);
    check->verdicts[verdict]++;
    return verdict;
}

static void gate_time(struct check *check)
{
    double baseline = check->baseline->facts.step_s, value = check->run->facts.step_s;
    if (isnan(check->time_allowed)) return;
    enum verdict verdict = judge(baseline, value, check->time_allowed);
    emit_line(check, verdict, "step time", baseline, value, check->time_allowed);
    up_emit_text(check->emitter, "unit", NULL, "s");
    up_emit_seconds(check->emitter, "baseline", NULL, baseline);
    up_emit_seconds(check->emitter, "value", NULL, value);
    up_emit_row_end(check->emitter);
    check->verdicts[verdict]++;
}

// As the peak does, if this category goes the same way; told, not decided.
static void tell_category(struct check *check, const struct up_pair *pair)
{
    char name[UP_META_TEXT];
    bool follows = (check->peak == REGRESSION && pair->bytes[1] > pair->bytes[0]) ||
                   (check->peak == WIN && pair->bytes[1] < pair->bytes[0]);
    double allowed = check->peak_allowed * (double)up_measured_peak(check->baseline);
    double change = fabs((double)up_difference(pair->bytes[0], pair->bytes[1]));
    enum verdict verdict = follows && change > allowed ? check->peak : PASS;
    snprintf(name, sizeof name, "  %s", pair->name);
    emit_line(check, verdict, pair->name, (double)pair->bytes[0], (double)pair->bytes[1], NAN);
    up_emit_cell(check->emitter, "name", name);
    up_emit_text(check->emitter, "category", NULL, pair->name);
    emit_bytes_fields(check, pair->bytes[0], pair->bytes[1]);
    up_emit_row_end(check->emitter);
}

static enum up_status tell_categories(struct check *check, struct up_error *err)
{
    struct up_pairs pairs;
    enum up_status rc = up_pairs_make(&check->baseline->breakdown.categories,
                                      &check->run->breakdown.categories, &pairs, err);
    if (rc != UP_OK) return rc;
    for (int64_t i = 0; i < pairs.count; i++) tell_category(check, &pairs.items[i]);
    up_pairs_release(&pairs);
    return UP_OK;
}

/* --- Ranks -------------------------------------------------------------------------------------
 */

// What `peak --rank` tells; UP_NONE where the run does not tell of the rank.
static enum up_status rank_peak(const struct up_run *run, int64_t rank, int64_t *bytes,
                                struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_peak peak;
    int64_t known;
    *bytes = UP_NONE;
    UP_TRY(up_query_value(run,
                          "SELECT EXISTS (SELECT 1 FROM step WHERE rank = ?1)"
                          " OR EXISTS (SELECT 1 FROM tensor WHERE rank = ?1)",
                          UP_BIND(rank), 0, &known, err));
    if (!known) return UP_OK;
    UP_TRY(up_peak_find(run, rank, UP_NONE, &peak, err));
    *bytes = up_peak_bytes(&peak);
out:
    return rc;
}

// Whether both tell of several ranks: a dry run tells of the first alone.
static bool same_ranks(const struct check *check)
{
    const struct up_run_facts *a = &check->baseline->facts, *b = &check->run->facts;
    return a->ranks == b->ranks && a->ranks > 1 && !a->dry && !b->dry;
}

static enum up_status gate_ranks(struct check *check, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    bool row;
    if (!same_ranks(check)) return UP_OK;
    UP_TRY(up_query_open(&query, &check->baseline->run,
                         "SELECT rank FROM step WHERE rank >= 0 UNION"
                         " SELECT rank FROM tensor WHERE rank >= 0 ORDER BY rank",
                         UP_BIND_NONE, err));
    for (;;) {
        char name[64];
        int64_t baseline, value;
        UP_TRY(up_query_next(&query, &row, err));
        if (!row) break;
        int64_t rank = up_query_integer(&query, 0, UP_NONE);
        UP_TRY(rank_peak(&check->baseline->run, rank, &baseline, err));
        UP_TRY(rank_peak(&check->run->run, rank, &value, err));
        snprintf(name, sizeof name, "peak of rank %lld", (long long)rank);
        gate_bytes(check, name, baseline, value, check->peak_allowed);
    }
out:
    up_query_close(&query);
    return rc;
}

/* --- The whole ----------------------------------------------------------------------------------
 */

static enum up_status gate_all(struct check *check, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct up_measured *baseline = check->baseline, *run = check->run;
    up_emit_table_begin(check->emitter, "checks", columns, UP_COUNT(columns));
    check->peak = gate_bytes(check, "peak", up_measured_peak(baseline), up_measured_peak(run),
                             check->peak_allowed);
    UP_TRY(tell_categories(check, err));
    UP_TRY(gate_ranks(check, err));
    gate_bytes(check, "host memory", up_measured_host(baseline), up_measured_host(run),
               check->host_allowed);
    gate_time(check);
    up_emit_table_end(check->emitter);
out:
    return rc;
}

// The figures of a machine say nothing beside its name.
static bool follows(const struct up_config_differences *d, const struct up_config_difference *one)
{
    if (strncmp(one->name, "machine.", 8) != 0) return false;
    for (int64_t i = 0; i < d->count; i++)
        if (!strcmp(d->items[i].name, "machine")) return true;
    return false;
}

enum { LIST_TEXT = 512, MORE_TEXT = 64 };

// As many as stand on a few lines, and how many more there are.
static void list_differences(const struct up_config_differences *d,
                             char text[LIST_TEXT + MORE_TEXT])
{
    size_t used = 0;
    int64_t listed = 0, all = 0;
    text[0] = 0;
    for (int64_t i = 0; i < d->count; i++) {
        char one[320], now[64], before[64];
        const struct up_config_difference *item = &d->items[i];
        if (follows(d, item)) continue;
        all++;
        int length =
            snprintf(one, sizeof one, "%s%s %s (baseline %s)", listed ? ", " : "", item->name,
                     up_config_value_text(item, 1, now), up_config_value_text(item, 0, before));
        if (listed < all - 1 || used + (size_t)length >= LIST_TEXT) continue;
        memcpy(text + used, one, (size_t)length + 1);
        used += (size_t)length;
        listed++;
    }
    if (listed < all)
        snprintf(text + used, MORE_TEXT, ", and %lld more (upipe-report diff)",
                 (long long)(all - listed));
}

static enum up_status note_config(struct check *check, struct up_error *err)
{
    struct up_config_differences d = {0};
    enum up_status rc = up_config_compare(&check->baseline->run, &check->run->run, &d, err);
    char text[LIST_TEXT + MORE_TEXT];
    if (rc == UP_OK) list_differences(&d, text);
    const char *own = check->run->facts.config_hash, *base = check->baseline->facts.config_hash;
    if (*own && *base)
        up_emit_flag(check->emitter, "same_config", NULL, !strcmp(own, base));
    else
        up_emit_null(check->emitter, "same_config");
    if (rc == UP_OK && (d.unknown[0] || d.unknown[1]))
        up_emit_note(check->emitter, "how %s configured was not recorded",
                     !d.unknown[1]   ? "the baseline was"
                     : !d.unknown[0] ? "this run was"
                                     : "this run and the baseline were");
    if (rc == UP_OK && *text)
        up_emit_note(check->emitter, "configured otherwise than the baseline: %s", text);
    up_config_differences_release(&d);
    return rc;
}

static enum up_status answer(const struct check *check)
{
    static const char *const words[] = {
        [UP_OK] = "pass", [UP_FAILED] = "regression", [UP_USAGE] = "cannot tell"};
    enum up_status rc = check->verdicts[REGRESSION] ? UP_FAILED
                        : check->verdicts[MISSING]  ? UP_USAGE
                                                    : UP_OK;
    up_emit_line_begin(check->emitter, "answer");
    up_emit_text(check->emitter, "answer", "{}", words[rc]);
    up_emit_line_end(check->emitter);
    return rc;
}

// What ran out of memory, or failed, has a peak that says nothing.
static enum up_status check_outcome(struct check *check, bool *ended, struct up_error *err)
{
    const struct up_run_facts *base = &check->baseline->facts, *facts = &check->run->facts;
    *ended = false;
    if (*base->outcome && strcmp(base->outcome, "ok") != 0)
        return up_fail(err, UP_USAGE,
                       "%s: expected a baseline that got to its end, its outcome is %s",
                       check->baseline->run.path, base->outcome);
    if (facts->out_of_memory) {
        up_emit_note(check->emitter, "REGRESSION: %s ran out of memory, the baseline did not: %s",
                     check->run->run.path, facts->diagnostic);
        check->verdicts[REGRESSION]++;
        return UP_OK;
    }
    if (*facts->outcome && strcmp(facts->outcome, "ok") != 0)
        return up_fail(err, UP_USAGE, "%s: expected a run that got to its end, its outcome is %s",
                       check->run->run.path, facts->outcome);
    *ended = true;
    return UP_OK;
}

static enum up_status check_run(struct check *check, struct up_error *err)
{
    enum up_status rc = UP_OK;
    bool ended;
    UP_TRY(up_measured_whole(check->run, err));
    UP_TRY(up_measured_whole(check->baseline, err));
    up_emit_heading_begin(check->emitter);
    up_emit_text(check->emitter, "run", "{}", check->run->run.path);
    up_emit_text(check->emitter, "baseline", "held against {}", check->baseline->run.path);
    up_emit_line_end(check->emitter);
    UP_TRY(note_config(check, err));
    UP_TRY(check_outcome(check, &ended, err));
    if (ended) UP_TRY(gate_all(check, err));
    rc = answer(check);
out:
    return rc;
}

static enum up_status run_check(const void *values, const struct up_arguments *arguments,
                                struct up_emitter *emitter, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct check_options *o = values;
    struct up_measured run = {0}, baseline = {0};
    struct check check = {.emitter = emitter,
                          .run = &run,
                          .baseline = &baseline,
                          .peak_allowed = o->peak,
                          .host_allowed = isnan(o->host) ? o->peak : o->host,
                          .time_allowed = o->time};
    if (arguments->positional_count != 1)
        return up_fail(err, UP_USAGE, "check: expected one run.db, and --baseline BASE.DB");
    if (!o->baseline)
        return up_fail(err, UP_USAGE, "--baseline: expected a run.db to hold it against");
    UP_TRY(up_measured_open(arguments->positional[0], &run, err));
    UP_TRY(up_measured_open(o->baseline, &baseline, err));
    rc = check_run(&check, err);
out:
    up_measured_release(&run);
    up_measured_release(&baseline);
    return rc;
}

const struct up_command up_command_check = {
    .name = "check",
    .summary = "a gate: does the run need more memory, or time, than a baseline",
    .operands = "RUN.DB --baseline BASE.DB",
    .options = options,
    .options_size = sizeof(struct check_options),
    .defaults = &(const struct check_options){.host = NAN, .time = NAN},
    .run = run_check,
};
