/* Models of any shape, as no preset and no fixture has them: odd numbers of heads, KV groups that
 * straddle ranks, MLPs and vocabularies a few wide, sequences barely longer than the ranks are
 * many, up to 12 ranks and any techniques. Drawn, but always the same. Of each: loss and gradients
 * are those of the plain step on one rank, every rank's events are those of its dry run, and the
 * stream test mode has the very same numbers.
 *
 * UP_TEST_SHAPES=N draws so many. */
#include "base/rng.h"
#include "tests/trainer/fixture.h"

#include <omp.h>

enum { SHAPES = 24, MOST_RANKS = 12 };

/* --- Drawing
 * ------------------------------------------------------------------------------------- */

static uint64_t shape, drawn; // which one, and how much has been drawn for it

static int64_t draw(int64_t least, int64_t most)
{
    uint64_t values = (uint64_t)(most - least + 1);
    return least + (int64_t)(up_random_u64(1, shape, drawn++) % values);
}

static bool toss(void)
{
    return draw(0, 1) == 1;
}

// A divisor of `total` that is a multiple of `of`, which is one, and is at most `most`.
static int64_t draw_divisor(int64_t total, int64_t of, int64_t most)
{
    int64_t divisor;
    do divisor = of * draw(1, total / of);
    while (total % divisor || divisor > most);
    return divisor;
}

static struct up_model draw_model(void)
{
    struct up_model m = {.name = "drawn",
                         .family = "llama",
                         .layers = draw(1, 2),
                         .hidden = draw(1, 40),
                         .ff = draw(1, 40),
                         .kv_heads = draw(1, 5),
                         .head_dim = 2 * draw(1, 5),
                         .vocab = draw(2, 99),
                         .max_positions = 64,
                         .qk_norm = toss(),
                         .tied = toss(),
                         .norm_epsilon = 1e-5,
                         .rope_theta = 10000,
                         .init_std = 0.2};
    struct up_error error = {0};
    m.heads = m.kv_heads * draw(1, 4);
    must(up_model_check(&m, "drawn", &error));
    return m;
}

static int64_t draw_tile(int64_t seq)
{
    return toss() ? draw(1, seq + 1) : 0;
}

static struct up_config draw_config(void)
{
    struct up_config c = plain_config();
    c.model = draw_model();
    c.cp = draw_divisor(c.model.heads, 1, MOST_RANKS);
    c.dp = draw(1, up_min(3, MOST_RANKS / c.cp));
    c.seq = c.cp + (toss() ? draw(0, 2) : draw(3, 40));
    c.accum = draw(1, 2);
    c.batch = draw(1, 2);
    c.fsdp = toss();
    c.optimizer_host = toss();
    c.checkpoint = (enum up_checkpoint)draw(UP_CHECKPOINT_NONE, UP_CHECKPOINT_ATTN);
    c.attn_layers = draw(1, c.model.layers);
    c.offload_layers = c.checkpoint == UP_CHECKPOINT_NONE ? 0 : draw(0, c.model.layers);
    c.tile_mlp = draw_tile(c.seq);
    c.tile_loss = draw_tile(c.seq);
    c.tile_attn = draw_tile(c.seq);
    c.upipe = draw_divisor(c.model.heads, c.cp, c.model.heads);
    return c;
}

/* --- A step
 * -------------------------------------------------------------------------------------- */

static int32_t token_of(const struct up_config *c, int64_t window, int64_t at)
{
    uint64_t place = (uint64_t)(window * c->seq + at);
    return (int32_t)(up_random_u64(2, shape, place) % (uint64_t)c->model.vocab);
}

// The windows of a step, as trainer/member.c deals them out.
static void load_tokens(struct bench *bench)
{
    const struct up_config *c = &bench->config;
    for (int r = 0; r < bench->count; r++) {
        const struct up_trainer *t = &bench->member[r].trainer;
        int64_t first = up_config_first_token(c, t->cp_rank);
        for (int64_t row = 0; row < c->accum * c->batch; row++) {
            int64_t a = row / c->batch, b = row % c->batch;
            int64_t window = (a * c->dp + t->dp_rank) * c->batch + b;
            for (int64_t i = 0; i < up_config_tokens(c, t->cp_rank); i++) {
                up_trainer_inputs(t, a, b)[i] = token_of(c, window, first + i);
                up_trainer_targets(t, a, b)[i] = token_of(c, window, first + i + 1);
            }
        }
    }
}

static enum up_status randomise(struct member *member, void *argument)
{
    (void)argument;
    return up_state_randomise(&member->trainer.units, 3, &member->error);
}

