/* The advisor: the published orderings, and that what it says fits fits, at the margin. Forecasts
 * alone; that these are what runs measure is test_forecast's business. */
#include "tests/trainer/fixture.h"
#include "trainer/advisor/advisor.h"

static const int64_t gib = (int64_t)1 << 30;

struct site {
    struct up_machine machine;
    struct up_limits limits;
    struct up_forecaster *forecaster;
};

static void site_open(struct site *site, const char *machine, enum up_device_kind as,
                      int64_t device_bytes)
{
    struct up_error error = {0};
    must(up_machine_find(machine, &site->machine, &error));
    site->limits = up_limits_of(&site->machine, as, device_bytes);
    site->forecaster = up_forecaster_create(&site->machine, 0);
    assert_non_null(site->forecaster);
}

static void site_close(struct site *site)
{
    up_forecaster_destroy(site->forecaster);
}

static struct up_config plain(const char *model, enum up_device_kind as, int64_t ranks, int64_t seq)
{
    struct up_config config = plain_config();
    assert_true(up_model_preset(model, &config.model));
    config.as = as;
    config.dtype = as == UP_DEVICE_CUDA ? UP_BF16 : UP_F32;
    config.seq = seq;
    config.dp = ranks;
    config.attn_layers = config.model.layers;
    return config;
}

static enum up_room room_of(const struct site *site, const struct up_config *config,
                            enum up_forecast_depth depth)
{
    struct up_error error = {0};
    const struct up_forecast *forecast;
    must(up_forecaster_ask(site->forecaster, config, depth, &forecast, &error));
    return up_limits_check(&site->limits, config, forecast);
}

/* --- Published orderings
 * ------------------------------------------------------------------------------------ */

// "Road to 5 Million Tokens": FSDP, Ulysses, activation checkpointing, offload of block inputs,
// tiling, then UPipe, on 8 x 80 GB at 3M tokens; each rung has a peak below the one before.
static void test_talk(void **state)
{
    (void)state;
    static const enum up_technique published[] = {UP_TECHNIQUE_FSDP,       UP_TECHNIQUE_ULYSSES,
                                                  UP_TECHNIQUE_CHECKPOINT, UP_TECHNIQUE_OFFLOAD,
                                                  UP_TECHNIQUE_TILE_LOSS,  UP_TECHNIQUE_TILE_MLP,
                                                  UP_TECHNIQUE_UPIPE};
    struct up_error error = {0};
    struct site site;
    struct up_ladder_line steps[UP_PATH_STEPS];
    int count, next = 0, fits_at = -1;
    struct up_config config = plain("llama3-8b", UP_DEVICE_CUDA, 8, 3 << 20);
    site_open(&site, "h100-80g-x8", UP_DEVICE_CUDA, 0);
    must(up_advise_path(site.forecaster, &config, &site.limits, steps, &count, &error));
    int64_t before = INT64_MAX;
    for (int i = 0; i < count; i++) {
        const struct up_forecast *f = steps[i].to.forecast;
        printf("%-14s %8.1f GiB\n", up_technique_names[steps[i].technique],
               (double)f->peak_bytes / (double)gib);
        assert_true(f->peak_bytes < before);
        before = f->peak_bytes;
        if (next < UP_COUNT(published) && steps[i].technique == published[next]) next++;
        bool fits = up_limits_check(&site.limits, &steps[i].to.config, f) == UP_ROOM_FITS;
        if (fits && fits_at < 0) fits_at = i;
    }
    assert_int_equal(next, UP_COUNT(published));
    // Published: it is tiling that makes it fit, at 64.6 GiB; UPipe ends at 51.1.
    assert_int_equal(steps[fits_at].technique, UP_TECHNIQUE_TILE_LOSS);
    assert_true(steps[fits_at].to.forecast->peak_bytes <= 64.6 * (double)gib);
    assert_true(before <= 51.1 * (double)gib);
    site_close(&site);
}

// Arctic Long Sequence Training, table 1: the longest sequence of Llama-8B on 8 x H100 80 GB with
// ZeRO-3, the optimizer in host memory and activation checkpointing.
enum { BASELINE, TILED_LOSS, ULYSSES, TILED_MLP, OFFLOAD, ALL, ROWS };

static struct up_config table_1(int row)
{
    struct up_config config = plain("llama3-8b", UP_DEVICE_CUDA, 8, 64 << 10);
    config.fsdp = config.optimizer_host = true;
    config.checkpoint = UP_CHECKPOINT_BLOCK;
    if (row >= TILED_LOSS) config.tile_loss = 1024;
    if (row >= ULYSSES) {
        config.cp = 8;
        config.dp = 1;
    }
    if (row == TILED_MLP || row == ALL) config.tile_mlp = 4096;
    if (row >= OFFLOAD) config.offload_layers = config.model.layers;
    return config;
}

