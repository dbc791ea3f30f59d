/* What is seen of a device, joined to what the ranks told: a hand-made observer tells when work
 * ran, late and in parts, as CUPTI would. */
#include "profiler/recorder.h"
#include "tests/profiler/events.h"
#include "tests/profiler/run_db.h"

#include <pthread.h>

enum { ACTIVITIES_MAX = 4096 };

struct observed {
    pthread_mutex_t lock;
    struct up_activity given[ACTIVITIES_MAX]; // not collected yet
    struct up_activity collected[ACTIVITIES_MAX];
    int given_count, collected_count;
    bool held; // nothing is collected until the last time
    int told, last;
    struct up_marks *marks;
};

static void collect(void *context, bool last)
{
    struct observed *o = context;
    pthread_mutex_lock(&o->lock);
    o->last += last;
    o->collected_count = 0;
    if (!o->held || last) {
        memcpy(o->collected, o->given, sizeof o->given);
        o->collected_count = o->given_count;
        o->given_count = 0;
    }
    pthread_mutex_unlock(&o->lock);
}

static void tell(void *context, struct up_recorder *recorder)
{
    struct observed *o = context;
    for (int i = 0; i < o->collected_count; i++) up_recorder_activity(recorder, &o->collected[i]);
    pthread_mutex_lock(&o->lock);
    o->told++;
    pthread_mutex_unlock(&o->lock);
}

struct run {
    struct sandbox box;
    struct up_recorder *recorder;
    struct up_trace *trace;
    struct maker m;
    struct observed o;
    uint32_t calls;
    uint64_t works;
};

static void run_begin(struct run *run)
{
    struct up_error err = {0};
    *run = (struct run){.o.lock = PTHREAD_MUTEX_INITIALIZER, .o.marks = up_marks_create()};
    sandbox_init(&run->box);
    assert_int_equal(
        up_recorder_create(run->box.path, (struct up_span){-1, -1}, NULL, 0, &run->recorder, &err),
        UP_OK);
    run->trace = up_recorder_add_rank(run->recorder, 3, "GPU", 1000);
    assert_non_null(run->trace);
    struct up_observer observer = {
        .context = &run->o, .collect = collect, .tell = tell, .marks = run->o.marks, .times = true};
    assert_int_equal(up_recorder_observe(run->recorder, &observer, &err), UP_OK);
    assert_int_equal(up_recorder_start(run->recorder, &err), UP_OK);
    run->m = maker_on_ring(run->trace);
}

static sqlite3 *run_end(struct run *run)
{
    struct up_error err = {0};
    up_trace_close(run->trace);
    assert_int_equal(up_recorder_finish(run->recorder, "ok", &err), UP_OK);
    assert_int_equal(run->o.last, 1);
    up_marks_destroy(run->o.marks);
    return open_db(run->box.path);
}

static void run_release(struct run *run, sqlite3 *db)
{
    sqlite3_close(db);
    sandbox_release(&run->box);
}

static void give(struct run *run, const struct up_activity *activity)
{
    pthread_mutex_lock(&run->o.lock);
    assert_true(run->o.given_count < ACTIVITIES_MAX);
    run->o.given[run->o.given_count++] = *activity;
    pthread_mutex_unlock(&run->o.lock);
}

// A call that gives the device work: leaves its mark and says its number.
static uint32_t make_call(struct run *run, enum up_event_kind kind, uint64_t work)
{
    struct up_mark mark = {3, run->m.step, kind, work, run->m.open_range};
    up_marks_leave(run->o.marks, ++run->calls, &mark);
    return run->calls;
}

static void ran(struct run *run, uint32_t call, int64_t begin_ns, int64_t end_ns)
{
    give(run, &(struct up_activity){.kind = UP_ACTIVITY_KERNEL,
                                    .rank = 3,
                                    .correlation = {call},
                                    .begin_ns = begin_ns,
                                    .end_ns = end_ns,
                                    .name = "void some_kernel<float>()"});
}

