"""Directories in memory, for tests that make hundreds of trees, ask about them and remove them: to remove a
directory from a disk is to wait for the disk.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PLACE = "/dev/shm"
ROOM = 128 << 20
"""Bytes that must be free there: a hundred of the largest trees."""


@contextmanager
def brief_directory() -> Iterator[Path]:
    """A directory in memory where there is room, else one for temporary files. What depends on the file
    system is for tests that use ``tmp_path``.
    """
    there = os.access(PLACE, os.W_OK) and shutil.disk_usage(PLACE).free >= ROOM
    with tempfile.TemporaryDirectory(prefix="ckpt-tests-", dir=PLACE if there else None) as made:
        yield Path(made)
