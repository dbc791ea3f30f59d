#include "base/base.h"
#include "trainer/options/options.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

struct target {
    int64_t seq, steps;
    double rate;
    const char *file;
    int kind;
    bool loud;
    struct up_counted counted;
    struct up_span span;
    double share;
};

#define FIELD(name) offsetof(struct target, name)
static const struct up_option table[] = {
    {.name = "seq",
     .kind = UP_OPTION_SIZE,
     .field = FIELD(seq),
     .fallback = "8K",
     .min = 1,
     .value = "TOKENS",
     .help = "",
     .off = "off"},
    {.name = "steps",
     .kind = UP_OPTION_INTEGER,
     .field = FIELD(steps),
     .fallback = "10",
     .min = 1,
     .max = 100,
     .value = "N",
     .help = ""},
    {.name = "rate",
     .kind = UP_OPTION_REAL,
     .field = FIELD(rate),
     .fallback = "0.5",
     .real_max = 1,
     .value = "R",
     .help = ""},
    {.name = "share",
     .kind = UP_OPTION_PERCENT,
     .field = FIELD(share),
     .fallback = "5%",
     .real_max = 2,
     .off = "any",
     .value = "P",
     .help = ""},
    {.name = "file",
     .letter = 'f',
     .kind = UP_OPTION_TEXT,
     .field = FIELD(file),
     .value = "FILE",
     .help = ""},
    {.name = "kind",
     .kind = UP_OPTION_CHOICE,
     .field = FIELD(kind),
     .fallback = "a",
     .value = "a|bc|d",
     .help = ""},
    {.name = "loud", .kind = UP_OPTION_FLAG, .field = FIELD(loud), .help = ""},
    {.name = "keep",
     .kind = UP_OPTION_COUNTED,
     .field = FIELD(counted),
     .fallback = "none",
     .value = "none|block|attn[:N]",
     .help = ""},
    {.name = "span", .kind = UP_OPTION_SPAN, .field = FIELD(span), .value = "A:B", .help = ""},
    {0}};

static enum up_status parse(struct target *target, struct up_error *error, int count,
                            const char *const *words)
{
    const char *argv[16] = {"program"};
    struct up_arguments arguments;
    memcpy(argv + 1, words, (size_t)count * sizeof *words);
    *target = (struct target){0};
    *error = (struct up_error){0};
    return up_options_parse(table, target, count + 1, (char **)argv, &arguments, error);
}

#define PARSE(...)                                                                                 \
    parse(&target, &error, (int)(sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *)),          \
          (const char *[]){__VA_ARGS__})

static void test_values(void **state)
{
    (void)state;
    struct target target;
    struct up_error error;
    assert_int_equal(PARSE("--seq", "512K", "--rate=0.25", "--file", "-", "--kind", "bc", "--loud",
                           "--keep", "attn:3", "--span", "2:7"),
                     UP_OK);
    assert_int_equal(target.seq, 524288);
    assert_int_equal(target.steps, 10);
    assert_true(target.rate == 0.25);
    assert_string_equal(target.file, "-");
    assert_int_equal(target.kind, 1);
    assert_true(target.loud);
    assert_int_equal(target.counted.choice, 2);
    assert_int_equal(target.counted.count, 3);
    assert_int_equal(target.span.first, 2);
    assert_int_equal(target.span.last, 7);
}

static void test_last_wins_and_off(void **state)
{
    (void)state;
    struct target target;
    struct up_error error;
    assert_int_equal(PARSE("--seq", "1", "--seq=off", "--keep=attn", "--keep", "block"), UP_OK);
    assert_int_equal(target.seq, 0);
    assert_int_equal(target.counted.choice, 1);
    assert_int_equal(target.counted.count, 0);
}

static void test_percentages(void **state)
{
    (void)state;
    struct target target;
    struct up_error error;
    static const struct {
        const char *text;
        double share;
    } rows[] = {{"1%", 0.01}, {"1", 0.01}, {"0.5%", 0.005}, {"0", 0}, {"200%", 2}, {"12.5", 0.125}};
    for (int i = 0; i < UP_COUNT(rows); i++) {
        assert_int_equal(PARSE("--share", rows[i].text), UP_OK);
        if (fabs(target.share - rows[i].share) > 1e-15)
            fail_msg("%s is %g", rows[i].text, target.share);
    }
    assert_int_equal(PARSE("--loud"), UP_OK);
    assert_true(fabs(target.share - 0.05) < 1e-15);
    assert_int_equal(PARSE("--share", "any"), UP_OK);
    assert_true(isinf(target.share));
}

static void test_letters(void **state)
{
    (void)state;
    struct target target;
    struct up_error error;
    assert_int_equal(PARSE("-f", "x", "--seq", "1"), UP_OK);
    assert_string_equal(target.file, "x");
    assert_int_equal(PARSE("-f", "x", "--file", "y"), UP_OK);
    assert_string_equal(target.file, "y");
}

