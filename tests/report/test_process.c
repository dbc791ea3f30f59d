/* The trace of one process of several: it holds some of the ranks, not rank 0, and the report says
 * of them what it says of a whole run. */
#include "tests/report/run.h"

#include <stdbool.h>

// The typical run, as the first rank of the second of two processes with two ranks each.
static void write_second(const char *path, bool complete)
{
    static const char *const tables[] = {"rank",   "tensor",    "range",      "step",
                                         "kernel", "copy",      "collective", "device_alloc",
                                         "usage",  "diagnostic"};
    static struct fixture_count count;
    struct fixture f;
    count = (struct fixture_count){0};
    fixture_open(&f, path);
    fixture_train(&f, &count);
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        fixture_sql(&f, "UPDATE \"%w\" SET rank = 2 WHERE rank = 0", tables[i]);
    fixture_meta(&f, "ranks", "4");
    fixture_meta(&f, "process", "1");
    fixture_meta(&f, "processes", "2");
    if (!complete) {
        fixture_meta(&f, "complete", "0");
        fixture_sql(&f, "UPDATE step SET end_ns = NULL WHERE step = (SELECT max(step) FROM step)");
    }
    fixture_indexes(&f);
    fixture_close(&f);
}

static void must_hold(const struct outcome *o, const char *text)
{
    if (!strstr(o->out, text)) fail_msg("expected '%s' in: %s%s", text, o->out, o->err);
}

static void test_part_of_the_ranks(void **state)
{
    (void)state;
    char *folder = folder_enter();
    write_second("run.1.db", true);
    struct outcome o = report("", "run.1.db");
    assert_int_equal(o.status, 0);
    must_hold(&o, "4 ranks");
    must_hold(&o, ", rank 2, step");
    must_hold(&o, "of the 4 ranks only rank 2 left rows here: the others, and perhaps");
    assert_null(strstr(o.out, "INCOMPLETE"));
    outcome_release(&o);
    json_t *root = json_of("run.1.db --json", 0);
    const json_t *run = json_object_get(root, "run");
    assert_int_equal(json_integer_value(json_object_get(run, "ranks_recorded")), 1);
    json_decref(root);
    o = report("", "peak run.1.db --rank 2");
    assert_int_equal(o.status, 0);
    outcome_release(&o);
    o = report("", "peak run.1.db --rank 0");
    assert_int_equal(o.status, 2);
    assert_non_null(strstr(o.err, "ranks in it: 2"));
    outcome_release(&o);
    folder_remove(folder);
}

// A run whose ranks are all there, and a dry run, which tells of one for all, are whole.
static void test_all_of_the_ranks(void **state)
{
    (void)state;
    char *folder = folder_enter();
    struct fixture f = {0};
    write_second("run.1.db", true);
    assert_int_equal(sqlite3_open("run.1.db", &f.db), SQLITE_OK);
    fixture_sql(&f, "INSERT INTO rank VALUES (3, 'node', 'cpu', NULL, NULL);"
                    "DELETE FROM meta WHERE key = 'processes'");
    struct outcome o = report("", "run.1.db");
    must_hold(&o, "of the 4 ranks only ranks 2 to 3 left rows here: the others left none");
    outcome_release(&o);
    fixture_sql(&f, "INSERT INTO rank VALUES (0, 'node', 'cpu', NULL, NULL),"
                    " (1, 'node', 'cpu', NULL, NULL)");
    o = report("", "run.1.db");
    assert_null(strstr(o.out, "left rows here"));
    outcome_release(&o);
    fixture_sql(&f, "DELETE FROM rank WHERE rank > 0; UPDATE meta SET value = 'dry'"
                    " WHERE key = 'device'");
    o = report("", "run.1.db");
    assert_null(strstr(o.out, "left rows here"));
    outcome_release(&o);
    sqlite3_close(f.db);
    folder_remove(folder);
}

static void test_killed(void **state)
{
    (void)state;
    char *folder = folder_enter();
    write_second("run.1.db", false);
    struct outcome o = report("", "run.1.db");
    assert_int_equal(o.status, 0);
    must_hold(&o, "INCOMPLETE: the run was killed or is still going; step");
    must_hold(&o, ", rank 2, step");
    outcome_release(&o);
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_part_of_the_ranks),
                                       cmocka_unit_test(test_all_of_the_ranks),
                                       cmocka_unit_test(test_killed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
