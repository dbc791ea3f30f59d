/* The step against PyTorch: loss, gradients and six AdamW steps of every fixture, plain and with
 * each technique that changes how the step computes but not what. */
#include "tests/trainer/fixture.h"

static struct up_config config_for(const struct fixture *fixture)
{
    struct up_config config = plain_config();
    config.model = fixture->model;
    config.seq = fixture->seq;
    return config;
}

static void check_gradients(const struct fixture *fixture, const struct up_config *config,
                            const char *what)
{
    static struct bench bench;
    const char *worst;
    double expected = fixture_number(fixture->expected, "loss");
    bench_open(&bench, config, UP_DEVICE_CPU, 0);
    fixture_load_weights(fixture, &bench);
    struct gradients_call call = {.counted = fixture_load_tokens(fixture, &bench, 0)};
    bench_run(&bench, run_gradients, &call);
    double loss_error = fabs(call.result.loss - expected) / expected;
    double grad_error = gradient_error(fixture, &bench, &worst);
    if (getenv("UP_SHOW"))
        printf("%s %s: loss %.2e, gradients %.2e (%s)\n", fixture->folder, what, loss_error,
               grad_error, worst);
    if (!(loss_error <= 1e-6))
        fail_msg("%s %s: loss is off by %g", fixture->folder, what, loss_error);
    if (!(grad_error <= 1e-5))
        fail_msg("%s %s: %s is off by %g", fixture->folder, what, worst, grad_error);
    // Everything of the step is gone but what outlives it.
    assert_int_equal(bench.member[0].rank.usage.live_bytes[UP_SPACE_DEVICE],
                     up_model_parameters(&fixture->model) * 16 + (int64_t)sizeof(double[2]));
    bench_close(&bench);
}

static void test_plain_gradients(void **state)
{
    (void)state;
    for (int i = 0; i < UP_COUNT(fixture_names); i++) {
        struct fixture fixture;
        fixture_open(&fixture, fixture_names[i]);
        struct up_config config = config_for(&fixture);
        check_gradients(&fixture, &config, "plain");
        fixture_close(&fixture);
    }
}

// Every checkpoint kind x tiles that divide and do not x every head count that divides.
static void test_technique_gradients(void **state)
{
    (void)state;
    static const int64_t tiles[] = {0, 1000, 40, 7};
    for (int i = 0; i < UP_COUNT(fixture_names); i++) {
        struct fixture fixture;
        fixture_open(&fixture, fixture_names[i]);
        for (int checkpoint = 0; checkpoint < 3; checkpoint++)
            for (int64_t heads = 0; heads <= fixture.model.heads; heads++) {
                if (heads && fixture.model.heads % heads) continue;
                char what[128];
                struct up_config config = config_for(&fixture);
                int64_t t = heads + checkpoint;
                config.checkpoint = (enum up_checkpoint)checkpoint;
                config.upipe = heads;
                config.tile_mlp = tiles[t % 4];
                config.tile_loss = tiles[(t + 1) % 4];
                config.tile_attn = tiles[(t + 2 + checkpoint) % 4];
                config.attn_layers = 1 + t % fixture.model.layers;
                snprintf(what, sizeof what, "checkpoint %d (last %d), upipe %d, tiles %d %d %d",
                         checkpoint, (int)config.attn_layers, (int)heads, (int)config.tile_mlp,
                         (int)config.tile_loss, (int)config.tile_attn);
                check_gradients(&fixture, &config, what);
            }
        fixture_close(&fixture);
    }
}

static void check_curve(const struct fixture *fixture, const struct up_config *config)
{
    static struct bench bench;
    struct up_hyper hyper = {
        .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .decay = 0.1, .clip = 1};
    const json_t *adamw = json_object_get(fixture->expected, "adamw");
    const json_t *curve = json_object_get(adamw, "curve");
    assert_true(fixture_number(adamw, "lr") == hyper.lr);
    assert_int_equal(json_array_size(curve), 6);
    bench_open(&bench, config, UP_DEVICE_CPU, 0);
    fixture_load_weights(fixture, &bench);
    for (int64_t step = 0; step < 6; step++) {
        const json_t *point = json_array_get(curve, (size_t)step);
        struct step_call call = {
            .step = step, .counted = fixture_load_tokens(fixture, &bench, step), .hyper = &hyper};
        bench_run(&bench, run_step, &call);
        struct up_step_result result = call.result;
        double loss = fixture_number(point, "loss"), norm = fixture_number(point, "grad_norm");
        if (getenv("UP_SHOW"))
            printf("%s step %d: loss %.2e, norm %.2e\n", fixture->folder, (int)step,
                   fabs(result.loss / loss - 1), fabs(result.grad_norm / norm - 1));
        assert_true(fabs(result.loss / loss - 1) <= 1e-5);
        assert_true(fabs(result.grad_norm / norm - 1) <= 1e-5);
    }
    bench_close(&bench);
}

static void test_adamw_curve(void **state)
{
    (void)state;
    for (int i = 0; i < UP_COUNT(fixture_names); i++) {
        struct fixture fixture;
        fixture_open(&fixture, fixture_names[i]);
        struct up_config config = config_for(&fixture);
        check_curve(&fixture, &config);
        config.checkpoint = UP_CHECKPOINT_ATTN;
        config.attn_layers = 1;
        config.upipe = 2;
        config.tile_mlp = config.tile_attn = 40;
        config.tile_loss = 16;
        check_curve(&fixture, &config);
        fixture_close(&fixture);
    }
}

// Two rows in a batch weigh as two steps' gradients do, halved.
static void test_batch_is_the_mean_of_rows(void **state)
{
    (void)state;
    struct fixture fixture;
    static struct bench one, two;
    double losses = 0;
    fixture_open(&fixture, "tiny-qwen3");
    struct up_config config = config_for(&fixture);
    bench_open(&one, &config, UP_DEVICE_CPU, 0);
    config.batch = 2;
    bench_open(&two, &config, UP_DEVICE_CPU, 0);
    fixture_load_weights(&fixture, &one);
    fixture_load_weights(&fixture, &two);
    const struct up_unit *unit = up_units_block(&one.member[0].trainer.units, 0);
    float *sum = calloc((size_t)unit->elements, sizeof *sum);
    for (int64_t row = 0; row < 2; row++) {
        struct gradients_call call = {.counted = fixture_load_tokens(&fixture, &one, row)};
        bench_run(&one, run_gradients, &call);
        losses += call.result.loss / 2;
        const float *grads = unit->grads->data;
        for (int64_t i = 0; i < unit->elements; i++) sum[i] += grads[i] / 2;
    }
    struct gradients_call call = {.counted = fixture_load_tokens(&fixture, &two, 0)};
    bench_run(&two, run_gradients, &call);
    assert_true(fabs(call.result.loss / losses - 1) < 1e-6);
    const float *got = up_units_block(&two.member[0].trainer.units, 0)->grads->data;
    assert_true(relative_error(got, sum, unit->elements) < 1e-5);
    free(sum);
    bench_close(&one);
    bench_close(&two);
    fixture_close(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_gradients),
        cmocka_unit_test(test_technique_gradients),
        cmocka_unit_test(test_adamw_curve),
        cmocka_unit_test(test_batch_is_the_mean_of_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
