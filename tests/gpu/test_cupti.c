/* Which CUPTI is taken, of several that are there. Each case is a process of its own, since what is
 * loaded once stays. */
#include "tests/cli/program.h"
#include "tests/gpu/need.h"

#if UPIPE_CUPTI

#include "profiler/cuda/cupti.h"

#include <dlfcn.h>

#define FAKES UP_TEST_BUILD "/tests/fake/"

static char folder[32];

// 0: it is the tests' own, 1: another, 2: none.
static int taken(void)
{
    struct up_cupti cupti;
    char why[256] = "";
    if (!up_cupti_open(&cupti, why, sizeof why)) return 2;
    return dlsym(cupti.library, "fake_cupti") ? 0 : 1;
}

static int in_a_process(int (*run)(void))
{
    int status = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) _exit(run());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int is_wanted(void)
{
    setenv("UPIPE_CUPTI", FAKES "libcupti.so.13", 1);
    return taken();
}

static int is_wanted_and_not_there(void)
{
    struct up_cupti cupti;
    char why[256] = "";
    setenv("UPIPE_CUPTI", "/nowhere/libcupti.so.13", 1);
    if (up_cupti_open(&cupti, why, sizeof why)) return 1;
    return strcmp(why, "CUPTI is not here (/nowhere/libcupti.so.13)") != 0;
}

static int is_loaded_already(void)
{
    return dlopen(FAKES "libcupti.so.13", RTLD_LAZY | RTLD_LOCAL) ? taken() : 3;
}

static int is_beside_the_runtime(void)
{
    return dlopen(FAKES "libcudart.so.13", RTLD_LAZY | RTLD_LOCAL) ? taken() : 3;
}

static int is_in_a_package_of_its_own(void)
{
    char command[LONG_COMMAND], path[128];
    print_to(command, sizeof command,
             "cd %s && mkdir -p cuda_runtime/lib cuda_cupti/lib && cp " FAKES
             "libcudart.so.13 cuda_runtime/lib && cp " FAKES "libcupti.so.13 cuda_cupti/lib",
             folder);
    snprintf(path, sizeof path, "%s/cuda_runtime/lib/libcudart.so.13", folder);
    return !system(command) && dlopen(path, RTLD_LAZY | RTLD_LOCAL) ? taken() : 3;
}

static void test_which(void **state)
{
    (void)state;
    unsetenv("UPIPE_CUPTI");
    folder_make(folder);
    assert_int_equal(in_a_process(is_wanted), 0);
    assert_int_equal(in_a_process(is_wanted_and_not_there), 0);
    assert_int_equal(in_a_process(is_loaded_already), 0);
    assert_int_equal(in_a_process(is_beside_the_runtime), 0);
    assert_int_equal(in_a_process(is_in_a_package_of_its_own), 0);
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_which)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#else
static void test_cupti(void **state)
{
    (void)state;
    puts("skipped: built without CUPTI");
    skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cupti)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
