/* Calls that fail on demand. The linker sends upipe's own calls of the functions below here
 * (--wrap, tests/CMakeLists.txt), and SQLite's system calls and memory come through its own hooks;
 * what other libraries do is left alone. The calls of the armed kind are counted, over all threads,
 * and those from the N-th on, or the N-th alone, fail as they would for want of memory, or with a
 * broken disk.
 *
 * Included by one program, which defines the wrappers. */
#ifndef UP_TESTS_TORTURE_FAULTS_H
#define UP_TESTS_TORTURE_FAULTS_H

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum fault_kind { FAULT_NONE, FAULT_MEMORY, FAULT_FILE, FAULT_SQL_MEMORY };

enum { FAULT_CALLS_MAX = 1 << 20 };

/* Shared with the process that is made to fail. */
struct faults {
    enum fault_kind kind;
    int64_t first; // the first call that fails, from 1; 0: none
    bool alone;    // it alone
    atomic_llong calls;
    uintptr_t site[FAULT_CALLS_MAX]; // from where the first so many calls came
};

static struct faults *faults; // NULL before the first run

/* Whether this call, made from `site`, is to fail. */
static bool fault(enum fault_kind kind, const void *site)
{
    if (!faults || faults->kind != kind) return false;
    int64_t call = atomic_fetch_add(&faults->calls, 1) + 1;
    if (call <= FAULT_CALLS_MAX) faults->site[call - 1] = (uintptr_t)site;
    return faults->first && (faults->alone ? call == faults->first : call >= faults->first);
}

#define HERE          __builtin_return_address(0)
#define NO_MEMORY()   fault(FAULT_MEMORY, HERE)
#define BROKEN(error) (fault(FAULT_FILE, HERE) && (errno = (error)))

/* WRAP(result, name, parameters): declares the real function and begins its wrapper. */
#define WRAP(result, name, ...)                                                                    \
    result __real_##name(__VA_ARGS__);                                                             \
    result __wrap_##name(__VA_ARGS__);                                                             \
    result __wrap_##name(__VA_ARGS__)

/* --- Memory --------------------------------------------------------------------------------------
 */

WRAP(void *, malloc, size_t size)
{
    return NO_MEMORY() ? NULL : __real_malloc(size);
}

WRAP(void *, calloc, size_t count, size_t size)
{
    return NO_MEMORY() ? NULL : __real_calloc(count, size);
}

WRAP(void *, realloc, void *block, size_t size)
{
    return NO_MEMORY() ? NULL : __real_realloc(block, size);
}

WRAP(void *, aligned_alloc, size_t alignment, size_t size)
{
    return NO_MEMORY() ? NULL : __real_aligned_alloc(alignment, size);
}

WRAP(void *, reallocarray, void *block, size_t count, size_t size)
{
    return NO_MEMORY() ? NULL : __real_reallocarray(block, count, size);
}

WRAP(char *, strdup, const char *text)
{
    return NO_MEMORY() ? NULL : __real_strdup(text);
}

int __wrap_asprintf(char **text, const char *format, ...) __attribute__((format(printf, 2, 3)));
int __wrap_asprintf(char **text, const char *format, ...)
{
    if (NO_MEMORY()) return -1;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(text, format, arguments);
    va_end(arguments);
    return length;
}

WRAP(void *, mmap, void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
    if (NO_MEMORY()) return errno = ENOMEM, MAP_FAILED;
    return __real_mmap(at, size, protection, flags, fd, offset);
}

WRAP(int, pthread_create, pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
     void *argument)
{
    return NO_MEMORY() ? EAGAIN : __real_pthread_create(thread, attributes, run, argument);
}

/* jansson: what it makes is thrown away, as if it had not been made. Debian's json_loadb crashes
 * when an allocation within it fails, so none does. */

static json_t *made(json_t *value, bool no_memory)
{
    if (!no_memory) return value;
    json_decref(value);
    return NULL;
}

