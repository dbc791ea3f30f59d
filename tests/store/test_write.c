/* Each kind of event becomes its row, value by value; creating refuses what it must; failures leave
 * no litter. */
#include "store/store.h"
#include "tests/profiler/run_db.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

static struct up_store *create(const char *path)
{
    struct up_store *store = NULL;
    struct up_error err = {0};
    const struct up_store_meta meta[] = {{"model", "tiny"}, {"config", "{\"a\": \"it's\"}"}};
    if (up_store_create(path, meta, UP_COUNT(meta), &store, &err) != UP_OK)
        fail_msg("%s", err.text);
    return store;
}

static sqlite3 *finish(struct up_store *store, const char *path)
{
    struct up_error err = {0};
    if (up_store_finish(store, true, &err) != UP_OK) fail_msg("%s", err.text);
    return open_db(path);
}

// --- Rows --------------------------------------------------------------------------------------

static struct up_event sample(enum up_event_kind kind)
{
    return (struct up_event){.kind = (uint8_t)kind,
                             .phase = UP_PHASE_BACKWARD,
                             .step = 2,
                             .seq = 41,
                             .ns = 5000,
                             .label = {"attn.q", 12, 3}};
}

static struct up_event sample_alloc(void)
{
    struct up_event event = sample(UP_EVENT_ALLOC);
    event.tensor.id = 7;
    event.tensor.storage = 6;
    event.tensor.range_id = 5;
    event.tensor.bytes = 1000;
    event.tensor.reserved = 1024;
    event.tensor.offset = 2048;
    event.tensor.space = UP_SPACE_HOST;
    event.tensor.category = UP_CATEGORY_ATTENTION;
    event.tensor.dtype = UP_BF16;
    event.tensor.stream = UP_STREAM_COPY_OUT;
    event.tensor.dims = 3;
    up_event_set_dim(&event, 0, 5000000000);
    up_event_set_dim(&event, 1, 32);
    up_event_set_dim(&event, 2, 128);
    return event;
}

static void alloc_and_free_are_one_row(void **state)
{
    (void)state;
    struct sandbox box;
    sandbox_init(&box);
    struct up_store *store = create(box.path);
    struct up_event alloc = sample_alloc(), end = sample(UP_EVENT_FREE);
    assert_int_equal(up_store_event(store, 3, &alloc), UP_OK);
    end.seq = 99;
    end.ns = 8000;
    end.step = 4;
    end.tensor.id = 7;
    assert_int_equal(up_store_event(store, 3, &end), UP_OK);
    // Alive, outside steps and ranges, without layer, and a scalar.
    alloc.tensor.id = alloc.tensor.storage = 8;
    alloc.tensor.range_id = 0;
    alloc.tensor.outlives_step = true;
    alloc.label = (struct up_label){"scalar", UP_NO_LAYER, UP_NO_INDEX};
    alloc.tensor.dims = 0;
    assert_int_equal(up_store_event(store, 3, &alloc), UP_OK);
    assert_int_equal(up_store_pending(store), 3);
    assert_int_equal(up_store_rows(store), 3);
    sqlite3 *db = finish(store, box.path);
    assert_query(db,
                 "SELECT id, rank, space, storage_id, name, category, layer, phase, dtype, shape, "
                 "bytes, reserved_bytes, offset, stream, step, free_step, range_id, alloc_seq, "
                 "free_seq, alloc_ns, free_ns FROM tensor ORDER BY id",
                 "3298534883335|3|host|3298534883334|layers.12.attn.q.3|attention|12|backward|bf16|"
                 "[5000000000,32,128]|1000|1024|2048|copy-out|2|4|3298534883333|41|99|5000|8000\n"
                 "3298534883336|3|host|3298534883336|scalar|attention|-|backward|bf16|"
                 "[]|1000|1024|2048|copy-out|-|-|-|41|-|5000|-");
    sqlite3_close(db);
    sandbox_release(&box);
}

