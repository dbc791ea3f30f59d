/* What the fuzz targets share. A target is one file, fuzz_<name>.c, whose LLVMFuzzerTestOneInput
 * hands an input to a reader and aborts where the reader breaks its word: a refusal is one line of
 * printable text with the status of a user's error, and what is accepted can be used. To add a
 * target, write the file and a folder of seeds, corpus/<name>; CMake and scripts/fuzz find both. */
#ifndef UP_TESTS_FUZZ_FUZZ_H
#define UP_TESTS_FUZZ_FUZZ_H

#include "base/base.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_EXPECT(condition)                                                                     \
    do {                                                                                           \
        if (!(condition)) UP_BUG("expected %s", #condition);                                       \
    } while (0)

/* The process' own folder in memory, where readers that take paths find their input. */
static inline const char *fuzz_folder(void)
{
    static char folder[64];
    if (*folder) return folder;
    strcpy(folder, "/dev/shm/upipe-fuzz-XXXXXX");
    if (mkdtemp(folder)) return folder;
    strcpy(folder, "/tmp/upipe-fuzz-XXXXXX");
    FUZZ_EXPECT(mkdtemp(folder));
    return folder;
}

static inline const char *fuzz_path(char out[128], const char *name)
{
    snprintf(out, 128, "%s/%s", fuzz_folder(), name);
    return out;
}

static inline void fuzz_write(const char *name, const void *bytes, size_t size)
{
    char path[128];
    int fd = open(fuzz_path(path, name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FUZZ_EXPECT(fd >= 0);
    FUZZ_EXPECT(write(fd, bytes, size) == (ssize_t)size);
    close(fd);
}

/* Empties the folder. */
static inline void fuzz_clear(void)
{
    char path[512];
    DIR *stream = opendir(fuzz_folder());
    FUZZ_EXPECT(stream);
    for (struct dirent *entry; (entry = readdir(stream));) {
        snprintf(path, sizeof path, "%s/%s", fuzz_folder(), entry->d_name);
        unlink(path);
    }
    closedir(stream);
}

/* libFuzzer ends by exit(): the folder goes then. */
static inline void fuzz_remove_folder(void)
{
    fuzz_clear();
    rmdir(fuzz_folder());
}

static inline void fuzz_start(void)
{
    static bool started;
    if (started) return;
    started = true;
    fuzz_folder();
    atexit(fuzz_remove_folder);
}

/* Nothing in the input may make the reader say anything but "this input is at fault", in one line.
 */
static inline void fuzz_check(enum up_status status, const struct up_error *err)
{
    if (status == UP_OK) return;
    FUZZ_EXPECT(status == UP_USAGE && err->status == UP_USAGE);
    FUZZ_EXPECT(*err->text);
    for (const char *at = err->text; *at; at++)
        if ((unsigned char)*at < ' ' || *at == 0x7f) UP_BUG("control character in: %s", err->text);
}

#endif