// A piece of work of `parts` kernels, 100 ns each, which the device ran at `at`.
static void make_work(struct run *run, enum up_event_kind kind, const char *name, int parts,
                      int64_t at)
{
    struct up_event event = maker_event(&run->m, kind, name, UP_NO_LAYER);
    event.work.id = ++run->works;
    event.work.range_id = run->m.open_range;
    event.work.end_ns = event.ns; // of the device nothing is known yet
    event.work.bytes = kind == UP_EVENT_KERNEL ? 0 : 8;
    for (int i = 0; i < parts; i++)
        ran(run, make_call(run, kind, event.work.id), at + 100 * i, at + 100 * (i + 1));
    up_trace_push(run->trace, &event);
}

static void one_step(struct run *run, int step, const char *name, int64_t at)
{
    make_step_begin(&run->m, step);
    uint64_t range = make_range_begin(&run->m, "mlp", 2);
    uint64_t id = make_alloc(&run->m, "mlp.up", 2, 4096);
    make_work(run, UP_EVENT_KERNEL, name, 3, at);
    make_work(run, UP_EVENT_COPY, "x", 1, at + 1000);
    make_free(&run->m, id, "mlp.up", 2, 4096);
    make_range_end(&run->m, range, "mlp", 2);
    make_work(run, UP_EVENT_COLLECTIVE, "all_gather", 1, at + 2000);
    make_step_end(&run->m, 1);
}

static int times_told(struct run *run)
{
    pthread_mutex_lock(&run->o.lock);
    int told = run->o.told;
    pthread_mutex_unlock(&run->o.lock);
    return told;
}

static void wait_until_told(struct run *run)
{
    for (int told = times_told(run); times_told(run) < told + 2;)
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
}

static const char work_sql[] =
    "SELECT name, step, begin_ns, end_ns FROM kernel UNION ALL"
    " SELECT name, step, begin_ns, end_ns FROM copy UNION ALL"
    " SELECT name, step, begin_ns, end_ns FROM collective ORDER BY step, begin_ns";

static void work_gets_the_device_s_times(void **state)
{
    (void)state;
    struct run run;
    run_begin(&run);
    one_step(&run, 0, "matmul", 100000);
    sqlite3 *db = run_end(&run);
    assert_query(db, work_sql,
                 "matmul|0|100000|100300\nx|0|101000|101100\nall_gather|0|102000|102100");
    assert_query(db, "SELECT name, device_begin_ns, device_end_ns FROM range",
                 "layers.2.mlp|100000|101100");
    assert_query(db, "SELECT k.range_id = r.id FROM kernel k, range r", "1");
    assert_query(db, "SELECT count(*) FROM diagnostic", "0");
    run_release(&run, db);
}

// Of steps that repeat nothing is kept; one that turns out to differ, held back meanwhile, has all
// its times, though they came before its rows.
static void times_wait_for_their_rows(void **state)
{
    (void)state;
    struct run run;
    run_begin(&run);
    for (int step = 0; step < 6; step++) one_step(&run, step, "matmul", 100000 * (step + 1));
    make_step_begin(&run.m, 6);
    uint64_t range = make_range_begin(&run.m, "mlp", 2);
    uint64_t id = make_alloc(&run.m, "mlp.up", 2, 4096);
    make_work(&run, UP_EVENT_KERNEL, "matmul", 2, 900000);
    wait_until_told(&run); // while the step still looks like the one before
    make_work(&run, UP_EVENT_KERNEL, "another", 2, 910000);
    make_free(&run.m, id, "mlp.up", 2, 4096);
    make_range_end(&run.m, range, "mlp", 2);
    make_step_end(&run.m, 1);
    sqlite3 *db = run_end(&run);
    assert_query(db, "SELECT name, step, begin_ns, end_ns FROM kernel ORDER BY id",
                 "matmul|0|100000|100300\nmatmul|1|200000|200300\nmatmul|2|300000|300300\n"
                 "matmul|6|900000|900200\nanother|6|910000|910200");
    assert_query(db, "SELECT device_begin_ns, device_end_ns FROM range WHERE step = 6",
                 "900000|910200");
    assert_query(db, "SELECT count(*) FROM diagnostic", "0");
    run_release(&run, db);
}

