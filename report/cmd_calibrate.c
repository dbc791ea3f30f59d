/* calibrate: a machine file whose rates are those of a traced run, so that dry runs forecast that
 * machine. What the run cannot tell is taken from the machine that it names, or from generic. */
#include "report/analysis/analysis.h"
#include "report/analysis/measured.h"
#include "report/calibration/calibration.h"
#include "report/calibration/rerun.h"
#include "report/emit/text.h"
#include "report/report.h"
#include "trainer/advisor/admission.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct calibrate_options {
    struct up_report_options report;
    const char *output;
};

static const struct up_option options[] = {
    {.name = "output",
     .letter = 'o',
     .kind = UP_OPTION_TEXT,
     .field = offsetof(struct calibrate_options, output),
     .value = "FILE",
     .help = "the machine file to write, for upipe-train --machine FILE",
     .group = "What to write"},
    UP_REPORT_OPTIONS,
    {0}};

struct calibration {
    struct up_run run;
    struct up_run_facts facts;
    struct up_timed_run timed;
    struct up_rates rates;
    struct up_figures base, machine;
    char lost[256]; // the machine that the run names, where it is not to be found
    double share;   // of NCCL's memory, with the run's --nccl-buffers
    struct up_figure_sources sources;
    bool learnt[UP_FIGURE_COUNT];
    bool no_memory;    // for a source
    double forecast_s; // of this run's own step with these rates; NaN: not known
};

/* --- Where from --------------------------------------------------------------------------------
 */

static double stored_share(const json_t *config)
{
    struct up_train_options run = {0};
    const struct up_option *option = up_option_find(up_train_option_table, "nccl-buffers");
    const json_t *stored = json_object_get(json_object_get(config, "options"), option->name);
    const char *text = json_string_value(stored);
    if (text && up_option_set(option, text, &run, NULL)) return 1;
    return up_admission_buffers_share(&run);
}

// The machine that the run was for: stored whole in a dry run, named in others.
static enum up_status find_base(struct calibration *c, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_error why = {0};
    json_t *config = NULL;
    UP_TRY(up_config_stored(&c->run, &config, err));
    char *text = json_dumps(json_object_get(config, "machine"), JSON_COMPACT);
    const char *name =
        json_string_value(json_object_get(json_object_get(config, "options"), "machine"));
    if (!text && json_object_get(config, "machine")) UP_TRY(up_no_memory(err));
    bool found = false;
    if (text) rc = up_figures_stored(text, &c->base, &found, err);
    free(text);
    if (rc) goto out;
    c->share = stored_share(config);
    if (found) c->base.of[UP_FIGURE_NCCL] /= c->share; // stored as the run had it
    if (found) c->base.of[UP_FIGURE_NCCL_RANK] /= c->share;
    if (!found && name) {
        rc = up_figures_find(name, &c->base, &why);
        if (rc == UP_FAILED) UP_TRY(up_fail(err, rc, "%s", why.text));
        found = rc == UP_OK;
    }
    if (!found) UP_TRY(up_figures_find("generic", &c->base, err));
    if (!found && name) snprintf(c->lost, sizeof c->lost, "%s", name);
out:
    json_decref(config);
    return rc;
}

static void set_source(struct calibration *c, enum up_machine_figure figure, const char *text)
{
    char *clean =
        up_text_clean(text, false); // a path may be anything; ASCII, so that it can be cut
    if (!clean) c->no_memory = true;
    snprintf(c->sources.text[figure], sizeof c->sources.text[figure], "%s", clean ? clean : "");
    free(clean);
}

static void take(struct calibration *c, enum up_machine_figure figure, double value,
                 int64_t samples, const char *what)
{
    char text[512];
    if (!(value > 0) || !(value < 0x1p60)) return;
    c->machine.of[figure] = value;
    snprintf(text, sizeof text, "%s %s of %lld in %lld step%s, %s",
             c->facts.dry ? "forecast:" : "measured:", what, (long long)samples,
             (long long)c->timed.steps, c->timed.steps == 1 ? "" : "s", c->run.path);
    set_source(c, figure, text);
    c->learnt[figure] = true;
}

