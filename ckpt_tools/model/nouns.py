"""The nouns of ckpt-tools as frozen values: every stage takes some of these and returns others. Standard library only, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import NamedTuple

Scalar = int | float | str | bool | None
"""A plain value found in a checkpoint's metadata."""


class Level(IntEnum):
    """How deep a check looks; each level includes the ones before it (docs/design.md section 6)."""

    PRESENCE = 0
    STRUCTURE = 1
    CONTENT = 2
    VALUES = 3
    LOAD = 4

    def __str__(self) -> str:
        return self.name.lower()


class Severity(IntEnum):
    """What a finding does to the verdict: error -> broken, warning -> suspect, note -> nothing."""

    NOTE = 0
    WARNING = 1
    ERROR = 2

    def __str__(self) -> str:
        return self.name.lower()


class Verdict(str, Enum):
    """``unknown`` means not looked at, or could not look: never the same as ok."""

    OK = "ok"
    SUSPECT = "suspect"
    BROKEN = "broken"
    UNKNOWN = "unknown"

    def __str__(self) -> str:
        return self.value


class Kind(str, Enum):
    """Why a checkpoint was saved (docs/design.md section 2)."""

    PERIODIC = "periodic"
    DYING_GASP = "dying-gasp"
    RELEASE = "release"
    BEST = "best"

    def __str__(self) -> str:
        return self.value


class Guard(str, Enum):
    """What notices a change in some bytes. Only ``checksum`` counts as coverage."""

    CHECKSUM = "checksum"
    """A checksum stored in the checkpoint covers them."""
    STRUCTURE = "structure"
    """No checksum does, but every changed bit contradicts something else: a second copy, a length, a fixed value."""
    UNPROTECTED = "unprotected"
    """Some or all changes go unseen."""

    def __str__(self) -> str:
        return self.value


class Region(NamedTuple):
    """``length`` bytes at ``offset`` of a file: what they are, and what protects them."""

    offset: int
    length: int
    what: str
    guard: Guard


@dataclass(frozen=True, slots=True)
class Finding:
    """One observation. ``offset`` is a byte offset in the file at ``path`` when it is known; ``path`` is empty inside a report.

    ``ranks`` are all that it is about where it is about ranks, as (first, last) of each run of neighbours. ``follows``: other findings beside it are its cause.
    """

    code: str
    severity: Severity
    message: str
    offset: int | None = None
    hint: str = ""
    path: str = ""
    ranks: tuple[tuple[int, int], ...] = ()
    follows: bool = False


class Box(NamedTuple):
    """A piece of a larger tensor: ``stop`` is the first index behind it in each dimension."""

    start: tuple[int, ...]
    stop: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor as its file describes it: ``shape`` in elements, ``offset`` and ``nbytes`` in bytes of the file.

    ``storage`` names the record that holds the bytes; ``offset`` is None when the file does not place them (meta tensors).
    ``pieces`` are the (offset, nbytes) of the bytes where they are not one run from ``offset`` on; one of no bytes says that other data lies between them.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    offset: int | None = None
    storage: str = ""
    pieces: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Stats:
    """One tensor's numbers. ``count`` is how many were looked at: bytes that an earlier tensor shares count there, a complex number is two.

    ``min`` and ``max`` are over the finite ones, None when there are none. ``absurd`` is 0 where it was not decided (fewer than 64 numbers).
    """

    name: str
    dtype: str
    count: int
    nan: int
    inf: int
    denormal: int
    absurd: int
    zeros: int
    min: float | None
    max: float | None


