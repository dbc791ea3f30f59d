/* The profiler's side of CUPTI, held against a CUPTI of the tests' own: no GPU is needed. */
#include "tests/gpu/need.h"

#if UPIPE_CUPTI

#include "profiler/cuda/watcher.h"
#include "tests/gpu/fake_cupti.h"
#include "tests/profiler/run_db.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

enum { GPU = 40, RANK = 5 }; // no GPU that is really there

static const int64_t ahead_ns = INT64_C(1700000000000000000);
static struct fake_cupti *fake;

struct rig {
    struct sandbox box;
    struct up_watcher *watcher;
    struct up_device *device;
    struct up_recorder *recorder;
    struct up_trace *trace;
    struct up_rank rank;
    struct up_device_ops ops; // of the device
};

// As on a GPU: when it runs is not known when it is given.
static struct up_interval launch_now(struct up_device *device, enum up_stream stream,
                                     union up_call run, const void *args, size_t size,
                                     const struct up_cost *cost)
{
    int64_t now = device->ops->clock_ns(device);
    (void)stream;
    (void)size;
    (void)cost;
    run.cpu(args);
    return (struct up_interval){now, now};
}

static void rig_start(struct rig *rig, bool kernels, int buffers)
{
    struct up_error err = {0};
    *rig = (struct rig){0};
    sandbox_init(&rig->box);
    fake->ahead_ns = ahead_ns;
    rig->watcher =
        up_watcher_create(&(struct up_watcher_options){.kernels = kernels, .buffers = buffers});
    rig->device = up_device_cpu_create(1, 0, &err);
    assert_non_null(rig->device);
    rig->ops = *rig->device->ops;
    rig->ops.launch = launch_now;
    rig->device->ops = &rig->ops;
    assert_int_equal(
        up_recorder_create(rig->box.path, (struct up_span){-1, -1}, NULL, 0, &rig->recorder, &err),
        UP_OK);
    rig->trace = up_recorder_add_rank(rig->recorder, RANK, "GPU", -1);
    up_watcher_add(rig->watcher, GPU, RANK, rig->device);
    assert_int_equal(up_watcher_attach(rig->watcher, rig->recorder, &err), UP_OK);
    assert_int_equal(up_recorder_start(rig->recorder, &err), UP_OK);
    assert_int_equal(up_rank_init(&rig->rank, RANK, rig->device, rig->trace, NULL, &err), UP_OK);
    up_watcher_bind(rig->watcher, &rig->rank);
}

static sqlite3 *rig_stop(struct rig *rig)
{
    struct up_error err = {0};
    up_trace_close(rig->trace);
    assert_int_equal(up_recorder_finish(rig->recorder, "ok", &err), UP_OK);
    up_watcher_destroy(rig->watcher);
    up_rank_release(&rig->rank);
    up_device_destroy(rig->device);
    return open_db(rig->box.path);
}

static void rig_release(struct rig *rig, sqlite3 *db)
{
    sqlite3_close(db);
    sandbox_release(&rig->box);
}

// The moment on CUPTI's clock.
static uint64_t theirs(const struct rig *rig, int64_t rank_ns)
{
    int64_t start = up_clock_ns() - rig->device->ops->clock_ns(rig->device);
    return (uint64_t)(start + rank_ns + ahead_ns);
}

static void kernel(const struct rig *rig, uint32_t correlation, int64_t begin_ns, int64_t end_ns)
{
    CUpti_ActivityKernel10 record = {.kind = CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                     .start = theirs(rig, begin_ns),
                                     .end = theirs(rig, end_ns),
                                     .deviceId = GPU,
                                     .streamId = 13,
                                     .correlationId = correlation,
                                     .name = "gemm"};
    if (!end_ns) record.start = record.end = 0;
    fake->record(&record, sizeof record);
}

