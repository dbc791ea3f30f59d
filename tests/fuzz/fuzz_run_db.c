/* run.db under upipe-report: one sub-command, as text and as JSON, chosen by the input's own hash
 * so that each input is cheap. The input is
 *
 *   either a file that begins as SQLite's do: the database itself;
 *   or lies to put into a real one (corpus/run_db/typical.sqlite), a line each:
 *
 *       TABLE COLUMN ROW VALUE        VALUE an SQL literal: UPDATE of the ROW-th row's column
 *       -TABLE ROW                    the row is gone
 *
 * with table and column as numbers modulo what there is. */
#include "report/report.h"
#include "store/store.h"
#include "tests/fuzz/fuzz.h"

#include <jansson.h>

enum { LIES_MAX = 64, VALUE_MAX = 256 };

static const struct {
    const char *name, *key;
    const char *columns[24];
} tables[] = {
    {"meta", "key", {"key", "value"}},
    {"rank", "rank", {"rank", "node", "device_name", "capacity_bytes", "baseline_used_bytes"}},
    {"tensor", "id", {"id",       "rank",     "space",  "storage_id", "name",     "category",
                      "layer",    "phase",    "dtype",  "shape",      "bytes",    "reserved_bytes",
                      "offset",   "stream",   "step",   "free_step",  "range_id", "alloc_seq",
                      "free_seq", "alloc_ns", "free_ns"}},
    {"range",
     "id",
     {"id", "rank", "parent", "name", "step", "layer", "phase", "begin_ns", "end_ns", "stream",
      "begin_seq", "end_seq"}},
    {"step",
     "step",
     {"step", "rank", "loss", "grad_norm", "tokens", "begin_ns", "end_ns", "peak_bytes", "peak_seq",
      "event_hash", "same_as_step"}},
    {"diagnostic", "id", {"id", "rank", "ns", "kind", "text"}},
};

static int column_count(int table)
{
    int count = 0;
    while (count < UP_COUNT(tables[table].columns) && tables[table].columns[count]) count++;
    return count;
}

static void run_sql(sqlite3 *db, char *sql)
{
    sqlite3_exec(db, sql, NULL, NULL, NULL); // a lie that no column takes is no lie
    sqlite3_free(sql);
}

/* The value is bound, not pasted: it is read as a number where it is one, as text otherwise. */
static void tell_lie(sqlite3 *db, const char *line)
{
    unsigned table = 0, column = 0, row = 0;
    char value[VALUE_MAX] = "";
    if (*line == '-' && sscanf(line + 1, "%u %u", &table, &row) == 2) {
        int t = (int)(table % UP_COUNT(tables));
        run_sql(db, sqlite3_mprintf(
                        "DELETE FROM %s WHERE %s = (SELECT %s FROM %s LIMIT 1 OFFSET %u)",
                        tables[t].name, tables[t].key, tables[t].key, tables[t].name, row % 64));
        return;
    }
    if (sscanf(line, "%u %u %u %255[^\n]", &table, &column, &row, value) < 3) return;
    int t = (int)(table % UP_COUNT(tables));
    char *sql = sqlite3_mprintf(
        "UPDATE OR REPLACE %s SET %s = ? WHERE %s = (SELECT %s FROM %s LIMIT 1 OFFSET %u)",
        tables[t].name, tables[t].columns[column % (unsigned)column_count(t)], tables[t].key,
        tables[t].key, tables[t].name, row % 64);
    sqlite3_stmt *statement = NULL;
    char *end = value;
    double number = strtod(value, &end);
    sqlite3_prepare_v2(db, sql, -1, &statement, NULL);
    if (!strcmp(value, "NULL"))
        sqlite3_bind_null(statement, 1);
    else if (end == value || *end)
        sqlite3_bind_text(statement, 1, value, -1, SQLITE_STATIC);
    else if (strpbrk(value, ".eEnN"))
        sqlite3_bind_double(statement, 1, number);
    else
        sqlite3_bind_int64(statement, 1, strtoll(value, NULL, 0));
    sqlite3_step(statement);
    sqlite3_finalize(statement);
    sqlite3_free(sql);
}

/* --- The file ------------------------------------------------------------------------------------
 */

static struct {
    char *bytes;
    size_t size;
} base;

static void read_base(void)
{
    FILE *file = fopen(UP_FUZZ_CORPUS "/run_db/typical.sqlite", "rb");
    FUZZ_EXPECT(file);
    base.bytes = malloc(1 << 20);
    FUZZ_EXPECT(base.bytes);
    base.size = fread(base.bytes, 1, 1 << 20, file);
    fclose(file);
    FUZZ_EXPECT(base.size > 0 && base.size < 1 << 20);
}

static void write_lying(const char *path, const uint8_t *data, size_t size)
{
    sqlite3 *db = NULL;
    char *text = malloc(size + 1), *line = text;
    FUZZ_EXPECT(text);
    memcpy(text, data, size);
    text[size] = 0;
    fuzz_write("run.db", base.bytes, base.size);
    FUZZ_EXPECT(sqlite3_open(path, &db) == SQLITE_OK);
    sqlite3_exec(db, "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN", NULL, NULL,
                 NULL);
    for (int i = 0; i < LIES_MAX && *line; i++) {
        char *end = strchrnul(line, '\n');
        bool last = !*end;
        *end = 0;
        tell_lie(db, line);
        line = last ? end : end + 1;
    }
    sqlite3_exec(db, "COMMIT", NULL, NULL, NULL);
    sqlite3_close(db);
    free(text);
}

/* --- SQLite's memory -----------------------------------------------------------------------------
 */

