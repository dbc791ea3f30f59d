/* Runs the built programs as a user would: exit status, standard output and standard error. */
#ifndef UP_TESTS_CLI_PROGRAM_H
#define UP_TESTS_CLI_PROGRAM_H

#include "base/base.h"

#include "tests/print.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

struct program {
    int status; // exit status, or -signal
    char out[1 << 16], err[1 << 14];
};

/* A folder for one test, and taking it away with all that is in it. */
static inline void folder_make(char folder[32])
{
    strcpy(folder, "/tmp/upipe-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
}

static inline int folder_count(const char *folder)
{
    int count = 0;
    DIR *stream = opendir(folder);
    for (struct dirent *entry; stream && (entry = readdir(stream));)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    if (stream) closedir(stream);
    return count;
}

static inline void folder_remove(const char *folder)
{
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    assert_int_equal(system(command), 0);
}

static inline void file_write(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

/* Some text of `size` bytes, the same every time. */
static inline void file_write_text(const char *path, size_t size)
{
    char *bytes = malloc(size);
    for (size_t i = 0; i < size; i++)
        bytes[i] = (char)("etaoin shrdlu\n"[up_random_u64(9, 9, i) % 14]);
    file_write(path, bytes, size);
    free(bytes);
}

static inline pid_t program_start(const char *name, const char *const *words, const char *out_path,
                                  const char *err_path)
{
    const char *argv[64];
    char path[LONG_PATH];
    int count = 1;
    print_to(path, sizeof path, "%s/%s", UP_TEST_BUILD, name);
    argv[0] = path;
    for (; *words; words++) argv[count++] = *words;
    argv[count] = NULL;
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid) return pid;
    int out = open(out_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    int err = open(err_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    execv(path, (char **)argv);
    _exit(127);
}

static inline void file_read(const char *path, char *text, size_t size)
{
    FILE *file = fopen(path, "rb");
    size_t length = file ? fread(text, 1, size - 1, file) : 0;
    text[length] = 0;
    if (file) fclose(file);
}

static inline void program_run_words(struct program *program, const char *name,
                                     const char *const *words)
{
    char folder[32], out[64], err[64];
    int status = 0;
    folder_make(folder);
    snprintf(out, sizeof out, "%s/out", folder);
    snprintf(err, sizeof err, "%s/err", folder);
    pid_t pid = program_start(name, words, out, err);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    program->status = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    file_read(out, program->out, sizeof program->out);
    file_read(err, program->err, sizeof program->err);
    folder_remove(folder);
}

#define program_run(program, name, ...)                                                            \
    program_run_words(program, name, (const char *const[]){__VA_ARGS__, NULL})

/* Status 2, one line, and these words in it. */
static inline void program_must_refuse(const struct program *program, const char *says)
{
    const char *newline = strchr(program->err, '\n');
    if (program->status != 2) fail_msg("status %d, expected 2: %s", program->status, program->err);
    if (!newline || newline[1]) fail_msg("expected one line: %s", program->err);
    if (!strstr(program->err, says)) fail_msg("expected '%s' in: %s", says, program->err);
}

#endif
