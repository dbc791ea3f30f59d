/* The profiler on a GPU: kernels have the GPU's times and join to ranges, what the driver gives is
 * seen and owned, the books balance, and what goes wrong is told. */
#include "tests/cli/program.h"
#include "tests/gpu/need.h"

#include <jansson.h>
#include <sqlite3.h>

#if UPIPE_CUPTI

#include "profiler/cuda/watcher.h"

#include <cupti.h>

enum { MIB = 1 << 20, FILLS = 300000 };

static char folder[32], data_path[64], trace_path[64];

/* --- Questions -----------------------------------------------------------------------------------
 */

static double ask(const char *format, ...)
{
    sqlite3 *db;
    sqlite3_stmt *statement = NULL;
    va_list arguments;
    va_start(arguments, format);
    char *sql = sqlite3_vmprintf(format, arguments);
    va_end(arguments);
    assert_int_equal(sqlite3_open_v2(trace_path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    if (sqlite3_prepare_v2(db, sql, -1, &statement, NULL) != SQLITE_OK ||
        sqlite3_step(statement) != SQLITE_ROW)
        fail_msg("%s in: %s", sqlite3_errmsg(db), sql);
    double value = sqlite3_column_double(statement, 0);
    sqlite3_finalize(statement);
    sqlite3_free(sql);
    sqlite3_close(db);
    return value;
}

static void tell_diagnostics(void)
{
    char command[256];
    snprintf(command, sizeof command,
             "sqlite3 %s 'SELECT rank, kind, text FROM diagnostic' 2>/dev/null", trace_path);
    if (ask("SELECT count(*) FROM diagnostic") > 0 && system(command)) puts("(no sqlite3)");
}

/* --- In this process -----------------------------------------------------------------------------
 */

struct rig {
    struct up_watcher *watcher;
    struct up_device *device;
    struct up_recorder *recorder;
    struct up_trace *trace;
};

static void rig_start(struct rig *rig, bool kernels, int buffers)
{
    struct up_error err = {0};
    rig->watcher =
        up_watcher_create(&(struct up_watcher_options){.kernels = kernels, .buffers = buffers});
    assert_non_null(rig->watcher);
    rig->device = up_device_cuda_create(0, &err);
    if (!rig->device) fail_msg("%s", err.text);
    up_watcher_add(rig->watcher, 0, 0, rig->device);
    unlink(trace_path);
    assert_int_equal(
        up_recorder_create(trace_path, (struct up_span){-1, -1}, NULL, 0, &rig->recorder, &err),
        UP_OK);
    rig->trace = up_recorder_add_rank(rig->recorder, 0, rig->device->name, -1);
    up_recorder_device(rig->recorder, 0, rig->device);
    assert_int_equal(up_watcher_attach(rig->watcher, rig->recorder, &err), UP_OK);
    assert_int_equal(up_recorder_start(rig->recorder, &err), UP_OK);
}

static void rig_stop(struct rig *rig)
{
    struct up_error err = {0};
    up_trace_close(rig->trace);
    assert_int_equal(up_recorder_finish(rig->recorder, "ok", &err), UP_OK);
    up_watcher_destroy(rig->watcher);
    up_device_destroy(rig->device);
    tell_diagnostics();
}

static void test_allocations_are_seen(void **state)
{
    (void)state;
    gpus_or_skip();
    struct rig rig;
    void *device = NULL, *kept = NULL, *host = NULL;
    rig_start(&rig, false, 0);
    assert_int_equal(cudaMalloc(&device, 64 * MIB), cudaSuccess);
    assert_int_equal(cudaMalloc(&kept, 32 * MIB), cudaSuccess);
    assert_int_equal(cudaHostAlloc(&host, 8 * MIB, cudaHostAllocDefault), cudaSuccess);
    cudaFree(device);
    rig_stop(&rig);
    static const char mine[] = "SELECT count(*) FROM device_alloc WHERE owner = 'gpu_test_profile'"
                               " AND space = '%s' AND bytes = %d AND free_ns IS %s NULL";
    assert_int_equal(ask(mine, "device", 64 * MIB, "NOT"), 1);
    assert_int_equal(ask(mine, "device", 32 * MIB, ""), 1);
    assert_int_equal(ask(mine, "host", 8 * MIB, ""), 1);
    assert_int_equal(ask("SELECT count(*) FROM device_alloc WHERE free_ns < alloc_ns"), 0);
    assert_int_equal(ask("SELECT count(*) FROM diagnostic"), 0);
    // The clocks agree: it was taken between the device's beginning and the last sample.
    assert_int_equal(ask("SELECT count(*) FROM device_alloc WHERE owner = 'gpu_test_profile' AND"
                         " (alloc_ns < 0 OR alloc_ns > (SELECT max(ns) FROM usage))"),
                     0);
    assert_true(ask("SELECT max(device_used_bytes) FROM usage") >= 32 * MIB);
    cudaFree(kept);
    cudaFreeHost(host);
}

// What is freed to a pool of cudaMallocAsync stays in it, and is the pool's until that is trimmed.
static void test_pools_are_seen(void **state)
{
    (void)state;
    gpus_or_skip();
    struct rig rig;
    void *memory = NULL;
    cudaMemPool_t pool = NULL;
    uint64_t all = UINT64_MAX, kept = 0;
    rig_start(&rig, false, 0);
    assert_int_equal(cudaDeviceGetDefaultMemPool(&pool, 0), cudaSuccess);
    assert_int_equal(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all),
                     cudaSuccess);
    assert_int_equal(cudaMallocAsync(&memory, 80 * MIB, 0), cudaSuccess);
    assert_int_equal(cudaFreeAsync(memory, 0), cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    assert_int_equal(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &kept),
                     cudaSuccess);
    assert_true(kept >= 80 * MIB);
    assert_int_equal(cudaMemPoolTrimTo(pool, 0), cudaSuccess);
    rig_stop(&rig);
    // While the memory was handed out the pool kept the rest.
    assert_int_equal(ask("SELECT bytes FROM device_alloc WHERE owner = 'gpu_test_profile' AND"
                         " free_ns IS NOT NULL AND bytes = %d",
                         80 * MIB),
                     80 * MIB);
    assert_int_equal(ask("SELECT max(bytes) FROM device_alloc WHERE owner = 'async pool'"), kept);
    assert_int_equal(ask("SELECT count(*) FROM device_alloc WHERE owner = 'async pool' AND bytes ="
                         " %lld",
                         (long long)kept - 80 * MIB),
                     kept > 80 * MIB);
    assert_int_equal(ask("SELECT count(*) FROM device_alloc WHERE owner = 'async pool' AND"
                         " free_ns IS NULL"),
                     0);
}

// One buffer for far more than it holds: what was dropped is counted.
static void test_drops_are_told(void **state)
{
    (void)state;
    gpus_or_skip();
    struct rig rig;
    void *memory = NULL;
    rig_start(&rig, true, 1);
    assert_int_equal(cudaMalloc(&memory, MIB), cudaSuccess);
    for (int i = 0; i < FILLS; i++) cudaMemsetAsync(memory, 0, 64, 0);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    cudaFree(memory);
    rig_stop(&rig);
    assert_int_equal(ask("SELECT count(*) FROM diagnostic WHERE kind = 'cupti_dropped'"), 1);
}

static void CUPTIAPI ignore(void *context, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                            const void *data)
{
    (void)context;
    (void)domain;
    (void)id;
    (void)data;
}

static void test_rival_is_named(void **state)
{
    (void)state;
    gpus_or_skip();
    struct rig rig;
    CUpti_SubscriberHandle rival;
    CUpti_SubscriberParams params = {.structSize = CUpti_SubscriberParams_STRUCT_SIZE,
                                     .subscriberName = "a rival"};
    assert_int_equal(cuptiSubscribe_v2(&rival, ignore, NULL, &params), CUPTI_SUCCESS);
    rig_start(&rig, true, 0);
    rig_stop(&rig);
    cuptiUnsubscribe(rival);
    assert_int_equal(ask("SELECT count(*) FROM diagnostic"), 1);
    assert_int_equal(ask("SELECT count(*) FROM diagnostic WHERE kind = 'cupti'"
                         " AND text LIKE '%%another tool%%a rival%%'"),
                     1);
}

/* --- upipe-train ---------------------------------------------------------------------------------
 */

static int train(const char *words)
{
    static struct program program;
    char copy[512];
    const char *argv[64] = {"--device", "cuda", "--data", data_path, "--trace", trace_path};
    int count = 6;
    snprintf(copy, sizeof copy, "%s", words);
    for (char *rest = copy, *word; (word = strsep(&rest, " "));) argv[count++] = word;
    unlink(trace_path);
    program_run_words(&program, "upipe-train", argv);
    if (program.status) printf("upipe-train %s: %s", words, program.err);
    tell_diagnostics();
    return program.status;
}

static void check_times(void)
{
    static const char table[][16] = {"kernel", "copy", "collective"};
    for (int i = 0; i < 3; i++) {
        double all = ask("SELECT count(*) FROM %s WHERE step IS NOT NULL", table[i]);
        double timed =
            ask("SELECT count(*) FROM %s WHERE step IS NOT NULL AND end_ns > begin_ns", table[i]);
        double outside =
            ask("SELECT count(*) FROM %s w JOIN step s ON s.step = w.step AND s.rank = w.rank"
                " WHERE w.end_ns > w.begin_ns AND (w.begin_ns < s.begin_ns - 1000000"
                " OR w.end_ns > s.end_ns + 1000000)",
                table[i]);
        printf("%s: %g in steps, %g with times, %g outside their step\n", table[i], all, timed,
               outside);
        assert_true(timed >= 0.99 * all);
        assert_int_equal(outside, 0);
    }
    assert_true(ask("SELECT count(*) FROM kernel WHERE step = 0") > 100);
    assert_int_equal(ask("SELECT count(*) FROM kernel WHERE range_id IS NOT NULL AND range_id NOT"
                         " IN (SELECT id FROM range)"),
                     0);
    assert_true(ask("SELECT count(*) FROM kernel k JOIN range r ON r.id = k.range_id"
                    " AND r.rank = k.rank") > 100);
    assert_int_equal(ask("SELECT count(*) FROM range WHERE name IN ('forward', 'backward')"
                         " AND device_end_ns IS NULL"),
                     0);
    // Work of one stream runs in the order in which it was given.
    assert_int_equal(
        ask("SELECT count(*) FROM (SELECT begin_ns, lag(end_ns) OVER (PARTITION BY"
            " rank ORDER BY id) AS before FROM kernel WHERE stream = 'compute'"
            " AND id < 1 << 44 AND end_ns > begin_ns) WHERE begin_ns < before - 20000"),
        0);
}

// |unattributed| over what is used, of the report's books.
static double unattributed(void)
{
    static struct program program;
    json_error_t error;
    double share = 1, used = 0, rest = 0;
    program_run(&program, "upipe-report", "--json", trace_path);
    json_t *root = json_loads(program.out, 0, &error);
    if (!root) fail_msg("%s: %s", error.text, program.err);
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(root, "reconciliation"), i, row)
    {
        const char *item = json_string_value(json_object_get(row, "item"));
        double bytes = (double)json_integer_value(json_object_get(row, "bytes"));
        printf("  %-24s %10.1f MiB\n", item, bytes / MIB);
        if (!strcmp(item, "device used")) used = bytes;
        if (!strcmp(item, "unattributed")) rest = bytes < 0 ? -bytes : bytes;
    }
    json_decref(root);
    if (used > 0) share = rest / used;
    printf("  unattributed: %.2f%%\n", 100 * share);
    return share;
}

