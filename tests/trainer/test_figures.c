/* Machine files written: what is read back, what is replaced, what is left alone, and that a
 * failure leaves what was there before. */
#include "tests/cli/program.h"
#include "trainer/forecast/machine.h"

#include <math.h>
#include <sys/resource.h>

static char folder[32];

static int enter(void **state)
{
    (void)state;
    folder_make(folder);
    return chdir(folder);
}

static int leave(void **state)
{
    (void)state;
    assert_int_equal(chdir("/"), 0);
    folder_remove(folder);
    return 0;
}

static struct up_figures some_figures(void)
{
    struct up_figures figures = {.name = "some"};
    for (int i = 0; i < UP_FIGURE_COUNT; i++) figures.of[i] = 1000 * (i + 1);
    return figures;
}

// A run on a GPU takes what is known of it, and otherwise stays with what it has.
static void test_of_a_device(void **state)
{
    (void)state;
    struct up_error err;
    struct up_machine machine = {.name = "mine"};
    assert_int_equal(up_machine_of_device("NVIDIA H200", &machine, &err), UP_OK);
    assert_string_equal(machine.name, "h200");
    assert_int_equal(up_machine_of_device("NVIDIA H100 80GB HBM3", &machine, &err), UP_OK);
    assert_string_equal(machine.name, "h100-80g-x8");
    assert_int_equal(up_machine_of_device("an abacus", &machine, &err), UP_OK);
    assert_string_equal(machine.name, "h100-80g-x8");
}

static enum up_status write_to(const char *path, const struct up_figures *figures,
                               struct up_error *err)
{
    struct up_figure_sources sources = {.text[UP_FIGURE_LINK] = "a \"measurement\", \xc3\xa9"};
    *err = (struct up_error){0};
    return up_figures_write("--output", path, figures, "for a test", &sources, err);
}

static void expect_same(const struct up_figures *a, const struct up_figures *b)
{
    assert_string_equal(a->name, b->name);
    for (int i = 0; i < UP_FIGURE_COUNT; i++)
        if (fabs(a->of[i] - b->of[i]) > 1e-5 * a->of[i])
            fail_msg("%s: %g and %g", up_figure_name(i), a->of[i], b->of[i]);
}

static void test_read_back(void **state)
{
    (void)state;
    struct up_error err;
    struct up_figures figures = some_figures(), found;
    assert_int_equal(write_to("m.json", &figures, &err), UP_OK);
    assert_int_equal(up_figures_find("m.json", &found, &err), UP_OK);
    expect_same(&figures, &found);
    figures.of[UP_FIGURE_DEVICE_BYTES] = 0; // not known: left out
    figures.of[UP_FIGURE_LAUNCH] = 4.25e-6;
    assert_int_equal(write_to("m.json", &figures, &err), UP_OK); // replaces its own kind
    assert_int_equal(up_figures_find("m.json", &found, &err), UP_OK);
    expect_same(&figures, &found);
    assert_int_equal(folder_count("."), 1);
}

// A run's own record of its machine leads back to it, and nothing else does.
static bool is_stored(const char *json, struct up_figures *figures)
{
    struct up_error error = {0};
    bool found = false;
    assert_int_equal(up_figures_stored(json, figures, &found, &error), UP_OK);
    return found;
}

static void test_stored(void **state)
{
    (void)state;
    struct up_error err;
    struct up_machine machine;
    struct up_figures figures, found;
    assert_int_equal(up_machine_find("h200", &machine, &err), UP_OK);
    up_machine_figures(&machine, &figures);
    char *json = up_machine_json(&machine);
    assert_true(is_stored(json, &found));
    expect_same(&figures, &found);
    free(json);
    struct up_machine again;
    up_machine_of_figures(&figures, &again);
    assert_true(again.link_bytes_per_s == machine.link_bytes_per_s);
    assert_int_equal(again.host_bytes, machine.host_bytes);
    static const char *const others[] = {
        "", "[]", "{}", "null", "{\"name\": \"m\"}", "{\"name\": \"m\", \"launch_s\": 1e300}"};
    for (int i = 0; i < UP_COUNT(others); i++) assert_false(is_stored(others[i], &found));
}

