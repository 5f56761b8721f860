"""What the system writes in pieces, written to the end."""

from __future__ import annotations

import os
from contextlib import suppress


def write_all(fd: int, data: bytes) -> None:
    """Write all of it. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def write_and_rename(fd: int, data: bytes, aside: str, name: str, at: int) -> None:
    """Fill a new file that is open and called ``aside`` in the directory ``at``, and put it in the place of
    ``name`` once it is on the disk. Closes ``fd``; where that fails no file is left. Raises OSError.
    """
    try:
        try:
            write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(aside, name, src_dir_fd=at, dst_dir_fd=at)
    except BaseException:
        with suppress(OSError):
            os.unlink(aside, dir_fd=at)
        raise