static void ranges_and_work(void **state)
{
    (void)state;
    struct sandbox box;
    sandbox_init(&box);
    struct up_store *store = create(box.path);
    struct up_event event = sample(UP_EVENT_RANGE_BEGIN);
    event.range.id = 2;
    event.range.parent = 1;
    event.label.index = UP_NO_INDEX;
    up_store_event(store, 1, &event);
    event = sample(UP_EVENT_RANGE_END);
    event.seq = 50;
    event.ns = 9000;
    event.range.id = 2;
    up_store_event(store, 1, &event);
    static const enum up_event_kind work[] = {UP_EVENT_KERNEL, UP_EVENT_COPY, UP_EVENT_COLLECTIVE};
    for (int i = 0; i < UP_COUNT(work); i++) {
        event = sample(work[i]);
        event.work.range_id = 2;
        event.work.end_ns = 6000;
        event.work.bytes = 77;
        event.work.flops = 1.5;
        event.work.stream = UP_STREAM_COMM;
        event.work.to = UP_SPACE_HOST;
        event.step = i ? 2 : -1;
        up_store_event(store, 1, &event);
    }
    sqlite3 *db = finish(store, box.path);
    assert_query(db,
                 "SELECT id, rank, parent, name, step, layer, phase, begin_ns, end_ns, "
                 "device_begin_ns, stream, begin_seq, end_seq FROM range",
                 "1099511627778|1|1099511627777|layers.12.attn.q|2|12|backward|5000|9000|-|compute|"
                 "41|50");
    assert_query(db,
                 "SELECT rank, name, step, stream, range_id, begin_ns, end_ns, flops FROM kernel",
                 "1|layers.12.attn.q.3|-|comm|1099511627778|5000|6000|1.5");
    assert_query(db, "SELECT step, begin_ns, end_ns, from_space, to_space, bytes FROM copy",
                 "2|5000|6000|device|host|77");
    assert_query(db, "SELECT step, begin_ns, end_ns, stream, bytes FROM collective",
                 "2|5000|6000|comm|77");
    sqlite3_close(db);
    sandbox_release(&box);
}

static void steps_and_their_nulls(void **state)
{
    (void)state;
    struct sandbox box;
    sandbox_init(&box);
    struct up_store *store = create(box.path);
    for (int i = 0; i < 3; i++) {
        struct up_event event = sample(UP_EVENT_STEP_BEGIN);
        event.step = i;
        up_store_step_begin(store, 0, &event);
        if (i == 2) break; // does not end
        event = sample(UP_EVENT_STEP_END);
        event.step = i;
        event.ns = 7000;
        event.result.loss = i ? NAN : 0.1;
        event.result.grad_norm = i ? INFINITY : 2.5;
        event.result.tokens = 8;
        event.result.peak_bytes = 900;
        event.result.event_hash = 0xabc;
        up_store_step_end(store, 0, &event, i - 1, i ? 0 : 55);
    }
    sqlite3 *db = finish(store, box.path);
    assert_query(db,
                 "SELECT step, rank, loss, grad_norm, tokens, begin_ns, end_ns, peak_bytes, "
                 "peak_seq, event_hash, same_as_step FROM step",
                 "0|0|0.1|2.5|8|5000|7000|900|55|0000000000000abc|-\n"
                 "1|0|-|-|8|5000|7000|900|-|0000000000000abc|0\n"
                 "2|0|-|-|-|5000|-|-|-|-|-");
    sqlite3_close(db);
    sandbox_release(&box);
}

