/* The formulas for attention's gradients in reference.h, against differences of its forward pass.
 */
#include "reference.h"

#include <math.h>
#include <setjmp.h>
#include <cmocka.h>

enum { BATCH = 2, SEQ = 5, HEADS = 3, KV_HEADS = 2, HEAD_DIM = 3, GROUP = 2, FIRST = 1 };
enum { COUNT = BATCH * SEQ * HEADS * HEAD_DIM, KV_COUNT = BATCH * SEQ * KV_HEADS * HEAD_DIM };

static void fill(double *x, int count, uint64_t stream)
{
    for (int i = 0; i < count; i++) x[i] = (double)up_random_normal(3, stream, (uint64_t)i);
}

static void assert_close(const double *actual, const double *expected, int count)
{
    for (int i = 0; i < count; i++)
        if (!(fabs(actual[i] - expected[i]) < 1e-8))
            fail_msg("element %d is %.12g, expected %.12g", i, actual[i], expected[i]);
}

static void test_attention_gradients(void **state)
{
    (void)state;
    const int64_t p[] = {BATCH, SEQ, HEADS, KV_HEADS, HEAD_DIM, GROUP, FIRST, 0};
    double q[COUNT], k[KV_COUNT], v[KV_COUNT], d_o[COUNT], o[COUNT], lse[BATCH * HEADS * SEQ];
    double dq[COUNT], dk[KV_COUNT], dv[KV_COUNT];
    fill(q, COUNT, 0);
    fill(k, KV_COUNT, 1);
    fill(v, KV_COUNT, 2);
    fill(d_o, COUNT, 3);
    reference_attention_backward(p, (double *[]){q, k, v, d_o, dq, dk, dv});

    double *const forward[] = {q, k, v, o, lse};
    const double *const gradients[] = {dq, dk, dv};
    const int counts[] = {COUNT, KV_COUNT, KV_COUNT};
    for (int input = 0; input < 3; input++) {
        double expected[COUNT] = {0};
        differentiate(reference_attention_forward, p, forward, input, counts[input], 3, COUNT, d_o,
                      expected);
        assert_close(gradients[input], expected, counts[input]);
    }
}

/* One key: its value comes out, and nothing flows to the scores. */
static void test_attention_of_one_row(void **state)
{
    (void)state;
    const int64_t p[] = {1, 1, 1, 1, 2, 1, 0, 0};
    double q[] = {3, 4}, k[] = {1, 2}, v[] = {5, 6}, o[2], lse[1];
    reference_attention_forward(p, (double *[]){q, k, v, o, lse});
    assert_close(o, v, 2);
    assert_close(lse, (double[]){11 / sqrt(2)}, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_gradients),
        cmocka_unit_test(test_attention_of_one_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
