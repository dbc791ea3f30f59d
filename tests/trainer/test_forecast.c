/* What a forecast says is what the run does: for every rung of the ladder, and every technique
 * toggled from every rung, a real step on cpu ranks has the forecast's peak to the byte, in every
 * category, at the same place, with the same tensors the largest; and what the advisor names as
 * next dominant is that in the run that follows the advice. */
#include "tests/trainer/fixture.h"
#include "trainer/advisor/advisor.h"

enum { RANKS = 4 };

/* --- A real step
 * ------------------------------------------------------------------------------------ */

// What is alive at the highest moment of a rank's step, counted here and not by the forecast.
struct measured {
    int64_t peak, host, category[UP_CATEGORY_COUNT], place_layer;
    enum up_phase phase;
    char range[256], newest[UP_LABEL_TEXT], owner[UP_LABEL_TEXT];
    int64_t owner_bytes;
};

static struct up_config config;
static struct measured found[RANKS];

static void kind_text(const struct up_label *label, char text[UP_LABEL_TEXT])
{
    struct up_label bare = {label->name, UP_NO_LAYER, UP_NO_INDEX};
    char name[UP_LABEL_TEXT];
    snprintf(text, UP_LABEL_TEXT, "%s%.70s%s", label->layer < 0 ? "" : "layers.*.",
             up_label_text(name, &bare), label->index < 0 ? "" : ".*");
}

struct owner_sum {
    const char *kind;
    enum up_category category;
    int64_t bytes;
};

static void add_owner(const struct up_tensor *tensor, void *context)
{
    struct owner_sum *sum = context;
    char kind[UP_LABEL_TEXT];
    kind_text(&tensor->tag.label, kind);
    if (tensor->space == UP_SPACE_DEVICE && tensor->tag.category == sum->category &&
        !strcmp(kind, sum->kind))
        sum->bytes += tensor->bytes;
}

struct count {
    const struct up_rank *rank;
    struct measured *measured;
};

static void count_tensor(const struct up_tensor *tensor, void *context)
{
    const struct count *count = context;
    struct measured *m = count->measured;
    char kind[UP_LABEL_TEXT];
    struct owner_sum sum = {kind, tensor->tag.category, 0};
    if (tensor->space != UP_SPACE_DEVICE) return;
    m->category[tensor->tag.category] += tensor->bytes;
    kind_text(&tensor->tag.label, kind);
    up_rank_live(count->rank, add_owner, &sum);
    bool first = sum.bytes == m->owner_bytes && strcmp(kind, m->owner) < 0;
    if (sum.bytes < m->owner_bytes || (sum.bytes == m->owner_bytes && !first)) return;
    m->owner_bytes = sum.bytes;
    strcpy(m->owner, kind);
}

static void look(const struct up_rank *rank, void *context)
{
    struct measured *m = context;
    struct count count = {rank, m};
    up_rank_live(rank, count_tensor, &count);
    m->phase = rank->phase;
    m->place_layer = rank->newest->tag.label.layer;
    for (int i = 0; i < rank->range_depth; i++) {
        char name[UP_LABEL_TEXT];
        size_t used = strlen(m->range);
        snprintf(m->range + used, sizeof m->range - used, "%s%s", i ? " > " : "",
                 up_label_text(name, &rank->open_labels[i]));
        if (rank->newest->tag.label.layer < 0) m->place_layer = rank->open_labels[i].layer;
    }
    up_label_text(m->newest, &rank->newest->tag.label);
}

// Two steps: the first tells which of its events is the highest, the second is looked at there.
static enum up_status measure(struct member *member, void *argument)
{
    (void)argument;
    enum up_status rc = UP_OK;
    struct measured *m = &found[member - member->bench->member];
    struct up_usage *usage = &member->rank.usage;
    struct up_hyper hyper = {.lr = 1e-3};
    struct up_step_result result;
    struct up_lookout lookout = {.reached = look, .context = m};
    struct up_error *err = &member->error;
    const struct up_tensor *staging = member->trainer.tokens_host;
    memset(staging->data, 0, (size_t)staging->bytes);
    UP_TRY(use_plan(member));
    UP_TRY(up_trainer_step(&member->trainer, 0, 1, &hyper, &result, err));
    lookout.event = usage->peak_event[UP_SPACE_DEVICE];
    assert_true(lookout.event > 0);
    member->rank.lookout = &lookout;
    UP_TRY(up_trainer_step(&member->trainer, 1, 1, &hyper, &result, err));
    member->rank.lookout = NULL;
    m->peak = usage->peak_bytes[UP_SPACE_DEVICE];
    m->host = usage->peak_bytes[UP_SPACE_HOST];
out:
    return rc;
}

