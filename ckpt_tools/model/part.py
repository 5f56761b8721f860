"""One file that a layout recognises as a piece of a checkpoint, and what could not be looked at."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from ckpt_tools.model.finding import Finding

if TYPE_CHECKING:
    from typing_extensions import Self


class Kind(str, Enum):
    """Why a checkpoint was saved (docs/design.md section 2)."""

    PERIODIC = "periodic"
    DYING_GASP = "dying-gasp"
    RELEASE = "release"
    BEST = "best"

    __hash__ = str.__hash__  # that of other enums is a Python call, and a million parts are grouped by it

    def __str__(self) -> str:
        return self.value

    @property
    def adjective(self) -> str:
        """What is said before "checkpoint", with a space behind it; nothing of a regular one."""
        return {"periodic": "", "dying-gasp": "emergency ", "release": "exported "}.get(self, f"{self} ")


class Folder(NamedTuple):
    """What the files of one piece in one directory have in common. ``directory`` ends with a slash."""

    directory: str
    layout: str
    piece: str
    role: str
    run: str
    base: str
    home: str
    prefix: str
    kind: Kind


class Moment(NamedTuple):
    """When in training a part was saved, and for which place of the parallel grid, as its path tells."""

    coords: tuple[tuple[str, int], ...]
    step: int | None
    epoch: int | None
    step_in_epoch: int | None
    generation: int | None
    unfinished: bool


class _Row(NamedTuple):
    folder: Folder
    moment: Moment
    rank: int | None
    name: str
    size: int
    mtime_ns: int
    findings: tuple[Finding, ...]


_shared: Any = property
"""A field that is read from what parts share."""


class Part(_Row):
    """One file that a layout recognises as a piece of a checkpoint. ``path`` is absolute; ``size`` in bytes,
    -1 when it cannot be read.

    ``base`` is the directory above everything the layout's template matched, ``home`` the checkpoint's own
    directory ("" when its parts lie among those of others). ``coords`` are parallel coordinates other than
    the rank, such as (("tp", 1), ("pp", 0)). ``findings`` are what the directory listing alone shows (a
    dangling link, a directory in place of the file).

    It behaves like a named tuple of the fields below. Trees have a million parts, and those of one directory,
    or of one step, are alike in most: what they share is in memory once.
    """

    __slots__ = ()
    path: str = _shared(lambda row: row.folder.directory + row.name)
    layout: str = _shared(attrgetter("folder.layout"))
    piece: str = _shared(attrgetter("folder.piece"))
    role: str = _shared(attrgetter("folder.role"))
    run: str = _shared(attrgetter("folder.run"))
    base: str = _shared(attrgetter("folder.base"))
    home: str = _shared(attrgetter("folder.home"))
    prefix: str = _shared(attrgetter("folder.prefix"))
    kind: Kind = _shared(attrgetter("folder.kind"))
    coords: tuple[tuple[str, int], ...] = _shared(attrgetter("moment.coords"))
    step: int | None = _shared(attrgetter("moment.step"))
    epoch: int | None = _shared(attrgetter("moment.epoch"))
    step_in_epoch: int | None = _shared(attrgetter("moment.step_in_epoch"))
    generation: int | None = _shared(attrgetter("moment.generation"))
    unfinished: bool = _shared(attrgetter("moment.unfinished"))

    def __new__(
        cls,
        path: str,
        layout: str,
        piece: str,
        role: str,
        run: str,
        base: str,
        home: str = "",
        prefix: str = "",
        kind: Kind = Kind.PERIODIC,
        rank: int | None = None,
        coords: tuple[tuple[str, int], ...] = (),
        step: int | None = None,
        epoch: int | None = None,
        step_in_epoch: int | None = None,
        generation: int | None = None,
        unfinished: bool = False,
        size: int = 0,
        mtime_ns: int = 0,
        findings: tuple[Finding, ...] = (),
    ) -> Self:
        above, slash, name = path.rpartition("/")
        folder = Folder(above + slash, layout, piece, role, run, base, home, prefix, kind)
        moment = Moment(coords, step, epoch, step_in_epoch, generation, unfinished)
        return super().__new__(cls, folder, moment, rank, name, size, mtime_ns, findings)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._asdict().values())

    def __len__(self) -> int:
        return len(Part._fields)

    def __getitem__(self, at: Any) -> Any:
        return tuple(self)[at]

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        return f"Part({', '.join(f'{name}={value!r}' for name, value in self._asdict().items())})"

    def _asdict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in Part._fields}

    def _replace(self, **changes: Any) -> Part:
        return Part(**{**self._asdict(), **changes})


_FIELDS = tuple(name for name in Part.__new__.__annotations__ if name != "return")
for _names in ("_fields", "__match_args__"):
    setattr(Part, _names, _FIELDS)


class Unseen(NamedTuple):
    """A file or directory below ROOT that could not be looked at, and ``why``. ``step`` is what its name
    tells as a part, ``mtime_ns`` its own modification time; None where that could not be asked for either,
    and 0 for what vanished meanwhile.
    """

    path: str
    why: str
    step: int | None = None
    mtime_ns: int | None = None


def shown(part: Part) -> str:
    """Return its path below the directory of the run."""
    return part.path.removeprefix(f"{part.base}/")


_TOGETHER_NS = 2_000_000_000
_SLOW = 20_000_000
"""Bytes that a slow file system takes in a second: so long may lie between two files of one save."""


def were_written_together(*parts: Part) -> bool:
    """Return True if files may be of one save, as their times (``mtime_ns``) are in a copy."""
    times, largest = [p.mtime_ns for p in parts], max((p.size for p in parts), default=0)
    return max(times, default=0) - min(times, default=0) <= _TOGETHER_NS + largest * 1_000_000_000 // _SLOW
