/* Attention on the GPU: cuDNN's and our own kernels against the cpu's fp32, on shapes with every
 * kind of tail, group and sharing of heads; against each other where the cpu would take too long;
 * and what is promised besides: dq in d_o's place, sums added to, scratch no larger than the caller
 * was told.
 *
 * Inputs are bf16 numbers, so that both sides compute on the same; what is left is the rounding of
 * probabilities and outputs to bf16, 2 to 4 thousandths of an output's norm. */
#include "ops/ops_impl.h"
#if UPIPE_CUDA
#include "ops/cuda/attention_cuda.h"
#include "ops/cuda/attention_own.h"
#endif

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "rig.h"

#if UPIPE_CUDA

// Two roundings to bf16 (of dS and of the result), 2^-8 of a value each at most: on a few tokens
// they do not average out.
static const double TOLERANCE = 2 * 0x1p-8, LSE_TOLERANCE = 2e-5;
enum { GUARD = 4096 }; // bytes behind the scratch

struct shape_case {
    int64_t batch, seq, heads, group, first, head_dim;
    bool accumulate;
};

/* The last ones are beyond what cuDNN serves. Runs of cuDNN begin at odd rows of lse, share KV
 * heads, are whole groups, parts of one, and (300 heads) split one. */
static const struct shape_case cases[] = {
    {1, 64, 1, 1, 0, 128, false},  {1, 77, 3, 2, 1, 128, true},      {2, 130, 3, 2, 1, 128, false},
    {2, 1000, 8, 4, 0, 128, true}, {1, 512, 8, 1, 0, 128, true},     {1, 640, 6, 4, 3, 64, false},
    {1, 333, 4, 4, 0, 64, true},   {2, 128, 2, 1, 0, 64, false},     {1, 200, 2, 2, 0, 96, true},
    {1, 1, 1, 1, 0, 128, false},   {2, 3, 2, 2, 1, 64, true},        {1, 65, 4, 2, 0, 16, false},
    {1, 150, 2, 2, 0, 32, true},   {1, 100, 2, 4, 2, 80, false},     {2, 129, 1, 1, 0, 112, true},
    {1, 190, 2, 1, 0, 160, false}, {1, 64, 2, 2, 0, 192, true},      {1, 257, 3, 3, 0, 256, false},
    {1, 70, 1, 1, 0, 8, true},     {1, 256, 300, 300, 0, 64, false},
};

static struct up_attention_shape shape_of(const struct shape_case *c)
{
    return (struct up_attention_shape){.batch = c->batch,
                                       .seq = c->seq,
                                       .heads = c->heads,
                                       .kv_heads = (c->first + c->heads - 1) / c->group + 1,
                                       .head_dim = c->head_dim,
                                       .group = c->group,
                                       .first_head_in_group = c->first};
}

/* --- Data ------------------------------------------------------------------------------------- */

enum name { Q, K, V, D_O, DK_BEFORE, DV_BEFORE, INPUTS, O = INPUTS, LSE, DQ, DK, DV, NAMES };
static const char *const names[NAMES] = {"q", "k",   "v",  "d_o", "dk before", "dv before",
                                         "o", "lse", "dq", "dk",  "dv"};

/* In fp32, in the layouts of ops/attention.h. */
struct data {
    float *at[NAMES];
};

static int64_t count_of(const struct up_attention_shape *s, enum name name)
{
    bool kv = name == K || name == V || name == DK || name == DV || name == DK_BEFORE ||
              name == DV_BEFORE;
    int64_t rows = s->batch * s->seq * (kv ? s->kv_heads : s->heads);
    return name == LSE ? rows : rows * s->head_dim;
}

static void round_to_bf16(float *x, int64_t count)
{
    uint16_t *narrow = malloc((size_t)count * sizeof *narrow);
    assert_non_null(narrow);
    up_cpu_cast(&(struct up_cast_args){x, narrow, count, UP_F32, UP_BF16});
    up_cpu_cast(&(struct up_cast_args){narrow, x, count, UP_BF16, UP_F32});
    free(narrow);
}

