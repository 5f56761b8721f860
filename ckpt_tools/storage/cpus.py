"""How many CPUs this process may use: those it may run on, and no more than the quotas of its control groups
pay for.

Sources: cgroups(7); Documentation/admin-guide/cgroup-v2.rst (cpu.max) and
cgroup-v1/../scheduler/sched-bwc.rst (cpu.cfs_quota_us) of the Linux kernel.
"""

from __future__ import annotations

import math
import os
from functools import lru_cache

MOST = 32
"""Threads at most, unless somebody asks for more."""


def read_quota(proc: str = "/proc/self", mounted: str = "/sys/fs/cgroup") -> float:
    """The least number of CPUs that a control group of this process, or one above it, pays for; infinite
    without any quota. A container sees the last part of its groups' paths, or none of it.
    """
    least = math.inf
    for line in _read(f"{proc}/cgroup").splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = f"{mounted}/cpu" if controllers else mounted
        names = [name for name in path.split("/") if name not in ("", "..")]
        for depth in range(len(names) + 1):
            home = "/".join([top, *names[:depth]])
            words = _read(f"{home}/cpu.max").split()
            words = words or [
                *_read(f"{home}/cpu.cfs_quota_us").split(),
                *_read(f"{home}/cpu.cfs_period_us").split(),
            ]
            if len(words) == 2 and all(w.isascii() and w.isdigit() for w in words) and "0" not in words:
                least = min(least, int(words[0]) / int(words[1]))  # else "max", -1, or no such file
    return least


def _read(path: str) -> str:
    """What a small file of the kernel says; "" when there is none."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as f:
            return f.read()
    except OSError:
        return ""


@lru_cache(1)
def usable() -> int:
    """CPUs that this process may use, at least one. A part of a CPU counts as one: a thread that waits for
    its turn costs less than a CPU that idles.
    """
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    paid = read_quota()
    return max(1, there if math.isinf(paid) else min(there, math.ceil(paid)))


def default_jobs() -> int:
    """Threads that read when nobody says how many: one per CPU that this process may use (affinity and
    quotas), no more than the memory bus and memory itself bear.
    """
    return min(MOST, usable())
