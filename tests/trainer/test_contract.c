/* The exactness contract: the dry device's event list is the cpu device's, and both are what the
 * config says, whatever the data, the weights and the timing. The stream test mode gives the very
 * numbers of the plain one. */
#include "tests/trainer/fixture.h"

#include <omp.h>

static const struct up_hyper hyper = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8,
                                      .decay = 0.1, .clip = 1};

struct outcome {
    uint64_t hash;
    int64_t peak, host_peak, events;
    double loss, norm;
};

// Two steps; the second's figures.
static struct outcome run(const struct up_config *config, const struct fixture *fixture,
                          enum up_device_kind kind, uint64_t chaos_seed)
{
    struct up_error error = {0};
    struct bench bench;
    struct up_step_result result = {0};
    struct outcome outcome = {0};
    uint64_t first_hash = 0;
    bench_open(&bench, config, kind, chaos_seed);
    if (kind != UP_DEVICE_DRY && fixture)
        fixture_load_weights(fixture, &bench);
    else
        must(up_units_randomise(&bench.trainer.units, &bench.rank, &config->model, 1, &error));
    for (int64_t step = 0; step < 2; step++) {
        int64_t counted = config->batch * config->seq;
        if (kind != UP_DEVICE_DRY && fixture)
            counted = fixture_load_tokens(fixture, &bench, step);
        else if (kind != UP_DEVICE_DRY)
            memset(bench.trainer.tokens_host->data, 0, (size_t)bench.trainer.tokens_host->bytes);
        must(up_trainer_step(&bench.trainer, step, counted, &hyper, &result, &error));
        if (step == 0) first_hash = bench.rank.usage.event_hash;
    }
    outcome = (struct outcome){bench.rank.usage.event_hash,
                               bench.rank.usage.peak_bytes[UP_SPACE_DEVICE],
                               bench.rank.usage.peak_bytes[UP_SPACE_HOST],
                               bench.rank.usage.events, result.loss, result.grad_norm};
    assert_true(first_hash == outcome.hash);
    assert_int_equal(bench.rank.range_depth, 0);
    bench_close(&bench);
    return outcome;
}

static void check_dry_is_cpu(const struct up_config *config)
{
    struct outcome cpu = run(config, NULL, UP_DEVICE_CPU, 0);
    struct outcome dry = run(config, NULL, UP_DEVICE_DRY, 0);
    assert_true(cpu.hash == dry.hash);
    assert_true(cpu.events > 0);
    assert_int_equal(cpu.events, dry.events);
    assert_int_equal(cpu.peak, dry.peak);
    assert_int_equal(cpu.host_peak, dry.host_peak);
    assert_true(isnan(dry.loss) && !isnan(cpu.loss));
}

static void vary(struct up_config *config, int variant)
{
    static const int64_t tiles[] = {0, 16, 7};
    config->checkpoint = (enum up_checkpoint)(variant % 3);
    config->attn_layers = 1 + variant % 2;
    config->batch = 1 + variant % 2;
    config->tile_mlp = tiles[variant % 3];
    config->tile_loss = tiles[(variant + 1) % 3];
    config->tile_attn = tiles[variant / 3 % 3];
    config->upipe = variant % 4 == 3 ? 2 : 0;
}

static void test_dry_is_cpu(void **state)
{
    (void)state;
    struct up_config config = plain_config();
    config.seq = 48;
    for (int i = 0; i <= UP_COUNT(fixture_names); i++) {
        struct fixture fixture;
        if (i < UP_COUNT(fixture_names)) {
            fixture_open(&fixture, fixture_names[i]);
            config.model = fixture.model;
            fixture_close(&fixture);
        } else
            assert_true(up_model_preset("tiny", &config.model));
        for (int variant = 0; variant < 12; variant++) {
            struct up_config varied = config;
            vary(&varied, variant);
            check_dry_is_cpu(&varied);
        }
    }
}

static void test_hash_sees_the_config(void **state)
{
    (void)state;
    struct up_config config = plain_config();
    assert_true(up_model_preset("tiny", &config.model));
    config.seq = 48;
    struct outcome plain = run(&config, NULL, UP_DEVICE_DRY, 0);
    config.seq = 49;
    assert_true(run(&config, NULL, UP_DEVICE_DRY, 0).hash != plain.hash);
    config.seq = 48;
    config.checkpoint = UP_CHECKPOINT_BLOCK;
    struct outcome checkpointed = run(&config, NULL, UP_DEVICE_DRY, 0);
    assert_true(checkpointed.hash != plain.hash);
    assert_true(checkpointed.peak < plain.peak);
}

// Freed bytes are poisoned and streams run when they like: the numbers stay the very same.
static void test_chaos_is_exact(void **state)
{
    (void)state;
    const char *asked = getenv("UP_CHAOS_SEEDS");
    int seeds = asked ? atoi(asked) : 200;
    struct fixture fixture;
    fixture_open(&fixture, "tiny-qwen3");
    fixture.model.layers = 2;
    omp_set_num_threads(1); // as the stream threads have it: BLAS may sum otherwise with more
    for (int variant = 0; variant < 4; variant++) {
        struct up_config config = plain_config();
        config.model = fixture.model;
        config.seq = 24;
        vary(&config, variant);
        struct outcome plain = run(&config, &fixture, UP_DEVICE_CPU, 0);
        for (int seed = 1 + variant; seed <= seeds; seed += 4) {
            struct outcome chaos = run(&config, &fixture, UP_DEVICE_CPU, (uint64_t)seed);
            assert_true(chaos.hash == plain.hash);
            if (chaos.loss != plain.loss || chaos.norm != plain.norm)
                fail_msg("seed %d, variant %d: loss %.17g and norm %.17g instead of %.17g and %.17g",
                         seed, variant, chaos.loss, chaos.norm, plain.loss, plain.norm);
        }
    }
    fixture_close(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dry_is_cpu),
        cmocka_unit_test(test_hash_sees_the_config),
        cmocka_unit_test(test_chaos_is_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
