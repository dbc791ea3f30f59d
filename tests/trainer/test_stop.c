/* Ending between two steps: whenever it is asked for, all ranks end before the same one. */
#include "trainer/stop.h"
#include "trainer/train.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

enum { RANKS = 3 };

struct walker {
    struct up_stop *stop;
    struct up_comm *comm;
    atomic_int *steps; // of rank 0
    int64_t ended;     // before this step; -1: by an error
    pthread_t thread;
};

static void *walk(void *argument)
{
    struct walker *walker = argument;
    struct up_error error = {0};
    bool ends = false;
    walker->ended = -1;
    for (int64_t step = 5;; step++) {
        if (up_stop_agree(walker->stop, walker->comm, step, &ends, &error)) return NULL;
        if (ends) {
            walker->ended = step;
            return NULL;
        }
        if (up_comm_rank(walker->comm) == 0) (*walker->steps)++;
    }
}

static volatile int asked;

static void on_signal(int number)
{
    (void)number;
    asked = 1;
}

// Some rank's thread gets the signal, at any moment.
static void test_same_step(void **state)
{
    (void)state;
    signal(SIGUSR1, on_signal);
    int rounds = getenv("UP_TEST_SHORT") ? 50 : 200;
    for (int round = 0; round < rounds; round++) {
        asked = round == 0;
        atomic_int steps = 0;
        struct up_stop stop = {&asked, -1};
        struct up_comm *comms[RANKS];
        struct walker walkers[RANKS];
        struct up_error error = {0};
        assert_int_equal(up_comm_threads_create(RANKS, comms, &error), UP_OK);
        for (int i = 0; i < RANKS; i++) {
            walkers[i] = (struct walker){.stop = &stop, .comm = comms[i], .steps = &steps};
            assert_int_equal(pthread_create(&walkers[i].thread, NULL, walk, &walkers[i]), 0);
        }
        while (steps < round) nanosleep(&(struct timespec){.tv_nsec = 1000}, NULL);
        if (round) pthread_kill(walkers[round % RANKS].thread, SIGUSR1);
        for (int i = 0; i < RANKS; i++) pthread_join(walkers[i].thread, NULL);
        for (int i = 0; i < RANKS; i++) {
            assert_int_equal(walkers[i].ended, 5 + steps);
            assert_int_equal(walkers[i].ended, stop.before);
        }
        assert_true(steps >= round);
        for (int i = 0; i < RANKS; i++) up_comm_destroy(comms[i]);
    }
}

// Nobody can ask: no rank waits for another.
static void test_nobody_asks(void **state)
{
    (void)state;
    struct up_stop stop = {NULL, -1};
    struct up_comm *comms[2];
    struct up_error error = {0};
    bool ends = true;
    assert_int_equal(up_comm_threads_create(2, comms, &error), UP_OK);
    assert_int_equal(up_stop_agree(&stop, comms[1], 1, &ends, &error), UP_OK);
    assert_false(ends);
    for (int i = 0; i < 2; i++) up_comm_destroy(comms[i]);
}

// Who has it finish its step: a run that saves.
static void test_who(void **state)
{
    (void)state;
    struct up_train_options saves = {.save = "saves", .device = UP_DEVICE_CPU}, dry = saves;
    struct up_train_options gpu = saves, plain = saves;
    dry.device = UP_DEVICE_DRY;
    gpu.device = UP_DEVICE_CUDA;
    plain.save = NULL;
    assert_true(up_train_ends_saved(&saves));
    assert_true(up_train_ends_saved(&gpu));
    assert_false(up_train_ends_saved(&dry));
    assert_false(up_train_ends_saved(&plain));
}

// What a run with one more option says that is asked to end before it begins.
static void run_asked(const char *option, struct up_error *error)
{
    char folder[] = "/tmp/upipe-test-XXXXXX", data[64], saves[64], bytes[300];
    assert_non_null(mkdtemp(folder));
    snprintf(data, sizeof data, "%s/data", folder);
    snprintf(saves, sizeof saves, "%s/saves", folder);
    memset(bytes, 'e', sizeof bytes);
    FILE *file = fopen(data, "wb");
    assert_int_equal(fwrite(bytes, 1, sizeof bytes, file), sizeof bytes);
    assert_int_equal(fclose(file), 0);
    const char *words[] = {"upipe-train", "--data",   data, "--save", saves, "--seq",
                           "16",          "--layers", "1",  "--dp",   "2",   option};
    static const struct up_launch alone = {.processes = 1, .here = 1};
    asked = 1;
    struct up_train_options options;
    struct up_arguments arguments;
    assert_int_equal(
        up_train_options_parse(&options, UP_COUNT(words), (char **)words, &arguments, error),
        UP_OK);
    assert_int_equal(up_train(&options, &alone, "", &asked, error), UP_FAILED);
    assert_int_not_equal(access(saves, F_OK), 0);
    unlink(data);
    assert_int_equal(rmdir(folder), 0);
}

// Asked for while the model was loaded: there is nothing to save.
static void test_before_the_first(void **state)
{
    (void)state;
    struct up_error error = {0};
    run_asked("--no-admission", &error);
    assert_string_equal(error.text, "interrupted before its first step");
}

// Asked for while options are looked for that make it fit, which may take minutes.
static void test_while_it_is_forecast(void **state)
{
    (void)state;
    struct up_error error = {0};
    run_asked("--memory-limit=1KiB", &error);
    assert_string_equal(error.text, "interrupted before its first step");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_step), cmocka_unit_test(test_nobody_asks),
        cmocka_unit_test(test_who), cmocka_unit_test(test_before_the_first),
        cmocka_unit_test(test_while_it_is_forecast)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