// Of what the work timed a rate is.
static const char *statistic(int figure)
{
    switch (figure) {
    case UP_FIGURE_LAUNCH:
        return "lower quartile";
    case UP_FIGURE_TO_HOST:
    case UP_FIGURE_FROM_HOST:
    case UP_FIGURE_NODE_TO_HOST:
    case UP_FIGURE_NODE_FROM_HOST:
    case UP_FIGURE_LINK:
        return "median by time";
    default:
        return "mean by time";
    }
}

// Of the run's ranks those that share a host.
static int64_t ranks_of_node(const struct calibration *c)
{
    int64_t node = (int64_t)c->base.of[UP_FIGURE_NODE_DEVICES];
    return node > 0 ? up_min(c->facts.ranks, node) : c->facts.ranks;
}

// The rate of copies that several devices of a node made is the node's where that held them up.
static void share_copies(struct calibration *c, enum up_machine_figure figure)
{
    struct up_rate *rate = &c->rates.of[figure];
    if (!(rate->value > 0)) return;
    struct up_copy_figures told =
        up_figures_of_copies(&c->base, figure, rate->value, 0, up_max(ranks_of_node(c), 1));
    if (told.node > 0)
        c->rates.of[up_figure_of_node(figure)] = (struct up_rate){told.node, rate->samples};
    if (!(told.device > 0)) *rate = (struct up_rate){NAN, 0};
}

static void take_rates(struct calibration *c)
{
    share_copies(c, UP_FIGURE_TO_HOST);
    share_copies(c, UP_FIGURE_FROM_HOST);
    for (int i = 0; i < UP_FIGURE_COUNT; i++) {
        const struct up_rate *rate = &c->rates.of[i];
        take(c, (enum up_machine_figure)i, rate->value, rate->samples, statistic(i));
    }
    // The products' rate was learnt with memory's pace for all of them, and goes with it.
    if (c->learnt[UP_FIGURE_MATMUL] && !c->learnt[UP_FIGURE_MATMUL_PACE])
        c->machine.of[UP_FIGURE_MATMUL_PACE] = 0;
}

// What a real run's device holds; a dry run's has what its machine has.
static enum up_status take_capacity(struct calibration *c, struct up_error *err)
{
    char text[512];
    int64_t bytes;
    if (c->facts.dry) return UP_OK;
    enum up_status rc = up_query_value(&c->run, "SELECT min(capacity_bytes) FROM rank",
                                       UP_BIND_NONE, UP_NONE, &bytes, err);
    if (rc != UP_OK || bytes <= 0 || bytes >= INT64_C(1) << 59) return rc;
    c->machine.of[UP_FIGURE_DEVICE_BYTES] = (double)bytes;
    snprintf(text, sizeof text, "what the run's device could hold, %s", c->run.path);
    set_source(c, UP_FIGURE_DEVICE_BYTES, text);
    c->learnt[UP_FIGURE_DEVICE_BYTES] = true;
    return UP_OK;
}

// What a library held of a device as the last step began, on the rank where all of them held most:
// code that one rank's cuBLAS loads another's context may.
static const char held_sql[] =
    "WITH held AS (SELECT rank, owner, bytes FROM device_alloc,"
    "  (SELECT max(begin_ns) AS ns FROM step) WHERE space = 'device' AND bytes > 0"
    "  AND owner IN ('context', 'cublas', 'cudnn', 'nccl')"
    "  AND alloc_ns <= ns AND (free_ns IS NULL OR free_ns > ns))"
    "SELECT sum(bytes) FROM held WHERE owner = ?1 AND rank ="
    " (SELECT rank FROM held GROUP BY rank ORDER BY sum(bytes) DESC, rank LIMIT 1)";

// NCCL's own, as a machine file has it: of two ranks, and what each further one of a host adds.
static double of_two_ranks(const struct calibration *c, double bytes)
{
    int64_t beyond = up_max(ranks_of_node(c) - 2, 0);
    return bytes - (double)beyond * c->base.of[UP_FIGURE_NCCL_RANK];
}

