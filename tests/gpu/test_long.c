/* Attention at length, where what goes wrong with offsets and blocks shows: sampled rows and
 * columns against fp64, and a whole block's gradients with its heads in stages, all at once, and
 * with its query rows in blocks, against each other.
 *
 * 16K tokens; UP_TEST_ALL=1 takes 512K, which needs 60 GiB of the GPU and some minutes. */
#include "rig.h"
#include "tests/trainer/fixture.h"

#if UPIPE_CUDA
#include "ops/cuda/attention_cuda.h"

enum { SHORT = 16384, LONG = 524288, BLOCKS = 16, HEADS = 4, WIDTH = 128, SAMPLES = 24 };
// Two roundings to bf16 of a value each, as in test_attention.c; of lse, fp32's over a long sum.
static const double TOLERANCE = 2 * 0x1p-8, LSE_TOLERANCE = 5e-5;

static int64_t length(void)
{
    const char *all = getenv("UP_TEST_ALL");
    return all && *all ? LONG : SHORT;
}

static int64_t block_rows_of(int64_t seq)
{
    return seq / BLOCKS;
}

/* --- Against fp64 --------------------------------------------------------------------------------
 */

enum name { Q, K, V, D_O, INPUTS, O = INPUTS, DQ, DK, DV, NAMES };

// Four query heads over one KV head: bf16 on the device, and as floats.
struct data {
    int64_t seq;
    struct up_tensor *on[NAMES], *lse_on;
    float *at[NAMES], *lse; // [seq, heads, width]; [heads, seq]
};

static int64_t heads_of(enum name name)
{
    return name == Q || name == D_O || name == O || name == DQ ? HEADS : 1;
}

static int64_t count_of(const struct data *d, enum name name)
{
    return d->seq * heads_of(name) * WIDTH;
}

static void make_inputs(struct rig *rig, struct data *d)
{
    for (int name = 0; name < NAMES; name++) {
        int64_t count = count_of(d, name);
        d->at[name] = malloc((size_t)count * sizeof(float));
        assert_non_null(d->at[name]);
        d->on[name] = up_alloc(&rig->rank, UP_TAG(ATTENTION, "long"), UP_BF16, UP_SHAPE(count));
        if (name >= INPUTS) continue;
        uint16_t *narrow = malloc((size_t)count * sizeof *narrow);
        assert_non_null(narrow);
#pragma omp parallel for
        for (int64_t i = 0; i < count; i++) d->at[name][i] = (float)rig_random((uint64_t)name, i);
        up_cpu_cast(&(struct up_cast_args){d->at[name], narrow, count, UP_F32, UP_BF16});
        up_cpu_cast(&(struct up_cast_args){narrow, d->at[name], count, UP_BF16, UP_F32});
        rig_upload(rig, d->on[name]->data, narrow, 2 * count);
        free(narrow);
    }
    d->lse = malloc((size_t)(d->seq * HEADS) * sizeof(float));
    assert_non_null(d->lse);
    d->lse_on =
        up_alloc(&rig->rank, UP_TAG(ATTENTION, "long.lse"), UP_F32, UP_SHAPE(HEADS, d->seq));
    rig_finish(rig);
}

static void free_data(struct rig *rig, struct data *d)
{
    for (int name = 0; name < NAMES; name++) {
        free(d->at[name]);
        up_free(&rig->rank, &d->on[name]);
    }
    free(d->lse);
    up_free(&rig->rank, &d->lse_on);
}

static void fetch(struct rig *rig, struct data *d, enum name name)
{
    int64_t count = count_of(d, name);
    uint16_t *narrow = malloc((size_t)count * sizeof *narrow);
    assert_non_null(narrow);
    rig_download(rig, narrow, d->on[name]->data, 2 * count);
    up_cpu_cast(&(struct up_cast_args){narrow, d->at[name], count, UP_BF16, UP_F32});
    free(narrow);
}

