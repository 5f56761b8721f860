"""How many CPUs this process may use: those it may run on, and no more than the quotas of its control groups
pay for.

Sources: cgroups(7); Documentation/admin-guide/cgroup-v2.rst (cpu.max) and
cgroup-v1/../scheduler/sched-bwc.rst (cpu.cfs_quota_us) of the Linux kernel.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple


class _Mount(NamedTuple):
    """A hierarchy of control groups: its group ``root`` is the directory ``point``."""

    root: str
    point: str
    version: int


def _text(path: str) -> str:
    """What a small file of the kernel says; "" when there is none."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as f:
            return f.read()
    except OSError:
        return ""


def _mounts(mountinfo: str) -> Iterator[_Mount]:
    """The hierarchies that may hold quotas (proc(5): mountinfo)."""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        words, kind = before.split(" "), after.split(" ")
        if len(words) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        if kind[0] == "cgroup" and "cpu" not in kind[2].split(","):
            continue
        root, point = (re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), w) for w in words[3:5])
        yield _Mount(root, point, 2 if kind[0] == "cgroup2" else 1)


def _groups(cgroup: str) -> Iterator[tuple[int, str]]:
    """(version, path of the group) of the hierarchies that may hold quotas (cgroups(7): /proc/pid/cgroup)."""
    for line in cgroup.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield 2, path
        elif "cpu" in controllers.split(","):
            yield 1, path


def _directories(mount: _Mount, group: str) -> Iterator[str]:
    """A group's directory and those above it, as far as they are mounted here: a container sees the last part
    of the path, or none of it.
    """
    root = mount.root.rstrip("/")
    below = group[len(root) :].strip("/") if f"{group}/".startswith(f"{root}/") else ""
    names = [] if ".." in below.split("/") else [n for n in below.split("/") if n]
    for depth in range(len(names), -1, -1):
        yield "/".join([mount.point.rstrip("/"), *names[:depth]])


def _allowed(directory: str, version: int) -> float:
    """CPUs that one group's quota pays for; infinite without one."""
    if version == 2:
        words = _text(f"{directory}/cpu.max").split()
    else:
        words = [
            *_text(f"{directory}/cpu.cfs_quota_us").split(),
            *_text(f"{directory}/cpu.cfs_period_us").split(),
        ]
    if len(words) != 2 or not all(w.isascii() and w.isdigit() for w in words) or "0" in words:
        return math.inf  # "max", -1, or no such file
    return int(words[0]) / int(words[1])


def quota(proc: str = "/proc/self") -> float:
    """The least number of CPUs that a control group of this process, or one above it, pays for; infinite
    without any quota.
    """
    groups, mounts = list(_groups(_text(f"{proc}/cgroup"))), list(_mounts(_text(f"{proc}/mountinfo")))
    found = (
        _allowed(directory, version)
        for version, group in groups
        for mount in mounts
        if mount.version == version
        for directory in _directories(mount, group)
    )
    return min(found, default=math.inf)


@lru_cache(1)
def usable() -> int:
    """CPUs that this process may use, at least one. A part of a CPU counts as one: a thread that waits for
    its turn costs less than a CPU that idles.
    """
    there = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    paid = quota()
    return max(1, there if math.isinf(paid) else min(there, math.ceil(paid)))


MOST = 32
"""Threads at most, unless somebody asks for more."""


def default_jobs() -> int:
    """Threads that read when nobody says how many: one per CPU that this process may use (affinity and
    quotas), no more than the memory bus and memory itself bear.
    """
    return min(MOST, usable())
