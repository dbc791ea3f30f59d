/* upipe-train from outside: what it prints and writes, what it refuses, and that it leaves nothing
 * half-written. */
#include "tests/cli/program.h"

#include <jansson.h>
#include <math.h>

static struct program program; // large

static void test_json_log(void **state)
{
    (void)state;
    char folder[32], data[64], log[64], line[4096];
    folder_make(folder);
    snprintf(data, sizeof data, "%s/data", folder);
    snprintf(log, sizeof log, "%s/log", folder);
    file_write_text(data, 300);
    program_run(&program, "upipe-train", "--data", data, "--seq", "64", "--steps", "3",
                "--json-log", log);
    assert_int_equal(program.status, 0);
    FILE *file = fopen(log, "r");
    assert_non_null(file);
    for (int step = 0; step < 3; step++) {
        assert_non_null(fgets(line, sizeof line, file));
        json_t *root = json_loads(line, 0, NULL);
        assert_non_null(root);
        assert_int_equal(json_integer_value(json_object_get(root, "step")), step);
        assert_int_equal(json_integer_value(json_object_get(root, "tokens")), 64);
        assert_true(json_real_value(json_object_get(root, "loss")) > 1);
        assert_true(json_real_value(json_object_get(root, "grad_norm")) > 0);
        assert_true(json_real_value(json_object_get(root, "seconds")) > 0);
        assert_true(json_real_value(json_object_get(root, "tokens_per_s")) > 0);
        assert_true(json_integer_value(json_object_get(root, "peak_bytes")) > 800000 * 16);
        json_decref(root);
    }
    assert_null(fgets(line, sizeof line, file));
    fclose(file);
    assert_int_equal(folder_count(folder), 2);
    folder_remove(folder);
}

static void test_dry_needs_no_data(void **state)
{
    (void)state;
    char folder[32], log[64], line[4096];
    folder_make(folder);
    snprintf(log, sizeof log, "%s/log", folder);
    program_run(&program, "upipe-train", "--device", "dry", "--model", "llama3-8b", "--seq", "1M",
                "--data", "/nowhere", "--steps", "2", "--json-log", log);
    assert_int_equal(program.status, 0);
    assert_non_null(strstr(program.out, "forecast"));
    file_read(log, line, sizeof line);
    *strchr(line, '\n') = 0;
    json_t *root = json_loads(line, 0, NULL);
    assert_true(json_is_null(json_object_get(root, "loss")));
    assert_true(json_is_null(json_object_get(root, "grad_norm")));
    assert_int_equal(json_integer_value(json_object_get(root, "tokens")), 1 << 20);
    assert_true(json_integer_value(json_object_get(root, "peak_bytes")) > 8030261248 * 16);
    json_decref(root);
    program_run(&program, "upipe-train", "--device", "dry", "--model", "qwen3-32b", "--steps", "1");
    assert_non_null(strstr(program.out, "qwen3-32b: 32.76 B parameters"));
    folder_remove(folder);
}

// One seed, one curve; another seed, another.
static void test_seed(void **state)
{
    (void)state;
    char folder[32], data[64], log[64];
    static char first[4096], again[4096];
    double loss[3];
    static const char *const seeds[] = {"1", "1", "2"};
    folder_make(folder);
    snprintf(data, sizeof data, "%s/data", folder);
    snprintf(log, sizeof log, "%s/log", folder);
    file_write_text(data, 200);
    for (int i = 0; i < 3; i++) {
        program_run(&program, "upipe-train", "--data", data, "--seq", "48", "--steps", "1",
                    "--seed", seeds[i], "--json-log", log);
        assert_int_equal(program.status, 0);
        file_read(log, i ? again : first, sizeof first);
        json_t *root = json_loads(i ? again : first, JSON_DISABLE_EOF_CHECK, NULL);
        loss[i] = json_real_value(json_object_get(root, "loss"));
        json_decref(root);
    }
    assert_true(loss[0] == loss[1]);
    assert_true(loss[0] != loss[2]);
    folder_remove(folder);
}

