/* The section about time: what the compute stream does in a step, and what it waits for. */
#include "report/emit/sections.h"

#include <stdio.h>

static double share_of(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

// "matmul 47.5 s (1.7%)", the text's alone.
static void emit_part(struct up_emitter *emitter, const char *what, double seconds, double whole)
{
    char time[UP_UNITS_TEXT], text[2 * UP_UNITS_TEXT + 32];
    snprintf(text, sizeof text, "%s %s (%.1f%%)", what, up_format_seconds(time, seconds),
             100 * share_of(seconds, whole));
    up_emit_piece(emitter, "{}", text);
}

// What takes less than a hundredth is left to the JSON.
static void say_parts(struct up_emitter *emitter, const struct up_step_time *time)
{
    for (int i = 0; i < UP_WORK_KINDS; i++)
        if (share_of(time->kinds[i].seconds, time->step_s) >= 0.01)
            emit_part(emitter, up_work_kind_names[i], time->kinds[i].seconds, time->step_s);
    if (share_of(time->idle_s, time->step_s) >= 0.01)
        emit_part(emitter, "idle", time->idle_s, time->step_s);
}

static void emit_compute(struct up_emitter *emitter, const struct up_step_time *time)
{
    char form[64];
    snprintf(form, sizeof form, "{} in step %lld", (long long)time->step);
    up_emit_line_begin(emitter, "compute");
    up_emit_seconds(emitter, "step_s", form, time->step_s);
    up_emit_table_begin(emitter, "compute", NULL, 0);
    for (int i = 0; i < UP_WORK_KINDS; i++) {
        double seconds = time->kinds[i].seconds;
        up_emit_row_begin(emitter);
        up_emit_text(emitter, "kind", NULL, up_work_kind_names[i]);
        up_emit_seconds(emitter, "seconds", NULL, seconds);
        up_emit_share(emitter, "share", NULL, share_of(seconds, time->step_s));
        up_emit_integer(emitter, "operations", NULL, time->kinds[i].operations);
        up_emit_real(emitter, "flops", NULL, time->kinds[i].flops);
        up_emit_row_end(emitter);
    }
    up_emit_table_end(emitter);
    say_parts(emitter, time);
    up_emit_line_end(emitter);
}

static void emit_beside(struct up_emitter *emitter, const char *key, const struct up_beside *beside,
                        double step_s)
{
    char busy[UP_UNITS_TEXT], exposed[UP_UNITS_TEXT], text[3 * UP_UNITS_TEXT];
    up_emit_object_begin(emitter, key);
    up_emit_seconds(emitter, "busy_s", NULL, beside->busy_s);
    up_emit_seconds(emitter, "exposed_s", NULL, beside->exposed_s);
    up_emit_object_end(emitter);
    if (!(beside->busy_s >= 1e-6) || share_of(beside->busy_s, step_s) < 0.01) return;
    snprintf(text, sizeof text, "%s %s of %s", key, up_format_seconds(exposed, beside->exposed_s),
             up_format_seconds(busy, beside->busy_s));
    up_emit_piece(emitter, "{}", text);
}

void up_section_time(struct up_emitter *emitter, const struct up_step_time *time)
{
    if (time->step == UP_NONE) {
        up_emit_null(emitter, "time");
        return;
    }
    up_emit_object_begin(emitter, "time");
    up_emit_integer(emitter, "step", NULL, time->step);
    up_emit_integer(emitter, "rank", NULL, time->rank);
    emit_compute(emitter, time);
    up_emit_seconds(emitter, "idle_s", NULL, time->idle_s);
    up_emit_line_begin(emitter, "exposed");
    emit_beside(emitter, "collectives", &time->collectives, time->step_s);
    emit_beside(emitter, "copies", &time->copies, time->step_s);
    up_emit_line_end(emitter);
    up_emit_object_end(emitter);
}
