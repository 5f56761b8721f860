"""Giving way to others: what watches must not slow down what trains."""

from __future__ import annotations

import os
import platform
from contextlib import suppress

_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
"""Number of the system call (ioprio_set(2)), which has no function in the C library."""
_IDLE = 3 << 13
"""IOPRIO_CLASS_IDLE: the disk serves this thread when nobody else wants it."""


def give_way() -> None:
    """From here on this process, and what it starts, gets what others leave of CPUs and disks."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 19)  # whatever it was started with
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        import ctypes

        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).syscall(number, 1, 0, _IDLE)  # IOPRIO_WHO_PROCESS: this thread and its children