static void copy(const struct rig *rig, uint32_t driver, uint32_t runtime, int64_t begin_ns)
{
    CUpti_ActivityMemcpy6 record = {.kind = CUPTI_ACTIVITY_KIND_MEMCPY,
                                    .srcKind = CUPTI_ACTIVITY_MEMORY_KIND_PINNED,
                                    .dstKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE,
                                    .bytes = 64,
                                    .start = theirs(rig, begin_ns),
                                    .end = theirs(rig, begin_ns + 1000),
                                    .deviceId = GPU,
                                    .correlationId = driver,
                                    .runtimeCorrelationId = runtime};
    fake->record(&record, sizeof record);
}

static void memory(const struct rig *rig, bool taken, int kind, uint64_t address, uint64_t bytes,
                   uint32_t device, const char *source)
{
    CUpti_ActivityMemory4 record = {.kind = CUPTI_ACTIVITY_KIND_MEMORY2,
                                    .memoryOperationType =
                                        taken ? CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION
                                              : CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE,
                                    .memoryKind = (CUpti_ActivityMemoryKind)kind,
                                    .address = address,
                                    .bytes = bytes,
                                    .timestamp = theirs(rig, 1000000),
                                    .deviceId = device,
                                    .source = source};
    fake->record(&record, sizeof record);
}

static uint32_t calls;

// Work of the rank that makes `parts` calls of the kind.
static const struct work_args {
    CUpti_CallbackDomain domain;
    CUpti_CallbackId id;
    int parts;
} launch_args = {CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_RUNTIME_TRACE_CBID_cudaLaunchKernel_v7000, 2},
  driver_args = {CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuLaunchKernelEx, 1},
  rows_args = {CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_RUNTIME_TRACE_CBID_cudaMemcpy2DAsync_v3020, 1};

static void make_calls(const void *pointer)
{
    const struct work_args *args = pointer;
    for (int i = 0; i < args->parts; i++)
        assert_int_equal(fake->call(args->domain, args->id, ++calls), 1);
}

static void launch(struct rig *rig, const char *name, const struct work_args *args)
{
    up_launch(&rig->rank, UP_STREAM_COMPUTE, name, (union up_call){.cpu = make_calls}, args,
              sizeof *args, &(struct up_cost){.class = UP_COST_POINTWISE});
}

static void test_work_and_ranges(void **state)
{
    (void)state;
    struct rig rig;
    rig_start(&rig, true, 0);
    calls = 0;
    up_rank_step_begin(&rig.rank, 0);
    up_range_begin(&rig.rank, "mlp", 2);
    launch(&rig, "matmul", &launch_args); // calls 1 and 2
    launch(&rig, "cast", &driver_args);   // call 3
    up_range_end(&rig.rank);
    // Nobody's work, in the step: call 4.
    fake->call(CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_DRIVER_TRACE_CBID_cuMemcpyAsync, 4);
    // What is of no interest is not asked for.
    assert_int_equal(
        fake->call(CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_RUNTIME_TRACE_CBID_cudaStreamQuery_v3020, 5),
        0);
    kernel(&rig, 1, 2000000, 2500000);
    kernel(&rig, 2, 2600000, 2700000);
    kernel(&rig, 3, 0, 0); // CUPTI could not tell when
    copy(&rig, 99, 4, 3000000);
    up_rank_step_end(&rig.rank, 1, 1, 1);
    sqlite3 *db = rig_stop(&rig);
    // Clocks agree within their readings.
    assert_query(db,
                 "SELECT name, rank, abs(begin_ns - 2000000) < 50000, abs(end_ns - 2700000) < 50000"
                 " FROM kernel WHERE name = 'matmul'",
                 "matmul|5|1|1");
    assert_query(db,
                 "SELECT end_ns - begin_ns BETWEEN 699000 AND 701000 FROM kernel WHERE name ="
                 " 'matmul'",
                 "1");
    assert_query(db, "SELECT name, from_space, to_space, bytes, step, range_id FROM copy",
                 "copy|host|device|64|0|-");
    assert_query(
        db,
        "SELECT r.name, abs(r.device_begin_ns - 2000000) < 50000 FROM range r JOIN kernel k"
        " ON k.range_id = r.id AND k.name = 'matmul'",
        "layers.2.mlp|1");
    assert_query(db, "SELECT count(*) FROM diagnostic", "0");
    rig_release(&rig, db);
}

