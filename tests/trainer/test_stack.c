/* Every technique in any combination, on 1 to 4 ranks: loss and gradients are those of the plain
 * single-rank step, and rank 0's event list is the dry device's.
 *
 * All combinations that are legal are made from the axes below. UP_TEST_ALL=1 runs every one of
 * them (a hundred and thirty thousand), UP_TEST_ALL=N every N-th; otherwise a cover: every pair of
 * values of two axes that is legal anywhere is run at least once. */
#include "tests/trainer/fixture.h"

enum { SEQ = 29 }; // divisible by no rank count or tile

/* --- Axes
 * ----------------------------------------------------------------------------------------- */

enum axis {
    CP,
    DP,
    ACCUM,
    BATCH,
    FSDP,
    CHECKPOINT,
    ATTN_LAYERS,
    OFFLOAD,
    OPTIMIZER,
    TILE_MLP,
    TILE_LOSS,
    TILE_ATTN,
    UPIPE,
    AXES
};
enum { MAX_VALUES = 4 };

static const struct {
    int count;
    int64_t value[MAX_VALUES]; // UPIPE: the index among the legal stage heads
} axes[AXES] = {
    [CP] = {4, {1, 2, 3, 4}},     [DP] = {3, {1, 2, 3}},       [ACCUM] = {2, {1, 2}},
    [BATCH] = {2, {1, 2}},        [FSDP] = {2, {0, 1}},        [CHECKPOINT] = {3, {0, 1, 2}},
    [ATTN_LAYERS] = {2, {1, 99}}, [OFFLOAD] = {3, {0, 1, 99}}, [OPTIMIZER] = {2, {0, 1}},
    [TILE_MLP] = {3, {0, 4, 99}}, [TILE_LOSS] = {2, {0, 5}},   [TILE_ATTN] = {2, {0, 3}},
    [UPIPE] = {4, {0, 1, 2, 3}},
};

struct choice {
    uint8_t index[AXES];
};

static int64_t value(const struct choice *choice, enum axis axis)
{
    return axes[axis].value[choice->index[axis]];
}

// The n-th smallest legal number of stage heads; the last is the number of heads. 0: there are
// fewer.
static int64_t stage_heads(const struct up_model *model, int64_t cp, int64_t n)
{
    for (int64_t u = cp; u <= model->heads; u += cp)
        if (model->heads % u == 0 && n-- == 0) return u;
    return 0;
}

// False where the choice is illegal, or the same as another one.
static bool config_of(const struct choice *c, const struct up_model *model,
                      struct up_config *config)
{
    int64_t layers = model->layers, attn = value(c, ATTN_LAYERS), offload = value(c, OFFLOAD);
    *config = plain_config();
    config->model = *model;
    config->seq = SEQ;
    config->cp = value(c, CP);
    config->dp = value(c, DP);
    config->accum = value(c, ACCUM);
    config->batch = value(c, BATCH);
    config->fsdp = value(c, FSDP);
    config->optimizer_host = value(c, OPTIMIZER);
    config->checkpoint = (enum up_checkpoint)value(c, CHECKPOINT);
    config->attn_layers = up_min(attn, layers);
    config->offload_layers = up_min(offload, layers);
    config->tile_mlp = value(c, TILE_MLP);
    config->tile_loss = value(c, TILE_LOSS);
    config->tile_attn = value(c, TILE_ATTN);
    if (model->heads % config->cp || config->cp * config->dp > 4) return false;
    if (!(config->upipe = stage_heads(model, config->cp, value(c, UPIPE)))) return false;
    if (config->checkpoint == UP_CHECKPOINT_NONE && offload) return false;
    bool one_layer = layers == 1;
    if ((config->checkpoint != UP_CHECKPOINT_ATTN || one_layer) && c->index[ATTN_LAYERS])
        return false;
    return !one_layer || offload != 99;
}

/* --- The cover
 * ------------------------------------------------------------------------------------ */

static bool covered[AXES][MAX_VALUES][AXES][MAX_VALUES];

