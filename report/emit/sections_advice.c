/* The sections of advice. A forecast is told the same way everywhere: its peak, where that is and
 * what is largest there, step time against that of the run as it is, host memory. */
#include "report/emit/sections_advice.h"

#include <math.h>
#include <string.h>

enum { CELL = 128 };

/* --- One forecast --------------------------------------------------------------------------------
 */

// By what is known of both alike.
static double slowdown(const struct up_forecast *forecast, const struct up_forecast *before)
{
    if (forecast->depth >= UP_FORECAST_PLANNED && before->depth >= UP_FORECAST_PLANNED)
        return forecast->planned_step_s / before->planned_step_s - 1;
    return forecast->step_s / before->step_s - 1;
}

static void place_text(const struct up_forecast *forecast, char *text, size_t size)
{
    int used = snprintf(text, size, "%s", up_phase_names[forecast->phase]);
    if (forecast->layer >= 0)
        snprintf(text + used, size - (size_t)used, " L%lld", (long long)forecast->layer);
}

static void change_text(double change, char *text, size_t size)
{
    if (fabs(change) < 0.0005) change = 0;
    if (!isfinite(change))
        snprintf(text, size, "?");
    else if (change >= 0.9995)
        snprintf(text, size, "x%.1f", change + 1);
    else
        snprintf(text, size, "%+.1f%%", 100 * change);
}

static void emit_kinds(struct up_emitter *emitter, const struct up_forecast *forecast)
{
    const struct up_forecast_kind *largest = &forecast->kind[0];
    bool placed = forecast->depth >= UP_FORECAST_PLACED && !forecast->beyond;
    up_emit_text(emitter, "owner", NULL, placed ? largest->name : NULL);
    up_emit_text(emitter, "owner_category", NULL,
                 placed ? up_category_names[largest->category] : NULL);
    up_emit_known(emitter, "owner_bytes", NULL, placed ? largest->bytes : -1);
    if (!placed) return;
    up_emit_object_begin(emitter, "categories");
    for (int i = 0; i < UP_CATEGORY_COUNT; i++)
        if (forecast->category[i])
            up_emit_integer(emitter, up_category_names[i], NULL, forecast->category[i]);
    up_emit_object_end(emitter);
}

// All that the JSON tells of a forecast.
static void emit_fields(struct up_emitter *emitter, const struct up_advice *advice,
                        const struct up_candidate *to)
{
    const struct up_forecast *f = to->forecast;
    char options[UP_CHANGE_TEXT];
    bool placed = f->depth >= UP_FORECAST_PLACED && !f->beyond;
    up_config_change_text(&advice->stored.config, &to->config, options, sizeof options);
    up_emit_text(emitter, "all_options", NULL, options);
    up_emit_text(emitter, "config_hash", NULL, f->config_hash);
    up_emit_flag(emitter, "fits", NULL,
                 up_limits_check(&advice->limits, &to->config, f) == UP_ROOM_FITS);
    up_emit_flag(emitter, "exact", NULL, advice->same_hash); // by a dry re-run of its own steps
    up_emit_integer(emitter, "peak_bytes", NULL, f->peak_bytes);
    up_emit_known(emitter, "arena_bytes", NULL,
                  f->depth >= UP_FORECAST_PLANNED && !f->beyond ? f->arena_bytes[UP_SPACE_DEVICE]
                                                                : -1);
    up_emit_integer(emitter, "library_bytes", NULL, f->libraries);
    up_emit_integer(emitter, "host_bytes", NULL, f->host_bytes);
    up_emit_integer(emitter, "node_host_bytes", NULL,
                    up_limits_host_need(&advice->limits, &to->config, f));
    up_emit_real(emitter, "step_s", NULL, f->step_s);
    up_emit_real(emitter, "planned_step_s", NULL,
                 f->depth >= UP_FORECAST_PLANNED ? f->planned_step_s : NAN);
    up_emit_real(emitter, "tokens_per_s", NULL, f->tokens_per_s);
    up_emit_real(emitter, "step_time_change", NULL, slowdown(f, advice->now.forecast));
    up_emit_text(emitter, "phase", NULL, placed ? up_phase_names[f->phase] : NULL);
    up_emit_known(emitter, "layer", NULL, placed ? f->layer : -1);
    up_emit_text(emitter, "range", NULL, placed ? f->range : NULL);
    up_emit_text(emitter, "reached_by", NULL, placed ? f->reached_by : NULL);
    emit_kinds(emitter, f);
}