static struct data make_data(const struct up_attention_shape *s)
{
    struct data data;
    for (int name = 0; name < NAMES; name++) {
        int64_t count = count_of(s, name);
        float *x = data.at[name] = malloc((size_t)count * sizeof *x);
        assert_non_null(x);
#pragma omp parallel for
        for (int64_t i = 0; i < count; i++)
            x[i] = name < INPUTS ? (float)rig_random((uint64_t)name, i) : NAN;
        if (name < INPUTS) round_to_bf16(x, count);
    }
    return data;
}

static void free_data(struct data *data)
{
    for (int name = 0; name < NAMES; name++) free(data->at[name]);
}

static void solve_on_cpu(const struct up_attention_shape *s, bool accumulate, struct data *d)
{
    void *scratch = malloc((size_t)up_scratch_attention_backward(UP_DEVICE_CPU, s, accumulate));
    assert_non_null(scratch);
    up_cpu_attention_forward(&(struct up_attention_forward_args){.q = d->at[Q],
                                                                 .k = d->at[K],
                                                                 .v = d->at[V],
                                                                 .o = d->at[O],
                                                                 .lse = d->at[LSE],
                                                                 .shape = *s});
    memcpy(d->at[DK], d->at[DK_BEFORE], (size_t)count_of(s, DK) * sizeof(float));
    memcpy(d->at[DV], d->at[DV_BEFORE], (size_t)count_of(s, DV) * sizeof(float));
    up_cpu_attention_backward(&(struct up_attention_backward_args){.q = d->at[Q],
                                                                   .k = d->at[K],
                                                                   .v = d->at[V],
                                                                   .o = d->at[O],
                                                                   .d_o = d->at[D_O],
                                                                   .lse = d->at[LSE],
                                                                   .dq = d->at[DQ],
                                                                   .dk = d->at[DK],
                                                                   .dv = d->at[DV],
                                                                   .scratch = scratch,
                                                                   .accumulate = accumulate,
                                                                   .shape = *s});
    free(scratch);
}

/* --- On the GPU ------------------------------------------------------------------------------- */

static struct up_tensor *alloc(struct rig *rig, const char *name, enum up_dtype dtype,
                               int64_t count)
{
    struct up_tensor *t = up_alloc(&rig->rank, UP_TAG(ATTENTION, name), dtype, UP_SHAPE(count));
    rig_finish(rig);
    return t;
}

/* Every byte 0xff: NaN in every dtype. */
static void poison(struct rig *rig, const struct up_tensor *t)
{
    void *bytes = malloc((size_t)t->bytes);
    assert_non_null(bytes);
    memset(bytes, 0xff, (size_t)t->bytes);
    rig_upload(rig, t->data, bytes, t->bytes);
    free(bytes);
}

static struct up_tensor *upload(struct rig *rig, enum name name, const float *x, int64_t count)
{
    struct up_tensor *t = alloc(rig, names[name], UP_BF16, count);
    void *narrow = malloc((size_t)t->bytes);
    assert_non_null(narrow);
    up_cpu_cast(&(struct up_cast_args){x, narrow, count, UP_F32, UP_BF16});
    rig_upload(rig, t->data, narrow, t->bytes);
    free(narrow);
    return t;
}

static void download(struct rig *rig, float *x, const struct up_tensor *t)
{
    int64_t count = up_shape_count(&t->shape);
    void *bytes = malloc((size_t)t->bytes);
    assert_non_null(bytes);
    rig_download(rig, bytes, t->data, t->bytes);
    if (t->dtype == UP_BF16)
        up_cpu_cast(&(struct up_cast_args){bytes, x, count, UP_BF16, UP_F32});
    else
        memcpy(x, bytes, (size_t)t->bytes);
    free(bytes);
}

static void check_guard(struct rig *rig, const struct up_tensor *scratch)
{
    unsigned char bytes[GUARD];
    rig_download(rig, bytes, (char *)scratch->data + scratch->bytes - GUARD, GUARD);
    for (int i = 0; i < GUARD; i++) assert_int_equal(bytes[i], 0xff);
}

