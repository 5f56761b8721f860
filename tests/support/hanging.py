"""A library to preload that makes system calls on one path hang until the process is killed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* HANG_CALL: pread, open, stat or readdir. HANG_PATH: the file or directory. HANG_FROM: the first offset of a read that hangs. */
static int is(const char *call) { const char *c = getenv("HANG_CALL"); return c && !strcmp(c, call); }
static int named(const char *path) { const char *p = getenv("HANG_PATH"); return p && path && !strcmp(p, path); }
static int open_one(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return named(path);
}
static void hang(void) { for (;;) pause(); }
static int late(off_t at) { const char *f = getenv("HANG_FROM"); return at >= (f ? atoll(f) : 0); }
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t pread64(int fd, void *b, size_t n, off64_t at) { if (is("pread") && late(at) && open_one(fd)) hang(); return REAL(pread64)(fd, b, n, at); }
ssize_t pread(int fd, void *b, size_t n, off_t at) { if (is("pread") && late(at) && open_one(fd)) hang(); return REAL(pread)(fd, b, n, at); }
ssize_t preadv64(int fd, const struct iovec *v, int c, off64_t at) { if (is("pread") && late(at) && open_one(fd)) hang(); return REAL(preadv64)(fd, v, c, at); }
ssize_t preadv(int fd, const struct iovec *v, int c, off_t at) { if (is("pread") && late(at) && open_one(fd)) hang(); return REAL(preadv)(fd, v, c, at); }
ssize_t preadv64v2(int fd, const struct iovec *v, int c, off64_t at, int f) { if (is("pread") && late(at) && open_one(fd)) hang(); return REAL(preadv64v2)(fd, v, c, at, f); }
int open64(const char *p, int f, ...) { va_list a; va_start(a, f); int m = va_arg(a, int); va_end(a); if (is("open") && named(p)) hang(); return REAL(open64)(p, f, m); }
int open(const char *p, int f, ...) { va_list a; va_start(a, f); int m = va_arg(a, int); va_end(a); if (is("open") && named(p)) hang(); return REAL(open)(p, f, m); }
int lstat64(const char *p, struct stat64 *s) { if (is("stat") && named(p)) hang(); return REAL(lstat64)(p, s); }
int stat64(const char *p, struct stat64 *s) { if (is("stat") && named(p)) hang(); return REAL(stat64)(p, s); }
int stat(const char *p, struct stat *s) { if (is("stat") && named(p)) hang(); return REAL(stat)(p, s); }
int fstatat64(int d, const char *p, struct stat64 *s, int f) { if (is("stat") && named(p)) hang(); return REAL(fstatat64)(d, p, s, f); }
int fstatat(int d, const char *p, struct stat *s, int f) { if (is("stat") && named(p)) hang(); return REAL(fstatat)(d, p, s, f); }
DIR *opendir(const char *p) { if (is("opendir") && named(p)) hang(); return REAL(opendir)(p); }
struct dirent64 *readdir64(DIR *d) { if (is("readdir") && open_one(dirfd(d))) hang(); return REAL(readdir64)(d); }
struct dirent *readdir(DIR *d) { if (is("readdir") && open_one(dirfd(d))) hang(); return REAL(readdir)(d); }
"""

SOON = """
import sys
from ckpt_tools.storage import stalls
stalls.GRACE = 1.0 - 3600
sys.argv[0] = "ckpt"
from ckpt_tools.cli import main
main()
"""
"""The command, which under a limit of one hour takes a call for stalled a second after its start, however
slow the machine is.
"""


def library(directory: Path) -> Path:
    """The library, compiled."""
    source, made = directory / "hang.c", directory / "hang.so"
    if not made.exists():
        source.write_text(SOURCE)
        compiler = shutil.which("cc") or shutil.which("gcc")
        assert compiler, "these tests need a C compiler"
        subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", made, source, "-ldl"], check=True)
    return made


def ckpt(
    made: Path, call: str, path: Path, *words: str | Path, start: int = 0, code: str = SOON
) -> subprocess.CompletedProcess[str]:
    """The command, with a call that hangs."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("CKPT_")}
    env |= {
        "LD_PRELOAD": str(made),
        "HANG_CALL": call,
        "HANG_PATH": str(path),
        "HANG_FROM": str(start),
        "CKPT_NO_CACHE": "1",
    }
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, env=env
    )
