#include "report/analysis/analysis.h"
#include "model/config.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- meta --------------------------------------------------------------------------------------
 */

// "" where meta has no such key.
static enum up_status read_text(const struct up_run *run, const char *key, char *out, size_t size,
                                struct up_error *err)
{
    char *text;
    enum up_status rc = up_query_meta(run, key, &text, err);
    if (!rc) snprintf(out, size, "%s", text);
    free(text);
    return rc;
}

static enum up_status read_meta_numbers(const struct up_run *run, struct up_run_facts *facts,
                                        struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct {
        const char *key;
        int64_t *value;
    } numbers[] = {
        {"schema_version", &facts->schema_version},
        {"ranks", &facts->ranks},
        {"cp", &facts->cp},
        {"dp", &facts->dp},
        {"seq_len", &facts->seq_len},
        {"batch", &facts->batch},
        {"accum", &facts->accum},
        {"processes", &facts->processes},
        {"parameters", &facts->parameters},
        {"steps_planned", &facts->steps_planned},
        {"events_written", &facts->events_written},
        {"recorder_ns", &facts->recorder_ns},
        {"recorder_bytes", &facts->recorder_bytes},
        {"ring_waits", &facts->ring_waits},
    };
    char text[UP_META_TEXT];
    for (int i = 0; i < UP_COUNT(numbers); i++) {
        int64_t value = UP_NONE;
        UP_TRY(read_text(run, numbers[i].key, text, sizeof text, err));
        up_parse_integer(text, &value);
        *numbers[i].value = up_max(UP_NONE, value);
    }
out:
    return rc;
}

static enum up_status read_meta(const struct up_run *run, struct up_run_facts *facts,
                                struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct {
        const char *key;
        char *text;
    } texts[] = {
        {"run_id", facts->run_id},
        {"config_hash", facts->config_hash},
        {"model", facts->model},
        {"device", facts->device},
        {"as", facts->as},
        {"dtype", facts->dtype},
        {"started", facts->started},
        {"outcome", facts->outcome},
        {"recorded_by", facts->recorded_by},
    };
    UP_TRY(read_text(run, "command", facts->command, sizeof facts->command, err));
    for (int i = 0; i < UP_COUNT(texts); i++)
        UP_TRY(read_text(run, texts[i].key, texts[i].text, UP_META_TEXT, err));
    char complete[UP_META_TEXT];
    UP_TRY(read_text(run, "complete", complete, sizeof complete, err));
    facts->complete = !strcmp(complete, "1");
    facts->injected = !strcmp(facts->recorded_by, "injection");
    facts->dry = !strcmp(facts->device, "dry");
    facts->out_of_memory = !strcmp(facts->outcome, "out of memory");
    UP_TRY(read_meta_numbers(run, facts, err));
out:
    return rc;
}

/* --- Options worth a reader's time -------------------------------------------------------------
 */

// What decides where memory goes, and the value that means that it is not used. Layers that are not
// computed cost neither time nor activations: a run without them is no run of its model.
static const struct {
    const char *name, *off;
} techniques[] = {
    {"active-layers", "0"}, {"fsdp", "off"},         {"checkpoint", "none"},
    {"offload", "none"},    {"optimizer", "device"}, {"tile-mlp", "off"},
    {"tile-loss", "off"},   {"tile-attn", "off"},    {"upipe", "off"},
};

// `config` may spell tile-mlp or tile_mlp, on the top level or under "options".
static const json_t *find_option(const json_t *config, const char *name)
{
    char other[32];
    snprintf(other, sizeof other, "%s", name);
    for (char *c = other; *c; c++)
        if (*c == '-') *c = '_';
    const json_t *nested = json_object_get(config, "options");
    const json_t *value = json_object_get(config, name);
    if (!value) value = json_object_get(config, other);
    if (!value) value = json_object_get(nested, name);
    if (!value) value = json_object_get(nested, other);
    return value;
}

