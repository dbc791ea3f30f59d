/* The injection library in a program that knows nothing of upipe: this one, run again with a word.
 */
#include "tests/cli/program.h"
#include "tests/gpu/need.h"

#include <sqlite3.h>

#if UPIPE_CUPTI

#include "tests/gpu/fake_cupti.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>

#define FAKES UP_TEST_BUILD "/tests/fake/"

enum { MIB = 1 << 20, TOO_DEEP = 70, PATIENCE = 1000 };

static char folder[32], trace_path[64], self[LONG_PATH];

/* --- The program ---------------------------------------------------------------------------------
 */

static void *in_a_thread(void *unused)
{
    nvtxRangePushA("backward");
    nvtxRangePop();
    return unused;
}

static int annotate(void)
{
    pthread_t thread;
    nvtxDomainHandle_t domain = nvtxDomainCreateA("mine");
    nvtxEventAttributes_t event = {.version = NVTX_VERSION,
                                   .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
                                   .messageType = NVTX_MESSAGE_TYPE_REGISTERED,
                                   .message.registered =
                                       nvtxDomainRegisterStringA(domain, "registered")};
    nvtxRangePushA("step");
    nvtxDomainRangePushEx(domain, &event);
    nvtxRangePushA("forward");
    nvtxRangePop(); // forward
    nvtxRangePop(); // step, with another domain's range above it
    nvtxDomainRangePop(domain);
    pthread_create(&thread, NULL, in_a_thread, NULL);
    pthread_join(thread, NULL);
    nvtxRangeId_t apart = nvtxRangeStartA("apart");
    nvtxRangeEnd(apart);
    for (int i = 0; i < TOO_DEEP; i++) nvtxRangePushA("deep");
    for (int i = 0; i < TOO_DEEP; i++) {
        nvtxRangePop();
        if (i == 0) nvtxRangePushA("deepest");
        if (i == 0) nvtxRangePop();
    }
    nvtxRangePushA("shallow");
    nvtxRangePop();
    if (!fork()) {
        nvtxRangePushA("child");
        exit(0);
    }
    wait(NULL);
    nvtxRangePushA("open at the end");
    return 0;
}

// For long enough to be sampled meanwhile, in the mode in which any thread can spoil it.
static cudaError_t capture_a_graph(void *memory)
{
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaError_t status = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (status) return status;
    status = cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    if (!status) status = cudaMemsetAsync(memory, 0, MIB, stream);
    usleep(700000);
    return status ? status : cudaStreamEndCapture(stream, &graph);
}

static int use_a_gpu(void)
{
    void *memory = NULL, *more = NULL;
    nvtxRangePushA("forward");
    if (cudaMalloc(&memory, 64 * MIB)) return 3;
    nvtxRangePushA("layer 3");
    if (cudaMalloc(&more, 192 * MIB) || cudaMemset(more, 0, 192 * MIB)) return 4;
    if (cudaDeviceSynchronize()) return 5;
    if (capture_a_graph(more)) return 6;
    nvtxRangePop();
    cudaFree(more);
    nvtxRangePop();
    cudaFree(memory);
    return 0;
}

// That was loaded in CUPTI's place.
static void *of_fake(const char *name)
{
    void *library = dlopen(FAKES "libcupti.so.13", RTLD_LAZY | RTLD_NOLOAD);
    return library ? dlsym(library, name) : NULL;
}

static int tells_calls(const struct fake_cupti *fake)
{
    return fake->call(CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_RUNTIME_TRACE_CBID_cudaMalloc_v3020, 1);
}

