"""A checkpoint: all parts saved for one iteration of one run."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from ckpt_tools.model.part import Kind, Part

Order = tuple[int, int, int]
"""Progress of training as ``Checkpoint.order`` has it: (step, epoch, step in the epoch), -1 for unknown."""


def is_comparable(one: Order, other: Order) -> bool:
    """Return whether two orders tell which is later: the first difference is in numbers known of both."""
    if one[0] == other[0] >= 0:
        return True
    first = next(((a, b) for a, b in zip(one, other, strict=True) if a != b), one[1:])
    return min(first) >= 0 or (one == other and max(one) >= 0)


def differ(one: Order, other: Order) -> bool:
    """Return whether two orders are of different progress; not if both have one step and one tells less."""
    same_step = one[0] == other[0] >= 0
    return any(a != b and not (same_step and min(a, b) < 0) for a, b in zip(one, other, strict=True))


def is_ahead(one: Order, other: Order) -> bool:
    """Return whether ``one`` is of later progress than ``other``, as far as both tell."""
    return one > other and is_comparable(one, other) and differ(one, other)


class CheckpointKey(NamedTuple):
    """What tells a checkpoint from all others: its first file, else its directory and numbers."""

    layout: str
    run: str
    path: str
    order: Order | None = None
    generation: int | None = None


class Checkpoint(Struct, frozen=True):
    """All parts saved for one iteration of one run. ``mtime_ns`` is the median over its required parts; if
    the run's names are dates, the dates say which time belongs to which checkpoint. ``path`` is the parts'
    common directory. ``restarts`` counts the run's restarts before it, if its layout does: epochs begin anew
    after each.
    """

    layout: str
    run: str
    kind: Kind
    parts: tuple[Part, ...]
    path: str
    mtime_ns: int
    step: int | None = None
    epoch: int | None = None
    epoch_base: int | None = None
    step_in_epoch: int | None = None
    generation: int | None = None
    restarts: int = 0
    unfinished: bool = False

    @property
    def key(self) -> CheckpointKey:
        """What tells it from all others in one scan; the same after its step was read from a file."""
        if self.parts:  # no two checkpoints share a file
            return CheckpointKey(self.layout, self.run, self.parts[0].path)
        return CheckpointKey(self.layout, self.run, self.path, self.order, self.generation)

    @property
    def label(self) -> str:
        """A short name for people: its step, its epoch, the number of the save, or its own name."""
        if self.step is not None:
            return f"step {self.step}"
        if self.epoch is not None:
            return f"epoch {self.epoch}" + (
                f" step {self.step_in_epoch}" if self.step_in_epoch is not None else ""
            )
        return f"save {self.generation}" if self.counted else self.path.rpartition("/")[2]

    @property
    def counted(self) -> bool:
        """Whether only a count of saves tells it from siblings; if not, ``generation`` counts restarts."""
        return self.step is None and self.epoch is None and self.generation is not None

    @property
    def unit(self) -> str:
        """What its number counts; only numbers of the same unit tell which checkpoint is later."""
        return ("step", "epoch", "save", "")[next((i for i, n in enumerate(self.order) if n >= 0), -1)]

    @property
    def order(self) -> Order:
        """Progress of training as a sortable value; unknown counts as oldest."""
        if self.counted:
            return -1, -1, self.generation or 0
        return (
            self.step if self.step is not None else -1,
            # 10**18: more epochs than any job trains between two restarts
            self.epoch + self.restarts * 10**18 if self.epoch is not None else -1,
            self.step_in_epoch if self.step_in_epoch is not None else -1,
        )
