"""Trackers pointed at another checkpoint: the files beside checkpoints that name the latest one."""

from __future__ import annotations

import os
from collections.abc import Iterator

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
    now: int | str | None
    then: int | str
    data: bytes


def wanted(s: Session, chosen: Checkpoint) -> Pointed | None:
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


def naming(s: Session, checkpoints: list[Checkpoint]) -> list[str]:
    """The trackers beside these checkpoints that name one of them."""
    return [path for path, _, _ in _said(s, checkpoints)]


def pointed(s: Session, away: list[Checkpoint], chosen: Checkpoint) -> list[Pointed]:
    """The trackers that name one of the checkpoints that go ``away``, made to name the one that is chosen;
    only where that is of the same layout, beside the same tracker.
    """
    out = []
    for path, layout, now in _said(s, away):
        then = s.layouts[layout].tracker.name(chosen) if chosen.layout == layout else None
        if then is not None and chosen.parts[0].base == os.path.dirname(path):
            out.append(Pointed(path, now, then, s.layouts[layout].tracker.write(then)))
    return out


def _said(s: Session, checkpoints: list[Checkpoint]) -> Iterator[tuple[str, str, int | str]]:
    """(path, layout, what it says) of the trackers that name one of these checkpoints."""
    seen = set[str]()
    for c in checkpoints:
        tracker = s.text_tracker(c.layout, c.parts[0].base)
        if tracker is None or tracker[0] in seen:
            continue
        path, said = tracker
        if said is not None and not isinstance(said, Finding) and s.layouts.of(c).tracker.names(c, said):
            seen.add(path)
            yield path, c.layout, said
