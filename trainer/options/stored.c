#include "trainer/options/stored.h"
#include "trainer/forecast/forecast.h"
#include "trainer/forecast/machine.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- The config ----------------------------------------------------------------------------------
 */

static int64_t number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_integer(value) ? json_integer_value(value) : -1;
}

static const char *word(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static int index_of(const char *text, const char *const *words, int count)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(text, words[i])) return i;
    return -1;
}

// `name`: what the model is called; the rest is in up_config_json's form.
static struct up_model read_model(const json_t *object, const char *name)
{
    struct up_model model = {.layers = number(object, "layers"),
                             .hidden = number(object, "hidden"),
                             .ff = number(object, "ff"),
                             .heads = number(object, "heads"),
                             .kv_heads = number(object, "kv_heads"),
                             .head_dim = number(object, "head_dim"),
                             .vocab = number(object, "vocab"),
                             .qk_norm = json_is_true(json_object_get(object, "qk_norm")),
                             .tied = json_is_true(json_object_get(object, "tied")),
                             // Of no weight for memory and time, and not recorded.
                             .max_positions = 1,
                             .norm_epsilon = 1e-5,
                             .rope_theta = 10000,
                             .init_std = 0.02};
    snprintf(model.name, sizeof model.name, "%s", name);
    snprintf(model.family, sizeof model.family, "%s", word(object, "family"));
    return model;
}

enum { MAX_LAYERS = 4096, MAX_HEADS = 4096, MAX_BATCH = 1 << 20 };

static bool within(int64_t value, int64_t least, int64_t most)
{
    return value >= least && value <= most;
}

// What up_config_check, which trusts the option table's bounds, does not look at.
static bool plausible(const struct up_config *c)
{
    const struct up_model *m = &c->model;
    const int64_t widths[] = {m->hidden, m->ff, m->vocab, m->head_dim};
    for (int i = 0; i < UP_COUNT(widths); i++)
        if (!within(widths[i], 1, 1 << 24)) return false;
    return within(m->layers, 1, MAX_LAYERS) && within(m->heads, 1, MAX_HEADS) &&
           within(m->kv_heads, 1, m->heads) && within(c->batch, 1, MAX_BATCH) &&
           within(c->accum, 1, MAX_BATCH) && within(c->cp, 1, 1 << 20) &&
           within(c->dp, 1, 1 << 20) && within(up_config_ranks(c), 1, 1 << 20) &&
           within(c->seq, 1, (int64_t)1 << 40) && within(c->attn_layers, 1, m->layers) &&
           within(c->offload_layers, 0, m->layers) && within(c->upipe, 0, m->heads) &&
           within(c->active_layers, 0, m->layers) && within(c->tile_mlp, 0, INT64_MAX) &&
           within(c->tile_attn, 0, INT64_MAX) && within(c->tile_loss, 0, INT64_MAX);
}

static enum up_status read_config(const json_t *object, const char *name, struct up_config *config)
{
    static const char *const checkpoints[] = {"none", "block", "attn"};
    int as = index_of(word(object, "as"), up_device_kind_names, UP_DEVICE_KIND_COUNT);
    int dtype = index_of(word(object, "dtype"), up_dtype_names, UP_DTYPE_COUNT);
    int checkpoint = index_of(word(object, "checkpoint"), checkpoints, UP_COUNT(checkpoints));
    bool kind =
        (as == UP_DEVICE_CPU && dtype == UP_F32) || (as == UP_DEVICE_CUDA && dtype == UP_BF16);
    if (!kind || checkpoint < 0) return UP_USAGE;
    *config = (struct up_config){.model = read_model(json_object_get(object, "model"), name),
                                 .as = (enum up_device_kind)as,
                                 .dtype = (enum up_dtype)dtype,
                                 .seq = number(object, "seq"),
                                 .batch = number(object, "batch"),
                                 .accum = number(object, "accum"),
                                 .cp = number(object, "cp"),
                                 .dp = number(object, "dp"),
                                 .fsdp = json_is_true(json_object_get(object, "fsdp")),
                                 .optimizer_host =
                                     json_is_true(json_object_get(object, "optimizer_host")),
                                 .checkpoint = (enum up_checkpoint)checkpoint,
                                 .attn_layers = number(object, "attn_layers"),
                                 .offload_layers = number(object, "offload_layers"),
                                 .tile_mlp = number(object, "tile_mlp"),
                                 .tile_loss = number(object, "tile_loss"),
                                 .tile_attn = number(object, "tile_attn"),
                                 .upipe = number(object, "upipe")};
    // Recorded where it is not all of them.
    if (json_object_get(object, "active_layers"))
        config->active_layers = number(object, "active_layers");
    if (config->checkpoint != UP_CHECKPOINT_ATTN) config->attn_layers = up_config_layers(config);
    if (config->upipe == config->model.heads) config->upipe = 0;
    return plausible(config) ? UP_OK : UP_USAGE;
}

