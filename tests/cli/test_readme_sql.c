/* The README's SQL is real: every ```sql block is run against a fresh run.db of the demo's shape,
 * and gives the output that stands below it (indented, as `sqlite3 -header -column` prints it; the
 * width of the gaps is not compared). What a run allocates depends on its options alone, so the
 * output never changes. */
#include "store/store.h"
#include "tests/cli/program.h"

enum { TEXT_MAX = 1 << 16 };

static char box[32], database[64];

/* --- Running a query -----------------------------------------------------------------------------
 */

struct text {
    char bytes[TEXT_MAX];
    size_t used;
};

static void add(struct text *text, const char *separator, const char *word)
{
    text->used +=
        (size_t)snprintf(text->bytes + text->used, TEXT_MAX - text->used, "%s%s", separator, word);
    assert_true(text->used < TEXT_MAX);
}

// A line a row, cells separated by one space.
static void run_query(sqlite3 *db, const char *sql, struct text *out)
{
    sqlite3_stmt *statement = NULL;
    out->used = 0;
    if (sqlite3_prepare_v2(db, sql, -1, &statement, NULL) != SQLITE_OK)
        fail_msg("%s in: %s", sqlite3_errmsg(db), sql);
    int columns = sqlite3_column_count(statement);
    for (int i = 0; i < columns; i++) add(out, i ? " " : "", sqlite3_column_name(statement, i));
    while (sqlite3_step(statement) == SQLITE_ROW)
        for (int i = 0; i < columns; i++) {
            const char *cell = (const char *)sqlite3_column_text(statement, i);
            add(out, i ? " " : "\n", cell ? cell : "");
        }
    assert_int_equal(sqlite3_finalize(statement), SQLITE_OK);
}

/* --- Reading the README --------------------------------------------------------------------------
 */

// The indented lines from `at` on, gaps made one space; the line of dashes is left out.
static void read_output(const char *at, struct text *out)
{
    out->used = 0;
    out->bytes[0] = 0;
    while (*at == '\n') at++;
    for (bool first = true; !strncmp(at, "    ", 4); at += strcspn(at, "\n"), at += *at == '\n') {
        char line[1024], *rest = line;
        snprintf(line, sizeof line, "%.*s", (int)strcspn(at, "\n"), at);
        if (strspn(line, " -") == strlen(line)) continue;
        const char *separator = first ? "" : "\n";
        for (char *word; (word = strtok_r(rest, " ", &rest)); separator = " ")
            add(out, separator, word);
        first = false;
    }
}

static void check_block(sqlite3 *db, const char *sql, const char *below)
{
    static struct text found, told;
    run_query(db, sql, &found);
    read_output(below, &told);
    if (strcmp(found.bytes, told.bytes) != 0)
        fail_msg("README.md tells of\n%s\n\nand the query gives\n%s", told.bytes, found.bytes);
}

static void every_query_gives_what_the_readme_says(void **state)
{
    (void)state;
    static char readme[1 << 18];
    struct up_error err = {0};
    sqlite3 *db = NULL;
    int blocks = 0;
    file_read(UP_TEST_SOURCE "/README.md", readme, sizeof readme);
    if (up_store_open(database, &db, &err) != UP_OK) fail_msg("%s", err.text);
    for (char *at = readme; (at = strstr(at, "\n```sql\n")); blocks++) {
        char *sql = at + strlen("\n```sql\n"), *end = strstr(sql, "\n```\n");
        assert_non_null(end);
        *end = 0;
        at = end + strlen("\n```\n");
        check_block(db, sql, at);
    }
    sqlite3_close(db);
    assert_true(blocks >= 3);
}

// The demo's shape, one step of it.
static int make_run(void **state)
{
    (void)state;
    static struct program program;
    char text[64];
    folder_make(box);
    snprintf(text, sizeof text, "%s/text", box);
    snprintf(database, sizeof database, "%s/run.db", box);
    file_write_text(text, 4096);
    program_run(&program, "upipe-train", "--model", "tiny", "--data", text, "--seq", "512",
                "--batch", "2", "--steps", "1", "--trace", database);
    if (program.status != 0) print_error("%s", program.err);
    return program.status;
}

static int remove_run(void **state)
{
    (void)state;
    folder_remove(box);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_query_gives_what_the_readme_says)};
    return cmocka_run_group_tests(tests, make_run, remove_run);
}