static void test_table_1(void **state)
{
    (void)state;
    static const char *const names[] = {"baseline",    "+ tiled loss", "+ Ulysses",
                                        "+ tiled MLP", "+ offload",    "all"};
    static const char *const published[] = {"32K", "160K", "1.1M", "1.2M", "2.4M", "3.7M"};
    struct up_error error = {0};
    struct site site;
    double longest[ROWS];
    site_open(&site, "h100-80g-x8", UP_DEVICE_CUDA, 0);
    for (int row = 0; row < ROWS; row++) {
        struct up_config config = table_1(row);
        struct up_longest found;
        must(up_advise_longest(site.forecaster, &config, &site.limits, false, &found, &error));
        assert_true(found.found);
        longest[row] = (double)found.best.config.seq;
        printf("%-14s %6.0fK, published %s\n", names[row], longest[row] / 1024, published[row]);
    }
    // In the published order each does better than those before it.
    for (int row = 1; row < ROWS; row++) assert_true(longest[row] > longest[row - 1]);
    double early = longest[TILED_MLP] / longest[ULYSSES], late = longest[ALL] / longest[OFFLOAD];
    printf("tiling the MLP gives %.2f before offload, %.2f after (published: 1.09, 1.54)\n", early,
           late);
    assert_true(early < 1.25);
    assert_true(late > 1.5);
    site_close(&site);
}

/* --- What is said to fit
 * ------------------------------------------------------------------------------------ */

static struct up_config tiny_on(int64_t ranks)
{
    struct up_config config = plain("tiny", UP_DEVICE_CPU, ranks, 1024);
    config.batch = 2;
    return config;
}

// From more than the plain run takes down to less than anything does: it fits, more room never
// makes it slower, and the smallest change is never faster than the fastest config.
static void test_cheapest_and_smallest(void **state)
{
    (void)state;
    struct up_error error = {0};
    for (int64_t ranks = 1; ranks <= 4; ranks *= 4) {
        struct up_config config = tiny_on(ranks);
        double slowest = 0;
        int fitted = 0, refused = 0;
        for (int64_t mib = 80; mib >= 2; mib = mib * 3 / 4) {
            struct site site;
            struct up_candidate cheapest, smallest;
            bool cheap, small;
            site_open(&site, "generic", UP_DEVICE_CPU, mib << 20);
            must(up_advise_cheapest(site.forecaster, &config, &site.limits, &cheapest, &cheap,
                                    &error));
            must(up_advise_smallest(site.forecaster, &config, &site.limits, &smallest, &small,
                                    &error));
            assert_true(!cheap || small); // the smallest change asks the cheapest last
            if (small)
                assert_int_equal(room_of(&site, &smallest.config, UP_FORECAST_PLANNED),
                                 UP_ROOM_FITS);
            if (cheap) {
                assert_int_equal(room_of(&site, &cheapest.config, UP_FORECAST_PLANNED),
                                 UP_ROOM_FITS);
                assert_int_equal(up_config_ranks(&cheapest.config), ranks);
                assert_int_equal(cheapest.config.dp * cheapest.config.batch * cheapest.config.accum,
                                 ranks * config.batch);
                if (cheapest.forecast->step_s < slowest * 0.999)
                    fail_msg("%d ranks, %d MiB: %g us, with more room %g us", (int)ranks, (int)mib,
                             cheapest.forecast->step_s * 1e6, slowest * 1e6);
                slowest = cheapest.forecast->step_s;
                fitted++;
            } else {
                refused++;
            }
            if (room_of(&site, &config, UP_FORECAST_PLANNED) == UP_ROOM_FITS) {
                const struct up_forecast *own;
                must(up_forecaster_ask(site.forecaster, &config, UP_FORECAST_BRIEF, &own, &error));
                assert_true(cheap && cheapest.forecast->step_s <= own->step_s * 1.001);
            }
            site_close(&site);
        }
        assert_true(fitted >= 5 && refused >= 1);
    }
}