/* --- The options ---------------------------------------------------------------------------------
 */

// Values that this upipe does not understand are left at their defaults.
static void read_options(const json_t *object, struct up_train_options *options)
{
    struct up_arguments arguments;
    up_train_options_parse(options, 0, NULL, &arguments, NULL);
    for (const struct up_option *option = up_train_option_table; option->name; option++) {
        const char *text = json_string_value(json_object_get(object, option->name));
        if (!text || (option->kind == UP_OPTION_FLAG && strcmp(text, "yes") != 0)) continue;
        if (option->kind == UP_OPTION_SPAN && !strcmp(text, "-1:-1")) continue;
        up_option_set(option, text, options, NULL);
    }
}

static enum up_status read_machine(const json_t *object, struct up_stored_run *run,
                                   struct up_error *err)
{
    enum up_status rc = up_machine_find("generic", &run->machine, err);
    run->has_machine = json_is_object(object);
    if (!rc && run->has_machine) up_machine_take_json(&run->machine, object);
    return rc;
}

enum up_status up_stored_run_read(const char *text, const char *source, struct up_stored_run *run,
                                  struct up_error *err)
{
    enum up_status rc = UP_OK;
    json_error_t error = {0};
    *run = (struct up_stored_run){.root = json_loads(text, 0, &error)};
    if (!run->root && json_error_code(&error) == json_error_out_of_memory)
        UP_TRY(up_fail(err, UP_FAILED, "%s: out of host memory", source));
    read_options(json_object_get(run->root, "options"), &run->options);
    if (read_config(json_object_get(run->root, "config"),
                    run->options.model ? run->options.model : "", &run->config))
        UP_TRY(up_fail(err, UP_USAGE,
                       "%s: its config is not one that can be run again: expected what "
                       "upipe-train records",
                       source));
    UP_TRY(up_model_check(&run->config.model, source, err));
    if (up_config_check(&run->config, err)) {
        up_error_prefix(err, "%s: its config", source);
        UP_TRY(UP_USAGE);
    }
    run->config.own_attention = run->options.deterministic;
    if (!up_config_can_be_forecast(&run->config))
        UP_TRY(up_fail(err, UP_USAGE, "%s: its steps have too many operations to be run again",
                       source));
    UP_TRY(read_machine(json_object_get(run->root, "machine"), run, err));
out:
    if (rc) up_stored_run_release(run);
    return rc;
}

void up_stored_run_release(struct up_stored_run *run)
{
    json_decref(run->root);
    run->root = NULL;
}

/* --- The command ---------------------------------------------------------------------------------
 */

static bool is_plain(const char *text)
{
    for (const char *c = text; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("-_./:,=+@%", *c)) return false;
    return *text != 0;
}

void up_put_word(FILE *out, const char *text)
{
    if (is_plain(text)) {
        fputs(text, out);
        return;
    }
    fputc('\'', out);
    for (const char *c = text; *c; c++) {
        if (*c == '\'')
            fputs("'\\''", out);
        else
            fputc(*c, out);
    }
    fputc('\'', out);
}

// Tells the same as other options do, or is the run's own business.
static bool is_left_out(const char *name)
{
    static const char *const names[] = {"stack", "ranks", "as", "no-admission"};
    return index_of(name, names, UP_COUNT(names)) >= 0;
}

static void put_option(FILE *out, const struct up_option *option,
                       const struct up_train_options *options)
{
    char value[4096];
    if (!up_option_text(option, options, value, sizeof value)) return;
    if (option->kind == UP_OPTION_FLAG) {
        if (!strcmp(value, "yes")) fprintf(out, " --%s", option->name);
        return;
    }
    int64_t count;
    if (option->kind == UP_OPTION_SIZE && up_parse_integer(value, &count))
        up_format_count(value, count);
    // "%.17g" is exact, and not how people write.
    double real;
    if (option->kind == UP_OPTION_REAL && up_parse_real(value, &real)) {
        char brief[64];
        snprintf(brief, sizeof brief, "%g", real);
        if (strtod(brief, NULL) == real) snprintf(value, sizeof value, "%s", brief);
    }
    fprintf(out, " --%s ", option->name);
    up_put_word(out, value);
}