static void check_owners(int ranks)
{
    static const char *const owners[] = {"context", "cublas", "arena", "nccl"};
    for (int i = 0; i < (ranks > 1 ? 4 : 3); i++)
        assert_int_equal(ask("SELECT count(DISTINCT rank) FROM device_alloc WHERE owner = '%q'"
                             " AND space = 'device' AND bytes > 0",
                             owners[i]),
                         ranks);
    assert_int_equal(ask("SELECT count(*) FROM diagnostic WHERE kind LIKE 'cupti%%'"), 0);
    assert_true(ask("SELECT count(*) FROM usage WHERE device_used_bytes > 0") >= 5 * ranks);
}

static void test_books_and_times(void **state)
{
    (void)state;
    gpus_or_skip();
    for (int ranks = 1; ranks <= 4; ranks *= 2) {
        char words[256];
        if (!has_gpus(ranks)) continue;
        snprintf(words, sizeof words,
                 "--model tiny --seq 4K --steps 5 --fsdp on --cp %d --checkpoint block --offload "
                 "host --trace-level kernels",
                 ranks);
        assert_int_equal(train(words), 0);
        check_times();
        check_owners(ranks);
        assert_true(unattributed() < 0.01);
        if (ranks < 4 && has_gpus(2 * ranks)) continue;
        // Without kernels' times, on all GPUs, the moments are those of the host.
        snprintf(words, sizeof words, "--model tiny --seq 4K --steps 5 --cp %d", ranks);
        assert_int_equal(train(words), 0);
        assert_int_equal(ask("SELECT count(*) FROM kernel WHERE end_ns > begin_ns"), 0);
        check_owners(ranks);
        assert_true(unattributed() < 0.01);
    }
}