static enum up_status take_libraries(struct calibration *c, struct up_error *err)
{
    static const struct {
        enum up_machine_figure figure;
        const char *owner;
    } libraries[] = {{UP_FIGURE_CONTEXT, "context"},
                     {UP_FIGURE_CUBLAS, "cublas"},
                     {UP_FIGURE_CUDNN, "cudnn"},
                     {UP_FIGURE_NCCL, "nccl"}};
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    char text[512];
    bool row;
    for (int i = 0; i < UP_COUNT(libraries) && !c->facts.dry; i++) {
        enum up_machine_figure figure = libraries[i].figure;
        UP_TRY(up_query_open(&query, &c->run, held_sql, UP_BIND_NONE, err));
        up_query_bind_text(&query, 1, libraries[i].owner);
        UP_TRY(up_query_next(&query, &row, err));
        double bytes = (double)up_query_integer(&query, 0, 0);
        up_query_close(&query);
        double share = figure == UP_FIGURE_NCCL ? c->share : 1;
        if (figure == UP_FIGURE_NCCL) bytes = of_two_ranks(c, bytes / share);
        if (!(bytes > 0) || bytes >= 0x1p59) continue;
        c->machine.of[figure] = bytes;
        snprintf(text, sizeof text, "what it held of a device%s, %s",
                 share < 1 ? ", twice, since it ran with smaller --nccl-buffers" : "", c->run.path);
        set_source(c, figure, text);
        c->learnt[figure] = true;
    }
out:
    up_query_close(&query);
    return rc;
}

// Attention at the head_dims that the run does not have.
static bool is_by_twin(const struct calibration *c, int figure)
{
    enum up_machine_figure twin = up_figure_twin((enum up_machine_figure)figure);
    return !c->learnt[figure] && twin < UP_FIGURE_COUNT && c->learnt[twin];
}

static void take_rest_from_base(struct calibration *c)
{
    char text[512];
    for (int i = 0; i < UP_FIGURE_COUNT; i++) {
        enum up_machine_figure figure = (enum up_machine_figure)i, twin = up_figure_twin(figure);
        if (c->learnt[i]) continue;
        snprintf(text, sizeof text, "taken from %s: %s does not tell", c->base.name, c->run.path);
        if (is_by_twin(c, i)) {
            c->machine.of[i] = up_figure_by_twin(&c->base, figure, c->machine.of[twin]);
            snprintf(text, sizeof text, "from %s, in the ratio of %s: %s does not tell",
                     up_figure_name(twin), c->base.name, c->run.path);
        }
        set_source(c, figure, text);
    }
}

// The file's name without folder and ending. False when memory is short.
static bool name_machine(struct up_figures *machine, const char *path)
{
    const char *slash = strrchr(path, '/');
    snprintf(machine->name, sizeof machine->name, "%s", slash && slash[1] ? slash + 1 : path);
    char *dot = strrchr(machine->name, '.');
    if (dot && dot > machine->name) *dot = 0;
    char *clean = up_text_clean(machine->name, false); // ASCII: no character is cut
    if (clean) snprintf(machine->name, sizeof machine->name, "%s", clean);
    bool named = clean != NULL;
    free(clean);
    return named;
}

/* --- What it gives -----------------------------------------------------------------------------
 */

static enum up_status forecast_again(struct calibration *c, struct up_error *err)
{
    struct up_rerun rerun = {0};
    struct up_error why = {0};
    c->forecast_s = NAN;
    if (!c->timed.bytes_known) return UP_OK;
    enum up_status rc = up_timed_rerun(&c->run, c->timed.rank, &c->machine, 0, &rerun, &why, err);
    c->forecast_s = rerun.step_s;
    up_rerun_release(&rerun);
    return rc;
}

// "348 GB/s": rates are spoken of in powers of 1000.
static void rate_text(char *text, size_t size, double value, const char *unit)
{
    static const char *const prefix[] = {"", "K", "M", "G", "T", "P"};
    int power = 0;
    for (; value >= 999.5 && power < 5; power++) value /= 1000;
    snprintf(text, size, "%.3g %s%s/s", value, prefix[power], unit);
}