WRAP(json_t *, json_object, void)
{
    return made(__real_json_object(), NO_MEMORY());
}
WRAP(json_t *, json_array, void)
{
    return made(__real_json_array(), NO_MEMORY());
}
WRAP(json_t *, json_integer, json_int_t value)
{
    return made(__real_json_integer(value), NO_MEMORY());
}
WRAP(json_t *, json_real, double value)
{
    return made(__real_json_real(value), NO_MEMORY());
}
WRAP(json_t *, json_string, const char *text)
{
    return made(__real_json_string(text), NO_MEMORY());
}

json_t *__wrap_json_pack(const char *format, ...);
json_t *__wrap_json_pack(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    json_t *value = json_vpack_ex(NULL, 0, format, arguments);
    va_end(arguments);
    return made(value, NO_MEMORY());
}

static json_t *parsed(json_t *value, json_error_t *error, bool no_memory)
{
    if (no_memory && error) {
        *error = (json_error_t){.line = -1, .text = "out of memory"};
        error->text[JSON_ERROR_TEXT_LENGTH - 1] = json_error_out_of_memory;
    }
    return made(value, no_memory);
}

WRAP(json_t *, json_loads, const char *text, size_t flags, json_error_t *error)
{
    return parsed(__real_json_loads(text, flags, error), error, NO_MEMORY());
}

WRAP(json_t *, json_loadb, const char *text, size_t size, size_t flags, json_error_t *error)
{
    return parsed(__real_json_loadb(text, size, flags, error), error, NO_MEMORY());
}

WRAP(char *, json_dumps, const json_t *value, size_t flags)
{
    return NO_MEMORY() ? NULL : __real_json_dumps(value, flags);
}

WRAP(int, json_object_set_new, json_t *object, const char *key, json_t *value)
{
    if (!NO_MEMORY()) return __real_json_object_set_new(object, key, value);
    json_decref(value);
    return -1;
}

WRAP(int, json_array_append_new, json_t *array, json_t *value)
{
    if (!NO_MEMORY()) return __real_json_array_append_new(array, value);
    json_decref(value);
    return -1;
}

/* --- Files ---------------------------------------------------------------------------------------
 */

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    if (BROKEN(EIO)) return -1;
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    return __real_open(path, flags, mode);
}

WRAP(FILE *, fopen, const char *path, const char *mode)
{
    return BROKEN(EIO) ? NULL : __real_fopen(path, mode);
}

WRAP(size_t, fread, void *out, size_t size, size_t count, FILE *file)
{
    return BROKEN(EIO) ? 0 : __real_fread(out, size, count, file);
}

WRAP(ssize_t, read, int fd, void *out, size_t size)
{
    return BROKEN(EIO) ? -1 : __real_read(fd, out, size);
}

WRAP(ssize_t, pread, int fd, void *out, size_t size, off_t offset)
{
    return BROKEN(EIO) ? -1 : __real_pread(fd, out, size, offset);
}

WRAP(ssize_t, write, int fd, const void *bytes, size_t size)
{
    return BROKEN(ENOSPC) ? -1 : __real_write(fd, bytes, size);
}

WRAP(ssize_t, pwrite, int fd, const void *bytes, size_t size, off_t offset)
{
    return BROKEN(ENOSPC) ? -1 : __real_pwrite(fd, bytes, size, offset);
}

WRAP(int, stat, const char *path, struct stat *status)
{
    return BROKEN(EIO) ? -1 : __real_stat(path, status);
}
WRAP(int, access, const char *path, int mode)
{
    return BROKEN(EIO) ? -1 : __real_access(path, mode);
}
WRAP(int, fstat, int fd, struct stat *status)
{
    return BROKEN(EIO) ? -1 : __real_fstat(fd, status);
}
WRAP(int, ftruncate, int fd, off_t size)
{
    return BROKEN(EIO) ? -1 : __real_ftruncate(fd, size);
}
WRAP(int, fsync, int fd)
{
    return BROKEN(EIO) ? -1 : __real_fsync(fd);
}
WRAP(int, rename, const char *from, const char *to)
{
    return BROKEN(EIO) ? -1 : __real_rename(from, to);
}
WRAP(int, fallocate, int fd, int mode, off_t from, off_t size)
{
    return BROKEN(ENOSPC) ? -1 : __real_fallocate(fd, mode, from, size);
}