// The machine's CUDA, or where there is none a driver of the tests' own.
static bool start_cuda(void)
{
    return !cudaFree(NULL) || dlopen(FAKES "libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
}

// CUDA has started, and no file can be made where the program is.
static int have_no_place(void)
{
    if (chdir("/proc") || !start_cuda()) return 3;
    nvtxRangePushA("step");
    const struct fake_cupti *fake = of_fake("fake_cupti");
    if (!fake) return 4;
    for (int i = 0; i < PATIENCE && tells_calls(fake); i++) usleep(10000);
    return tells_calls(fake) ? 5 : 0;
}

// A child that uses CUDA while its parent has not yet; how many records are dropped in it.
static int use_it_in_a_child(void)
{
    int status = 0;
    nvtxRangePushA("step");
    const struct fake_cupti *fake = of_fake("fake_cupti");
    __typeof__(cuptiActivityGetNumDroppedRecords) *dropped =
        of_fake("cuptiActivityGetNumDroppedRecords");
    if (!fake || !dropped) return 3;
    if (!fork()) {
        CUpti_ActivityMemory4 record = {.kind = CUPTI_ACTIVITY_KIND_MEMORY2};
        size_t count = 0;
        fake->record(&record, sizeof record);
        dropped(NULL, 0, &count);
        _exit((int)count);
    }
    wait(&status);
    return WIFEXITED(status) && WEXITSTATUS(status) == 1 ? 0 : 4;
}

static int wait_for_a_signal(void)
{
    int number = 0;
    sigset_t mine;
    nvtxRangePushA("step");
    usleep(50000); // whatever that starts has started
    sigemptyset(&mine);
    sigaddset(&mine, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &mine, NULL);
    kill(getpid(), SIGUSR1);
    return sigwait(&mine, &number) || number != SIGUSR1 ? 3 : 0;
}

/* --- Its trace -----------------------------------------------------------------------------------
 */

static int run(const char *word, const char *settings)
{
    char command[LONG_COMMAND];
    unlink(trace_path);
    print_to(command, sizeof command,
             "cd %s && env CUDA_INJECTION64_PATH=%s/libupipe_inject.so "
             "NVTX_INJECTION64_PATH=%s/libupipe_inject.so UPIPE_TRACE=%s %s %s %s",
             folder, UP_TEST_BUILD, UP_TEST_BUILD, trace_path, settings, self, word);
    int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static const char *ask(const char *sql)
{
    static char text[4096];
    sqlite3 *db;
    sqlite3_stmt *statement = NULL;
    size_t used = 0;
    text[0] = 0;
    assert_int_equal(sqlite3_open_v2(trace_path, &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    if (sqlite3_prepare_v2(db, sql, -1, &statement, NULL)) fail_msg("%s", sqlite3_errmsg(db));
    while (sqlite3_step(statement) == SQLITE_ROW) {
        const char *value = (const char *)sqlite3_column_text(statement, 0);
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", used ? ", " : "",
                                 value ? value : "-");
    }
    sqlite3_finalize(statement);
    sqlite3_close(db);
    return text;
}

static void test_ranges(void **state)
{
    (void)state;
    assert_int_equal(run("annotate", ""), 0);
    assert_string_equal(ask("SELECT value FROM meta WHERE key = 'complete'"), "1");
    assert_string_equal(ask("SELECT name || ' in ' || ifnull((SELECT name FROM range o WHERE o.id ="
                            " r.parent), '-') FROM range r WHERE name NOT LIKE 'deep%'"
                            " ORDER BY begin_seq"),
                        "step in -, registered in step, forward in registered, backward in -, "
                        "apart in -, shallow in -, open at the end in -");
    assert_string_equal(ask("SELECT name FROM range WHERE end_seq IS NULL"), "open at the end");
    assert_string_equal(ask("SELECT count(*) FROM range WHERE name LIKE 'deep%'"), "64");
    assert_string_equal(ask("SELECT phase FROM range WHERE name = 'backward'"), "backward");
    assert_string_equal(ask("SELECT count(*) FROM range WHERE end_ns < begin_ns"), "0");
}

// Somebody has the name already: the program has its trace under another.
static void test_name_is_taken(void **state)
{
    (void)state;
    char kept[96];
    snprintf(kept, sizeof kept, "%s/other", folder);
    file_write_text(kept, 100);
    assert_int_equal(run("annotate", "UPIPE_TRACE=other 2>said"), 0);
    char command[256];
    snprintf(command, sizeof command,
             "cd %s && grep -q '^upipe: UPIPE_TRACE=other: expected a new file .* this process is "
             "recorded in '$(ls upipe-*.db)'$' said",
             folder);
    assert_int_equal(system(command), 0);
    assert_int_equal(access(trace_path, F_OK), -1);
}

static const char fake_cupti_only[] = "UPIPE_CUPTI=" FAKES "libcupti.so.13";

// Who is not recorded does not pay for it.
static void test_no_trace(void **state)
{
    char settings[LONG_PATH];
    (void)state;
    print_to(settings, sizeof settings, "%s UPIPE_TRACE=", fake_cupti_only);
    assert_int_equal(run("no-place", settings), 0);
}

// A child's records, which nobody reads, take no memory in it.
static void test_child(void **state)
{
    (void)state;
    assert_int_equal(run("child", fake_cupti_only), 0);
    assert_string_equal(ask("SELECT value FROM meta WHERE key = 'complete'"), "1");
}

static void test_signals(void **state)
{
    (void)state;
    assert_int_equal(run("signal", fake_cupti_only), 0);
}

static void test_a_gpu_program(void **state)
{
    (void)state;
    gpus_or_skip();
    assert_int_equal(run("gpu", ""), 0);
    printf("diagnostics: %s\n", ask("SELECT kind || ': ' || text FROM diagnostic"));
    assert_string_equal(
        ask("SELECT (t.bytes / 1048576) || ' ' || t.name || ' in ' || r.name || ' ' ||"
            " t.phase || ' ' || (t.free_seq IS NOT NULL) FROM tensor t JOIN range r"
            " ON r.id = t.range_id WHERE t.space = 'device' ORDER BY alloc_seq"),
        "64 gpu_test_inject in forward forward 1, 192 gpu_test_inject in layer 3 "
        "forward 1");
    assert_string_equal(ask("SELECT count(*) > 0 FROM kernel k JOIN range r ON r.id = k.range_id"
                            " WHERE r.name = 'layer 3' AND k.end_ns > k.begin_ns"),
                        "1");
    assert_string_equal(ask("SELECT count(*) > 0 FROM usage WHERE device_used_bytes > 67108864"),
                        "1");
    static struct program program;
    program_run(&program, "upipe-report", trace_path);
    assert_int_equal(program.status, 0);
    assert_non_null(strstr(program.out, "forward > layer 3"));
    puts(program.out);
    assert_int_equal(run("gpu", "UPIPE_TRACE_LEVEL=memory"), 0);
    assert_string_equal(ask("SELECT count(*) FROM kernel"), "0");
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "annotate")) return annotate();
    if (argc > 1 && !strcmp(argv[1], "gpu")) return use_a_gpu();
    if (argc > 1 && !strcmp(argv[1], "no-place")) return have_no_place();
    if (argc > 1 && !strcmp(argv[1], "child")) return use_it_in_a_child();
    if (argc > 1 && !strcmp(argv[1], "signal")) return wait_for_a_signal();
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return 1;
    folder_make(folder);
    snprintf(trace_path, sizeof trace_path, "%s/run.db", folder);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges),   cmocka_unit_test(test_name_is_taken),
        cmocka_unit_test(test_no_trace), cmocka_unit_test(test_child),
        cmocka_unit_test(test_signals),  cmocka_unit_test(test_a_gpu_program)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    folder_remove(folder);
    return failed;
}
#else
static void test_inject(void **state)
{
    (void)state;
    gpus_or_skip();
    puts("skipped: built without CUPTI");
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_inject)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