static bool option_text(const json_t *value, char *text, size_t size)
{
    char count[UP_UNITS_TEXT];
    if (json_is_string(value))
        snprintf(text, size, "%s", json_string_value(value));
    else if (json_is_integer(value) && json_integer_value(value) > 0)
        snprintf(text, size, "%s", up_format_count(count, json_integer_value(value)));
    else if (json_is_true(value))
        snprintf(text, size, "on");
    else
        return false;
    return true;
}

static int64_t whole(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key)); // 0 where there is none
}

static double read_kv_copies(const json_t *config)
{
    const json_t *inner = json_object_get(config, "config");
    const json_t *model = json_object_get(inner, "model");
    int64_t heads = whole(model, "heads"), kv = whole(model, "kv_heads"), cp = whole(inner, "cp");
    struct up_config all = {.cp = cp, .model = {.heads = heads, .kv_heads = kv}}; // in one stage
    int64_t held = 0;
    if (kv < 1 || cp < 1 || cp > heads || heads > 1 << 20 || heads % kv || heads % cp) return NAN;
    for (int64_t r = 0; r < cp; r++) held += up_config_kv_heads(&all, r, 0).count;
    return (double)held / (double)kv;
}

static enum up_status read_options(const struct up_run *run, struct up_run_facts *facts,
                                   struct up_error *err)
{
    struct up_run_options *options = &facts->options;
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    bool row;
    json_t *config = NULL;
    json_error_t error = {0};
    UP_TRY(up_query_open(&query, run, "SELECT value FROM meta WHERE key = 'config'", UP_BIND_NONE,
                         err));
    UP_TRY(up_query_next(&query, &row, err));
    char *text = up_query_text(&query, 0);
    if (!text) UP_TRY(up_no_memory(err));
    config = json_loads(text, 0, &error);
    free(text);
    UP_TRY(up_query_end(&query, err));
    if (!config && json_error_code(&error) == json_error_out_of_memory) UP_TRY(up_no_memory(err));
    options->known = json_is_object(config);
    facts->kv_copies = read_kv_copies(config);
    for (int i = 0; i < UP_COUNT(techniques); i++) {
        char value[sizeof options->items->value];
        if (!option_text(find_option(config, techniques[i].name), value, sizeof value)) continue;
        if (!strcmp(value, techniques[i].off) || !strcmp(value, "off")) continue;
        snprintf(options->items[options->count].name, sizeof options->items->name, "%s",
                 techniques[i].name);
        memcpy(options->items[options->count++].value, value, sizeof value);
    }
out:
    json_decref(config);
    up_query_close(&query);
    return rc;
}
_Static_assert(sizeof techniques / sizeof *techniques <= UP_FACTS_OPTIONS,
               "room for every technique");

/* --- Steps -------------------------------------------------------------------------------------
 */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Of `count` values, which it sorts; NaN of none.
