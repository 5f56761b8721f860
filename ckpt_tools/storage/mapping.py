"""Whether a file is worth mapping: large, on a file system of this machine, and in the page cache."""

from __future__ import annotations

import os
import sys

from ckpt_tools.storage.local import LocalSource

WORTH = 256 << 20
"""Bytes from which helper processes pay for their start (docs/benchmarks.md)."""
LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs", "ramfs", "overlay"})
"""File systems whose pages nobody else can take away but by truncating the file."""
_SAMPLES = 32


def suits(source: LocalSource, worth: int = WORTH) -> bool:
    """What ``io`` "auto" asks. A cold or remote file gains nothing: there the medium is the limit, and every
    page fault waits for it.
    """
    return (
        source.size >= worth
        and sys.platform == "linux"
        and file_system(source.stat.st_dev) in LOCAL
        and cached(source)
    )


def file_system(device: int) -> str:
    """The type of the file system with this device number, "" when it is not among the mounts."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as f:
            for line in f:
                words = line.split()
                if words[2] == number and "-" in words:
                    return words[words.index("-") + 1]
    except OSError:
        pass
    return ""


def cached(source: LocalSource) -> bool:
    """Whether single bytes all over the file can be had without waiting."""
    view = memoryview(bytearray(1))
    try:
        return all(
            os.preadv(source.fd, [view], (source.size - 1) * i // (_SAMPLES - 1), os.RWF_NOWAIT) == 1
            for i in range(_SAMPLES)
        )
    except OSError:  # EAGAIN: it would have to wait; EOPNOTSUPP: the file system cannot say
        return False