/* --- Tables --------------------------------------------------------------------------------------
 */

// As wide as a page: the options of a path stand whole below it.
#define FORECAST_COLUMNS(heading_, peak_)                                                          \
    {"options", heading_, false, 0, 24}, {"peak", peak_, true, 9, 0},                              \
        {"step", "step", true, 6, 0}, {"host", "host", true, 9, 0},                                \
        {"where", "highest in", false, 0, 12},                                                     \
    {                                                                                              \
        "largest", "dominant there", false, 0, 27                                                  \
    }

static void emit_cells(struct up_emitter *emitter, const struct up_advice *advice,
                       const struct up_candidate *to)
{
    const struct up_forecast *f = to->forecast;
    char text[CELL], bytes[UP_UNITS_TEXT];
    bool fits = up_limits_check(&advice->limits, &to->config, f) == UP_ROOM_FITS;
    bool known = advice->limits.device_bytes || advice->limits.host_bytes;
    snprintf(text, sizeof text, "%s%s", known && fits ? "* " : "",
             f->beyond ? "> 1 EiB" : up_format_bytes(bytes, (uint64_t)f->peak_bytes));
    up_emit_cell(emitter, "peak", text);
    change_text(slowdown(f, advice->now.forecast), text, sizeof text);
    up_emit_cell(emitter, "step", f == advice->now.forecast ? "" : text);
    up_emit_cell(emitter, "host", up_format_bytes(bytes, (uint64_t)f->host_bytes));
}

static void emit_place_cells(struct up_emitter *emitter, const struct up_forecast *f)
{
    char text[CELL], bytes[UP_UNITS_TEXT];
    if (f->depth < UP_FORECAST_PLACED || f->beyond) return;
    place_text(f, text, sizeof text);
    up_emit_cell(emitter, "where", text);
    snprintf(text, sizeof text, "%s %s", f->kind[0].name,
             up_format_bytes(bytes, (uint64_t)f->kind[0].bytes));
    up_emit_cell(emitter, "largest", text);
}

static void emit_line(struct up_emitter *emitter, const struct up_advice *advice,
                      const struct up_config *from, const char *technique,
                      const struct up_candidate *to)
{
    char options[UP_CHANGE_TEXT];
    up_config_change_text(from, &to->config, options, sizeof options);
    up_emit_row_begin(emitter);
    up_emit_text(emitter, "technique", NULL, technique);
    up_emit_text(emitter, "options", NULL, options);
    up_emit_cell(emitter, "options", *options ? options : "now");
    emit_fields(emitter, advice, to);
    emit_cells(emitter, advice, to);
    emit_place_cells(emitter, to->forecast);
    up_emit_row_end(emitter);
}

void up_section_ladder(struct up_emitter *emitter, const struct up_advice *advice)
{
    static const struct up_column exact[] = {FORECAST_COLUMNS("each by itself", "exact peak")};
    static const struct up_column others[] = {FORECAST_COLUMNS("each by itself", "peak")};
    const struct up_column *columns = advice->same_hash ? exact : others;
    up_emit_table_begin(emitter, "ladder", columns, UP_COUNT(exact));
    for (int i = 0; i < advice->ladder_count; i++)
        emit_line(emitter, advice, &advice->config, up_technique_names[advice->ladder[i].technique],
                  &advice->ladder[i].to);
    up_emit_table_end(emitter);
}