// Attention's figures by head_dim and by whose kernels do it, and one from the other.
static void test_attention(void **state)
{
    (void)state;
    static const struct {
        bool backward, own;
        enum up_machine_figure wide, narrow;
    } rows[] = {
        {false, false, UP_FIGURE_ATTENTION_FORWARD, UP_FIGURE_ATTENTION_FORWARD_64},
        {true, false, UP_FIGURE_ATTENTION_BACKWARD, UP_FIGURE_ATTENTION_BACKWARD_64},
        {false, true, UP_FIGURE_ATTENTION_FORWARD_OWN, UP_FIGURE_ATTENTION_FORWARD_OWN_64},
        {true, true, UP_FIGURE_ATTENTION_BACKWARD_OWN, UP_FIGURE_ATTENTION_BACKWARD_OWN_64}};
    static const int64_t wide_ones[] = {0, 65, 96, 128, 256}, narrow_ones[] = {1, 16, 64};
    int paired = 0;
    for (int i = 0; i < UP_COUNT(rows); i++) {
        bool backward = rows[i].backward, own = rows[i].own;
        for (int j = 0; j < UP_COUNT(wide_ones); j++)
            assert_int_equal(up_figure_of_attention(backward, wide_ones[j], own), rows[i].wide);
        for (int j = 0; j < UP_COUNT(narrow_ones); j++)
            assert_int_equal(up_figure_of_attention(backward, narrow_ones[j], own), rows[i].narrow);
        assert_int_equal(up_figure_twin(rows[i].wide), rows[i].narrow);
        assert_int_equal(up_figure_twin(rows[i].narrow), rows[i].wide);
    }
    for (int i = 0; i < UP_FIGURE_COUNT; i++)
        paired += up_figure_twin((enum up_machine_figure)i) < UP_FIGURE_COUNT;
    assert_int_equal(paired, 2 * UP_COUNT(rows));
    enum up_machine_figure forward = UP_FIGURE_ATTENTION_FORWARD;
    enum up_machine_figure narrow = UP_FIGURE_ATTENTION_FORWARD_64;
    struct up_figures known = {
        .of = {[UP_FIGURE_ATTENTION_FORWARD] = 500, [UP_FIGURE_ATTENTION_FORWARD_64] = 400}};
    assert_true(up_figure_by_twin(&known, narrow, 250) == 200);
    assert_true(up_figure_by_twin(&known, forward, 200) == 250);
    assert_true(up_figure_by_twin(&known, forward, 0x1p1000) == 500);
    known.of[narrow] = 1;
    assert_true(up_figure_by_twin(&known, narrow, 5e-324) == 1);
    known.of[narrow] = 0; // one rate serves all
    assert_true(up_figure_by_twin(&known, narrow, 250) == 0);
    assert_true(up_figure_by_twin(&known, forward, 200) == 200);
}

// What copies tell of a device and of its node.
static void test_copies(void **state)
{
    (void)state;
    static const struct {
        double known_device, known_node, rate, alone;
        int64_t devices;
        double device, node;
    } rows[] = {
        {50, 0, 40, 0, 4, 40, 0},       // nothing is known of the node: each has its own
        {50, 100, 55, 0, 1, 55, 0},     // alone
        {50, 100, 120, 0, 1, 120, 120}, // and quicker than was thought of all
        {50, 100, 48, 0, 2, 48, 0},     // the node would not hold two up
        {50, 100, 55, 0, 2, 55, 110},   {50, 100, 22, 0, 4, 0, 88},   // four it does
        {50, 100, 60, 0, 4, 60, 240},   {50, 100, 22, 55, 4, 55, 88}, // one by itself was looked at
        {50, 100, 54, 55, 2, 55, 108},  {50, 100, 49, 50, 2, 50, 0},
        {50, 0, 20, 40, 2, 40, 40},     {50, 0, 40, 40, 2, 40, 0},
    };
    for (int i = 0; i < UP_COUNT(rows); i++)
        for (int way = 0; way < 2; way++) {
            enum up_machine_figure figure = way ? UP_FIGURE_FROM_HOST : UP_FIGURE_TO_HOST;
            struct up_figures known = {0};
            known.of[figure] = rows[i].known_device;
            known.of[up_figure_of_node(figure)] = rows[i].known_node;
            struct up_copy_figures told =
                up_figures_of_copies(&known, figure, rows[i].rate, rows[i].alone, rows[i].devices);
            if (told.device != rows[i].device || told.node != rows[i].node)
                fail_msg("row %d: %g and %g", i, told.device, told.node);
        }
}

