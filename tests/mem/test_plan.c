/* The planner against brute force: no overlap, bounds, every degenerate input, memory that runs
 * out; and its quality on the lifetimes of real steps. */
#include "tests/mem/lives.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

/* The planner itself, with an allocator whose n-th call can be made to fail. */
static int64_t calls_left = -1; // -1: never fails

static bool call_fails(void)
{
    if (calls_left < 0) return false;
    return calls_left-- == 0;
}

static void *test_realloc_or_fail(void *old, size_t size)
{
    return call_fails() ? NULL : realloc(old, size);
}

static void *test_calloc_or_fail(size_t count, size_t size)
{
    return call_fails() ? NULL : calloc(count, size);
}

#define realloc test_realloc_or_fail
#define calloc  test_calloc_or_fail
// NOLINTNEXTLINE(bugprone-suspicious-include): its calls are to reach the two above
#include "mem/plan.c"
#undef realloc
#undef calloc

enum { ALIGN = 256 };

/* --- What a plan has to be -----------------------------------------------------------------------
 */

static int64_t rounded(const struct up_life *life, int64_t align)
{
    return (life->bytes + (align - 1)) / align * align;
}

static bool alive_together(const struct up_life *a, const struct up_life *b)
{
    return a->begin < a->end && b->begin < b->end && a->begin < b->end && b->begin < a->end;
}

static bool ascending_begins(const struct up_life *lives, int64_t count)
{
    for (int64_t i = 1; i < count; i++)
        if (lives[i].begin < lives[i - 1].begin) return false;
    return true;
}

static void check_no_overlap(const struct up_life *lives, int64_t count, int64_t align,
                             const int64_t *offsets)
{
    bool ascending = ascending_begins(lives, count);
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = i + 1; j < count; j++) {
            if (ascending && lives[j].begin >= lives[i].end) break;
            if (!alive_together(&lives[i], &lives[j])) continue;
            if (offsets[i] < offsets[j] + rounded(&lives[j], align) &&
                offsets[j] < offsets[i] + rounded(&lives[i], align))
                fail_msg("lives %lld and %lld overlap", (long long)i, (long long)j);
        }
}

// Plans into `offsets` and checks all that holds for any input; returns the height.
static int64_t check_plan(const struct up_life *lives, int64_t count, int64_t align,
                          int64_t *offsets)
{
    struct up_error error = {0};
    int64_t height = -1, top = 0, peak = up_plan_live_peak(lives, count, align);
    for (int64_t i = 0; i < count; i++) offsets[i] = -1;
    if (up_plan(lives, count, align, offsets, &height, &error)) fail_msg("%s", error.text);
    for (int64_t i = 0; i < count; i++) {
        assert_true(offsets[i] >= 0 && offsets[i] % align == 0);
        top = up_max(top,
                     offsets[i] + (lives[i].begin < lives[i].end ? rounded(&lives[i], align) : 0));
    }
    assert_int_equal(height, top);
    assert_true(height >= peak);
    check_no_overlap(lives, count, align, offsets);
    return height;
}

// Of few lives.
static int64_t height_of(const struct up_life *lives, int64_t count)
{
    int64_t offsets[64];
    assert_true(count <= UP_COUNT(offsets));
    return check_plan(lives, count, ALIGN, offsets);
}

/* --- Random lives --------------------------------------------------------------------------------
 */

enum { MOST_LIVES = 120 };

static int64_t brute_live_peak(const struct up_life *lives, int64_t count, int64_t align)
{
    int64_t peak = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t sum = 0;
        for (int64_t j = 0; j < count; j++)
            if (lives[j].begin <= lives[i].begin && lives[i].begin < lives[j].end)
                sum += rounded(&lives[j], align);
        peak = up_max(peak, sum);
    }
    return peak;
}

