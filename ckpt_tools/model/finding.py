"""One observation about a file or a checkpoint, and the verdict that such findings amount to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum, IntEnum
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

# ---- What a layout finds wrong with files that it knows: a finding before a rule has made one of it.


class Flaw(Struct, frozen=True):
    """``code`` is one of the catalogue, whose severity and hint it has unless they are given; ``path`` is
    what it is about, "" for the file beside which it is given; the rest is as in a finding.
    """

    code: str
    message: str
    offset: int | None = None
    severity: Severity | None = None
    path: str = ""
    hint: str = ""
    ranks: tuple[tuple[int, int], ...] = ()
    follows: bool = False


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


class Finding(Struct, frozen=True):
    """One observation. ``offset`` is a byte offset in the file at ``path`` when it is known; ``path`` is
    empty inside a report.

    ``ranks`` are all that it is about where it is about ranks, as (first, last) of each run of neighbours.
    ``follows``: other findings beside it are its cause. ``rule`` is the id of the rule that it is of, "" for
    the one that its code has (planning/rules/catalogue.py).
    """

    code: str
    severity: Severity
    message: str
    offset: int | None = None
    hint: str = ""
    path: str = ""
    ranks: tuple[tuple[int, int], ...] = ()
    follows: bool = False
    rule: str = ""

    @property
    def is_error(self) -> bool:
        return self.severity is Severity.ERROR

    def at(self, path: str) -> Finding:
        """The same about a path, unless it names one itself."""
        return self if self.path else replace(self, path=path)


def worst(findings: tuple[Finding, ...] | list[Finding]) -> Verdict:
    """The verdict that findings alone justify: broken, suspect or ok."""
    top = max((f.severity for f in findings), default=Severity.NOTE)
    return {Severity.ERROR: Verdict.BROKEN, Severity.WARNING: Verdict.SUSPECT, Severity.NOTE: Verdict.OK}[top]


def blind(findings: Iterable[Finding]) -> bool:
    """Return True if something could not be looked at, beyond entries of the file system's own."""
    return any(f.code == "unreadable" and f.severity is not Severity.NOTE for f in findings)


def cut_short(found: Sequence[Finding], size: int) -> bool:
    """Return True if the file's end is known to be missing: it is broken, whatever is left of it."""
    return any(
        f.code == "truncated" and f.severity is Severity.ERROR and (f.offset or size) >= size for f in found
    )


class Notes(NamedTuple):
    """How a layout or a format, which opens nothing itself, asks for small files beside the checkpoints.

    ``read`` takes a path and how many bytes it may have.

    It gives the bytes, None where there is no such file, or a finding that says why they cannot be had.
    ``gone`` takes a path, that of the file that names it, and what to say where it is not there:
    None when it is there.
    """

    read: Callable[[str, int], bytes | Finding | None]
    gone: Callable[[str, str, str], Finding | None]
