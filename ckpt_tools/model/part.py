"""One file that a layout recognises as a piece of a checkpoint, and what could not be looked at."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from ckpt_tools.model.finding import Finding, Word

if TYPE_CHECKING:
    from typing_extensions import Self


class Kind(Word):
    """Why a checkpoint was saved (docs/design.md section 2)."""

    PERIODIC = "periodic"
    DYING_GASP = "dying-gasp"
    RELEASE = "release"
    BEST = "best"

    __hash__ = str.__hash__  # an Enum's own is a slow Python call, and a million parts are grouped by kind

    @property
    def adjective(self) -> str:
        """The word before "checkpoint" in messages, with a space behind it; "" for a regular checkpoint."""
        return {"periodic": "", "dying-gasp": "emergency ", "release": "exported "}.get(self, f"{self} ")


class Folder(NamedTuple):
    """The fields that all files of one piece in one directory share. ``directory`` ends with a slash."""

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
    """When in training a part was saved, and its place in the parallel grid, as its path tells."""

    coords: tuple[tuple[str, int], ...]
    step: int | None
    epoch: int | None
    step_in_epoch: int | None
    generation: int | None
    unfinished: bool


class _Row(NamedTuple):
    """How a Part is kept in memory: its own fields, and the two values that it shares with others."""

    folder: Folder
    moment: Moment
    rank: int | None
    name: str
    size: int
    mtime_ns: int
    findings: tuple[Finding, ...]


_shared: Any = property
"""Declares a field of Part that is read from the row's ``folder`` or ``moment``."""


class Part(_Row):
    """One file that a layout recognises as a piece of a checkpoint. ``path`` is absolute; ``size`` is in
    bytes, -1 if it cannot be read.

    ``base`` is the directory above all names in the layout's template, ``home`` the checkpoint's own
    directory ("" if its parts lie among other checkpoints' parts). ``coords`` are parallel coordinates other
    than the rank, such as (("tp", 1), ("pp", 0)). ``findings`` are what the directory listing alone shows (a
    dangling link, a directory in place of the file).

    A tree may have a million parts: what those of one directory or step share is in memory once.
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

    def __reduce__(self) -> tuple[Any, ...]:
        return Part._make, (tuple(self),)

    def __repr__(self) -> str:
        return f"Part({', '.join(f'{name}={value!r}' for name, value in self._asdict().items())})"

    def _asdict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in Part.__new__.__annotations__ if name != "return"}

    def _replace(self, **changes: Any) -> Part:
        return Part(**{**self._asdict(), **changes})


class Unseen(NamedTuple):
    """A file or directory below ROOT that could not be looked at, and ``why``. ``step`` is the step in its
    name if it is a part; ``mtime_ns`` is None if nobody could ask for it, and 0 if the file vanished
    meanwhile.
    """

    path: str
    why: str
    step: int | None = None
    mtime_ns: int | None = None


def shown(part: Part) -> str:
    """Return a part's path below the directory of its run."""
    return part.path.removeprefix(f"{part.base}/")


_TOGETHER_NS = 2_000_000_000
_SLOW = 20_000_000
"""Bytes per second of a slow file system: two files of one save may lie as far apart as writing one takes."""


def were_written_together(*parts: Part) -> bool:
    """Return True if files may be of one save by their times (``mtime_ns``), as a copy has them as well."""
    times, largest = [p.mtime_ns for p in parts], max((p.size for p in parts), default=0)
    return max(times, default=0) - min(times, default=0) <= _TOGETHER_NS + largest * 1_000_000_000 // _SLOW
