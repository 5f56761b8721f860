"""Files of a checkpoint that are gone, or hold only zeros, as the saves of its run beside it tell."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing

from ckpt_tools.crosscheck.emptied import is_tracked
from ckpt_tools.findings import finding
from ckpt_tools.formats.common.zeros import ZEROS, all_zero
from ckpt_tools.layouts.common import arrays
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.report import Level
from ckpt_tools.reading.session import Session
from ckpt_tools.storage import opened
from ckpt_tools.storage.listing import names_of
from ckpt_tools.storage.retry import there
from ckpt_tools.storage.urls import inside

_ALIKE = 8
"""Files that a directory has in common with a checkpoint, to be called one that lost its index."""
_CHUNK = re.compile(r"\d+(?:\.\d+)*")
_ZEROED = r"(?i:(?:^|[/._])(?:opt|optim|optimizer|param_states)(?:[/._]|_?state))"
"""States of optimizers: gradients that are collected over several steps are zeros again after them."""


def lost(s: Session, c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Finding]:
    """What is gone of a checkpoint, beside others of its run."""
    if not c.unfinished:
        yield from s.layouts.of(c).lost(c, beside)
        yield from list(_unwritten(s, c)) or _left_out(s, c, beside)
        yield from _undescribed(s, c) if s.found.strange else ()


def unlike_list(s: Session, c: Checkpoint) -> Iterator[Finding]:
    """What a checkpoint's own list names, and of which nothing is there that could be loaded."""
    lists = s.layouts.of(c).lists
    if c.unfinished or lists is None:
        return
    loaded = [f"{p.path}/" for p in c.parts if s.layouts.piece_of(p).loaded]
    idle = {p.path for p in c.parts}
    for part in [p for p in c.parts if p.role == lists[0]]:
        named = filter(None, map(lists[1].fullmatch, s.report(part, Level.STRUCTURE).metadata))
        for path in filter(None, (inside(os.path.dirname(part.path), m[1]) for m in named)):
            if not any(file.startswith(f"{path}/") for file in loaded) and _nothing_in(s, path, idle):
                name = path.removeprefix(f"{c.path}/")
                text = f"{name}, with which {part.name} was saved, is not there, or nothing is in it"
                yield finding("missing-part", text, path=c.path)


def _nothing_in(s: Session, path: str, idle: Collection[str]) -> bool:
    """Whether neither a file nor a directory with one that is not ``idle`` is there."""
    try:
        return all(f"{path}/{name}" in idle for name in names_of(path))
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return False
    except OSError as e:
        s.unread[path] = e.strerror or str(e)
        return False


def zeroed(s: Session, c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Finding]:
    """Raw tensors that are zeros from end to end, and something else in the saves before and after. ``c`` is
    with what its indexes add; its files were looked at.
    """
    for part in c.parts if beside and not c.unfinished else ():
        report = s.reports.get(part.path)
        if report is None or not report.metadata.get(ZEROS) or not part.path.startswith(f"{c.path}/"):
            continue
        name = part.path.removeprefix(f"{c.path}/")
        others = [os.path.join(o.path, name) for o in beside]
        if all(_there(s, path) for path in others) and not any(_zeros(s, path) for path in others):
            text = "all of its bytes are zero, and in the run's other checkpoints they are not"
            severity = _severity(name)
            if _confirmed(s, part.path):
                yield finding("zero-filled", text, path=part.path, offset=0, severity=severity)


def _zeros(s: Session, path: str) -> bool:
    """Whether a tensor of another save is zeros, or nothing can be said of it."""
    report = s.report_file(path, Level.STRUCTURE)
    return report.verdict in (Verdict.BROKEN, Verdict.UNKNOWN) or bool(report.metadata.get(ZEROS))


def _confirmed(s: Session, path: str) -> bool:
    """Whether all of a file is zeros; read only where its ends are."""
    try:
        with closing(opened(path)) as source:
            return all_zero(source)
    except OSError as e:
        s.unread[path] = e.strerror or str(e)
        return False


