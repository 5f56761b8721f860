"""What trackers name, for ``--resume-from tracker`` and where one was written after the newest save."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ckpt_tools.crosscheck import trackers
from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.layouts import Layout
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.reading.session import Session

_OTHER_ORDERS = "say --resume-from mtime or --resume-from step"


def tracked_first(
    session: Session, ranked: Sequence[Checkpoint], run: Sequence[Checkpoint]
) -> list[Checkpoint]:
    """Return the candidates that the tracker names; ``run`` are all checkpoints, hidden ones among them.

    Raises UsageError when the tracker names none of them, CannotLook when it cannot be read.
    """
    # a dying gasp may lie beside the run, and have no tracker
    first = next((c for c in ranked if session.layouts.of(c).tracker), ranked[0])
    layout = session.layouts.of(first)
    path, latest = _read(session, layout, first.parts[0].base)
    named = [c for c in ranked if layout.is_tracked(c, latest)]
    if not named:
        hidden = any(layout.is_tracked(c, latest) for c in run if c.layout == layout.name)
        where = "which --kind or --max-step hides" if hidden else "which is not there"
        raise UsageError(f"{path} names {latest}, {where}", _OTHER_ORDERS)
    return named


class LaterTracker(NamedTuple):
    """The path of a tracker, and the checkpoint that it names."""

    path: str
    checkpoint: Checkpoint


def find_later_trackers(
    session: Session, newest: Checkpoint, others: Iterable[Checkpoint]
) -> Iterator[LaterTracker]:
    """Yield the trackers that were written after the newest checkpoint, and which of the others they name."""
    if not session.found.trackers:
        return
    told = (path for path, _ in session.trackers(newest.layout, newest.parts[0].base))
    late = {path for path in told if trackers.written_ns(path) > newest.mtime_ns}
    if not late or trackers.declared(session, newest):
        return
    for c in others:
        if c.key != newest.key and (path := trackers.declared(session, c)) in late:
            yield LaterTracker(path or "", c)


def _read(session: Session, layout: Layout, base: str) -> tuple[str, int | str]:
    """(path, what it names) of the tracker in ``base``."""
    tracker = session.tracker(layout.name, base)
    if tracker is None:
        expected = layout.tracker and layout.always_tracked
        none = f"there is no {layout.tracker} in {base}"
        raise UsageError(none if expected else f"the layout {layout.name} has no tracker", _OTHER_ORDERS)
    path, latest = tracker
    if isinstance(latest, Finding) and latest.code == "unreadable":
        raise CannotLook(f"{path}: {latest.message}", f"make it readable, or {_OTHER_ORDERS}")
    if latest is None or isinstance(latest, Finding):
        raise UsageError(f"{path} is empty, or not what its framework writes", _OTHER_ORDERS)
    return path, latest
