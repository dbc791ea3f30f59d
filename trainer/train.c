#include "trainer/train.h"
#include "model/data.h"
#include "profiler/recorder.h"
#include "trainer/log.h"
#include "trainer/machine.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Everything a run holds, in the order in which it is opened.
struct run {
    const struct up_train_options *options;
    struct up_config config;
    struct up_machine machine; // dry only
    struct up_data *data;
    struct up_weights *weights;
    struct up_log log;
    struct up_device *device;
    struct up_recorder *recorder;
    struct up_rank rank;
    struct up_trainer trainer;
    bool rank_ready, trainer_ready;
};

static bool is_dry(const struct run *run) { return up_train_device(run->options) == UP_DEVICE_DRY; }

/* --- Opening ------------------------------------------------------------------------------------ */

// A file of another format than it is said to be shows in its first window, before anything is written.
static enum up_status try_first_window(const struct run *run, struct up_error *err)
{
    int64_t counted = 0, seq = run->config.seq;
    int32_t *tokens = malloc((size_t)seq * 2 * sizeof *tokens);
    if (!tokens) return up_fail(err, UP_FAILED, "out of host memory");
    enum up_status rc = up_data_window(run->data, 0, tokens, tokens + seq, &counted, err);
    free(tokens);
    return rc;
}

static enum up_status open_inputs(struct run *run, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct up_train_options *options = run->options;
    const struct up_model *model = &run->config.model;
    bool folder = false;
    UP_TRY(up_train_options_resolve(options, &run->config, &folder, err));
    if (is_dry(run)) {
        UP_TRY(up_machine_find(options->machine, &run->machine, err));
        goto out;
    }
    if (!options->data)
        UP_TRY(up_fail(err, UP_USAGE, "--data: expected a file to train on (or --device dry)"));
    UP_TRY(up_data_open(options->data, (enum up_data_format)options->data_format, options->seq,
                        model->vocab, &run->data, err));
    UP_TRY(try_first_window(run, err));
    if (folder) UP_TRY(up_weights_open(options->model, model, &run->weights, err));
out:
    return rc;
}

static enum up_status open_device(struct run *run, struct up_error *err)
{
    const struct up_train_options *options = run->options;
    run->device = is_dry(run)
                      ? up_device_dry_create(run->config.as, &run->machine, err)
                      : up_device_cpu_create((int)options->threads, (uint64_t)options->chaos, err);
    return run->device ? UP_OK : err->status;
}

// meta.config: model, run config, every option and the machine, so that reports need nothing else.
static char *config_text(const struct run *run)
{
    char *config = up_config_json(&run->config), *machine = up_machine_json(&run->machine);
    json_t *root = json_object(), *options = json_object();
    for (const struct up_option *option = up_train_option_table; option->name; option++) {
        char text[4096];
        const char *value = up_option_text(option, run->options, text, sizeof text);
        json_object_set_new(options, option->name, value ? json_string(value) : json_null());
    }
    json_object_set_new(root, "config", json_loads(config ? config : "{}", 0, NULL));
    json_object_set_new(root, "options", options);
    if (is_dry(run)) json_object_set_new(root, "machine", json_loads(machine ? machine : "{}", 0, NULL));
    json_object_set_new(root, "attention", json_string("own"));
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    free(config);
    free(machine);
    return text;
}

// Name=value pairs with storage for the values.
struct facts {
    struct up_store_meta entry[24];
    char value[24][64];
    int count;
};

static void add_text(struct facts *facts, const char *key, const char *value)
{
    UP_ASSERT(facts->count < UP_COUNT(facts->entry));
    facts->entry[facts->count++] = (struct up_store_meta){key, value};
}

static void add_number(struct facts *facts, const char *key, int64_t value)
{
    char *text = facts->value[facts->count];
    snprintf(text, sizeof facts->value[0], "%lld", (long long)value);
    add_text(facts, key, text);
}