// Of the rank whose peak is the highest.
static const struct measured *run_really(const struct up_config *real)
{
    static struct bench bench;
    const struct measured *highest = found;
    memset(found, 0, sizeof found);
    bench_open(&bench, real, UP_DEVICE_CPU, 0);
    bench_run(&bench, measure, NULL);
    for (int r = 1; r < bench.count; r++)
        if (found[r].peak > highest->peak) highest = &found[r];
    bench_close(&bench);
    return highest;
}

/* --- Held to each other
 * ------------------------------------------------------------------------------------ */

static int compared;

static void compare(const struct up_config *real, const struct up_forecast *forecast)
{
    const struct measured *m = run_really(real);
    char change[UP_CHANGE_TEXT];
    struct up_config none = plain_config();
    none.model = real->model;
    none.seq = real->seq;
    up_config_change_text(&none, real, change, sizeof change);
    if (m->peak != forecast->peak_bytes || m->host != forecast->host_bytes)
        fail_msg("%s: peak %lld, forecast %lld; host %lld, forecast %lld", change,
                 (long long)m->peak, (long long)forecast->peak_bytes, (long long)m->host,
                 (long long)forecast->host_bytes);
    int64_t sum = 0;
    for (int i = 0; i < UP_CATEGORY_COUNT; i++) {
        if (m->category[i] != forecast->category[i])
            fail_msg("%s: %s: %lld, forecast %lld", change, up_category_names[i],
                     (long long)m->category[i], (long long)forecast->category[i]);
        sum += m->category[i];
    }
    assert_int_equal(sum, m->peak);
    if (strcmp(m->range, forecast->range) != 0 || m->phase != forecast->phase ||
        m->place_layer != forecast->layer || strcmp(m->newest, forecast->reached_by) != 0 ||
        strcmp(m->owner, forecast->kind[0].name) != 0 || m->owner_bytes != forecast->kind[0].bytes)
        fail_msg("%s: highest in %s by %s, %s %lld; forecast in %s by %s, %s %lld", change,
                 m->range, m->newest, m->owner, (long long)m->owner_bytes, forecast->range,
                 forecast->reached_by, forecast->kind[0].name, (long long)forecast->kind[0].bytes);
    compared++;
}

static void compare_config(struct up_forecaster *forecaster, const struct up_config *real)
{
    struct up_error error = {0};
    const struct up_forecast *forecast, *brief;
    must(up_forecaster_ask(forecaster, real, UP_FORECAST_BRIEF, &brief, &error));
    struct up_forecast before = *brief;
    must(up_forecaster_ask(forecaster, real, UP_FORECAST_PLACED, &forecast, &error));
    // What the search goes by is what is then said.
    assert_int_equal(before.peak_bytes, forecast->peak_bytes);
    assert_int_equal(before.host_bytes, forecast->host_bytes);
    assert_true(fabs(before.step_s - forecast->step_s) < 0.03 * forecast->step_s);
    compare(real, forecast);
}

// The technique taken away; false where it is not on.
static bool take_away(const struct up_config *from, enum up_technique technique,
                      struct up_config *to)
{
    struct up_config c = *from;
    struct up_error error;
    switch (technique) {
    case UP_TECHNIQUE_FSDP:
        c.fsdp = false;
        break;
    case UP_TECHNIQUE_ULYSSES:
        if (c.cp > 1) up_config_set_cp(&c, c.cp / 2, &c);
        break;
    case UP_TECHNIQUE_CHECKPOINT:
        c.checkpoint = UP_CHECKPOINT_NONE;
        c.offload_layers = 0;
        break;
    case UP_TECHNIQUE_CHECKPOINT_ATTN: // another way to have it
        if (c.checkpoint != UP_CHECKPOINT_NONE) c.checkpoint = UP_CHECKPOINT_ATTN;
        c.attn_layers = 1;
        break;
    case UP_TECHNIQUE_OFFLOAD:
        c.offload_layers = 0;
        break;
    case UP_TECHNIQUE_TILE_LOSS:
        c.tile_loss = 0;
        break;
    case UP_TECHNIQUE_TILE_MLP:
        c.tile_mlp = 0;
        break;
    case UP_TECHNIQUE_TILE_ATTN:
        c.tile_attn = 0;
        break;
    case UP_TECHNIQUE_UPIPE:
        c.upipe = 0;
        break;
    default:
        return false;
    }
    *to = c;
    return !up_config_check(&c, &error) && memcmp(&c, from, sizeof c) != 0;
}