WRAP(int, renameat, int from_folder, const char *from, int to_folder, const char *to)
{
    return BROKEN(EIO) ? -1 : __real_renameat(from_folder, from, to_folder, to);
}

WRAP(int, mkdirat, int folder, const char *path, mode_t mode)
{
    return BROKEN(ENOSPC) ? -1 : __real_mkdirat(folder, path, mode);
}

WRAP(int, mkdir, const char *path, mode_t mode)
{
    return BROKEN(ENOSPC) ? -1 : __real_mkdir(path, mode);
}

// The descriptor is gone in any case, as POSIX lets it be.
WRAP(int, close, int fd)
{
    int status = __real_close(fd);
    return BROKEN(EIO) ? -1 : status;
}

/* --- SQLite --------------------------------------------------------------------------------------
 */

static int sql_open(const char *path, int flags, int mode)
{
    return BROKEN(EIO) ? -1 : __real_open(path, flags, mode);
}

// Not EIO, which SQLite takes for a file that is damaged.
static ssize_t sql_read(int fd, void *out, size_t size)
{
    return BROKEN(ETIMEDOUT) ? -1 : __real_read(fd, out, size);
}

static ssize_t sql_pread(int fd, void *out, size_t size, off_t offset)
{
    return BROKEN(ETIMEDOUT) ? -1 : __real_pread(fd, out, size, offset);
}

static ssize_t sql_write(int fd, const void *bytes, size_t size)
{
    return BROKEN(ENOSPC) ? -1 : __real_write(fd, bytes, size);
}

static ssize_t sql_pwrite(int fd, const void *bytes, size_t size, off_t offset)
{
    return BROKEN(ENOSPC) ? -1 : __real_pwrite(fd, bytes, size, offset);
}

static int sql_fstat(int fd, struct stat *status)
{
    return BROKEN(EIO) ? -1 : __real_fstat(fd, status);
}
static int sql_ftruncate(int fd, off_t size)
{
    return BROKEN(EIO) ? -1 : __real_ftruncate(fd, size);
}

static void *sql_mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
    return BROKEN(ENOMEM) ? MAP_FAILED : __real_mmap(at, size, protection, flags, fd, offset);
}

static sqlite3_mem_methods sql_memory; // SQLite's own

static void *sql_malloc(int size)
{
    return fault(FAULT_SQL_MEMORY, HERE) ? NULL : sql_memory.xMalloc(size);
}

static void *sql_realloc(void *block, int size)
{
    return fault(FAULT_SQL_MEMORY, HERE) ? NULL : sql_memory.xRealloc(block, size);
}

/* Before SQLite is first used in the process. */
static void faults_hook_sqlite(void)
{
    static const struct {
        const char *name;
        sqlite3_syscall_ptr call;
    } calls[] = {
        {"open", (sqlite3_syscall_ptr)sql_open},
        {"read", (sqlite3_syscall_ptr)sql_read},
        {"pread", (sqlite3_syscall_ptr)sql_pread},
        {"pread64", (sqlite3_syscall_ptr)sql_pread},
        {"write", (sqlite3_syscall_ptr)sql_write},
        {"pwrite", (sqlite3_syscall_ptr)sql_pwrite},
        {"pwrite64", (sqlite3_syscall_ptr)sql_pwrite},
        {"fstat", (sqlite3_syscall_ptr)sql_fstat},
        {"ftruncate", (sqlite3_syscall_ptr)sql_ftruncate},
        {"mmap", (sqlite3_syscall_ptr)sql_mmap},
    };
    sqlite3_config(SQLITE_CONFIG_GETMALLOC, &sql_memory);
    sqlite3_mem_methods methods = sql_memory;
    methods.xMalloc = sql_malloc;
    methods.xRealloc = sql_realloc;
    sqlite3_config(SQLITE_CONFIG_MALLOC, &methods);
    sqlite3_vfs *vfs = sqlite3_vfs_find("unix");
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        vfs->xSetSystemCall(vfs, calls[i].name, calls[i].call);
}

#endif
