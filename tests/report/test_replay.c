/* The peak, the live set and the sums that the report finds with SQL and sorting, against a replay
 * that looks at every lifetime at every seq: on random traces with shared storage, names that
 * outlive each other in any order, steps that ended and one that did not, two ranks, both spaces,
 * NULLs and negative sizes. */
#include "report/analysis/breakdown.h"
#include "report/analysis/ranges.h"
#include "report/analysis/replay.h"
#include "tests/report/fixture.h"

enum { TRIALS = 300, LIVES = 120, STEPS = 4, RANKS = 2, CATEGORIES = 5 };

struct life {
    int64_t id, storage, bytes, alloc_seq, free_seq, step, free_step;
    int category, space;
};

/* One rank's trace as the test knows it. */
struct known {
    struct fixture f;
    struct life lives[LIVES];
    int count;
    int64_t last_seq;
};

static uint64_t draw(uint64_t *state, uint64_t below)
{
    return up_hash64((*state)++) % below;
}

static const char *category_name(int i)
{
    return i < 3 ? up_category_names[i] : i == 3 ? "weird" : "";
}

/* --- Making a trace ----------------------------------------------------------------------------
 */

static void random_alloc(struct known *k, uint64_t *random)
{
    struct fixture *f = &k->f;
    struct life *life = &k->lives[k->count];
    *life = (struct life){.bytes = (int64_t)draw(random, 1000),
                          .step = f->step,
                          .free_seq = INT64_MAX,
                          .free_step = -1,
                          .category = (int)draw(random, CATEGORIES),
                          .space = draw(random, 5) == 0};
    if (draw(random, 30) == 0) life->bytes = -life->bytes;
    const struct life *other =
        k->count && draw(random, 3) == 0 ? &k->lives[draw(random, (uint64_t)k->count)] : NULL;
    if (other) life->space = other->space;
    life->id = fixture_alloc(f, (struct fixture_tensor){.name = "layers.3.x",
                                                        .shape = "[1]",
                                                        .category = category_name(life->category),
                                                        .space = up_space_names[life->space],
                                                        .layer = (int64_t)draw(random, 4) - 1,
                                                        .bytes = life->bytes,
                                                        .storage = other ? other->storage : 0});
    life->storage = other ? other->storage : life->id;
    life->alloc_seq = f->seq;
    k->count++;
}

static void random_free(struct known *k, uint64_t *random)
{
    struct life *life = &k->lives[draw(random, (uint64_t)k->count)];
    if (life->free_seq != INT64_MAX) return;
    fixture_free(&k->f, life->id);
    life->free_seq = k->f.seq;
    life->free_step = k->f.step;
}

static void random_events(struct known *k, uint64_t *random, int events)
{
    for (int i = 0; i < events; i++) {
        if (k->count < LIVES && (k->count == 0 || draw(random, 5) < 3))
            random_alloc(k, random);
        else
            random_free(k, random);
    }
    k->last_seq = k->f.seq;
}

/* --- The slow replay ---------------------------------------------------------------------------
 */

static bool alive(const struct life *life, int64_t seq)
{
    return life->alloc_seq <= seq && seq < life->free_seq;
}

// The newest name of life i's storage alive at seq, if i is that; its largest size in *bytes.
static bool counts(const struct known *k, int i, int space, int64_t seq, int64_t *bytes)
{
    if (k->lives[i].space != space || !alive(&k->lives[i], seq)) return false;
    *bytes = 0;
    for (int j = 0; j < k->count; j++) {
        const struct life *other = &k->lives[j];
        if (other->storage != k->lives[i].storage || !alive(other, seq)) continue;
        if (other->alloc_seq > k->lives[i].alloc_seq) return false;
        if (other->bytes > *bytes) *bytes = other->bytes;
    }
    return true;
}

static int64_t live_bytes(const struct known *k, int space, int64_t seq, int64_t *by_category)
{
    int64_t sum = 0, bytes;
    for (int i = 0; i < k->count; i++) {
        if (!counts(k, i, space, seq, &bytes)) continue;
        sum += bytes;
        if (by_category) by_category[k->lives[i].category] += bytes;
    }
    return sum;
}

// The highest moment of a step's span; false where the step allocates nothing.
static bool slow_peak(const struct known *k, int64_t step, int64_t *seq, int64_t *bytes)
{
    int64_t first = INT64_MAX, last = -1;
    bool allocates = false;
    for (int i = 0; i < k->count; i++) {
        const struct life *l = &k->lives[i];
        if (l->step == step) allocates = true;
        if (l->space != UP_SPACE_DEVICE) continue;
        int64_t at[2] = {l->step == step ? l->alloc_seq : -1,
                         l->free_step == step && l->free_seq != INT64_MAX ? l->free_seq : -1};
        for (int j = 0; j < 2; j++) {
            if (at[j] < 0) continue;
            first = up_min(first, at[j]);
            last = up_max(last, at[j]);
        }
    }
    *bytes = -1;
    for (int64_t s = first; s <= last; s++) {
        int64_t live = live_bytes(k, UP_SPACE_DEVICE, s, NULL);
        if (live <= *bytes) continue;
        *bytes = live;
        *seq = s;
    }
    return allocates && *bytes >= 0;
}