static void times_of_work(void **state)
{
    (void)state;
    struct sandbox box;
    sandbox_init(&box);
    struct up_store *store = create(box.path);
    static const enum up_event_kind kinds[] = {UP_EVENT_KERNEL, UP_EVENT_COPY, UP_EVENT_COLLECTIVE};
    for (int i = 0; i < 3; i++) {
        struct up_event work = sample(kinds[i]);
        work.work.id = (uint64_t)(i + 1);
        work.work.end_ns = work.ns;
        up_store_event(store, 1, &work);
        // Two parts, the later one first; and work that has no row.
        up_store_work_times(store, 1, kinds[i], work.work.id, 700, 800);
        up_store_work_times(store, 1, kinds[i], work.work.id, 600, 650);
        up_store_work_times(store, 1, kinds[i], 99, 1, 2);
    }
    struct up_event unnumbered = sample(UP_EVENT_KERNEL);
    unnumbered.work.end_ns = 6000;
    up_store_event(store, 1, &unnumbered);
    up_store_event(store, 1, &unnumbered);
    up_store_seen(store, 1,
                  &(struct up_store_seen){.kind = UP_EVENT_COPY,
                                          .name = "copy",
                                          .stream = "stream 7",
                                          .step = -1,
                                          .begin_ns = 5,
                                          .end_ns = 9,
                                          .bytes = 64,
                                          .from = UP_SPACE_HOST,
                                          .to = UP_SPACE_DEVICE});
    sqlite3 *db = finish(store, box.path);
    assert_query(db, "SELECT id - (1 << 40), begin_ns, end_ns FROM kernel",
                 "1|600|800\n2|5000|6000\n3|5000|6000");
    assert_query(db, "SELECT begin_ns, end_ns FROM collective", "600|800");
    assert_query(
        db,
        "SELECT name, stream, step, range_id, begin_ns, end_ns, from_space, to_space, bytes"
        " FROM copy ORDER BY begin_ns",
        "copy|stream 7|-|-|5|9|host|device|64\n"
        "layers.12.attn.q.3|compute|2|-|600|800|device|device|0");
    sqlite3_close(db);
    sandbox_release(&box);
}

static void memory_of_the_driver(void **state)
{
    (void)state;
    struct sandbox box;
    sandbox_init(&box);
    struct up_store *store = create(box.path);
    up_store_rank(store, 1, "node", "GPU", 100, -1);
    up_store_baseline(store, 1, 12);
    struct up_store_device_alloc alloc = {1, "nccl", UP_SPACE_DEVICE, 500, 10};
    up_store_device_alloc(store, 1, &alloc);
    alloc.bytes = 400; // told anew
    up_store_device_alloc(store, 1, &alloc);
    up_store_device_alloc(store, 1,
                          &(struct up_store_device_alloc){2, "arena", UP_SPACE_HOST, 7, 20});
    up_store_device_free(store, 1, 2, 30);
    up_store_device_free(store, 1, 3, 30);
    sqlite3 *db = finish(store, box.path);
    assert_query(db, "SELECT baseline_used_bytes, capacity_bytes FROM rank", "12|100");
    assert_query(db, "SELECT rank, owner, space, bytes, alloc_ns, free_ns FROM device_alloc",
                 "1|nccl|device|400|10|-\n1|arena|host|7|20|30");
    sqlite3_close(db);
    sandbox_release(&box);
}

