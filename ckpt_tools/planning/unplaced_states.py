"""Files that no layout places, no older than the choice, with an optimizer's state in them: a checkpoint that
was renamed, or another framework's. Nobody but the caller can say that training did not go on there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from ckpt_tools import formats
from ckpt_tools.crosscheck.emptied import empty_saves
from ckpt_tools.crosscheck.lost import headless
from ckpt_tools.discovery.exclude import without
from ckpt_tools.discovery.found import BareFile
from ckpt_tools.discovery.renamed_names import unpacked_name, wrapped_state
from ckpt_tools.discovery.written_since import (
    Unread,
    begun_since,
    packed_since,
    states_since,
    unnamed_since,
)
from ckpt_tools.errors import UsageError
from ckpt_tools.findings import finding
from ckpt_tools.layouts import files
from ckpt_tools.layouts.common import loop_counters
from ckpt_tools.layouts.common.bare_names import may_be_later, read_bare_name, says_checkpoint
from ckpt_tools.layouts.common.named_parts import are_parts
from ckpt_tools.layouts.common.under_way import is_marked
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Kind, Unseen
from ckpt_tools.model.report import Level, Report
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.held_states import MOST, Held, Steps, counted, held_in, is_training_state
from ckpt_tools.reading.session import Session

_SMALLER = 10
"""How much smaller than the choice's largest file, an optimizer's, another state may be: a model's."""
_PLACE = "if it is of this run, give it the name that its framework gave it, or describe it in ckpt.toml"
_NAMED = 3
"""Files without a training state that have a line of their own."""


class _Unplaced(NamedTuple):
    """A file whose content nobody reads, what it was ``called`` as a checkpoint, and ``what`` it is."""

    path: str
    called: str
    what: str = "packed or encrypted"


def newer_states(s: Session, c: Checkpoint, step: int | None, asked: Selection) -> Iterator[Finding]:
    """Notes about such files that are passed over: the best and exports, which are never the newest by their
    names, and those whose content tells no later step or no training state.

    Raises UsageError where one of another name may be of a later step than the choice. Below a --max-step it
    is one that tells such a step: what was saved after an older choice is mostly of the steps above.
    """
    if _told_where(asked) or asked.level is Level.PRESENCE:
        return
    above = c.parts[0].base if asked.run is not None else s.root
    steps = Steps(step, asked.max_step)
    yield from _left_out(s, c, step)
    yield from _begun(s, c, above)
    yield from _unread_saves(s, c, above, steps)
    renamed = list(_renamed(s, c, above))
    newer = sorted((*_saved_after(s, c, above), *renamed), key=lambda f: -f.mtime_ns)
    others, above_highest = list[str](), ""
    for file in newer[:MOST]:
        if packed := wrapped_state(os.path.basename(file.path)):
            yield from _unread(s, c, _Unplaced(file.path, packed), steps)
            continue
        held = held_in(s, file, above, c, steps)
        kinds = {read_bare_name(name).kind for name in os.path.relpath(file.path, above).split("/")}
        periodic = kinds == {Kind.PERIODIC}
        if held in (Held.LATER, Held.AS_MUCH) and periodic:
            raise _question(s, c, file.path, held)
        if held is Held.OTHER and _may_be_weights(file, renamed):
            others.append(file.path)
        elif held is Held.ABOVE:
            above_highest = file.path  # in the end the one that was saved first
        elif held is not None and held is not Held.OTHER:
            yield _told(file.path, c, held, periodic)
    yield from _above_the_highest(above_highest, c)
    yield from _without_training_state(others, above, c, steps)


def _told(path: str, c: Checkpoint, held: Held, periodic: bool) -> Finding:
    """A warning; a note where a name says that it is the best or an export, as often of an earlier step."""
    if held is Held.BEGUN:
        return finding("unfinished-save", f"written no earlier than {c.label}: {held.value}", path=path)
    severity = Severity.WARNING if periodic and held is not Held.LATER else None
    return _passed_over(path, c, held.value, severity)