static void attend(struct rig *rig, struct data *d, int64_t block_rows)
{
    struct up_attention_shape shape = {.batch = 1,
                                       .seq = d->seq,
                                       .heads = HEADS,
                                       .kv_heads = 1,
                                       .head_dim = WIDTH,
                                       .group = HEADS};
    int64_t bytes = up_scratch_attention_backward(UP_DEVICE_CUDA, &shape, false);
    struct up_tensor *scratch =
        up_alloc(&rig->rank, UP_TAG(WORKSPACE, "long.scratch"), UP_U8, UP_SHAPE(bytes));
    up_cuda_attention_force_block_rows(up_device_cuda_launch(rig->device), block_rows);
    up_op_attention_forward(&rig->rank, UP_STREAM_COMPUTE,
                            &(struct up_attention_forward_args){.q = d->on[Q]->data,
                                                                .k = d->on[K]->data,
                                                                .v = d->on[V]->data,
                                                                .o = d->on[O]->data,
                                                                .lse = d->lse_on->data,
                                                                .shape = shape,
                                                                .dtype = UP_BF16});
    up_op_attention_backward(&rig->rank, UP_STREAM_COMPUTE,
                             &(struct up_attention_backward_args){.q = d->on[Q]->data,
                                                                  .k = d->on[K]->data,
                                                                  .v = d->on[V]->data,
                                                                  .o = d->on[O]->data,
                                                                  .d_o = d->on[D_O]->data,
                                                                  .lse = d->lse_on->data,
                                                                  .dq = d->on[DQ]->data,
                                                                  .dk = d->on[DK]->data,
                                                                  .dv = d->on[DV]->data,
                                                                  .scratch = scratch->data,
                                                                  .shape = shape,
                                                                  .dtype = UP_BF16});
    rig_finish(rig);
    up_free(&rig->rank, &scratch);
    for (int name = INPUTS; name < NAMES; name++) fetch(rig, d, (enum name)name);
    rig_download(rig, d->lse, d->lse_on->data, d->lse_on->bytes);
}

static const float *row_of(const struct data *d, enum name name, int64_t row, int64_t head)
{
    return d->at[name] + (row * heads_of(name) + (heads_of(name) > 1 ? head : 0)) * WIDTH;
}

static double dot(const float *a, const float *b)
{
    double sum = 0;
    for (int i = 0; i < WIDTH; i++) sum += (double)a[i] * b[i];
    return sum;
}

static double score(const struct data *d, int64_t row, int64_t head, int64_t key)
{
    return dot(row_of(d, Q, row, head), row_of(d, K, key, 0)) / sqrt(WIDTH);
}

static double square(double x)
{
    return x * x;
}

// Log-sum-exp, output and query gradient of one row, in fp64. *dq_terms is the norm that dq would
// have if its terms did not cancel: its rounding errors are in proportion to that.
static double solve_row(const struct data *d, int64_t row, int64_t head, double o[WIDTH],
                        double dq[WIDTH], double *dq_terms)
{
    double most = -INFINITY, sum = 0, delta = 0, terms = 0;
    double *p = malloc((size_t)(row + 1) * sizeof *p);
    assert_non_null(p);
    for (int64_t j = 0; j <= row; j++) most = fmax(most, p[j] = score(d, row, head, j));
    for (int64_t j = 0; j <= row; j++) sum += p[j] = exp(p[j] - most);
    memset(o, 0, WIDTH * sizeof *o);
    memset(dq, 0, WIDTH * sizeof *dq);
    for (int64_t j = 0; j <= row; j++)
        for (int i = 0; i < WIDTH; i++) o[i] += p[j] / sum * row_of(d, V, j, 0)[i];
    for (int i = 0; i < WIDTH; i++) delta += o[i] * row_of(d, D_O, row, head)[i];
    for (int64_t j = 0; j <= row; j++) {
        double dp = dot(row_of(d, D_O, row, head), row_of(d, V, j, 0));
        double ds = p[j] / sum * (dp - delta);
        terms += square(p[j] / sum) * (square(dp) + square(delta)) *
                 dot(row_of(d, K, j, 0), row_of(d, K, j, 0)) / WIDTH;
        for (int i = 0; i < WIDTH; i++) dq[i] += ds / sqrt(WIDTH) * row_of(d, K, j, 0)[i];
    }
    free(p);
    *dq_terms = sqrt(terms);
    return most + log(sum);
}

