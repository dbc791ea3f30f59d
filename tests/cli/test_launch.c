/* upipe-train as one of several processes, where that cannot be: refused before anything is made.
 */
#include "tests/cli/program.h"

static struct program program; // large

static void clear(void)
{
    static const char *const names[] = {
        "RANK",         "WORLD_SIZE",   "LOCAL_RANK",           "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",  "MASTER_PORT",  "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
        "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID",        "SLURM_STEP_NODELIST",
        "NCCL_COMM_ID"};
    for (int i = 0; i < UP_COUNT(names); i++) unsetenv(names[i]);
}

static void set_torchrun(const char *rank, const char *size)
{
    clear();
    setenv("RANK", rank, 1);
    setenv("WORLD_SIZE", size, 1);
    setenv("LOCAL_RANK", rank, 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
}

static void test_only_cuda(void **state)
{
    (void)state;
    char folder[32], data[64], trace[64], log[64];
    folder_make(folder);
    snprintf(data, sizeof data, "%s/data", folder);
    snprintf(trace, sizeof trace, "%s/run.db", folder);
    snprintf(log, sizeof log, "%s/log", folder);
    file_write_text(data, 300);
    set_torchrun("1", "2");
    program_run(&program, "upipe-train", "--data", data, "--seq", "64", "--cp", "2", "--trace",
                trace, "--json-log", log);
    program_must_refuse(&program, "--device cpu: WORLD_SIZE is 2");
    program_run(&program, "upipe-train", "--device", "dry", "--cp", "2", "--trace", trace);
    program_must_refuse(&program, "--device dry: WORLD_SIZE is 2");
    assert_int_equal(folder_count(folder), 1);
    folder_remove(folder);
    clear();
}

static void test_malformed(void **state)
{
    (void)state;
    set_torchrun("two", "2");
    program_run(&program, "upipe-train", "--device", "dry");
    program_must_refuse(&program, "RANK=two: expected a whole number from 0 to 1");
    unsetenv("WORLD_SIZE");
    program_run(&program, "upipe-train", "--device", "dry");
    program_must_refuse(&program, "WORLD_SIZE is not set");
    program_run(&program, "upipe-train", "--help"); // which nobody is refused
    assert_int_equal(program.status, 0);
    clear();
}

// What launchers set for a single process, and a batch script of SLURM's.
static void test_alone(void **state)
{
    (void)state;
    set_torchrun("0", "1");
    program_run(&program, "upipe-train", "--device", "dry", "--cp", "2", "--steps", "1");
    assert_int_equal(program.status, 0);
    assert_null(strstr(program.out, "processes"));
    clear();
    setenv("SLURM_PROCID", "0", 1);
    setenv("SLURM_NTASKS", "4", 1);
    setenv("SLURM_LOCALID", "0", 1);
    program_run(&program, "upipe-train", "--device", "dry", "--cp", "2", "--steps", "1");
    assert_int_equal(program.status, 0);
    clear();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_only_cuda),
                                       cmocka_unit_test(test_malformed),
                                       cmocka_unit_test(test_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
