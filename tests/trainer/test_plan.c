/* The plan of a step for cuda: what it notes to rehearse, whatever the length and depth. */
#include "ops/rehearsal.h"
#include "tests/trainer/fixture.h"

static struct up_config llama(int64_t seq, int64_t layers)
{
    struct up_config config = blocks_of_llama3_8b(layers);
    config.seq = seq;
    config.cp = 4;
    config.fsdp = true;
    config.checkpoint = UP_CHECKPOINT_ATTN;
    config.attn_layers = config.offload_layers = layers;
    config.tile_mlp = config.tile_attn = 4096;
    config.tile_loss = 1024;
    config.upipe = 4;
    return config;
}

// A call per distinct shape: layers, stages and tiles beyond the second bring no new ones.
static void test_distinct_calls(void **state)
{
    (void)state;
    struct up_error error = {0};
    struct up_trainer_plan shallow, deep;
    struct up_config a = llama(32768, 2), b = llama(32768, 8);
    must(up_trainer_plan(&a, 0, NULL, &shallow, &error));
    must(up_trainer_plan(&b, 0, NULL, &deep, &error));
    assert_non_null(shallow.rehearsal);
    assert_int_equal(up_rehearsal_count(shallow.rehearsal), up_rehearsal_count(deep.rehearsal));
    assert_in_range(up_rehearsal_count(shallow.rehearsal), 20, 60);
    up_trainer_plan_release(&shallow);
    up_trainer_plan_release(&deep);
}

// There is room for it where the step's tensors lie, and it costs none: its operands are the
// step's.
static void test_room(void **state)
{
    (void)state;
    struct up_error error = {0};
    struct up_trainer_plan plan;
    struct up_config config = llama(32768, 2);
    int64_t live[UP_SPACE_COUNT];
    must(up_trainer_plan(&config, 0, NULL, &plan, &error));
    live_peaks(&config, 0, live);
    assert_true(up_rehearsal_bytes(plan.rehearsal) <= plan.step.height[UP_SPACE_DEVICE]);
    assert_true(up_rehearsal_bytes(plan.rehearsal) <= live[UP_SPACE_DEVICE]);
    up_trainer_plan_release(&plan);
}

// A row of the residual stream lies in the registers of a block; the cpu takes any.
static void test_width(void **state)
{
    (void)state;
    struct up_error error = {0};
    struct up_config config = llama(4096, 2);
    config.model.hidden = 1 << 15;
    must(up_config_check(&config, &error));
    config.model.hidden += 8;
    assert_int_equal(up_config_check(&config, &error), UP_USAGE);
    assert_non_null(strstr(error.text, "hidden_size: expected at most 32768 on cuda, found 32776"));
    config.as = UP_DEVICE_CPU;
    must(up_config_check(&config, &error));
}

// Attention's kernels take what their tiles do.
static void test_head_dim(void **state)
{
    (void)state;
    static const int64_t refused[] = {20, 130, 264, 512};
    struct up_error error = {0};
    struct up_config config = llama(4096, 2);
    for (int64_t width = 8; width <= 256; width += 8) {
        config.model.head_dim = width;
        must(up_config_check(&config, &error));
    }
    for (int i = 0; i < UP_COUNT(refused); i++) {
        config.as = UP_DEVICE_CUDA;
        config.model.head_dim = refused[i];
        assert_int_equal(up_config_check(&config, &error), UP_USAGE);
        assert_non_null(
            strstr(error.text, "head_dim: expected a multiple of 8, at most 256, on cuda, found"));
        config.as = UP_DEVICE_CPU;
        must(up_config_check(&config, &error));
    }
}

// A call that is measured is given many times, and must find the same numbers each time.
static void test_calls_again(void **state)
{
    (void)state;
    struct up_error error = {0};
    struct up_trainer_plan plan;
    struct up_config config = plain_config();
    struct up_rank rank = {.device = up_device_cpu_create(1, 0, &error)};
    int attention = 0;
    assert_true(up_model_preset("tiny", &config.model));
    config.seq = 64;
    must(up_trainer_plan(&config, 0, NULL, &plan, &error));
    for (int i = 0; i < up_rehearsal_count(plan.rehearsal); i++) {
        struct up_rehearsal_call call = up_rehearsal_call(plan.rehearsal, i);
        if (strncmp(call.text, "attention", 9) != 0) continue;
        size_t bytes = (size_t)up_ceil_div(call.bytes, 256) * 256;
        float *place = aligned_alloc(256, bytes), *once = malloc(bytes);
        for (size_t j = 0; j < bytes / sizeof *place; j++) place[j] = (float)(j % 97) / 97;
        up_rehearsal_make(&rank, plan.rehearsal, i, place);
        memcpy(once, place, bytes);
        up_rehearsal_make(&rank, plan.rehearsal, i, place);
        assert_memory_equal(place, once, bytes);
        free(place);
        free(once);
        attention++;
    }
    assert_int_equal(attention, 2); // forward, backward
    up_trainer_plan_release(&plan);
    up_device_destroy(rank.device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_distinct_calls),
                                       cmocka_unit_test(test_room), cmocka_unit_test(test_width),
                                       cmocka_unit_test(test_head_dim),
                                       cmocka_unit_test(test_calls_again)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