struct outcome {
    double loss, norm;
    float *gradients; // of all parameters, one after the other
    uint64_t hash[MOST_RANKS];
    int64_t peak[MOST_RANKS];
};

static struct outcome run(const struct up_config *config, uint64_t chaos_seed)
{
    static struct bench bench;
    static const struct up_hyper hyper = {
        .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .decay = 0.1, .clip = 1};
    struct step_call call = {.counted = config->accum * config->dp * config->batch * config->seq,
                             .hyper = &hyper};
    bench_open(&bench, config, UP_DEVICE_CPU, chaos_seed);
    bench_run(&bench, randomise, NULL);
    load_tokens(&bench);
    bench_run(&bench, run_step, &call);
    struct outcome outcome = {.loss = call.result.loss, .norm = call.result.grad_norm};
    for (int r = 0; r < bench.count; r++) {
        outcome.hash[r] = bench.member[r].rank.usage.event_hash;
        outcome.peak[r] = bench.member[r].rank.usage.peak_bytes[UP_SPACE_DEVICE];
    }
    outcome.gradients = collect_gradients(&bench, &config->model);
    bench_close(&bench);
    return outcome;
}

/* --- What it is held to
 * -------------------------------------------------------------------------- */

// All that the config has to do at once is done by one rank in one micro-batch.
static struct up_config plain_of(const struct up_config *config)
{
    struct up_config plain = plain_config();
    plain.model = config->model;
    plain.seq = config->seq;
    plain.batch = config->dp * config->accum * config->batch;
    return plain;
}

static void check_numbers(const struct up_config *config, const struct outcome *got)
{
    struct up_config plain_config = plain_of(config);
    struct outcome plain = run(&plain_config, 0);
    if (!(fabs(got->loss / plain.loss - 1) <= 1e-6))
        fail_msg("shape %d: loss %.9g, plain %.9g", (int)shape, got->loss, plain.loss);
    int64_t at = 0;
    for (int i = 0; i < up_model_param_count(&config->model); i++) {
        struct up_param param = up_model_param(&config->model, i);
        int64_t count = param.rows * param.cols;
        double difference = 0, norm = 0;
        for (int64_t j = at; j < at + count; j++) {
            difference += pow((double)got->gradients[j] - plain.gradients[j], 2);
            norm += pow(plain.gradients[j], 2);
        }
        // Some are nothing but roundings of larger ones, such as q's where no key is to choose.
        if (!(sqrt(difference) <= 1e-5 * sqrt(norm) + 1e-6 * plain.norm))
            fail_msg("shape %d: %s is off by %g of %g", (int)shape, param.hf_name, sqrt(difference),
                     sqrt(norm));
        at += count;
    }
    free(plain.gradients);
}

static void check_dry(const struct up_config *config, const struct outcome *got)
{
    struct up_error error = {0};
    struct up_machine machine;
    must(up_machine_find("generic", &machine, &error));
    for (int r = 0; r < up_config_ranks(config); r++) {
        struct up_dry_rank dry;
        must(up_dry_rank_open(&dry, config, &machine, r, false, &error));
        must(up_dry_rank_step(&dry, 0, &error));
        if (dry.rank.usage.event_hash != got->hash[r])
            fail_msg("shape %d: rank %d has other events than its dry run", (int)shape, r);
        assert_int_equal(dry.rank.usage.peak_bytes[UP_SPACE_DEVICE], got->peak[r]);
        up_dry_rank_close(&dry);
    }
}

static void check_chaos(const struct up_config *config, const struct outcome *got)
{
    struct outcome chaos = run(config, shape + 1);
    assert_true(chaos.loss == got->loss && chaos.norm == got->norm);
    assert_memory_equal(chaos.gradients, got->gradients,
                        (size_t)up_model_parameters(&config->model) * sizeof(float));
    free(chaos.gradients);
}

static void test_any_shape(void **state)
{
    (void)state;
    const char *asked = getenv("UP_TEST_SHAPES");
    uint64_t shapes = asked ? (uint64_t)atoi(asked) : SHAPES;
    omp_set_num_threads(1); // as the stream threads have it: BLAS may sum otherwise with more
    for (shape = 0; shape < shapes; shape++) {
        drawn = 0;
        struct up_config config = draw_config();
        struct outcome got = run(&config, 0);
        check_numbers(&config, &got);
        check_dry(&config, &got);
        check_chaos(&config, &got);
        free(got.gradients);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_any_shape)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
