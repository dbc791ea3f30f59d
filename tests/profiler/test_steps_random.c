/* Random runs against a model that knows the rules of recorder.h but works the other way round: it
 * keeps every event of the run and decides afterwards, with all of them at hand, what must be in
 * the file. Run with UP_TEST_SEED=n for other runs. */
#include "profiler/recorder.h"
#include "tests/profiler/events.h"
#include "tests/profiler/run_db.h"

enum { RUNS = 60, STEPS_MAX = 40, EVENTS_MAX = 4000, STEP_EVENTS_MAX = 40, PROGRAMS = 3 };

// --- The model ---------------------------------------------------------------------------------

struct modelled_step {
    int first, count; // in model.events; without its begin and end
    bool ended, out_of_memory, whole;
    int same_as; // -1: none
    struct up_event end;
};

struct model {
    struct up_trace *trace;
    struct up_event events[EVENTS_MAX];
    int step_of[EVENTS_MAX]; // in model.steps, -1 outside
    int event_count;
    struct modelled_step steps[STEPS_MAX];
    int step_count, open_step; // -1: none open
};

static void model_send(void *context, const struct up_event *event)
{
    struct model *model = context;
    up_trace_push(model->trace, event);
    if (event->kind == UP_EVENT_STEP_BEGIN) {
        model->open_step = model->step_count++;
        model->steps[model->open_step] = (struct modelled_step){.first = model->event_count};
        return;
    }
    if (event->kind == UP_EVENT_STEP_END) {
        model->steps[model->open_step].ended = true;
        model->steps[model->open_step].end = *event;
        model->open_step = -1;
        return;
    }
    if (event->kind == UP_EVENT_OOM) {
        model->steps[model->open_step].out_of_memory = true;
        return;
    }
    assert_true(model->event_count < EVENTS_MAX);
    model->step_of[model->event_count] = model->open_step;
    model->events[model->event_count++] = *event;
    if (model->open_step >= 0) model->steps[model->open_step].count++;
}

static bool says_the_same(const struct up_event *a, const struct up_event *b)
{
    return a->kind == b->kind && a->phase == b->phase && a->label.layer == b->label.layer &&
           (a->label.name == b->label.name || !strcmp(a->label.name, b->label.name)) &&
           (a->kind == UP_EVENT_KERNEL || a->kind == UP_EVENT_RANGE_BEGIN ||
            a->kind == UP_EVENT_RANGE_END || a->tensor.bytes == b->tensor.bytes);
}

static bool repeats(const struct model *model, const struct modelled_step *a,
                    const struct modelled_step *b)
{
    if (!a->ended || !b->ended || a->out_of_memory || a->count != b->count) return false;
    for (int i = 0; i < a->count; i++)
        if (!says_the_same(&model->events[a->first + i], &model->events[b->first + i]))
            return false;
    return a->end.result.peak_bytes == b->end.result.peak_bytes;
}

static void judge(struct model *model, struct up_span span)
{
    int whole = -1;
    for (int i = 0; i < model->step_count; i++) {
        struct modelled_step *step = &model->steps[i];
        bool same = i >= 3 && repeats(model, step, &model->steps[i - 1]);
        if (span.first >= 0) {
            step->whole = i >= span.first && i <= span.last;
            same = !step->whole && step->ended && whole >= 0 &&
                   step->end.result.event_hash == model->steps[whole].end.result.event_hash;
        } else {
            step->whole = !same;
        }
        step->same_as = same ? whole : -1;
        if (step->whole && step->ended) whole = i;
    }
}

static bool written(const struct model *model, int event)
{
    int step = model->step_of[event];
    return step < 0 || model->steps[step].whole;
}

// --- The comparison ----------------------------------------------------------------------------

// The event that ends what event `begin` begins, -1: none does.
static int find_end(const struct model *model, int begin)
{
    bool tensor = model->events[begin].kind == UP_EVENT_ALLOC;
    for (int i = begin + 1; i < model->event_count; i++) {
        const struct up_event *event = &model->events[i];
        if (tensor && event->kind == UP_EVENT_FREE &&
            event->tensor.id == model->events[begin].tensor.id)
            return i;
        if (!tensor && event->kind == UP_EVENT_RANGE_END &&
            event->range.id == model->events[begin].range.id)
            return i;
    }
    return -1;
}

