/* A forecast that is told to end in the middle of a step ends after the layer it is in, and nothing
 * half made is kept of it. */
#include "tests/trainer/fixture.h"
#include "trainer/forecast/forecaster.h"
#include "trainer/train.h"

static volatile int asked;
static int layers, ask_at; // that dry steps have got through, and at which of them to ask; -1: none
static double done_then;   // of the step, when it was asked

static void count_layer(struct up_progress *progress, double done, double all)
{
    (void)progress;
    (void)all;
    if (layers++ != ask_at) return;
    asked = 1;
    done_then = done;
}

// The dry rank itself, whose steps tell of their layers.
static enum up_status watched_step(struct up_trainer *trainer, int64_t step, int64_t counted,
                                   const struct up_hyper *hyper, struct up_step_result *result,
                                   struct up_error *err)
{
    static struct up_progress progress = {count_layer};
    trainer->progress = &progress;
    enum up_status rc = up_trainer_step(trainer, step, counted, hyper, result, err);
    if (asked) assert_true(trainer->progress_done == done_then); // it did not go on
    return rc;
}

#define up_trainer_step watched_step
// NOLINTNEXTLINE(bugprone-suspicious-include): its steps are to be the one above
#include "trainer/forecast/dry_rank.c"
#undef up_trainer_step

static void start_asking(int at)
{
    asked = layers = 0;
    ask_at = at;
}

static struct up_config small_config(void)
{
    struct up_config config = plain_config();
    assert_true(up_model_preset("tiny", &config.model));
    config.seq = 64;
    config.accum = 3; // of which two are simulated, and one more for what a further one takes
    return config;
}

static struct up_forecaster *open_forecaster(void)
{
    struct up_forecaster *forecaster = forecaster_open();
    up_forecaster_stop_at(forecaster, &asked);
    return forecaster;
}

static void assert_interrupted(enum up_status rc, const struct up_error *error)
{
    assert_int_equal(rc, UP_FAILED);
    assert_string_equal(error->text, "interrupted before its first step");
    assert_int_equal(layers, ask_at + 1); // none after that
}

static void assert_same(const struct up_forecast *a, const struct up_forecast *b)
{
    assert_int_equal(a->depth, b->depth);
    assert_string_equal(a->config_hash, b->config_hash);
    assert_int_equal(a->peak_bytes, b->peak_bytes);
    assert_int_equal(a->host_bytes, b->host_bytes);
    assert_true(a->step_s == b->step_s && a->tokens_per_s == b->tokens_per_s);
    assert_memory_equal(a->category, b->category, sizeof a->category);
    assert_string_equal(a->range, b->range);
    assert_memory_equal(a->arena_bytes, b->arena_bytes, sizeof a->arena_bytes);
}

// Wherever it is asked for: the next forecast of the same config is a whole one.
static void test_anywhere(void **state)
{
    (void)state;
    struct up_config config = small_config();
    struct up_error error = {0};
    const struct up_forecast *whole, *again;
    struct up_forecaster *undisturbed = open_forecaster();
    start_asking(-1);
    must(up_forecaster_ask(undisturbed, &config, UP_FORECAST_PLANNED, &whole, &error));
    int all = layers;
    assert_true(all > 20);
    for (int at = 0; at < all; at++) {
        struct up_forecaster *forecaster = open_forecaster();
        start_asking(at);
        enum up_status rc =
            up_forecaster_ask(forecaster, &config, UP_FORECAST_PLANNED, &again, &error);
        assert_interrupted(rc, &error);
        start_asking(-1);
        must(up_forecaster_ask(forecaster, &config, UP_FORECAST_PLANNED, &again, &error));
        assert_int_equal(layers, all);
        assert_same(again, whole);
        up_forecaster_destroy(forecaster);
    }
    up_forecaster_destroy(undisturbed);
}

// What was known before stays, also for those who hold it, and is not made again.
static void test_deeper(void **state)
{
    (void)state;
    struct up_config config = small_config();
    struct up_error error = {0};
    const struct up_forecast *brief, *deep;
    struct up_forecaster *forecaster = open_forecaster();
    start_asking(-1);
    must(up_forecaster_ask(forecaster, &config, UP_FORECAST_BRIEF, &brief, &error));
    struct up_forecast before = *brief;
    start_asking(3);
    enum up_status rc = up_forecaster_ask(forecaster, &config, UP_FORECAST_PLACED, &deep, &error);
    assert_interrupted(rc, &error);
    assert_same(brief, &before);
    start_asking(-1);
    must(up_forecaster_ask(forecaster, &config, UP_FORECAST_BRIEF, &brief, &error));
    assert_int_equal(layers, 0);
    assert_same(brief, &before);
    must(up_forecaster_ask(forecaster, &config, UP_FORECAST_PLACED, &deep, &error));
    assert_int_equal(deep->depth, UP_FORECAST_PLACED);
    assert_int_equal(deep->peak_bytes, before.peak_bytes);
    up_forecaster_destroy(forecaster);
}

static void test_plan(void **state)
{
    (void)state;
    struct up_config config = small_config();
    struct up_error error = {0};
    struct up_trainer_plan plan;
    start_asking(1);
    enum up_status rc = up_trainer_plan(&config, 0, &asked, &plan, &error);
    assert_interrupted(rc, &error);
    assert_null(plan.step.tensor[UP_SPACE_DEVICE]);
    up_trainer_plan_release(&plan);
    start_asking(-1);
    must(up_trainer_plan(&config, 0, &asked, &plan, &error));
    assert_non_null(plan.step.tensor[UP_SPACE_DEVICE]);
    up_trainer_plan_release(&plan);
}

// The run itself: its first forecast is the one that it is in.
static void test_run(void **state)
{
    (void)state;
    static const struct up_launch alone = {.processes = 1, .here = 1};
    static const char *const words[] = {"upipe-train", "--device=dry", "--memory-limit=1GiB"};
    struct up_train_options options;
    struct up_arguments arguments;
    struct up_error error = {0};
    must(up_train_options_parse(&options, UP_COUNT(words), (char **)words, &arguments, &error));
    start_asking(2);
    enum up_status rc = up_train(&options, &alone, "", &asked, &error);
    assert_interrupted(rc, &error);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_anywhere),
        cmocka_unit_test(test_deeper),
        cmocka_unit_test(test_plan),
        cmocka_unit_test(test_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
