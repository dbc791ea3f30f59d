/* A new run.db: made whole in memory, written under a temporary name, renamed, opened again. So
 * `path` never holds half a schema, and nothing is renamed while SQLite has it open (which would
 * leave its WAL under the old name). */
#define _GNU_SOURCE // asprintf
#include "store/store_impl.h"
#include "base/version.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// --- What stands in the way --------------------------------------------------------------------

static enum up_status check_replaceable(const char *path, struct up_error *err)
{
    struct up_file_identity identity = up_file_identify(path, true);
    switch (identity.kind) {
    case UP_FILE_MISSING: // or its folder is: the temporary file will tell
    case UP_FILE_EMPTY:
        return UP_OK;
    case UP_FILE_TRACE:
        if (!identity.writer) return UP_OK;
        return up_fail(err, UP_USAGE,
                       "--trace %s: expected a file that no other run is writing, process %d has "
                       "it open",
                       path, identity.writer);
    case UP_FILE_UNREADABLE:
        if (up_errno_status(identity.error) == UP_FAILED)
            return up_fail(err, UP_FAILED, "--trace %s: cannot be looked at: %s", path,
                           strerror(identity.error));
        // fall through
    default:
        return up_fail(err, UP_USAGE,
                       "--trace %s: expected a new file or an earlier upipe trace to replace, it "
                       "is %s, and is left alone",
                       path, up_file_kind_text(identity.kind));
    }
}

// --- The image ---------------------------------------------------------------------------------

struct image {
    unsigned char *bytes; // sqlite3_free
    sqlite3_int64 size;
};

static int insert_pair(sqlite3_stmt *statement, const char *key, const char *value)
{
    const char *texts[] = {key, value};
    return up_row_run(statement, UP_ROW_META, &(struct up_row){.texts = texts});
}

static int insert_meta(sqlite3 *db, const struct up_store_meta *meta, int count)
{
    sqlite3_stmt *statement = up_row_prepare(db, UP_ROW_META);
    int code = statement ? insert_pair(statement, "complete", "0") : sqlite3_errcode(db);
    if (code == SQLITE_DONE) {
        char version[16];
        snprintf(version, sizeof version, "%d", UP_STORE_VERSION);
        code = insert_pair(statement, "schema_version", version);
    }
    if (code == SQLITE_DONE) code = insert_pair(statement, "upipe_version", up_version);
    for (int i = 0; i < count && code == SQLITE_DONE; i++)
        code = insert_pair(statement, meta[i].key, meta[i].value);
    sqlite3_finalize(statement);
    return code == SQLITE_DONE ? SQLITE_OK : code;
}

static enum up_status image_make(struct image *image, const struct up_store_meta *meta, int count,
                                 struct up_error *err)
{
    sqlite3 *db = NULL;
    int code = sqlite3_open_v2(":memory:", &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, NULL);
    if (code == SQLITE_OK) code = sqlite3_exec(db, up_store_schema, NULL, NULL, NULL);
    if (code == SQLITE_OK) code = insert_meta(db, meta, count);
    if (code == SQLITE_OK) image->bytes = sqlite3_serialize(db, "main", &image->size, 0);
    enum up_status rc = UP_OK;
    if (!image->bytes)
        rc = up_fail(err, UP_FAILED, "the trace's tables cannot be made: %s", sqlite3_errmsg(db));
    sqlite3_close(db);
    return rc;
}

// --- Files -------------------------------------------------------------------------------------

static enum up_status write_all(int fd, const struct image *image)
{
    for (sqlite3_int64 done = 0; done < image->size;) {
        ssize_t n = write(fd, image->bytes + done, (size_t)(image->size - done));
        if (n < 0 && errno != EINTR) return UP_FAILED;
        if (n > 0) done += n;
    }
    return UP_OK;
}

static enum up_status write_file(const char *temporary, const char *path, const struct image *image,
                                 struct up_error *err)
{
    unlink(temporary); // of a run with this process number that was killed
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return up_fail(err, up_errno_status(errno),
                       "--trace %s: expected a file in a folder that exists and can be written: %s",
                       path, strerror(errno));
    enum up_status rc = write_all(fd, image);
    int error = errno;
    if (close(fd) != 0 && rc == UP_OK) {
        rc = UP_FAILED;
        error = errno;
    }
    if (rc != UP_OK) {
        unlink(temporary);
        up_fail(err, rc, "--trace %s: cannot be written: %s", path, strerror(error));
    }
    return rc;
}

// What an earlier database of that name left beside it would be played back into the new one.
static void remove_companions(const char *path)
{
    static const char *const endings[] = {"-wal", "-shm", "-journal"};
    for (int i = 0; i < UP_COUNT(endings); i++) {
        char *name = NULL;
        if (asprintf(&name, "%s%s", path, endings[i]) < 0) continue;
        unlink(name);
        free(name);
    }
}

static enum up_status put_in_place(const char *temporary, const char *path, struct up_error *err)
{
    // Looked at again, as late as can be: another run may have come first.
    enum up_status rc = check_replaceable(path, err);
    if (rc == UP_OK) {
        remove_companions(path);
        if (rename(temporary, path) == 0) return UP_OK;
        rc = up_fail(err, up_errno_status(errno),
                     "--trace %s: expected a name that can be given to a file: %s", path,
                     strerror(errno));
    }
    unlink(temporary);
    return rc;
}

static enum up_status publish(const char *path, const struct image *image, struct up_error *err)
{
    char *temporary = NULL;
    if (asprintf(&temporary, "%s.partial-%d", path, (int)getpid()) < 0)
        return up_fail(err, UP_FAILED, "--trace %s: out of host memory", path);
    enum up_status rc = write_file(temporary, path, image, err);
    if (rc == UP_OK) rc = put_in_place(temporary, path, err);
    free(temporary);
    return rc;
}

enum up_status up_store_create(const char *path, const struct up_store_meta *meta, int meta_count,
                               struct up_store **store, struct up_error *err)
{
    enum up_status rc = UP_OK;
    struct image image = {0};
    *store = NULL;
    if (!*path) return up_fail(err, UP_USAGE, "--trace: expected the name of a file");
    UP_TRY(check_replaceable(path, err));
    UP_TRY(image_make(&image, meta, meta_count, err));
    UP_TRY(publish(path, &image, err));
    rc = up_store_attach(path, store, err);
    if (rc != UP_OK) {
        unlink(path);
        remove_companions(path);
    }
out:
    sqlite3_free(image.bytes);
    return rc;
}