/* Where outputs go: dk and dv hold what is added to, everything else NaN. */
static void place(struct rig *rig, const struct up_attention_shape *s, bool accumulate,
                  bool in_place, const struct data *data, struct up_tensor *t[NAMES])
{
    for (int name = 0; name < DK_BEFORE; name++)
        t[name] = upload(rig, name, data->at[name], count_of(s, name));
    for (int name = O; name < NAMES; name++) {
        if (name == DQ && in_place) continue;
        bool added = accumulate && (name == DK || name == DV);
        if (added) {
            t[name] = upload(rig, name, data->at[name - DK + DK_BEFORE], count_of(s, name));
            continue;
        }
        t[name] = alloc(rig, names[name], name == LSE ? UP_F32 : UP_BF16, count_of(s, name));
        poison(rig, t[name]);
    }
    if (in_place) t[DQ] = t[D_O];
}

static void launch_forward(struct rig *rig, const struct up_attention_shape *s,
                           struct up_tensor **t)
{
    up_op_attention_forward(&rig->rank, UP_STREAM_COMPUTE,
                            &(struct up_attention_forward_args){.q = t[Q]->data,
                                                                .k = t[K]->data,
                                                                .v = t[V]->data,
                                                                .o = t[O]->data,
                                                                .lse = t[LSE]->data,
                                                                .shape = *s,
                                                                .dtype = UP_BF16});
}

static void launch_backward(struct rig *rig, const struct up_attention_shape *s, bool accumulate,
                            struct up_tensor **t, void *scratch)
{
    up_op_attention_backward(&rig->rank, UP_STREAM_COMPUTE,
                             &(struct up_attention_backward_args){.q = t[Q]->data,
                                                                  .k = t[K]->data,
                                                                  .v = t[V]->data,
                                                                  .o = t[O]->data,
                                                                  .d_o = t[D_O]->data,
                                                                  .lse = t[LSE]->data,
                                                                  .dq = t[DQ]->data,
                                                                  .dk = t[DK]->data,
                                                                  .dv = t[DV]->data,
                                                                  .scratch = scratch,
                                                                  .accumulate = accumulate,
                                                                  .shape = *s,
                                                                  .dtype = UP_BF16});
}

static struct up_tensor *alloc_scratch(struct rig *rig, const struct up_attention_shape *s,
                                       bool accumulate)
{
    int64_t bytes = up_scratch_attention_backward(UP_DEVICE_CUDA, s, accumulate);
    struct up_tensor *scratch = alloc(rig, "scratch", UP_U8, bytes + GUARD);
    poison(rig, scratch);
    return scratch;
}

static void solve_on_gpu(struct rig *rig, const struct up_attention_shape *s, bool accumulate,
                         bool in_place, struct data *data)
{
    struct up_tensor *t[NAMES] = {NULL};
    place(rig, s, accumulate, in_place, data, t);
    struct up_tensor *scratch = alloc_scratch(rig, s, accumulate);
    launch_forward(rig, s, t);
    launch_backward(rig, s, accumulate, t, scratch->data);
    rig_finish(rig);
    for (int name = O; name < NAMES; name++) download(rig, data->at[name], t[name]);
    check_guard(rig, scratch);
    up_free(&rig->rank, &scratch);
    if (in_place) t[DQ] = NULL;
    for (int name = 0; name < NAMES; name++) up_free(&rig->rank, &t[name]);
}

/* --- Which kernels ---------------------------------------------------------------------------- */

static struct up_cuda *cuda_of(struct rig *rig)
{
    return up_device_cuda_launch(rig->device);
}

static void force_own(struct rig *rig, bool own)
{
    up_cuda_attention_force_own(cuda_of(rig), own);
}

static const char *why_own(struct rig *rig, const struct up_attention_shape *s)
{
    return up_cuda_attention_why_own(cuda_of(rig), s);
}