// What runs are known to take is taken off, unless nothing would be left.
static void test_runs(void **state)
{
    (void)state;
    static const struct {
        double run_s, runs, seconds, besides, left;
    } rows[] = {{2, 3, 10, 6, 2}, {2, 4, 8, 0, 0},  {2, 5, 8, 0, 0},
                {0, 5, 8, 0, 0},  {2, 0, 10, 0, 2}, {2, 5, 0, 10, 2}};
    for (int i = 0; i < UP_COUNT(rows) * 2; i++) {
        bool backward = i % 2;
        enum up_machine_figure figure =
            backward ? UP_FIGURE_ATTENTION_BACKWARD_RUN : UP_FIGURE_ATTENTION_FORWARD_RUN;
        struct up_figures known = {
            .of = {[UP_FIGURE_ATTENTION_FORWARD_RUN] = 7, [UP_FIGURE_ATTENTION_BACKWARD_RUN] = 7}};
        known.of[figure] = rows[i / 2].run_s;
        up_figures_check_run(&known, backward, rows[i / 2].runs, rows[i / 2].seconds);
        double besides = rows[i / 2].runs * known.of[up_figure_of_run(backward)];
        if (besides != rows[i / 2].besides || known.of[figure] != rows[i / 2].left)
            fail_msg("row %d: %g, %g", i / 2, besides, known.of[figure]);
        assert_true(known.of[UP_FIGURE_ATTENTION_FORWARD_RUN] +
                        known.of[UP_FIGURE_ATTENTION_BACKWARD_RUN] ==
                    7 + rows[i / 2].left);
    }
}

// A config of upipe's own kernels goes by their rates, as far as the machine has them, and is not
// cut into runs. On a processor there is one attention, which is not, either.
static void test_own_attention(void **state)
{
    (void)state;
    static const struct {
        bool own;
        int64_t head_dim;
        double own_rate, own_narrow, seconds, cpu_s;
    } rows[] = {{false, 128, 1e11, 5e10, 2, 1}, {false, 64, 1e11, 5e10, 3, 2},
                {true, 128, 1e11, 5e10, 10, 1}, {true, 64, 1e11, 5e10, 20, 2},
                {true, 64, 1e11, 0, 10, 2},     {true, 128, 0, 0, 1, 1},
                {true, 64, 0, 0, 2, 2},         {true, 64, 0, 5e10, 20, 2}};
    for (int i = 0; i < UP_COUNT(rows) * 4; i++) {
        int row = i / 4;
        bool on_cpu = i & 2;
        struct up_error err = {0};
        enum up_cost_class class = i % 2 ? UP_COST_ATTENTION_BACKWARD : UP_COST_ATTENTION_FORWARD;
        struct up_machine machine = {.name = "m", .memory_bytes_per_s = 1e12};
        machine.flops[class] = 1e12;
        machine.narrow_flops[class] = 5e11;
        machine.own_flops[class] = rows[row].own_rate;
        machine.own_narrow_flops[class] = rows[row].own_narrow;
        machine.run_s[class] = 0.25;
        struct up_config config = {.cp = 1,
                                   .dp = 1,
                                   .as = on_cpu ? UP_DEVICE_CPU : UP_DEVICE_CUDA,
                                   .own_attention = rows[row].own && !on_cpu};
        struct up_cost cost = {.class = class,
                               .flops = 1e12,
                               .head_dim = rows[row].head_dim,
                               .runs = 4,
                               .own = rows[row].own && on_cpu}; // as its shapes say
        struct up_device *device = up_machine_dry_device(&machine, &config, &err);
        assert_non_null(device);
        struct up_interval ran =
            device->ops->launch(device, UP_STREAM_COMPUTE, (union up_call){0}, NULL, 0, &cost);
        if (ran.end_ns != (int64_t)((on_cpu ? rows[row].cpu_s : rows[row].seconds) * 1e9))
            fail_msg("row %d: %lld ns", row, (long long)ran.end_ns);
        up_device_destroy(device);
    }
}

