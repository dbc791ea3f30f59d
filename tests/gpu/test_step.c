/* The step on GPUs against the fp64 reference: loss and gradients of every fixture, on 1, 2 and 4
 * GPUs and on every rung of the ladder, and the event list against the dry device's; where there
 * are fewer than 4, with 4 ranks on one of them. With several ranks, where a group takes half a
 * second to start, the fixtures share the rungs out among them, and "attn" alone has every fixture;
 * UP_TEST_ALL=1 takes all, and 8 ranks. */
#include "tests/trainer/fixture.h"

#include "tests/gpu/need.h"

#if UPIPE_CUDA
#include "ops/cuda/attention_cuda.h"
#include "tests/gpu/one_gpu.h"
#endif

// Whose kernels attention takes is settled when a rank joins, so that a benchmark has the step's.
static void check_own_attention(const struct bench *bench)
{
#if UPIPE_CUDA
    struct up_attention_shape s = {
        .batch = 1, .seq = 4096, .heads = 8, .kv_heads = 2, .head_dim = 128, .group = 4};
    struct up_cuda *cuda = up_device_cuda_launch(bench->member[0].seat->device);
    assert_string_equal(up_cuda_attention_why_own(cuda, &s), "our own kernels were asked for");
#endif
    (void)bench;
}

enum { RUNGS = 9, ATTN = 7 };
static const char *const rung_names[RUNGS] = {"none",  "fsdp",  "ulysses", "checkpoint", "offload",
                                              "tiled", "upipe", "attn",    "host"};

// As --stack has it, but for tiles that a fixture is long enough for; "attn" is upipe with
// attention kept, "host" that with the optimizer's state on the host.
static struct up_config rung_config(const struct fixture *fixture, int rung, int64_t ranks)
{
    struct up_config config = plain_config();
    config.model = fixture->model;
    config.as = UP_DEVICE_CUDA;
    config.dtype = UP_BF16;
    config.seq = fixture->seq;
    config.fsdp = rung >= 1;
    config.cp = rung >= 2 ? ranks : 1;
    config.dp = ranks / config.cp;
    config.checkpoint = rung >= 3 ? UP_CHECKPOINT_BLOCK : UP_CHECKPOINT_NONE;
    config.offload_layers = rung >= 4 ? config.model.layers : 0;
    config.tile_mlp = config.tile_attn = rung >= 5 ? 40 : 0;
    config.tile_loss = rung >= 5 ? 16 : 0;
    config.upipe = rung >= 6 ? config.cp : 0;
    if (rung >= ATTN) config.checkpoint = UP_CHECKPOINT_ATTN;
    config.optimizer_host = rung == 8;
    config.attn_layers = config.model.layers;
    return config;
}

struct errors {
    double loss, gradient;
    char worst[96];
    uint64_t hash;
    int64_t peak;
};

// `gpus`: one for each rank, or one for all.
static void open_bench(struct bench *bench, const struct up_config *config, int gpus)
{
#if UPIPE_CUDA
    if (gpus < up_config_ranks(config)) {
        bench_open_on_one_gpu(bench, config);
        return;
    }
#endif
    (void)gpus;
    bench_open(bench, config, UP_DEVICE_CUDA, 0);
}

// With data-parallel ranks each rank has the first window, so that the mean is that window's.
static struct errors measure(const struct fixture *fixture, const struct up_config *config,
                             int gpus)
{
    static struct bench bench;
    struct errors errors;
    const char *worst;
    open_bench(&bench, config, gpus);
    fixture_load_weights(fixture, &bench);
    struct gradients_call call = {.counted = fixture_load_tokens(fixture, &bench, 0)};
    for (int r = (int)config->cp; r < bench.count; r++)
        memcpy(bench.member[r].trainer.tokens_host->data,
               bench.member[r % config->cp].trainer.tokens_host->data,
               (size_t)bench.member[r].trainer.tokens_host->bytes);
    bench_run(&bench, run_gradients, &call);
    double expected = fixture_number(fixture->expected, "loss");
    errors.loss = fabs(call.result.loss / expected - 1);
    errors.gradient = gradient_error(fixture, &bench, &worst);
    snprintf(errors.worst, sizeof errors.worst, "%s", worst);
    errors.hash = bench.member[0].rank.usage.event_hash;
    errors.peak = bench.member[0].rank.usage.peak_bytes[UP_SPACE_DEVICE];
    bench_close(&bench);
    return errors;
}

static void check_dry(const struct up_config *config, const struct errors *cuda)
{
    static struct bench bench;
    struct gradients_call call = {.counted = config->seq};
    bench_open(&bench, config, UP_DEVICE_DRY, 0);
    bench_run(&bench, run_gradients, &call);
    assert_true(bench.member[0].rank.usage.event_hash == cuda->hash);
    assert_int_equal(bench.member[0].rank.usage.peak_bytes[UP_SPACE_DEVICE], cuda->peak);
    bench_close(&bench);
}

