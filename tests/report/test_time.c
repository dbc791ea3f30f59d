/* Where a step's time goes, on steps drawn by hand: what is counted to the compute stream, what is
 * exposed, which step is taken, and what a file with odd rows gives. */
#include "base/base.h"
#include "tests/report/run.h"

#include <jansson.h>
#include <math.h>

// In milliseconds after the step's begin; `more` are the table's columns after end_ns.
struct row {
    const char *table, *name, *stream, *more;
    int begin, end;
};
#define KERNEL(name, stream, begin, end)                                                           \
    {                                                                                              \
        "kernel", name, stream, "1e9", begin, end                                                  \
    }
#define COPY(stream, begin, end)                                                                   \
    {                                                                                              \
        "copy", "x", stream, "'device', 'host', 1", begin, end                                     \
    }
#define COLLECTIVE(begin, end)                                                                     \
    {                                                                                              \
        "collective", "all_to_all", "comm", "1", begin, end                                        \
    }

enum { STEP_MS = 100 };

static void insert(struct fixture *f, const struct row *rows, int count)
{
    int64_t begin = f->ns;
    for (int i = 0; i < count; i++)
        fixture_sql(f, "INSERT INTO %s VALUES (NULL, %lld, '%q', %lld, '%q', NULL, %lld, %lld, %s)",
                    rows[i].table, (long long)f->rank, rows[i].name, (long long)f->step,
                    rows[i].stream, (long long)(begin + 1000000 * rows[i].begin),
                    (long long)(begin + 1000000 * rows[i].end), rows[i].more);
}

// A step of 100 ms with these rows.
static void draw(struct fixture *f, int step, const struct row *rows, int count)
{
    fixture_step_begin(f, step);
    insert(f, rows, count);
    f->ns += STEP_MS * 1000000 - 100000; // fixture_step_end adds what is missing
    fixture_step_end(f, 1, 8, 0, -1, -1);
}

static json_t *time_of(void)
{
    struct outcome o = report("", "run.db --json");
    assert_int_equal(o.status, 0);
    json_t *root = json_loads(o.out, 0, NULL);
    json_t *time = json_incref(json_object_get(root, "time"));
    json_decref(root);
    outcome_release(&o);
    return time;
}

static double ms(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_real(value));
    return 1000 * json_real_value(value);
}

static double kind_ms(const json_t *time, const char *kind)
{
    size_t i;
    const json_t *row;
    json_array_foreach(json_object_get(time, "compute"), i,
                       row) if (!strcmp(json_string_value(json_object_get(row, "kind")),
                                        kind)) return ms(row, "seconds");
    fail_msg("no kind '%s'", kind);
    return NAN;
}

static void near(double a, double b)
{
    if (!(fabs(a - b) < 1e-6)) fail_msg("%.9g, expected %.9g", a, b);
}

static void beside(const json_t *time, const char *what, double busy, double exposed)
{
    near(ms(json_object_get(time, what), "busy_s"), busy);
    near(ms(json_object_get(time, what), "exposed_s"), exposed);
}

static void begin(struct fixture *f)
{
    fixture_open(f, "run.db");
    fixture_describe(f);
}

static json_t *end(struct fixture *f)
{
    fixture_close(f);
    return time_of();
}

static void test_kinds_and_exposure(void **state)
{
    (void)state;
    // The compute stream idles at 30-40 and from 90 on.
    static const struct row rows[] = {
        KERNEL("attention_backward", "compute", 0, 10),
        KERNEL("matmul", "compute", 10, 25),
        KERNEL("swiglu_forward", "compute", 25, 30),
        KERNEL("matmul", "compute", 40, 80),
        KERNEL("adamw", "compute", 80, 88),
        COPY("compute", 88, 90),
        COLLECTIVE(20, 34),
        KERNEL("add", "comm", 34, 36),
        COPY("copy-in", 32, 38),
        COPY("copy-out", 37, 60),
        COPY("copy-out", 95, 97),
    };
    struct fixture f;
    begin(&f);
    draw(&f, 0, rows, UP_COUNT(rows));
    json_t *time = end(&f);
    near(ms(time, "step_s"), 100);
    near(kind_ms(time, "attention backward"), 10);
    near(kind_ms(time, "attention forward"), 0);
    near(kind_ms(time, "matmul"), 55);
    near(kind_ms(time, "pointwise"), 7);
    near(kind_ms(time, "optimizer"), 8);
    near(ms(time, "idle_s"), 20);
    // While idle: collectives 30-36; copies alone 36-40 and 95-97.
    beside(time, "collectives", 16, 6);
    beside(time, "copies", 6 + 23 - 1 + 2, 6);
    json_decref(time);
}

