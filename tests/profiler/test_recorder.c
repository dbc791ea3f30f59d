/* Which steps are kept: each rule of recorder.h, by hand-made events through the public interface.
 */
#include "profiler/recorder.h"
#include "profiler/steps_impl.h"
#include "tests/profiler/events.h"
#include "tests/profiler/run_db.h"

#include <pthread.h>

static const struct up_span no_span = {-1, -1};

struct run {
    struct sandbox box;
    struct up_recorder *recorder;
    struct up_trace *trace;
    struct maker m;
};

static void run_begin(struct run *run, struct up_span span)
{
    struct up_error err = {0};
    sandbox_init(&run->box);
    assert_int_equal(up_recorder_create(run->box.path, span, NULL, 0, &run->recorder, &err), UP_OK);
    run->trace = up_recorder_add_rank(run->recorder, 0, "test device", INT64_MAX);
    assert_non_null(run->trace);
    assert_int_equal(up_recorder_start(run->recorder, &err), UP_OK);
    run->m = maker_on_ring(run->trace);
}

static sqlite3 *run_end(struct run *run)
{
    struct up_error err = {0};
    up_trace_close(run->trace);
    if (up_recorder_finish(run->recorder, "ok", &err) != UP_OK) fail_msg("%s", err.text);
    sqlite3 *db = open_db(run->box.path);
    assert_consistent(db);
    return db;
}

static void run_release(struct run *run, sqlite3 *db)
{
    sqlite3_close(db);
    sandbox_release(&run->box);
}

// Six events: a range with a kernel, and a tensor of `bytes` in it.
static void usual_step(struct maker *m, int step, int64_t bytes)
{
    make_step_begin(m, step);
    uint64_t range = make_range_begin(m, "mlp", 3);
    uint64_t up = make_alloc(m, "mlp.up", 3, bytes);
    make_kernel(m, "matmul");
    make_free(m, up, "mlp.up", 3, bytes);
    make_range_end(m, range, "mlp", 3);
    make_step_end(m, 1.0 / (step + 1));
}

static const char steps_sql[] = "SELECT step, same_as_step, (SELECT count(*) FROM tensor t WHERE "
                                "t.step = s.step) FROM step s ORDER BY step";

static void first_three_steps_are_whole(void **state)
{
    (void)state;
    struct run run;
    run_begin(&run, no_span);
    for (int step = 0; step < 6; step++) usual_step(&run.m, step, 4096);
    sqlite3 *db = run_end(&run);
    assert_query(db, steps_sql, "0|-|1\n1|-|1\n2|-|1\n3|2|0\n4|2|0\n5|2|0");
    assert_query(db, "SELECT count(*) FROM kernel", "3");
    assert_query(db, "SELECT count(*) FROM range WHERE end_seq IS NOT NULL", "3");
    // seq counts on: 4 a step. What repeats carries the peak_seq of what it repeats.
    assert_query(db, "SELECT peak_seq FROM step ORDER BY step", "2\n6\n10\n10\n10\n10");
    assert_query(db, "SELECT count(DISTINCT event_hash), count(loss), count(end_ns) FROM step",
                 "1|6|6");
    assert_query(db, "SELECT step, peak_bytes FROM peak", "0|4096");
    run_release(&run, db);
}

static void difference_is_written_whole(void **state)
{
    (void)state;
    struct run run;
    run_begin(&run, no_span);
    static const int64_t bytes[] = {64, 64, 64, 64, 128, 128, 64, 64};
    for (int step = 0; step < UP_COUNT(bytes); step++) usual_step(&run.m, step, bytes[step]);
    sqlite3 *db = run_end(&run);
    assert_query(db, steps_sql, "0|-|1\n1|-|1\n2|-|1\n3|2|0\n4|-|1\n5|4|0\n6|-|1\n7|6|0");
    // Also what came before the first difference, and what came after it.
    assert_query(db, "SELECT count(*), count(end_seq) FROM range WHERE step = 4", "1|1");
    assert_query(
        db, "SELECT range_id = (SELECT id FROM range WHERE step = 4) FROM tensor WHERE step = 4",
        "1");
    assert_query(db, "SELECT count(*) FROM kernel WHERE step = 4", "1");
    run_release(&run, db);
}

