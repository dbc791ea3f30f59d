/* A folder that a test fills and that vanishes with it, and the files that go in. */
#ifndef UP_TESTS_MODEL_SCRATCH_H
#define UP_TESTS_MODEL_SCRATCH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/base.h"

#include "tests/print.h"

#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// cmocka's setup: *state becomes the folder's path.
static inline int scratch_create(void **state)
{
    char *folder = strdup("/tmp/upipe-test-XXXXXX");
    if (!folder || !mkdtemp(folder)) return -1;
    *state = folder;
    return 0;
}

static inline int scratch_destroy(void **state)
{
    char *folders[] = {*state, NULL};
    FTS *walk = fts_open(folders, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    if (!walk) return -1;
    int failed = 0;
    for (FTSENT *entry; (entry = fts_read(walk));)
        if (entry->fts_info != FTS_D) failed |= remove(entry->fts_accpath);
    fts_close(walk);
    free(*state);
    return failed;
}

static inline void scratch_path(char out[300], const char *folder, const char *name)
{
    assert_in_range(snprintf(out, 300, "%s/%s", folder, name), 1, 299);
}

static inline void scratch_write(const char *folder, const char *name, const void *bytes,
                                 size_t count)
{
    char path[300];
    scratch_path(path, folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static inline void scratch_write_text(const char *folder, const char *name, const char *text)
{
    scratch_write(folder, name, text, strlen(text));
}

// A .safetensors file: the header's length, the header, `bytes` of data.
static inline void scratch_write_tensors(const char *folder, const char *name, const char *header,
                                         const void *data, size_t bytes)
{
    uint64_t length = strlen(header);
    char *whole = malloc(sizeof length + length + bytes);
    assert_non_null(whole);
    memcpy(whole, &length, sizeof length);
    memcpy(whole + sizeof length, header, length);
    if (bytes) memcpy(whole + sizeof length + length, data, bytes);
    scratch_write(folder, name, whole, sizeof length + length + bytes);
    free(whole);
}

// A refusal is one line, names the culprit, and carries its status.
static inline void assert_refused(enum up_status status, const struct up_error *err,
                                  const char *named)
{
    assert_int_equal(status, UP_USAGE);
    assert_int_equal(err->status, UP_USAGE);
    if (!strstr(err->text, named)) fail_msg("expected \"%s\" in: %s", named, err->text);
    for (const char *at = err->text; *at; at++) assert_false(*at > 0 && *at < ' ');
}

#endif