// The devices of a node share what it can copy, those of other nodes do not.
static void test_neighbours(void **state)
{
    (void)state;
    static const int64_t ranks[] = {1, 2, 3, 4, 8};
    static const double seconds[2][5] = {{1, 1, 1.5, 2, 2}, {1, 1, 1.5, 2, 4}};
    struct up_machine machine = {.name = "m",
                                 .to_host_bytes_per_s = 1e9,
                                 .from_host_bytes_per_s = 2e9,
                                 .node_to_host_bytes_per_s = 2e9,
                                 .node_from_host_bytes_per_s = 4e9};
    struct up_config config = {.cp = 1, .as = UP_DEVICE_CUDA};
    for (int i = 0; i < UP_COUNT(ranks) * 2; i++) {
        struct up_error err = {0};
        config.dp = ranks[i / 2];
        machine.node_devices = i % 2 ? 0 : 4; // 0: all share one
        struct up_device *device = up_machine_dry_device(&machine, &config, &err);
        assert_non_null(device);
        struct up_interval out = device->ops->copy(device, UP_STREAM_COPY_OUT, NULL, UP_SPACE_HOST,
                                                   NULL, UP_SPACE_DEVICE, 1000000000);
        struct up_interval in = device->ops->copy(device, UP_STREAM_COPY_IN, NULL, UP_SPACE_DEVICE,
                                                  NULL, UP_SPACE_HOST, 2000000000);
        double expected = seconds[i % 2][i / 2] * 1e9;
        assert_true(fabs((double)(out.end_ns - out.begin_ns) - expected) < 2);
        assert_true(fabs((double)(in.end_ns - in.begin_ns) - expected) < 2);
        up_device_destroy(device);
    }
}

static void replace(char *text, const char *what, const char *with)
{
    char *at = strstr(text, what);
    assert_non_null(at);
    size_t length = strlen(what);
    assert_int_equal(strlen(with), length);
    memcpy(at, with, length);
}