void up_section_options(struct up_emitter *emitter, const char *label, const char *options)
{
    enum { WIDTH = 84 };
    char line[WIDTH + UP_CHANGE_TEXT];
    while (*options) {
        size_t length = strlen(options);
        if (length > WIDTH) {
            length = WIDTH;
            while (length && strncmp(options + length, " --", 3) != 0) length--;
            if (!length) length = strlen(options);
        }
        snprintf(line, sizeof line, "%.*s", (int)length, options);
        up_emit_line_begin(emitter, label);
        up_emit_piece(emitter, "{}", line);
        up_emit_line_end(emitter);
        label = "";
        options += length + (options[length] == ' ');
    }
}

static void path_text(const struct up_advice *advice, int count, char options[UP_CHANGE_TEXT])
{
    const struct up_config *end = &advice->path[count - 1].to.config;
    up_config_change_text(&advice->stored.config, end, options, UP_CHANGE_TEXT);
}

static void emit_path_options(struct up_emitter *emitter, const struct up_advice *advice)
{
    char options[UP_CHANGE_TEXT];
    int count = advice->typed;
    path_text(advice, advice->path_count, options);
    up_emit_text(emitter, "path_options", NULL, options);
    if (count) path_text(advice, count, options);
    up_emit_text(emitter, "options_to_type", NULL, count ? options : NULL);
    up_section_options(emitter, "to type", count ? options : "nothing: the rest does not fit");
}

void up_section_path(struct up_emitter *emitter, const struct up_advice *advice)
{
    static const struct up_column exact[] = {FORECAST_COLUMNS("one after the other", "exact peak")};
    static const struct up_column others[] = {FORECAST_COLUMNS("one after the other", "peak")};
    const struct up_column *columns = advice->same_hash ? exact : others;
    const struct up_config *from = &advice->config;
    up_emit_table_begin(emitter, "path", columns, UP_COUNT(exact));
    if (advice->path_count) emit_line(emitter, advice, from, "now", &advice->now);
    for (int i = 0; i < advice->path_count; i++) {
        const struct up_ladder_line *step = &advice->path[i];
        emit_line(emitter, advice, from, up_technique_names[step->technique], &step->to);
        from = &step->to.config;
    }
    up_emit_table_end(emitter);
    if (advice->path_count) {
        emit_path_options(emitter, advice);
    } else {
        up_emit_null(emitter, "path_options");
        up_emit_null(emitter, "options_to_type");
    }
}

/* --- Now -----------------------------------------------------------------------------------------
 */

static void emit_machine(struct up_emitter *emitter, const struct up_advice *advice)
{
    const struct up_limits *limits = &advice->limits;
    up_emit_line_begin(emitter, "machine");
    up_emit_text(emitter, "machine", "{}", up_forecaster_machine(advice->forecaster)->name);
    if (limits->device_bytes)
        up_emit_bytes(emitter, "device_bytes", "{} a device", limits->device_bytes);
    else
        up_emit_null(emitter, "device_bytes");
    if (limits->host_bytes)
        up_emit_bytes(emitter, "node_bytes", "{} of host memory", limits->host_bytes);
    else
        up_emit_null(emitter, "node_bytes");
    if (!limits->device_bytes && !limits->host_bytes)
        up_emit_piece(emitter, "{}", "its memory is not known: --machine or --fit tell");
    if (advice->now.forecast->libraries)
        up_emit_bytes(emitter, "library_bytes", "libraries take {} of each device",
                      advice->now.forecast->libraries);
    if (limits->device_bytes || limits->host_bytes) up_emit_piece(emitter, "{}", "* fits");
    up_emit_line_end(emitter);
}