static void ranges_around_have_times_too(void **state)
{
    (void)state;
    struct run run;
    run_begin(&run);
    make_step_begin(&run.m, 0);
    struct up_event outer = maker_event(&run.m, UP_EVENT_RANGE_BEGIN, "forward", UP_NO_LAYER);
    outer.seq = ++run.m.seq;
    outer.range.id = 100;
    up_trace_push(run.trace, &outer);
    for (int i = 0; i < 2; i++) {
        struct up_event inner = maker_event(&run.m, UP_EVENT_RANGE_BEGIN, "mlp", i);
        inner.seq = ++run.m.seq;
        inner.range.id = run.m.open_range = (uint64_t)(101 + i);
        inner.range.parent = 100;
        up_trace_push(run.trace, &inner);
        make_work(&run, UP_EVENT_KERNEL, "matmul", 1, 5000 + 1000 * i);
        make_range_end(&run.m, inner.range.id, "mlp", i);
    }
    struct up_event empty = maker_event(&run.m, UP_EVENT_RANGE_BEGIN, "empty", UP_NO_LAYER);
    empty.seq = ++run.m.seq;
    empty.range.id = 103;
    up_trace_push(run.trace, &empty);
    make_range_end(&run.m, 103, "empty", UP_NO_LAYER);
    make_range_end(&run.m, 100, "forward", UP_NO_LAYER);
    make_step_end(&run.m, 1);
    sqlite3 *db = run_end(&run);
    assert_query(db, "SELECT name, device_begin_ns, device_end_ns FROM range ORDER BY id",
                 "forward|5000|6100\nlayers.0.mlp|5000|5100\nlayers.1.mlp|6000|6100\nempty|-|-");
    run_release(&run, db);
}

// Without a piece of work: in a step a row of its own, outside nothing; without a mark it is told.
static void work_that_nobody_told_of(void **state)
{
    (void)state;
    struct run run;
    run_begin(&run);
    ran(&run, make_call(&run, UP_EVENT_KERNEL, 0), 10, 20); // setting up
    make_step_begin(&run.m, 0);
    uint64_t range = make_range_begin(&run.m, "mlp", 2);
    ran(&run, make_call(&run, UP_EVENT_KERNEL, 0), 5000, 5100);
    make_range_end(&run.m, range, "mlp", 2);
    make_step_end(&run.m, 1);
    ran(&run, 0, 6000, 6100);
    ran(&run, 77777, 6000, 6100);
    sqlite3 *db = run_end(&run);
    assert_query(db, "SELECT rank, name, step, stream, begin_ns, end_ns FROM kernel",
                 "3|void some_kernel<float>()|0|stream 0|5000|5100");
    assert_query(db, "SELECT k.range_id = r.id FROM kernel k, range r", "1");
    assert_query(db, "SELECT kind, text LIKE '%behind 2 kernels%' FROM diagnostic", "observer|1");
    run_release(&run, db);
}

// Its rows stay beside those of the work that is told later, and of what repeats.
static void what_was_seen_keeps_its_rows(void **state)
{
    (void)state;
    struct run run;
    run_begin(&run);
    make_step_begin(&run.m, 0);
    make_work(&run, UP_EVENT_KERNEL, "matmul", 1, 1000);
    ran(&run, make_call(&run, UP_EVENT_KERNEL, 0), 5000, 5100);
    wait_until_told(&run);
    make_work(&run, UP_EVENT_KERNEL, "matmul", 1, 7000);
    make_work(&run, UP_EVENT_COPY, "x", 1, 8000);
    give(&run, &(struct up_activity){.kind = UP_ACTIVITY_COPY,
                                     .rank = 3,
                                     .correlation = {make_call(&run, UP_EVENT_COPY, 0)},
                                     .begin_ns = 9000,
                                     .end_ns = 9100,
                                     .bytes = 12});
    wait_until_told(&run);
    make_work(&run, UP_EVENT_COPY, "x", 1, 9500);
    make_step_end(&run.m, 1);
    sqlite3 *db = run_end(&run);
    assert_query(db, "SELECT name, begin_ns FROM kernel ORDER BY begin_ns",
                 "matmul|1000\nvoid some_kernel<float>()|5000\nmatmul|7000");
    assert_query(db, "SELECT name, begin_ns, bytes FROM copy ORDER BY begin_ns",
                 "x|8000|8\ncopy|9000|12\nx|9500|8");
    assert_query(db, "SELECT name FROM kernel WHERE id >= 1 << 62", "void some_kernel<float>()");
    run_release(&run, db);
}

