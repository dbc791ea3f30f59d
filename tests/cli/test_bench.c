/* upipe-train bench: what it measures is a machine that a dry run takes. */
#include "program.h"

#include <jansson.h>

static struct program program;

static void expect_other_head_dims(const json_t *root, const char *name)
{
    char narrow_name[64], wide_name[64];
    snprintf(narrow_name, sizeof narrow_name, "%s_64_flops_per_s", name);
    snprintf(wide_name, sizeof wide_name, "%s_flops_per_s", name);
    const json_t *narrow = json_object_get(root, narrow_name);
    const json_t *wide = json_object_get(root, wide_name);
    assert_non_null(strstr(json_string_value(json_object_get(narrow, "source")), "head_dim 16"));
    const char *source = json_string_value(json_object_get(wide, "source"));
    assert_int_equal(strncmp(source, "not measured: from ", 19), 0);
    assert_non_null(strstr(source, narrow_name));
    double of_narrow = json_number_value(json_object_get(narrow, "value"));
    double of_wide = json_number_value(json_object_get(wide, "value"));
    assert_true(of_wide > 0.999 * of_narrow && of_wide < 1.001 * of_narrow);
}

// Every figure is there, positive and measured, and a dry run on that machine takes some time.
static void test_machine_file(void **state)
{
    (void)state;
    static const char *const figures[] = {"device_bytes",
                                          "host_bytes",
                                          "matmul_flops_per_s",
                                          "attention_forward_64_flops_per_s",
                                          "attention_backward_64_flops_per_s",
                                          "memory_bytes_per_s",
                                          "to_host_bytes_per_s",
                                          "from_host_bytes_per_s",
                                          "link_bytes_per_s",
                                          "launch_s"};
    char folder[32], machine[64];
    folder_make(folder);
    snprintf(machine, sizeof machine, "%s/machine.json", folder);
    program_run(&program, "upipe-train", "bench", "--seq", "64", "--ranks", "2", "--stack", "upipe",
                "--output", machine);
    assert_int_equal(program.status, 0);
    assert_non_null(strstr(program.out, "matmul 32 x "));
    assert_non_null(strstr(program.out, "all-to-all"));
    json_t *root = json_load_file(machine, 0, NULL);
    assert_non_null(root);
    for (int i = 0; i < UP_COUNT(figures); i++) {
        const json_t *figure = json_object_get(root, figures[i]);
        assert_true(json_number_value(json_object_get(figure, "value")) > 0);
        assert_non_null(
            strstr(json_string_value(json_object_get(figure, "source")), "measured by"));
    }
    // Nothing is known of a processor: one rate of attention serves all head_dims.
    expect_other_head_dims(root, "attention_forward");
    expect_other_head_dims(root, "attention_backward");
    json_decref(root);
    program_run(&program, "upipe-train", "--device", "dry", "--machine", machine, "--seq", "64",
                "--steps", "1");
    assert_int_equal(program.status, 0);
    folder_remove(folder);
}

// Of a model with larger heads: the figures of all head_dims, which narrow ones then go by, too.
static void test_large_heads(void **state)
{
    (void)state;
    char folder[32], machine[64];
    folder_make(folder);
    snprintf(machine, sizeof machine, "%s/machine.json", folder);
    program_run(&program, "upipe-train", "bench", "--model", "qwen3-0.6b", "--layers", "1", "--seq",
                "64", "--tile-loss", "1", "--output", machine);
    assert_int_equal(program.status, 0);
    json_t *root = json_load_file(machine, 0, NULL);
    const json_t *figure = json_object_get(root, "attention_forward_flops_per_s");
    assert_non_null(strstr(json_string_value(json_object_get(figure, "source")), "head_dim 128"));
    assert_null(json_object_get(root, "attention_forward_64_flops_per_s"));
    json_decref(root);
    folder_remove(folder);
}

static void test_alone(void **state)
{
    (void)state;
    program_run(&program, "upipe-train", "bench", "--seq", "64");
    assert_int_equal(program.status, 0);
    assert_non_null(strstr(program.out, "attention_backward"));
    assert_null(strstr(program.out, "all-gather"));
}

static void test_refusals(void **state)
{
    (void)state;
    char folder[32], other[64];
    folder_make(folder);
    program_run(&program, "upipe-train", "bench", "--device", "dry");
    assert_int_equal(program.status, 2);
    assert_non_null(strstr(program.err, "bench: expected --device"));
    snprintf(other, sizeof other, "%s/other", folder);
    file_write_text(other, 100);
    program_run(&program, "upipe-train", "bench", "--seq", "64", "--output", other);
    assert_int_equal(program.status, 2);
    assert_string_equal(program.out, "");
    struct stat status;
    assert_int_equal(stat(other, &status), 0);
    assert_int_equal(status.st_size, 100);
    // Before anything is measured.
    program_run(&program, "upipe-train", "bench", "--seq", "64", "--output", "/nowhere/machine");
    program_must_refuse(&program, "--output /nowhere/machine: expected a file in a folder");
    assert_string_equal(program.out, "");
    folder_remove(folder);
}

// Nothing of it need be closed in order: the first signal ends it, however long a shape takes.
static void test_signal(void **state)
{
    (void)state;
    static const char *const words[] = {"bench", "--seq", "64K", "--layers", "1", NULL};
    const struct timespec moment = {.tv_nsec = 10000000};
    int status = 0;
    pid_t pid = program_start("upipe-train", words, "/dev/null", "/dev/null");
    nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    assert_int_equal(waitpid(pid, &status, WNOHANG), 0);
    kill(pid, SIGINT);
    for (int i = 0; i < 1000 && !waitpid(pid, &status, WNOHANG); i++) nanosleep(&moment, NULL);
    bool ended = WIFSIGNALED(status) && WTERMSIG(status) == SIGINT;
    if (!ended) kill(pid, SIGKILL);
    assert_true(ended);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_machine_file), cmocka_unit_test(test_large_heads),
        cmocka_unit_test(test_alone), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_signal)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
