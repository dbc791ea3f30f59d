/* Random numbers: the same one by one and many at once, and what they are to be. */
#include "base/base.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum { MANY = 1 << 20 };
static float many[MANY];

static void test_one_by_one(void **state)
{
    (void)state;
    static const int64_t counts[] = {0, 1, 7, 8, 15, 1000};
    for (int c = 0; c < UP_COUNT(counts); c++)
        for (uint64_t first = 0; first < 20; first++) {
            many[counts[c]] = 77;
            up_random_normals(5, 3, first, 0.5F, counts[c], many);
            for (int64_t i = 0; i < counts[c]; i++)
                assert_true(many[i] == 0.5F * up_random_normal(5, 3, first + (uint64_t)i));
            assert_true(many[counts[c]] == 77);
        }
}

// Box and Muller, with the C library's functions.
static void test_formula(void **state)
{
    (void)state;
    up_random_normals(1, 2, 0, 1, MANY, many);
    for (int i = 0; i < MANY; i++) {
        uint64_t bits = up_random_u64(1, 2, (uint64_t)i);
        double u = ((double)(bits >> 32) + 1) * 0x1p-32, v = (double)(uint32_t)bits * 0x1p-32;
        double want = sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
        if (fabs(many[i] - want) > 1e-6 * fabs(want) + 1e-9)
            fail_msg("number %d: %.9g, expected %.9g", i, (double)many[i], want);
    }
}

static void test_moments(void **state)
{
    (void)state;
    double sum[4] = {0};
    up_random_normals(9, 0, 12345, 1, MANY, many);
    for (int i = 0; i < MANY; i++)
        for (int p = 0; p < 4; p++) sum[p] += pow(many[i], p + 1) / MANY;
    static const double want[] = {0, 1, 0, 3}, within[] = {0.005, 0.007, 0.02, 0.05};
    for (int p = 0; p < 4; p++) assert_true(fabs(sum[p] - want[p]) < within[p]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_by_one),
        cmocka_unit_test(test_formula),
        cmocka_unit_test(test_moments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
