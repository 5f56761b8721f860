/* Preloaded (LD_PRELOAD): makes a chosen system call on a chosen path fail, or never return, and counts how often it did.
 *
 * From the environment: INJECT_PATH; INJECT_CALL, one of opendir, readdir, stat, open, read, end (a read that delivers nothing, as if the
 * file ended there); INJECT_ERRNO, a number, or -1: the call hangs until the process is killed; INJECT_TIMES, how often, -1: always;
 * INJECT_START, the first offset of a read that it happens to; INJECT_NOTES, a file that gets a line "call path" for every fault.
 * From Python in the same process (ctypes): injected_errors_set() and injected_errors_count(); and injected_errors_untyped(1): directory
 * entries do not say what they are, as on some network file systems, so that each must be asked.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPENDIR = 1, READDIR = 2, STAT = 4, OPEN = 8, READ = 16, END = 32 };
static const char *NAMES[] = {"opendir", "readdir", "stat", "open", "read", "end"};

static char target[PATH_MAX];
static int calls, number, untyped, notes = -1;
static long left, count;
static off64_t first;

#define REAL(name, result, ...) \
    static result (*real)(__VA_ARGS__); \
    if (!real) real = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

void injected_errors_set(const char *path, const char *call, int error, long times) {
    calls = 0;
    snprintf(target, sizeof target, "%s", path);
    number = error, left = times;
    __atomic_store_n(&count, 0, __ATOMIC_SEQ_CST);
    for (int i = 0; i < 6; i++)
        if (!strcmp(call, NAMES[i])) calls = 1 << i;
}

long injected_errors_count(void) { return __atomic_load_n(&count, __ATOMIC_SEQ_CST); }

void injected_errors_untyped(int yes) { untyped = yes; }

__attribute__((constructor)) static void from_environment(void) {
    const char *path = getenv("INJECT_PATH");
    if (!path) return;
    int (*real)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
    notes = real(getenv("INJECT_NOTES"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    first = atoll(getenv("INJECT_START"));
    injected_errors_set(path, getenv("INJECT_CALL"), atoi(getenv("INJECT_ERRNO")), atol(getenv("INJECT_TIMES")));
}

static int fails(int call, const char *path) {
    if (!(calls & call) || !path || !*target || strcmp(path, target)) return 0;
    if (left == 0) return 0;
    if (left > 0 && __atomic_fetch_sub(&left, 1, __ATOMIC_SEQ_CST) <= 0) { left = 0; return 0; }
    __atomic_fetch_add(&count, 1, __ATOMIC_SEQ_CST);
    if (notes >= 0) {
        char line[PATH_MAX + 16];
        int which = 0;
        while (!(call >> which & 1)) which++;
        int n = snprintf(line, sizeof line, "%s %s\n", NAMES[which], path);
        if (write(notes, line, (size_t)n) < 0) abort();
    }
    while (number < 0) pause();
    errno = number;
    return 1;
}

static const char *of_fd(int fd, char *out) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, out, PATH_MAX - 1);
    out[n < 0 ? 0 : n] = 0;
    return out;
}

static int fd_fails(int call, int fd) {
    char path[PATH_MAX];
    return (calls & call) && fails(call, of_fd(fd, path));
}

static int at_fails(int call, int fd, const char *path) {
    char full[2 * PATH_MAX], dir[PATH_MAX];
    if (!(calls & call)) return 0;
    if (!path || !*path) return fd_fails(call, fd);
    if (*path == '/' || fd == AT_FDCWD) return fails(call, path);
    snprintf(full, sizeof full, "%s/%s", of_fd(fd, dir), path);
    return fails(call, full);
}

/* ---- directories */

DIR *opendir(const char *path) {
    REAL("opendir", DIR *, const char *);
    return fails(OPENDIR, path) ? NULL : real(path);
}

