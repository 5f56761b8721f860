/* Preloaded (LD_PRELOAD): counts the calls that write at or below a directory, and kills the process, or lets the call fail, at the n-th.
 *
 * From Python in the same process (ctypes): kill_points_set(directory, n, error, log): n = 0 only counts; error = 0 kills with SIGKILL before the
 * call is made, else the call is not made and fails with that errno; each call is written to the descriptor log (if not negative) as "name path".
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <unistd.h>

static char directory[PATH_MAX];
static long at_call, count;
static int number, log_to = -1;

#define REAL(name, result, ...) \
    static result (*real)(__VA_ARGS__); \
    if (!real) real = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

void kill_points_set(const char *path, long nth, int error, int log) {
    snprintf(directory, sizeof directory, "%s", path);
    at_call = nth, number = error, log_to = log;
    __atomic_store_n(&count, 0, __ATOMIC_SEQ_CST);
}

static int stops(const char *name, const char *path) {
    size_t n = strlen(directory);
    if (!n || !path || strncmp(path, directory, n) || (path[n] && path[n] != '/')) return 0;
    long nth = __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST);
    if (log_to >= 0) dprintf(log_to, "%s %s\n", name, path);
    if (nth != at_call) return 0;
    if (!number) kill(getpid(), SIGKILL);
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

static int fd_stops(const char *name, int fd) {
    char path[PATH_MAX];
    if (!*directory || fd == log_to) return 0;
    return stops(name, of_fd(fd, path));
}

static int at_stops(const char *name, int fd, const char *path) {
    char full[2 * PATH_MAX], dir[PATH_MAX];
    if (!*directory || !path) return 0;
    if (*path == '/') return stops(name, path);
    if (fd == AT_FDCWD) { if (!getcwd(dir, sizeof dir)) return 0; }
    else of_fd(fd, dir);
    snprintf(full, sizeof full, "%s/%s", dir, path);
    return stops(name, full);
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }
#define WRITES(flags) ((flags) & (O_CREAT | O_TRUNC | O_WRONLY | O_RDWR))

#define OPEN_AS(name) \
    int name(const char *path, int flags, ...) { \
        REAL(#name, int, const char *, int, ...); \
        MODE(flags) \
        return WRITES(flags) && at_stops("open", AT_FDCWD, path) ? -1 : real(path, flags, mode); \
    }
OPEN_AS(open)
OPEN_AS(open64)

#define OPENAT_AS(name) \
    int name(int fd, const char *path, int flags, ...) { \
        REAL(#name, int, int, const char *, int, ...); \
        MODE(flags) \
        return WRITES(flags) && at_stops("open", fd, path) ? -1 : real(fd, path, flags, mode); \
    }
OPENAT_AS(openat)
OPENAT_AS(openat64)

#define ON_FD(result, name, word, types, names) \
    result name types { \
        static result (*real) types; \
        if (!real) real = (result (*) types)dlsym(RTLD_NEXT, #name); \
        return fd_stops(word, fd) ? -1 : real names; \
    }
ON_FD(ssize_t, write, "write", (int fd, const void *b, size_t n), (fd, b, n))
ON_FD(ssize_t, pwrite, "write", (int fd, const void *b, size_t n, off_t o), (fd, b, n, o))
ON_FD(ssize_t, pwrite64, "write", (int fd, const void *b, size_t n, off64_t o), (fd, b, n, o))
ON_FD(ssize_t, writev, "write", (int fd, const struct iovec *v, int n), (fd, v, n))
ON_FD(ssize_t, sendfile, "write", (int fd, int in, off_t *o, size_t n), (fd, in, o, n))
ON_FD(ssize_t, sendfile64, "write", (int fd, int in, off64_t *o, size_t n), (fd, in, o, n))
ON_FD(int, ftruncate, "truncate", (int fd, off_t n), (fd, n))
ON_FD(int, ftruncate64, "truncate", (int fd, off64_t n), (fd, n))
ON_FD(int, fsync, "fsync", (int fd), (fd))
ON_FD(int, fdatasync, "fsync", (int fd), (fd))
ON_FD(int, fchmod, "chmod", (int fd, mode_t m), (fd, m))
ON_FD(int, fchown, "chown", (int fd, uid_t u, gid_t g), (fd, u, g))
ON_FD(int, futimens, "utime", (int fd, const struct timespec t[2]), (fd, t))
ON_FD(int, fsetxattr, "setxattr", (int fd, const char *k, const void *v, size_t n, int f), (fd, k, v, n, f))
ON_FD(int, posix_fallocate, "write", (int fd, off_t o, off_t n), (fd, o, n))

ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t n, unsigned flags) {
    REAL("copy_file_range", ssize_t, int, off64_t *, int, off64_t *, size_t, unsigned);
    return fd_stops("write", out) ? -1 : real(in, from, out, to, n, flags);
}

#define FICLONE_REQUEST 0x40049409
int ioctl(int fd, unsigned long request, ...) {
    REAL("ioctl", int, int, unsigned long, ...);
    va_list more;
    va_start(more, request);
    void *argument = va_arg(more, void *);
    va_end(more);
    return request == FICLONE_REQUEST && fd_stops("write", fd) ? -1 : real(fd, request, argument);
}

#define ON_PATH(name, word, types, names, at, path) \
    int name types { \
        static int (*real) types; \
        if (!real) real = (int (*) types)dlsym(RTLD_NEXT, #name); \
        return at_stops(word, at, path) ? -1 : real names; \
    }
ON_PATH(rename, "rename", (const char *a, const char *b), (a, b), AT_FDCWD, a)
ON_PATH(renameat, "rename", (int x, const char *a, int y, const char *b), (x, a, y, b), x, a)
ON_PATH(renameat2, "rename", (int x, const char *a, int y, const char *b, unsigned f), (x, a, y, b, f), x, a)
ON_PATH(link, "link", (const char *a, const char *b), (a, b), AT_FDCWD, b)
ON_PATH(linkat, "link", (int x, const char *a, int y, const char *b, int f), (x, a, y, b, f), y, b)
ON_PATH(symlink, "symlink", (const char *a, const char *b), (a, b), AT_FDCWD, b)
ON_PATH(symlinkat, "symlink", (const char *a, int y, const char *b), (a, y, b), y, b)
ON_PATH(unlink, "unlink", (const char *a), (a), AT_FDCWD, a)
ON_PATH(unlinkat, "unlink", (int x, const char *a, int f), (x, a, f), x, a)
ON_PATH(rmdir, "unlink", (const char *a), (a), AT_FDCWD, a)
ON_PATH(mkdir, "mkdir", (const char *a, mode_t m), (a, m), AT_FDCWD, a)
ON_PATH(mkdirat, "mkdir", (int x, const char *a, mode_t m), (x, a, m), x, a)
ON_PATH(chmod, "chmod", (const char *a, mode_t m), (a, m), AT_FDCWD, a)
ON_PATH(fchmodat, "chmod", (int x, const char *a, mode_t m, int f), (x, a, m, f), x, a)
ON_PATH(chown, "chown", (const char *a, uid_t u, gid_t g), (a, u, g), AT_FDCWD, a)
ON_PATH(lchown, "chown", (const char *a, uid_t u, gid_t g), (a, u, g), AT_FDCWD, a)
ON_PATH(fchownat, "chown", (int x, const char *a, uid_t u, gid_t g, int f), (x, a, u, g, f), x, a)
ON_PATH(utimensat, "utime", (int x, const char *a, const struct timespec t[2], int f), (x, a, t, f), x, a)
ON_PATH(setxattr, "setxattr", (const char *a, const char *k, const void *v, size_t n, int f), (a, k, v, n, f), AT_FDCWD, a)
ON_PATH(truncate, "truncate", (const char *a, off_t n), (a, n), AT_FDCWD, a)