// All kinds, some of them empty or endless; the number of them.
static int64_t make_lives(uint64_t seed, struct up_life *lives)
{
    struct lives_maker draws = {.seed = seed};
    int64_t count = lives_draw(&draws, MOST_LIVES + 1);
    int64_t events = 1 + lives_draw(&draws, 3 * MOST_LIVES);
    for (int64_t i = 0; i < count; i++) {
        int64_t most = INT64_C(1) << lives_draw(&draws, 34);
        int64_t longest = 1 + lives_draw(&draws, events);
        int64_t begin = lives_draw(&draws, events) - events / 2;
        lives[i].bytes = lives_draw(&draws, 8) ? lives_draw(&draws, most) : 0;
        lives[i].begin = begin;
        lives[i].end = lives_draw(&draws, 10) ? begin + lives_draw(&draws, longest) : INT64_MAX;
        if (!lives_draw(&draws, 20)) lives[i].end = begin - lives_draw(&draws, 3);
    }
    return count;
}

static void test_random_lives(void **state)
{
    (void)state;
    static const int64_t aligns[] = {1, 256, 4096};
    enum { SEEDS = 600 };
    double ratios = 0;
    int planned = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        struct up_life lives[MOST_LIVES];
        int64_t offsets[MOST_LIVES], again[MOST_LIVES], align = aligns[seed % 3];
        int64_t count = make_lives(seed, lives), peak = brute_live_peak(lives, count, align);
        assert_int_equal(up_plan_live_peak(lives, count, align), peak);
        int64_t height = check_plan(lives, count, align, offsets);
        assert_int_equal(check_plan(lives, count, align, again), height);
        assert_memory_equal(offsets, again, (size_t)count * sizeof *offsets);
        if (!peak) continue;
        ratios += (double)height / (double)peak;
        planned++;
    }
    assert_true(planned > SEEDS / 2);
    // Even of such lives a plan wastes little on average.
    assert_true(ratios / planned < 1.01);
}

// Distinct lives have the same offsets in whatever order they are given.
static void test_permutation(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 100; seed++) {
        struct up_life lives[MOST_LIVES], shuffled[MOST_LIVES];
        int64_t offsets[MOST_LIVES], others[MOST_LIVES], from[MOST_LIVES];
        int64_t count = make_lives(seed, lives);
        for (int64_t i = 0; i < count; i++) {
            lives[i].begin = 2 * lives[i].begin * MOST_LIVES + i;
            if (lives[i].end < INT64_MAX) lives[i].end *= 2 * MOST_LIVES;
            from[i] = i;
        }
        for (int64_t i = count - 1; i > 0; i--) {
            int64_t j = (int64_t)(up_random_u64(seed, 2, (uint64_t)i) % (uint64_t)(i + 1)),
                    k = from[i];
            from[i] = from[j];
            from[j] = k;
        }
        for (int64_t i = 0; i < count; i++) shuffled[i] = lives[from[i]];
        int64_t height = check_plan(lives, count, ALIGN, offsets);
        assert_int_equal(check_plan(shuffled, count, ALIGN, others), height);
        for (int64_t i = 0; i < count; i++) assert_int_equal(others[i], offsets[from[i]]);
    }
}

/* --- Degenerate lives ----------------------------------------------------------------------------
 */

static void test_nothing(void **state)
{
    (void)state;
    const struct up_life empty[] = {{0, 0, 10}, {0, 5, INT64_MAX}, {4096, 7, 7}, {4096, 9, 3}};
    int64_t offsets[4] = {-1, -1, -1, -1};
    assert_int_equal(height_of(NULL, 0), 0);
    assert_int_equal(up_plan_live_peak(NULL, 0, ALIGN), 0);
    assert_int_equal(check_plan(empty, 4, ALIGN, offsets), 0);
    assert_int_equal(up_plan_live_peak(empty, 4, ALIGN), 0);
    for (int i = 0; i < 4; i++) assert_int_equal(offsets[i], 0);
}

