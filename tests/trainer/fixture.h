/* A reference model of tests/data with a trainer on it: weights, tokens, and what PyTorch computed in
 * fp64 (expected.json, grads.safetensors). */
#ifndef UP_TESTS_TRAINER_FIXTURE_H
#define UP_TESTS_TRAINER_FIXTURE_H

#include "model/data.h"
#include "trainer/machine.h"
#include "trainer/step.h"

#include <jansson.h>
#include <math.h>
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

/* A trainer with all that it stands on. */
struct bench {
    struct up_config config;
    struct up_device *device;
    struct up_rank rank;
    struct up_trainer trainer;
};

static inline struct up_config plain_config(void)
{
    return (struct up_config){.as = UP_DEVICE_CPU, .dtype = UP_F32, .batch = 1, .accum = 1, .cp = 1,
                              .dp = 1};
}

static inline void bench_open(struct bench *bench, const struct up_config *config,
                              enum up_device_kind kind, uint64_t chaos_seed)
{
    struct up_error error = {0};
    struct up_machine machine;
    bench->config = *config;
    if (!bench->config.attn_layers) bench->config.attn_layers = config->model.layers;
    must(up_machine_find("generic", &machine, &error));
    bench->device = kind == UP_DEVICE_DRY ? up_device_dry_create(config->as, &machine, &error)
                                          : up_device_cpu_create(0, chaos_seed, &error);
    assert_non_null(bench->device);
    must(up_config_check(&bench->config, &error));
    must(up_rank_init(&bench->rank, 0, bench->device, NULL, NULL, &error));
    must(up_trainer_init(&bench->trainer, &bench->rank, &bench->config, &error));
}

static inline void bench_close(struct bench *bench)
{
    for (int s = 0; s < UP_STREAM_COUNT; s++) up_stream_synchronize(&bench->rank, (enum up_stream)s);
    up_trainer_release(&bench->trainer);
    up_rank_release(&bench->rank);
    up_device_destroy(bench->device);
}

/* A fixture's files. */
struct fixture {
    char folder[512];
    struct up_model model;
    int64_t seq;
    json_t *expected;
};

static inline void fixture_open(struct fixture *fixture, const char *name)
{
    struct up_error error = {0};
    json_error_t json_error;
    char path[600];
    snprintf(fixture->folder, sizeof fixture->folder, "%s/%s", UP_TEST_DATA, name);
    must(up_model_read_config(fixture->folder, &fixture->model, &error));
    snprintf(path, sizeof path, "%s/expected.json", fixture->folder);
    fixture->expected = json_load_file(path, 0, &json_error);
    assert_non_null(fixture->expected);
    fixture->seq = json_integer_value(json_object_get(fixture->expected, "seq"));
}

static inline void fixture_close(struct fixture *fixture) { json_decref(fixture->expected); }

static inline double fixture_number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static inline void fixture_load_weights(const struct fixture *fixture, struct bench *bench)
{
    struct up_error error = {0};
    struct up_weights *weights = NULL;
    must(up_weights_open(fixture->folder, &fixture->model, &weights, &error));
    must(up_units_load(&bench->trainer.units, &bench->rank, &fixture->model, weights, &error));
    up_weights_close(weights);
}

/* Rows k, k + 1, ... of the fixture's tokens into the trainer; returns the targets that count. */
static inline int64_t fixture_load_tokens(const struct fixture *fixture, struct bench *bench, int64_t k)
{
    struct up_error error = {0};
    struct up_data *data = NULL;
    char path[600];
    int64_t counted = 0, rows = bench->config.batch, seq = bench->config.seq;
    int32_t *inputs = bench->trainer.tokens_host->data;
    snprintf(path, sizeof path, "%s/tokens.i32", fixture->folder);
    must(up_data_open(path, UP_DATA_I32, seq, fixture->model.vocab, &data, &error));
    for (int64_t row = 0; row < rows; row++) {
        int64_t in_row = 0;
        must(up_data_window(data, k + row, inputs + row * seq, inputs + (rows + row) * seq, &in_row,
                            &error));
        counted += in_row;
    }
    up_data_close(data);
    return counted;
}

/* The reference gradients, opened as if they were a model's weights. */
static inline struct up_weights *fixture_open_gradients(const struct fixture *fixture)
{
    struct up_error error = {0};
    struct up_weights *gradients = NULL;
    char folder[] = "/tmp/upipe-test-XXXXXX", from[600], to[64];
    assert_non_null(mkdtemp(folder));
    snprintf(from, sizeof from, "%s/grads.safetensors", fixture->folder);
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
        must(up_weights_read(gradients, &param, 0, count, expected, &error));
        const struct up_unit *unit = up_units_of(&bench->trainer.units, &param);
        double relative = relative_error(up_unit_grad(unit, param.kind), expected, count);
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