static void everything_else(void **state)
{
    (void)state;
    struct sandbox box;
    sandbox_init(&box);
    struct up_store *store = create(box.path);
    up_store_rank(store, 0, "node", "Some CPU", -1, 10);
    up_store_rank(store, 1, "node", NULL, 5, -1);
    up_store_meta_set(store, "outcome", "a");
    up_store_meta_set(store, "outcome", "b");
    up_store_usage(store, 0, 10, -1, 4096);
    struct up_event usage = sample(UP_EVENT_USAGE);
    usage.usage.device_used_bytes = 123;
    up_store_event(store, 0, &usage);
    up_store_diagnostic(store, -1, -1, "disk", "it's full");
    struct up_event oom = sample(UP_EVENT_OOM);
    oom.oom.bytes = 10;
    oom.oom.live_bytes = 95;
    oom.oom.limit_bytes = 100;
    oom.oom.free_bytes = 5;
    oom.oom.largest_free_bytes = 4;
    oom.oom.category = UP_CATEGORY_ATTENTION;
    up_store_event(store, 2, &oom);
    struct up_event note = sample(UP_EVENT_DIAGNOSTIC);
    up_store_event(store, 2, &note);
    sqlite3 *db = finish(store, box.path);
    assert_query(db, "SELECT * FROM rank", "0|node|Some CPU|-|10\n1|node|-|5|-");
    assert_query(db, "SELECT * FROM meta",
                 "complete|1\nconfig|{\"a\": \"it's\"}\nmodel|tiny\n"
                 "out_of_memory|{\"rank\":2,\"space\":\"device\",\"name\":\"layers.12.attn.q.3\","
                 "\"category\":\"attention\",\"layer\":12,\"phase\":\"backward\",\"step\":2,"
                 "\"seq\":41,\"ns\":5000,\"bytes\":10,\"live_bytes\":95,\"limit_bytes\":100,"
                 "\"free_bytes\":5,\"largest_free_bytes\":4}\n"
                 "outcome|b\nschema_version|1\nupipe_version|0.1");
    assert_query(db, "SELECT * FROM usage", "0|10|-|4096\n0|5000|123|-");
    assert_query(db, "SELECT rank, ns, kind, text FROM diagnostic",
                 "-|-|disk|it's full\n"
                 "2|5000|out_of_memory|layers.12.attn.q.3: 10 bytes of device memory asked for, 95 "
                 "alive, limit 100\n"
                 "2|5000|run|layers.12.attn.q.3");
    sqlite3_close(db);
    sandbox_release(&box);
}

static void commit_ends_a_transaction(void **state)
{
    (void)state;
    struct sandbox box;
    sandbox_init(&box);
    struct up_store *store = create(box.path);
    sqlite3 *reader = open_db(box.path); // beside the writer
    up_store_usage(store, 0, 1, 2, 3);
    assert_query(reader, "SELECT count(*) FROM usage", "0");
    assert_int_equal(up_store_commit(store), UP_OK);
    assert_int_equal(up_store_pending(store), 0);
    assert_query(reader, "SELECT count(*) FROM usage", "1");
    assert_query(reader, "SELECT value FROM meta WHERE key = 'complete'", "0");
    sqlite3_close(reader);
    assert_int_equal(up_store_finish(store, false, NULL), UP_OK);
    reader = open_db(box.path);
    assert_query(reader, "SELECT value FROM meta WHERE key = 'complete'", "0");
    sqlite3_close(reader);
    assert_int_equal(up_store_finish(NULL, true, NULL), UP_OK);
    sandbox_release(&box);
}

// A reader that stays open at the end costs the single file, not the trace.
static void reader_does_not_keep_the_run_from_ending(void **state)
{
    (void)state;
    struct sandbox box;
    sandbox_init(&box);
    struct up_store *store = create(box.path);
    up_store_usage(store, 0, 1, 2, 3);
    up_store_commit(store);
    sqlite3 *reader = open_db(box.path);
    sqlite3_exec(reader, "BEGIN; SELECT count(*) FROM usage", NULL, NULL, NULL);
    assert_int_equal(up_store_finish(store, true, NULL), UP_OK);
    sqlite3_close(reader);
    sqlite3 *db = open_db(box.path);
    assert_query(db, "SELECT value FROM meta WHERE key = 'complete'", "1");
    sqlite3_close(db);
    sandbox_release(&box);
}

// --- Creating ----------------------------------------------------------------------------------