static void test_refusals(void **state)
{
    (void)state;
    char folder[32], data[64], trace[64], log[64], config[64];
    folder_make(folder);
    snprintf(data, sizeof data, "%s/data", folder);
    snprintf(trace, sizeof trace, "%s/run.db", folder);
    snprintf(log, sizeof log, "%s/log", folder);
    snprintf(config, sizeof config, "%s/config.json", folder);
    file_write_text(data, 300);
    static const struct {
        const char *words[8];
        const char *says;
    } rows[] = {
        {{"--sequence", "5"}, "--sequence"},
        {{"--seq", "5x"}, "--seq"},
        {{"--seq", "0"}, "--seq"},
        {{"--seq", "9223372036854775808"}, "--seq"},
        {{"--seq", "300"}, "data"},
        {{"--seq", "8T", "--batch", "1000000"}, "--seq"},
        {{"--steps", "0"}, "--steps"},
        {{"--steps"}, "--steps"},
        {{"--batch", "-1"}, "--batch"},
        {{"--lr", "fast"}, "--lr"},
        {{"--beta1", "1"}, "--beta1: expected a number from 0 and below 1, not '1'"},
        {{"--eps", "0"}, "--eps"},
        {{"--schedule", "linear"}, "constant|cosine"},
        {{"--model", "gpt2"}, "llama3-8b"},
        {{"--model", "/"}, "config.json"},
        {{"--layers", "5"}, "--layers 5: tiny has 4"},
        {{"--dtype", "bf16"}, "--dtype bf16"},
        {{"--as", "cuda"}, "--as cuda"},
        {{"--device", "tpu"}, "cpu|cuda|dry"},
        {{"--device", "cuda", "--dtype", "fp32"}, "--dtype fp32"},
        {{"--device", "dry", "--as", "cuda", "--dtype", "fp32"}, "--dtype fp32"},
        {{"--device", "dry", "--as", "cpu", "--dtype", "bf16"}, "--dtype bf16"},
        {{"--device", "dry", "--machine", "abacus"}, "generic"},
        {{"--device", "dry", "--chaos", "1"}, "--chaos"},
        {{"--data", "/nowhere/at/all"}, "/nowhere/at/all"},
        {{"--data", "/"}, "/"},
        {{"--data-format", "u8"}, "bytes|u16|u32|i32"},
        {{"--data-format", "u32"}, "data"},
        {{"--trace", "/nowhere/run.db"}, "/nowhere"},
        {{"--trace", "/"}, "--trace"},
        {{"--trace-steps", "3:1"}, "A:B"},
        {{"--json-log", "/nowhere/log"}, "--json-log"},
        {{"--trace", "/tmp/upipe-never", "--json-log", "/tmp/upipe-never"}, "--json-log"},
        {{"--trace", "/tmp/upipe-never", "--json-log", "/tmp/./upipe-never"}, "another file"},
        {{"--output", "machine.json"}, "upipe-train bench"},
        {{"--device", "dry", "--seq", "64G", "--tile-mlp", "1"}, "--seq, --accum"},
        {{"--device", "dry", "--dp", "1048576", "--batch", "1M", "--seq", "16M"}, "--dp, --accum"},
        {{"--cp", "5"}, "nearest that do: 4 and 8\n"},
        {{"--cp", "5", "--seq", "7"}, "nearest that do: 4\n"},
        {{"--upipe", "3"}, "nearest legal: 2 and 4"},
        {{"--ranks", "1M"}, "--ranks: expected a whole number from 1 to 1048576, not '1M'"},
        {{"--ranks", "6", "--cp", "4"}, "a multiple of --cp 4, nearest: 4 and 8\n"},
        {{"--ranks", "3", "--dp", "4"}, "a multiple of --dp 4, nearest: 4\n"},
        {{"--ranks", "5", "--cp", "2", "--dp", "2"}, "--cp times --dp, 2 x 2 = 4\n"},
        {{"--upipe", "9"}, "nearest legal: 8"},
        {{"--checkpoint", "block:2"}, "none|block|attn[:N]"},
        {{"--tile-mlp", "0"}, "--tile-mlp"},
        {{"stray"}, "stray"},
    };
    for (int i = 0; i < UP_COUNT(rows); i++) {
        // Good options before; of one given twice the last wins.
        const char *words[24] = {"--data", data,      "--seq", "64",         "--steps",
                                 "1",      "--trace", trace,   "--json-log", log};
        memcpy(words + 10, rows[i].words, sizeof rows[i].words);
        program_run_words(&program, "upipe-train", words);
        program_must_refuse(&program, rows[i].says);
        if (folder_count(folder) != 1) fail_msg("'%s' left a file behind", rows[i].says);
    }
    program_run(&program, "upipe-train", "--data", data, "--seq", "64", "--trace-steps", "0:1");
    program_must_refuse(&program, "--trace-steps: expected --trace FILE beside it");
    folder_remove(folder);
}