static void step_with_seen(struct run *run, int step, const char *name, bool wait)
{
    make_step_begin(&run->m, step);
    uint64_t range = make_range_begin(&run->m, "mlp", 2);
    make_work(run, UP_EVENT_KERNEL, "matmul", 1, 100000 * (step + 1));
    ran(run, make_call(run, UP_EVENT_KERNEL, 0), 100000 * (step + 1) + 500,
        100000 * (step + 1) + 600);
    if (wait) wait_until_told(run);
    make_work(run, UP_EVENT_KERNEL, name, 1, 100000 * (step + 1) + 1000);
    make_range_end(&run->m, range, "mlp", 2);
    make_step_end(&run->m, 1);
}

// Of steps that repeat nothing is kept, nor of what was seen in them; told before it is known
// whether a step repeats, it waits.
static void what_was_seen_in_steps_that_repeat(void **state)
{
    (void)state;
    struct run run;
    run_begin(&run);
    for (int step = 0; step < 5; step++) step_with_seen(&run, step, "add", step == 3);
    step_with_seen(&run, 5, "another", true);
    step_with_seen(&run, 6, "another", true);
    sqlite3 *db = run_end(&run);
    assert_query(db, "SELECT step, same_as_step FROM step WHERE same_as_step IS NOT NULL",
                 "3|2\n4|2\n6|5");
    assert_query(db, "SELECT step, begin_ns FROM kernel WHERE name LIKE 'void%' ORDER BY step",
                 "0|100500\n1|200500\n2|300500\n5|600500");
    assert_query(db, "SELECT count(*) FROM kernel k JOIN range r ON r.id = k.range_id", "12");
    assert_consistent(db);
    assert_query(db, "SELECT count(*) FROM diagnostic", "0");
    run_release(&run, db);
}

static void memory_is_told_with_its_rank(void **state)
{
    (void)state;
    struct run run;
    run_begin(&run);
    struct up_event event = maker_event(&run.m, UP_EVENT_MEMORY, "nccl", UP_NO_LAYER);
    event.memory.news = UP_MEMORY_BRACKET;
    event.ns = 100;
    event.memory.end_ns = 200;
    event.memory.bytes = 1000;
    up_trace_push(run.trace, &event);
    struct up_activity alloc = {.kind = UP_ACTIVITY_ALLOC,
                                .rank = 3,
                                .address = 0x5000,
                                .bytes = 300,
                                .begin_ns = 150,
                                .name = "/lib/libnccl.so.2"};
    give(&run, &alloc);
    alloc.rank = 8; // nobody's
    give(&run, &alloc);
    sqlite3 *db = run_end(&run);
    assert_query(db, "SELECT id >> 40, rank, owner, bytes FROM device_alloc ORDER BY bytes",
                 "3|3|nccl|300\n3|3|nccl|700");
    run_release(&run, db);
}

// Numbers far apart, as when most calls are of no interest; the oldest marks go.
static void marks_go_in_order(void **state)
{
    (void)state;
    struct up_marks *marks = up_marks_create();
    struct up_mark mark = {.rank = -1, .step = -1}, found;
    assert_false(up_marks_find(marks, 0, &found));
    assert_false(up_marks_find(marks, 5, &found));
    for (uint32_t i = 1; i <= UP_MARKS + 10; i++) {
        mark.work_id = i;
        up_marks_leave(marks, i * 4096 + 1, &mark);
        if (i % 1000 == 0) assert_true(up_marks_find(marks, i * 4096 + 1, &found));
    }
    assert_true(up_marks_find(marks, (UP_MARKS + 10) * 4096u + 1, &found));
    assert_int_equal(found.rank, -1);
    assert_int_equal(found.step, -1);
    assert_false(up_marks_find(marks, 10 * 4096 + 1, &found)); // its place was taken
    assert_true(up_marks_find(marks, 11 * 4096 + 1, &found));
    assert_int_equal(found.work_id, 11);
    up_marks_destroy(marks);
}

static void marks_that_nobody_reads_are_lost(void **state)
{
    (void)state;
    struct up_marks *marks = up_marks_create();
    struct up_mark mark = {.rank = 1}, found;
    for (uint32_t i = 1; i <= 2 * UP_MARKS_UNREAD; i++) up_marks_leave(marks, i, &mark);
    assert_true(up_marks_find(marks, UP_MARKS_UNREAD, &found));
    assert_false(up_marks_find(marks, UP_MARKS_UNREAD + 1, &found));
    up_marks_leave(marks, 1000000, &mark); // there is room again
    assert_true(up_marks_find(marks, 1000000, &found));
    up_marks_destroy(marks);
}