static void test_positional(void **state)
{
    (void)state;
    static struct up_arguments arguments;
    static const char *argv[UP_POSITIONAL_MAX + 2] = {"program"};
    struct target target = {0};
    struct up_error error = {0};
    for (int i = 1; i <= UP_POSITIONAL_MAX + 1; i++) argv[i] = i == 7 ? "-" : "word";
    assert_int_equal(
        up_options_parse(table, &target, UP_POSITIONAL_MAX + 1, (char **)argv, &arguments, &error),
        UP_OK);
    assert_int_equal(arguments.positional_count, UP_POSITIONAL_MAX);
    assert_string_equal(arguments.positional[6], "-");
    assert_int_equal(
        up_options_parse(table, &target, UP_POSITIONAL_MAX + 2, (char **)argv, &arguments, &error),
        UP_USAGE);
    assert_non_null(strstr(error.text, "too many"));
}

// Each is refused with status 2 and a line that has these words in it.
static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const char *words[3];
        const char *says[3];
    } rows[] = {
        {{"--sq", "1"}, {"--sq", "--seq"}},
        {{"--nothing-like-it"}, {"unknown option --nothing-like-it"}},
        {{"-s"}, {"-s"}},
        {{"-f"}, {"--file", "FILE"}},
        {{"-fx"}, {"-fx"}},
        {{"-f=x"}, {"-f=x"}},
        {{"--share", "1%%"}, {"--share", "percentage"}},
        {{"--share", "%"}, {"--share"}},
        {{"--share", ""}, {"--share"}},
        {{"--share", "-1%"}, {"--share"}},
        {{"--share", "201%"}, {"--share"}},
        {{"--share", "much"}, {"--share", "any"}},
        {{"--seq"}, {"--seq", "TOKENS"}},
        {{"--seq", "32q"}, {"--seq", "'32q'", "off"}},
        {{"--seq", "0"}, {"--seq", "from 1"}},
        {{"--seq=99999999999999999999"}, {"--seq"}},
        {{"--steps", "101"}, {"--steps", "1 to 100"}},
        {{"--steps", "1K"}, {"--steps", "whole number"}},
        {{"--rate", "1.5"}, {"--rate", "at most 1"}},
        {{"--rate", "-0.5"}, {"--rate"}},
        {{"--rate", "nan"}, {"--rate"}},
        {{"--file", ""}, {"--file", "FILE"}},
        {{"--kind", "b"}, {"--kind", "a|bc|d"}},
        {{"--kind", "a:1"}, {"--kind"}},
        {{"--loud=yes"}, {"--loud"}},
        {{"--keep", "block:2"}, {"--keep", "none|block|attn[:N]"}},
        {{"--keep", "attn:0"}, {"--keep"}},
        {{"--keep", "attn:"}, {"--keep"}},
        {{"--span", "7:2"}, {"--span", "A:B"}},
        {{"--span", "7"}, {"--span"}},
        {{"--span", "-1:2"}, {"--span"}},
    };
    for (int i = 0; i < UP_COUNT(rows); i++) {
        struct target target;
        struct up_error error;
        int count = 0;
        while (count < 3 && rows[i].words[count]) count++;
        assert_int_equal(parse(&target, &error, count, rows[i].words), UP_USAGE);
        for (int j = 0; j < 3 && rows[i].says[j]; j++)
            if (!strstr(error.text, rows[i].says[j]))
                fail_msg("'%s' does not say '%s'", error.text, rows[i].says[j]);
        assert_null(strchr(error.text, '\n'));
    }
}

// What up_option_text prints is read back as the same value.
static void test_text_round_trips(void **state)
{
    (void)state;
    struct target target, again = {0};
    struct up_error error;
    assert_int_equal(PARSE("--seq", "off", "--rate", "0.1", "--share", "0.7%", "--kind", "d",
                           "--keep", "attn:12", "--span", "0:3", "--file", "x"),
                     UP_OK);
    for (const struct up_option *option = table; option->name; option++) {
        char text[64];
        const char *value = up_option_text(option, &target, text, sizeof text);
        if (option->kind != UP_OPTION_FLAG)
            assert_int_equal(up_option_set(option, value, &again, &error), UP_OK);
    }
    assert_int_equal(again.seq, 0);
    assert_true(again.rate == 0.1);
    assert_true(fabs(again.share - 0.007) < 1e-15);
    assert_int_equal(again.kind, 2);
    assert_int_equal(again.counted.count, 12);
    assert_int_equal(again.span.last, 3);
}

static void test_trainer_table_is_sound(void **state)
{
    (void)state;
    for (const struct up_option *option = up_train_option_table; option->name; option++) {
        assert_non_null(option->help);
        assert_ptr_equal(up_option_find(up_train_option_table, option->name), option);
        if (option->kind != UP_OPTION_FLAG) assert_non_null(option->value);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),           cmocka_unit_test(test_last_wins_and_off),
        cmocka_unit_test(test_percentages),      cmocka_unit_test(test_letters),
        cmocka_unit_test(test_positional),       cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_text_round_trips), cmocka_unit_test(test_trainer_table_is_sound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