static void test_what_is_there_is_kept(void **state)
{
    (void)state;
    char folder[32], data[64], other[64], link[64], text[64];
    folder_make(folder);
    snprintf(data, sizeof data, "%s/data", folder);
    snprintf(other, sizeof other, "%s/other.txt", folder);
    file_write_text(data, 300);
    file_write(other, "precious", 8);
    program_run(&program, "upipe-train", "--data", data, "--seq", "64", "--trace", other);
    program_must_refuse(&program, "other.txt");
    file_read(other, text, sizeof text);
    assert_string_equal(text, "precious");
    // The data, say.
    program_run(&program, "upipe-train", "--data", data, "--seq", "64", "--json-log", other);
    program_must_refuse(&program, "other.txt");
    file_read(other, text, sizeof text);
    assert_string_equal(text, "precious");
    // A link is somebody's too, when a run does not begin that was to write to what it will name.
    snprintf(link, sizeof link, "%s/link", folder);
    assert_int_equal(symlink("not-there-yet", link), 0);
    program_run(&program, "upipe-train", "--data", data, "--seq", "64", "--json-log", link,
                "--trace", other);
    program_must_refuse(&program, "other.txt");
    assert_int_equal(readlink(link, text, sizeof text), strlen("not-there-yet"));
    folder_remove(folder);
}

// The log may be the output itself, which here is a file: lines stay whole, and in their order.
static void test_log_in_output(void **state)
{
    (void)state;
    char folder[32], data[64];
    folder_make(folder);
    snprintf(data, sizeof data, "%s/data", folder);
    file_write_text(data, 300);
    program_run(&program, "upipe-train", "--data", data, "--seq", "64", "--steps", "3",
                "--json-log", "/dev/stdout");
    assert_int_equal(program.status, 0);
    const char *at = program.out;
    assert_true(strncmp(at, "tiny: ", 6) == 0);
    for (int step = 0; step < 3; step++) {
        char told[32], logged[32];
        snprintf(told, sizeof told, "\nstep %5d  loss", step);
        snprintf(logged, sizeof logged, "\n{\"step\":%d,", step);
        assert_non_null(at = strstr(at, told));
        assert_non_null(at = strstr(at, logged));
    }
    folder_remove(folder);
}

// A file at fault is one for any number of ranks, whichever of them meets it.
static void test_tokens_at_fault(void **state)
{
    (void)state;
    static const char *const ranks[][2] = {{"--cp", "1"}, {"--cp", "2"}, {"--dp", "2"}};
    uint16_t tokens[1000] = {0};
    char folder[32], data[64];
    folder_make(folder);
    snprintf(data, sizeof data, "%s/data", folder);
    tokens[64 * 3 + 50] = 256;
    file_write(data, tokens, sizeof tokens);
    for (int i = 0; i < UP_COUNT(ranks); i++) {
        program_run(&program, "upipe-train", "--data", data, "--data-format", "u16", "--seq", "64",
                    "--steps", "5", ranks[i][0], ranks[i][1]);
        program_must_refuse(&program, "byte 484: expected a token id below 256");
    }
    folder_remove(folder);
}

// A step without a target that counts has no loss, and is no failure.
static void test_nothing_counts(void **state)
{
    (void)state;
    int32_t tokens[200] = {0};
    char folder[32], data[64], log[64], line[4096];
    folder_make(folder);
    snprintf(data, sizeof data, "%s/data", folder);
    snprintf(log, sizeof log, "%s/log", folder);
    for (int i = 64; i <= 128; i++) tokens[i] = -100;
    file_write(data, tokens, sizeof tokens);
    program_run(&program, "upipe-train", "--data", data, "--data-format", "i32", "--seq", "64",
                "--steps", "3", "--json-log", log);
    assert_int_equal(program.status, 0);
    assert_non_null(strstr(program.out, "step     1  loss     none  grad norm   0.0000"));
    assert_null(strstr(program.out, "nan"));
    file_read(log, line, sizeof line);
    assert_non_null(strstr(line, "{\"step\":1,\"loss\":null,\"grad_norm\":0.0,\"tokens\":0,"));
    folder_remove(folder);
}