// Of long sequences what blocks keep is shared between device and host, and attention's output is
// worth keeping by as many as there is room for: the more, the faster.
static void test_more_room_is_faster(void **state)
{
    (void)state;
    static const int64_t rooms[] = {139, 120, 80, 60, 40};
    struct up_error error = {0};
    double before = 0;
    struct up_config config = plain("llama3-8b", UP_DEVICE_CUDA, 8, 1 << 20);
    for (int i = 0; i < UP_COUNT(rooms); i++) {
        struct site site;
        struct up_candidate best;
        bool found;
        site_open(&site, "h200", UP_DEVICE_CUDA, rooms[i] * gib);
        site.limits.host_bytes /= 3; // scarce, as at three times the length
        must(up_advise_cheapest(site.forecaster, &config, &site.limits, &best, &found, &error));
        assert_true(found);
        printf("%3lld GiB: %.1f s\n", (long long)rooms[i], best.forecast->step_s);
        assert_true(best.forecast->step_s > before * 0.998);
        before = best.forecast->step_s;
        site_close(&site);
    }
}

enum { MAX_GRID = 2000 };

// Many of the configs of one rank: what blocks keep and where, slices, stages, the optimizer.
static int make_grid(const struct up_config *from, struct up_candidate *grid)
{
    struct up_error error;
    int64_t layers = from->model.layers;
    int count = 0;
    for (int kept = -1; kept <= 4; kept++)
        for (int sent = 0; sent <= 4; sent++)
            for (int others = 0; others < 32; others++) {
                struct up_config c = *from;
                c.checkpoint = kept < 0    ? UP_CHECKPOINT_NONE
                               : kept == 0 ? UP_CHECKPOINT_BLOCK
                                           : UP_CHECKPOINT_ATTN;
                c.attn_layers = kept > 0 ? kept * layers / 4 : layers;
                c.offload_layers = sent * layers / 4;
                c.tile_loss = others & 1 ? 1024 : 0;
                c.tile_mlp = others & 2 ? 4096 : 0;
                c.tile_attn = others & 4 ? 4096 : 0;
                c.optimizer_host = others & 8;
                c.upipe = others & 16 ? 16 : 0;
                if (!up_config_check(&c, &error)) grid[count++].config = c;
            }
    assert_true(count <= MAX_GRID);
    return count;
}

// None of those that fit is faster than the one that is said to be the fastest.
static void test_none_is_faster(void **state)
{
    (void)state;
    struct up_error error = {0};
    struct site site;
    struct up_candidate *grid = calloc(MAX_GRID, sizeof *grid);
    struct up_candidate **list = calloc(MAX_GRID, sizeof(struct up_candidate *));
    struct up_config config = plain("llama3.2-1b", UP_DEVICE_CUDA, 1, 64 << 10);
    int fitted = 0, count = make_grid(&config, grid);
    site_open(&site, "h100-80g-x8", UP_DEVICE_CUDA, 0);
    site.limits.host_bytes = 20 * gib;
    for (int i = 0; i < count; i++) list[i] = &grid[i];
    must(up_forecaster_ask_all(site.forecaster, list, count, UP_FORECAST_BRIEF, &error));
    for (int64_t room = 72; room >= 8; room = room * 4 / 5) {
        double fastest = INFINITY;
        struct up_candidate best;
        bool found;
        site.limits.device_bytes = room * gib;
        for (int i = 0; i < count; i++)
            if (up_limits_check(&site.limits, &grid[i].config, grid[i].forecast) == UP_ROOM_FITS)
                fastest = fmin(fastest, grid[i].forecast->step_s);
        must(up_advise_cheapest(site.forecaster, &config, &site.limits, &best, &found, &error));
        assert_true(found || isinf(fastest));
        if (found && best.forecast->step_s > fastest * 1.002)
            fail_msg("%d GiB: %g s, one of %d takes %g s", (int)room, best.forecast->step_s, count,
                     fastest);
        fitted += found;
    }
    assert_true(fitted >= 8);
    site_close(&site);
    free(list);
    free(grid);
}

// One byte less than the plain run takes, and one technique is enough.
static void test_smallest_is_small(void **state)
{
    (void)state;
    struct up_error error = {0};
    struct site site;
    struct up_candidate best;
    const struct up_forecast *own;
    char change[UP_CHANGE_TEXT];
    bool found;
    struct up_config config = tiny_on(1);
    config.batch = 1;
    site_open(&site, "generic", UP_DEVICE_CPU, 0);
    must(up_forecaster_ask(site.forecaster, &config, UP_FORECAST_PLANNED, &own, &error));
    site.limits.device_bytes = own->arena_bytes[UP_SPACE_DEVICE];
    assert_int_equal(room_of(&site, &config, UP_FORECAST_PLANNED), UP_ROOM_FITS);
    site.limits.device_bytes--;
    assert_int_equal(room_of(&site, &config, UP_FORECAST_PLANNED), UP_ROOM_DEVICE);
    must(up_advise_smallest(site.forecaster, &config, &site.limits, &best, &found, &error));
    assert_true(found);
    up_config_change_text(&config, &best.config, change, sizeof change);
    assert_true(strncmp(change, "--", 2) == 0 && !strstr(change, " --"));
    site_close(&site);
}