static void add_identity(struct facts *facts)
{
    time_t now = time(NULL);
    struct tm utc;
    char *started = facts->value[facts->count];
    strftime(started, sizeof facts->value[0], "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    add_text(facts, "started", started);
    char *id = facts->value[facts->count];
    snprintf(id, sizeof facts->value[0], "%016llx",
             (unsigned long long)up_random_u64((uint64_t)up_clock_ns(), (uint64_t)now, (uint64_t)getpid()));
    add_text(facts, "run_id", id);
}

static void collect_facts(const struct run *run, const char *command, const char *config,
                          struct facts *facts)
{
    const struct up_config *c = &run->config;
    add_text(facts, "command", command);
    add_text(facts, "config", config);
    char *hash = facts->value[facts->count];
    up_config_hash(c, hash);
    add_text(facts, "config_hash", hash);
    add_identity(facts);
    add_text(facts, "model", c->model.name);
    add_text(facts, "device", up_device_kind_names[run->device->kind]);
    add_text(facts, "as", up_device_kind_names[c->as]);
    add_text(facts, "dtype", up_dtype_names[c->dtype]);
    add_number(facts, "ranks", up_config_ranks(c));
    add_number(facts, "cp", c->cp);
    add_number(facts, "dp", c->dp);
    add_number(facts, "seq_len", c->seq);
    add_number(facts, "batch", c->batch);
    add_number(facts, "accum", c->accum);
    add_number(facts, "parameters", up_model_parameters(&c->model));
    add_number(facts, "steps_planned", run->options->steps);
}

// The ring for rank 0, in *trace; NULL without --trace.
static enum up_status open_trace(struct run *run, const char *command, struct up_trace **trace,
                                 struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct facts facts = {0};
    *trace = NULL;
    if (!run->options->trace) return UP_OK;
    char *config = config_text(run);
    if (!config) UP_TRY(up_fail(err, UP_FAILED, "out of host memory"));
    collect_facts(run, command, config, &facts);
    int64_t capacity =
        is_dry(run) ? run->machine.device_bytes : run->device->capacity[UP_SPACE_DEVICE];
    UP_TRY(up_recorder_create(run->options->trace, run->options->trace_steps, facts.entry, facts.count,
                              &run->recorder, err));
    *trace = up_recorder_add_rank(run->recorder, 0, run->device->name, capacity ? capacity : -1);
    if (!*trace) UP_TRY(up_fail(err, UP_FAILED, "out of host memory"));
    UP_TRY(up_recorder_start(run->recorder, err));
out:
    free(config);
    return rc;
}

static void say_hello(const struct run *run)
{
    const struct up_config *c = &run->config;
    char seq[UP_UNITS_TEXT];
    printf("%s: %.4g M parameters, %s on %s, %lld x %s tokens a step\n", c->model.name,
           (double)up_model_parameters(&c->model) / 1e6, up_dtype_names[c->dtype], run->device->name,
           (long long)c->batch, up_format_count(seq, c->seq));
    if (run->weights) {
        char bytes[UP_UNITS_TEXT];
        printf("weights: %s of %s%s%s\n",
               up_format_bytes(bytes, (uint64_t)up_weights_bytes(run->weights)),
               up_weights_dtype(run->weights), up_weights_note(run->weights) ? "; " : "",
               up_weights_note(run->weights) ? up_weights_note(run->weights) : "");
    }
    fflush(stdout);
}

// Everything that can be found wrong with the options is found here.
static enum up_status open_run(struct run *run, const char *command, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct up_trace *trace = NULL;
    const struct up_train_options *options = run->options;
    UP_TRY(open_inputs(run, err));
    UP_TRY(open_device(run, err));
    UP_TRY(up_log_init(&run->log, options->json_log, options->steps, is_dry(run), err));
    UP_TRY(open_trace(run, command, &trace, err));
    UP_TRY(up_log_start(&run->log, err));
    UP_TRY(up_rank_init(&run->rank, 0, run->device, trace, NULL, err));
    run->rank_ready = true;
out:
    if (rc) up_log_cancel(&run->log);
    return rc;
}

/* --- Running ------------------------------------------------------------------------------------ */

static enum up_status start(struct run *run, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct up_model *model = &run->config.model;
    UP_TRY(up_trainer_init(&run->trainer, &run->rank, &run->config, err));
    run->trainer_ready = true;
    struct up_units *units = &run->trainer.units;
    UP_TRY(run->weights ? up_units_load(units, &run->rank, model, run->weights, err)
                        : up_units_randomise(units, &run->rank, model, (uint64_t)run->options->seed,
                                             err));
    run->trainer.progress = &run->log.progress;
out:
    return rc;
}

// The step's windows into the staging tensor; the number of targets that count.
static enum up_status read_tokens(struct run *run, int64_t step, int64_t *counted,
                                  struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct up_config *config = &run->config;
    struct up_tensor *staging = run->trainer.tokens_host;
    *counted = config->batch * config->seq;
    if (is_dry(run)) return UP_OK;
    *counted = 0;
    for (int64_t b = 0; b < config->batch; b++) {
        int64_t in_row = 0;
        int32_t *inputs = (int32_t *)staging->data + b * config->seq;
        UP_TRY(up_data_window(run->data, step * config->batch + b, inputs,
                              inputs + config->batch * config->seq, &in_row, err));
        *counted += in_row;
    }
out:
    return rc;
}

static enum up_status run_step(struct run *run, int64_t step, struct up_error *err)
{
    enum up_status rc = UP_OK;
    const struct up_train_options *o = run->options;
    struct up_hyper hyper = {.lr = up_train_lr(o, step), .beta1 = o->beta1, .beta2 = o->beta2,
                             .epsilon = o->epsilon, .decay = o->decay, .clip = o->clip};
    struct up_step_result result;
    int64_t counted = 0, begin = run->device->ops->clock_ns(run->device);
    up_log_step_begin(&run->log, step);
    UP_TRY(read_tokens(run, step, &counted, err));
    UP_TRY(up_trainer_step(&run->trainer, step, counted, &hyper, &result, err));
    int64_t end = run->device->ops->clock_ns(run->device);
    struct up_step_log line = {.step = step,
                               .loss = result.loss,
                               .grad_norm = result.grad_norm,
                               .tokens = counted,
                               .seconds = (double)(end - begin) / 1e9,
                               .peak_bytes = run->rank.usage.peak_bytes[UP_SPACE_DEVICE]};
    UP_TRY(up_log_step_end(&run->log, &line, err));
out:
    return rc;
}

static enum up_status run_steps(struct run *run, volatile const int *stop, struct up_error *err)
{
    enum up_status rc = UP_OK;
    UP_TRY(start(run, err));
    run->trainer.stop = stop;
    for (int64_t step = 0; step < run->options->steps; step++) UP_TRY(run_step(run, step, err));
out:
    return rc;
}

/* --- Closing ------------------------------------------------------------------------------------ */

// Ends the trace; a trace that had to stop early is told, and fails nothing.
static void close_trace(struct run *run, enum up_status outcome, const struct up_error *why)
{
    struct up_error error = {0};
    if (!run->recorder) return;
    bool out_of_memory = outcome && strstr(why->text, "out of") == why->text;
    up_trace_close(run->rank.trace);
    if (up_recorder_finish(run->recorder,
                           !outcome        ? "ok"
                           : out_of_memory ? "out of memory"
                                           : "failed",
                           &error))
        fprintf(stderr, "upipe-train: the trace is not whole: %s\n", error.text);
    else
        printf("trace: %s (explained by: upipe-report %s)\n", run->options->trace,
               run->options->trace);
    run->recorder = NULL;
}

static void close_run(struct run *run)
{
    if (run->trainer_ready) up_trainer_release(&run->trainer);
    up_device_destroy(run->rank_ready ? NULL : run->device);
    if (run->rank_ready) {
        for (int stream = 0; stream < UP_STREAM_COUNT; stream++)
            up_stream_synchronize(&run->rank, (enum up_stream)stream);
        up_rank_release(&run->rank);
        up_device_destroy(run->device);
    }
    up_log_release(&run->log);
    up_weights_close(run->weights);
    up_data_close(run->data);
}

enum up_status up_train(const struct up_train_options *options, const char *command,
                        volatile const int *stop, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct run run = {.options = options, .log = {.json_fd = -1}};
    UP_TRY(open_run(&run, command, err));
    say_hello(&run);
    UP_TRY(run_steps(&run, stop, err));
out:
    close_trace(&run, rc, err);
    close_run(&run);
    return rc;
}