// Attention copies rows, after its kernels too: that is part of its time.
static void test_work_that_copies(void **state)
{
    (void)state;
    struct rig rig;
    rig_start(&rig, true, 0);
    calls = 0;
    up_rank_step_begin(&rig.rank, 0);
    launch(&rig, "attention_backward", &rows_args); // call 1
    copy(&rig, 98, 1, 3000000);
    up_rank_step_end(&rig.rank, 1, 1, 1);
    sqlite3 *db = rig_stop(&rig);
    assert_query(db, "SELECT name, abs(begin_ns - 3000000) < 50000 FROM kernel",
                 "attention_backward|1");
    assert_query(db, "SELECT count(*) FROM copy", "0");
    rig_release(&rig, db);
}

static void test_memory(void **state)
{
    (void)state;
    struct rig rig;
    rig_start(&rig, false, 0);
    memory(&rig, true, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, 0x1000, 100, GPU, "/x/libcublas.so.13");
    memory(&rig, true, CUPTI_ACTIVITY_MEMORY_KIND_PINNED, 0x2000, 200, GPU, "/x/prog");
    memory(&rig, true, CUPTI_ACTIVITY_MEMORY_KIND_PAGEABLE, 0x3000, 300, GPU, "/x/prog");
    memory(&rig, true, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE_STATIC, 0x4000, 400, GPU, "/x/prog");
    memory(&rig, true, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, 0x5000, 500, GPU + 1, "/x/prog");
    memory(&rig, true, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, 0x6000, 600, 4000000000u, "/x/prog");
    memory(&rig, false, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, 0x1000, 100, GPU, NULL);
    kernel(&rig, 1, 10, 20); // not asked for
    sqlite3 *db = rig_stop(&rig);
    assert_query(db, "SELECT rank, owner, space, bytes, free_ns IS NOT NULL FROM device_alloc",
                 "5|cublas|device|100|1\n5|prog|host|200|0");
    assert_query(db, "SELECT count(*) FROM kernel", "0");
    assert_query(db, "SELECT count(*) FROM diagnostic", "0");
    rig_release(&rig, db);
}

enum { MIB = 1 << 20, POOL = 0x77 };

static const int64_t moment_ns = 100000000; // far longer than clocks disagree

static CUpti_ActivityMemory4 pooled(const struct rig *rig, bool taken, uint64_t address, int bytes,
                                    int64_t at_ns, int pool_mib, int used_mib)
{
    return (CUpti_ActivityMemory4){
        .kind = CUPTI_ACTIVITY_KIND_MEMORY2,
        .memoryOperationType = taken ? CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION
                                     : CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE,
        .memoryKind = CUPTI_ACTIVITY_MEMORY_KIND_DEVICE,
        .address = address,
        .bytes = (uint64_t)bytes * MIB,
        .timestamp = theirs(rig, at_ns * moment_ns),
        .deviceId = GPU,
        .isAsync = 1,
        .memoryPoolConfig = {.memoryPoolType = CUPTI_ACTIVITY_MEMORY_POOL_TYPE_LOCAL,
                             .address = POOL,
                             .pool.size = (uint64_t)pool_mib * MIB,
                             .utilizedSize = (uint64_t)used_mib * MIB},
        .source = "/x/libtorch.so"};
}

static void pool_told(const struct rig *rig, CUpti_ActivityMemoryPoolOperationType what,
                      int64_t at_ns, int pool_mib, CUpti_ActivityMemoryPool3 other)
{
    CUpti_ActivityMemoryPool3 record = {.kind = CUPTI_ACTIVITY_KIND_MEMORY_POOL,
                                        .memoryPoolOperationType = what,
                                        .memoryPoolType = CUPTI_ACTIVITY_MEMORY_POOL_TYPE_LOCAL,
                                        .deviceId = GPU,
                                        .address = POOL + other.address,
                                        .size = (uint64_t)pool_mib * MIB,
                                        .timestamp = theirs(rig, at_ns * moment_ns),
                                        .isManagedPool = other.isManagedPool};
    fake->record(&record, sizeof record);
}

/* As a GPU tells it: an allocation has the pool's figures after it, a release those before it, and
 * a pool is told of again when somebody waited and it gave back what was free. */