/* --- The longest
 * ------------------------------------------------------------------------------------ */

// What is found fits, and a fiftieth more does not.
static struct up_longest check_longest(struct site *site, const struct up_config *config,
                                       bool searching)
{
    struct up_error error = {0};
    struct up_longest longest;
    must(up_advise_longest(site->forecaster, config, &site->limits, searching, &longest, &error));
    assert_true(longest.found);
    assert_int_equal(room_of(site, &longest.best.config, UP_FORECAST_PLANNED), UP_ROOM_FITS);
    struct up_config longer = *config;
    longer.seq = longest.best.config.seq + up_max(longest.best.config.seq / 50, 8);
    struct up_candidate best;
    enum up_room room = UP_ROOM_FITS;
    bool found = false;
    if (searching)
        must(up_advise_leanest(site->forecaster, &longer, &site->limits, &best, &found, &room,
                               &error));
    else
        best.config = longer;
    found =
        (found || !searching) && room_of(site, &best.config, UP_FORECAST_PLANNED) == UP_ROOM_FITS;
    assert_false(found);
    return longest;
}

// Blocks that keep attention's output in host memory take less of the device than blocks that make
// it again: the longest of all is no shorter than with them.
static void test_longest_of_all(void **state)
{
    (void)state;
    struct up_error error = {0};
    struct site site;
    struct up_longest as_it_is, any;
    if (getenv("UP_TEST_SHORT")) skip(); // large steps, with little of their own to be looked into
    struct up_config config = plain("llama3.2-1b", UP_DEVICE_CUDA, 1, 1 << 20);
    config.checkpoint = UP_CHECKPOINT_ATTN;
    config.attn_layers = config.offload_layers = config.model.layers;
    config.optimizer_host = true;
    config.tile_mlp = config.tile_attn = 4096;
    config.tile_loss = 1024;
    config.upipe = 8;
    site_open(&site, "h100-80g-x8", UP_DEVICE_CUDA, 0);
    must(up_advise_longest(site.forecaster, &config, &site.limits, false, &as_it_is, &error));
    must(up_advise_longest(site.forecaster, &config, &site.limits, true, &any, &error));
    assert_true(as_it_is.found && any.found);
    assert_true(any.best.config.seq >= as_it_is.best.config.seq);
    site_close(&site);
}

static void test_longest_ends(void **state)
{
    (void)state;
    struct site site;
    struct up_config config = tiny_on(4);
    site_open(&site, "generic", UP_DEVICE_CUDA, 64 << 20);
    site.limits.shared = false;
    struct up_longest as_it_is = check_longest(&site, &config, false);
    struct up_longest any = check_longest(&site, &config, true);
    assert_true(any.best.config.seq > 2 * as_it_is.best.config.seq);
    assert_int_equal(as_it_is.room, UP_ROOM_DEVICE);
    assert_int_equal(any.room, UP_ROOM_DEVICE);
    assert_false(any.heads_in_the_way);
    // Three ranks do not divide eight heads.
    struct up_config odd = tiny_on(3);
    assert_true(check_longest(&site, &odd, true).heads_in_the_way);
    // Host memory for the kept blocks of some thousand tokens, on a device with room for more.
    site.limits.host_bytes = 16 << 20;
    struct up_longest host = check_longest(&site, &config, true);
    assert_true(host.best.config.seq < any.best.config.seq);
    site_close(&site);
}

// Plans take more than what they place, here the more and there the less: whatever the device, some
// length is found, and what is found fits when it is asked about by itself.
static void test_longest_plans(void **state)
{
    (void)state;
    struct up_error error = {0};
    struct up_config config = tiny_on(1);
    config.batch = 1;
    for (int64_t mib = 12; mib <= 24; mib++) {
        struct site site;
        struct up_longest longest;
        struct up_candidate best;
        bool found;
        site_open(&site, "generic", UP_DEVICE_CPU, mib << 20);
        must(up_advise_longest(site.forecaster, &config, &site.limits, true, &longest, &error));
        assert_true(longest.found);
        struct up_config there = config;
        there.seq = longest.best.config.seq;
        assert_int_equal(room_of(&site, &longest.best.config, UP_FORECAST_PLANNED), UP_ROOM_FITS);
        must(up_advise_cheapest(site.forecaster, &there, &site.limits, &best, &found, &error));
        if (!found) fail_msg("%d MiB: %d tokens fit, and do not", (int)mib, (int)there.seq);
        site_close(&site);
    }
}

