/* A reference model of tests/data with a trainer on it: weights, tokens, and what PyTorch computed
 * in fp64 (expected.json, grads.safetensors). */
#ifndef UP_TESTS_TRAINER_FIXTURE_H
#define UP_TESTS_TRAINER_FIXTURE_H

#include "mem/arena.h"
#include "model/data.h"
#include "trainer/forecast/dry_rank.h"
#include "trainer/forecast/forecaster.h"
#include "trainer/forecast/machine.h"
#include "trainer/forecast/plan.h"
#include "trainer/group.h"
#include "trainer/step/state.h"
#include "trainer/step/step.h"

#include "tests/print.h"

#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static const char *const fixture_names[] = {"tiny-llama3", "tiny-llama31-scaled-rope", "tiny-qwen3",
                                            "small-llama3-d128"};

#define must(call)                                                                                 \
    do {                                                                                           \
        if ((call) != UP_OK) fail_msg("%s", error.text);                                           \
    } while (0)

enum { MAX_RANKS = 16 };

/* One rank's trainer. */
struct member {
    struct bench *bench;
    struct up_seat *seat;
    struct up_rank rank;
    struct up_trainer trainer;
    struct up_trainer_plan plan;
    pthread_t thread;
    struct up_error error;
    enum up_status status;
};

/* All ranks of a config (on dry rank 0 alone), each with a thread while bench_run runs. */
struct bench {
    struct up_config config;
    struct up_train_options options;
    struct up_group group;
    int count;
    struct member member[MAX_RANKS];
    enum up_status (*run)(struct member *member, void *argument);
    void *argument;
};

static inline struct up_config plain_config(void)
{
    return (struct up_config){
        .as = UP_DEVICE_CPU, .dtype = UP_F32, .batch = 1, .accum = 1, .cp = 1, .dp = 1};
}

/* The same of so many blocks of a real model, as on a GPU. */
static inline struct up_config blocks_of_llama3_8b(int64_t layers)
{
    struct up_config config = plain_config();
    assert_true(up_model_preset("llama3-8b", &config.model));
    config.model.layers = layers;
    config.as = UP_DEVICE_CUDA;
    config.dtype = UP_BF16;
    return config;
}

static inline void *bench_thread(void *argument)
{
    struct member *member = argument;
    struct up_seat *seat = member->seat;
    up_device_bind(seat->device);
    member->status = member->bench->run(member, member->bench->argument);
    if (member->status) {
        if (seat->world) up_comm_abort(seat->world, member->error.text);
        if (seat->cp) up_comm_abort(seat->cp, member->error.text);
    }
    return NULL;
}

/* Runs `run` on every rank at once; the first failure's status and text. */
static inline enum up_status bench_try(struct bench *bench,
                                       enum up_status (*run)(struct member *, void *),
                                       void *argument, struct up_error *error)
{
    bench->run = run;
    bench->argument = argument;
    for (int r = 1; r < bench->count; r++)
        assert_int_equal(
            pthread_create(&bench->member[r].thread, NULL, bench_thread, &bench->member[r]), 0);
    bench_thread(&bench->member[0]);
    for (int r = 1; r < bench->count; r++) pthread_join(bench->member[r].thread, NULL);
    for (int r = 0; r < bench->count; r++)
        if (bench->member[r].status) {
            *error = bench->member[r].error;
            return bench->member[r].status;
        }
    return UP_OK;
}

static inline void bench_run(struct bench *bench, enum up_status (*run)(struct member *, void *),
                             void *argument)
{
    struct up_error error = {0};
    must(bench_try(bench, run, argument, &error));
}

