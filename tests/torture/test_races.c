/* Small runs of the whole program in which everything that can be a thread is one: ranks, streams,
 * the recorder. In the build for ThreadSanitizer this is where races show; in the others, that the
 * streams' delays and poisoned bytes change no digit. */
#include "tests/cli/program.h"

static char box[32], text_path[64], trace_path[64], log_path[64];

/* "loss grad_norm" of each step, as the log has them. */
static void read_losses(char *losses, size_t size)
{
    static char log[1 << 14];
    size_t used = 0;
    losses[0] = 0;
    file_read(log_path, log, sizeof log);
    for (char *at = log; (at = strstr(at, "\"loss\":")); at++) {
        const char *end = strstr(at, ",\"tokens\"");
        assert_non_null(end);
        used += (size_t)snprintf(losses + used, size - used, "%.*s\n", (int)(end - at), at);
    }
}

static void train(const char *stack, const char *ranks, const char *chaos, char *losses,
                  size_t size)
{
    static struct program program;
    const char *words[] = {"--layers",
                           "2",
                           "--seq",
                           "16",
                           "--steps",
                           "3",
                           "--threads",
                           "1",
                           "--data",
                           text_path,
                           "--trace",
                           trace_path,
                           "--json-log",
                           log_path,
                           "--stack",
                           stack,
                           "--ranks",
                           ranks,
                           "--optimizer",
                           "host",
                           "--accum",
                           "2",
                           chaos ? "--chaos" : NULL,
                           chaos,
                           NULL};
    program_run_words(&program, "upipe-train", words);
    if (program.status != 0 || *program.err) fail_msg("status %d: %s", program.status, program.err);
    read_losses(losses, size);
    assert_non_null(strstr(losses, "\"loss\":"));
}

static void check(const char *stack, const char *ranks)
{
    static const char *const seeds[] = {"1", "2", "3"};
    char plain[4096], chaotic[4096];
    train(stack, ranks, NULL, plain, sizeof plain);
    for (int i = 0; i < UP_COUNT(seeds); i++) {
        train(stack, ranks, seeds[i], chaotic, sizeof chaotic);
        if (strcmp(plain, chaotic) != 0)
            fail_msg("--stack %s --ranks %s: without --chaos\n%swith --chaos %s\n%s", stack, ranks,
                     plain, seeds[i], chaotic);
    }
}

static void one_rank(void **state)
{
    (void)state;
    check("offload", "1");
}

static void data_parallel_ranks(void **state)
{
    (void)state;
    check("fsdp", "2");
}

static void context_parallel_ranks(void **state)
{
    (void)state;
    check("upipe", "4");
}

static int make_box(void **state)
{
    (void)state;
    folder_make(box);
    snprintf(text_path, sizeof text_path, "%s/text", box);
    snprintf(trace_path, sizeof trace_path, "%s/run.db", box);
    snprintf(log_path, sizeof log_path, "%s/steps.jsonl", box);
    file_write_text(text_path, 8192);
    return 0;
}

static int remove_box(void **state)
{
    (void)state;
    folder_remove(box);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank),
        cmocka_unit_test(data_parallel_ranks),
        cmocka_unit_test(context_parallel_ranks),
    };
    return cmocka_run_group_tests(tests, make_box, remove_box);
}