// Gradients of one key and value, in fp64 from the rows' outputs and log-sum-exps, which are
// checked by themselves.
static void solve_column(const struct data *d, int64_t key, double dk[WIDTH], double dv[WIDTH])
{
    memset(dk, 0, WIDTH * sizeof *dk);
    memset(dv, 0, WIDTH * sizeof *dv);
    for (int64_t head = 0; head < HEADS; head++)
        for (int64_t row = key; row < d->seq; row++) {
            const float *d_o = row_of(d, D_O, row, head);
            double p = exp(score(d, row, head, key) - d->lse[head * d->seq + row]);
            double ds = p * (dot(d_o, row_of(d, V, key, 0)) - dot(d_o, row_of(d, O, row, head)));
            for (int i = 0; i < WIDTH; i++) {
                dv[i] += p * d_o[i];
                dk[i] += ds / sqrt(WIDTH) * row_of(d, Q, row, head)[i];
            }
        }
}

static double norm_of_difference(const float *got, const double expected[WIDTH])
{
    double sum = 0;
    for (int i = 0; i < WIDTH; i++) sum += square(got[i] - expected[i]);
    return sqrt(sum);
}

static double row_error(const float *got, const double expected[WIDTH])
{
    double norm = 0;
    for (int i = 0; i < WIDTH; i++) norm += square(expected[i]);
    return norm_of_difference(got, expected) / sqrt(norm);
}

// Rows at both ends, around the ends of blocks, and in between.
static int64_t sampled(const struct data *d, int sample)
{
    int64_t rows = block_rows_of(d->seq);
    const int64_t edges[] = {1, 63, 127, 128, rows - 1, rows, 2 * rows, d->seq - 1};
    if (sample < UP_COUNT(edges)) return edges[sample];
    return (int64_t)(up_random_u64(3, 5, (uint64_t)sample) % (uint64_t)d->seq);
}

static void check_against_fp64(const struct data *d, const char *what)
{
    double worst[NAMES] = {0}, worst_lse = 0;
#pragma omp parallel for schedule(dynamic)
    for (int sample = 0; sample < SAMPLES; sample++) {
        int64_t at = sampled(d, sample), head = sample % HEADS;
        double o[WIDTH], dq[WIDTH], dk[WIDTH], dv[WIDTH], terms;
        double lse = solve_row(d, at, head, o, dq, &terms);
        solve_column(d, at, dk, dv);
#pragma omp critical
        {
            worst_lse = fmax(worst_lse, fabs(lse - d->lse[head * d->seq + at]));
            worst[O] = fmax(worst[O], row_error(row_of(d, O, at, head), o));
            worst[DQ] = fmax(worst[DQ], norm_of_difference(row_of(d, DQ, at, head), dq) / terms);
            worst[DK] = fmax(worst[DK], row_error(row_of(d, DK, at, 0), dk));
            worst[DV] = fmax(worst[DV], row_error(row_of(d, DV, at, 0), dv));
        }
    }
    printf("%lld tokens, %s: o %.1e lse %.1e dq %.1e dk %.1e dv %.1e\n", (long long)d->seq, what,
           worst[O], worst_lse, worst[DQ], worst[DK], worst[DV]);
    assert_true(worst_lse <= LSE_TOLERANCE);
    for (int name = INPUTS; name < NAMES; name++) assert_true(worst[name] <= TOLERANCE);
}