static bool takes_all(void)
{
    const char *all = getenv("UP_TEST_ALL");
    return all && *all;
}

static bool takes(int ranks, int fixture, int rung)
{
    if (ranks == 1 || rung == ATTN || takes_all()) return true;
    return rung % UP_COUNT(fixture_names) == fixture;
}

static void check_config(const struct fixture *fixture, const struct up_config *config, int gpus,
                         const char *rung, const struct errors *none)
{
    struct errors got = measure(fixture, config, gpus);
    printf("%-26s cp %lld dp %lld, GPUs: %d %-10s loss %.1e gradients %.1e (none %.1e) %s\n",
           fixture->model.name, (long long)config->cp, (long long)config->dp, gpus, rung, got.loss,
           got.gradient, none->gradient, got.worst);
    assert_true(got.loss <= 2e-3);
    assert_true(got.gradient <= 2e-2 || got.gradient <= 1.7 * none->gradient);
    check_dry(config, &got);
}

static void check_ranks(int ranks, int gpus)
{
    for (int i = 0; i < UP_COUNT(fixture_names); i++) {
        struct fixture fixture;
        fixture_open(&fixture, fixture_names[i]);
        struct up_config plain = rung_config(&fixture, 0, 1);
        struct errors none = measure(&fixture, &plain, 1);
        for (int rung = 0; rung < RUNGS; rung++) {
            struct up_config config = rung_config(&fixture, rung, ranks);
            if (config.model.heads % config.cp || !takes(ranks, i, rung)) continue;
            check_config(&fixture, &config, gpus, rung_names[rung], &none);
        }
        if (ranks >= 4 && fixture.model.heads % (ranks / 2) == 0) {
            struct up_config replicas = rung_config(&fixture, ATTN, ranks / 2);
            replicas.dp = 2;
            check_config(&fixture, &replicas, gpus, rung_names[ATTN], &none);
        }
        fixture_close(&fixture);
    }
}

static void test_rungs(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 2; ranks *= 2)
        if (has_gpus(ranks)) check_ranks(ranks, ranks);
    check_ranks(4, has_gpus(4) ? 4 : 1);
    if (takes_all()) check_ranks(8, has_gpus(8) ? 8 : 1);
}

/* --- A longer run
 * --------------------------------------------------------------------------------- */

enum { CURVE_STEPS = 50, CURVE_SEQ = 11 };

static void run_curve(const struct fixture *fixture, const struct up_config *config,
                      enum up_device_kind kind, bool deterministic, double *loss)
{
    static struct bench bench;
    static const struct up_hyper hyper = {
        .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .decay = 0.1, .clip = 1};
    struct up_train_options options = {.device = (int)kind, .deterministic = deterministic};
    bench_open_with(&bench, config, &options, NULL);
    if (deterministic) check_own_attention(&bench);
    fixture_load_weights(fixture, &bench);
    for (int64_t step = 0; step < CURVE_STEPS; step++) {
        struct step_call call = {.step = step, .hyper = &hyper};
        call.counted = fixture_load_tokens(fixture, &bench, step);
        bench_run(&bench, run_step, &call);
        loss[step] = call.result.loss;
    }
    bench_close(&bench);
}

// 50 steps on one GPU stay with the cpu's curve, two of the same bits with the own kernels, whose
// state is on the host.
static void test_curve(void **state)
{
    (void)state;
    static double cpu[CURVE_STEPS], cuda[CURVE_STEPS], first[CURVE_STEPS], second[CURVE_STEPS];
    struct fixture fixture;
    gpus_or_skip();
    fixture_open(&fixture, "tiny-qwen3");
    struct up_config config = rung_config(&fixture, 7, 1);
    config.seq = CURVE_SEQ;
    run_curve(&fixture, &config, UP_DEVICE_CUDA, false, cuda);
    config.optimizer_host = true;
    run_curve(&fixture, &config, UP_DEVICE_CUDA, true, first);
    run_curve(&fixture, &config, UP_DEVICE_CUDA, true, second);
    config.as = UP_DEVICE_CPU;
    config.dtype = UP_F32;
    run_curve(&fixture, &config, UP_DEVICE_CPU, false, cpu);
    double worst = 0;
    for (int step = 0; step < CURVE_STEPS; step++) {
        worst = fmax(worst, fabs(cuda[step] / cpu[step] - 1));
        worst = fmax(worst, fabs(first[step] / cpu[step] - 1));
        assert_true(first[step] == second[step]);
    }
    printf("50 steps: off by %.1e at most\n", worst);
    assert_true(cpu[CURVE_STEPS - 1] < cpu[0] - 0.5);
    assert_true(worst <= 1e-2);
    fixture_close(&fixture);
}

int main(void)
{
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rungs),
        cmocka_unit_test(test_curve),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