// `kernels` of them are all the step does.
static void kernel_step(struct maker *m, int step, int kernels)
{
    make_step_begin(m, step);
    for (int i = 0; i < kernels; i++) make_kernel(m, "matmul");
    make_step_end(m, 1);
}

static void shorter_and_longer_steps_differ(void **state)
{
    (void)state;
    struct run run;
    run_begin(&run, no_span);
    static const int kernels[] = {5, 5, 5, 5, 4, 4, 6, 6, 0, 0};
    for (int step = 0; step < UP_COUNT(kernels); step++) kernel_step(&run.m, step, kernels[step]);
    sqlite3 *db = run_end(&run);
    assert_query(db,
                 "SELECT step, same_as_step, (SELECT count(*) FROM kernel k WHERE k.step = s.step)"
                 " FROM step s ORDER BY step",
                 "0|-|5\n1|-|5\n2|-|5\n3|2|0\n4|-|4\n5|4|0\n6|-|6\n7|6|0\n8|-|0\n9|8|0");
    run_release(&run, db);
}

static void tensors_that_outlive_a_repeated_step_are_kept(void **state)
{
    (void)state;
    struct run run;
    run_begin(&run, no_span);
    uint64_t carried = make_alloc(&run.m, "carried", UP_NO_LAYER, 32);
    for (int step = 0; step < 7; step++) {
        make_step_begin(&run.m, step);
        uint64_t range = make_range_begin(&run.m, "body", UP_NO_LAYER);
        uint64_t next = make_alloc(&run.m, "carried", UP_NO_LAYER, 32);
        uint64_t inner = make_alloc(&run.m, "inner", UP_NO_LAYER, 16);
        make_free(&run.m, carried, "carried", UP_NO_LAYER, 32);
        make_free(&run.m, inner, "inner", UP_NO_LAYER, 16);
        make_range_end(&run.m, range, "body", UP_NO_LAYER);
        carried = next;
        make_step_end(&run.m, 1);
    }
    sqlite3 *db = run_end(&run);
    assert_query(db, "SELECT step, same_as_step FROM step ORDER BY step",
                 "0|-\n1|-\n2|-\n3|2\n4|2\n5|2\n6|2");
    // One from before the steps, one of each step; each freed in the next, the last alive.
    assert_query(db, "SELECT step, free_step FROM tensor WHERE name = 'carried' ORDER BY alloc_seq",
                 "-|0\n0|1\n1|2\n2|3\n3|4\n4|5\n5|6\n6|-");
    assert_query(db, "SELECT group_concat(step) FROM tensor WHERE name = 'inner'", "0,1,2");
    assert_query(db, "SELECT count(*) FROM tensor WHERE step > 2 AND range_id IS NOT NULL", "0");
    run_release(&run, db);
}

static void step_with_another_peak_is_no_repetition(void **state)
{
    (void)state;
    struct run run;
    run_begin(&run, no_span);
    for (int step = 0; step < 4; step++) usual_step(&run.m, step, 64);
    make_alloc(&run.m, "snapshot", UP_NO_LAYER, 1000); // between steps
    for (int step = 4; step < 6; step++) usual_step(&run.m, step, 64);
    sqlite3 *db = run_end(&run);
    assert_query(db, "SELECT step, same_as_step, peak_bytes FROM step ORDER BY step",
                 "0|-|64\n1|-|64\n2|-|64\n3|2|64\n4|-|1064\n5|4|1064");
    assert_query(db, "SELECT name, bytes FROM live_at_peak ORDER BY bytes",
                 "layers.3.mlp.up|64\nsnapshot|1000");
    run_release(&run, db);
}

static void send_oom(struct maker *m)
{
    struct up_event event = maker_event(m, UP_EVENT_OOM, "mlp.down", 7);
    event.oom.bytes = 5000;
    event.oom.live_bytes = 3000;
    event.oom.limit_bytes = 7000;
    m->send(m->context, &event);
}

