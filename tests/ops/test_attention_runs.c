/* How attention on cuda is cut into runs of query heads: every head once, each run something that
 * cuDNN can do, within its 32-bit offsets, in the scratch that the caller was told. */
#include "ops/cuda/attention_runs_impl.h"
#include "ops/ops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

typedef struct up_attention_run run_at_fn(const struct up_attention_shape *shape, int64_t head);

static int64_t kv_of(const struct up_attention_shape *s, int64_t head)
{
    return (s->first_head_in_group + head) / s->group;
}

/* cuDNN gives query head h of a run the KV head h / (heads / kv_heads). */
static void check_run(const struct up_attention_shape *s, const struct up_attention_run *run)
{
    assert_true(run->heads > 0 && run->kv_heads > 0 && run->heads % run->kv_heads == 0);
    for (int64_t h = 0; h < run->heads; h++)
        assert_int_equal(run->kv_head + h / (run->heads / run->kv_heads), kv_of(s, run->head + h));
    bool shares = run->head > 0 && kv_of(s, run->head) == kv_of(s, run->head - 1);
    assert_int_equal(run->shares, shares);
}

static void check_cover(const struct up_attention_shape *s, run_at_fn *run_at)
{
    int64_t head = 0;
    while (head < s->heads) {
        struct up_attention_run run = run_at(s, head);
        assert_int_equal(run.head, head);
        check_run(s, &run);
        head += run.heads;
    }
    assert_int_equal(head, s->heads);
}

static void check_backward_run(const struct up_attention_shape *s,
                               const struct up_attention_run *run, bool accumulate)
{
    struct up_attention_scratch scratch =
        up_attention_scratch_of(s, run, accumulate || run->shares);
    assert_true(scratch.bytes <= up_scratch_attention_backward(UP_DEVICE_CUDA, s, accumulate));
    assert_int_equal(scratch.dk >= 0, accumulate || run->shares);
    assert_true(run->heads * s->seq * s->head_dim <= INT32_MAX);
    int64_t stride = scratch.o < 0 ? s->heads : run->heads;
    assert_true(((s->seq - 1) * stride + run->heads) * s->head_dim <= INT32_MAX);
    if (run->heads != run->kv_heads)
        assert_true(s->seq * s->kv_heads * s->head_dim < INT64_C(1) << 32);
}

static void check_shape(const struct up_attention_shape *s)
{
    check_cover(s, up_attention_forward_run);
    check_cover(s, up_attention_backward_run);
    if (!up_attention_fits_cudnn(s)) return;
    struct up_attention_run run;
    for (int64_t head = 0; head < s->heads; head += run.heads) {
        run = up_attention_backward_run(s, head);
        check_backward_run(s, &run, false);
        check_backward_run(s, &run, true);
    }
}

static void test_all_shapes(void **state)
{
    (void)state;
    const int64_t lengths[] = {1, 77, 8192, 20000, 65536, 131071, 1 << 20, 1 << 23};
    for (int64_t group = 1; group <= 8; group++)
        for (int64_t first = 0; first < group; first++)
            for (int64_t heads = 1; heads <= 33; heads++)
                for (int i = 0; i < UP_COUNT(lengths); i++) {
                    struct up_attention_shape s = {.batch = 1,
                                                   .seq = lengths[i],
                                                   .heads = heads,
                                                   .head_dim = 128,
                                                   .group = group,
                                                   .first_head_in_group = first};
                    s.kv_heads = kv_of(&s, heads - 1) + 1;
                    check_shape(&s);
                }
}

