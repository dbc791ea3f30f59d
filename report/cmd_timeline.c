/* timeline: the memory of one step, event by event. In order of seq, which is exact, with the time
 * beside it. Where there are more events than rows, a row is the highest of its share of them: no
 * peak is lost. */
#include "report/analysis/device_time.h"
#include "report/analysis/peak.h"
#include "report/analysis/ranges.h"
#include "report/analysis/replay.h"
#include "report/emit/sections.h"
#include "report/report.h"

#include <string.h>

struct timeline_options {
    struct up_report_options report;
    int64_t rank, step, rows;
    int space; // enum up_space
};

static const struct up_option options[] = {{.name = "rank",
                                            .kind = UP_OPTION_INTEGER,
                                            .field = offsetof(struct timeline_options, rank),
                                            .value = "R",
                                            .help = "of this rank [the one with the highest peak]",
                                            .group = "What to show"},
                                           {.name = "step",
                                            .kind = UP_OPTION_INTEGER,
                                            .field = offsetof(struct timeline_options, step),
                                            .value = "S",
                                            .help = "of this step [the one with the highest peak]"},
                                           {.name = "space",
                                            .kind = UP_OPTION_CHOICE,
                                            .field = offsetof(struct timeline_options, space),
                                            .fallback = "device",
                                            .value = "device|host",
                                            .help = "which memory"},
                                           {.name = "rows",
                                            .kind = UP_OPTION_INTEGER,
                                            .field = offsetof(struct timeline_options, rows),
                                            .fallback = "40",
                                            .value = "N|all",
                                            .help = "at most so many rows",
                                            .min = 1,
                                            .off = "all"},
                                           UP_REPORT_OPTIONS,
                                           {0}};

enum { BAR_WIDTH = 36 };

#define TIMELINE_COLUMNS                                                                           \
    {"live_bytes", "alive", true, 9, 0}, {"bar", "", false, BAR_WIDTH, 0},                         \
        {"phase", "phase", false, 9, 10},                                                          \
    {                                                                                              \
        "where", "within", false, 0, 24                                                            \
    }

static const struct up_column columns[] = {{"time", "time", true, 9, 0}, TIMELINE_COLUMNS};
// Where it is known when the device was there, too.
static const struct up_column timed_columns[] = {
    {"time", "by host", true, 9, 0}, {"device_time", "device", true, 9, 0}, TIMELINE_COLUMNS};

/* What all rows share. */
struct scale {
    int64_t start_ns;
    struct up_device_times device;
    const struct up_replay_point *highest;
    char phase[64]; // of the row before
};

// A phase is named where it begins; a layer and the peak where they are.
static void emit_where(struct up_emitter *emitter, const struct up_range *range, bool highest,
                       struct scale *scale)
{
    char where[256];
    const char *phase = range ? range->phase : "";
    snprintf(where, sizeof where, "%s%s", highest ? "PEAK " : "", range ? range->name : "");
    up_emit_text(emitter, "phase", NULL, *phase ? phase : NULL);
    if (!strcmp(phase, scale->phase)) up_emit_cell(emitter, "phase", "");
    snprintf(scale->phase, sizeof scale->phase, "%s", phase);
    up_emit_cell(emitter, "where", where);
    up_emit_known(emitter, "layer", NULL, range ? range->layer : UP_NONE);
}

static void emit_point(struct up_emitter *emitter, const struct up_replay_point *point,
                       struct up_ranges *ranges, struct scale *scale)
{
    char path[1024], time[UP_UNITS_TEXT];
    const struct up_range *range = up_ranges_at(ranges, point->seq);
    up_ranges_path(ranges, path, sizeof path);
    double full = (double)up_max(1, scale->highest->live_bytes);
    up_emit_row_begin(emitter);
    up_emit_integer(emitter, "seq", NULL, point->seq);
    up_emit_integer(emitter, "ns", NULL, point->ns);
    int64_t device_ns = up_device_time_at(&scale->device, point->seq);
    up_emit_known(emitter, "device_ns", NULL, device_ns);
    double start = (double)scale->start_ns;
    up_emit_cell(emitter, "time", up_format_seconds(time, ((double)point->ns - start) * 1e-9));
    if (device_ns != UP_NONE)
        up_emit_cell(emitter, "device_time",
                     up_format_seconds(time, ((double)device_ns - start) * 1e-9));
    up_emit_bytes(emitter, "live_bytes", NULL, point->live_bytes);
    up_emit_bar(emitter, "bar", (double)point->live_bytes / full, BAR_WIDTH);
    emit_where(emitter, range, point == scale->highest, scale);
    up_emit_text(emitter, "range", NULL, *path ? path : NULL);
    up_emit_row_end(emitter);
}