static double median(double *values, int64_t count)
{
    if (!count) return NAN;
    qsort(values, (size_t)count, sizeof *values, ascending);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

static enum up_status read_speed(const struct up_run *run, struct up_run_facts *facts,
                                 struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    double *seconds = NULL, *rates = NULL;
    int64_t seconds_capacity = 0, rates_capacity = 0, count = 0;
    bool row;
    UP_TRY(
        up_query_open(&query, run,
                      "SELECT (end_ns - begin_ns) * 1e-9, tokens FROM step WHERE end_ns > begin_ns"
                      " AND rank = (SELECT min(rank) FROM step) ORDER BY step",
                      UP_BIND_NONE, err));
    for (;; count++) {
        UP_TRY(up_query_next(&query, &row, err));
        if (!row) break;
        UP_TRY(up_grow(&seconds, count, &seconds_capacity, sizeof *seconds, err));
        UP_TRY(up_grow(&rates, count, &rates_capacity, sizeof *rates, err));
        seconds[count] = up_query_real(&query, 0);
        rates[count] = (double)up_max(0, up_query_integer(&query, 1, 0)) / seconds[count];
    }
    int64_t skipped = count > 1;
    facts->step_s = count ? median(seconds + skipped, count - skipped) : NAN;
    facts->tokens_per_s = count ? median(rates + skipped, count - skipped) : NAN;
    if (!(facts->tokens_per_s > 0)) facts->tokens_per_s = NAN;
out:
    free(seconds);
    free(rates);
    up_query_close(&query);
    return rc;
}

static enum up_status read_loss(const struct up_run *run, const char *sql, double *loss,
                                struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    bool row;
    UP_TRY(up_query_open(&query, run, sql, UP_BIND_NONE, err));
    UP_TRY(up_query_next(&query, &row, err));
    *loss = up_query_real(&query, 0);
out:
    up_query_close(&query);
    return rc;
}

static enum up_status read_steps(const struct up_run *run, struct up_run_facts *facts,
                                 struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct {
        const char *sql;
        int64_t *value, if_none;
    } numbers[] = {
        {"SELECT count(*) FROM (SELECT 1 FROM step GROUP BY step HAVING count(*) = count(end_ns))",
         &facts->steps_done, 0},
        {"SELECT max(step) FROM step", &facts->last_begun, UP_NONE},
        {"SELECT max(step) FROM step WHERE end_ns IS NOT NULL", &facts->last_ended, UP_NONE},
        {"SELECT max(layer) + 1 FROM tensor", &facts->layers, UP_NONE},
        {"SELECT count(*) FROM rank", &facts->ranks_recorded, 0},
        {"SELECT min(rank) FROM rank", &facts->first_rank, UP_NONE},
        {"SELECT max(rank) FROM rank", &facts->last_rank, UP_NONE},
    };
    for (int i = 0; i < UP_COUNT(numbers); i++)
        UP_TRY(up_query_value(run, numbers[i].sql, UP_BIND_NONE, numbers[i].if_none,
                              numbers[i].value, err));
    UP_TRY(read_loss(run, "SELECT loss FROM step WHERE loss IS NOT NULL ORDER BY step LIMIT 1",
                     &facts->first_loss, err));
    UP_TRY(read_loss(run, "SELECT loss FROM step WHERE loss IS NOT NULL ORDER BY step DESC LIMIT 1",
                     &facts->last_loss, err));
    UP_TRY(read_speed(run, facts, err));
out:
    return rc;
}

/* --- Diagnostics -------------------------------------------------------------------------------
 */

static enum up_status read_diagnostics(const struct up_run *run, struct up_run_facts *facts,
                                       struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_query query = {0};
    bool row;
    UP_TRY(up_query_value(run, "SELECT count(*) FROM diagnostic", UP_BIND_NONE, 0,
                          &facts->diagnostics, err));
    UP_TRY(up_query_open(&query, run,
                         "SELECT kind, text FROM diagnostic"
                         " ORDER BY kind = 'out_of_memory' DESC, id DESC LIMIT 1",
                         UP_BIND_NONE, err));
    UP_TRY(up_query_next(&query, &row, err));
    up_query_copy(&query, 0, facts->diagnostic_kind, sizeof facts->diagnostic_kind);
    up_query_copy(&query, 1, facts->diagnostic, sizeof facts->diagnostic);
    UP_TRY(up_query_end(&query, err));
out:
    up_query_close(&query);
    return rc;
}

enum up_status up_run_facts_read(const struct up_run *run, struct up_run_facts *facts,
                                 struct up_error *err)
{
    enum up_status rc = UP_OK;
    *facts = (struct up_run_facts){0};
    UP_TRY(read_meta(run, facts, err));
    UP_TRY(read_options(run, facts, err));
    UP_TRY(read_steps(run, facts, err));
    UP_TRY(read_diagnostics(run, facts, err));
out:
    return rc;
}
