"""A file of what a command knows, put in its place whole or not at all."""

from __future__ import annotations

import os

from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import Trust
from ckpt_tools.storage.writes import write_and_rename


def replaced(directory: str, name: str, data: bytes, trusted: Trust) -> None:
    """Put a file in its place, whole or not at all. Raises OSError and Untrusted."""
    aside = f".{name}.{os.getpid()}"
    with trust.directory(directory, trusted) as at:
        fd = trust.create(aside, os.O_WRONLY | os.O_TRUNC, at, trusted)
        write_and_rename(fd, data, aside, name, at)