static enum up_status prepare(struct rig *rig, const struct up_attention_shape *s,
                              struct up_error *err)
{
    bool empty = s->batch == 0 || s->seq == 0 || s->heads == 0;
    const char *refused = up_attention_own_refuses(s->head_dim);
    if (empty || !why_own(rig, s) || !refused) return UP_OK;
    return up_fail(err, UP_FAILED, "attention: %s", refused);
}

static bool expects_cudnn(struct rig *rig)
{
    return up_cuda_compute_capability(cuda_of(rig)) == 90 && dlopen("libcudnn.so.9", RTLD_NOW);
}

static bool is_cudnns(const struct shape_case *c)
{
    return c->seq >= 64 && (c->head_dim == 64 || c->head_dim == 96 || c->head_dim == 128);
}

/* --- Against the cpu -------------------------------------------------------------------------- */

static double relative_error(const float *x, const float *expected, int64_t count)
{
    double difference = 0, norm = 0;
#pragma omp parallel for reduction(+ : difference, norm)
    for (int64_t i = 0; i < count; i++) {
        double d = (double)x[i] - (double)expected[i];
        difference += d * d;
        norm += (double)expected[i] * (double)expected[i];
    }
    /* Of one key dq and dk are 0, and differences of bf16 numbers on the GPU. */
    return sqrt(difference / (norm > 1e-6 * (double)count ? norm : (double)count));
}

static double largest_difference(const float *x, const float *expected, int64_t count)
{
    double largest = 0;
    for (int64_t i = 0; i < count; i++) {
        double d = fabs((double)x[i] - (double)expected[i]);
        if (!(d <= largest)) largest = d; // NaN too
    }
    return largest;
}

static bool agree(const struct up_attention_shape *s, const struct data *x,
                  const struct data *expected, const char *what)
{
    bool good = true;
    for (int name = O; name < NAMES; name++) {
        int64_t count = count_of(s, name);
        double error = name == LSE ? largest_difference(x->at[name], expected->at[name], count)
                                   : relative_error(x->at[name], expected->at[name], count);
        if (error <= (name == LSE ? LSE_TOLERANCE : TOLERANCE)) continue;
        print_message("%s, batch %lld seq %lld heads %lld/%lld group %lld from %lld head_dim %lld: "
                      "%s is off by %.2g\n",
                      what, (long long)s->batch, (long long)s->seq, (long long)s->heads,
                      (long long)s->kv_heads, (long long)s->group,
                      (long long)s->first_head_in_group, (long long)s->head_dim, names[name],
                      error);
        good = false;
    }
    return good;
}

static bool check_case(struct rig *rig, const struct shape_case *c, const char *what)
{
    struct up_attention_shape s = shape_of(c);
    struct data expected = make_data(&s), data = make_data(&s);
    solve_on_cpu(&s, c->accumulate, &expected);
    bool good = true;
    for (int in_place = 0; in_place < 2; in_place++) {
        solve_on_gpu(rig, &s, c->accumulate, in_place, &data);
        good &= agree(&s, &data, &expected, what);
    }
    free_data(&data);
    free_data(&expected);
    return good;
}

static void test_own(void **state)
{
    struct rig *rig = rig_or_skip(state);
    bool good = true;
    force_own(rig, true);
    for (int i = 0; i < UP_COUNT(cases); i++) good &= check_case(rig, &cases[i], "our own");
    force_own(rig, false);
    assert_true(good);
}

static void test_cudnn(void **state)
{
    struct rig *rig = rig_or_skip(state);
    bool good = true;
    if (!expects_cudnn(rig)) skip();
    for (int i = 0; i < UP_COUNT(cases); i++) {
        struct up_attention_shape s = shape_of(&cases[i]);
        const char *why = why_own(rig, &s);
        if (is_cudnns(&cases[i]) != !why) {
            print_message("seq %lld head_dim %lld: %s\n", (long long)s.seq, (long long)s.head_dim,
                          why ? why : "expected not to be cuDNN's");
            good = false;
        }
        if (!why) good &= check_case(rig, &cases[i], "cuDNN");
    }
    assert_true(good);
}