def _may_be_weights(file: BareFile, renamed: Sequence[BareFile]) -> bool:
    return file in renamed or formats.names.state(os.path.basename(file.path))


def require_no_stranger(s: Session, c: Checkpoint, asked: Selection) -> None:
    """Raises UsageError where another layout loads a file in the very directory of the choice, or below one
    without a model: an engine may have saved it for the framework whose directory it is.
    """
    homes = {p.home for p in c.parts if p.home}
    if asked.layout is not None or not homes:
        return
    above = tuple(f"{home}/" for home in homes) if all(p.role != "model" for p in c.parts) else ()
    for p in s.parts:
        here = p.layout != c.layout and (p.home in homes or p.home.startswith(above))
        if here and s.layouts.piece_of(p).loaded:
            raise _less_than_is_there(s, c, p.path)


def _told_where(asked: Selection) -> bool:
    """Whether the caller has said which files count."""
    return (asked.layout, asked.prefix, asked.kind) != (None,) * 3 or asked.resume_from == "tracker"


def _above_the_highest(path: str, c: Checkpoint) -> Iterator[Finding]:
    """That --max-step leaves out the first file that was saved later: a damaged byte can make a later step of
    an earlier one.
    """
    if path and not re.search(r"\d", os.path.basename(path)):
        yield _passed_over(path, c, Held.ABOVE.value)


def _left_out(s: Session, c: Checkpoint, step: int | None) -> Iterator[Finding]:
    """Files in the directory of the choice, or below it, that its layout does not load: what is damaged.

    Raises UsageError for one with an optimizer's state in it, of a checkpoint of another framework whose
    directory was renamed, unless the choice has one of its own, and it is of no later step; and, where
    nothing but names tells the layout, for any file of a checkpoint that it does not expect there, in this
    save or in its siblings.
    """
    guessed = any(s.layouts.piece_of(p).generic for p in c.parts)
    ours = [p for p in s.parts if (p.layout, p.run) == (c.layout, c.run)] if guessed else c.parts
    damaged = list[str]()
    for path in _unexplained(s, tuple({f"{p.home}/" for p in ours if p.home})):
        report, anatomy = s.inspect(path, Level.STRUCTURE)
        saved = _of_a_save(path, report)
        state = is_training_state(report, anatomy) and not _is_no_later(s, c, path, step)
        if state or (guessed and saved):
            raise _less_than_is_there(s, c, path)
        if saved and report.verdict is Verdict.BROKEN:
            damaged.append(path)
    why = f"it lies below {c.path}, is damaged, and is no file that the layout {c.layout} loads"
    yield from (finding("passed-over", why, path=p, severity=Severity.WARNING) for p in damaged[:_NAMED])


def _is_no_later(s: Session, c: Checkpoint, path: str, step: int | None) -> bool:
    """Whether a file tells no later step than the choice, which has an optimizer's state of its own. One of
    the same step that is called after a rank or a part may be another part of the choice.
    """
    report, _ = s.inspect(path, Level.STRUCTURE)
    told = loop_counters.number(report.metadata, loop_counters.STEPS)
    if told is None or step is None or told > step or (told == step and are_parts([os.path.basename(path)])):
        return False
    return any(is_training_state(*s.inspect(p.path, Level.STRUCTURE)) for p in c.parts)


def _unexplained(s: Session, homes: tuple[str, ...]) -> list[str]:
    """The files below these directories that no layout places and no index explains."""
    # texts that describe a model are read elsewhere
    states = (
        f
        for f in s.found.bare
        if not f.path.endswith(".json") or formats.names.beside(os.path.basename(f.path))
    )
    beside = [f.path for f in states if f.size > 0 and f.path.startswith(homes)]
    explained = set(s.indexes.members({p.path for p in s.parts})) if beside else set[str]()
    return [path for path in beside[:MOST] if path not in explained]


def _of_a_save(path: str, report: Report) -> bool:
    """Whether a save wrote such a file, whole or not: no arrays of data."""
    if report.format in ("npz", "npy"):
        return False
    damaged = report.verdict is Verdict.BROKEN and formats.names.beside(os.path.basename(path))
    return damaged or report.format in files.FORMATS