static void tell_pool(const struct rig *rig)
{
    CUpti_ActivityMemory4 record;
    CUpti_ActivityMemoryPool3 plain = {0}, managed = {.address = 1, .isManagedPool = 1};
    pool_told(rig, CUPTI_ACTIVITY_MEMORY_POOL_OPERATION_TYPE_CREATED, 1, 32, plain);
    record = pooled(rig, true, 0x1000, 10, 2, 32, 10);
    fake->record(&record, sizeof record);
    record = pooled(rig, true, 0x2000, 30, 3, 64, 40);
    fake->record(&record, sizeof record);
    record = pooled(rig, false, 0x1000, 10, 4, 64, 40);
    fake->record(&record, sizeof record);
    record = pooled(rig, false, 0x2000, 30, 5, 64, 30);
    fake->record(&record, sizeof record);
    pool_told(rig, CUPTI_ACTIVITY_MEMORY_POOL_OPERATION_TYPE_TRIMMED, 6, 32, plain);
    pool_told(rig, CUPTI_ACTIVITY_MEMORY_POOL_OPERATION_TYPE_TRIMMED, 7, 32, plain); // the same
    pool_told(rig, CUPTI_ACTIVITY_MEMORY_POOL_OPERATION_TYPE_CREATED, 7, 32, managed);
    pool_told(rig, CUPTI_ACTIVITY_MEMORY_POOL_OPERATION_TYPE_DESTROYED, 8, 32, plain);
}

static void test_pools(void **state)
{
    (void)state;
    struct rig rig;
    rig_start(&rig, false, 0);
    tell_pool(&rig);
    sqlite3 *db = rig_stop(&rig);
    // Together with what is handed out it is the pool's size at each moment.
    assert_query(db,
                 "SELECT bytes / 1048576, round(alloc_ns / 1e8), round(free_ns / 1e8)"
                 " FROM device_alloc WHERE owner = 'async pool' AND space = 'device' ORDER BY id",
                 "32|1.0|2.0\n22|2.0|3.0\n24|3.0|4.0\n34|4.0|5.0\n64|5.0|6.0\n32|6.0|8.0");
    assert_query(db, "SELECT owner, bytes / 1048576 FROM device_alloc WHERE owner <> 'async pool'",
                 "libtorch.so|10\nlibtorch.so|30");
    assert_query(db, "SELECT count(*) FROM diagnostic", "0");
    rig_release(&rig, db);
}

// Pools are refused: one row, and the allocations have theirs.
static void test_pools_refused(void **state)
{
    (void)state;
    struct rig rig;
    fake->refuse(CUPTI_ACTIVITY_KIND_MEMORY_POOL);
    rig_start(&rig, false, 0);
    memory(&rig, true, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, 0x1000, 100, GPU, "a");
    pool_told(&rig, CUPTI_ACTIVITY_MEMORY_POOL_OPERATION_TYPE_CREATED, 1, 32,
              (CUpti_ActivityMemoryPool3){0});
    sqlite3 *db = rig_stop(&rig);
    fake->refuse((CUpti_ActivityKind)0);
    assert_query(db, "SELECT kind, text FROM diagnostic",
                 "cupti|CUPTI does not tell of memory pools: INSUFFICIENT_PRIVILEGES");
    assert_query(db, "SELECT owner, bytes FROM device_alloc", "a|100");
    rig_release(&rig, db);
}

// One buffer: what does not fit until it is read is dropped and counted; the rest is whole.
static void test_drops(void **state)
{
    (void)state;
    struct rig rig;
    rig_start(&rig, false, 1);
    int fit = (2 << 20) / (int)sizeof(CUpti_ActivityMemory4);
    for (int i = 0; i < 40 * fit; i++)
        memory(&rig, true, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, (uint64_t)(i + 1) * 512, 1, GPU, "a");
    sqlite3 *db = rig_stop(&rig);
    int64_t kept = query_number(db, "SELECT count(*) FROM device_alloc");
    // At its start the recorder may take the buffer before it is full.
    assert_in_range(kept, 1, 40 * fit - 1);
    char text[96];
    snprintf(text, sizeof text, "cupti_dropped|CUPTI dropped %lld records",
             (long long)(40 * fit - kept));
    assert_int_equal(strncmp(query(db, "SELECT kind, text FROM diagnostic"), text, strlen(text)),
                     0);
    rig_release(&rig, db);
}

