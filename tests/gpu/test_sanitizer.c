/* compute-sanitizer on this program, run again with a word, which touches what it should not: the
 * arena's tensors are allocations to it, and have their names.
 *
 *   compute-sanitizer --leak-check full --destroy-on-device-error kernel gpu_test_sanitizer past */
#include "tests/cli/program.h"
#include "tests/gpu/rig.h"

#if UPIPE_CUDA

#include <cuda_runtime_api.h>

enum { COUNT = 100, ROUNDS = 300 };

/* --- The program ---------------------------------------------------------------------------------
 */

static struct up_tensor *take(struct rig *rig, const char *name, int64_t count)
{
    return up_alloc(&rig->rank, UP_TAG_LAYER(ATTENTION, name, 3), UP_F32, UP_SHAPE(count));
}

static void add(struct rig *rig, const struct up_tensor *from, void *to, int64_t count)
{
    up_op_add(&rig->rank, UP_STREAM_COMPUTE,
              &(struct up_add_args){.x = from->data, .y = to, .count = count, .dtype = UP_F32});
}

// The host is far ahead of the GPU while tensors come and go at one address.
static void come_and_go(struct rig *rig, const struct up_tensor *from)
{
    for (int i = 0; i < ROUNDS; i++) {
        struct up_tensor *to = take(rig, i % 2 ? "attn.odd" : "attn.even", COUNT + i);
        add(rig, from, to->data, COUNT + i);
        up_free(&rig->rank, &to);
    }
}

static int touch(const char *word)
{
    struct rig rig = {0};
    struct up_error err = {0};
    if (rig_init(&rig, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 3;
    }
    struct up_tensor *from = take(&rig, "attn.k", COUNT + ROUNDS),
                     *to = take(&rig, "attn.q", COUNT);
    void *q = to->data;
    if (!strcmp(word, "clean")) come_and_go(&rig, from);
    if (!strcmp(word, "past")) add(&rig, from, q, COUNT + 1);
    if (!strcmp(word, "freed")) {
        up_free(&rig.rank, &to);
        add(&rig, from, q, COUNT);
    }
    up_stream_synchronize(&rig.rank, UP_STREAM_COMPUTE);
    cudaDeviceReset(); // with the tensors alive: --leak-check names them
    return 0;
}

/* --- What is said of it --------------------------------------------------------------------------
 */

static char self[512], said[1 << 16];

static void run(const char *options, const char *word)
{
    static const char command[] =
        "PATH=$PATH:/usr/local/cuda/bin; command -v compute-sanitizer >/dev/null || exit 9; "
        "compute-sanitizer --destroy-on-device-error kernel %s %s %s >%s 2>&1";
    char folder[32], path[64], line[2048];
    folder_make(folder);
    snprintf(path, sizeof path, "%s/said", folder);
    snprintf(line, sizeof line, command, options, self, word, path);
    int status = system(line);
    bool missing = WIFEXITED(status) && WEXITSTATUS(status) == 9;
    if (!missing) file_read(path, said, sizeof said);
    folder_remove(folder);
    if (missing) puts("skipped: there is no compute-sanitizer here");
    if (missing) skip();
    if (strstr(said, "Device not supported")) {
        puts("skipped: compute-sanitizer does not support this machine");
        skip();
    }
}

static void must_say(const char *what)
{
    if (!strstr(said, what)) fail_msg("expected '%s' in: %s", what, said);
}

static void test_clean(void **state)
{
    (void)state;
    gpus_or_skip();
    run("", "clean");
    must_say("ERROR SUMMARY: 0 errors");
}

static void test_past_a_tensor(void **state)
{
    (void)state;
    gpus_or_skip();
    run("--leak-check full", "past");
    must_say("Invalid __global__");
    must_say("layers.3.attn.q");
}

static void test_freed_tensor(void **state)
{
    (void)state;
    gpus_or_skip();
    run("", "freed");
    must_say("Invalid __global__");
}

int main(int argc, char **argv)
{
    if (argc > 1) return touch(argv[1]);
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_clean),
                                       cmocka_unit_test(test_past_a_tensor),
                                       cmocka_unit_test(test_freed_tensor)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
static void test_sanitizer(void **state)
{
    (void)state;
    gpus_or_skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sanitizer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