// Tensors without bytes lie anywhere, and in nobody's way.
static void test_empty_among_others(void **state)
{
    (void)state;
    const struct up_life lives[] = {{0, 0, 10}, {1000, 0, 10}, {0, 3, 4}, {24, 2, 5}};
    assert_int_equal(height_of(lives, 4), 1024 + 256);
}

static void test_disjoint(void **state)
{
    (void)state;
    struct up_life lives[50];
    int64_t offsets[50];
    for (int i = 0; i < 50; i++) lives[i] = (struct up_life){1 + 1000 * ((i * 7) % 50), i, i + 1};
    assert_int_equal(check_plan(lives, 50, ALIGN, offsets), up_ceil_div(49001, ALIGN) * ALIGN);
    for (int i = 0; i < 50; i++) assert_int_equal(offsets[i], 0);
}

static void test_all_together(void **state)
{
    (void)state;
    struct up_life lives[50];
    int64_t sum = 0;
    for (int i = 0; i < 50; i++) {
        lives[i] = (struct up_life){1 + 999 * i, i, 100 - (i * 7) % 50};
        sum += rounded(&lives[i], ALIGN);
    }
    assert_int_equal(height_of(lives, 50), sum);
}

// Equal lives are placed in the order of the array.
static void test_equal_lives(void **state)
{
    (void)state;
    struct up_life lives[50];
    int64_t offsets[50];
    for (int i = 0; i < 50; i++) lives[i] = (struct up_life){1000, 3, INT64_MAX};
    assert_int_equal(check_plan(lives, 50, ALIGN, offsets), 50 * 1024);
    for (int i = 0; i < 50; i++) assert_int_equal(offsets[i], 1024 * i);
}

// Freed by the very event that allocates the next: the same bytes.
static void test_touching_lives_share(void **state)
{
    (void)state;
    const struct up_life lives[] = {{4096, INT64_MIN, -5}, {4096, -5, 8}, {4096, 8, INT64_MAX}};
    assert_int_equal(height_of(lives, 3), 4096);
}

static void test_huge_sizes(void **state)
{
    (void)state;
    const int64_t huge = INT64_C(1) << 60;
    struct up_life lives[50];
    for (int i = 0; i < 7; i++) lives[i] = (struct up_life){huge - i, i, 100 + i};
    assert_int_equal(height_of(lives, 7), 7 * huge);
    for (int i = 0; i < 50; i++) lives[i] = (struct up_life){huge, i, i + 3};
    assert_int_equal(height_of(lives, 50), 3 * huge);
    lives[0] = (struct up_life){INT64_MAX - 255, 0, 1};
    lives[1] = (struct up_life){huge, 1, 2};
    assert_int_equal(height_of(lives, 2), INT64_MAX - 255);
}

static void test_too_huge(void **state)
{
    (void)state;
    struct up_life lives[8];
    struct up_error error = {0};
    int64_t offsets[8] = {-7}, height = -7;
    for (int i = 0; i < 8; i++) lives[i] = (struct up_life){INT64_C(1) << 60, 0, 1};
    assert_int_equal(up_plan_live_peak(lives, 8, ALIGN), INT64_MAX);
    assert_int_equal(up_plan(lives, 8, ALIGN, offsets, &height, &error), UP_FAILED);
    assert_non_null(strstr(error.text, "2^63"));
    lives[0].bytes = INT64_MAX;
    assert_int_equal(up_plan_live_peak(lives, 1, ALIGN), INT64_MAX);
    assert_int_equal(up_plan(lives, 1, ALIGN, offsets, &height, &error), UP_FAILED);
    assert_true(offsets[0] == -7 && height == -7);
}

static void test_memory_runs_out(void **state)
{
    (void)state;
    struct up_life lives[MOST_LIVES];
    int64_t offsets[MOST_LIVES], height, failures = 0;
    int64_t count = make_lives(7, lives);
    assert_true(count > 20);
    for (enum up_status status = UP_FAILED; status != UP_OK; failures += status != UP_OK) {
        struct up_error error = {0};
        offsets[0] = height = -7;
        calls_left = failures;
        status = up_plan(lives, count, ALIGN, offsets, &height, &error);
        calls_left = -1;
        if (status == UP_OK) break;
        assert_int_equal(status, UP_FAILED);
        assert_string_equal(error.text, "out of host memory");
        assert_true(offsets[0] == -7 && height == -7);
    }
    assert_true(failures > count);
    calls_left = 0;
    assert_int_equal(up_plan_live_peak(lives, count, ALIGN), -1);
    calls_left = -1;
}