/* Taken from the C library behind AddressSanitizer's back: SQLite is not what is tested here, and
 * its many small allocations are most of the time. A block is preceded by its size. */
void *__libc_malloc(size_t size);
void *__libc_realloc(void *block, size_t size);
void __libc_free(void *block);

enum { SIZE_BYTES = 16 };

static void *keep_size(char *block, int size)
{
    if (!block) return NULL;
    memcpy(block, &size, sizeof size);
    return block + SIZE_BYTES;
}

static void *sql_malloc(int size)
{
    return keep_size(__libc_malloc((size_t)size + SIZE_BYTES), size);
}

static void *sql_realloc(void *block, int size)
{
    return keep_size(__libc_realloc((char *)block - SIZE_BYTES, (size_t)size + SIZE_BYTES), size);
}

static void sql_free(void *block)
{
    if (block) __libc_free((char *)block - SIZE_BYTES);
}

static int sql_size(void *block)
{
    int size = 0;
    if (block) memcpy(&size, (char *)block - SIZE_BYTES, sizeof size);
    return size;
}

static int sql_round_up(int size)
{
    return (size + 7) & ~7;
}

static int sql_init(void *unused)
{
    (void)unused;
    return SQLITE_OK;
}

static void sql_shutdown(void *unused)
{
    (void)unused;
}

static void choose_sql_memory(void)
{
    static const sqlite3_mem_methods methods = {sql_malloc,   sql_free, sql_realloc,  sql_size,
                                                sql_round_up, sql_init, sql_shutdown, NULL};
    FUZZ_EXPECT(sqlite3_config(SQLITE_CONFIG_MALLOC, &methods) == SQLITE_OK);
    FUZZ_EXPECT(sqlite3_config(SQLITE_CONFIG_SINGLETHREAD) == SQLITE_OK);
}

/* --- The commands --------------------------------------------------------------------------------
 */

// JSON that is JSON; text that holds nothing a terminal would obey.
static void check_output(const char *text, size_t size, bool json)
{
    if (json) {
        json_error_t error;
        json_t *root = json_loadb(text, size, 0, &error);
        if (!root) UP_BUG("not JSON: %s", error.text);
        json_decref(root);
        return;
    }
    for (size_t i = 0; i < size; i++)
        FUZZ_EXPECT((unsigned char)text[i] >= ' ' ? text[i] != 0x7f : text[i] == '\n');
}

// A command and its words: "RUN" is the database, "OUT" a file to write.
static const struct fuzzed {
    const struct up_command *command;
    const char *words[4];
} fuzzed[] = {
    {&up_command_summary, {"RUN"}},
    {&up_command_peak, {"RUN"}},
    {&up_command_tensors, {"RUN"}},
    {&up_command_timeline, {"RUN"}},
    {&up_command_diff, {"RUN", "RUN"}},
    {&up_command_check, {"RUN", "--baseline", "RUN", "--time=1%"}},
    {&up_command_history, {"RUN", "--sort", "step"}},
    {&up_command_score, {"RUN"}},
    {&up_command_calibrate, {"RUN", "--output", "OUT"}},
    {&up_command_advise, {"RUN"}},
};

static int make_words(const struct fuzzed *f, char *path, char *out, bool json, char *words[8])
{
    int count = 0;
    words[count++] = (char *)"upipe-report";
    for (int i = 0; i < UP_COUNT(f->words) && f->words[i]; i++) {
        words[count++] = !strcmp(f->words[i], "RUN")   ? path
                         : !strcmp(f->words[i], "OUT") ? out
                                                       : (char *)f->words[i];
    }
    if (json) words[count++] = (char *)"--json";
    return count;
}

static void run_command(const struct fuzzed *f, char *path, bool json)
{
    const struct up_command *command = f->command;
    char options[512] = {0}, *text = NULL, *words[8], machine[128];
    size_t size = 0;
    static struct up_arguments arguments;
    struct up_error err = {0};
    struct up_emit_style style = {.json = json, .utf8 = true};
    FUZZ_EXPECT(command->options_size <= sizeof options);
    memcpy(options, command->defaults, command->options_size);
    fuzz_path(machine, "machine.json");
    int count = make_words(f, path, machine, json, words);
    FUZZ_EXPECT(up_options_parse(command->options, options, count, words, &arguments, &err) ==
                UP_OK);
    struct up_emitter *emitter = up_emitter_create(&style);
    FILE *out = open_memstream(&text, &size);
    FUZZ_EXPECT(emitter && out);
    enum up_status rc = command->run(options, &arguments, emitter, &err);
    bool answered = rc == UP_OK || !*err.text; // "no" and "cannot tell" are answers, too
    if (!answered) fuzz_check(rc, &err);
    if (answered) FUZZ_EXPECT(up_emitter_print(emitter, out, &err) == UP_OK);
    fclose(out);
    if (answered) check_output(text, size, json);
    free(text);
    up_emitter_destroy(emitter);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[128];
    fuzz_start();
    if (!base.bytes) {
        choose_sql_memory();
        read_base();
    }
    fuzz_clear();
    fuzz_path(path, "run.db");
    if (size >= 16 && !memcmp(data, "SQLite format 3", 16))
        fuzz_write("run.db", data, size);
    else
        write_lying(path, data, size);
    uint64_t hash = size;
    for (size_t i = 0; i < size; i++) hash = up_hash64(hash ^ data[i]);
    const struct fuzzed *f = &fuzzed[hash % UP_COUNT(fuzzed)];
    run_command(f, path, false);
    run_command(f, path, true);
    return 0;
}
