"""Saves that may still be written: their files, their age, and where the tracker stands."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from ckpt_tools import formats
from ckpt_tools.discovery.completeness import where
from ckpt_tools.discovery.unrecognised import tells_of_a_state
from ckpt_tools.findings import WAIT
from ckpt_tools.layouts import Stage
from ckpt_tools.layouts.common import templates
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.plan import Rejected
from ckpt_tools.model.report import Level
from ckpt_tools.planning.rules.save import unfinished
from ckpt_tools.planning.trackers import find_tracker_of, get_time_written
from ckpt_tools.reading.session import Session

TORN = frozenset({"truncated", "empty-file", "zero-filled", "missing-rank", "missing-part"})
"""What a save that is still under way looks like: too short, or not there.

A header that contradicts another was not left by any cut save.
"""
_MOST = 16
"""Temporary files that are looked into."""

_NUMBER = re.compile(r"[0-9]+")


def is_marked(c: Checkpoint) -> bool:
    """Whether the name of its directory says so, as any framework's may."""
    return templates.is_marked(c.parts[0].home)


def find_not_renamed(s: Session, saves: Sequence[Checkpoint]) -> Checkpoint | None:
    """Return the first whole save that only a foreign mark in its name calls unfinished."""
    for c in saves:
        commit = s.layouts.of(c).complete.commit
        done = not commit or any(p.role == commit for p in c.parts)
        pieces = [s.layouts.piece_of(p) for p in c.parts]
        if done and is_marked(c) and not any(p.stage is not Stage.ANY for p in pieces):
            findings = (f for p in c.parts for f in s.report(p, Level.STRUCTURE).findings)
            if not any(f.code in TORN for f in findings):
                return c
    return None


def find_torn_lately(s: Session, rejected: Iterable[Rejected]) -> Iterator[Finding]:
    """Yield candidates that lost for missing or short files, and were written seconds ago."""
    for c, findings in ((r.checkpoint, r.findings) for r in rejected if r.checkpoint.parts):
        torn = {f.code in TORN for f in findings if f.is_error} == {True}
        declared = not s.layouts.of(c).tracker.early and find_tracker_of(s, c)
        if torn and not declared and (told := state(s, c)):
            yield unfinished.describe_torn(c, told)


def find_hint(s: Session, c: Checkpoint) -> str:
    """Return what to do about a save that may still be written; "" where it is older than --settle."""
    return WAIT if state(s, c) else ""


def state(s: Session, c: Checkpoint) -> str:
    """Return ``3 files, the last written 4 s ago``; "" if older than --settle."""
    written = [p.mtime_ns for p in c.parts if p.size >= 0]
    age = (s.now_ns - max(written)) / 1e9 if written else -1
    if not 0 <= age < s.options.settle:
        return ""
    files = "file" if len(written) == 1 else "files"
    return f"{len(written):,} {files}, the last written {age:.0f} s ago"


def _find_temporary(s: Session) -> Iterator[str]:
    called = (path for path in s.found.unfinished if tells_of_a_state(os.path.basename(path)))
    return islice(called, _MOST)


def find_whole_temporary(s: Session) -> str | None:
    """The first temporary file that no layout has and that holds a whole state: it only was not renamed."""
    for path in _find_temporary(s):
        report = s.report_file(path, Level.STRUCTURE)
        sound = report.verdict not in (Verdict.BROKEN, Verdict.UNKNOWN)
        if sound and report.format is not None and formats.names.holds_state(report.format):
            return path
    return None


def find_later_temporary(s: Session, c: Checkpoint) -> Iterator[Finding]:
    """Yield temporary files of saves that were written no earlier than the choice ``c``."""
    later = (path for path in _find_temporary(s) if get_time_written(path) >= c.mtime_ns)
    yield from map(unfinished.describe_temporary, later)


# ---- directories beside saves, called as these are but for a higher number, with nothing of one in them


def find_begun_later(s: Session, c: Checkpoint) -> Iterator[Finding]:
    """Return warnings about such directories, and about unfinished ones that were written since ``c``."""
    base = os.path.dirname(where(c))
    there = (*s.found.empty, *s.found.strange, *(os.path.dirname(f.path) for f in s.found.bare))
    taken = _find_taken(s)
    below = [top for top in dict.fromkeys(_find_below(there, base)) if top not in taken]
    for top in _find_emptied(s, c, below):
        yield unfinished.describe_empty(top, os.path.basename(where(c)))
    late = set(_find_below((f.path for f in s.found.bare if f.mtime_ns >= c.mtime_ns), base))
    for top in below:
        if templates.is_begun(os.path.basename(top)) and top in late:
            yield unfinished.describe_marked(top, c)


def _find_emptied(s: Session, c: Checkpoint, below: Iterable[str]) -> Iterator[str]:
    """Return the directories of a higher number than those of all saves, with nothing of one in them."""
    own, told = where(c), {c.step, c.epoch, c.generation} - {None}
    if told and told.isdisjoint(find_numbers(own)):
        return
    base, pattern = os.path.dirname(own), make_pattern(own)
    beside = {at for p in s.parts if p.size >= 0 and os.path.dirname(at := p.home or p.path) == base}
    highest = max(find_numbers(at) for at in (own, *beside) if make_pattern(at) == pattern)
    for top in below:
        later = make_pattern(top) == pattern and find_numbers(top) > highest
        if later and not s.found.leaves_out(top) and not is_tracked(s, c, top):
            yield top


def is_called_alike(path: str, c: Checkpoint) -> bool:
    """Return True if a path is named like a save beside it, with higher numbers."""
    own = where(c)
    beside = os.path.dirname(path) == os.path.dirname(own)
    return beside and make_pattern(path) == make_pattern(own) and find_numbers(path) > find_numbers(own)


def is_tracked(s: Session, c: Checkpoint, top: str) -> bool:
    """Return True if a tracker beside ``c`` names the directory, its last number, or the end of its name."""
    name, numbers = os.path.basename(top), find_numbers(top)
    said = {says for _, says in s.trackers(c.layout, os.path.dirname(top))}
    ends = (name.endswith(f"-{says}") for says in said if isinstance(says, str))
    return not said.isdisjoint((name, *numbers[-1:])) or any(ends)


def make_pattern(path: str) -> str:
    """Return the name at the end of a path, without its numbers."""
    return _NUMBER.sub("#", os.path.basename(path))


def find_numbers(path: str) -> tuple[int, ...]:
    """Return the numbers in the name at the end of a path."""
    return tuple(int(n[:18]) for n in _NUMBER.findall(os.path.basename(path)))


def _find_below(directories: Iterable[str], base: str) -> Iterator[str]:
    """The directories in ``base`` that are, or hold, one of these."""
    for directory in directories:
        if directory.startswith(f"{base}/"):
            yield f"{base}/{directory[len(base) + 1 :].partition('/')[0]}"


def _find_taken(s: Session) -> set[str]:
    """All directories in which something of a checkpoint lies, or that were set aside."""
    above = set[str]()
    for path in (*(p.path for p in s.parts), *(f"{f.path}/" for f in s.aside), *s.found.unfinished):
        while (path := os.path.dirname(path)) and path not in above and path != s.root:
            above.add(path)
    return above