def _severity(name: str) -> Severity:
    return Severity.WARNING if re.search(_ZEROED, name) else Severity.ERROR


def _unwritten(s: Session, c: Checkpoint) -> Iterator[Finding]:
    """Chunks of arrays that their framework writes in full: elsewhere one of zeros alone is no file. At step
    0 a counter is zero, too.
    """
    written = s.layouts.of(c).written
    if written is None or not c.step:
        return
    above = f"{c.path}/"
    for p in c.parts:
        names = [path.removeprefix(above) for path in s.indexes.left_out.get(p.path, ())]
        if names and written.fullmatch(os.path.dirname(p.path).removeprefix(above)):
            text = f"{ranges.names(names)} is not there, and its framework writes all of this array"
            yield finding("missing-part", text, path=p.path)


def _left_out(s: Session, c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Finding]:
    """Files that their index does not ask for (a chunk that only holds zeros), and that the others have."""
    above = f"{c.path}/"
    for index in [p.path for p in c.parts if beside and p.path in s.indexes.left_out]:
        names = [p.removeprefix(above) for p in s.indexes.left_out[index] if p.startswith(above)]
        gone = [name for name in names if all(_there(s, os.path.join(o.path, name)) for o in beside)]
        if gone:
            text = f"{ranges.names(gone)} is not there, which the run's other checkpoints have"
            severity = _severity(gone[0])
            if severity is Severity.WARNING:
                text += ": it would be read as zeros"
            yield finding("missing-part", text, path=index, severity=severity)


def _undescribed(s: Session, c: Checkpoint) -> Iterator[Finding]:
    """Chunks of an array of which the file that describes them is gone."""
    described = {os.path.dirname(p.path) for p in c.parts if arrays.is_array(s.layouts.piece_of(p))}
    for home in s.found.strange if described else ():
        above = home
        while len(above) > len(c.path) and above not in described:  # there may be one for each axis
            above = os.path.dirname(above)
        try:
            if above == c.path and all(map(_CHUNK.fullmatch, names_of(home))):
                text = "chunks of an array are in it, and nothing that describes them"
                yield finding("missing-part", text, path=home)
        except OSError as e:
            s.unread[home] = e.strerror or str(e)


def headless(s: Session, c: Checkpoint) -> Iterator[Finding]:
    """Directories beside a checkpoint that hold such data files, and nothing that describes them. ``c`` is
    with what its indexes add.
    """
    above = f"{c.path}/"
    data = [p.path.removeprefix(above) for p in c.parts if p.role == "data" and p.path.startswith(above)]
    known = {p.home for p in s.parts} | {
        _home(f.path, c) for f in s.aside
    }  # a copy that was set aside is no save
    below = {os.path.dirname(name) for name in data}
    for home in dict.fromkeys(_homes(s.found.strange, below, os.path.dirname(c.path))):
        if home not in known and all(_there(s, os.path.join(home, name)) for name in data[:_ALIKE]):
            text = f"it holds such files as {os.path.basename(c.path)} does, and nothing that describes them"
            if not is_tracked(s, c, home):
                yield finding("unfinished-save", text, path=home)


def _home(path: str, c: Checkpoint) -> str:
    """The directory beside a checkpoint that a path lies in, or is."""
    base = os.path.dirname(c.path)
    return f"{base}/{path.removeprefix(f'{base}/').partition('/')[0]}"


def _homes(directories: Iterable[str], below: Collection[str], base: str) -> Iterator[str]:
    """Directories in ``base`` in which one of the ``directories`` lies where one of ``below`` does."""
    for directory in directories:
        home, _, rest = directory.removeprefix(f"{base}/").partition("/")
        if directory.startswith(f"{base}/") and rest in below:
            yield f"{base}/{home}"


def _there(s: Session, path: str) -> bool:
    try:
        return there(path)
    except OSError as e:
        s.unread[path] = e.strerror or str(e)
        return False