/* --- Comparisons -------------------------------------------------------------------------------
 */

static void compare_replay(const struct up_run *run, const struct known *k, int space)
{
    struct up_error error;
    struct up_replay replay;
    assert_int_equal(up_replay_read(run, k->f.rank, (enum up_space)space, &replay, &error), UP_OK);
    int64_t before = 0;
    for (int64_t i = 0; i < replay.count; i++) {
        int64_t seq = replay.points[i].seq;
        // Between two points nothing may change.
        for (int64_t s = before; s < seq; s++)
            assert_int_equal(live_bytes(k, space, s, NULL),
                             i ? replay.points[i - 1].live_bytes : 0);
        assert_int_equal(replay.points[i].live_bytes, live_bytes(k, space, seq, NULL));
        before = seq;
    }
    if (replay.count)
        assert_int_equal(live_bytes(k, space, k->last_seq, NULL),
                         replay.points[replay.count - 1].live_bytes);
    up_replay_release(&replay);
}

static void compare_tensors(const struct up_live *live, const struct known *k, int space,
                            int64_t seq)
{
    int64_t found = 0, bytes;
    for (int i = 0; i < k->count; i++) {
        if (!counts(k, i, space, seq, &bytes)) continue;
        found++;
        int64_t at = 0;
        while (at < live->count && live->tensors[at].id != (k->f.rank << 40 | k->lives[i].id)) at++;
        assert_true(at < live->count);
        assert_int_equal(live->tensors[at].bytes, bytes);
        assert_string_equal(live->tensors[at].category, category_name(k->lives[i].category));
    }
    assert_int_equal(found, live->count);
    for (int64_t i = 1; i < live->count; i++)
        assert_true(live->tensors[i - 1].bytes >= live->tensors[i].bytes || live->impossible);
}

static void compare_live(const struct up_run *run, const struct known *k, int space, int64_t seq)
{
    struct up_error error;
    struct up_live live;
    struct up_live_groups groups;
    int64_t expected[CATEGORIES] = {0}, seen = 0;
    assert_int_equal(up_live_read(run, k->f.rank, (enum up_space)space, seq, &live, &error), UP_OK);
    assert_int_equal(live.bytes, live_bytes(k, space, seq, expected));
    compare_tensors(&live, k, space, seq);
    assert_int_equal(up_live_group(&live, UP_LIVE_BY_CATEGORY, &groups, &error), UP_OK);
    for (int64_t i = 0; i < groups.count; i++) {
        int category = 0;
        while (strcmp(category_name(category), groups.items[i].name) != 0) category++;
        assert_true(category < CATEGORIES);
        assert_int_equal(groups.items[i].bytes, expected[category]);
        seen += groups.items[i].bytes;
        if (i) assert_true(groups.items[i - 1].bytes >= groups.items[i].bytes);
    }
    assert_int_equal(seen, live.bytes);
    up_live_groups_release(&groups);
    up_live_release(&live);
}

static void compare_peak(const struct up_run *run, const struct known *ranks, int64_t rank,
                         int64_t step)
{
    struct up_error error;
    struct up_peak peak, expected = {.rank = UP_NONE, .peak_bytes = -1};
    for (int r = 0; r < RANKS; r++)
        for (int s = 0; s < STEPS; s++) {
            int64_t seq, bytes;
            if ((rank >= 0 && r != rank) || (step >= 0 && s != step)) continue;
            if (!slow_peak(&ranks[r], s, &seq, &bytes) || bytes <= expected.peak_bytes) continue;
            expected = (struct up_peak){.rank = r, .step = s, .seq = seq, .peak_bytes = bytes};
        }
    enum up_status rc = up_peak_find(run, rank, step, &peak, &error);
    if (expected.rank == UP_NONE && step >= 0) {
        assert_int_equal(rc, UP_USAGE);
        return;
    }
    assert_int_equal(rc, UP_OK);
    if (expected.rank == UP_NONE) return;
    assert_int_equal(peak.peak_bytes, expected.peak_bytes);
    assert_int_equal(peak.rank, expected.rank);
    assert_int_equal(peak.step, expected.step);
    assert_int_equal(peak.seq, expected.seq);
}

/* --- The trials --------------------------------------------------------------------------------
 */

// Steps 0..STEPS-1 of one rank; the last does not end, and a third of the others have lost their
// peak.
static void make_rank(struct known *k, uint64_t *random)
{
    random_events(k, random, (int)draw(random, 20));
    for (int step = 0; step < STEPS; step++) {
        int64_t seq, bytes;
        fixture_step_begin(&k->f, step);
        random_events(k, random, (int)draw(random, 30));
        if (step == STEPS - 1) break;
        bool has = slow_peak(k, step, &seq, &bytes) && draw(random, 3) > 0;
        fixture_step_end(&k->f, 1, 1, has ? bytes : 0, has ? seq : -1, -1);
        random_events(k, random, (int)draw(random, 4));
    }
}

