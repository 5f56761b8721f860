"""The one place where the stages meet: roots and questions in, scans, verifications and load plans out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ckpt_tools.model import Level, LoadPlan, Scan, Selection, Verification

Progress = Callable[[int, int], None]
"""Called with (bytes read so far, bytes to read as far as known), from any thread."""


def scan(root: str = ".", selection: Selection | None = None) -> Scan:
    """What checkpoints are below ``root``, from directory listings (and a structure pass where names do not tell the step)."""
    raise NotImplementedError


def verify(paths: Sequence[str] = (".",), level: Level = Level.CONTENT, *, jobs: int = 0, require: tuple[str, ...] = (), settle: float = 120.0, progress: Progress | None = None) -> Verification:
    """Look at every checkpoint file at or below ``paths``."""
    raise NotImplementedError


def plan(root: str = ".", selection: Selection | None = None, *, progress: Progress | None = None) -> LoadPlan:
    """The whole load plan. Raises CkptError subclasses; those of a failed choice carry ``.plan`` with the rejected candidates."""
    raise NotImplementedError


def latest(root: str = ".", selection: Selection | None = None, *, progress: Progress | None = None) -> LoadPlan:
    """The plan narrowed to ``selection.rank``."""
    raise NotImplementedError