// A loss that is not a number is "nan", whatever its sign, and null in JSON.
static void test_diverged(void **state)
{
    (void)state;
    char folder[32], data[64], log[64], line[4096];
    folder_make(folder);
    snprintf(data, sizeof data, "%s/data", folder);
    snprintf(log, sizeof log, "%s/log", folder);
    file_write_text(data, 1000);
    program_run(&program, "upipe-train", "--data", data, "--seq", "64", "--steps", "6", "--lr",
                "1e30", "--clip", "0", "--json-log", log);
    assert_int_equal(program.status, 0);
    assert_non_null(strstr(program.out, "step     5  loss      nan  grad norm      nan"));
    file_read(log, line, sizeof line);
    assert_non_null(strstr(line, "{\"step\":5,\"loss\":null,\"grad_norm\":null,"));
    folder_remove(folder);
}

static void test_help(void **state)
{
    (void)state;
    assert_int_equal(system("'" UP_TEST_BUILD "/upipe-train' --help >/dev/full 2>/dev/null") >> 8,
                     1);
    program_run(&program, "upipe-train", "--help");
    assert_int_equal(program.status, 0);
    assert_non_null(strstr(program.out, "--weight-decay D"));
    assert_non_null(strstr(program.out, "[0.1]"));
    assert_non_null(strstr(program.out, "-h, --help; --version"));
}

// Who reads the output has had enough: the run ends in order.
static void test_closed_pipe(void **state)
{
    (void)state;
    char folder[32], command[LONG_COMMAND], trace[64];
    folder_make(folder);
    snprintf(trace, sizeof trace, "%s/run.db", folder);
    print_to(command, sizeof command, "%s/data", folder);
    file_write_text(command, 100000);
    print_to(command, sizeof command,
             "cd %s && bash -c 'set -o pipefail; \"%s/upipe-train\" --data data --seq 64 --steps "
             "100000 --active-layers 2 --trace run.db | head -3 >said'",
             folder, UP_TEST_BUILD);
    int status = system(command);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    program_run(&program, "upipe-report", trace);
    assert_int_equal(program.status, 0);
    assert_null(strstr(program.out, "INCOMPLETE"));
    print_to(command, sizeof command, "%s/said", folder);
    file_read(command, program.out, sizeof program.out);
    assert_non_null(strstr(program.out, "\nactive: 2 of 4 layers are computed"));
    // Also where steps repeat what was forecast, which nobody simulates again.
    print_to(command, sizeof command,
             "bash -c 'set -o pipefail; \"%s/upipe-train\" --device dry --seq 64 --steps 100000"
             " 2>\"%s/errors\" | head -3 >\"%s/said\"'",
             UP_TEST_BUILD, folder, folder);
    status = system(command);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    print_to(command, sizeof command, "%s/errors", folder);
    file_read(command, program.err, sizeof program.err);
    assert_string_equal(program.err, "upipe-train: interrupted\n");
    folder_remove(folder);
}

static void test_version(void **state)
{
    (void)state;
    program_run(&program, "upipe-train", "--version");
    assert_int_equal(program.status, 0);
    assert_string_equal(program.out, UPIPE_CUDA ? "upipe-train 0.1 (with CUDA)\n"
                                                : "upipe-train 0.1 (without CUDA)\n");
    program_run(&program, "upipe-report", "--version");
    assert_int_equal(program.status, 0);
    assert_string_equal(program.out, "upipe-report 0.1\n");
}

// A second run replaces the first one's trace; the report reads it.
static void test_trace_and_report(void **state)
{
    (void)state;
    char folder[32], data[64], trace[64];
    folder_make(folder);
    snprintf(data, sizeof data, "%s/data", folder);
    snprintf(trace, sizeof trace, "%s/run.db", folder);
    file_write_text(data, 300);
    for (int i = 0; i < 2; i++) {
        program_run(&program, "upipe-train", "--data", data, "--seq", "64", "--steps", "5",
                    "--trace", trace);
        assert_int_equal(program.status, 0);
        assert_int_equal(folder_count(folder), 2);
    }
    program_run(&program, "upipe-report", trace);
    assert_int_equal(program.status, 0);
    assert_non_null(strstr(program.out, "5 of 5 steps"));
    assert_null(strstr(program.out, "INCOMPLETE"));
    program_run(&program, "upipe-report", "peak", trace, "--json");
    assert_int_equal(program.status, 0);
    json_t *root = json_loads(program.out, 0, NULL);
    assert_non_null(root);
    json_decref(root);
    folder_remove(folder);
}

