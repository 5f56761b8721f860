"""The order of ``--resume-from tracker``: what the tracker names comes first, then checkpoints of earlier
steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.layouts import Layout
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Kind
from ckpt_tools.planning.choose import rank
from ckpt_tools.reading.session import Session

_OTHER_ORDERS = "say --resume-from mtime or --resume-from step"


def from_tracker(
    session: Session, ranked: Sequence[Checkpoint], run: Sequence[Checkpoint], prefer: Kind | None
) -> list[Checkpoint]:
    """The candidates from the one that the tracker names on; ``run`` are all checkpoints, hidden ones among
    them.

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
    others = [c for c in rank(ranked, "step", prefer) if c not in named]
    return [*named, *(c for c in others if c.order <= named[0].order)]


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