// The GPU is nearly full of somebody else's: what did not fit is told, the trace is whole.
static void test_real_shortage(void **state)
{
    (void)state;
    gpus_or_skip();
    size_t free_bytes = 0, total = 0, leave = (size_t)1536 * MIB;
    void *memory = NULL;
    assert_int_equal(cudaSetDevice(0), cudaSuccess);
    assert_int_equal(cudaMemGetInfo(&free_bytes, &total), cudaSuccess);
    assert_int_equal(cudaMalloc(&memory, free_bytes - leave), cudaSuccess);
    int status = train("--model llama3.2-1b --layers 4 --seq 1K --steps 1 --no-admission");
    cudaFree(memory);
    assert_int_equal(status, 1);
    assert_int_equal(ask("SELECT value = '1' FROM meta WHERE key = 'complete'"), 1);
    assert_int_equal(ask("SELECT value = 'out of memory' FROM meta WHERE key = 'outcome'"), 1);
    assert_true(ask("SELECT value ->> 'bytes' FROM meta WHERE key = 'out_of_memory'") > 0);
    assert_true(ask("SELECT sum(bytes) = (SELECT value ->> 'live_bytes' FROM meta WHERE key ="
                    " 'out_of_memory') FROM tensor WHERE space = 'device' AND free_seq IS NULL"
                    " AND id = storage_id") == 1);
}