static void emit_value(struct up_emitter *emitter, enum up_machine_figure figure, double value)
{
    char text[UP_UNITS_TEXT];
    if (figure >= UP_FIGURE_LAUNCH && figure <= UP_FIGURE_ATTENTION_BACKWARD_RUN)
        snprintf(text, sizeof text, "%.3g us", value * 1e6);
    else if (figure == UP_FIGURE_NODE_DEVICES)
        snprintf(text, sizeof text, "%.0f", value);
    else if (up_figure_is_whole(figure))
        up_text_bytes(text, (int64_t)value);
    else
        rate_text(text, sizeof text, value,
                  figure <= UP_FIGURE_ATTENTION_BACKWARD_OWN_64 ? "FLOP" : "B");
    up_emit_real(emitter, "value", NULL, value);
    up_emit_cell(emitter, "value", text);
}

// Shorter than the file has it.
static void emit_source(struct up_emitter *emitter, const struct calibration *c, int figure)
{
    char text[128];
    snprintf(text, sizeof text,
             figure == UP_FIGURE_DEVICE_BYTES ? "what the device could hold"
                                              : "what it held of a device");
    if (c->rates.of[figure].samples)
        snprintf(text, sizeof text, "%s, %lld step%s", statistic(figure), (long long)c->timed.steps,
                 c->timed.steps == 1 ? "" : "s");
    else if (is_by_twin(c, figure))
        snprintf(text, sizeof text, "other head_dims', in the ratio of %s", c->base.name);
    else if (!c->learnt[figure])
        snprintf(text, sizeof text, "of %s: the run does not tell", c->base.name);
    up_emit_text(emitter, "source", NULL, c->sources.text[figure]);
    up_emit_cell(emitter, "source", text);
}

static void emit_figures(struct up_emitter *emitter, const struct calibration *c)
{
    static const struct up_column columns[] = {{"figure", "", false, 0, 0},
                                               {"value", "", true, 12, 0},
                                               {"samples", "samples", true, 0, 0},
                                               {"source", "", false, 0, 44}};
    up_emit_table_begin(emitter, "figures", columns, UP_COUNT(columns));
    for (int i = 0; i < UP_FIGURE_COUNT; i++) {
        double value = c->machine.of[i];
        if (!(value > 0)) continue;
        up_emit_row_begin(emitter);
        up_emit_text(emitter, "figure", NULL, up_figure_name((enum up_machine_figure)i));
        emit_value(emitter, (enum up_machine_figure)i, value);
        up_emit_flag(emitter, "learnt", NULL, c->learnt[i]);
        up_emit_known(emitter, "samples", NULL,
                      c->rates.of[i].samples ? c->rates.of[i].samples : UP_NONE);
        emit_source(emitter, c, i);
        up_emit_row_end(emitter);
    }
    up_emit_table_end(emitter);
}

static void emit_forecast(struct up_emitter *emitter, const struct calibration *c)
{
    up_emit_object_begin(emitter, "check");
    up_emit_line_begin(emitter, "check");
    up_emit_seconds(emitter, "forecast_s", "a step of this run forecast with it takes {}",
                    c->forecast_s);
    const char *form = c->facts.dry ? "{} in the run" : "{} measured";
    up_emit_seconds(emitter, "measured_s", isfinite(c->forecast_s) ? form : NULL, c->facts.step_s);
    up_emit_share_change(emitter, "relative", "{}",
                         up_relative_change(c->facts.step_s, c->forecast_s));
    up_emit_line_end(emitter);
    up_emit_object_end(emitter);
}