// By name, so that nobody looks for them among the tensors, and with what to do about the largest.
static void emit_libraries(struct up_emitter *emitter, const struct up_advice *advice)
{
    const struct up_forecast *f = advice->now.forecast;
    bool usual = !advice->stored.options.nccl_buffers;
    up_emit_object_begin(emitter, "libraries");
    up_emit_line_begin(emitter, "libraries");
    for (int i = 0; i < UP_LIBRARY_COUNT; i++) {
        char form[CELL];
        snprintf(form, sizeof form, "%s {}%s", up_library_names[i],
                 i == UP_LIBRARY_NCCL && usual ? " (--nccl-buffers 1M makes it less)" : "");
        if (f->library_bytes[i])
            up_emit_bytes(emitter, up_library_names[i], form, f->library_bytes[i]);
    }
    up_emit_line_end(emitter);
    up_emit_object_end(emitter);
}

static void emit_dominant(struct up_emitter *emitter, const struct up_forecast *f)
{
    char text[CELL], bytes[UP_UNITS_TEXT];
    int count = 0;
    while (!f->beyond && count < 3 && f->kind[count].bytes) count++;
    up_emit_line_begin(emitter, "dominant");
    for (int i = 0; i < count; i++) {
        snprintf(text, sizeof text, "%s %s", f->kind[i].name,
                 up_format_bytes(bytes, (uint64_t)f->kind[i].bytes));
        up_emit_piece(emitter, "{}", text);
    }
    up_emit_line_end(emitter);
    up_emit_table_begin(emitter, "dominant", NULL, 0);
    for (int i = 0; i < count; i++) {
        up_emit_row_begin(emitter);
        up_emit_text(emitter, "kind", NULL, f->kind[i].name);
        up_emit_text(emitter, "category", NULL, up_category_names[f->kind[i].category]);
        up_emit_integer(emitter, "bytes", NULL, f->kind[i].bytes);
        up_emit_row_end(emitter);
    }
    up_emit_table_end(emitter);
}

void up_section_now(struct up_emitter *emitter, const struct up_advice *advice, const char *path)
{
    const struct up_forecast *f = advice->now.forecast;
    char text[512], bytes[UP_UNITS_TEXT];
    up_emit_heading_begin(emitter);
    up_emit_text(emitter, "path", "{}", path);
    up_emit_text(emitter, "model", "{}",
                 *advice->config.model.name ? advice->config.model.name : NULL);
    up_emit_tokens(emitter, "seq_len", "sequence {}", advice->config.seq);
    up_emit_integer(emitter, "ranks",
                    advice->config.cp * advice->config.dp == 1 ? "{} rank" : "{} ranks",
                    up_config_ranks(&advice->config));
    snprintf(text, sizeof text, "peak %s",
             f->beyond ? "> 1 EiB" : up_format_bytes(bytes, (uint64_t)f->peak_bytes));
    up_emit_piece(emitter, "forecast {}", text);
    up_emit_seconds(emitter, "step_s", "{} a step", f->step_s);
    up_emit_line_end(emitter);
    up_emit_object_begin(emitter, "forecast");
    emit_fields(emitter, advice, &advice->now);
    up_emit_object_end(emitter);
    up_emit_line_begin(emitter, "within");
    if (!f->beyond) up_emit_piece(emitter, "{}", f->range);
    up_emit_line_end(emitter);
    emit_dominant(emitter, f);
    emit_machine(emitter, advice);
    emit_libraries(emitter, advice);
    if (advice->stored.options.device != UP_DEVICE_DRY &&
        !strcmp(up_forecaster_machine(advice->forecaster)->name, "generic"))
        up_emit_note(emitter, "step times are those of machine generic, not of the one that ran "
                              "this: --machine takes a machine file");
    if (!advice->same_hash)
        up_emit_note(emitter, "the run was recorded by another upipe, whose steps differ: the "
                              "forecasts are this one's, and not exact");
}

/* --- The summary's -------------------------------------------------------------------------------
 */