enum { MARKERS = 4, MARKS_EACH = 50000 };

struct marker {
    struct up_marks *marks;
    uint32_t first;
};

static void *leave_many(void *argument)
{
    const struct marker *marker = argument;
    for (uint32_t i = 0; i < MARKS_EACH; i++) {
        struct up_mark mark = {.work_id = marker->first + i, .range_id = ~(marker->first + i)};
        up_marks_leave(marker->marks, marker->first + i, &mark);
    }
    return NULL;
}

// What is found is what was left, whoever leaves marks meanwhile.
static void marks_of_several_threads(void **state)
{
    (void)state;
    pthread_t thread[MARKERS];
    struct marker marker[MARKERS];
    struct up_marks *marks = up_marks_create();
    struct up_mark found;
    int64_t count = 0;
    for (int i = 0; i < MARKERS; i++) {
        marker[i] = (struct marker){marks, (uint32_t)(1 + i * MARKS_EACH)};
        pthread_create(&thread[i], NULL, leave_many, &marker[i]);
    }
    for (uint32_t i = 1; i < 200000; i++) up_marks_find(marks, i, &found);
    for (int i = 0; i < MARKERS; i++) pthread_join(thread[i], NULL);
    for (uint32_t call = 1; call <= MARKERS * MARKS_EACH; call++) {
        if (!up_marks_find(marks, call, &found)) continue;
        count++;
        assert_int_equal(found.work_id, call);
        assert_int_equal(found.range_id, (uint64_t)~call);
    }
    assert_true(count > UP_MARKS_UNREAD / 2);
    up_marks_destroy(marks);
}

static void commit_shortage(struct run *run)
{
    struct up_event event = maker_event(&run->m, UP_EVENT_OOM, "mlp.down", 7);
    event.oom.bytes = 5000;
    event.oom.free_bytes = 4000;
    event.oom.largest_free_bytes = 3000;
    event.oom.category = UP_CATEGORY_MLP;
    up_trace_push(run->trace, &event);
    up_trace_flush(run->trace, INT64_C(10000000000));
}

// Once the rank goes on, the file has it: also of a step that looked like the one before so far.
static void shortage_is_on_the_disk_at_once(void **state)
{
    (void)state;
    struct run run;
    run_begin(&run);
    for (int step = 0; step < 5; step++) one_step(&run, step, "matmul", 100000 * (step + 1));
    make_step_begin(&run.m, 5);
    make_range_begin(&run.m, "mlp", 2);
    make_alloc(&run.m, "mlp.up", 2, 4096);
    commit_shortage(&run);
    sqlite3 *db = open_db(run.box.path);
    assert_query(db, "SELECT sum(bytes) FROM tensor WHERE free_seq IS NULL", "4096");
    assert_query(db, "SELECT count(*) FROM diagnostic WHERE kind = 'out_of_memory'", "1");
    assert_query(db,
                 "SELECT value ->> 'name', value ->> 'bytes', value ->> 'free_bytes',"
                 " value ->> 'largest_free_bytes', value ->> 'category', value ->> 'rank',"
                 " value ->> 'step' FROM meta WHERE key = 'out_of_memory'",
                 "layers.7.mlp.down|5000|4000|3000|mlp|3|5");
    sqlite3_close(db);
    run_release(&run, run_end(&run));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(work_gets_the_device_s_times),
        cmocka_unit_test(times_wait_for_their_rows),
        cmocka_unit_test(ranges_around_have_times_too),
        cmocka_unit_test(work_that_nobody_told_of),
        cmocka_unit_test(what_was_seen_keeps_its_rows),
        cmocka_unit_test(what_was_seen_in_steps_that_repeat),
        cmocka_unit_test(memory_is_told_with_its_rank),
        cmocka_unit_test(marks_go_in_order),
        cmocka_unit_test(marks_that_nobody_reads_are_lost),
        cmocka_unit_test(marks_of_several_threads),
        cmocka_unit_test(shortage_is_on_the_disk_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