static void test_many_buffers(void **state)
{
    (void)state;
    struct rig rig;
    rig_start(&rig, false, 0);
    int fit = (2 << 20) / (int)sizeof(CUpti_ActivityMemory4);
    for (int i = 0; i < 3 * fit; i++)
        memory(&rig, true, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, (uint64_t)(i + 1) * 512, 1, GPU, "a");
    sqlite3 *db = rig_stop(&rig);
    assert_int_equal(query_number(db, "SELECT count(*) FROM device_alloc"), 3 * fit);
    assert_query(db, "SELECT count(*) FROM diagnostic", "0");
    rig_release(&rig, db);
}

static void test_rival(void **state)
{
    (void)state;
    struct rig rig;
    fake->rival("Nsight");
    rig_start(&rig, true, 0);
    memory(&rig, true, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, 0x1000, 100, GPU, "a");
    sqlite3 *db = rig_stop(&rig);
    fake->rival(NULL);
    assert_query(db, "SELECT kind, text FROM diagnostic",
                 "cupti|another tool has CUPTI: CUPTI for Nsight");
    assert_query(db, "SELECT count(*) FROM device_alloc", "0");
    rig_release(&rig, db);
}

// No kernels for want of a privilege: memory all the same.
static void test_refusal(void **state)
{
    (void)state;
    struct rig rig;
    fake->refuse(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    rig_start(&rig, true, 0);
    memory(&rig, true, CUPTI_ACTIVITY_MEMORY_KIND_DEVICE, 0x1000, 100, GPU, "a");
    sqlite3 *db = rig_stop(&rig);
    fake->refuse((CUpti_ActivityKind)0);
    assert_query(db, "SELECT kind, text FROM diagnostic",
                 "cupti|CUPTI does not tell of kernels: INSUFFICIENT_PRIVILEGES");
    assert_query(db, "SELECT count(*) FROM device_alloc", "1");
    rig_release(&rig, db);
}

static atomic_bool asked, answered;

// On the program's thread, which takes its time.
static void answer_late(void *unused, struct up_mark *mark)
{
    (void)unused;
    atomic_store(&asked, true);
    usleep(50000);
    mark->rank = 0;
    atomic_store(&answered, true);
}

static void *call_once(void *unused)
{
    fake->call(CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_RUNTIME_TRACE_CBID_cudaMalloc_v3020, 1);
    return unused;
}

// Another thread is in a call when a watcher is destroyed: what it needs stays until it is out.
static void test_end_within_a_call(void **state)
{
    (void)state;
    struct up_watcher_guest guest = {.who = answer_late};
    pthread_t thread;
    struct up_watcher *watcher = up_watcher_create(&(struct up_watcher_options){.guest = &guest});
    assert_non_null(watcher);
    assert_int_equal(pthread_create(&thread, NULL, call_once, NULL), 0);
    while (!atomic_load(&asked)) usleep(100);
    up_watcher_destroy(watcher);
    assert_true(atomic_load(&answered));
    pthread_join(thread, NULL);
}

int main(void)
{
    void *library = dlopen(UP_TEST_BUILD "/tests/fake/libcupti.so.13", RTLD_NOW | RTLD_GLOBAL);
    fake = library ? dlsym(library, "fake_cupti") : NULL;
    if (!fake) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_work_and_ranges), cmocka_unit_test(test_work_that_copies),
        cmocka_unit_test(test_memory),          cmocka_unit_test(test_pools),
        cmocka_unit_test(test_pools_refused),   cmocka_unit_test(test_drops),
        cmocka_unit_test(test_many_buffers),    cmocka_unit_test(test_rival),
        cmocka_unit_test(test_refusal),         cmocka_unit_test(test_end_within_a_call)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
static void test_watcher(void **state)
{
    (void)state;
    puts("skipped: built without CUPTI");
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_watcher)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
