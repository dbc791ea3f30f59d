/* Several processes, as torchrun starts them: the losses of one process that drives all GPUs, a
 * trace each, one save; the end of all when one is killed, and with a save when one is told. */
#include "tests/cli/program.h"
#include "tests/gpu/need.h"

#include <jansson.h>
#include <math.h>
#include <sqlite3.h>

enum { STEPS = 4, PROCESSES_MAX = 4, END_WITHIN_S = 60, RUN_WITHIN_S = 120 };

static char folder[32];

static const char *path_of(char out[128], const char *name)
{
    snprintf(out, 128, "%s/%s", folder, name);
    return out;
}

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static void forget_launcher(void)
{
    static const char *const names[] = {
        "RANK",        "LOCAL_RANK",  "WORLD_SIZE",  "LOCAL_WORLD_SIZE",
        "MASTER_ADDR", "MASTER_PORT", "NCCL_COMM_ID"};
    for (int i = 0; i < UP_COUNT(names); i++) unsetenv(names[i]);
}

// The options of all runs here, then those of `more`.
static pid_t start(int process, int processes, int port, const char *const *more)
{
    static const char *const common[] = {"--device", "cuda", "--deterministic", "--seq", "1K"};
    const char *words[48];
    char data[128], out[128], err[128], name[32];
    int count = 0;
    for (int i = 0; i < UP_COUNT(common); i++) words[count++] = common[i];
    words[count++] = "--data";
    words[count++] = path_of(data, "data");
    for (; *more; more++) words[count++] = *more;
    words[count] = NULL;
    if (processes > 1) {
        set_number("RANK", process);
        set_number("LOCAL_RANK", process);
        set_number("WORLD_SIZE", processes);
        set_number("LOCAL_WORLD_SIZE", processes);
        set_number("MASTER_PORT", port);
        setenv("MASTER_ADDR", "127.0.0.1", 1);
    }
    snprintf(name, sizeof name, "out.%d", process);
    path_of(out, name);
    snprintf(name, sizeof name, "err.%d", process);
    pid_t pid = program_start("upipe-train", words, out, path_of(err, name));
    forget_launcher();
    return pid;
}

// Exit status or -signal; a process that does not end in time is killed.
static int end_of(pid_t pid, int within_s)
{
    int status = 0;
    int64_t until = up_clock_ns() + (int64_t)within_s * 1000000000;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (up_clock_ns() > until) kill(pid, SIGKILL);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static const char *said(int process)
{
    static char text[4096];
    char name[32], path[128];
    snprintf(name, sizeof name, "err.%d", process);
    file_read(path_of(path, name), text, sizeof text);
    return text;
}

static int next_port(void)
{
    static int port;
    port = port ? port + 10 : 20000 + getpid() % 10000;
    return port;
}

static void run_all(int processes, const char *const *words)
{
    pid_t pid[PROCESSES_MAX];
    int port = next_port();
    for (int i = 0; i < processes; i++) pid[i] = start(i, processes, port, words);
    for (int i = 0; i < processes; i++) {
        int status = end_of(pid[i], RUN_WITHIN_S);
        if (status) fail_msg("process %d of %d: status %d: %s", i, processes, status, said(i));
    }
}

static void read_losses(const char *log, double loss[STEPS])
{
    char path[128], line[4096];
    FILE *file = fopen(path_of(path, log), "r");
    assert_non_null(file);
    for (int i = 0; i < STEPS; i++) {
        assert_non_null(fgets(line, sizeof line, file));
        json_t *root = json_loads(line, 0, NULL);
        loss[i] = json_real_value(json_object_get(root, "loss"));
        json_decref(root);
    }
    assert_null(fgets(line, sizeof line, file)); // of process 0 alone
    fclose(file);
}

static void check_ranks(int process, int each)
{
    char name[32], path[128], sql[512];
    sqlite3 *db;
    sqlite3_stmt *rows;
    snprintf(name, sizeof name, "run.%d.db", process);
    assert_int_equal(sqlite3_open(path_of(path, name), &db), SQLITE_OK);
    snprintf(sql, sizeof sql,
             "SELECT min(rank), max(rank), count(*), (SELECT count(*) FROM step), "
             "(SELECT value FROM meta WHERE key = 'complete') FROM rank");
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &rows, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(rows), SQLITE_ROW);
    assert_int_equal(sqlite3_column_int(rows, 0), process * each);
    assert_int_equal(sqlite3_column_int(rows, 1), (process + 1) * each - 1);
    assert_int_equal(sqlite3_column_int(rows, 2), each);
    assert_int_equal(sqlite3_column_int(rows, 3), each * STEPS);
    assert_int_equal(sqlite3_column_int(rows, 4), 1);
    sqlite3_finalize(rows);
    sqlite3_close(db);
}

