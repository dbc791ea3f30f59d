/* Whose a file is, from its first 100 bytes: a database that is not ours is not even opened. The
 * offsets are those of SQLite's file format, section 1.3. */
#define _GNU_SOURCE // asprintf, F_OFD_GETLK
#include "store/store_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    HEADER_BYTES = 100,
    HEADER_PAGE_BYTES = 16, // two bytes; 1 stands for 65536
    HEADER_PAGES = 28,
    HEADER_USER_VERSION = 60,
    HEADER_APPLICATION_ID = 68,
    APPLICATION_ID = 0x75706970, // "upip", as schema.sql sets it
};

// Where a connection keeps a read lock for as long as it has a WAL database open.
enum { LOCK_SHARED_FIRST = 0x40000002, LOCK_SHARED_SIZE = 510 };

static uint32_t big_endian(const unsigned char *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static int64_t bytes_told(const unsigned char header[HEADER_BYTES])
{
    uint32_t page_bytes = big_endian(header + HEADER_PAGE_BYTES) >> 16;
    return (int64_t)big_endian(header + HEADER_PAGES) * (page_bytes == 1 ? 65536 : page_bytes);
}

static struct up_file_identity identify_header(const unsigned char header[HEADER_BYTES])
{
    if (memcmp(header, "SQLite format 3", 16) != 0)
        return (struct up_file_identity){.kind = UP_FILE_OTHER};
    if (big_endian(header + HEADER_APPLICATION_ID) != APPLICATION_ID)
        return (struct up_file_identity){.kind = UP_FILE_OTHER_DATABASE};
    return (struct up_file_identity){.kind = UP_FILE_TRACE,
                                     .version = big_endian(header + HEADER_USER_VERSION),
                                     .bytes_told = bytes_told(header)};
}

// A process that has the database open, 0 if none has; a file system without locks has none to
// tell.
static int lock_holder(int fd)
{
    struct flock lock = {.l_type = F_WRLCK,
                         .l_whence = SEEK_SET,
                         .l_start = LOCK_SHARED_FIRST,
                         .l_len = LOCK_SHARED_SIZE};
    if (fcntl(fd, F_OFD_GETLK, &lock) != 0 || lock.l_type == F_UNLCK) return 0;
    return lock.l_pid;
}

static struct up_file_identity identify_regular(int fd, bool find_writer)
{
    unsigned char header[HEADER_BYTES];
    ssize_t got = pread(fd, header, sizeof header, 0);
    if (got < 0) return (struct up_file_identity){.kind = UP_FILE_UNREADABLE, .error = errno};
    if (got == 0) return (struct up_file_identity){.kind = UP_FILE_EMPTY};
    if (got < HEADER_BYTES) return (struct up_file_identity){.kind = UP_FILE_OTHER};
    struct up_file_identity identity = identify_header(header);
    if (find_writer) identity.writer = lock_holder(fd);
    return identity;
}

struct up_file_identity up_file_identify(const char *path, bool find_writer)
{
    struct stat status;
    if (stat(path, &status) != 0) {
        bool fails = up_errno_status(errno) == UP_FAILED; // then it may well be there
        return (struct up_file_identity){.kind = fails ? UP_FILE_UNREADABLE : UP_FILE_MISSING,
                                         .error = errno};
    }
    if (S_ISDIR(status.st_mode)) return (struct up_file_identity){.kind = UP_FILE_FOLDER};
    if (!S_ISREG(status.st_mode)) return (struct up_file_identity){.kind = UP_FILE_SPECIAL};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return (struct up_file_identity){.kind = UP_FILE_UNREADABLE, .error = errno};
    struct up_file_identity identity = identify_regular(fd, find_writer);
    identity.bytes = status.st_size;
    close(fd);
    return identity;
}

enum up_status up_store_status(sqlite3 *db)
{
    switch (sqlite3_errcode(db) & 0xff) {
    case SQLITE_NOMEM:
    case SQLITE_IOERR:
    case SQLITE_FULL:
        return UP_FAILED;
    case SQLITE_CANTOPEN:
        return up_errno_status(sqlite3_system_errno(db));
    default:
        return UP_USAGE;
    }
}

char *up_store_file_name(const char *path)
{
    char *name = NULL;
    return asprintf(&name, "%s%s", *path == '/' ? "" : "./", path) < 0 ? NULL : name;
}

const char *up_file_kind_text(enum up_file_kind kind)
{
    switch (kind) {
    case UP_FILE_MISSING:
        return "missing";
    case UP_FILE_UNREADABLE:
        return "a file that cannot be read";
    case UP_FILE_FOLDER:
        return "a folder";
    case UP_FILE_SPECIAL:
        return "a device, pipe or socket";
    case UP_FILE_EMPTY:
        return "an empty file";
    case UP_FILE_OTHER:
        return "not an SQLite database";
    case UP_FILE_OTHER_DATABASE:
        return "another application's database";
    case UP_FILE_TRACE:
        return "a upipe trace";
    }
    return "unknown";
}