static inline enum up_status bench_init_member(struct member *member, void *argument)
{
    enum up_status rc = UP_OK;
    struct up_error *err = &member->error;
    struct bench *bench = member->bench;
    int number = (int)(member - bench->member);
    struct up_trace *const *traces = argument;
    UP_TRY(up_group_join(&bench->group, member->seat, err));
    UP_TRY(up_rank_init(&member->rank, number, member->seat->device, traces ? traces[number] : NULL,
                        NULL, err));
    UP_TRY(up_trainer_init(&member->trainer, &member->rank, &bench->config, member->seat->world,
                           member->seat->cp, err));
    UP_TRY(up_trainer_plan(&bench->config, number, NULL, &member->plan, err));
out:
    return rc;
}

/* A bench whose group is yet to be opened, */
static inline void bench_prepare(struct bench *bench, const struct up_config *config,
                                 const struct up_train_options *options)
{
    struct up_error error = {0};
    memset(bench, 0, sizeof *bench);
    bench->config = *config;
    if (!bench->config.attn_layers) bench->config.attn_layers = config->model.layers;
    bench->options = *options;
    must(up_config_check(&bench->config, &error));
}

/* and then its members. `traces`: a ring per rank, or NULL. */
static inline void bench_seat(struct bench *bench, struct up_trace *const *traces)
{
    bench->count = bench->group.count;
    assert_true(bench->count <= MAX_RANKS);
    for (int r = 0; r < bench->count; r++) {
        bench->member[r].bench = bench;
        bench->member[r].seat = &bench->group.seat[r];
    }
    bench_run(bench, bench_init_member, (void *)traces);
}

static inline void bench_open_with(struct bench *bench, const struct up_config *config,
                                   const struct up_train_options *options,
                                   struct up_trace *const *traces)
{
    struct up_error error = {0};
    struct up_machine machine;
    bench_prepare(bench, config, options);
    must(up_machine_find("generic", &machine, &error));
    must(up_group_open(&bench->group, &bench->options, &bench->config, &machine, NULL, &error));
    bench_seat(bench, traces);
}

static inline void bench_open_traced(struct bench *bench, const struct up_config *config,
                                     enum up_device_kind kind, uint64_t chaos_seed,
                                     struct up_trace *const *traces)
{
    struct up_train_options options = {.device = (int)kind, .chaos = (int64_t)chaos_seed};
    bench_open_with(bench, config, &options, traces);
}

static inline void bench_open(struct bench *bench, const struct up_config *config,
                              enum up_device_kind kind, uint64_t chaos_seed)
{
    bench_open_traced(bench, config, kind, chaos_seed, NULL);
}

static inline void bench_close(struct bench *bench)
{
    for (int r = 0; r < bench->count; r++) {
        struct member *member = &bench->member[r];
        up_device_bind(member->seat->device);
        for (int s = 0; s < UP_STREAM_COUNT; s++)
            up_stream_synchronize(&member->rank, (enum up_stream)s);
        up_trainer_release(&member->trainer);
        assert_int_equal(member->rank.unplanned, 0);
        up_rank_release(&member->rank);
        up_trainer_plan_release(&member->plan);
    }
    up_group_close(&bench->group);
}

/* On the generic machine, with one thread. */
static inline struct up_forecaster *forecaster_open(void)
{
    struct up_error error = {0};
    struct up_machine machine;
    must(up_machine_find("generic", &machine, &error));
    struct up_forecaster *forecaster = up_forecaster_create(&machine, 1);
    assert_non_null(forecaster);
    return forecaster;
}

/* What no plan of a rank's step can be lower than. */
static inline void live_peaks(const struct up_config *config, int rank,
                              int64_t peak[UP_SPACE_COUNT])
{
    struct up_error error = {0};
    struct up_machine machine;
    struct up_dry_rank dry;
    struct up_step_lives lives = {0};
    must(up_machine_find("generic", &machine, &error));
    must(up_dry_rank_open(&dry, config, &machine, rank, false, &error));
    up_rank_record_lives(&dry.rank, &lives);
    must(up_dry_rank_step(&dry, 0, &error));
    for (int space = 0; space < UP_SPACE_COUNT; space++)
        peak[space] = up_plan_live_peak(lives.life[space], lives.count[space], UP_ARENA_ALIGN);
    up_dry_rank_close(&dry);
    up_step_lives_release(&lives);
}

