/* history: a line a run, of any number of runs across configurations; to be sorted, or taken away
 * as JSON or CSV. */
#include "report/analysis/peak.h"
#include "report/analysis/analysis.h"
#include "report/report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum sort_key { STARTED, RUN, MODEL, RANKS, SEQ, PEAK, STEP, TOKENS, OUTCOME };

struct history_options {
    struct up_report_options report;
    int sort; // enum sort_key
    bool reverse;
};

static const struct up_option options[] = {
    {.name = "sort",
     .kind = UP_OPTION_CHOICE,
     .field = offsetof(struct history_options, sort),
     .fallback = "started",
     .value = "started|run|model|ranks|seq|peak|step|tokens|outcome",
     .help = "smallest or earliest first; what is not known comes last",
     .group = "Which order"},
    {.name = "reverse",
     .kind = UP_OPTION_FLAG,
     .field = offsetof(struct history_options, reverse),
     .help = "largest or latest first"},
    UP_REPORT_OPTIONS,
    UP_REPORT_CSV,
    {0}};

struct line {
    const char *path;
    struct up_run_facts facts;
    int64_t peak_bytes; // UP_NONE where nothing was recorded
    int place;          // as given
    enum sort_key key;
    bool reverse;
};

static enum up_status read_line(const char *path, struct line *line, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_run run = {0};
    struct up_peak peak;
    UP_TRY(up_run_open(path, &run, err));
    UP_TRY(up_run_facts_read(&run, &line->facts, err));
    UP_TRY(up_peak_find(&run, UP_NONE, UP_NONE, &peak, err));
    line->path = path;
    line->peak_bytes = up_peak_bytes(&peak);
out:
    up_run_close(&run);
    return rc;
}

/* --- Order -------------------------------------------------------------------------------------
 */

static const char *outcome_of(const struct line *line)
{
    if (!line->facts.complete) return "INCOMPLETE";
    return *line->facts.outcome ? line->facts.outcome : "unknown";
}

// NULL where the key is a number.
static const char *text_of(const struct line *line)
{
    switch (line->key) {
    case STARTED:
        return line->facts.started;
    case RUN:
        return line->path;
    case MODEL:
        return line->facts.model;
    case OUTCOME:
        return outcome_of(line);
    default:
        return NULL;
    }
}

// NaN where it is not known.
static double number_of(const struct line *line)
{
    int64_t value = line->key == RANKS ? line->facts.ranks
                    : line->key == SEQ ? line->facts.seq_len
                                       : line->peak_bytes;
    if (line->key == STEP) return line->facts.step_s;
    if (line->key == TOKENS) return line->facts.tokens_per_s;
    return value == UP_NONE ? NAN : (double)value;
}

static int by_key(const void *a, const void *b)
{
    const struct line *x = a, *y = b;
    const char *p = text_of(x), *q = text_of(y);
    double u = p ? !*p : isnan(number_of(x)), v = q ? !*q : isnan(number_of(y));
    int order = 0;
    if (u != v) return u < v ? -1 : 1; // what is not known, last in either direction
    if (p && q)
        order = strcmp(p, q);
    else if (!(bool)u)
        order = (number_of(x) > number_of(y)) - (number_of(x) < number_of(y));
    if (order) return x->reverse ? -order : order;
    return x->place - y->place;
}

/* --- Lines -------------------------------------------------------------------------------------
 */

static void append(char *text, size_t size, const char *word, const char *value)
{
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s%s", used ? " " : "", word, value);
}

// "fsdp cp4 block host tiles up8": the techniques in the order of the ladder, shortly; before them
// what leaves out most of the model. "" where they are not known.
static void techniques_of(const struct up_run_facts *facts, char *text, size_t size)
{
    static const struct {
        const char *option, *word;
        bool valued;
    } words[] = {{"active-layers", "active", true},
                 {"fsdp", "fsdp", false},
                 {"checkpoint", "", true},
                 {"offload", "", true},
                 {"optimizer", "opt-", true},
                 {"tile-mlp", "", false},
                 {"tile-loss", "", false},
                 {"tile-attn", "", false},
                 {"upipe", "up", true}};
    char cp[UP_UNITS_TEXT];
    const char *tiles = NULL;
    text[0] = 0;
    snprintf(cp, sizeof cp, "%lld", (long long)facts->cp);
    for (int w = 0; w < UP_COUNT(words); w++) {
        if (!strcmp(words[w].option, "checkpoint") && facts->cp > 1) append(text, size, "cp", cp);
        for (int i = 0; i < facts->options.count; i++) {
            if (strcmp(facts->options.items[i].name, words[w].option) != 0) continue;
            bool tile = !strncmp(words[w].option, "tile", 4);
            if (tile) tiles = tiles ? "tiles" : words[w].option;
            if (!tile)
                append(text, size, words[w].word,
                       words[w].valued ? facts->options.items[i].value : "");
        }
        if (!strcmp(words[w].option, "tile-attn") && tiles) append(text, size, tiles, "");
    }
    if (!*text && facts->options.known) append(text, size, "none", "");
}

// The last so many parts of the path.
static const char *end_of(const char *path, int parts)
{
    const char *from = path + strlen(path);
    while (from > path && (from[-1] != '/' || --parts > 0)) from--;
    return from;
}

