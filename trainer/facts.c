#include "trainer/facts.h"
#include "ops/attention.h"
#include "trainer/forecast/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* --- The config ----------------------------------------------------------------------------------
 */

// A path need not be UTF-8, which JSON must be: then what is not ASCII becomes '?'.
static json_t *text_json(char *text)
{
    json_t *value = json_string(text);
    for (char *at = text; !value && *at; at++)
        if (*at < ' ' || *at > '~') *at = '?';
    return value ? value : json_string(text);
}

static json_t *options_json(const struct up_train_options *options)
{
    json_t *root = json_object();
    for (const struct up_option *option = up_train_option_table; root && option->name; option++) {
        char text[4096];
        bool given = up_option_text(option, options, text, sizeof text);
        if (!json_object_set_new(root, option->name, given ? text_json(text) : json_null()))
            continue;
        json_decref(root);
        return NULL;
    }
    return root;
}

// Takes `text`, which may be NULL for want of memory, and gives what it says.
static json_t *take_json(char *text)
{
    json_t *value = text ? json_loads(text, 0, NULL) : NULL;
    free(text);
    return value;
}

// "config": model, run config, every option and the machine, so that reports need nothing else.
// NULL when memory is short.
static char *config_text(const struct up_about *about)
{
    struct up_train_options settled = *about->options;
    up_train_options_settle(&settled, about->config);
    json_t *root = json_object();
    int failed = json_object_set_new(root, "config", take_json(up_config_json(about->config)));
    failed |= json_object_set_new(root, "options", options_json(&settled));
    const struct up_config *config = about->config;
    bool cudnn = config->as == UP_DEVICE_CUDA && !config->own_attention &&
                 up_attention_on_cudnn(config->model.head_dim);
    failed |= json_object_set_new(root, "attention", json_string(cudnn ? "cudnn" : "own"));
    failed |= json_object_set_new(root, "machine", take_json(up_machine_json(about->machine)));
    char *text = failed ? NULL : json_dumps(root, JSON_COMPACT);
    json_decref(root);
    return text;
}

/* --- Rows ---------------------------------------------------------------------------------------
 */

static void add_text(struct up_facts *facts, const char *key, const char *value)
{
    UP_ASSERT(facts->count < UP_COUNT(facts->entry));
    facts->entry[facts->count++] = (struct up_store_meta){key, value};
}

static void add_number(struct up_facts *facts, const char *key, int64_t value)
{
    char *text = facts->value[facts->count];
    snprintf(text, sizeof facts->value[0], "%lld", (long long)value);
    add_text(facts, key, text);
}

static void add_identity(struct up_facts *facts)
{
    time_t now = time(NULL);
    struct tm utc;
    char *started = facts->value[facts->count];
    strftime(started, sizeof facts->value[0], "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    add_text(facts, "started", started);
    char *id = facts->value[facts->count];
    snprintf(id, sizeof facts->value[0], "%016llx",
             (unsigned long long)up_random_u64((uint64_t)up_clock_ns(), (uint64_t)now,
                                               (uint64_t)getpid()));
    add_text(facts, "run_id", id);
}

bool up_facts_collect(struct up_facts *facts, const struct up_about *about)
{
    const struct up_config *c = about->config;
    *facts = (struct up_facts){.config = config_text(about)};
    if (!facts->config) return false;
    add_text(facts, "command", about->command);
    add_text(facts, "config", facts->config);
    char *hash = facts->value[facts->count];
    if (!up_config_hash(c, hash)) return false;
    add_text(facts, "config_hash", hash);
    add_identity(facts);
    add_text(facts, "model", c->model.name);
    add_text(facts, "device", up_device_kind_names[about->device]);
    add_text(facts, "as", up_device_kind_names[c->as]);
    add_text(facts, "dtype", up_dtype_names[c->dtype]);
    add_number(facts, "ranks", up_config_ranks(c));
    add_number(facts, "process", about->launch->process);
    add_number(facts, "processes", about->launch->processes);
    add_number(facts, "cp", c->cp);
    add_number(facts, "dp", c->dp);
    add_number(facts, "seq_len", c->seq);
    add_number(facts, "batch", c->batch);
    add_number(facts, "accum", c->accum);
    add_number(facts, "parameters", up_model_parameters(&c->model));
    add_number(facts, "steps_planned", about->steps);
    return true;
}

void up_facts_release(struct up_facts *facts)
{
    free(facts->config);
    facts->config = NULL;
}