void up_section_switch_on(struct up_emitter *emitter, int64_t now_bytes, int64_t then_bytes,
                          int techniques, const char *how)
{
    char bytes[UP_UNITS_TEXT], text[CELL];
    up_emit_table_heading_begin(emitter);
    up_emit_piece(emitter,
                  techniques ? "Switch on: peak {} now" : "Switch on nothing more: peak {}",
                  up_format_bytes(bytes, (uint64_t)now_bytes));
    snprintf(text, sizeof text, "%s with %d technique%s",
             up_format_bytes(bytes, (uint64_t)then_bytes), techniques, techniques == 1 ? "" : "s");
    up_emit_piece(emitter, "{}", techniques ? text : "the rest does not fit");
    up_emit_piece(emitter, "{}", how);
    up_emit_line_end(emitter);
}

void up_section_advice(struct up_emitter *emitter, const struct up_advice *advice)
{
    const struct up_forecast *now = advice->now.forecast;
    int count = advice->typed;
    const struct up_candidate *then = count ? &advice->path[count - 1].to : &advice->now;
    if (advice->path_count && !now->beyond)
        up_section_switch_on(emitter, now->peak_bytes, then->forecast->peak_bytes, count,
                             "exact (dry re-runs)");
    up_emit_object_begin(emitter, "advice");
    up_section_path(emitter, advice);
    emit_machine(emitter, advice);
    up_emit_object_end(emitter);
}

/* --- The knob ------------------------------------------------------------------------------------
 */

void up_section_knob(struct up_emitter *emitter, const struct up_advice *advice,
                     const struct up_candidate *positions, int count)
{
    static const struct up_column columns[] = {{"heads", "heads a stage", true, 13, 0},
                                               {"peak", "peak", true, 9, 0},
                                               {"step", "step", true, 6, 0},
                                               {"host", "host", true, 9, 0},
                                               {"at", "", false, 0, 0}};
    bool shown = count > 1;
    up_emit_table_begin(emitter, "knob", shown ? columns : NULL, shown ? UP_COUNT(columns) : 0);
    for (int i = 0; i < count; i++) {
        const struct up_candidate *to = &positions[i];
        char options[64];
        snprintf(options, sizeof options, "--upipe %lld",
                 (long long)up_config_stage_heads(&to->config));
        bool here = up_config_stage_heads(&to->config) == up_config_stage_heads(&advice->config);
        up_emit_row_begin(emitter);
        up_emit_text(emitter, "options", NULL, options);
        up_emit_integer(emitter, "heads", NULL, up_config_stage_heads(&to->config));
        emit_fields(emitter, advice, to);
        if (shown) emit_cells(emitter, advice, to);
        if (shown) up_emit_cell(emitter, "at", here ? "now" : options);
        up_emit_row_end(emitter);
    }
    up_emit_table_end(emitter);
}

/* --- What fits -----------------------------------------------------------------------------------
 */

static void emit_choice(struct up_emitter *emitter, const struct up_advice *advice,
                        const struct up_candidate *best)
{
    const struct up_forecast *f = best->forecast;
    char text[CELL], bytes[UP_UNITS_TEXT];
    up_emit_piece(emitter, "peak {}", up_format_bytes(bytes, (uint64_t)f->peak_bytes));
    up_emit_piece(emitter, "{} of a device in all",
                  up_format_bytes(bytes, (uint64_t)up_forecast_device_need(f)));
    // The tables tell what a rank takes; here it is held against the host's.
    int64_t ranks = up_limits_ranks(&advice->limits, &best->config);
    up_format_bytes(bytes, (uint64_t)up_limits_host_need(&advice->limits, &best->config, f));
    snprintf(text, sizeof text, ranks == 1 ? "%s" : "%s for %lld ranks", bytes, (long long)ranks);
    up_emit_piece(emitter, "host memory {}", text);
    change_text(slowdown(f, advice->now.forecast), text, sizeof text);
    if (best->config.seq == advice->config.seq) up_emit_piece(emitter, "step time {}", text);
    up_emit_line_end(emitter);
    char options[UP_CHANGE_TEXT];
    up_config_change_text(&advice->stored.config, &best->config, options, sizeof options);
    up_section_options(emitter, "change", *options ? options : "none: the run as it is");
}

