"""One observation about a file or a checkpoint, and the verdict that such findings amount to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum, IntEnum
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

# ---- What layouts find; a rule makes a finding of it.


class Flaw(Struct, frozen=True):
    """What a layout finds wrong with a file; all else is as in a finding."""

    code: str  # in the catalogue, which gives severity and hint unless they are set
    message: str
    offset: int | None = None
    severity: Severity | None = None
    path: str = ""  # "" for the file that the layout looks at
    hint: str = ""
    ranks: tuple[tuple[int, int], ...] = ()
    follows: bool = False


class Word(str, Enum):
    """A text of a fixed set, printed as it is."""

    def __str__(self) -> str:
        return str(self.value)


class Degree(IntEnum):
    """One of a few steps, printed as its name."""

    def __str__(self) -> str:
        return self.name.lower()


class Severity(Degree):
    """What a finding makes of the verdict: error -> broken, warning -> suspect, note -> unchanged."""

    NOTE = 0
    WARNING = 1
    ERROR = 2


class Verdict(Word):
    """The verdict on a file. ``unknown``: nobody looked, or could look; never the same as ok."""

    OK = "ok"
    SUSPECT = "suspect"
    BROKEN = "broken"
    UNKNOWN = "unknown"


class Finding(Struct, frozen=True):
    """One observation. ``offset`` is a byte offset in the file at ``path`` (None: unknown); ``path`` is "" in
    a report.

    ``ranks`` are all ranks that it is about, as (first, last) of each range. ``follows``: other findings
    beside it are its cause. ``rule`` is the id of its rule, "" for the rule of its code
    (planning/rules/catalogue.py).
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
        """Return the finding with this path, unless it has one."""
        return self if self.path else replace(self, path=path)


def worst(findings: tuple[Finding, ...] | list[Finding]) -> Verdict:
    """Return the verdict that findings alone justify: broken, suspect or ok."""
    top = max((f.severity for f in findings), default=Severity.NOTE)
    return {Severity.ERROR: Verdict.BROKEN, Severity.WARNING: Verdict.SUSPECT, Severity.NOTE: Verdict.OK}[top]


def blind(findings: Iterable[Finding]) -> bool:
    """Return whether something could not be looked at; the file system's own entries do not count."""
    return any(f.code == "unreadable" and f.severity is not Severity.NOTE for f in findings)


def is_cut(found: Sequence[Finding], size: int) -> bool:
    """Return whether the file's end is known to be missing: it is broken, whatever is left of it."""
    return any(
        f.code == "truncated" and f.severity is Severity.ERROR and (f.offset or size) >= size for f in found
    )


class Notes(NamedTuple):
    """How a layout or a format, which opens nothing itself, asks for small files beside the checkpoints.

    ``read(path, most)`` returns the file's bytes, None if it is missing, or a finding if they cannot be read
    or are more than ``most``. ``gone(path, named_by, text)`` returns a finding if ``path`` is missing or
    cannot be looked at, else None.
    """

    read: Callable[[str, int], bytes | Finding | None]
    gone: Callable[[str, str, str], Finding | None]