/* --- Besides ---------------------------------------------------------------------------------- */

static void test_own_repeats(void **state)
{
    struct rig *rig = rig_or_skip(state);
    struct shape_case c = {1, 1000, 4, 4, 0, 128, true};
    struct up_attention_shape s = shape_of(&c);
    struct data first = make_data(&s), second = make_data(&s);
    force_own(rig, true);
    solve_on_gpu(rig, &s, true, true, &first);
    solve_on_gpu(rig, &s, true, true, &second);
    force_own(rig, false);
    for (int name = O; name < NAMES; name++)
        assert_memory_equal(first.at[name], second.at[name],
                            (size_t)count_of(&s, name) * sizeof(float));
    free_data(&second);
    free_data(&first);
}

static void test_preparing(void **state)
{
    struct rig *rig = rig_or_skip(state);
    struct up_error err = {0};
    struct up_attention_shape s = {
        .batch = 1, .seq = 4096, .heads = 8, .kv_heads = 2, .head_dim = 128, .group = 4};
    assert_int_equal(prepare(rig, &s, &err), UP_OK);
    s.head_dim = 48;
    assert_int_equal(prepare(rig, &s, &err), UP_OK);
    s.head_dim = 264;
    assert_int_equal(prepare(rig, &s, &err), UP_FAILED);
    assert_non_null(strstr(err.text, "head_dim up to 256"));
    rig_finish(rig);
}

/* Two implementations that share nothing, at 16384 tokens (a whole group to a run) and 65536 (runs
 * that share the KV head). */
static void test_against_each_other(void **state)
{
    struct rig *rig = rig_or_skip(state);
    const struct shape_case long_cases[] = {{1, 16384, 2, 2, 0, 128, false},
                                            {1, 65536, 2, 2, 0, 64, true}};
    if (!expects_cudnn(rig)) skip();
    for (int i = 0; i < UP_COUNT(long_cases); i++) {
        const struct shape_case *c = &long_cases[i];
        struct up_attention_shape s = shape_of(c);
        struct data own = make_data(&s), cudnn = make_data(&s);
        assert_null(why_own(rig, &s));
        solve_on_gpu(rig, &s, c->accumulate, true, &cudnn);
        force_own(rig, true);
        solve_on_gpu(rig, &s, c->accumulate, true, &own);
        force_own(rig, false);
        assert_true(agree(&s, &own, &cudnn, "our own against cuDNN"));
        free_data(&cudnn);
        free_data(&own);
    }
}

/* --- Beyond 32 bits --------------------------------------------------------------------------- */

/* So many heads that a tensor of q's shape has more than 2^31 elements, at lengths that do not take
 * long. It is filled with the same heads over and over; those of the last group must come out as
 * those of the first. */
enum { WIDE_HEADS = 2080, WIDE_PERIOD = 16 };

static void fill_wide(struct rig *rig, const struct up_tensor *t,
                      const struct up_attention_shape *s, enum name name)
{
    int64_t row = s->heads * s->head_dim, period = WIDE_PERIOD * s->head_dim, rows = 64;
    uint16_t *host = malloc((size_t)(rows * row) * sizeof *host);
    float *x = malloc((size_t)period * sizeof *x);
    assert_true(host && x);
    for (int64_t first = 0; first < s->seq; first += rows) {
        for (int64_t i = 0; i < rows; i++) {
            uint16_t *to = host + i * row;
            for (int64_t j = 0; j < period; j++)
                x[j] = (float)rig_random((uint64_t)name, (first + i) * period + j);
            up_cpu_cast(&(struct up_cast_args){x, to, period, UP_F32, UP_BF16});
            for (int64_t j = period; j < row; j += period)
                memcpy(to + j, to, (size_t)period * sizeof *to);
        }
        rig_upload(rig, (uint16_t *)t->data + first * row, host, rows * row * 2);
    }
    free(x);
    free(host);
}