static int cover(const struct choice *c)
{
    int fresh = 0;
    for (int a = 0; a < AXES; a++)
        for (int b = a + 1; b < AXES; b++) {
            bool *seen = &covered[a][c->index[a]][b][c->index[b]];
            fresh += !*seen;
            *seen = true;
        }
    return fresh;
}

static int64_t choices(void)
{
    int64_t all = 1;
    for (int a = 0; a < AXES; a++) all *= axes[a].count;
    return all;
}

static struct choice choice_at(int64_t n)
{
    struct choice choice;
    for (int a = 0; a < AXES; a++) {
        choice.index[a] = (uint8_t)(n % axes[a].count);
        n /= axes[a].count;
    }
    return choice;
}

/* --- The plain step
 * -------------------------------------------------------------------------------- */

enum { MAX_WINDOWS = 12 };

/* Loss and every gradient of the plain step over the first `windows` windows, made when first
 * asked. */
struct reference {
    double loss;
    float *gradients; // of all parameters, one after the other
    uint64_t hash;    // of rank 0's events
    int64_t peak;
};

static void run_config(const struct fixture *fixture, const struct up_config *config,
                       struct reference *result)
{
    static struct bench bench;
    bench_open(&bench, config, UP_DEVICE_CPU, 0);
    fixture_load_weights(fixture, &bench);
    struct gradients_call call = {.counted = fixture_load_tokens(fixture, &bench, 0)};
    bench_run(&bench, run_gradients, &call);
    result->loss = call.result.loss;
    result->hash = bench.member[0].rank.usage.event_hash;
    result->peak = bench.member[0].rank.usage.peak_bytes[UP_SPACE_DEVICE];
    result->gradients = collect_gradients(&bench, &config->model);
    bench_close(&bench);
}

static void check_dry(const struct up_config *config, const struct reference *got, const char *what)
{
    static struct bench bench;
    struct gradients_call call = {.counted = config->seq};
    bench_open(&bench, config, UP_DEVICE_DRY, 0);
    bench_run(&bench, run_gradients, &call);
    if (bench.member[0].rank.usage.event_hash != got->hash)
        fail_msg("%s: dry has other events", what);
    assert_int_equal(bench.member[0].rank.usage.peak_bytes[UP_SPACE_DEVICE], got->peak);
    bench_close(&bench);
}

static const struct reference *reference_of(const struct fixture *fixture, int64_t windows,
                                            struct reference cache[MAX_WINDOWS + 1])
{
    if (!cache[windows].gradients) {
        struct up_config config = plain_config();
        config.model = fixture->model;
        config.seq = SEQ;
        config.batch = windows;
        run_config(fixture, &config, &cache[windows]);
    }
    return &cache[windows];
}

static void describe(const struct up_config *c, char *text, size_t size)
{
    snprintf(text, size,
             "cp %d dp %d accum %d batch %d fsdp %d checkpoint %d (%d) offload %d optimizer %d "
             "tiles %d %d "
             "%d upipe %d",
             (int)c->cp, (int)c->dp, (int)c->accum, (int)c->batch, c->fsdp, (int)c->checkpoint,
             (int)c->attn_layers, (int)c->offload_layers, c->optimizer_host, (int)c->tile_mlp,
             (int)c->tile_loss, (int)c->tile_attn, (int)c->upipe);
}

static void check_config(const struct fixture *fixture, const struct up_config *config,
                         struct reference cache[MAX_WINDOWS + 1])
{
    char what[256];
    struct reference got;
    const struct reference *expected =
        reference_of(fixture, config->dp * config->accum * config->batch, cache);
    describe(config, what, sizeof what);
    run_config(fixture, config, &got);
    if (!(fabs(got.loss / expected->loss - 1) <= 1e-6))
        fail_msg("%s %s: loss %.9g, expected %.9g", fixture->folder, what, got.loss,
                 expected->loss);
    check_dry(config, &got, what);
    int64_t at = 0;
    for (int i = 0; i < up_model_param_count(&config->model); i++) {
        struct up_param param = up_model_param(&config->model, i);
        int64_t count = param.rows * param.cols;
        double error = relative_error(got.gradients + at, expected->gradients + at, count);
        if (!(error <= 1e-5))
            fail_msg("%s %s: %s is off by %g", fixture->folder, what, param.hf_name, error);
        at += count;
    }
    free(got.gradients);
}