/* --- Quality and speed ---------------------------------------------------------------------------
 */

// The lives are whole: their peak is the one that the allocator counted, and none outlives the
// step.
static void check_lives(const struct lives *lives)
{
    assert_int_equal(up_plan_live_peak(lives->life, lives->count, 1), lives->counted_peak);
    for (int64_t i = 0; i < lives->count; i++) assert_true(lives->life[i].end < INT64_MAX);
}

// Within 3% of the live peak.
static void check_quality(const struct lives *lives, const char *what)
{
    int64_t *offsets = calloc((size_t)lives->count + 1, sizeof *offsets);
    int64_t height = check_plan(lives->life, lives->count, ALIGN, offsets);
    int64_t peak = up_plan_live_peak(lives->life, lives->count, ALIGN);
    if ((double)height > 1.03 * (double)peak)
        fail_msg("%s: a plan of %lld bytes for a live peak of %lld", what, (long long)height,
                 (long long)peak);
    free(offsets);
}

static void check_step(const struct lives_rung *rung, int64_t seq)
{
    struct up_error error = {0};
    struct lives lives[UP_SPACE_COUNT];
    struct up_config config = lives_config(rung, seq);
    char what[120];
    if (lives_of(&config, lives, &error)) fail_msg("%s: %s", rung->name, error.text);
    assert_true(lives[UP_SPACE_DEVICE].count > 10 * config.model.layers);
    assert_true(!rung->offload_layers || lives[UP_SPACE_HOST].count > 0);
    for (int space = 0; space < UP_SPACE_COUNT; space++) {
        snprintf(what, sizeof what, "%s, %lld tokens, %s memory", rung->name, (long long)seq,
                 up_space_names[space]);
        check_lives(&lives[space]);
        check_quality(&lives[space], what);
        lives_release(&lives[space]);
    }
}

static void test_steps(void **state)
{
    (void)state;
    static const int64_t seqs[] = {131072, 524288, 1048576, 3145728, 5242880};
    int every = getenv("UP_TEST_SHORT") ? 4 : 1, n = 0;
    for (int rung = 0; rung < UP_COUNT(lives_rungs); rung++)
        for (int i = 0; i < UP_COUNT(seqs); i++)
            if (n++ % every == 0) check_step(&lives_rungs[rung], seqs[i]);
}

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void test_100k_tensors(void **state)
{
    (void)state;
    struct lives lives = lives_nested(100000, 1);
    int64_t *offsets = calloc((size_t)lives.count, sizeof *offsets), height;
    double before = cpu_seconds();
    assert_int_equal(up_plan(lives.life, lives.count, ALIGN, offsets, &height, NULL), UP_OK);
    double seconds = cpu_seconds() - before;
    assert_true(lives.count > 90000);
    check_quality(&lives, "100,000 tensors");
    printf("100,000 tensors: %.2f s of processor time\n", seconds);
    free(offsets);
    lives_release(&lives);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_lives),    cmocka_unit_test(test_permutation),
        cmocka_unit_test(test_nothing),         cmocka_unit_test(test_empty_among_others),
        cmocka_unit_test(test_disjoint),        cmocka_unit_test(test_all_together),
        cmocka_unit_test(test_equal_lives),     cmocka_unit_test(test_touching_lives_share),
        cmocka_unit_test(test_huge_sizes),      cmocka_unit_test(test_too_huge),
        cmocka_unit_test(test_memory_runs_out), cmocka_unit_test(test_steps),
        cmocka_unit_test(test_100k_tensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