// Whether the value is what the option has where it is not given.
static bool is_default(const struct up_option *option, const struct up_train_options *options,
                       const struct up_train_options *defaults)
{
    char value[4096], usual[4096];
    const char *a = up_option_text(option, options, value, sizeof value);
    const char *b = up_option_text(option, defaults, usual, sizeof usual);
    return !a || (b && !strcmp(a, b));
}

// Options whose default is worked out, with what it comes to; the model's own number of layers.
static void settle_defaults(struct up_train_options *defaults, const struct up_stored_run *run)
{
    struct up_model model;
    const char *name = run->options.model ? run->options.model : "tiny";
    defaults->model = "tiny";
    defaults->checkpoint = (struct up_counted){0, 0};
    defaults->offload = (struct up_counted){0, 0};
    defaults->fsdp = defaults->optimizer = 0;
    defaults->tile_mlp = defaults->tile_loss = defaults->tile_attn = defaults->upipe = 0;
    defaults->cp = defaults->dp = 1;
    defaults->dtype = up_train_device(&run->options) != UP_DEVICE_CPU;
    // A folder is taken whole unless the run says otherwise, which only its config.json could tell.
    defaults->layers = up_model_preset(name, &model) ? model.layers : 0;
}

// What the run wrote and the next one is not to write over, nor into: "run.db" becomes
// "run.next.db", the folder "saves" "saves.next". False when memory is short.
static bool take_next(const char *path, bool folder, char **next)
{
    size_t length = path ? strlen(path) : 0;
    if (!path || !strncmp(path, "/dev/", 5)) return true;
    while (folder && length > 1 && path[length - 1] == '/') length--;
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const char *dot = folder || !*name ? NULL : strrchr(name + 1, '.'); // ".db" is a name
    int stem = (int)(dot ? (size_t)(dot - path) : length);
    *next = malloc(length + sizeof ".next");
    if (*next) sprintf(*next, "%.*s.next%s", stem, path, dot ? dot : "");
    return *next != NULL;
}

struct next_names {
    char *trace, *json_log, *save; // NULL: as they are
};

// A save goes on in the sequences that it was made with; for others there are its weights.
static void take_resume(const struct up_stored_run *run, const struct up_config *config,
                        struct up_train_options *options)
{
    const struct up_config *own = &run->config;
    if (!options->resume ||
        (config->seq == own->seq &&
         config->dp * config->accum * config->batch == own->dp * own->accum * own->batch))
        return;
    options->model = options->resume;
    options->resume = NULL;
}

static void put_command(FILE *out, const struct up_stored_run *run, const struct up_config *config,
                        const struct next_names *names)
{
    struct up_train_options options = run->options, defaults;
    struct up_arguments arguments;
    if (names->trace) options.trace = names->trace;
    if (names->json_log) options.json_log = names->json_log;
    if (names->save) options.save = names->save;
    options.seq = config->seq;
    options.batch = config->batch;
    options.accum = config->accum;
    take_resume(run, config, &options);
    up_train_options_settle(&options, config);
    up_train_options_parse(&defaults, 0, NULL, &arguments, NULL);
    settle_defaults(&defaults, run);
    fputs("upipe-train", out);
    for (const struct up_option *option = up_train_option_table; option->name; option++)
        if (!is_left_out(option->name) && !is_default(option, &options, &defaults))
            put_option(out, option, &options);
}

char *up_stored_command(const struct up_stored_run *run, const struct up_config *config)
{
    const struct up_train_options *options = &run->options;
    struct next_names names = {0};
    char *text = NULL;
    size_t size = 0;
    bool named = take_next(options->trace, false, &names.trace) &&
                 take_next(options->json_log, false, &names.json_log) &&
                 take_next(options->save, true, &names.save);
    FILE *out = named ? open_memstream(&text, &size) : NULL;
    if (out) put_command(out, run, config, &names);
    free(names.trace);
    free(names.json_log);
    free(names.save);
    if (out && !fclose(out)) return text;
    free(text);
    return NULL;
}
