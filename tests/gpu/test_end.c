/* A rank that fails ends the others: those that wait for it in a collective on the GPU, and the
 * whole process's communicators, within a minute. */
#include "tests/gpu/need.h"
#include "tests/trainer/fixture.h"

enum { END_WITHIN_S = 60 };

static enum up_status load_tokens(struct member *member, void *unused)
{
    struct up_trainer *trainer = &member->trainer;
    int64_t count = up_config_tokens(&member->bench->config, trainer->cp_rank);
    (void)unused;
    for (int64_t t = 0; t < count; t++) {
        up_trainer_inputs(trainer, 0, 0)[t] = (int32_t)(t % 100);
        up_trainer_targets(trainer, 0, 0)[t] = (int32_t)((t + 1) % 100);
    }
    enum up_status rc = up_state_randomise(&trainer->units, 1, &member->error);
    return rc ? rc : use_plan(member);
}

// The last rank fails once the others are in the middle of their step.
static enum up_status fail_or_wait(struct member *member, void *unused)
{
    struct bench *bench = member->bench;
    struct gradients_call call = {.counted = bench->config.seq};
    (void)unused;
    if (member != &bench->member[bench->count - 1]) return run_gradients(member, &call);
    sleep(1);
    return up_fail(&member->error, UP_FAILED, "rank %d has had enough", bench->count - 1);
}

static void check_end(int ranks)
{
    static struct bench bench;
    struct up_config config = plain_config();
    struct up_error error = {0};
    assert_true(up_model_preset("tiny", &config.model));
    config.as = UP_DEVICE_CUDA;
    config.dtype = UP_BF16;
    config.seq = 512;
    config.cp = ranks;
    config.fsdp = true;
    bench_open(&bench, &config, UP_DEVICE_CUDA, 0);
    bench_run(&bench, load_tokens, NULL);
    int64_t begin = up_clock_ns();
    assert_int_equal(bench_try(&bench, fail_or_wait, NULL, &error), UP_FAILED);
    assert_non_null(strstr(error.text, "has had enough"));
    for (int r = 0; r < bench.count; r++) {
        up_device_bind(bench.member[r].seat->device);
        up_seat_leave(bench.member[r].seat);
    }
    bench_close(&bench);
    double seconds = (double)(up_clock_ns() - begin) / 1e9;
    printf("%d GPUs: ended after %.1f s\n", ranks, seconds);
    assert_true(seconds < END_WITHIN_S);
}

static void test_failure_ends_all(void **state)
{
    (void)state;
    gpus_or_skip();
    for (int ranks = 2; ranks <= 4; ranks *= 2)
        if (has_gpus(ranks)) check_end(ranks);
}

int main(void)
{
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    setvbuf(stdout, NULL, _IOLBF, 0);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_failure_ends_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
