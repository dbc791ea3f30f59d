#include "report/emit/sections_modelled.h"
#include "report/emit/sections_advice.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { CELL = 160, ALL_OPTIONS = UP_TECHNIQUE_COUNT * UP_RULE_OPTIONS };

static const char *or_null(const char *text)
{
    return *text ? text : NULL;
}

/* --- One line ------------------------------------------------------------------------------------
 */

// What would be typed for the line: the options of the path up to it, or its own alone.
static void all_options(const struct up_modelled *m, const struct up_modelled_line *line,
                        char out[ALL_OPTIONS])
{
    bool of_path = line >= m->path && line < m->path + m->path_count;
    const struct up_modelled_line *first = of_path ? m->path : line;
    size_t used = 0;
    out[0] = 0;
    for (; first <= line; first++)
        used += (size_t)snprintf(out + used, ALL_OPTIONS - used, "%s%s", used ? " " : "",
                                 first->options);
}

static void emit_owner(struct up_emitter *emitter, const struct up_modelled_line *line)
{
    const struct up_modelled_kind *largest = &line->kind[0];
    up_emit_text(emitter, "owner", NULL, or_null(largest->name));
    up_emit_text(emitter, "owner_category", NULL, or_null(largest->category));
    up_emit_known(emitter, "owner_bytes", NULL, *largest->name ? largest->bytes : UP_NONE);
    up_emit_object_begin(emitter, "categories");
    for (int i = 0; i < UP_CATEGORY_COUNT; i++)
        if (line->category[i])
            up_emit_integer(emitter, up_category_names[i], NULL, line->category[i]);
    up_emit_object_end(emitter);
}

// All that the JSON tells; `assumption` NULL of the run as it is.
static void emit_fields(struct up_emitter *emitter, const struct up_modelled *m,
                        const struct up_modelled_line *line, const char *assumption)
{
    char options[ALL_OPTIONS];
    all_options(m, line, options);
    up_emit_text(emitter, "all_options", NULL, options);
    if (m->limit_bytes)
        up_emit_flag(emitter, "fits", NULL, up_modelled_fits(m, line));
    else
        up_emit_null(emitter, "fits");
    up_emit_flag(emitter, "exact", NULL, false);
    up_emit_text(emitter, "assumption", NULL, assumption);
    up_emit_integer(emitter, "peak_bytes", NULL, line->peak_bytes);
    up_emit_integer(emitter, "library_bytes", NULL, m->recorded.other_bytes);
    up_emit_integer(emitter, "host_bytes", NULL, line->host_bytes);
    up_emit_null(emitter, "step_s");
    up_emit_text(emitter, "phase", NULL, or_null(line->phase));
    up_emit_known(emitter, "layer", NULL, line->layer);
    up_emit_text(emitter, "range", NULL, or_null(line->range));
    up_emit_text(emitter, "reached_by", NULL, or_null(line->reached_by));
    up_emit_known(emitter, "peak_seq", NULL, line->seq);
    emit_owner(emitter, line);
}

#define MODELLED_COLUMNS(heading_)                                                                 \
    {"options", heading_, false, 0, 23}, {"how", "how", false, 8, 8},                              \
        {"peak", "peak", true, 9, 0}, {"host", "host", true, 9, 0},                                \
        {"where", "highest in", false, 0, 12},                                                     \
    {                                                                                              \
        "largest", "dominant there", false, 0, 27                                                  \
    }

static void emit_cells(struct up_emitter *emitter, const struct up_modelled *m,
                       const struct up_modelled_line *line)
{
    char text[CELL], bytes[UP_UNITS_TEXT];
    snprintf(text, sizeof text, "%s%s", up_modelled_fits(m, line) ? "* " : "",
             up_format_bytes(bytes, (uint64_t)line->peak_bytes));
    up_emit_cell(emitter, "peak", text);
    up_emit_cell(emitter, "host", up_format_bytes(bytes, (uint64_t)line->host_bytes));
    if (line->layer >= 0)
        snprintf(text, sizeof text, "%s L%lld", line->phase, (long long)line->layer);
    else
        snprintf(text, sizeof text, "%s", line->phase);
    up_emit_cell(emitter, "where", text);
    snprintf(text, sizeof text, "%s %s", line->kind[0].name,
             up_format_bytes(bytes, (uint64_t)line->kind[0].bytes));
    up_emit_cell(emitter, "largest", text);
}