class Part(NamedTuple):
    """One file that a layout recognises as a piece of a checkpoint. ``path`` is absolute; ``size`` in bytes, -1 when it cannot be read.

    ``base`` is the directory above everything the layout's template matched, ``home`` the checkpoint's own directory ("" when its
    parts lie among those of others). ``coords`` are parallel coordinates other than the rank, such as (("tp", 1), ("pp", 0)). ``findings`` are what the directory
    listing alone shows (a dangling link, a directory in place of the file). A named tuple: trees have a million parts, and a frozen
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


class Unlisted(NamedTuple):
    """A dotted ``name`` in a pickle that is in no list of what frameworks write, and where it is first named; ``called`` says that loading the pickle calls it."""

    name: str
    called: bool
    offset: int


class Unseen(NamedTuple):
    """A file or directory below ROOT that could not be looked at, and ``why``. ``step`` is what its name tells as a part, ``mtime_ns`` its own modification time;
    None where that could not be asked for either, and 0 for what vanished meanwhile.
    """

    path: str
    why: str
    step: int | None = None
    mtime_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What one pass over one file saw. ``coverage`` is the fraction of bytes that a stored checksum protects, 0.0 to 1.0.

    ``signature`` digests the names, dtypes and shapes of the tensors in file order ("" when there are none). ``mode`` holds
    the permission bits. ``regions`` tile the file when they were asked for (--explain-bytes),
    ``stats`` are the numbers in its tensors, from level values on, ``unlisted`` the names in its pickles that nobody vouches for.
    """

    path: str
    format: str | None
    size: int
    verdict: Verdict
    level: Level
    coverage: float = 0.0
    metadata: Mapping[str, Scalar] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    signature: str = ""
    tensors: int = 0
    bytes_read: int = 0
    mtime_ns: int = 0
    mode: int = 0
    regions: tuple[Region, ...] = ()
    stats: tuple[Stats, ...] = ()
    unlisted: tuple[Unlisted, ...] = ()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All parts saved for one iteration of one run. ``mtime_ns`` is the median over its required parts; ``path`` their common directory."""

    layout: str
    run: str
    kind: Kind
    parts: tuple[Part, ...]
    path: str
    mtime_ns: int
    step: int | None = None
    epoch: int | None = None
    epoch_base: int | None = None
    step_in_epoch: int | None = None
    generation: int | None = None
    unfinished: bool = False

    @property
    def label(self) -> str:
        """Which checkpoint it is, in a few words: its step, else its epoch, else which save it is where its name only counts them, else its own name."""
        if self.step is not None:
            return f"step {self.step}"
        if self.epoch is not None:
            return f"epoch {self.epoch}" + (
                f" step {self.step_in_epoch}" if self.step_in_epoch is not None else ""
            )
        return f"save {self.generation}" if self.counted else self.path.rpartition("/")[2]

    @property
    def counted(self) -> bool:
        """Whether nothing but a count of saves tells it from its siblings (TensorFlow, Accelerate); else ``generation`` counts restarts."""
        return self.step is None and self.epoch is None and self.generation is not None

    @property
    def order(self) -> tuple[int, int, int]:
        """Progress of training as a sortable value; unknown counts as oldest. Where nothing else is known, saves that were counted are in that order."""
        if self.counted:
            return -1, -1, self.generation or 0
        return (
            self.step if self.step is not None else -1,
            self.epoch if self.epoch is not None else -1,
            self.step_in_epoch if self.step_in_epoch is not None else -1,
        )


@dataclass(frozen=True, slots=True)
class Known:
    """A number of the topology and where it comes from ("--world-size", "args in the file", …)."""

    value: int
    provenance: str


@dataclass(frozen=True, slots=True)
class FileLoad:
    """One file that a rank loads. ``source_rank`` is whose file it is, ``reason`` says why a substitute is used and what proves it."""

    role: str
    path: str
    size: int
    mtime_ns: int
    level: Level
    coverage: float
    source_rank: int | None
    substituted: bool = False
    node: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RankLoad:
    """The files one rank loads."""

    rank: int
    files: tuple[FileLoad, ...]


@dataclass(frozen=True, slots=True)
class Resume:
    """How the layout's own framework is told: ``path`` is None when ranks load different files."""

    path: str | None
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


RESUME_VARIABLES = frozenset({"CKPT_LOAD_DIR", "CKPT_TAG"})
"""What ``Resume.env`` of any layout may set."""
RESUME_WORDS = frozenset(
    {
        "--load",
        "--ckpt-step",
        "--resume",
        "--resume_from_checkpoint",
        "--ckpt_path",
        "--load_dir",
        "--tag",
        "--universal-checkpoint",
    }
)
"""Flags that ``Resume.args`` of our own layouts may hold."""


@dataclass(frozen=True, slots=True)
class Rollback:
    """A dying-gasp checkpoint at step ``origin`` was not resumable; training resumes from ``target`` at most."""

    origin: int
    target: int
    save_interval: int
    why: str


class EarlierStart(NamedTuple):
    """What the last start of a job from this root resumed from, as its decision was recorded. ``decided_at`` in seconds since the epoch.

    ``mtime`` is that of the checkpoint, ``passed`` names those of later steps that were there and were passed over, as (path, mtime), in seconds.
    """

    step: int | None
    path: str
    decided_at: float
    mtime: float = 0.0
    passed: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Rejected:
    """A better-ranked candidate and why it lost."""

    checkpoint: Checkpoint
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """The winning checkpoint (None when every candidate lost) and, in order, why every better-ranked one lost."""

    checkpoint: Checkpoint | None
    rejected: tuple[Rejected, ...] = ()
    attempts: int = 0
    exhausted: bool = False
    rollback: Rollback | None = None


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """For every rank, the files to load, whose they are and why (docs/json.md has the JSON form). ``candidates`` are in the order in which they were considered.

    ``bytes_verified`` is what the answer rests on, ``bytes_read`` what was read for it this time: the rest was known from earlier looks. ``below_level`` counts the
    files to load that were not looked at as deeply as asked, ``budget`` is in seconds. ``excluded`` counts the entries
    that the caller has hidden.
    """

    root: str
    checkpoint: Checkpoint | None
    resume: Resume
    ranks: tuple[RankLoad, ...] = ()
    shared: tuple[FileLoad, ...] = ()
    world_size: int | None = None
    saved_world_size: int | None = None
    topology: Mapping[str, Known] = field(default_factory=dict)
    rollback: Rollback | None = None
    rejected: tuple[Rejected, ...] = ()
    ahead: tuple[Checkpoint, ...] = ()
    attempts: int = 0
    bytes_verified: int = 0
    warnings: tuple[Finding, ...] = ()
    fingerprint: str = ""
    candidates: tuple[Checkpoint, ...] = ()
    bytes_read: int = 0
    budget: float | None = None
    below_level: int = 0
    excluded: int = 0

    @property
    def resume_step(self) -> int | None:
        """The step to resume from: training continues at the next one."""
        return self.checkpoint.step if self.checkpoint else None


def blind(findings: Iterable[Finding]) -> bool:
    """Whether something could not be looked at; what belongs to the file system itself is a note and does not count."""
    return any(f.code == "unreadable" and f.severity is not Severity.NOTE for f in findings)


def worst(findings: tuple[Finding, ...] | list[Finding]) -> Verdict:
    """The verdict that findings alone justify: broken, suspect or ok."""
    top = max((f.severity for f in findings), default=Severity.NOTE)
    return {Severity.ERROR: Verdict.BROKEN, Severity.WARNING: Verdict.SUSPECT, Severity.NOTE: Verdict.OK}[top]