static void check_lifetimes(const struct model *model, sqlite3 *db, enum up_event_kind kind,
                            const char *sql)
{
    sqlite3_stmt *rows = NULL;
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &rows, NULL), SQLITE_OK);
    for (int i = 0; i < model->event_count; i++) {
        const struct up_event *event = &model->events[i];
        if (event->kind != kind) continue;
        int end = find_end(model, i);
        if (!written(model, i) && end >= 0 && model->step_of[end] == model->step_of[i]) continue;
        assert_int_equal(sqlite3_step(rows), SQLITE_ROW);
        assert_int_equal(sqlite3_column_int64(rows, 0), event->seq);
        assert_int_equal(sqlite3_column_int64(rows, 1), end < 0 ? 0 : model->events[end].seq);
        bool in_range = kind == UP_EVENT_ALLOC && event->tensor.range_id && written(model, i);
        assert_int_equal(sqlite3_column_int64(rows, 2), in_range ? event->tensor.range_id : 0);
    }
    assert_int_equal(sqlite3_step(rows), SQLITE_DONE);
    sqlite3_finalize(rows);
}

static void check_kernels(const struct model *model, sqlite3 *db)
{
    sqlite3_stmt *rows = NULL;
    sqlite3_prepare_v2(db, "SELECT begin_ns FROM kernel ORDER BY id", -1, &rows, NULL);
    for (int i = 0; i < model->event_count; i++) {
        if (model->events[i].kind != UP_EVENT_KERNEL || !written(model, i)) continue;
        assert_int_equal(sqlite3_step(rows), SQLITE_ROW);
        assert_int_equal(sqlite3_column_int64(rows, 0), model->events[i].ns);
    }
    assert_int_equal(sqlite3_step(rows), SQLITE_DONE);
    sqlite3_finalize(rows);
}

static uint64_t expected_peak_seq(const struct model *model, const struct modelled_step *step)
{
    if (!step->ended) return 0;
    if (step->whole) return step->end.result.peak_seq;
    return step->same_as < 0 ? 0 : model->steps[step->same_as].end.result.peak_seq;
}

static void check_steps(const struct model *model, sqlite3 *db)
{
    sqlite3_stmt *rows = NULL;
    sqlite3_prepare_v2(db,
                       "SELECT ifnull(same_as_step, -1), ifnull(peak_seq, 0), end_ns IS NOT NULL"
                       " FROM step ORDER BY step",
                       -1, &rows, NULL);
    for (int i = 0; i < model->step_count; i++) {
        const struct modelled_step *step = &model->steps[i];
        assert_int_equal(sqlite3_step(rows), SQLITE_ROW);
        assert_int_equal(sqlite3_column_int(rows, 0), step->same_as);
        assert_int_equal(sqlite3_column_int64(rows, 1), expected_peak_seq(model, step));
        assert_int_equal(sqlite3_column_int(rows, 2), step->ended);
    }
    assert_int_equal(sqlite3_step(rows), SQLITE_DONE);
    sqlite3_finalize(rows);
}

// --- Random runs -------------------------------------------------------------------------------

struct dice {
    uint64_t seed, rolls;
};

static int roll(struct dice *dice, int sides)
{
    return (int)(up_random_u64(dice->seed, 0, dice->rolls++) % (uint64_t)sides);
}

static const char *const names[] = {"a", "b", "c"};

struct live {
    uint64_t id;
    int name;
    int64_t bytes;
};

struct rank_state {
    struct maker m;
    struct live live[STEP_EVENTS_MAX * STEPS_MAX];
    int live_count;
};

static void random_event(struct rank_state *rank, struct dice *dice)
{
    struct maker *m = &rank->m;
    int name = roll(dice, UP_COUNT(names));
    switch (roll(dice, 5)) {
    case 0:
    case 1: {
        int64_t bytes = 4 * (1 + roll(dice, 2));
        uint64_t id = make_alloc(m, names[name], 1, bytes);
        rank->live[rank->live_count++] = (struct live){id, name, bytes};
        break;
    }
    case 2:
        if (rank->live_count) {
            int chosen = roll(dice, rank->live_count);
            struct live freed = rank->live[chosen];
            rank->live[chosen] = rank->live[--rank->live_count];
            make_free(m, freed.id, names[freed.name], 1, freed.bytes);
        }
        break;
    case 3:
        make_kernel(m, names[name]);
        break;
    case 4:
        if (m->open_range)
            make_range_end(m, m->open_range, "range", UP_NO_LAYER);
        else
            make_range_begin(m, "range", UP_NO_LAYER);
        break;
    }
}

