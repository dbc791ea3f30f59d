/* README.md's option tables are the programs' own. UP_UPDATE_README=1 writes them there. */
#include "tests/cli/program.h"
#include "report/report.h"
#include "trainer/options/options.h"

static char *read_all(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    char *text = calloc(1, 1 << 20);
    *size = fread(text, 1, (1 << 20) - 1, file);
    fclose(file);
    return text;
}

static char *table_text(const struct up_option *table)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    up_options_markdown(table, out);
    fclose(out);
    return text;
}

static void check_section(const char *program, const struct up_option *table)
{
    const char *path = UP_TEST_SOURCE "/README.md";
    char mark[128];
    size_t size = 0;
    char *readme = read_all(path, &size), *expected = table_text(table);
    snprintf(mark, sizeof mark, "<!-- options of %s:", program);
    char *begin = strstr(readme, mark);
    assert_non_null(begin);
    begin = strchr(begin, '\n') + 1;
    char *end = strstr(begin, "<!-- end -->");
    assert_non_null(end);
    bool same =
        (size_t)(end - begin) == strlen(expected) && !memcmp(begin, expected, strlen(expected));
    if (!same && getenv("UP_UPDATE_README")) {
        FILE *out = fopen(path, "wb");
        fwrite(readme, 1, (size_t)(begin - readme), out);
        fputs(expected, out);
        fputs(end, out);
        fclose(out);
        same = true;
    }
    free(readme);
    free(expected);
    if (!same)
        fail_msg("README.md's options of %s are not the program's: UP_UPDATE_README=1", program);
}

static void test_trainer_options(void **state)
{
    (void)state;
    check_section("upipe-train", up_train_option_table);
}

static void test_report_options(void **state)
{
    (void)state;
    check_section("upipe-report", up_command_summary.options);
    check_section("upipe-report peak", up_command_peak.options);
    check_section("upipe-report tensors", up_command_tensors.options);
    check_section("upipe-report timeline", up_command_timeline.options);
    check_section("upipe-report diff", up_command_diff.options);
    check_section("upipe-report check", up_command_check.options);
    check_section("upipe-report history", up_command_history.options);
    check_section("upipe-report score", up_command_score.options);
    check_section("upipe-report whatis", up_command_whatis.options);
    check_section("upipe-report calibrate", up_command_calibrate.options);
    check_section("upipe-report advise", up_command_advise.options);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_trainer_options),
                                       cmocka_unit_test(test_report_options)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
