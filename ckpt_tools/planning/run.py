"""What is known of a run while its checkpoints are judged."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from ckpt_tools.discovery.completeness import Expected
from ckpt_tools.layouts.common.rank_grid import Topology
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.frozen import frozen
from ckpt_tools.planning.neighbours import Siblings


@frozen
class Run:
    """``checkpoints`` are all its finished ones, ``candidates`` those that no filter hides.

    ``unfinished`` are saves that never finished. ``saved`` is how many ranks wrote the files, where
    anything tells.
    """

    checkpoints: Sequence[Checkpoint]
    candidates: Sequence[Checkpoint]
    unfinished: Sequence[Checkpoint]
    expected: Expected
    topology: Topology
    saved: int | None

    @cached_property
    def beside(self) -> Siblings:
        """The candidates in their order, to find those before and after each."""
        return Siblings(self.candidates)


@frozen
class Candidate:
    """A checkpoint under judgement: as its files' names show it, and ``whole``, with what its indexes add."""

    named: Checkpoint
    whole: Checkpoint