static void compare_all(const struct up_run *run, struct known *ranks, uint64_t *random)
{
    for (int r = 0; r < RANKS; r++) {
        for (int space = 0; space < UP_SPACE_COUNT; space++) {
            compare_replay(run, &ranks[r], space);
            for (int i = 0; i < 4; i++)
                compare_live(run, &ranks[r], space,
                             (int64_t)draw(random, (uint64_t)ranks[r].last_seq + 2));
        }
        compare_peak(run, ranks, r, UP_NONE);
    }
    compare_peak(run, ranks, UP_NONE, UP_NONE);
    for (int step = 0; step < STEPS; step++) compare_peak(run, ranks, UP_NONE, step);
}

static void test_random_traces(void **state)
{
    (void)state;
    static struct known ranks[RANKS];
    uint64_t random = 1;
    for (int trial = 0; trial < TRIALS; trial++) {
        memset(ranks, 0, sizeof ranks);
        fixture_open(&ranks[0].f, ":memory:");
        for (int r = 0; r < RANKS; r++) {
            ranks[r].f =
                (struct fixture){.db = ranks[0].f.db, .rank = r, .step = -1, .phase = "init"};
            make_rank(&ranks[r], &random);
        }
        if (trial % 2) fixture_indexes(&ranks[0].f);
        struct up_run run = {.path = "random", .db = ranks[0].f.db};
        compare_all(&run, ranks, &random);
        fixture_close(&ranks[0].f);
    }
}

// Ranges of random lengths, nested or not: the innermost is the last begun of those around a seq,
// and the path has those alone.
static void test_random_ranges(void **state)
{
    (void)state;
    uint64_t random = 7;
    for (int trial = 0; trial < TRIALS; trial++) {
        struct fixture f;
        struct up_ranges ranges;
        struct up_error error;
        int64_t begin[20], end[20];
        fixture_open(&f, ":memory:");
        for (int i = 0; i < 20; i++) {
            begin[i] = 3 * i + (int64_t)draw(&random, 3);
            end[i] = draw(&random, 8) ? begin[i] + (int64_t)draw(&random, 30) : INT64_MAX;
            fixture_sql(
                &f,
                "INSERT INTO range VALUES (NULL, 0, NULL, '%d', 0, NULL, 'x', 0, NULL, NULL,"
                " NULL, 'x', %lld, nullif(%lld, 9223372036854775807))",
                i, (long long)begin[i], (long long)end[i]);
        }
        struct up_run run = {.path = "random", .db = f.db};
        int64_t low = (int64_t)draw(&random, 40), high = low + (int64_t)draw(&random, 40);
        assert_int_equal(up_ranges_read(&run, 0, low, high, &ranges, &error), UP_OK);
        for (int64_t seq = low; seq <= high; seq += 1 + (int64_t)draw(&random, 3)) {
            const struct up_range *range = up_ranges_at(&ranges, seq);
            char path[256], expected[256] = "";
            int innermost = -1;
            for (int i = 0; i < 20; i++) {
                if (seq < begin[i] || seq >= end[i]) continue;
                sprintf(expected + strlen(expected), "%s%d", innermost < 0 ? "" : " > ", i);
                innermost = i;
            }
            assert_int_equal(range ? atoi(range->name) : -1, innermost);
            up_ranges_path(&ranges, path, sizeof path);
            assert_string_equal(path, expected);
        }
        up_ranges_release(&ranges);
        fixture_close(&f);
    }
}

// One storage with 200,000 names must not take a square of that.
static void test_many_names(void **state)
{
    (void)state;
    struct fixture f;
    struct up_replay replay;
    struct up_error error;
    fixture_open(&f, ":memory:");
    fixture_sql(&f,
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000)"
                "INSERT INTO tensor SELECT i, 0, 'device', 1, 'x', 'mlp', NULL, 'forward', 'u8',"
                " '[1]', i, i, 0, 'compute', 0, 0, NULL, i, 400001 - i, 0, 0 FROM n");
    struct up_run run = {.path = "many", .db = f.db};
    int64_t begun = up_clock_ns();
    assert_int_equal(up_replay_read(&run, 0, UP_SPACE_DEVICE, &replay, &error), UP_OK);
    assert_true(up_clock_ns() - begun < INT64_C(20) * 1000 * 1000 * 1000);
    assert_int_equal(replay.count, 400000);
    assert_int_equal(replay.points[199999].live_bytes, 200000);
    assert_int_equal(replay.points[399999].live_bytes, 0);
    up_replay_release(&replay);
    fixture_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_traces),
        cmocka_unit_test(test_random_ranges),
        cmocka_unit_test(test_many_names),
    };
    return cmocka_run_group_tests_name("replay", tests, NULL, NULL);
}
