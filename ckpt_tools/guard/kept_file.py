"""A file of what a command knows, put in its place whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress

from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import Trust
from ckpt_tools.storage.writes import write_all


def replaced(directory: str, name: str, data: bytes, trusted: Trust) -> None:
    """Put a file in its place, whole or not at all. Raises OSError and Untrusted."""
    aside = f".{name}.{os.getpid()}"
    with trust.directory(directory, trusted) as at:
        fd = trust.create(aside, os.O_WRONLY | os.O_TRUNC, at, trusted)
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
