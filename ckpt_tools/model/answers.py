"""The answers of verify, scan and watch, and of commands that change a tree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field

from ckpt_tools.model.checkpoint import Checkpoint, CheckpointKey
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Level, Report

if TYPE_CHECKING:
    from ckpt_tools.layouts import Layouts

# ---- What ``ckpt watch`` says: one event after the other.


TYPES = ("started", "checkpoint", "gone", "pass", "restart", "hook", "problem", "stopped")


class Event(Struct, frozen=True):
    """One event of ``ckpt watch``."""

    type: str
    time: float  # seconds since the epoch
    root: str | None = None  # None if it is about no single directory
    fields: Mapping[str, object] = field(default_factory=dict)  # by type: docs/json.md
    findings: tuple[Finding, ...] = ()


class FileReport(Struct, frozen=True):
    """The report on one file; ``part`` is None for a file that no layout knows, only its format."""

    part: Part | None
    report: Report


class Summary(Struct, frozen=True):
    """Counts of files in one verification; ``below_level``: not looked at as deeply as asked."""

    files: int = 0
    bytes: int = 0
    bytes_read: int = 0
    seconds: float = 0.0
    ok: int = 0
    suspect: int = 0
    broken: int = 0
    unknown: int = 0
    below_level: int = 0
    unrecognised: int = 0

    @property
    def verdicts(self) -> dict[str, int]:
        """How many files have each verdict."""
        return {"ok": self.ok, "suspect": self.suspect, "broken": self.broken, "unknown": self.unknown}


class Sample(Struct, frozen=True):
    """How much of the contents was read when only a part was requested."""

    asked: str | None
    max_duration: float | None  # seconds
    stopped: bool  # the duration ended the run
    bytes: int
    bytes_read: int
    blocks: int  # as files
    blocks_read: int
    files: int  # with contents
    files_read: int  # to their end
    never: int  # files that neither this run nor a remembered one has checked
    oldest_ns: int | None  # time of the least recent check; None while some were never checked


class Verification(Struct, frozen=True):
    """The answer of ``verify``. ``findings`` are about several files, and have paths; reports have others."""

    root: str
    verdict: Verdict
    level: Level
    summary: Summary
    files: tuple[FileReport, ...] = ()
    findings: tuple[Finding, ...] = ()
    sample: Sample | None = None

    @property
    def in_files(self) -> list[Finding]:
        """The findings of single files, each with the path of its file."""
        return [f.at(entry.report.path) for entry in self.files for f in entry.report.findings]


class Tracker(Struct, frozen=True):
    """A file beside checkpoints that names the latest one."""

    path: str
    says: int | str | None  # its text; None: its framework would not write that
    names: Checkpoint | None = None  # the checkpoint of that name; None: there is none


class Scan(Struct, frozen=True):
    """The answer of ``scan``: the checkpoints of each run, newest first; ``expected`` maps a run to its
    number of ranks, as far as file names tell.

    ``bare`` counts files recognised by the name of their format alone, ``unrecognised`` all others,
    ``excluded`` entries that the caller has hidden. ``layouts`` are the layouts that were used, None for the
    built-in ones. ``trackers`` are read only if requested. ``states``: ``resumable``, ``weights-only``, or
    ``partial`` for a save that is not whole; "" if formats do not tell.
    """

    root: str
    checkpoints: tuple[Checkpoint, ...] = ()
    expected: Mapping[str, int] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    bare: int = 0
    unrecognised: int = 0
    excluded: int = 0
    layouts: Layouts | None = None
    trackers: tuple[Tracker, ...] = ()
    states: Mapping[CheckpointKey, str] = field(default_factory=dict)


# ---- What a command does to a tree, or would do.


class Change(Struct, frozen=True):
    """What happens to one checkpoint or file."""

    path: str
    state: str  # a word such as "moved" or "would-move", or "stays" for one that is left alone
    why: str = ""
    to: str | None = None  # its new path, if it is moved
    label: str = ""
    files: int = 1
    size: int = 0  # bytes of its files


class Changes(Struct, frozen=True):
    """The answer of a command that changes a tree. ``operation`` is its number in the journal, None if
    nothing was done; ``findings`` are further facts to know.
    """

    command: str
    root: str
    applied: bool
    changes: tuple[Change, ...] = ()
    findings: tuple[Finding, ...] = ()
    operation: int | None = None

    @property
    def to_do(self) -> tuple[Change, ...]:
        """All changes that are done, or would be."""
        return tuple(c for c in self.changes if c.state != "stays")