static void test_rows_against_fp64(void **state)
{
    struct rig *rig = rig_or_skip(state);
    struct data data = {.seq = length()};
    make_inputs(rig, &data);
    attend(rig, &data, data.seq);
    check_against_fp64(&data, "whole rows");
    attend(rig, &data, block_rows_of(data.seq));
    check_against_fp64(&data, "rows in blocks");
    free_data(rig, &data);
}

/* --- A block of a real model ---------------------------------------------------------------------
 */

static enum up_status prepare(struct member *member, void *block_rows)
{
    struct up_trainer *trainer = &member->trainer;
    int64_t vocab = member->bench->config.model.vocab;
    for (int64_t t = 0; t < member->bench->config.seq; t++) {
        up_trainer_inputs(trainer, 0, 0)[t] =
            (int32_t)(up_random_u64(7, 0, (uint64_t)t) % (uint64_t)vocab);
        up_trainer_targets(trainer, 0, 0)[t] =
            (int32_t)(up_random_u64(7, 0, (uint64_t)t + 1) % (uint64_t)vocab);
    }
    up_cuda_attention_force_block_rows(up_device_cuda_launch(member->seat->device),
                                       *(const int64_t *)block_rows);
    enum up_status rc = up_state_randomise(&trainer->units, 1, &member->error);
    return rc ? rc : use_plan(member);
}

// Every gradient of the model, one after the other.
static float *gradients_of(const struct up_config *config, int64_t block_rows, double *loss)
{
    static struct bench bench;
    struct gradients_call call = {.counted = config->seq};
    bench_open(&bench, config, UP_DEVICE_CUDA, 0);
    bench_run(&bench, prepare, &block_rows);
    bench_run(&bench, run_gradients, &call);
    float *all = collect_gradients(&bench, &config->model);
    *loss = call.result.loss;
    bench_close(&bench);
    return all;
}

static void compare(const struct up_model *model, const char *what, const float *got,
                    const float *expected)
{
    double worst = 0;
    char name[96] = "";
    for (int i = 0; i < up_model_param_count(model); i++) {
        struct up_param param = up_model_param(model, i);
        int64_t count = param.rows * param.cols;
        double error = relative_error(got, expected, count);
        if (!(error <= worst)) {
            worst = error;
            snprintf(name, sizeof name, "%s", param.hf_name);
        }
        got += count;
        expected += count;
    }
    printf("%s: gradients differ by %.1e at most, of %s\n", what, worst, name);
    assert_true(worst <= 2e-2);
}

static void test_block_gradients(void **state)
{
    (void)state;
    gpus_or_skip();
    struct up_config config = blocks_of_llama3_8b(1);
    config.model.vocab = 4096; // a small embedding: the block is what matters
    config.seq = length();
    config.checkpoint = UP_CHECKPOINT_ATTN;
    config.attn_layers = 1;
    config.tile_mlp = config.tile_attn = 8192;
    config.tile_loss = 4096;
    double loss[3];
    config.upipe = 4;
    float *stages = gradients_of(&config, config.seq, &loss[0]);
    float *blocks = gradients_of(&config, block_rows_of(config.seq), &loss[1]);
    config.upipe = 0;
    float *plain = gradients_of(&config, config.seq, &loss[2]);
    compare(&config.model, "4 heads a stage against all at once", stages, plain);
    compare(&config.model, "rows in blocks against whole", blocks, plain);
    for (int i = 0; i < 2; i++) assert_true(fabs(loss[i] / loss[2] - 1) <= 2e-3);
    free(stages);
    free(blocks);
    free(plain);
}

int main(void)
{
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    setvbuf(stdout, NULL, _IOLBF, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_rows_against_fp64, rig_start, rig_stop),
        cmocka_unit_test(test_block_gradients)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
static void test_long(void **state)
{
    (void)state;
    gpus_or_skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_long)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