static void check_fixture(const char *name)
{
    struct fixture fixture;
    struct reference cache[MAX_WINDOWS + 1] = {{0}};
    int64_t all = choices(), legal = 0, runs = 0;
    const char *asked = getenv("UP_TEST_ALL");
    int64_t every = asked ? up_max(1, atoi(asked)) : 0;
    memset(covered, 0, sizeof covered);
    fixture_open(&fixture, name);
    for (int64_t n = 0; n < all; n++) {
        // A fixed walk through all of them in which neighbours differ in many axes.
        struct choice choice = choice_at((int64_t)((uint64_t)n * 2654435761u % (uint64_t)all));
        struct up_config config;
        if (!config_of(&choice, &fixture.model, &config)) continue;
        int64_t windows = config.dp * config.accum * config.batch;
        if (windows > MAX_WINDOWS) continue;
        legal++;
        if (every ? legal % every : !cover(&choice)) continue;
        check_config(&fixture, &config, cache);
        runs++;
    }
    printf("%s: %lld of %lld legal configurations\n", name, (long long)runs, (long long)legal);
    assert_true(runs > 20);
    for (int i = 0; i <= MAX_WINDOWS; i++) free(cache[i].gradients);
    fixture_close(&fixture);
}

/* --- A longer run
 * --------------------------------------------------------------------------------- */

enum { CURVE_STEPS = 50 };

static void run_curve(const struct fixture *fixture, const struct up_config *config, double *loss)
{
    static struct bench bench;
    static const struct up_hyper hyper = {
        .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .decay = 0.1, .clip = 1};
    bench_open(&bench, config, UP_DEVICE_CPU, 0);
    fixture_load_weights(fixture, &bench);
    for (int64_t step = 0; step < CURVE_STEPS; step++) {
        struct step_call call = {.step = step, .hyper = &hyper};
        call.counted = fixture_load_tokens(fixture, &bench, step);
        bench_run(&bench, run_step, &call);
        loss[step] = call.result.loss;
    }
    bench_close(&bench);
}

// 50 steps of the full stack on four ranks stay with the plain ones.
static void test_curve(void **state)
{
    (void)state;
    static double plain[CURVE_STEPS], stack[CURVE_STEPS];
    struct fixture fixture;
    fixture_open(&fixture, "tiny-qwen3");
    struct up_config config = plain_config();
    config.model = fixture.model;
    config.seq = SEQ;
    run_curve(&fixture, &config, plain);
    config.cp = config.upipe = 4;
    config.fsdp = config.optimizer_host = true;
    config.checkpoint = UP_CHECKPOINT_ATTN;
    config.attn_layers = 2;
    config.offload_layers = 3;
    config.tile_mlp = config.tile_attn = 3;
    config.tile_loss = 2;
    run_curve(&fixture, &config, stack);
    assert_true(plain[CURVE_STEPS - 1] < plain[0] - 0.5);
    for (int step = 0; step < CURVE_STEPS; step++)
        if (!(fabs(stack[step] / plain[step] - 1) <= 1e-4))
            fail_msg("step %d: loss %.9g, plain %.9g", step, stack[step], plain[step]);
    fixture_close(&fixture);
}

static void test_llama(void **state)
{
    (void)state;
    check_fixture("tiny-llama3");
}
static void test_tied_scaled_rope(void **state)
{
    (void)state;
    check_fixture("tiny-llama31-scaled-rope");
}
static void test_qk_norm(void **state)
{
    (void)state;
    check_fixture("tiny-qwen3");
}
static void test_head_dim_128(void **state)
{
    (void)state;
    check_fixture("small-llama3-d128");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama),   cmocka_unit_test(test_tied_scaled_rope),
        cmocka_unit_test(test_qk_norm), cmocka_unit_test(test_head_dim_128),
        cmocka_unit_test(test_curve),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
