"""Trackers pointed at another checkpoint: the files beside checkpoints that name the latest one."""

from __future__ import annotations

import os

from msgspec import Struct

from ckpt_tools.errors import UsageError
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.reading.session import Session


class Pointed(Struct, frozen=True):
    """A tracker at ``path`` that says ``now`` (None where it is not there); with ``data`` in it, it says
    ``then``.
    """

    path: str
    now: str | None
    then: int | str
    data: bytes


def point_tracker(s: Session, chosen: Checkpoint) -> Pointed | None:
    """The tracker beside a checkpoint made to name it; None where it does, or its layout has none that is
    missed.

    Raises UsageError where the tracker is a link: what it leads to is not known to be a tracker.
    """
    layout, base = s.layouts.of(chosen), chosen.parts[0].base
    then = layout.tracker.name(chosen) if layout.tracker.file else None
    if not layout.tracker.file or then is None or layout.tracker.read is None:
        return None
    path = os.path.join(base, layout.tracker.file)
    tracker = s.text_tracker(layout.name, base)
    if tracker is None:
        data = layout.tracker.write(then)
        return Pointed(path, None, then, data) if layout.tracker.always else None
    if os.path.islink(path):
        raise UsageError(f"{path} is a link", "point it yourself: ln -sfn")
    said = tracker[1]
    if not isinstance(said, Finding) and layout.tracker.names(chosen, said):
        return None
    now = said.message if isinstance(said, Finding) else "nothing readable" if said is None else str(said)
    return Pointed(path, now, then, layout.tracker.write(then))


def find_naming(s: Session, checkpoints: list[Checkpoint]) -> set[str]:
    """The trackers beside these checkpoints that name one of them."""
    out = set[str]()
    for c in checkpoints:
        path, said = s.text_tracker(c.layout, c.parts[0].base) or ("", None)
        if said is not None and not isinstance(said, Finding) and s.layouts.of(c).tracker.names(c, said):
            out.add(path)
    return out