static void out_of_memory_writes_the_step(void **state)
{
    (void)state;
    struct run run;
    run_begin(&run, no_span);
    for (int step = 0; step < 4; step++) usual_step(&run.m, step, 64);
    make_step_begin(&run.m, 4);
    make_range_begin(&run.m, "mlp", 3);
    make_alloc(&run.m, "mlp.up", 3, 64);
    send_oom(&run.m);
    sqlite3 *db = run_end(&run);
    assert_query(db, "SELECT name, free_seq FROM tensor WHERE step = 4", "layers.3.mlp.up|-");
    assert_query(db, "SELECT kind, text FROM diagnostic",
                 "out_of_memory|layers.7.mlp.down: 5000 bytes of device memory asked for, 3000 "
                 "alive, limit 7000");
    assert_query(db, "SELECT end_ns, peak_seq, same_as_step FROM step WHERE step = 4", "-|-|-");
    run_release(&run, db);
}

static void run_that_ends_in_a_step_keeps_its_events(void **state)
{
    (void)state;
    struct run run;
    run_begin(&run, no_span);
    for (int step = 0; step < 4; step++) usual_step(&run.m, step, 64);
    make_step_begin(&run.m, 4);
    make_range_begin(&run.m, "mlp", 3);
    sqlite3 *db = run_end(&run);
    assert_query(db, "SELECT name, end_seq FROM range WHERE step = 4", "layers.3.mlp|-");
    run_release(&run, db);
}

// A step without an end: what follows is not taken for its repetition, nor for one of an older
// step.
static void nothing_repeats_a_step_without_end(void **state)
{
    (void)state;
    struct run run;
    run_begin(&run, no_span);
    for (int step = 0; step < 4; step++) kernel_step(&run.m, step, 3);
    make_step_begin(&run.m, 4);
    make_kernel(&run.m, "matmul");
    for (int step = 5; step < 8; step++) kernel_step(&run.m, step, 1);
    sqlite3 *db = run_end(&run);
    assert_query(db,
                 "SELECT step, same_as_step, (SELECT count(*) FROM kernel k WHERE k.step = s.step)"
                 " FROM step s WHERE step > 2 ORDER BY step",
                 "3|2|0\n4|-|1\n5|-|1\n6|5|0\n7|5|0");
    run_release(&run, db);
}

static void span_keeps_those_steps_alone(void **state)
{
    (void)state;
    struct run run;
    run_begin(&run, (struct up_span){2, 3});
    uint64_t carried = 0;
    for (int step = 0; step < 7; step++) {
        usual_step(&run.m, step, step == 5 ? 128 : 64);
        if (step == 0) { // outside steps
            carried = make_alloc(&run.m, "carried", UP_NO_LAYER, 8);
        }
    }
    make_free(&run.m, carried, "carried", UP_NO_LAYER, 8);
    sqlite3 *db = run_end(&run);
    assert_query(db, steps_sql, "0|-|0\n1|-|0\n2|-|1\n3|-|1\n4|3|0\n5|-|0\n6|3|0");
    assert_query(db, "SELECT step, peak_seq IS NULL FROM step ORDER BY step",
                 "0|1\n1|1\n2|0\n3|0\n4|0\n5|1\n6|0");
    assert_query(db, "SELECT group_concat(DISTINCT step) FROM kernel", "2,3");
    assert_query(db, "SELECT count(free_seq) FROM tensor WHERE name = 'carried'", "1");
    run_release(&run, db);
}