// `form`: the options that give so many ranks.
static void compare(int ranks, int processes, const char *const *form)
{
    char one[128], several[128], trace[128], save[128];
    double expected[STEPS], found[STEPS];
    const char *words[16];
    int count = 0;
    for (; form[count]; count++) words[count] = form[count];
    words[count] = "--steps";
    words[count + 1] = "4";
    words[count + 2] = "--json-log";
    words[count + 3] = path_of(one, "one.json");
    words[count + 4] = NULL;
    run_all(1, words);
    words[count + 3] = path_of(several, "several.json");
    words[count + 4] = "--trace";
    words[count + 5] = path_of(trace, "run.db");
    words[count + 6] = "--save";
    words[count + 7] = path_of(save, "saves");
    words[count + 8] = NULL;
    run_all(processes, words);
    read_losses("one.json", expected);
    read_losses("several.json", found);
    for (int i = 0; i < STEPS; i++)
        if (!(fabs(found[i] - expected[i]) <= 2e-4 * expected[i]))
            fail_msg("%d ranks in %d processes, step %d: loss %.9g, expected %.9g", ranks,
                     processes, i, found[i], expected[i]);
    for (int i = 0; i < processes; i++) check_ranks(i, ranks / processes);
    assert_int_equal(folder_count(save), 1);
    folder_remove(save);
}

static void test_losses(void **state)
{
    (void)state;
    static const char *const upipe2[] = {"--ranks", "2", "--stack", "upipe", NULL};
    static const char *const upipe4[] = {"--ranks", "4", "--stack", "upipe", NULL};
    static const char *const plain[] = {"--dp", "2", NULL};
    static const char *const mixed[] = {"--cp", "2", "--dp", "2", "--fsdp", "on", NULL};
    gpus_or_skip();
    if (!has_gpus(2)) return;
    const char *all = getenv("UP_TEST_ALL");
    compare(2, 2, upipe2);
    if (all && *all) compare(2, 2, plain);
    if (!has_gpus(4)) return;
    compare(4, 2, upipe4);
    compare(4, 2, mixed);
    compare(4, 4, mixed);
}

static void await_step(const char *step)
{
    char path[128], text[8192];
    for (int i = 0; i < 100 * RUN_WITHIN_S; i++) {
        file_read(path_of(path, "out.0"), text, sizeof text);
        if (strstr(text, step)) return;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    fail_msg("no '%s': %s", step, said(0));
}

static void check_end(int victim, int signal, const char *says)
{
    static const char *const words[] = {"--ranks", "2",       "--stack", "upipe",
                                        "--steps", "1000000", NULL};
    char path[128], line[128];
    pid_t pid[2];
    int port = next_port(), other = 1 - victim;
    unlink(path_of(path, "out.0"));
    for (int i = 0; i < 2; i++) pid[i] = start(i, 2, port, words);
    await_step("step     3");
    int64_t begin = up_clock_ns();
    kill(pid[victim], signal);
    int status = end_of(pid[other], 2 * END_WITHIN_S);
    double seconds = (double)(up_clock_ns() - begin) / 1e9;
    assert_int_equal(end_of(pid[victim], END_WITHIN_S), signal == SIGKILL ? -SIGKILL : 1);
    snprintf(line, sizeof line, "process %d (rank %d)%s", victim, victim, says);
    printf("process %d: ended %.1f s after process %d: %s", other, seconds, victim, said(other));
    assert_int_equal(status, 1);
    assert_non_null(strstr(said(other), line));
    assert_true(seconds < END_WITHIN_S);
}

static void test_one_ends_all(void **state)
{
    (void)state;
    const char *all = getenv("UP_TEST_ALL");
    gpus_or_skip();
    if (!has_gpus(2)) return;
    check_end(1, SIGKILL, " ended unexpectedly");
    if (!all || !*all) return;
    // Each process and each signal once; benchmarks/processes.sh has all four.
    check_end(0, SIGTERM, ": interrupted");
}

// One process is told to end: all finish the step that they are in, and save it together.
static void test_one_told_saves_all(void **state)
{
    (void)state;
    char path[128], save[128], says[256];
    gpus_or_skip();
    if (!has_gpus(2)) return;
    const char *const words[] = {"--ranks", "2",      "--stack", "upipe",
                                 "--steps", "100000", "--save",  path_of(save, "ended"),
                                 NULL};
    pid_t pid[2];
    int port = next_port();
    unlink(path_of(path, "out.0"));
    for (int i = 0; i < 2; i++) pid[i] = start(i, 2, port, words);
    await_step("step     3");
    kill(pid[1], SIGTERM);
    snprintf(says, sizeof says, "of 100000 steps are done and saved, --resume %s goes on", save);
    for (int i = 0; i < 2; i++) assert_int_equal(end_of(pid[i], END_WITHIN_S), 1);
    for (int i = 0; i < 2; i++)
        if (!strstr(said(i), says)) fail_msg("process %d says: %s", i, said(i));
    assert_int_equal(folder_count(save), 1);
    folder_remove(save);
}

static int open_folder(void **state)
{
    char path[128];
    (void)state;
    folder_make(folder);
    file_write_text(path_of(path, "data"), 100000);
    forget_launcher();
    return 0;
}

static int close_folder(void **state)
{
    (void)state;
    folder_remove(folder);
    return 0;
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_losses),
                                       cmocka_unit_test(test_one_ends_all),
                                       cmocka_unit_test(test_one_told_saves_all)};
    return cmocka_run_group_tests(tests, open_folder, close_folder);
}
