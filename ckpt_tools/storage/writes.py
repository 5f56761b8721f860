"""What the system writes in pieces, written to the end."""

from __future__ import annotations

import os


def write_all(fd: int, data: bytes) -> None:
    """Write all of it. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