#define READDIR_AS(name, type) \
    struct type *name(DIR *dir) { \
        REAL(#name, struct type *, DIR *); \
        if (fd_fails(READDIR, dirfd(dir))) return NULL; \
        struct type *entry = real(dir); \
        if (entry && untyped) entry->d_type = DT_UNKNOWN; \
        return entry; \
    }
READDIR_AS(readdir, dirent)
READDIR_AS(readdir64, dirent64)

/* ---- stat and its relatives */

#define STAT_AS(name, type) \
    int name(const char *path, struct type *st) { \
        REAL(#name, int, const char *, struct type *); \
        return fails(STAT, path) ? -1 : real(path, st); \
    }
STAT_AS(stat, stat)
STAT_AS(stat64, stat64)
STAT_AS(lstat, stat)
STAT_AS(lstat64, stat64)

#define FSTAT_AS(name, type) \
    int name(int fd, struct type *st) { \
        REAL(#name, int, int, struct type *); \
        return fd_fails(STAT, fd) ? -1 : real(fd, st); \
    }
FSTAT_AS(fstat, stat)
FSTAT_AS(fstat64, stat64)

#define FSTATAT_AS(name, type) \
    int name(int fd, const char *path, struct type *st, int flags) { \
        REAL(#name, int, int, const char *, struct type *, int); \
        return at_fails(STAT, fd, path) ? -1 : real(fd, path, st, flags); \
    }
FSTATAT_AS(fstatat, stat)
FSTATAT_AS(fstatat64, stat64)

#define XSTAT_AS(name, type) \
    int name(int version, const char *path, struct type *st) { \
        REAL(#name, int, int, const char *, struct type *); \
        return fails(STAT, path) ? -1 : real(version, path, st); \
    }
XSTAT_AS(__xstat, stat)
XSTAT_AS(__xstat64, stat64)
XSTAT_AS(__lxstat, stat)
XSTAT_AS(__lxstat64, stat64)

int __fxstat(int version, int fd, struct stat *st) {
    REAL("__fxstat", int, int, int, struct stat *);
    return fd_fails(STAT, fd) ? -1 : real(version, fd, st);
}

int __fxstat64(int version, int fd, struct stat64 *st) {
    REAL("__fxstat64", int, int, int, struct stat64 *);
    return fd_fails(STAT, fd) ? -1 : real(version, fd, st);
}

int statx(int fd, const char *path, int flags, unsigned mask, struct statx *st) {
    REAL("statx", int, int, const char *, int, unsigned, struct statx *);
    return at_fails(STAT, fd, path) ? -1 : real(fd, path, flags, mask, st);
}

/* ---- open and read */

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }

#define OPEN_AS(name) \
    int name(const char *path, int flags, ...) { \
        REAL(#name, int, const char *, int, ...); \
        MODE(flags) \
        return fails(OPEN, path) ? -1 : real(path, flags, mode); \
    }
OPEN_AS(open)
OPEN_AS(open64)

#define OPENAT_AS(name) \
    int name(int fd, const char *path, int flags, ...) { \
        REAL(#name, int, int, const char *, int, ...); \
        MODE(flags) \
        return at_fails(OPEN, fd, path) ? -1 : real(fd, path, flags, mode); \
    }
OPENAT_AS(openat)
OPENAT_AS(openat64)

ssize_t read(int fd, void *buffer, size_t size) {
    REAL("read", ssize_t, int, void *, size_t);
    if (fd_fails(END, fd)) return 0;
    return !first && fd_fails(READ, fd) ? -1 : real(fd, buffer, size);
}

#define PREAD_AS(name, offset_t) \
    ssize_t name(int fd, void *buffer, size_t size, offset_t at) { \
        REAL(#name, ssize_t, int, void *, size_t, offset_t); \
        if (fd_fails(END, fd)) return 0; \
        return at >= first && fd_fails(READ, fd) ? -1 : real(fd, buffer, size, at); \
    }
PREAD_AS(pread, off_t)
PREAD_AS(pread64, off64_t)

#define PREADV_AS(name, offset_t) \
    ssize_t name(int fd, const struct iovec *parts, int n, offset_t at) { \
        REAL(#name, ssize_t, int, const struct iovec *, int, offset_t); \
        if (fd_fails(END, fd)) return 0; \
        return at >= first && fd_fails(READ, fd) ? -1 : real(fd, parts, n, at); \
    }
PREADV_AS(preadv, off_t)
PREADV_AS(preadv64, off64_t)

#define PREADV2_AS(name, offset_t) \
    ssize_t name(int fd, const struct iovec *parts, int n, offset_t at, int flags) { \
        REAL(#name, ssize_t, int, const struct iovec *, int, offset_t, int); \
        if (fd_fails(END, fd)) return 0; \
        return at >= first && fd_fails(READ, fd) ? -1 : real(fd, parts, n, at, flags); \
    }
PREADV2_AS(preadv2, off_t)
PREADV2_AS(preadv64v2, off64_t)

#define MMAP_AS(name, offset_t) \
    void *name(void *start, size_t size, int access, int flags, int fd, offset_t at) { \
        REAL(#name, void *, void *, size_t, int, int, int, offset_t); \
        return fd >= 0 && at >= first && fd_fails(READ, fd) ? MAP_FAILED : real(start, size, access, flags, fd, at); \
    }
MMAP_AS(mmap, off_t)
MMAP_AS(mmap64, off64_t)
