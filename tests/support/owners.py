"""Files of other users, for tests that may run as root or not: root gives files away, anybody else is told
that they were given away.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

SOMEBODY = 54_321
"""A uid that nobody has."""
as_root = os.geteuid() == 0


class Owners:
    """``give`` makes a file another user's: really, as root; else the system calls that tell an owner say so."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.given: dict[tuple[int, int], int] = {}
        if not as_root:
            for name in ("stat", "fstat"):
                patch.setattr(os, name, self._telling(getattr(os, name)))

    def give(self, path: Path, uid: int = SOMEBODY) -> None:
        if as_root:
            os.chown(path, uid, -1, follow_symlinks=False)
        else:
            info = os.lstat(path)
            self.given[info.st_dev, info.st_ino] = uid

    def _telling(self, real: Any) -> Any:
        def told(*args: Any, **more: Any) -> os.stat_result:
            info = real(*args, **more)
            uid = self.given.get((info.st_dev, info.st_ino))
            if uid is None:
                return info
            _, (fields, more_fields) = info.__reduce__()  # type: ignore[misc]  # how it is copied: ten numbers, and the rest by name
            return os.stat_result((*fields[:4], uid, *fields[5:]), more_fields)

        return told