// A program frees what it allocated, mostly, so that it can be repeated with the same peak.
static void random_step(struct rank_state *rank, int step, uint64_t program, struct dice *dice)
{
    struct dice own = {.seed = program};
    make_step_begin(&rank->m, step);
    if (rank->m.open_range) make_range_end(&rank->m, rank->m.open_range, "range", UP_NO_LAYER);
    int kept = rank->live_count, length = roll(&own, STEP_EVENTS_MAX - 10);
    for (int i = 0; i < length; i++) random_event(rank, &own);
    bool leaks = roll(&own, 3) == 0;
    for (int i = rank->live_count - 1; i >= kept && !leaks; i--) {
        struct live freed = rank->live[--rank->live_count];
        make_free(&rank->m, freed.id, names[freed.name], 1, freed.bytes);
    }
    if (roll(dice, 10) == 0) random_event(rank, dice); // one that the program does not have
    if (roll(dice, 25) == 0) return;                   // a step without an end
    make_step_end(&rank->m, 1);
}

static void random_run(struct model *model, uint64_t seed)
{
    struct dice dice = {.seed = seed};
    struct rank_state *rank = calloc(1, sizeof *rank);
    rank->m = (struct maker){.send = model_send, .context = model, .step = -1};
    for (int i = roll(&dice, 5); i > 0; i--) random_event(rank, &dice);
    uint64_t program = 0;
    int steps = roll(&dice, STEPS_MAX);
    for (int step = 0; step < steps; step++) {
        if (roll(&dice, 4) == 0) program = seed * PROGRAMS + (uint64_t)roll(&dice, PROGRAMS);
        random_step(rank, step, program, &dice);
        if (model->open_step < 0 && roll(&dice, 8) == 0) random_event(rank, &dice);
    }
    free(rank);
}

static int dropped_steps,
    whole_steps; // over all runs: a test that meets only one kind tests little

static void check_run(uint64_t seed, struct up_span span)
{
    struct sandbox box;
    struct up_error err = {0};
    struct up_recorder *recorder;
    sandbox_init(&box);
    struct model *model = calloc(1, sizeof *model);
    model->open_step = -1;
    assert_int_equal(up_recorder_create(box.path, span, NULL, 0, &recorder, &err), UP_OK);
    model->trace = up_recorder_add_rank(recorder, 0, "d", 0);
    assert_int_equal(up_recorder_start(recorder, &err), UP_OK);
    random_run(model, seed);
    up_trace_close(model->trace);
    assert_int_equal(up_recorder_finish(recorder, "ok", &err), UP_OK);
    judge(model, span);
    sqlite3 *db = open_db(box.path);
    assert_consistent(db);
    check_steps(model, db);
    check_lifetimes(model, db, UP_EVENT_ALLOC,
                    "SELECT alloc_seq, ifnull(free_seq, 0), ifnull(range_id, 0) FROM tensor ORDER "
                    "BY alloc_seq");
    check_lifetimes(model, db, UP_EVENT_RANGE_BEGIN,
                    "SELECT begin_seq, ifnull(end_seq, 0), 0 FROM range ORDER BY begin_seq");
    check_kernels(model, db);
    for (int i = 0; i < model->step_count; i++)
        ++*(model->steps[i].whole ? &whole_steps : &dropped_steps);
    sqlite3_close(db);
    sandbox_release(&box);
    free(model);
}

static uint64_t first_seed(void)
{
    const char *text = getenv("UP_TEST_SEED");
    return text ? strtoull(text, NULL, 10) : 1;
}

static void random_runs_keep_what_the_model_keeps(void **state)
{
    (void)state;
    dropped_steps = whole_steps = 0;
    for (uint64_t i = 0; i < RUNS; i++) check_run(first_seed() + i, (struct up_span){-1, -1});
    assert_true(dropped_steps > RUNS && whole_steps > RUNS);
}

static void random_runs_with_a_span(void **state)
{
    (void)state;
    dropped_steps = whole_steps = 0;
    for (uint64_t i = 0; i < RUNS; i++) {
        struct dice dice = {.seed = first_seed() + i, .rolls = 1000000};
        int first = roll(&dice, 20);
        check_run(first_seed() + i, (struct up_span){first, first + roll(&dice, 10)});
    }
    assert_true(dropped_steps > RUNS && whole_steps > RUNS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_runs_keep_what_the_model_keeps),
        cmocka_unit_test(random_runs_with_a_span),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