void up_section_fit(struct up_emitter *emitter, const struct up_advice *advice,
                    const struct up_candidate *best)
{
    char size[UP_UNITS_TEXT], heading[CELL];
    if (!best) {
        up_emit_null(emitter, "fit");
        up_emit_note(emitter, "DOES NOT FIT: no combination of techniques fits %s a device%s",
                     up_format_bytes(size, (uint64_t)advice->limits.device_bytes),
                     advice->limits.host_bytes ? " and the host" : "");
        return;
    }
    snprintf(
        heading, sizeof heading, "Fastest that fits%s%s", advice->limits.device_bytes ? " " : "",
        advice->limits.device_bytes ? up_format_bytes(size, (uint64_t)advice->limits.device_bytes)
                                    : "");
    up_emit_object_begin(emitter, "fit");
    emit_fields(emitter, advice, best);
    up_emit_heading_begin(emitter);
    up_emit_piece(emitter, "{}", heading);
    emit_choice(emitter, advice, best);
    up_emit_object_end(emitter);
}

static const char *end_of(const struct up_longest *longest)
{
    const struct up_config *c = &longest->best.config;
    bool shared = c->offload_layers && c->offload_layers < up_config_layers(c);
    if (longest->room == UP_ROOM_HOST) return "host";
    if (longest->room == UP_ROOM_DEVICE && shared && longest->searched) return "both";
    if (longest->heads_in_the_way) return "heads";
    return longest->room == UP_ROOM_DEVICE ? "device" : "none";
}

static void emit_longest(struct up_emitter *emitter, const struct up_advice *advice,
                         const char *key, const char *heading, const struct up_longest *longest)
{
    static const struct {
        const char *word, *text;
    } ends[] = {{"host", "then host memory ends"},
                {"device", "then device memory ends"},
                {"both", "then device and host memory end"},
                {"heads", "then device memory ends: the ranks do not divide the query heads"},
                {"none", "not looked for beyond"}};
    const char *end = end_of(longest);
    char form[CELL];
    if (!longest->found) {
        up_emit_null(emitter, key);
        up_emit_heading_begin(emitter);
        up_emit_piece(emitter, "{}: no length fits", heading);
        up_emit_line_end(emitter);
        return;
    }
    up_emit_object_begin(emitter, key);
    up_emit_heading_begin(emitter);
    snprintf(form, sizeof form, "%s: {} tokens", heading);
    up_emit_tokens(emitter, "seq_len", form, longest->best.config.seq);
    up_emit_text(emitter, "ended_by", NULL, end);
    for (int i = 0; i < UP_COUNT(ends); i++)
        if (!strcmp(ends[i].word, end)) up_emit_piece(emitter, "{}", ends[i].text);
    up_emit_line_end(emitter);
    emit_fields(emitter, advice, &longest->best);
    up_emit_line_begin(emitter, "takes");
    emit_choice(emitter, advice, &longest->best);
    up_emit_object_end(emitter);
}

void up_section_longest(struct up_emitter *emitter, const struct up_advice *advice,
                        const struct up_longest *as_it_is, const struct up_longest *any)
{
    up_emit_object_begin(emitter, "longest");
    emit_longest(emitter, advice, "as_it_is", "Longest with these options", as_it_is);
    emit_longest(emitter, advice, "any", "Longest with any", any);
    up_emit_object_end(emitter);
}

void up_section_command(struct up_emitter *emitter, const char *command)
{
    up_emit_heading_begin(emitter);
    up_emit_text(emitter, "command", "{}", command);
    up_emit_line_end(emitter);
}