// All legal numbers of heads: fewer never take more, and what that costs is little.
static void test_knob(void **state)
{
    (void)state;
    struct up_error error = {0};
    struct site site;
    struct up_candidate positions[UP_KNOB_POSITIONS];
    int count;
    struct up_config config = plain("llama3-8b", UP_DEVICE_CUDA, 8, 1 << 20);
    must(up_config_set_cp(&config, 8, &config) ? UP_OK : UP_FAILED);
    config.fsdp = true;
    config.checkpoint = UP_CHECKPOINT_BLOCK;
    config.offload_layers = config.model.layers;
    config.tile_mlp = config.tile_attn = 4096;
    config.tile_loss = 1024;
    site_open(&site, "h100-80g-x8", UP_DEVICE_CUDA, 0);
    must(up_advise_knob(site.forecaster, &config, positions, &count, &error));
    assert_int_equal(count, 3); // 8, 16 and 32 of 32 heads on eight ranks
    for (int i = 1; i < count; i++) {
        assert_true(positions[i].forecast->peak_bytes > positions[i - 1].forecast->peak_bytes);
        assert_true(fabs(positions[i].forecast->step_s / positions[0].forecast->step_s - 1) < 0.05);
    }
    site_close(&site);
}

// Of several micro-batches each position's step time is as exact as the ladder's, so that both can
// be compared.
static void test_knob_of_micro_batches(void **state)
{
    (void)state;
    struct up_error error = {0};
    struct site site;
    struct up_candidate positions[UP_KNOB_POSITIONS];
    int count;
    struct up_config config = plain("llama3.2-1b", UP_DEVICE_CUDA, 4, 4096);
    config.fsdp = true;
    config.accum = 4;
    config.checkpoint = UP_CHECKPOINT_BLOCK;
    site_open(&site, "h200", UP_DEVICE_CUDA, 0);
    must(up_advise_knob(site.forecaster, &config, positions, &count, &error));
    assert_true(count > 2);
    for (int i = 0; i < count; i++) {
        struct up_forecast whole;
        must(up_forecast_make(&positions[i].config, &site.machine, UP_FORECAST_PLACED, NULL, &whole,
                              &error));
        if (positions[i].forecast->step_s != whole.step_s)
            fail_msg("%d heads: %g s, expected %g s",
                     (int)up_config_stage_heads(&positions[i].config),
                     positions[i].forecast->step_s, whole.step_s);
    }
    site_close(&site);
}

// The search comes to an end at full size; what it takes is told (BENCHMARKS.md has the aims).
static void test_quick(void **state)
{
    (void)state;
    if (getenv("UP_TEST_SHORT")) skip();
    struct up_error error = {0};
    struct site site;
    struct up_candidate best;
    struct up_longest longest;
    bool found;
    struct timespec cpu[3];
    struct up_config config = plain("llama3-8b", UP_DEVICE_CUDA, 8, 3 << 20);
    site_open(&site, "h100-80g-x8", UP_DEVICE_CUDA, 0);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu[0]);
    must(up_advise_cheapest(site.forecaster, &config, &site.limits, &best, &found, &error));
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu[1]);
    must(up_advise_longest(site.forecaster, &config, &site.limits, true, &longest, &error));
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu[2]);
    double seconds[2];
    for (int i = 0; i < 2; i++)
        seconds[i] = (double)(cpu[i + 1].tv_sec - cpu[i].tv_sec) +
                     (double)(cpu[i + 1].tv_nsec - cpu[i].tv_nsec) / 1e9;
    printf("fit: %.2f s, longest: %.2f s of processor time\n", seconds[0], seconds[1]);
    assert_true(found && longest.found);
    site_close(&site);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_talk),
        cmocka_unit_test(test_table_1),
        cmocka_unit_test(test_cheapest_and_smallest),
        cmocka_unit_test(test_more_room_is_faster),
        cmocka_unit_test(test_none_is_faster),
        cmocka_unit_test(test_smallest_is_small),
        cmocka_unit_test(test_longest_of_all),
        cmocka_unit_test(test_longest_ends),
        cmocka_unit_test(test_longest_plans),
        cmocka_unit_test(test_knob),
        cmocka_unit_test(test_knob_of_micro_batches),
        cmocka_unit_test(test_quick),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