// The command is in the trace and the report whole, and can be typed again.
static void test_command_is_told(void **state)
{
    (void)state;
    char folder[32], data[64], trace[300], wanted[LONG_COMMAND];
    folder_make(folder);
    snprintf(data, sizeof data, "%s/a book's", folder);
    print_to(trace, sizeof trace, "%s/%0200d.db", folder, 0);
    file_write_text(data, 300);
    program_run(&program, "upipe-train", "--data", data, "--seq", "64", "--steps", "1", "--trace",
                trace);
    assert_int_equal(program.status, 0);
    program_run(&program, "upipe-report", "peak", trace, "--json");
    assert_int_equal(program.status, 0);
    json_t *root = json_loads(program.out, 0, NULL);
    print_to(wanted, sizeof wanted,
             " --data '%s/a book'\\''s' --seq 64 --steps 1 --trace %s/%0200d.db", folder, folder,
             0);
    const char *command =
        json_string_value(json_object_get(json_object_get(root, "run"), "command"));
    assert_string_equal(strstr(command, " --data"), wanted);
    json_decref(root);
    folder_remove(folder);
}

// The live set in the trace is the allocator's own count, and leaves no room for what was asked.
static void check_post_mortem(const char *trace)
{
    int64_t sum = 0;
    size_t i;
    json_t *row;
    program_run(&program, "upipe-report", "--json", trace);
    json_t *root = json_loads(program.out, 0, NULL);
    const json_t *why = json_object_get(root, "out_of_memory");
    json_array_foreach(json_object_get(why, "filled_by"), i, row) sum +=
        json_integer_value(json_object_get(row, "bytes"));
    int64_t live = json_integer_value(json_object_get(why, "live_bytes"));
    assert_int_equal(sum, live);
    assert_int_equal(json_integer_value(json_object_get(why, "limit_bytes")), 14 << 20);
    assert_true(live + json_integer_value(json_object_get(why, "bytes")) > 14 << 20);
    assert_true(json_integer_value(json_object_get(why, "largest_free_bytes")) <
                json_integer_value(json_object_get(why, "bytes")));
    json_decref(root);
}

// Out of memory is a result: the tensor is named, the trace is whole and says so.
static void test_memory_limit(void **state)
{
    (void)state;
    char folder[32], data[64], trace[64];
    folder_make(folder);
    snprintf(data, sizeof data, "%s/data", folder);
    snprintf(trace, sizeof trace, "%s/run.db", folder);
    file_write_text(data, 3000);
    for (int ranks = 1; ranks <= 2; ranks++) {
        char count[8];
        snprintf(count, sizeof count, "%d", ranks);
        program_run(&program, "upipe-train", "--data", data, "--seq", "1K", "--ranks", count,
                    "--no-admission", "--memory-limit", "14MiB", "--trace", trace);
        assert_int_equal(program.status, 1);
        assert_non_null(strstr(program.err, "out of device memory: layers."));
        assert_non_null(strstr(program.err, "needs"));
        assert_non_null(strstr(program.err, "memory has run out\n  largest at the peak, in "));
        assert_non_null(strstr(program.err, "\n  it fits with: --"));
        program_run(&program, "upipe-report", trace);
        assert_int_equal(program.status, 0);
        assert_non_null(strstr(program.out, "OUT OF MEMORY"));
        assert_null(strstr(program.out, "INCOMPLETE"));
        assert_true(strstr(program.out, "Out of memory: layers.") < strstr(program.out, "Peak "));
        check_post_mortem(trace);
    }
    program_run(&program, "upipe-train", "--data", data, "--seq", "1K", "--memory-limit", "1MiB",
                "--no-admission");
    assert_int_equal(program.status, 1);
    assert_non_null(strstr(program.err, "out of device memory: "));
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_log),
        cmocka_unit_test(test_dry_needs_no_data),
        cmocka_unit_test(test_seed),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_what_is_there_is_kept),
        cmocka_unit_test(test_log_in_output),
        cmocka_unit_test(test_tokens_at_fault),
        cmocka_unit_test(test_nothing_counts),
        cmocka_unit_test(test_diverged),
        cmocka_unit_test(test_help),
        cmocka_unit_test(test_version),
        cmocka_unit_test(test_closed_pipe),
        cmocka_unit_test(test_memory_limit),
        cmocka_unit_test(test_trace_and_report),
        cmocka_unit_test(test_command_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