static enum up_status emit_points(const struct up_run *run, const struct up_peak *peak,
                                  const struct up_replay *replay, int64_t first, int64_t end,
                                  int64_t limit, struct up_emitter *emitter, struct up_error *err)
{
    UP_ASSERT(replay->points && end > first);
    enum up_status rc = UP_OK;
    int64_t count = end - first, rows = limit ? up_min(limit, count) : count;
    struct scale scale = {.start_ns = replay->points[first].ns,
                          .highest = up_replay_highest(replay, first, end)};
    struct up_ranges ranges = {0};
    UP_TRY(up_ranges_read(run, peak->rank, replay->points[first].seq, replay->points[end - 1].seq,
                          &ranges, err));
    UP_TRY(up_device_times_read(run, peak->rank, peak->step, &scale.device, err));
    up_emit_table_begin(emitter, "timeline", scale.device.count ? timed_columns : columns,
                        scale.device.count ? UP_COUNT(timed_columns) : UP_COUNT(columns));
    for (int64_t row = 0; row < rows; row++) {
        int64_t from = first + row * count / rows, to = first + (row + 1) * count / rows;
        emit_point(emitter, up_replay_highest(replay, from, to), &ranges, &scale);
    }
    up_emit_table_end(emitter);
out:
    up_device_times_release(&scale.device);
    up_ranges_release(&ranges);
    return rc;
}

static void emit_heading(struct up_emitter *emitter, const struct up_run *run,
                         const struct up_peak *peak, const struct timeline_options *o,
                         const struct up_replay_point *highest, int64_t events)
{
    up_emit_heading_begin(emitter);
    up_emit_text(emitter, "path", "{}", run->path);
    up_emit_known(emitter, "rank", "rank {}", peak->rank);
    up_emit_known(emitter, "step", "step {}", peak->step);
    up_emit_known(emitter, "asked_step", NULL, peak->same_step);
    up_emit_text(emitter, "space", "{} memory", up_space_names[o->space]);
    up_emit_integer(emitter, "events", "{} events", events);
    if (highest) {
        up_emit_bytes(emitter, "peak_bytes", "highest {}", highest->live_bytes);
        up_emit_integer(emitter, "peak_seq", "at seq {}", highest->seq);
    } else {
        up_emit_null(emitter, "peak_bytes");
        up_emit_null(emitter, "peak_seq");
    }
    up_emit_line_end(emitter);
    if (peak->same_step != UP_NONE)
        up_emit_note(emitter, "step %lld repeated step %lld event for event: this is step %lld",
                     (long long)peak->same_step, (long long)peak->step, (long long)peak->step);
    if (!highest)
        up_emit_note(emitter, "no tensor has been recorded there in %s memory",
                     up_space_names[o->space]);
    else if (!events)
        up_emit_note(emitter,
                     "no tensor came or went there in %s memory: all of it was there before",
                     up_space_names[o->space]);
}

// Of the points [first, end); where there are none, what was alive at `seq`. NULL: nothing was.
static const struct up_replay_point *find_highest(const struct up_replay *replay, int64_t first,
                                                  int64_t end, int64_t seq)
{
    const struct up_replay_point *found = NULL;
    if (end > first) return up_replay_highest(replay, first, end);
    for (int64_t i = 0; i < replay->count && replay->points[i].seq <= seq; i++)
        found = &replay->points[i];
    return found && found->live_bytes ? found : NULL;
}

static enum up_status run_timeline(const void *values, const struct up_arguments *arguments,
                                   struct up_emitter *emitter, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct timeline_options *o = values;
    struct up_run run = {0};
    struct up_replay replay = {0};
    struct up_run_facts facts;
    struct up_peak peak;
    int64_t first = 0, end = 0;
    UP_TRY(up_run_open_only(arguments, &run, err));
    UP_TRY(up_run_facts_read(&run, &facts, err));
    UP_TRY(up_peak_find(&run, o->rank, o->step, &peak, err));
    if (peak.rank != UP_NONE)
        UP_TRY(up_replay_read(&run, peak.rank, (enum up_space)o->space, &replay, err));
    up_replay_span(&replay, peak.step, &first, &end);
    emit_heading(emitter, &run, &peak, o, find_highest(&replay, first, end, peak.seq), end - first);
    up_section_incomplete(emitter, &facts);
    if (end > first) UP_TRY(emit_points(&run, &peak, &replay, first, end, o->rows, emitter, err));
out:
    up_replay_release(&replay);
    up_run_close(&run);
    return rc;
}

const struct up_command up_command_timeline = {
    .name = "timeline",
    .summary = "the memory of one step over time, with phases and layers",
    .operands = "RUN.DB",
    .options = options,
    .options_size = sizeof(struct timeline_options),
    .defaults = &(const struct timeline_options){.rank = UP_NONE, .step = UP_NONE},
    .run = run_timeline,
};