// The file's name, with as many folders before it as tell it from the other runs.
static const char *short_name(const struct line *lines, int count, const struct line *line)
{
    int parts = 1;
    for (int i = 0; i < count; i++) {
        if (!strcmp(lines[i].path, line->path)) continue;
        while (end_of(line->path, parts) > line->path &&
               !strcmp(end_of(lines[i].path, parts), end_of(line->path, parts)))
            parts++;
    }
    return end_of(line->path, parts);
}

// "" is what is not known.
static void emit_told(struct up_emitter *emitter, const char *key, const char *text)
{
    up_emit_text(emitter, key, NULL, *text ? text : NULL);
}

static void emit_line(struct up_emitter *emitter, const struct line *line, const char *name)
{
    const struct up_run_facts *facts = &line->facts;
    char techniques[128], day[11];
    snprintf(day, sizeof day, "%.10s", facts->started);
    techniques_of(facts, techniques, sizeof techniques);
    up_emit_row_begin(emitter);
    up_emit_text(emitter, "run", NULL, line->path);
    up_emit_cell(emitter, "run", name);
    emit_told(emitter, "started", facts->started);
    up_emit_cell(emitter, "started", day);
    emit_told(emitter, "model", facts->model);
    emit_told(emitter, "device", facts->device);
    emit_told(emitter, "dtype", facts->dtype);
    up_emit_known(emitter, "ranks", NULL, facts->ranks);
    up_emit_known(emitter, "cp", NULL, facts->cp);
    up_emit_known(emitter, "dp", NULL, facts->dp);
    if (facts->seq_len == UP_NONE)
        up_emit_null(emitter, "seq_len");
    else
        up_emit_tokens(emitter, "seq_len", NULL, facts->seq_len);
    up_emit_known(emitter, "batch", NULL, facts->batch);
    emit_told(emitter, "techniques", techniques);
    if (line->peak_bytes == UP_NONE)
        up_emit_null(emitter, "peak_bytes");
    else
        up_emit_bytes(emitter, "peak_bytes", NULL, line->peak_bytes);
    up_emit_seconds(emitter, "step_s", NULL, facts->step_s);
    up_emit_rate(emitter, "tokens_per_s", NULL, facts->tokens_per_s);
    up_emit_integer(emitter, "steps_done", NULL, facts->steps_done);
    up_emit_text(emitter, "outcome", NULL, outcome_of(line));
    emit_told(emitter, "config_hash", facts->config_hash);
    emit_told(emitter, "run_id", facts->run_id);
    up_emit_known(emitter, "accum", NULL, facts->accum);
    up_emit_row_end(emitter);
}

static void emit_lines(struct up_emitter *emitter, const struct line *lines, int count)
{
    static const struct up_column columns[] = {{"run", "run", false, 0, 16},
                                               {"started", "started", false, 0, 10},
                                               {"model", "model", false, 0, 12},
                                               {"device", "on", false, 0, 4},
                                               {"ranks", "ranks", true, 0, 0},
                                               {"seq_len", "seq", true, 0, 0},
                                               {"techniques", "techniques", false, 0, 28},
                                               {"peak_bytes", "peak", true, 0, 0},
                                               {"step_s", "step", true, 0, 0},
                                               {"tokens_per_s", "tok/s", true, 0, 0},
                                               {"outcome", "", false, 0, 13}};
    up_emit_table_begin(emitter, "runs", columns, UP_COUNT(columns));
    for (int i = 0; i < count; i++)
        emit_line(emitter, &lines[i], short_name(lines, count, &lines[i]));
    up_emit_table_end(emitter);
}

static enum up_status run_history(const void *values, const struct up_arguments *arguments,
                                  struct up_emitter *emitter, struct up_error *err)
{
    const struct history_options *o = values;
    enum up_status rc = UP_OK;
    int count = 0, refused = 0;
    if (!arguments->positional_count)
        return up_fail(err, UP_USAGE, "history: expected one or more run.db");
    struct line *lines = calloc((size_t)arguments->positional_count, sizeof *lines);
    if (!lines) return up_no_memory(err);
    for (int i = 0; i < arguments->positional_count && rc != UP_FAILED; i++) {
        struct up_error error = {0};
        lines[count] =
            (struct line){.place = i, .key = (enum sort_key)o->sort, .reverse = o->reverse};
        rc = read_line(arguments->positional[i], &lines[count], &error);
        count += rc == UP_OK;
        refused += rc == UP_USAGE;
        // One file at fault is no reason not to tell of the others.
        if (rc == UP_USAGE) fprintf(stderr, "upipe-report: %s\n", error.text);
        if (rc == UP_FAILED) up_fail(err, rc, "%s", error.text);
    }
    if (rc != UP_FAILED) {
        if (count) qsort(lines, (size_t)count, sizeof *lines, by_key);
        emit_lines(emitter, lines, count);
        rc = refused ? UP_USAGE : UP_OK;
    }
    free(lines);
    return rc;
}

const struct up_command up_command_history = {
    .name = "history",
    .summary = "a line a run: what it was, its peak, its speed, how it ended",
    .operands = "RUN.DB...",
    .options = options,
    .options_size = sizeof(struct history_options),
    .defaults = &(const struct history_options){.sort = STARTED},
    .run = run_history,
};