// The rungs of --stack, on four ranks.
static struct up_config rung_of(const char *rung)
{
    struct up_error error = {0};
    struct up_train_options options;
    struct up_arguments arguments;
    struct up_config made;
    bool folder;
    char *words[] = {(char *)"upipe-train", (char *)"--ranks", (char *)"4", (char *)"--seq",
                     (char *)"66",          (char *)"--batch", (char *)"2", (char *)"--layers",
                     (char *)"2",           (char *)"--stack", (char *)rung};
    must(up_train_options_parse(&options, UP_COUNT(words), words, &arguments, &error));
    must(up_train_options_resolve(&options, &made, &folder, &error));
    // --stack's tiles are longer than these sequences.
    if (made.tile_mlp) made.tile_mlp = made.tile_attn = made.tile_loss = 8;
    return made;
}

static const char *const rungs[] = {"none",    "fsdp",  "ulysses", "checkpoint",
                                    "offload", "tiled", "upipe"};

static void test_every_rung_and_toggle(void **state)
{
    (void)state;
    struct up_forecaster *forecaster = forecaster_open();
    int every = getenv("UP_TEST_SHORT") ? 5 : 1, n = 0;
    compared = 0;
    for (int i = 0; i < UP_COUNT(rungs); i++) {
        config = rung_of(rungs[i]);
        compare_config(forecaster, &config);
        for (int t = 0; t < UP_TECHNIQUE_COUNT; t++) {
            struct up_config toggled;
            bool on = up_technique_apply(&config, (enum up_technique)t, &toggled);
            if (!on && !take_away(&config, (enum up_technique)t, &toggled)) continue;
            if (n++ % every == 0) compare_config(forecaster, &toggled);
        }
    }
    printf("%d configs compared\n", compared);
    assert_true(compared >= (every == 1 ? 70 : 14));
    up_forecaster_destroy(forecaster);
}

// Every step of the path from every rung: what is said to dominate next does.
static void test_every_step_of_the_path(void **state)
{
    (void)state;
    struct up_error error = {0};
    struct up_forecaster *forecaster = forecaster_open();
    struct up_limits limits = {0};
    bool brief = getenv("UP_TEST_SHORT");
    compared = 0;
    for (int i = 0; i < UP_COUNT(rungs); i += brief ? 3 : 1) {
        struct up_ladder_line steps[UP_PATH_STEPS];
        int count;
        config = rung_of(rungs[i]);
        must(up_advise_path(forecaster, &config, &limits, steps, &count, &error));
        for (int s = 0; s < count; s++) compare(&steps[s].to.config, steps[s].to.forecast);
    }
    printf("%d steps compared\n", compared);
    assert_true(compared >= (brief ? 4 : 10));
    up_forecaster_destroy(forecaster);
}

/* --- Corners
 * ------------------------------------------------------------------------------------ */

// More micro-batches than are simulated, unequal shares, and query heads that straddle KV groups,
// so that another rank than the first holds most.
static void test_corners(void **state)
{
    (void)state;
    struct up_forecaster *forecaster = forecaster_open();
    config = rung_of("none");
    config.accum = 5;
    compare_config(forecaster, &config);
    config = rung_of("upipe");
    config.seq = 131;
    config.accum = 3;
    compare_config(forecaster, &config);
    config = rung_of("ulysses");
    config.model.heads = 12; // three of each rank; rank 1's are of two KV heads, rank 0's of one
    config.model.kv_heads = 3;
    compare_config(forecaster, &config);
    assert_true(found[1].peak > found[0].peak);
    up_forecaster_destroy(forecaster);
}