/* A fixture's files. */
struct fixture {
    char folder[LONG_PATH];
    struct up_model model;
    int64_t seq;
    json_t *expected;
};

static inline void fixture_open(struct fixture *fixture, const char *name)
{
    struct up_error error = {0};
    json_error_t json_error;
    char path[LONG_PATH + 32];
    print_to(fixture->folder, sizeof fixture->folder, "%s/%s", UP_TEST_DATA, name);
    must(up_model_read_config(fixture->folder, &fixture->model, &error));
    print_to(path, sizeof path, "%s/expected.json", fixture->folder);
    fixture->expected = json_load_file(path, 0, &json_error);
    assert_non_null(fixture->expected);
    fixture->seq = json_integer_value(json_object_get(fixture->expected, "seq"));
}

static inline void fixture_close(struct fixture *fixture)
{
    json_decref(fixture->expected);
}

static inline double fixture_number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static inline enum up_status fixture_load_member(struct member *member, void *weights)
{
    return up_state_load(&member->trainer.units, weights, &member->error);
}

static inline void fixture_load_weights(const struct fixture *fixture, struct bench *bench)
{
    struct up_error error = {0};
    struct up_weights *weights = NULL;
    must(up_weights_open(fixture->folder, &fixture->model, &weights, &error));
    bench_run(bench, fixture_load_member, weights);
    up_weights_close(weights);
}

/* The windows of `step` into every rank's staging; returns the targets that count in all. */
static inline int64_t fixture_load_tokens(const struct fixture *fixture, struct bench *bench,
                                          int64_t step)
{
    struct up_error error = {0};
    struct up_data *data = NULL;
    char path[LONG_PATH + 32];
    int64_t counted = 0;
    const struct up_config *c = &bench->config;
    print_to(path, sizeof path, "%s/tokens.i32", fixture->folder);
    must(up_data_open(path, UP_DATA_I32, c->seq, fixture->model.vocab, &data, &error));
    for (int r = 0; r < bench->count; r++) {
        const struct up_trainer *trainer = &bench->member[r].trainer;
        for (int64_t i = 0; i < c->accum * c->batch; i++) {
            int64_t a = i / c->batch, b = i % c->batch, here = 0;
            int64_t k = ((step * c->accum + a) * c->dp + trainer->dp_rank) * c->batch + b;
            must(up_data_slice(data, k, up_config_first_token(c, trainer->cp_rank),
                               up_config_tokens(c, trainer->cp_rank),
                               up_trainer_inputs(trainer, a, b), up_trainer_targets(trainer, a, b),
                               &here, &error));
            counted += here;
        }
    }
    up_data_close(data);
    return counted;
}

/* Before the first step, when all that outlives steps is there. */
static inline enum up_status use_plan(struct member *member)
{
    enum up_status rc = UP_OK;
    struct up_error *err = &member->error;
    if (member->rank.plan) return UP_OK;
    UP_TRY(up_rank_use_plan(&member->rank, &member->plan.step, err));
    UP_TRY(up_group_prepare(&member->bench->group, &member->rank, member->plan.rehearsal, err));
out:
    return rc;
}

struct gradients_call {
    int64_t counted;
    struct up_step_result result; // rank 0's; equal on all
};

static inline enum up_status run_gradients(struct member *member, void *argument)
{
    struct gradients_call *call = argument;
    struct up_step_result result;
    enum up_status rc = use_plan(member);
    if (!rc) rc = up_trainer_gradients(&member->trainer, call->counted, &result, &member->error);
    if (member == member->bench->member) call->result = result;
    return rc;
}

struct step_call {
    int64_t step, counted;
    const struct up_hyper *hyper;
    struct up_step_result result;
};