static void test_sizes_of_runs(void **state)
{
    (void)state;
    struct up_attention_shape s = {
        .batch = 1, .seq = 8192, .heads = 32, .kv_heads = 8, .head_dim = 128, .group = 4};
    assert_int_equal(up_attention_backward_run(&s, 0).heads, 32);
    assert_int_equal(up_attention_forward_run(&s, 0).heads, 32);
    // What a run of all heads takes: fp32 dq, a sum a row, and bf16 dk and dv of each query head.
    struct up_attention_run all = up_attention_backward_run(&s, 0);
    assert_int_equal(up_attention_scratch_of(&s, &all, false).bytes,
                     (int64_t)32 * 8192 * 128 * (4 + 4) + (int64_t)32 * 8192 * 4 + 256);
    s.seq = 16384;
    assert_int_equal(up_attention_backward_run(&s, 0).heads, 8); // two whole groups
    assert_int_equal(up_attention_forward_run(&s, 0).heads, 16);
    s.seq = 32768;
    assert_int_equal(up_attention_backward_run(&s, 0).heads, 2); // half a group
    assert_int_equal(up_attention_forward_run(&s, 0).heads, 8);
    s.seq = 1 << 20;
    assert_int_equal(up_attention_backward_run(&s, 0).heads, 1);
    assert_int_equal(up_attention_forward_run(&s, 0).heads, 4);
    s.first_head_in_group = 3; // the rest of a group, then whole ones
    s.heads = 5;
    s.kv_heads = 2;
    assert_int_equal(up_attention_forward_run(&s, 0).heads, 1);
    assert_int_equal(up_attention_forward_run(&s, 1).heads, 4);
}

// How many there are, blocks of rows counted, of every sequence.
static void test_counts(void **state)
{
    (void)state;
    static const struct {
        int64_t batch, seq, heads, forward, backward;
    } rows[] = {{1, 8192, 32, 1, 1},        {3, 8192, 32, 3, 3},    {1, 16384, 32, 2, 4},
                {1, 32768, 32, 4, 16},      {1, 131072, 1, 1, 1},   {1, 131072, 8, 2 * 16, 8},
                {2, 131072, 8, 2 * 32, 16}, {1, 1 << 20, 4, 64, 4}, {1, 0, 4, 0, 0},
                {1, 8192, 0, 0, 0}};
    for (int i = 0; i < UP_COUNT(rows); i++) {
        struct up_attention_shape s = {.batch = rows[i].batch,
                                       .seq = rows[i].seq,
                                       .heads = rows[i].heads,
                                       .kv_heads = up_ceil_div(rows[i].heads, 4),
                                       .head_dim = 128,
                                       .group = 4};
        if (up_attention_forward_runs(&s) != rows[i].forward ||
            up_attention_backward_runs(&s) != rows[i].backward)
            fail_msg("row %d: %lld and %lld", i, (long long)up_attention_forward_runs(&s),
                     (long long)up_attention_backward_runs(&s));
    }
}

/* The parts of the scratch lie one after the other, each on a multiple of 256 bytes. */
static void test_scratch_parts(void **state)
{
    (void)state;
    struct up_attention_shape s = {
        .batch = 1, .seq = 3000001, .heads = 8, .kv_heads = 2, .head_dim = 128, .group = 4};
    struct up_attention_run run = up_attention_backward_run(&s, 1);
    struct up_attention_scratch p = up_attention_scratch_of(&s, &run, true);
    const int64_t rows = s.seq * 128;
    const int64_t begins[] = {p.dq_sum, p.softmax_sum, p.workspace, p.dk,
                              p.dv,     p.o,           p.d_o,       p.bytes};
    const int64_t sizes[] = {4 * rows, 4 * s.seq, 256, 2 * rows, 2 * rows, 2 * rows, 2 * rows};
    assert_int_equal(begins[0], 0);
    for (int i = 0; i < UP_COUNT(sizes); i++)
        assert_int_equal(begins[i + 1], up_ceil_div(begins[i] + sizes[i], 256) * 256);
}

// Blocks of forward calls: none for short sequences; else whole 128 rows, equal but for the last,
// as many rows over the heads as fill a GPU, 64 at most.
static void test_blocks(void **state)
{
    (void)state;
    for (int64_t heads = 1; heads <= 32; heads *= 2)
        for (int64_t seq = 1; seq < INT64_C(1) << 24; seq = seq * 3 / 2 + 7) {
            int64_t rows = up_attention_block_rows(seq, heads);
            if (seq <= 65536) assert_int_equal(rows, seq);
            if (seq > 262144) assert_true(rows < seq);
            if (rows == seq) continue;
            int64_t blocks = up_ceil_div(seq, rows);
            assert_int_equal(rows % 128, 0);
            assert_true(blocks <= 64 && rows >= 8192 * 8 / 9);
            assert_true(rows <= up_max(32768, seq / 64) + 128);
            assert_true(seq - (blocks - 1) * rows > rows - blocks * 128);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_shapes), cmocka_unit_test(test_sizes_of_runs),
        cmocka_unit_test(test_counts),     cmocka_unit_test(test_scratch_parts),
        cmocka_unit_test(test_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