static void usage_and_diagnostics_are_always_written(void **state)
{
    (void)state;
    struct run run;
    run_begin(&run, no_span);
    for (int step = 0; step < 5; step++) {
        make_step_begin(&run.m, step);
        struct up_event usage = maker_event(&run.m, UP_EVENT_USAGE, NULL, UP_NO_LAYER);
        usage.usage.device_used_bytes = step % 2 ? 100 : 200; // takes no part in the comparison
        run.m.send(run.m.context, &usage);
        struct up_event note = maker_event(&run.m, UP_EVENT_DIAGNOSTIC, "not in the plan", 2);
        run.m.send(run.m.context, &note);
        make_kernel(&run.m, "matmul");
        make_step_end(&run.m, 1);
    }
    sqlite3 *db = run_end(&run);
    assert_query(db, "SELECT count(*) FROM usage WHERE host_rss_bytes IS NULL", "5");
    assert_query(db, "SELECT count(*) FROM diagnostic WHERE text = 'layers.2.not in the plan'",
                 "5");
    assert_query(db, "SELECT step FROM step WHERE same_as_step = 2", "3\n4");
    // The recorder's own samples, at least at the start and at the end; of a device that they did
    // not ask they say nothing.
    assert_true(query_number(db, "SELECT count(*) FROM usage WHERE host_rss_bytes > 100000") >= 2);
    assert_query(db, "SELECT device_used_bytes FROM usage WHERE device_used_bytes IS NOT NULL",
                 "200\n100\n200\n100\n200");
    run_release(&run, db);
}

static void too_long_steps_are_whole_each_time(void **state)
{
    (void)state;
    struct run run;
    run_begin(&run, no_span);
    enum { EVENTS = UP_STEP_EVENTS_MAX + 1 };
    for (int step = 0; step < 5; step++) kernel_step(&run.m, step, step < 3 ? 1 : EVENTS);
    kernel_step(&run.m, 5, 1);
    kernel_step(&run.m, 6, 1);
    sqlite3 *db = run_end(&run);
    char expected[64];
    snprintf(expected, sizeof expected, "3|-|%d\n4|-|%d\n5|-|1\n6|5|0", EVENTS, EVENTS);
    assert_query(db,
                 "SELECT step, same_as_step, (SELECT count(*) FROM kernel k WHERE k.step = s.step)"
                 " FROM step s WHERE step > 2 ORDER BY step",
                 expected);
    assert_query(db, "SELECT kind FROM diagnostic", "step_too_long");
    assert_true(query_number(db, "SELECT value FROM meta WHERE key = 'recorder_bytes'") <=
                up_recorder_memory_bound(1));
    run_release(&run, db);
}

static void finished_file_is_one_and_complete(void **state)
{
    (void)state;
    struct run run;
    run_begin(&run, no_span);
    for (int step = 0; step < 3; step++) usual_step(&run.m, step, 64);
    sqlite3 *db = run_end(&run);
    assert_int_equal(sandbox_files(&run.box, false), 1);
    assert_query(db, "PRAGMA journal_mode", "delete");
    assert_query(db, "SELECT value FROM meta WHERE key IN ('complete', 'outcome') ORDER BY key",
                 "1\nok");
    assert_query(db,
                 "SELECT count(*) FROM meta WHERE key IN ('events_written', 'recorder_ns', "
                 "'recorder_bytes') AND value > 0",
                 "3");
    assert_query(db, "SELECT value FROM meta WHERE key = 'ring_waits'", "0");
    assert_query(db, "SELECT rank, device_name, capacity_bytes, node <> '' FROM rank",
                 "0|test device|-|1");
    assert_true(query_number(db, "SELECT value FROM meta WHERE key = 'recorder_bytes'") <=
                up_recorder_memory_bound(1));
    assert_true(query_number(db, "SELECT count(*) FROM sqlite_schema WHERE type = 'index' AND sql "
                                 "IS NOT NULL") >= 8);
    run_release(&run, db);
}

static void recorder_that_never_started_still_ends(void **state)
{
    (void)state;
    struct up_error err = {0};
    struct run run;
    sandbox_init(&run.box);
    assert_int_equal(up_recorder_create(run.box.path, no_span, NULL, 0, &run.recorder, &err),
                     UP_OK);
    run.trace = up_recorder_add_rank(run.recorder, 0, NULL, 1 << 20);
    run.m = maker_on_ring(run.trace);
    make_alloc(&run.m, "weight", UP_NO_LAYER, 64);
    sqlite3 *db = run_end(&run);
    assert_query(db, "SELECT name FROM tensor", "weight");
    assert_query(db, "SELECT capacity_bytes, device_name FROM rank", "1048576|-");
    run_release(&run, db);
    assert_int_equal(up_recorder_finish(NULL, "ok", &err), UP_OK);
}

