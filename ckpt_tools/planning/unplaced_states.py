"""Files that no layout places, no older than the choice, with an optimizer's state in them: a checkpoint that
was renamed, or another framework's. Nobody but the caller can say that training did not go on there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from glob import escape
from shlex import quote

from ckpt_tools.discovery.found import BareFile
from ckpt_tools.errors import UsageError
from ckpt_tools.findings import NOT_SEEN, finding
from ckpt_tools.formats import Anatomy
from ckpt_tools.formats.common.counters import is_optimizer_state
from ckpt_tools.layouts import files
from ckpt_tools.layouts.common.bare_names import read_bare_name
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.part import Kind, Part, Unseen
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.selection import Selection
from ckpt_tools.reading.bare_files import has_optimizer
from ckpt_tools.reading.session import Session
from ckpt_tools.storage import LocalSource, ShortRead

_BLOCK = 1 << 20
_MOST = 512
"""Files that are inspected, the newest ones."""


def newer_states(s: Session, c: Checkpoint, step: int | None, asked: Selection) -> Iterator[Finding]:
    """Notes about such files whose names call them the best or an export: those are never the newest.

    Raises UsageError where one of another name may be of a later step than the choice.
    """
    narrowed = (asked.layout, asked.prefix, asked.max_step, asked.kind)
    if narrowed != (None,) * 4 or asked.resume_from == "tracker" or asked.level is Level.PRESENCE:
        return
    above = c.parts[0].base if asked.run is not None else s.root
    newer = sorted(_saved_after(s, c, above), key=lambda f: -f.mtime_ns)
    for file in newer[:_MOST]:
        if not _may_be_later(s, file, above, c, step):
            continue
        kinds = {read_bare_name(name).kind for name in os.path.relpath(file.path, above).split("/")}
        if kinds == {Kind.PERIODIC}:
            raise _question(s, c, file.path)
        text = f"it holds an optimizer's state and is no older than {c.label}, but is not called a checkpoint"
        yield finding("passed-over", text, path=file.path)


def _may_be_later(s: Session, file: BareFile, above: str, c: Checkpoint, step: int | None) -> bool:
    """Whether training may have gone on with a file, as far as its content tells."""
    report, anatomy = s.inspect(file.path, Level.STRUCTURE, file.findings)
    s.unplaced += (Unseen(file.path, f.message) for f in report.findings if f.code in NOT_SEEN)
    if report.verdict in (Verdict.BROKEN, Verdict.UNKNOWN):
        return False
    if _is_optimizer_array(file, above, anatomy):
        return True
    copied = (_same_bytes(s, file, p) for p in c.parts)  # latest.pth, a copy of the newest
    return _further(report, anatomy, step) and not any(copied)


def _saved_after(s: Session, c: Checkpoint, above: str) -> Iterator[BareFile]:
    """Files of a checkpoint format outside every checkpoint's own directory, of the same time where times are
    lost.
    """
    newest = max(p.mtime_ns for p in c.parts)
    later = [
        f for f in s.found.bare if f.mtime_ns >= newest and f.size > 0 and f.path.startswith(f"{above}/")
    ]
    if not later:
        return
    homes = {p.home for p in s.parts if p.home}
    explained = set(s.indexes.members({p.path for p in s.parts}))
    for file in later:
        if file.path in explained:
            continue
        inside = file.path[len(above) + 1 :].split("/")
        directories = (f"{above}/{'/'.join(inside[:depth])}" for depth in range(1, len(inside)))
        if homes.isdisjoint(directories):
            yield file


def _is_optimizer_array(file: BareFile, above: str, anatomy: Anatomy) -> bool:
    """Whether a file describes an array that is called as an optimizer's state: zarr's is its directory. All
    saves have the same bytes there.
    """
    return bool(anatomy.tensors) and is_optimizer_state(os.path.relpath(os.path.dirname(file.path), above))


def _same_bytes(s: Session, file: BareFile, part: Part) -> bool:
    if file.size != part.size:
        return False
    try:
        with LocalSource(file.path) as one, LocalSource(part.path) as other:
            sizes = ((at, min(_BLOCK, part.size - at)) for at in range(0, part.size, _BLOCK))
            return all(one.read(at, size) == other.read(at, size) for at, size in sizes)
    except OSError as why:
        s.unplaced.append(Unseen(file.path, f"cannot read it: {why.strerror}"))
    except ShortRead:
        s.unplaced.append(Unseen(file.path, "it changed while it was read"))
    return False


def _further(report: Report, anatomy: Anatomy, step: int | None) -> bool:
    """Whether a file holds the state of an optimizer, and not only its settings, that may have gone further
    than ``step``.
    """
    state = bool(anatomy.tensors) or "param_groups" in anatomy.keys
    told = files.number(report.metadata, files.STEPS)
    return state and has_optimizer(report, anatomy) and (step is None or told is None or told > step)


def _question(s: Session, c: Checkpoint, path: str) -> UsageError:
    name = os.path.relpath(path, s.root)
    top = name.partition("/")[0]
    text = (
        f"which checkpoint is the newest is in doubt: {name} was saved no earlier than {c.label} ({c.path}),"
        " holds an optimizer's state, and lies in no arrangement that a layout describes"
    )
    hint = (
        f"give {quote(os.path.join(s.root, top))} as ROOT to resume from it, or say --exclude"
        f" {quote(escape(top))} to resume from {c.label}"
    )
    return UsageError(text, hint)