static void emit_line(struct up_emitter *emitter, const struct up_modelled *m,
                      const struct up_modelled_line *line)
{
    bool now = line == &m->now;
    up_emit_row_begin(emitter);
    up_emit_text(emitter, "technique", NULL, now ? "now" : up_technique_names[line->technique]);
    up_emit_text(emitter, "options", NULL, line->options);
    up_emit_cell(emitter, "options", now ? "now" : line->options);
    up_emit_cell(emitter, "how", now ? "recorded" : "modelled");
    emit_fields(emitter, m, line, now ? NULL : up_rule_assumptions[line->technique]);
    emit_cells(emitter, m, line);
    up_emit_row_end(emitter);
}

/* --- Tables --------------------------------------------------------------------------------------
 */

void up_section_modelled_ladder(struct up_emitter *emitter, const struct up_modelled *modelled)
{
    static const struct up_column columns[] = {MODELLED_COLUMNS("each by itself")};
    up_emit_table_begin(emitter, "ladder", columns, UP_COUNT(columns));
    for (int i = 0; i < modelled->ladder_count; i++)
        emit_line(emitter, modelled, &modelled->ladder[i]);
    up_emit_table_end(emitter);
}

void up_section_modelled_path(struct up_emitter *emitter, const struct up_modelled *modelled)
{
    static const struct up_column columns[] = {MODELLED_COLUMNS("one after the other")};
    char options[ALL_OPTIONS];
    up_emit_table_begin(emitter, "path", columns, UP_COUNT(columns));
    if (modelled->path_count) emit_line(emitter, modelled, &modelled->now);
    for (int i = 0; i < modelled->path_count; i++) emit_line(emitter, modelled, &modelled->path[i]);
    up_emit_table_end(emitter);
    if (modelled->path_count)
        all_options(modelled, &modelled->path[modelled->path_count - 1], options);
    up_emit_text(emitter, "path_options", NULL, modelled->path_count ? options : NULL);
    // Held to a device alone, which each line takes less of: if one fits, the last does.
    up_emit_text(emitter, "options_to_type", NULL, modelled->path_count ? options : NULL);
}

static void note_assumptions(struct up_emitter *emitter, const struct up_modelled *m)
{
    for (int t = 0; t < UP_TECHNIQUE_COUNT; t++) {
        bool told = !m->obstacle[t];
        for (int i = 0; i < m->path_count; i++)
            told = told || m->path[i].technique == (enum up_technique)t;
        if (told)
            up_emit_note(emitter, "%s assumes: %s", up_technique_names[t], up_rule_assumptions[t]);
    }
}

void up_section_modelled_rules(struct up_emitter *emitter, const struct up_modelled *modelled)
{
    static const struct up_column columns[] = {{"technique", "left out", false, 15, 0},
                                               {"reason", "why", false, 0, 82}};
    up_emit_table_begin(emitter, "left_out", columns, UP_COUNT(columns));
    for (int t = 0; t < UP_TECHNIQUE_COUNT; t++) {
        if (!modelled->obstacle[t]) continue;
        up_emit_row_begin(emitter);
        up_emit_text(emitter, "technique", NULL, up_technique_names[t]);
        up_emit_text(emitter, "reason", NULL, modelled->obstacle[t]);
        up_emit_row_end(emitter);
    }
    up_emit_table_end(emitter);
    note_assumptions(emitter, modelled);
}

/* --- Now -----------------------------------------------------------------------------------------
 */

static void note_limits(struct up_emitter *emitter, const struct up_recorded *r,
                        const struct up_run_facts *facts)
{
    char bytes[UP_UNITS_TEXT];
    if (r->nameless_bytes)
        up_emit_note(emitter, "%s of the peak has no category that is known: no rule touches it",
                     up_format_bytes(bytes, (uint64_t)r->nameless_bytes));
    if (r->backward_seq == INT64_MAX && (facts->out_of_memory || !facts->complete))
        up_emit_note(emitter, "no backward was recorded: peaks are those of the forward, and a "
                              "backward may need more");
}