static void emit_calibration(struct up_emitter *emitter, const struct calibration *c,
                             const char *path)
{
    up_emit_heading_begin(emitter);
    up_emit_text(emitter, "output", "{}", path);
    up_emit_text(emitter, "run", "learnt from {}", c->run.path);
    up_emit_line_end(emitter);
    if (!c->facts.complete)
        up_emit_note(emitter, "INCOMPLETE: the run was killed or is still going");
    if (*c->lost)
        up_emit_note(emitter,
                     "the run names a machine that is not to be found (%s): what it does not tell "
                     "is generic's",
                     c->lost);
    if (!c->timed.bytes_known)
        up_emit_note(emitter, "how many bytes kernels moved is not known: %s", c->timed.why);
    emit_figures(emitter, c);
    emit_forecast(emitter, c);
}

// What attention's runs take besides their work, which the run's times do not tell apart.
static void take_runs(struct calibration *c)
{
    struct up_timed_list *list = &c->timed.list;
    double seconds[UP_COST_CLASS_COUNT] = {0}, runs[UP_COST_CLASS_COUNT] = {0};
    if (!list->in_runs) return;
    for (int64_t i = 0; i < list->count; i++) {
        const struct up_timed *item = &list->items[i];
        if (item->sort >= UP_COST_CLASS_COUNT) continue;
        seconds[item->sort] += item->seconds;
        runs[item->sort] += (double)item->runs;
    }
    for (int sort = UP_COST_ATTENTION_FORWARD; sort <= UP_COST_ATTENTION_BACKWARD; sort++) {
        bool backward = sort == UP_COST_ATTENTION_BACKWARD;
        up_figures_check_run(&c->base, backward, runs[sort], seconds[sort]);
        list->run_s[sort] = c->base.of[up_figure_of_run(backward)];
    }
}

static enum up_status learn(struct calibration *c, const char *output, struct up_error *err)
{
    enum up_status rc = UP_OK;
    UP_TRY(up_timed_read(&c->run, &c->timed, err));
    if (!c->timed.list.count)
        UP_TRY(up_fail(err, UP_USAGE,
                       "%s: expected a run with kernels, copies or collectives that were timed in "
                       "a step that ended, found none",
                       c->run.path));
    UP_TRY(find_base(c, err));
    take_runs(c);
    UP_TRY(up_rates_learn(&c->timed.list, &c->rates, err));
    c->machine = c->base;
    if (!name_machine(&c->machine, output)) UP_TRY(up_no_memory(err));
    take_rates(c);
    UP_TRY(take_capacity(c, err));
    UP_TRY(take_libraries(c, err));
    take_rest_from_base(c);
    if (c->no_memory) UP_TRY(up_no_memory(err));
    UP_TRY(forecast_again(c, err));
out:
    return rc;
}

static enum up_status write_file(struct calibration *c, const char *output, struct up_error *err)
{
    char about[1024];
    snprintf(about, sizeof about,
             "Learnt by upipe-report calibrate from a run of %.200s on %.200s.", c->facts.model,
             c->facts.device);
    char *clean = up_text_clean(about, false);
    if (!clean) return up_no_memory(err);
    enum up_status rc = up_figures_write("--output", output, &c->machine, clean, &c->sources, err);
    free(clean);
    return rc;
}

static enum up_status run_calibrate(const void *values, const struct up_arguments *arguments,
                                    struct up_emitter *emitter, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct calibrate_options *o = values;
    struct calibration *c = calloc(1, sizeof *c);
    if (!c) return up_no_memory(err);
    UP_TRY(up_run_open_only(arguments, &c->run, err));
    if (!o->output) UP_TRY(up_fail(err, UP_USAGE, "--output: expected the machine file to write"));
    UP_TRY(up_run_facts_read(&c->run, &c->facts, err));
    UP_TRY(learn(c, o->output, err));
    UP_TRY(write_file(c, o->output, err));
    emit_calibration(emitter, c, o->output);
out:
    up_timed_release(&c->timed);
    up_run_close(&c->run);
    free(c);
    return rc;
}

const struct up_command up_command_calibrate = {
    .name = "calibrate",
    .summary = "the rates of a machine, learnt from a traced run",
    .operands = "RUN.DB -o MACHINE.JSON",
    .options = options,
    .options_size = sizeof(struct calibrate_options),
    .defaults = &(const struct calibrate_options){.output = NULL},
    .run = run_calibrate,
};