static void *rank_thread(void *trace)
{
    struct maker m = maker_on_ring(trace);
    int rank = up_trace_rank(trace);
    for (int step = 0; step < 200; step++) usual_step(&m, step, rank == 2 && step == 100 ? 8 : 64);
    up_trace_close(trace);
    return NULL;
}

static void ranks_are_told_apart(void **state)
{
    (void)state;
    enum { RANKS = 4 };
    struct sandbox box;
    struct up_error err = {0};
    struct up_recorder *recorder;
    struct up_trace *traces[RANKS];
    pthread_t threads[RANKS];
    sandbox_init(&box);
    assert_int_equal(up_recorder_create(box.path, no_span, NULL, 0, &recorder, &err), UP_OK);
    for (int i = 0; i < RANKS; i++) traces[i] = up_recorder_add_rank(recorder, i, "d", 0);
    assert_int_equal(up_recorder_start(recorder, &err), UP_OK);
    for (int i = 0; i < RANKS; i++) pthread_create(&threads[i], NULL, rank_thread, traces[i]);
    for (int i = 0; i < RANKS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(up_recorder_finish(recorder, "ok", &err), UP_OK);
    sqlite3 *db = open_db(box.path);
    assert_consistent(db);
    assert_query(db, "SELECT rank, count(*), count(same_as_step) FROM step GROUP BY rank",
                 "0|200|197\n1|200|197\n2|200|195\n3|200|197");
    assert_query(
        db, "SELECT rank, count(*), min(id) = rank * 1099511627776 + 1 FROM tensor GROUP BY rank",
        "0|3|1\n1|3|1\n2|5|1\n3|3|1");
    assert_query(
        db, "SELECT count(*) FROM tensor t JOIN range r ON r.id = t.range_id AND r.rank = t.rank",
        "14");
    sqlite3_close(db);
    sandbox_release(&box);
}

static void refused_path_makes_no_recorder(void **state)
{
    (void)state;
    struct up_error err = {0};
    struct up_recorder *recorder = NULL;
    assert_int_equal(up_recorder_create("/nonexistent/run.db", no_span, NULL, 0, &recorder, &err),
                     UP_USAGE);
    assert_null(recorder);
}

// A run that failed says why, also where nothing was recorded.
static void a_failed_run_says_why(void **state)
{
    (void)state;
    struct sandbox box;
    struct up_recorder *recorder;
    struct up_error err = {0};
    sandbox_init(&box);
    assert_int_equal(
        up_recorder_create(box.path, (struct up_span){-1, -1}, NULL, 0, &recorder, &err), UP_OK);
    up_recorder_failed(recorder, "interrupted");
    assert_int_equal(up_recorder_finish(recorder, "failed", &err), UP_OK);
    sqlite3 *db = open_db(box.path);
    assert_query(db, "SELECT kind, text FROM diagnostic", "run|interrupted");
    sqlite3_close(db);
    sandbox_release(&box);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failed_run_says_why),
        cmocka_unit_test(first_three_steps_are_whole),
        cmocka_unit_test(difference_is_written_whole),
        cmocka_unit_test(shorter_and_longer_steps_differ),
        cmocka_unit_test(tensors_that_outlive_a_repeated_step_are_kept),
        cmocka_unit_test(step_with_another_peak_is_no_repetition),
        cmocka_unit_test(out_of_memory_writes_the_step),
        cmocka_unit_test(run_that_ends_in_a_step_keeps_its_events),
        cmocka_unit_test(nothing_repeats_a_step_without_end),
        cmocka_unit_test(span_keeps_those_steps_alone),
        cmocka_unit_test(usage_and_diagnostics_are_always_written),
        cmocka_unit_test(too_long_steps_are_whole_each_time),
        cmocka_unit_test(finished_file_is_one_and_complete),
        cmocka_unit_test(recorder_that_never_started_still_ends),
        cmocka_unit_test(ranks_are_told_apart),
        cmocka_unit_test(refused_path_makes_no_recorder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