/* Heads [head, head + WIDE_PERIOD) of every 97th row and of the last, one after the other. */
static float *sample_wide(struct rig *rig, const struct up_tensor *t,
                          const struct up_attention_shape *s, int64_t head, int64_t *count)
{
    int64_t width = WIDE_PERIOD * s->head_dim;
    uint16_t *narrow = malloc((size_t)width * sizeof *narrow);
    float *x = malloc((size_t)((s->seq / 97 + 2) * width) * sizeof *x);
    assert_true(narrow && x);
    *count = 0;
    for (int64_t row = 0; row < s->seq;
         row += row + 97 < s->seq ? 97 : up_max(s->seq - 1 - row, 1)) {
        const uint16_t *from = (const uint16_t *)t->data + (row * s->heads + head) * s->head_dim;
        rig_download(rig, narrow, from, width * 2);
        up_cpu_cast(&(struct up_cast_args){narrow, x + *count, width, UP_BF16, UP_F32});
        *count += width;
    }
    free(narrow);
    return x;
}

static void check_wide(struct rig *rig, const struct up_tensor *t,
                       const struct up_attention_shape *s, const char *what)
{
    int64_t count = 0;
    float *first = sample_wide(rig, t, s, 0, &count);
    float *last = sample_wide(rig, t, s, s->heads - WIDE_PERIOD, &count);
    double error = relative_error(last, first, count), size = 0;
    for (int64_t i = 0; i < count; i++) size = fmax(size, fabs((double)first[i]));
    free(last);
    free(first);
    if (!(error <= TOLERANCE && size > 0)) fail_msg("%s: %g off, of size %g", what, error, size);
}

static void test_beyond_32_bits(void **state)
{
    struct rig *rig = rig_or_skip(state);
    struct up_attention_shape s = {.batch = 1,
                                   .seq = 8192,
                                   .heads = WIDE_HEADS,
                                   .kv_heads = 1,
                                   .head_dim = 128,
                                   .group = WIDE_HEADS};
    int64_t count = count_of(&s, Q);
    assert_true(count > INT32_MAX);
    if (rig->rank.capacity[UP_SPACE_DEVICE] < 8 * count) skip();
    struct up_tensor *t[NAMES] = {NULL};
    t[Q] = alloc(rig, "q", UP_BF16, count);
    t[O] = alloc(rig, "o", UP_BF16, count);
    t[D_O] = t[DQ] = alloc(rig, "d_o", UP_BF16, count);
    t[LSE] = alloc(rig, "lse", UP_F32, count_of(&s, LSE));
    const enum name small[] = {K, V, DK, DV};
    struct up_attention_shape kv = s;
    kv.heads = 1;
    struct data data = make_data(&kv);
    for (int i = 0; i < UP_COUNT(small); i++)
        t[small[i]] = upload(rig, small[i], data.at[i % 2 ? V : K], count_of(&s, K));
    struct up_tensor *scratch = alloc_scratch(rig, &s, false);

    for (int own = 0; own < 2; own++) {
        force_own(rig, own);
        fill_wide(rig, t[Q], &s, Q);
        fill_wide(rig, t[D_O], &s, D_O);
        launch_forward(rig, &s, t);
        launch_backward(rig, &s, false, t, scratch->data);
        rig_finish(rig);
        check_wide(rig, t[O], &s, own ? "our own o" : "o");
        check_wide(rig, t[DQ], &s, own ? "our own dq" : "dq");
    }
    force_own(rig, false);
    check_guard(rig, scratch);
    up_free(&rig->rank, &scratch);
    t[DQ] = NULL;
    for (int name = 0; name < NAMES; name++) up_free(&rig->rank, &t[name]);
    free_data(&data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own),
        cmocka_unit_test(test_cudnn),
        cmocka_unit_test(test_own_repeats),
        cmocka_unit_test(test_preparing),
        cmocka_unit_test(test_against_each_other),
        cmocka_unit_test(test_beyond_32_bits),
    };
    return cmocka_run_group_tests(tests, rig_start, rig_stop);
}

#else

int main(void)
{
    print_message("skipped: built without the cuda device\n");
    return 0;
}

#endif
