"""What rules see of a tree and of a save: values, made once from what was listed and read."""

from __future__ import annotations

from ckpt_tools.model.checkpoint import CheckpointKey, Order
from ckpt_tools.model.frozen import frozen
from ckpt_tools.model.part import Kind
from ckpt_tools.model.report import Report


@frozen
class Span:
    """When the files of a save were written, in ns since 1970; ``median`` is over its required files."""

    first: int
    median: int
    last: int


@frozen
class FileFacts:
    """One file of a save: ``path``, what it is in it, and the deepest report that was made of it."""

    path: str
    role: str
    rank: int | None
    size: int
    mtime_ns: int
    report: Report | None = None


@frozen
class SaveFacts:
    """One save. ``order`` is its place in training as (step, epoch, step in the epoch), -1 for unknown."""

    key: CheckpointKey
    path: str
    layout: str
    run: str
    kind: Kind
    order: Order
    written: Span
    files: tuple[FileFacts, ...]
    unfinished: bool = False
    tracked: bool = False


@frozen
class UnplacedFile:
    """A file below ROOT that no layout places. ``format`` is that of its content, None where that is none
    that is known; ``state`` says whether such a format can hold a training state.
    """

    path: str
    size: int
    mtime_ns: int
    format: str | None
    state: bool


@frozen
class TreeFacts:
    """Everything below ROOT: the saves of the run, unfinished ones too, and what no layout places."""

    root: str
    saves: tuple[SaveFacts, ...]
    unplaced: tuple[UnplacedFile, ...] = ()
    chosen: SaveFacts | None = None