// Files and runs of before attention's rates went by head_dim: one rate for all. What is wrong with
// the new figures is said.
static void test_without_head_dims(void **state)
{
    (void)state;
    struct up_error err = {0};
    struct up_figures figures = some_figures(), found;
    char text[8192], *at, *end;
    for (int i = UP_FIGURE_ATTENTION_FORWARD_64; i <= UP_FIGURE_ATTENTION_BACKWARD_OWN_64; i++)
        figures.of[i] = 0;
    assert_int_equal(write_to("old.json", &figures, &err), UP_OK);
    file_read("old.json", text, sizeof text);
    assert_null(strstr(text, "_64_"));
    assert_null(strstr(text, "_own_"));
    assert_int_equal(up_figures_find("old.json", &found, &err), UP_OK);
    expect_same(&figures, &found);
    struct up_machine machine;
    assert_int_equal(up_machine_find("h200", &machine, &err), UP_OK);
    char *json = up_machine_json(&machine);
    while ((at = strstr(json, "\"attention_forward_64")) ||
           (at = strstr(json, "\"attention_backward_64"))) {
        end = strchr(at, ',');
        memmove(at, end + 1, strlen(end + 1) + 1);
    }
    assert_true(is_stored(json, &found));
    assert_true(found.of[UP_FIGURE_ATTENTION_FORWARD] > 0);
    assert_true(found.of[UP_FIGURE_ATTENTION_FORWARD_64] == 0);
    free(json);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *what, *with, *says;
    } rows[] = {
        {"forward_64_flops", "forward_96_flops",
         "--machine m.json: 'attention_forward_96_flops_per_s' is not a figure of a machine"},
        {"6000.0", "0.0000",
         "--machine m.json: attention_forward_64_flops_per_s: expected {\"value\": a"},
        {"6000.0", "-400.0", "attention_forward_64_flops_per_s: expected {\"value\": a positive"},
        {" 1000", " 0.50", "device_bytes: expected {\"value\": a positive whole number,"},
        {"6000.0", "\"many\"", "attention_forward_64_flops_per_s: expected {\"value\": a positive"},
    };
    for (int i = 0; i < UP_COUNT(rows); i++) {
        char text[8192];
        struct up_error err;
        struct up_figures figures = some_figures(), found;
        assert_int_equal(write_to("m.json", &figures, &err), UP_OK);
        file_read("m.json", text, sizeof text);
        replace(text, rows[i].what, rows[i].with);
        file_write("m.json", text, strlen(text));
        assert_int_equal(up_figures_find("m.json", &found, &err), UP_USAGE);
        if (!strstr(err.text, rows[i].says) || strchr(err.text, '\n'))
            fail_msg("%s: %s", rows[i].with, err.text);
        unlink("m.json"); // which is no machine file now, and would be left alone
    }
}

static void test_left_alone(void **state)
{
    (void)state;
    struct up_error err;
    struct up_figures figures = some_figures();
    char text[64];
    file_write("notes.txt", "mine", 4);
    static const struct {
        const char *path, *says;
    } rows[] = {{"notes.txt", "left alone"},
                {".", "left alone"},
                {"/dev/null", "left alone"},
                {"", "expected the name"},
                {"h200", "built in"},
                {"none/m.json", "folder"},
                {"notes.txt/m.json", "--output notes.txt/m.json"}};
    for (int i = 0; i < UP_COUNT(rows); i++) {
        assert_int_equal(write_to(rows[i].path, &figures, &err), UP_USAGE);
        if (!strstr(err.text, rows[i].says)) fail_msg("%s: %s", rows[i].path, err.text);
    }
    file_read("notes.txt", text, sizeof text);
    assert_string_equal(text, "mine");
    assert_int_equal(folder_count("."), 1);
}

// A disk that is full in the middle of it.
static void test_failure_keeps_the_old(void **state)
{
    (void)state;
    struct up_error err;
    struct up_figures figures = some_figures(), found, other = some_figures();
    other.of[UP_FIGURE_LINK] = 5;
    assert_int_equal(write_to("m.json", &figures, &err), UP_OK);
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    rlim_t before = limit.rlim_cur;
    signal(SIGXFSZ, SIG_IGN);
    limit.rlim_cur = 100;
    setrlimit(RLIMIT_FSIZE, &limit);
    enum up_status rc = write_to("m.json", &other, &err);
    limit.rlim_cur = before;
    setrlimit(RLIMIT_FSIZE, &limit);
    assert_int_equal(rc, UP_FAILED);
    assert_non_null(strstr(err.text, "m.json"));
    assert_int_equal(up_figures_find("m.json", &found, &err), UP_OK);
    expect_same(&figures, &found);
    assert_int_equal(folder_count("."), 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, enter, leave)

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_of_a_device),
                                       TEST(test_read_back),
                                       TEST(test_stored),
                                       cmocka_unit_test(test_attention),
                                       cmocka_unit_test(test_runs),
                                       cmocka_unit_test(test_own_attention),
                                       cmocka_unit_test(test_copies),
                                       cmocka_unit_test(test_neighbours),
                                       TEST(test_without_head_dims),
                                       TEST(test_refused),
                                       TEST(test_left_alone),
                                       TEST(test_failure_keeps_the_old)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