def _less_than_is_there(s: Session, c: Checkpoint, path: str) -> UsageError:
    name = os.path.relpath(path, s.root)
    text = (
        f"{c.path} is taken for a checkpoint of the layout {c.layout}, which does not load {name}: that is a"
        " file of a checkpoint, too"
    )
    return UsageError(text, f"{_PLACE}; if it has nothing to do with it, leave it out with --exclude")


def _without_training_state(
    paths: Sequence[str], above: str, c: Checkpoint, steps: Steps
) -> Iterator[Finding]:
    for path in paths[:_NAMED]:
        called = os.path.basename(path)
        later = says_checkpoint(called) and steps.is_later(counted(called))
        later = later and read_bare_name(called).kind is Kind.PERIODIC
        yield _passed_over(path, c, Held.OTHER.value, Severity.WARNING if later else None)
    if more := paths[_NAMED:]:
        names = ranges.names(os.path.relpath(path, above) for path in more)
        yield _passed_over(above, c, f"{len(more):,} more hold no training state: {names}")


def _passed_over(path: str, c: Checkpoint, why: str, severity: Severity | None = None) -> Finding:
    text = f"saved no earlier than {c.label}, but in a place that no layout describes: {why}"
    return finding("passed-over", text, path=path, severity=severity)


def _saved_after(s: Session, c: Checkpoint, above: str) -> Iterator[BareFile]:
    """Files of a checkpoint format outside every checkpoint's own directory, of the same time where times are
    lost.
    """
    newest = max(p.mtime_ns for p in c.parts)
    later = [f for f in s.found.bare if f.mtime_ns >= newest and f.path.startswith(f"{above}/")]
    if not later:
        return
    homes = {p.home for p in s.parts if p.home}
    explained = {*s.indexes.members({p.path for p in s.parts}), *(f.path for f in s.found.lone)}
    for file in later:
        if file.path in explained:
            continue
        inside = file.path[len(above) + 1 :].split("/")
        directories = (f"{above}/{'/'.join(inside[:depth])}" for depth in range(1, len(inside)))
        if homes.isdisjoint(directories):
            yield file


def _renamed(s: Session, c: Checkpoint, above: str) -> Iterator[BareFile]:
    """Those beside the choice under names that no format has."""
    since = max(p.mtime_ns for p in c.parts)
    try:
        told = list(states_since(s.found, _beside(s, c, above), since))
        paths = {file.path for file in told}
        least = max(p.size for p in c.parts) // _SMALLER
        untold = unnamed_since(s.found, s.root, c.shared_directories, since, least)
        yield from (*told, *(file for file in untold if file.path not in paths))
    except OSError as why:
        s.unplaced.append(Unseen(why.filename or above, why.strerror or str(why)))


def _begun(s: Session, c: Checkpoint, above: str) -> Iterator[Finding]:
    """That a later save beside the choice was not given its name, or lies so in a directory of its own."""
    text = f"a temporary file that was written no earlier than {c.label}: that save never finished"
    beside, since = _beside(s, c, above), max(p.mtime_ns for p in c.parts)
    under_way = {_just_below(f.path, beside) for f in s.found.bare if f.mtime_ns >= since}
    for home in sorted(home for home in under_way if is_marked(home)):
        called = f"it is called as a save that is not done, and was written no earlier than {c.label}"
        yield finding("unfinished-save", called, path=home)
    others = {home for path in s.found.unfinished if os.path.dirname(home := os.path.dirname(path)) in beside}
    beside |= others and others - {os.path.dirname(p.path) for p in s.parts}
    try:
        for path in begun_since(s.found, beside, since):
            yield finding("unfinished-save", text, path=path)
    except OSError as why:
        s.unplaced.append(Unseen(why.filename or above, why.strerror or str(why)))


def _just_below(path: str, directories: Collection[str]) -> str:
    """The directory on the way to a file that lies in one of these; "" where there is none."""
    while (above := os.path.dirname(path)) not in directories:
        if above == path:
            return ""
        path = above
    return path