// Rows in any order, over each other, beyond the step's ends, backwards.
static void test_odd_rows(void **state)
{
    (void)state;
    static const struct row rows[] = {
        KERNEL("matmul", "compute", 60, 70),
        KERNEL("matmul", "compute", 10, 30),
        KERNEL("matmul", "compute", 20, 40),
        KERNEL("matmul", "compute", -50, 5),
        KERNEL("matmul", "compute", 95, 1000),
        KERNEL("matmul", "compute", 90, 50),
        COLLECTIVE(-10, 300),
    };
    struct fixture f;
    begin(&f);
    f.ns = 1000000000;
    draw(&f, 0, rows, UP_COUNT(rows));
    fixture_sql(&f, "INSERT INTO kernel VALUES (NULL, 0, '', 0, 'compute', NULL, 'when', -1, 'x'),"
                    " (NULL, 0, 'matmul', 0, 'compute', 7, -9223372036854775807 - 1,"
                    " -9223372036854775807 - 1, NULL)");
    json_t *time = end(&f);
    near(ms(time, "idle_s"), 100 - (5 + 30 + 10 + 5));
    beside(time, "collectives", 100, 50);
    beside(time, "copies", 0, 0);
    json_decref(time);
}

// A GPU's rows say what was given when, not how long it took: no time is told, rather than
// idleness.
static void test_rows_without_times(void **state)
{
    (void)state;
    static const struct row rows[] = {
        KERNEL("matmul", "compute", 10, 10),
        KERNEL("adamw", "compute", 20, 20),
        COPY("copy-in", 30, 30),
    };
    struct fixture f;
    begin(&f);
    draw(&f, 0, rows, UP_COUNT(rows));
    json_t *time = end(&f);
    assert_true(json_is_null(time));
    json_decref(time);
}

// The last step that ended, of its lowest rank with kernels; nothing where there is none.
static void test_which_step(void **state)
{
    (void)state;
    static const struct row early = KERNEL("matmul", "compute", 0, 10);
    static const struct row late = KERNEL("matmul", "compute", 0, 20);
    static const struct row unfinished = KERNEL("matmul", "compute", 0, 30);
    struct fixture f;
    begin(&f);
    draw(&f, 0, NULL, 0);
    json_t *time = end(&f);
    assert_true(json_is_null(time));

    begin(&f);
    draw(&f, 0, &early, 1);
    for (f.rank = 2; f.rank > 0; f.rank--) draw(&f, 1, &late, 1);
    draw(&f, 1, NULL, 0); // of rank 0, without rows
    draw(&f, 2, NULL, 0); // as step 1
    fixture_step_begin(&f, 3);
    insert(&f, &unfinished, 1);
    // What was seen beside the work of steps, here of two that have no other rows.
    fixture_sql(&f, "INSERT INTO kernel SELECT (1 << 62) + step, 0, 'void k()', step, 'stream 7',"
                    " NULL, begin_ns, begin_ns + 5, NULL FROM step WHERE rank = 0 AND step < 3");
    time = end(&f);
    assert_int_equal(json_integer_value(json_object_get(time, "step")), 1);
    assert_int_equal(json_integer_value(json_object_get(time, "rank")), 1);
    near(kind_ms(time, "matmul"), 20);
    json_decref(time);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds_and_exposure),
        cmocka_unit_test(test_odd_rows),
        cmocka_unit_test(test_rows_without_times),
        cmocka_unit_test(test_which_step),
    };
    return cmocka_run_group_tests_name("time", tests, folder_setup, folder_teardown);
}
