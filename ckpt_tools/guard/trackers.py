"""Trackers pointed at another checkpoint: the files beside checkpoints that name the latest one."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ckpt_tools.guard.journal import Store, Swap
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.frozen import frozen
from ckpt_tools.reading.session import Session


@frozen
class Pointed:
    """A tracker at ``path`` that says ``now``; with ``data`` in it, it says ``then``."""

    path: str
    now: int | str
    then: int | str
    data: bytes

    def swap(self, store: Store, root: str, kept: str) -> Swap:
        """The step that does it; the new file is written aside first. Raises OSError."""
        target = os.path.relpath(self.path, root)
        incoming = f"{store.place('incoming')}/{target}"
        store.write(incoming, self.data, like=target)
        return Swap(target, incoming, f"{kept}/{target}")


def naming(s: Session, checkpoints: list[Checkpoint]) -> list[str]:
    """The trackers beside these checkpoints that name one of them."""
    return [path for path, _, _ in _said(s, checkpoints)]


def pointed(s: Session, away: list[Checkpoint], chosen: Checkpoint) -> list[Pointed]:
    """The trackers that name one of the checkpoints that go ``away``, made to name the one that is chosen;
    only where that is of the same layout, beside the same tracker.
    """
    out = []
    for path, layout, now in _said(s, away):
        then = s.layouts[layout].tracked(chosen) if chosen.layout == layout else None
        if then is not None and chosen.parts[0].base == os.path.dirname(path):
            out.append(Pointed(path, now, then, s.layouts[layout].write_tracker(then)))
    return out


def _said(s: Session, checkpoints: list[Checkpoint]) -> Iterator[tuple[str, str, int | str]]:
    """(path, layout, what it says) of the trackers that name one of these checkpoints."""
    seen = set[str]()
    for c in checkpoints:
        tracker = s.tracker(c.layout, c.parts[0].base)
        if tracker is None or tracker[0] in seen:
            continue
        path, said = tracker
        if said is not None and not isinstance(said, Finding) and s.layouts.of(c).tracked(c) == said:
            seen.add(path)
            yield path, c.layout, said
