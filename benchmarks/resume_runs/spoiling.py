"""What every run does to its checkpoints: the newest is damaged, then all are."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ckpt_tools.errors import CkptError


def spoil(path: Path) -> None:
    """Cut the largest file of a checkpoint in half, as a full disk does, and leave its times alone."""
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    largest = max(files, key=lambda p: p.stat().st_size)
    times = largest.stat()
    largest.chmod(0o644)
    os.truncate(largest, times.st_size // 2)
    os.utime(largest, ns=(times.st_atime_ns, times.st_mtime_ns))


def refusal(call: Callable[[], object]) -> str:
    """The error that a call ends in."""
    try:
        call()
    except CkptError as error:
        return type(error).__name__
    return "none"
