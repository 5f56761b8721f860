"""A part: one file that a layout recognises as a piece of a checkpoint; and what could not be looked at,
which may be one.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ckpt_tools.model.finding import Finding


class Kind(str, Enum):
    """Why a checkpoint was saved (docs/design.md section 2)."""

    PERIODIC = "periodic"
    DYING_GASP = "dying-gasp"
    RELEASE = "release"
    BEST = "best"

    __hash__ = str.__hash__  # that of other enums is a Python call, and a million parts are grouped by it

    def __str__(self) -> str:
        return self.value


class Part(NamedTuple):
    """One file that a layout recognises as a piece of a checkpoint. ``path`` is absolute; ``size`` in bytes,
    -1 when it cannot be read.

    ``base`` is the directory above everything the layout's template matched, ``home`` the checkpoint's own
    directory ("" when its parts lie among those of others). ``coords`` are parallel coordinates other than
    the rank, such as (("tp", 1), ("pp", 0)). ``findings`` are what the directory listing alone shows (a
    dangling link, a directory in place of the file). A named tuple: trees have a million parts, and a frozen
    dataclass takes eight times as long to build.
    """

    path: str
    layout: str
    piece: str
    role: str
    run: str
    base: str
    home: str = ""
    prefix: str = ""
    kind: Kind = Kind.PERIODIC
    rank: int | None = None
    coords: tuple[tuple[str, int], ...] = ()
    step: int | None = None
    epoch: int | None = None
    step_in_epoch: int | None = None
    generation: int | None = None
    unfinished: bool = False
    size: int = 0
    mtime_ns: int = 0
    findings: tuple[Finding, ...] = ()


class Unseen(NamedTuple):
    """A file or directory below ROOT that could not be looked at, and ``why``. ``step`` is what its name
    tells as a part, ``mtime_ns`` its own modification time; None where that could not be asked for either,
    and 0 for what vanished meanwhile.
    """

    path: str
    why: str
    step: int | None = None
    mtime_ns: int | None = None
