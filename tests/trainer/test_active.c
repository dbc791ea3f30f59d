/* --active-layers: the step of a model cut to its first blocks, beside the state of all. */
#include "tests/trainer/fixture.h"
#include "trainer/advisor/limits.h"
#include "trainer/advisor/technique.h"
#include "trainer/forecast/machine.h"

static struct up_config stack_of(const struct fixture *fixture, int64_t layers, int64_t active)
{
    struct up_config config = plain_config();
    config.model = fixture->model;
    config.model.layers = layers;
    config.active_layers = active;
    config.seq = fixture->seq;
    config.cp = 2;
    config.fsdp = true;
    config.checkpoint = UP_CHECKPOINT_ATTN;
    config.attn_layers = config.offload_layers = 1;
    config.upipe = 2;
    return config;
}

static double run(const struct fixture *fixture, const struct up_config *config,
                  struct bench *bench)
{
    struct fixture cut = *fixture;
    cut.model = config->model;
    bench_open(bench, config, UP_DEVICE_CPU, 0);
    fixture_load_weights(&cut, bench);
    struct gradients_call call = {.counted = fixture_load_tokens(&cut, bench, 0)};
    bench_run(bench, run_gradients, &call);
    return call.result.loss;
}

static void test_like_a_cut_model(void **state)
{
    (void)state;
    static struct bench whole, cut;
    struct fixture fixture;
    fixture_open(&fixture, "tiny-qwen3");
    int64_t layers = fixture.model.layers;
    assert_true(layers > 2);
    struct up_config part = stack_of(&fixture, layers, 2), less = stack_of(&fixture, 2, 0);
    assert_true(run(&fixture, &part, &whole) == run(&fixture, &less, &cut));
    for (int i = 0; i < up_model_param_count(&part.model); i++) {
        struct up_param param = up_model_param(&part.model, i), same = param;
        int64_t count = param.rows * param.cols;
        float *got = malloc((size_t)count * sizeof *got);
        float *expected = calloc((size_t)count, sizeof *expected);
        collect_gradient(&whole, &param, got);
        if (param.unit != UP_UNIT_BLOCK || param.layer < 2) {
            for (int j = 0; j < up_model_param_count(&less.model); j++) {
                struct up_param other = up_model_param(&less.model, j);
                if (!strcmp(other.hf_name, param.hf_name)) same = other;
            }
            collect_gradient(&cut, &same, expected);
        }
        assert_memory_equal(got, expected, (size_t)count * sizeof *got);
        free(got);
        free(expected);
    }
    bench_close(&whole);
    bench_close(&cut);
    fixture_close(&fixture);
}

// What the advisor reckons without a dry run, and switches on, is of the blocks that are computed.
static void test_arithmetic(void **state)
{
    (void)state;
    struct up_machine machine;
    struct up_forecast forecast;
    struct up_error err;
    struct up_config config = plain_config(), sent;
    assert_int_equal(up_machine_find("generic", &machine, &err), UP_OK);
    assert_true(up_model_preset("tiny", &config.model));
    config.seq = 4096;
    config.active_layers = 2;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(
            up_forecast_make(&config, &machine, UP_FORECAST_BRIEF, NULL, &forecast, &err), UP_OK);
        assert_true(up_limits_device_floor(&config) <= forecast.peak_bytes);
        assert_true(up_limits_host_floor(&config) <= forecast.host_bytes);
        bool applied = up_technique_apply(
            &config, i ? UP_TECHNIQUE_OFFLOAD : UP_TECHNIQUE_CHECKPOINT_ATTN, &sent);
        assert_true(applied == (i < 2));
        if (applied) config = sent;
    }
    assert_int_equal(config.attn_layers, 2);
    assert_int_equal(config.offload_layers, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_like_a_cut_model),
                                       cmocka_unit_test(test_arithmetic)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
