"""What a file that no layout places holds, as far as that tells whether training went on with it."""

from __future__ import annotations

import os
from enum import Enum
from typing import NamedTuple

from ckpt_tools.discovery.found import BareFile
from ckpt_tools.findings import NOT_SEEN
from ckpt_tools.formats import Anatomy
from ckpt_tools.formats.common.counters import is_optimizer_state
from ckpt_tools.layouts.common import loop_counters, under_way
from ckpt_tools.layouts.common.bare_names import read_bare_name
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.part import Part, Unseen
from ckpt_tools.model.report import Level, Report
from ckpt_tools.reading.held_state import has_optimizer
from ckpt_tools.reading.session import Session
from ckpt_tools.storage import ShortRead, opened

_BLOCK = 1 << 20
MOST = 512
"""Files that are inspected, the newest ones."""


class Held(Enum):
    """What a file holds, as far as that tells whether training went on with it; why it is passed over."""

    LATER = "it holds an optimizer's state, but is not called a checkpoint"
    AS_MUCH = "it holds the same tensors as the choice and is called by a later step"
    EARLIER = "it holds an optimizer's state, but is of no later step"
    UNTOLD = "it holds an optimizer's state and tells no step, so --max-step leaves it out"
    ABOVE = "it holds an optimizer's state, and by its contents alone is of a step above --max-step"
    DAMAGED = "it is damaged, and called by a later step: that save may never have finished"
    BEGUN = "it is damaged, and called as a file that is written first: that save never finished"
    OTHER = "it holds no optimizer's state that can be read"


class Steps(NamedTuple):
    """Between which a file is of interest: that of the choice, and the highest that is asked for."""

    chosen: int | None
    highest: int | None

    def held(self, told: int | None) -> Held | None:
        """What a state of training is that tells this step."""
        if self.highest is not None and (told is None or told > self.highest):
            return Held.UNTOLD if told is None else Held.ABOVE
        return Held.LATER if told is None or self.chosen is None or told > self.chosen else Held.EARLIER

    def is_later(self, told: int | None) -> bool:
        """Whether a number in a name surely is of a later step, and none is left out."""
        if told is None or self.chosen is None or self.highest is not None:
            return False
        return told > self.chosen


def held_in(s: Session, file: BareFile, above: str, c: Checkpoint, steps: Steps) -> Held | None:
    """None for a file that is a copy of one of the choice (latest.pth), and for one without an array."""
    report, anatomy = s.inspect(file.path, Level.STRUCTURE, file.findings)
    s.unplaced += (Unseen(file.path, f.message) for f in report.findings if f.code in NOT_SEEN)
    if report.verdict in (Verdict.BROKEN, Verdict.UNKNOWN):
        return _unread(os.path.basename(file.path), report, steps)
    if _is_optimizer_array(file, above, anatomy):
        return steps.held(None)
    if any(_same_bytes(s, file, p) for p in c.parts):
        return None
    if not is_training_state(report, anatomy):
        if not any(max(t.shape, default=1) > 1 for t in anatomy.tensors):
            return None
        later = steps.is_later(counted(os.path.relpath(file.path, above)))
        return Held.AS_MUCH if later and _holds_as_much(s, c, anatomy) else Held.OTHER
    return steps.held(loop_counters.number(report.metadata, loop_counters.STEPS))


def _unread(name: str, report: Report, steps: Steps) -> Held:
    """What is known of a file that is damaged, or could not be looked at."""
    if report.verdict is not Verdict.BROKEN:
        return Held.OTHER
    if steps.is_later(counted(name)):
        return Held.DAMAGED
    return Held.BEGUN if under_way.has_word(name) else Held.OTHER


def counted(path: str) -> int | None:
    """The step, or the number of an unknown unit, in the names of a path, that of the file first."""
    read = (read_bare_name(name) for name in reversed(path.split("/")))
    return next((n for said in read for n in (said.step, said.number) if n is not None), None)


def _holds_as_much(s: Session, c: Checkpoint, anatomy: Anatomy) -> bool:
    """Whether the choice has no optimizer's state that can be read, and a file with the very same tensors."""
    inside = [s.inspect(p.path, Level.STRUCTURE) for p in c.parts[:MOST]]
    shapes = {(t.name, t.shape) for t in anatomy.tensors}
    return not any(is_training_state(*one) for one in inside) and any(
        {(t.name, t.shape) for t in held.tensors} == shapes for _, held in inside
    )


def _is_optimizer_array(file: BareFile, above: str, anatomy: Anatomy) -> bool:
    """Whether a file describes an array that is called as an optimizer's state: zarr's is its directory. All
    saves have the same bytes there.
    """
    return bool(anatomy.tensors) and is_optimizer_state(os.path.relpath(os.path.dirname(file.path), above))


def _same_bytes(s: Session, file: BareFile, part: Part) -> bool:
    if file.size != part.size:
        return False
    try:
        with opened(file.path) as one, opened(part.path) as other:
            sizes = ((at, min(_BLOCK, part.size - at)) for at in range(0, part.size, _BLOCK))
            return all(one.read(at, size) == other.read(at, size) for at, size in sizes)
    except OSError as why:
        s.unplaced.append(Unseen(file.path, f"cannot be compared with {part.path}: {why.strerror}"))
    except ShortRead:
        s.unplaced.append(Unseen(file.path, "it changed while it was read"))
    return False


def is_training_state(report: Report, anatomy: Anatomy) -> bool:
    """Whether a file holds the state of an optimizer, and not only its settings."""
    state = bool(anatomy.tensors) or "param_groups" in anatomy.keys
    return state and has_optimizer(report, anatomy)