static void put_file(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

static void assert_refused(const char *path, const char *because)
{
    struct up_store *store = NULL;
    struct up_error err = {0};
    assert_int_equal(up_store_create(path, NULL, 0, &store, &err), UP_USAGE);
    assert_null(store);
    assert_int_equal(err.status, UP_USAGE);
    assert_null(strchr(err.text, '\n'));
    if (!strstr(err.text, because) || !strstr(err.text, path) || !strstr(err.text, "expected"))
        fail_msg("'%s' does not say '%s'", err.text, because);
}

static void other_files_are_left_alone(void **state)
{
    (void)state;
    struct sandbox box;
    char text[200];
    sandbox_init(&box);
    assert_refused(box.folder, "it is a folder");
    assert_refused("/dev/null", "it is a device");
    assert_refused("", "the name of a file");
    for (size_t size = 1; size <= sizeof text; size += 33) {
        memset(text, 'x', sizeof text);
        put_file(box.path, text, size);
        assert_refused(box.path, "not an SQLite database, and is left alone");
        struct stat status;
        assert_int_equal(stat(box.path, &status), 0);
        assert_int_equal(status.st_size, size);
    }
    assert_int_equal(sandbox_files(&box, false), 1);
    sandbox_release(&box);
}

static void other_database_is_left_alone(void **state)
{
    (void)state;
    struct sandbox box;
    sqlite3 *db = NULL;
    sandbox_init(&box);
    sqlite3_open(box.path, &db);
    sqlite3_exec(db, "CREATE TABLE meta (key, value); INSERT INTO meta VALUES (1, 2)", NULL, NULL,
                 NULL);
    sqlite3_close(db);
    assert_refused(box.path, "another application's database");
    sqlite3_open(box.path, &db);
    assert_query(db, "SELECT * FROM meta", "1|2");
    sqlite3_close(db);
    sandbox_release(&box);
}

static void folder_must_be_there_and_writable(void **state)
{
    (void)state;
    struct sandbox box;
    char path[200];
    sandbox_init(&box);
    snprintf(path, sizeof path, "%s/missing/run.db", box.folder);
    assert_refused(path, "No such file or directory");
    put_file(box.path, "", 0);
    snprintf(path, sizeof path, "%s/run.db", box.path);
    assert_refused(path, "Not a directory");
    if (geteuid() != 0) { // root writes everywhere
        chmod(box.folder, 0500);
        snprintf(path, sizeof path, "%s/new.db", box.folder);
        assert_refused(path, "Permission denied");
        chmod(box.folder, 0700);
    }
    char name[400];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = 0;
    assert_refused(name, "File name too long");
    assert_int_equal(sandbox_files(&box, false), 1);
    sandbox_release(&box);
}

static void earlier_trace_and_empty_file_are_replaced(void **state)
{
    (void)state;
    struct sandbox box;
    char wal[120];
    sandbox_init(&box);
    put_file(box.path, "", 0);
    struct up_store *store = create(box.path);
    up_store_usage(store, 0, 1, 2, 3);
    sqlite3_close(finish(store, box.path));
    // What an earlier database left beside it must not be played back into the new one.
    snprintf(wal, sizeof wal, "%s-wal", box.path);
    put_file(wal, "stale", 5);
    snprintf(wal, sizeof wal, "%s-journal", box.path);
    put_file(wal, "stale", 5);
    store = create(box.path);
    sqlite3 *db = finish(store, box.path);
    assert_query(db, "SELECT count(*) FROM usage", "0");
    assert_query(db, "PRAGMA integrity_check", "ok");
    sqlite3_close(db);
    assert_int_equal(sandbox_files(&box, false), 1);
    sandbox_release(&box);
}

static void live_trace_is_left_alone(void **state)
{
    (void)state;
    struct sandbox box;
    int ready[2];
    char byte = 0;
    sandbox_init(&box);
    assert_int_equal(pipe(ready), 0);
    fflush(NULL);
    pid_t child = fork();
    if (!child) {
        create(box.path);
        if (write(ready[1], "r", 1) != 1) _exit(1);
        alarm(20); // should the test fail before it kills this
        for (;;) pause();
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    char because[64];
    snprintf(because, sizeof because, "process %d has it open", (int)child);
    assert_refused(box.path, because);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_int_equal(up_store_finish(create(box.path), true, NULL), UP_OK); // now it may go
    close(ready[0]);
    close(ready[1]);
    sandbox_release(&box);
}

// Names that SQLite takes for something else are files here.
static void names_are_files(void **state)
{
    (void)state;
    static const char *const names[] = {":memory:", "file:x?mode=memory", "a'b %41.db"};
    struct sandbox box;
    char before[400];
    sandbox_init(&box);
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(box.folder), 0);
    for (int i = 0; i < UP_COUNT(names); i++) {
        struct up_store *store = create(names[i]);
        up_store_usage(store, 0, 1, 2, 3);
        sqlite3 *db = finish(store, names[i]);
        assert_query(db, "SELECT count(*) FROM usage", "1");
        sqlite3_close(db);
        assert_int_equal(access(names[i], F_OK), 0);
    }
    assert_int_equal(chdir(before), 0);
    assert_int_equal(sandbox_files(&box, false), UP_COUNT(names));
    sandbox_release(&box);
}

static void failure_is_kept_and_the_rest_returns_at_once(void **state)
{
    (void)state;
    struct sandbox box;
    struct up_error err = {0};
    struct rlimit limit;
    char long_text[5000];
    sandbox_init(&box);
    struct up_store *store = create(box.path);
    up_store_usage(store, 0, 1, 2, 3);
    up_store_commit(store);
    memset(long_text, 'x', sizeof long_text);
    long_text[sizeof long_text - 1] = 0;
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &limit);
    struct rlimit small = {.rlim_cur = 200000, .rlim_max = limit.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    enum up_status rc = UP_OK;
    for (int i = 0; i < 10000 && rc == UP_OK; i++) {
        rc = up_store_diagnostic(store, 0, i, "test", long_text);
        if (rc == UP_OK && i % 10 == 9) rc = up_store_commit(store);
    }
    assert_int_equal(rc, UP_FAILED);
    assert_true(up_store_failed(store));
    int64_t rows = up_store_rows(store);
    assert_int_equal(up_store_usage(store, 0, 1, 2, 3), UP_FAILED);
    assert_int_equal(up_store_commit(store), UP_FAILED);
    assert_int_equal(up_store_rows(store), rows);
    assert_true(strlen(up_store_failure(store)) > 0);
    assert_int_equal(up_store_finish(store, true, &err), UP_FAILED);
    setrlimit(RLIMIT_FSIZE, &limit);
    assert_non_null(strstr(err.text, box.path));
    sqlite3 *db = open_db(box.path);
    assert_query(db, "PRAGMA integrity_check", "ok");
    assert_query(db, "SELECT count(*) FROM usage", "1");
    assert_query(db, "SELECT value FROM meta WHERE key = 'complete'", "0");
    assert_query(db, "SELECT count(*) % 10 FROM diagnostic WHERE kind = 'test'", "0");
    sqlite3_close(db);
    sandbox_release(&box);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alloc_and_free_are_one_row),
        cmocka_unit_test(ranges_and_work),
        cmocka_unit_test(steps_and_their_nulls),
        cmocka_unit_test(times_of_work),
        cmocka_unit_test(memory_of_the_driver),
        cmocka_unit_test(everything_else),
        cmocka_unit_test(commit_ends_a_transaction),
        cmocka_unit_test(reader_does_not_keep_the_run_from_ending),
        cmocka_unit_test(other_files_are_left_alone),
        cmocka_unit_test(other_database_is_left_alone),
        cmocka_unit_test(folder_must_be_there_and_writable),
        cmocka_unit_test(earlier_trace_and_empty_file_are_replaced),
        cmocka_unit_test(live_trace_is_left_alone),
        cmocka_unit_test(names_are_files),
        cmocka_unit_test(failure_is_kept_and_the_rest_returns_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