def _beside(s: Session, c: Checkpoint, above: str) -> set[str]:
    """Directories that hold files of the choice, or in which such directories lie."""
    own = {c.path, *(path for p in c.parts for path in (p.home, p.path) if path)}
    return {above, *map(os.path.dirname, own)} - {p.home for p in s.parts if p.home}


def _unread_saves(s: Session, c: Checkpoint, above: str, steps: Steps) -> Iterator[Finding]:
    """Warnings about directories that are called later saves and hold nothing that can be read, and notes
    about packed files beside the choice.

    Raises UsageError for a file that is called by a later step or epoch.
    """
    lost = list(empty_saves(s, c))
    yield from lost
    saves = {c.path, *(p.home or p.path for p in s.parts if p.layout == c.layout)}
    like = {os.path.basename(path) for path in saves}
    since, beside = max(p.mtime_ns for p in c.parts), _beside(s, c, above)
    unread = Unread(s.found, s.root, beside, since, {read_bare_name(name).pattern for name in like})
    try:
        for path in packed_since(s.found, beside, since, like):
            yield from _unread(s, c, _Unplaced(path, unpacked_name(os.path.basename(path))), steps)
        yield from _of_no_known_kind(s, c, unread, steps, {f.path for f in lost})
    except OSError as why:
        s.unplaced.append(Unseen(why.filename or above, why.strerror or str(why)))


def _of_no_known_kind(
    s: Session, c: Checkpoint, unread: Unread, steps: Steps, lost: Collection[str | None]
) -> Iterator[Finding]:
    """What is called as a later save and of no known kind: a warning about a directory, unless it is known to
    be ``lost``. Raises UsageError for a file, and OSError.
    """
    for path, called in islice(unread.files(), MOST):
        if may_be_later(called, steps.chosen, c.epoch):
            yield from _unread(s, c, _Unplaced(path, called, "of no kind that ckpt can read"), steps)
    others = (path for path, called in unread.others() if may_be_later(called, steps.chosen, c.epoch))
    for path in islice(others, _NAMED):
        why = "it is called as a later save, and is of no kind that ckpt can read"
        yield _passed_over(path, c, why, Severity.WARNING)
    for path, called in unread.saves():
        later = may_be_later(called, steps.chosen, c.epoch) and not _has_parts(s, path)
        if later and path not in {*lost, *(f.path for f in headless(s, s.members(c)))}:
            why = "it is called as a later save, and holds nothing that ckpt can read"
            yield _passed_over(path, c, why, Severity.WARNING)


def _has_parts(s: Session, home: str) -> bool:
    return any(p.path.startswith(f"{home}/") for p in s.parts)


def _unread(s: Session, c: Checkpoint, file: _Unplaced, steps: Steps) -> Iterator[Finding]:
    """A note about such a file. Raises UsageError where it is called by a later step or epoch."""
    if steps.highest is None and may_be_later(file.called, steps.chosen, c.epoch):
        name = os.path.relpath(file.path, s.root)
        text = f"{name} was saved no earlier than {c.label} ({c.path}), and is {file.what}"
        hint = f"unpack or convert it to resume from it, or say {without(s.root, c, file.path)}"
        raise UsageError(f"which checkpoint is the newest is in doubt: {text}", hint)
    why = "called by no later step" if steps.highest is None else "left out by --max-step"
    yield _passed_over(file.path, c, f"it is {file.what}, and {why}")


def _question(s: Session, c: Checkpoint, path: str, held: Held) -> UsageError:
    holds = "the same tensors" if held is Held.AS_MUCH else "an optimizer's state"
    name = os.path.relpath(path, s.root)
    text = (
        f"which checkpoint is the newest is in doubt: {name} was saved no earlier than {c.label} ({c.path}),"
        f" holds {holds}, and lies in no arrangement that a layout describes"
    )
    names = name.split("/")
    above = (os.path.join(s.root, *names[:depth]) for depth in range(1, len(names) + 1))
    aside = without(s.root, c, *above, kept={p.path for p in s.parts})
    return UsageError(text, f"{_PLACE}; or say {aside}")
