/* Runs upipe-report as a user does, in a folder of the test's own. */
#ifndef UP_TESTS_REPORT_RUN_H
#define UP_TESTS_REPORT_RUN_H

#include "tests/print.h"
#include "tests/report/fixture.h"

#include <jansson.h>
#include <stdbool.h>
#include <sys/wait.h>

struct outcome {
    int status;
    char *out, *err; // owned
};

// Makes a folder, goes there, and returns its name (to be freed after folder_remove).
static inline char *folder_enter(void)
{
    char *name = strdup("/tmp/upipe-report-XXXXXX");
    assert_non_null(mkdtemp(name));
    assert_int_equal(chdir(name), 0);
    return name;
}

static inline void folder_remove(char *name)
{
    char command[128];
    assert_int_equal(chdir("/"), 0);
    snprintf(command, sizeof command, "rm -r '%s'", name);
    assert_int_equal(system(command), 0);
    free(name);
}

/* A test's setup and teardown in such a folder; what a setup of its own makes goes there too. */
static inline int folder_setup(void **state)
{
    *state = folder_enter();
    return 0;
}

static inline int folder_teardown(void **state)
{
    folder_remove(*state);
    return 0;
}

/* `settings` stands before the program (environment), `words` after it (also a redirection). */
static inline struct outcome report(const char *settings, const char *words)
{
    char command[LONG_COMMAND];
    print_to(command, sizeof command, "env -u NO_COLOR %s '%s/upipe-report' >out.txt 2>err.txt %s",
             settings, UP_TEST_BUILD, words);
    int status = system(command);
    assert_true(WIFEXITED(status));
    return (struct outcome){WEXITSTATUS(status), fixture_read("out.txt"), fixture_read("err.txt")};
}

static inline void outcome_release(struct outcome *outcome)
{
    free(outcome->out);
    free(outcome->err);
}

static inline int count_lines(const char *text)
{
    int lines = 0;
    for (; *text; text++) lines += *text == '\n';
    return lines;
}

/* `text` is what golden/<name>.txt holds; UP_UPDATE_GOLDEN=1 writes it there. */
static inline void golden_check(const char *name, const char *text)
{
    char path[LONG_PATH];
    print_to(path, sizeof path, "%s/tests/report/golden/%s.txt", UP_TEST_SOURCE, name);
    if (getenv("UP_UPDATE_GOLDEN")) {
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        assert_true(fputs(text, file) >= 0);
        assert_int_equal(fclose(file), 0);
    }
    char *golden = fixture_read(path);
    if (!golden) fail_msg("%s is missing: UP_UPDATE_GOLDEN=1 makes it", path);
    assert_string_equal(text, golden);
    free(golden);
}

// Under sanitizers a test takes fewer of its cases.
static inline bool takes_few(void)
{
    const char *brief = getenv("UP_TEST_SHORT");
    return brief && *brief;
}

// Status, and nothing on stderr.
static inline void expect_status(const struct outcome *outcome, int status)
{
    if (outcome->status != status || *outcome->err)
        fail_msg("status %d, expected %d: %s%s", outcome->status, status, outcome->err,
                 outcome->out);
}

// What is printed with that status, as JSON.
static inline json_t *json_of(const char *words, int status)
{
    json_error_t error;
    struct outcome outcome = report("", words);
    expect_status(&outcome, status);
    json_t *root = json_loads(outcome.out, JSON_REJECT_DUPLICATES, &error);
    if (!root) fail_msg("%s: %s in: %s", words, error.text, outcome.out);
    outcome_release(&outcome);
    return root;
}

// Status 2, and one line that says this.
static inline void expect_refusal(const char *words, const char *says)
{
    struct outcome outcome = report("LC_ALL=C.UTF-8", words);
    const char *newline = strchr(outcome.err, '\n');
    if (outcome.status != 2 || !newline || newline[1] || !strstr(outcome.err, says))
        fail_msg("%s: expected 2 and '%s', not %d and: %s", words, says, outcome.status,
                 outcome.err);
    outcome_release(&outcome);
}

#endif