static void emit_dominant(struct up_emitter *emitter, const struct up_modelled_line *line)
{
    char text[CELL], bytes[UP_UNITS_TEXT];
    int count = 0;
    while (count < UP_MODELLED_KINDS && line->kind[count].bytes) count++;
    up_emit_line_begin(emitter, "dominant");
    for (int i = 0; i < count; i++) {
        snprintf(text, sizeof text, "%s %s", line->kind[i].name,
                 up_format_bytes(bytes, (uint64_t)line->kind[i].bytes));
        up_emit_piece(emitter, "{}", text);
    }
    up_emit_line_end(emitter);
    up_emit_table_begin(emitter, "dominant", NULL, 0);
    for (int i = 0; i < count; i++) {
        up_emit_row_begin(emitter);
        up_emit_text(emitter, "kind", NULL, line->kind[i].name);
        up_emit_text(emitter, "category", NULL, or_null(line->kind[i].category));
        up_emit_integer(emitter, "bytes", NULL, line->kind[i].bytes);
        up_emit_row_end(emitter);
    }
    up_emit_table_end(emitter);
}

static void emit_room(struct up_emitter *emitter, const struct up_modelled *m)
{
    up_emit_line_begin(emitter, "machine");
    if (m->limit_bytes)
        up_emit_bytes(emitter, "device_bytes", "{} a device", m->limit_bytes);
    else
        up_emit_null(emitter, "device_bytes");
    if (m->recorded.other_bytes)
        up_emit_bytes(emitter, "library_bytes", "libraries take {} of each device",
                      m->recorded.other_bytes);
    if (m->limit_bytes) up_emit_piece(emitter, "{}", "* fits");
    up_emit_line_end(emitter);
}

void up_section_modelled_now(struct up_emitter *emitter, const struct up_modelled *modelled,
                             const struct up_run_facts *facts, const char *path, const char *why)
{
    const struct up_recorded *r = &modelled->recorded;
    up_emit_heading_begin(emitter);
    up_emit_text(emitter, "path", "{}", path);
    up_emit_text(emitter, "model", "{}", or_null(facts->model));
    if (r->seq)
        up_emit_tokens(emitter, "seq_len", "sequence {}", r->seq);
    else
        up_emit_null(emitter, "seq_len");
    up_emit_known(emitter, "ranks", r->ranks == 1 ? "{} rank" : "{} ranks",
                  r->ranks ? r->ranks : UP_NONE);
    char peak[UP_UNITS_TEXT];
    up_emit_piece(emitter, "recorded peak {}", up_format_bytes(peak, (uint64_t)r->peak_bytes));
    up_emit_line_end(emitter);
    up_emit_object_begin(emitter, "forecast");
    emit_fields(emitter, modelled, &modelled->now, NULL);
    up_emit_object_end(emitter);
    up_emit_line_begin(emitter, "within");
    up_emit_piece(emitter, "{}", *modelled->now.range ? modelled->now.range : "no range");
    up_emit_line_end(emitter);
    emit_dominant(emitter, &modelled->now);
    emit_room(emitter, modelled);
    up_emit_note(emitter, "MODELLED by rules on the recorded lifetimes, since %s", why);
    note_limits(emitter, r, facts);
}

/* --- What fits, and the summary's ----------------------------------------------------------------
 */

void up_section_modelled_fit(struct up_emitter *emitter, const struct up_modelled *modelled,
                             const struct up_modelled_line *best)
{
    char text[ALL_OPTIONS], bytes[UP_UNITS_TEXT];
    up_format_bytes(bytes, (uint64_t)modelled->limit_bytes);
    if (!best) {
        up_emit_null(emitter, "fit");
        up_emit_note(emitter, "DOES NOT FIT: no techniques that were modelled make it fit %s",
                     bytes);
        return;
    }
    up_emit_object_begin(emitter, "fit");
    emit_fields(emitter, modelled, best, NULL);
    up_emit_heading_begin(emitter);
    up_emit_piece(emitter, "First that fits {}", bytes);
    up_emit_piece(emitter, "peak {}", up_format_bytes(bytes, (uint64_t)best->peak_bytes));
    up_emit_line_end(emitter);
    all_options(modelled, best, text);
    up_section_options(emitter, "change", *text ? text : "none: the run as it is");
    up_emit_object_end(emitter);
}

void up_section_modelled_advice(struct up_emitter *emitter, const struct up_modelled *modelled)
{
    if (modelled->path_count)
        up_section_switch_on(emitter, modelled->now.peak_bytes,
                             modelled->path[modelled->path_count - 1].peak_bytes,
                             modelled->path_count, "modelled (advise tells the rules)");
    up_emit_object_begin(emitter, "advice");
    up_section_modelled_path(emitter, modelled);
    emit_room(emitter, modelled);
    up_emit_object_end(emitter);
}