// Where CUPTI finds no GPU it says so, once, and the trace is whole.
static void test_without_a_gpu(void **state)
{
    (void)state;
    if (gpu_is_here()) skip();
    struct up_error err = {0};
    struct up_recorder *recorder = NULL;
    struct up_watcher *watcher = up_watcher_create(&(struct up_watcher_options){.kernels = true});
    assert_non_null(watcher);
    struct up_watcher *second = up_watcher_create(&(struct up_watcher_options){.kernels = true});
    assert_non_null(second);
    unlink(trace_path);
    assert_int_equal(
        up_recorder_create(trace_path, (struct up_span){-1, -1}, NULL, 0, &recorder, &err), UP_OK);
    struct up_trace *trace = up_recorder_add_rank(recorder, 0, "GPU", -1);
    assert_int_equal(up_watcher_attach(watcher, recorder, &err), UP_OK);
    assert_int_equal(up_recorder_start(recorder, &err), UP_OK);
    up_trace_close(trace);
    assert_int_equal(up_recorder_finish(recorder, "ok", &err), UP_OK);
    up_watcher_destroy(second);
    up_watcher_destroy(watcher);
    assert_int_equal(ask("SELECT count(*) FROM diagnostic"), 1);
    assert_int_equal(ask("SELECT count(*) FROM diagnostic WHERE kind = 'cupti'"), 1);
    tell_diagnostics();
}

int main(void)
{
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    setvbuf(stdout, NULL, _IOLBF, 0);
    folder_make(folder);
    snprintf(data_path, sizeof data_path, "%s/data", folder);
    snprintf(trace_path, sizeof trace_path, "%s/run.db", folder);
    file_write_text(data_path, 1 << 20);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allocations_are_seen), cmocka_unit_test(test_pools_are_seen),
        cmocka_unit_test(test_drops_are_told),       cmocka_unit_test(test_rival_is_named),
        cmocka_unit_test(test_books_and_times),      cmocka_unit_test(test_real_shortage),
        cmocka_unit_test(test_without_a_gpu)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    folder_remove(folder);
    return failed;
}
#else
static void test_profile(void **state)
{
    (void)state;
    gpus_or_skip();
    puts("skipped: built without CUPTI");
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_profile)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