static inline enum up_status run_step(struct member *member, void *argument)
{
    struct step_call *call = argument;
    struct up_step_result result;
    enum up_status rc = use_plan(member);
    if (!rc)
        rc = up_trainer_step(&member->trainer, call->step, call->counted, call->hyper, &result,
                             &member->error);
    if (member == member->bench->member) call->result = result;
    return rc;
}

/* Elements [at, at + count) of an fp32 tensor on a rank's device. */
static inline void read_device(struct member *member, float *out, const struct up_tensor *tensor,
                               int64_t at, int64_t count)
{
    struct up_device *device = member->seat->device;
    up_device_bind(device);
    device->ops->copy(device, UP_STREAM_COMPUTE, out, UP_SPACE_HOST,
                      (const float *)tensor->data + at, tensor->space,
                      count * (int64_t)sizeof *out);
    up_stream_synchronize(&member->rank, UP_STREAM_COMPUTE);
}

/* The whole gradient of a parameter, put together from the ranks' shares. */
static inline void collect_gradient(struct bench *bench, const struct up_param *param, float *out)
{
    for (int r = 0; r < bench->count; r++) {
        const struct up_unit *unit = up_units_of(&bench->member[r].trainer.units, param);
        struct up_part part = up_unit_part(unit, param);
        if (part.count)
            read_device(&bench->member[r], out + part.first, unit->grads, part.at, part.count);
    }
}

/* Those of all parameters, one after the other; to be freed. */
static inline float *collect_gradients(struct bench *bench, const struct up_model *model)
{
    float *all = calloc((size_t)up_model_parameters(model), sizeof *all), *out = all;
    assert_non_null(all);
    for (int i = 0; i < up_model_param_count(model); i++) {
        struct up_param param = up_model_param(model, i);
        collect_gradient(bench, &param, out);
        out += param.rows * param.cols;
    }
    return all;
}

/* The reference gradients, opened as if they were a model's weights. */
static inline struct up_weights *fixture_open_gradients(const struct fixture *fixture)
{
    struct up_error error = {0};
    struct up_weights *gradients = NULL;
    char folder[] = "/tmp/upipe-test-XXXXXX", from[LONG_PATH + 32], to[64];
    assert_non_null(mkdtemp(folder));
    print_to(from, sizeof from, "%s/grads.safetensors", fixture->folder);
    snprintf(to, sizeof to, "%s/model.safetensors", folder);
    assert_int_equal(symlink(from, to), 0);
    must(up_weights_open(folder, &fixture->model, &gradients, &error));
    unlink(to);
    rmdir(folder);
    return gradients;
}

static inline double relative_error(const float *got, const float *expected, int64_t count)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += ((double)got[i] - expected[i]) * ((double)got[i] - expected[i]);
        norm += (double)expected[i] * expected[i];
    }
    return sqrt(difference / (norm > 0 ? norm : 1));
}

/* The largest relative error of any parameter's gradient. */
static inline double gradient_error(const struct fixture *fixture, struct bench *bench,
                                    const char **worst)
{
    struct up_error error = {0};
    static char name[96];
    double largest = 0;
    struct up_weights *gradients = fixture_open_gradients(fixture);
    for (int i = 0; i < up_model_param_count(&fixture->model); i++) {
        struct up_param param = up_model_param(&fixture->model, i);
        int64_t count = param.rows * param.cols;
        float *expected = malloc((size_t)count * sizeof *expected);
        float *got = malloc((size_t)count * sizeof *got);
        must(up_weights_read(gradients, &param, 0, count, expected, &error));
        collect_gradient(bench, &param, got);
        double relative = relative_error(got, expected, count);
        free(got);
        // NaN must not pass for small.
        if (!(relative <= largest)) {
            largest = relative;
            snprintf(name, sizeof name, "%s", param.hf_name);
        }
        free(expected);
    }
    up_weights_close(gradients);
    *worst = name;
    return largest;
}

#endif