// Ranks with as many KV heads in all, one in its first stage and two in its second, or the other
// way round: which has the highest peak, its own dry run tells.
static void test_order_of_stages(void **state)
{
    (void)state;
    struct up_error error = {0};
    struct up_machine machine;
    struct up_forecast forecast;
    int64_t highest = 0;
    must(up_machine_find("h200", &machine, &error));
    struct up_config c = rung_of("upipe");
    assert_true(up_model_preset("llama3-8b", &c.model));
    c.as = UP_DEVICE_CUDA;
    c.dtype = UP_BF16;
    c.model.layers = 2;
    c.model.hidden = 5120;
    c.model.heads = 40;
    c.seq = 1 << 20;
    c.batch = 1;
    c.tile_mlp = c.tile_attn = 4096;
    c.tile_loss = 1024;
    c.cp = 10;
    c.upipe = 20;
    for (int r = 0; r < c.cp; r++) {
        struct up_dry_rank dry;
        must(up_dry_rank_open(&dry, &c, &machine, r, false, &error));
        must(up_dry_rank_step(&dry, 0, &error));
        highest = up_max(highest, dry.rank.usage.peak_bytes[UP_SPACE_DEVICE]);
        up_dry_rank_close(&dry);
    }
    must(up_forecast_make(&c, &machine, UP_FORECAST_BRIEF, NULL, &forecast, &error));
    assert_int_equal(forecast.peak_bytes, highest);
}

// The planned arena that is forecast is the one that the run makes.
static void test_arena(void **state)
{
    (void)state;
    static struct bench bench;
    struct up_error error = {0};
    struct up_forecaster *forecaster = forecaster_open();
    for (int i = 0; i < UP_COUNT(rungs); i++) {
        const struct up_forecast *forecast;
        config = rung_of(rungs[i]);
        config.optimizer_host = i % 2;
        must(up_forecaster_ask(forecaster, &config, UP_FORECAST_PLANNED, &forecast, &error));
        bench_open(&bench, &config, UP_DEVICE_CPU, 0);
        struct step_call call = {.counted = 1, .hyper = &(struct up_hyper){.lr = 1e-3}};
        for (int r = 0; r < bench.count; r++) {
            const struct up_tensor *staging = bench.member[r].trainer.tokens_host;
            memset(staging->data, 0, (size_t)staging->bytes);
            must(up_state_randomise(&bench.member[r].trainer.units, 1, &error));
        }
        bench_run(&bench, run_step, &call);
        const struct up_rank *rank = &bench.member[0].rank;
        assert_non_null(rank->plan);
        int64_t arena =
            rank->step_base[UP_SPACE_DEVICE] + bench.member[0].plan.step.height[UP_SPACE_DEVICE];
        assert_int_equal(forecast->arena_bytes[UP_SPACE_DEVICE], arena);
        assert_true(arena >= forecast->peak_bytes);
        bench_close(&bench);
    }
    up_forecaster_destroy(forecaster);
}

// Libraries as the machine file has them, and only where there is a GPU.
static void test_libraries(void **state)
{
    (void)state;
    struct up_error error = {0};
    struct up_machine machine;
    struct up_forecast forecast;
    must(up_machine_find("h200", &machine, &error));
    config = rung_of("ulysses");
    must(up_forecast_make(&config, &machine, UP_FORECAST_BRIEF, NULL, &forecast, &error));
    assert_int_equal(forecast.libraries, 0);
    config.as = UP_DEVICE_CUDA;
    config.dtype = UP_BF16;
    must(up_forecast_make(&config, &machine, UP_FORECAST_BRIEF, NULL, &forecast, &error));
    assert_int_equal(forecast.library_bytes[UP_LIBRARY_NCCL],
                     machine.nccl_bytes + 2 * machine.nccl_rank_bytes);
    // 2.0 GiB were measured with four ranks.
    assert_true(llabs(forecast.library_bytes[UP_LIBRARY_NCCL] - ((int64_t)2 << 30)) < 32 << 20);
    assert_int_equal(forecast.library_bytes[UP_LIBRARY_CONTEXT], machine.context_bytes);
    config.cp = config.dp = 1;
    must(up_forecast_make(&config, &machine, UP_FORECAST_BRIEF, NULL, &forecast, &error));
    assert_int_equal(forecast.library_bytes[UP_LIBRARY_NCCL], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_rung_and_toggle),
        cmocka_unit_test(test_every_step_of_the_path),
        cmocka_unit_test(test_corners),
        cmocka_unit_test(test_order_of_stages),
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_libraries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
