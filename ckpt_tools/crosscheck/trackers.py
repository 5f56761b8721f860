"""Trackers: the files beside checkpoints that name the latest one.

What a tracker names was finished. Where its pieces are gone, that is damage, and neither a save that never
finished nor a first launch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from ckpt_tools.crosscheck import consistency
from ckpt_tools.findings import finding
from ckpt_tools.layouts import Layout
from ckpt_tools.model.answers import Tracker
from ckpt_tools.model.checkpoint import Checkpoint, CheckpointKey
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import Rejected
from ckpt_tools.reading.session import Session
from ckpt_tools.storage.retry import lstat

_WRITE_IT = (
    "a framework that follows this file alone loses steps: write the name of the newest into it, or start it"
    " with the arguments that 'ckpt plan' gives"
)
_REMOVED = "it was removed or moved, or the disk that it is on is not mounted here"


def tracker_findings(
    s: Session, checkpoints: Sequence[Checkpoint], incomplete: Callable[[], set[CheckpointKey]]
) -> Iterator[Finding]:
    """What the tracker beside a run gets wrong, if its layout has one.

    ``incomplete`` gives the checkpoints that lack parts; it is called only where there is a tracker.
    """
    layout, base = s.layouts.of(checkpoints[0]), checkpoints[0].parts[0].base
    if layout.tracker is None and not layout.other_trackers:
        return
    trackers = list(s.trackers(layout.name, base))
    if not trackers:
        here = f"{base}/".startswith(f"{s.root}/")  # above ROOT nobody looked
        c = checkpoints[0]
        told = len(checkpoints) > 1 or {c.step, c.epoch, c.generation} != {None}  # else it is the one
        expected = layout.tracker and layout.always_tracked and here and told
        if expected and not any(declared(s, c) for c in checkpoints):
            yield finding("missing-tracker", f"there is no {layout.tracker}", path=base)
    for path, target in trackers:
        if isinstance(target, Finding):
            yield target
        else:
            at = written_ns(path)
            found = consistency.trackers(checkpoints, target, path, incomplete(), layout, written_ns=at)
            yield from found if _is_repaired(path, layout) else map(_by_hand, found)


def written_ns(path: str) -> int:
    """When a tracker was written, in nanoseconds; 0 where that cannot be asked any more."""
    try:
        return lstat(path).st_mtime_ns
    except OSError:
        return 0


def _is_repaired(path: str, layout: Layout) -> bool:
    """Whether ``ckpt repair --tracker`` writes this one, as it does of several the first that is asked."""
    return path.rpartition("/")[2] == layout.tracker


def _by_hand(f: Finding) -> Finding:
    is_told = f.code == "dangling-tracker" or f.hint.startswith("it was written after")
    return f if is_told else replace(f, hint=_WRITE_IT)


def told(session: Session, checkpoints: Sequence[Checkpoint]) -> Iterator[Tracker]:
    """What each tracker beside these checkpoints says, and which of them that is."""
    seen = set[str]()
    for name, base in dict.fromkeys((c.layout, p.base) for c in checkpoints for p in c.parts[:1]):
        for path, target in session.trackers(name, base):
            if path in seen:
                continue
            seen.add(path)
            says = None if isinstance(target, Finding) else target
            here = [c for c in checkpoints if c.layout == name and c.parts and c.parts[0].base == base]
            yield Tracker(path, says, None if says is None else _found(says, here, session.layouts[name]))


def declared(session: Session, c: Checkpoint) -> str | None:
    """The tracker beside a checkpoint that names it.

    Whichever layout's it is: of a damaged checkpoint only files of another layout may be left.
    """
    if any(p.unfinished for p in c.parts):
        return None
    base = c.parts[0].base
    for layout in session.layouts:
        if not (layout.tracker or layout.other_trackers):
            continue
        for path, says in session.trackers(layout.name, base):
            if _names(says, layout, c):
                return path
    return None


def _names(target: int | str | Finding | None, layout: Layout, c: Checkpoint) -> bool:
    """Whether what a tracker of the layout says is this checkpoint."""
    return not isinstance(target, Finding) and _is_named(layout, c, target)


def _is_named(layout: Layout, c: Checkpoint, target: int | str | None) -> bool:
    """Whether the tracker of a layout names a checkpoint, which need not be of that layout."""
    try:
        return layout.is_tracked(c, target)
    except (KeyError, IndexError):  # it has none of the pieces that the name is made from
        return False


def lost(session: Session, chosen: Sequence[Checkpoint], begun: Sequence[Checkpoint]) -> Iterator[Rejected]:
    """What the trackers beside the ``chosen`` checkpoints name although it is not among them.

    ``begun`` are saves without the file that is written last.
    """
    for name, base in dict.fromkeys((c.layout, c.parts[0].base) for c in chosen):
        layout, here = session.layouts[name], [c for c in chosen if c.parts[0].base == base]
        torn = [c for c in begun if c.parts[0].base == base and not any(p.unfinished for p in c.parts)]
        seen = set[int | str]()
        for path, target in (*session.trackers(name, base), *_of_others(session, layout, here)):
            if target is None or isinstance(target, Finding) or target == "release" or target in seen:
                continue
            seen.add(target)
            if _is_gone(session, target, base, here, torn):
                yield _rejected(here[0], path, target, _found(target, torn, layout), layout)


def _of_others(
    session: Session, own: Layout, here: Sequence[Checkpoint]
) -> Iterator[tuple[str, int | str | Finding | None]]:
    """What the trackers of other layouts beside a run's checkpoints say, where that is a step later than
    theirs and that nothing there has: who writes one may save in the form of several frameworks.
    """
    base, steps = here[0].parts[0].base, {c.step for c in here}
    newest = max((step for step in steps if step is not None), default=None)
    if None in steps or newest is None:
        return
    known = {p.step for p in session.parts if p.base == base}
    for (path, says), step in _steps_of_others(session, own, base).items():
        if step > newest and step not in known:
            yield path, says


def _steps_of_others(session: Session, own: Layout, base: str) -> dict[tuple[str, int | str], int]:
    """What each of those trackers says, and the step in that."""
    unlike = (o for o in session.layouts if o is not own and not (o.tracker and o.tracker == own.tracker))
    others = (o.name for o in unlike if o.tracker or o.other_trackers)
    rows = (row for name in others for row in session.trackers(name, base))
    told = {(path, says): _number(str(says), own) for path, says in rows if isinstance(says, int | str)}
    return {row: step for row, step in told.items() if step is not None}


def _is_gone(
    session: Session, target: int | str, base: str, here: Sequence[Checkpoint], torn: Sequence[Checkpoint]
) -> bool:
    """Whether a tracker names none of the checkpoints, and no file or directory of a run beside them: what
    is ``torn`` is one of those without the file that is written last.
    """
    if _found(target, here, session.layouts.of(here[0])) is not None:
        return False
    path, homes = f"{base}/{target}", {c.path for c in torn}
    whole = (p for p in session.parts if p.home not in homes)
    return isinstance(target, int) or not any(path in (p.home, p.path) for p in whole)


def _found(target: int | str, checkpoints: Sequence[Checkpoint], layout: Layout) -> Checkpoint | None:
    """The first checkpoint that a tracker of the layout names."""
    return next((c for c in checkpoints if _is_named(layout, c, target)), None)


def _rejected(
    sibling: Checkpoint, tracker: str, target: int | str, rest: Checkpoint | None, layout: Layout
) -> Rejected:
    base = sibling.parts[0].base
    c = replace(rest, unfinished=False) if rest else _gone(sibling, target, layout)
    what = missing(layout) if rest else "but nothing of it is there"
    return Rejected(c, (_damage(tracker, target, what, c.path if rest else base),))


def _damage(tracker: str, target: int | str, what: str, path: str) -> Finding:
    text = f"{tracker.rpartition('/')[2]} names {target}, so it was finished, {what}"
    return finding("missing-part", text, severity=Severity.ERROR, path=path, hint=_REMOVED)


def as_told(session: Session, c: Checkpoint) -> tuple[Checkpoint, tuple[Finding, ...]]:
    """A checkpoint as a listing shows it: one that looks unfinished and is named by its tracker was
    finished.
    """
    tracker = declared(session, c) if c.unfinished else None
    if tracker is None:
        return c, ()
    what = missing(session.layouts.of(c))
    return replace(c, unfinished=False), (_damage(tracker, c.label, what, c.path),)


def missing(layout: Layout) -> str:
    """What a checkpoint lacks that was finished: the second half of a sentence about it."""
    commit = layout.commit
    return f"but its {commit} file is gone" if commit else "but pieces of it are gone"


def _number(name: str, layout: Layout) -> int | None:
    """The last number in a name, unless it belongs to a date."""
    digits = re.search(r"(\d{1,18})\D*$", name)
    date = layout.dated.fullmatch(name) if layout.dated else re.search(r"(\d{4}-\d\d-\d\d.*)", name)
    return int(digits[1]) if digits and not (date and digits.start() < date.end(1)) else None


def _gone(sibling: Checkpoint, target: int | str, layout: Layout) -> Checkpoint:
    """A checkpoint of which nothing but its name is left.

    The name's last number is its step, or which save it is, unless it belongs to a date.
    """
    number = _number(str(target), layout)
    base = sibling.parts[0].base
    return Checkpoint(
        layout=sibling.layout,
        run=sibling.run,
        kind=Kind.PERIODIC,
        parts=(),
        path=f"{base}/{target}" if isinstance(target, str) else base,
        mtime_ns=0,
        step=None if sibling.counted else number,
        epoch_base=sibling.epoch_base,
        generation=number if sibling.counted else None,
    )
