"""Files that are written without a trace in their times."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

DAY = 1_700_000_000
"""When trees of tests begin."""


def put(path: Path, data: bytes | str, at: float = 0) -> Path:
    """A file of this time, or so many seconds after DAY, with the directories above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    os.utime(path, (at if at > DAY // 2 else DAY + at,) * 2)
    return path


def lay(root: Path, files: Mapping[str, bytes], at: float = 0, apart: float = 0) -> Path:
    """Files by their paths below ``root``, each so many seconds after the one before."""
    for n, (name, data) in enumerate(files.items()):
        put(root / name, data, at + n * apart)
    return root


@contextmanager
def same_times(path: Path) -> Iterator[None]:
    """What is done to the file inside leaves its times as they were."""
    was = path.stat()
    yield
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
