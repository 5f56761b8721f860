// 1 ms (or CKPT_SLOW_US) for every call that asks a file system for a name, as a busy metadata server takes: LD_PRELOAD this.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static void wait_for_it(void) {
  static int us = -1;
  if (us < 0) us = getenv("CKPT_SLOW_US") ? atoi(getenv("CKPT_SLOW_US")) : 1000;
  usleep(us);
}
#define REAL(name)                                               \
  ({                                                             \
    static __typeof__(&name) real;                               \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
    wait_for_it();                                               \
    real;                                                        \
  })
#define MODE(f) va_list a; va_start(a, f); int m = va_arg(a, int); va_end(a)

int open(const char *p, int f, ...) { MODE(f); return REAL(open)(p, f, m); }
int open64(const char *p, int f, ...) { MODE(f); return REAL(open64)(p, f, m); }
int openat(int d, const char *p, int f, ...) { MODE(f); return REAL(openat)(d, p, f, m); }
int openat64(int d, const char *p, int f, ...) { MODE(f); return REAL(openat64)(d, p, f, m); }
DIR *opendir(const char *p) { return REAL(opendir)(p); }
DIR *fdopendir(int d) { return REAL(fdopendir)(d); }
int stat(const char *p, struct stat *s) { return REAL(stat)(p, s); }
int lstat(const char *p, struct stat *s) { return REAL(lstat)(p, s); }
int fstatat(int d, const char *p, struct stat *s, int f) { return REAL(fstatat)(d, p, s, f); }
int stat64(const char *p, struct stat64 *s) { return REAL(stat64)(p, s); }
int lstat64(const char *p, struct stat64 *s) { return REAL(lstat64)(p, s); }
int fstatat64(int d, const char *p, struct stat64 *s, int f) { return REAL(fstatat64)(d, p, s, f); }
int statx(int d, const char *p, int f, unsigned m, struct statx *s) { return REAL(statx)(d, p, f, m, s); }

// getdents lies inside readdir: once for a directory's first entry, once for its end.
#define READDIR(name, type)                                          \
  type *name(DIR *d) {                                               \
    static type *(*real)(DIR *);                                     \
    static __thread DIR *last;                                       \
    if (!real) real = (type * (*)(DIR *)) dlsym(RTLD_NEXT, #name);   \
    if (d != last) wait_for_it();                                    \
    type *e = real(d);                                               \
    last = e ? d : NULL;                                             \
    if (!e) wait_for_it();                                           \
    return e;                                                        \
  }
READDIR(readdir, struct dirent)
READDIR(readdir64, struct dirent64)
