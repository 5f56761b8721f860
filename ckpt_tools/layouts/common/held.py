"""What a file of somebody's own training loop holds of a training state, as the name of its piece says."""

from __future__ import annotations

from typing import NamedTuple

from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Part


class Holds(NamedTuple):
    """What a checkpoint holds of a training state.
    ``counters``: something in it, not only its name, says how far training was.
    """

    weights: bool = False
    optimizer: bool = False
    counters: bool = False


PIECES = {
    "state": Holds(True, True, True),
    "uncounted": Holds(True, True, False),
    "counted": Holds(True, False, True),
    "weights": Holds(True, False, False),
    "optimizer": Holds(False, True, False),
    "optimizer_counted": Holds(False, True, True),
    "progress": Holds(False, False, True),
    "other": Holds(),
}
"""What one file may hold, by the name of its piece.
One that could not be read is what its name says: ``torch``, ``ckpt`` …
"""
ROLLING = "rolling_"
"""Before the name of a piece: a file that is written over at every save,
and so only stands in for one that is not.
"""


def piece_for(holds: Holds, rolling: bool) -> str:
    name = next(name for name, held in PIECES.items() if held == holds)
    return f"{ROLLING}{name}" if rolling else name


def held_by(p: Part) -> Holds | None:
    """What a file holds; None where it could not be read."""
    return PIECES.get(p.piece.removeprefix(ROLLING))


def holds_of(c: Checkpoint) -> Holds | None:
    """What its files hold together; None where one of them could not be read."""
    if len(c.parts) == 1:  # each save is asked about each other one: a run of thousands of files feels it
        return held_by(c.parts[0])
    held = [held_by(p) for p in c.parts]
    known = [h for h in held if h is not None]
    return Holds(*map(any, zip(*known, strict=True))) if len(known) == len(held) else None
