"""Files that contradict their names, each other, or the tracker beside them. Pure: it works on parts and
their reports alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ckpt_tools.discovery.completeness import label
from ckpt_tools.findings import finding
from ckpt_tools.layouts import Layout
from ckpt_tools.model.checkpoint import Checkpoint, CheckpointKey
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Kind
from ckpt_tools.model.report import Report

Reports = Mapping[str, Report]


def trackers(
    checkpoints: Sequence[Checkpoint],
    target: int | str | None,
    path: str,
    incomplete: set[CheckpointKey],
    layout: Layout,
    *,
    written_ns: int = 0,
) -> Iterator[Finding]:
    """What the tracker at ``path`` gets wrong about the checkpoints of its directory.

    ``incomplete`` are checkpoints that lack parts. Nobody is told to name one from before the tracker was
    written (``written_ns``).
    """
    if target is None:
        yield finding("bad-tracker", "the tracker is empty, or not what its framework writes", path=path)
        return
    named = [c for c in checkpoints if layout.is_tracked(c, target)]
    if not named:
        text = f"the tracker names {target}, which is not there{_overwritten(checkpoints, target, layout)}"
        yield finding("dangling-tracker", text, path=path)
        return
    if all(c.key in incomplete for c in named):
        text = f"the tracker names {target}, which is damaged or not complete"
        yield finding("dangling-tracker", text, path=path)
    newest = _newer([c for c in checkpoints if c.key not in incomplete], named)
    if newest is not None:
        text = f"the tracker names {target}, but {label(newest)} is there and complete"
        later = "it was written after that save, so it may be right: look which of the two is meant"
        yield finding("stale-tracker", text, path=path, hint=later if newest.mtime_ns < written_ns else "")


def _newer(whole: Sequence[Checkpoint], named: Sequence[Checkpoint]) -> Checkpoint | None:
    """The newest of the whole checkpoints that is newer than what the tracker names;
    a release is beside the order.
    """
    if any(c.kind is Kind.RELEASE for c in named):
        return None
    highest = max(c.order for c in named)
    newer = [c for c in whole if c.order > highest and c.kind is Kind.PERIODIC]
    return max(newer, key=lambda c: c.order, default=None)


def _overwritten(checkpoints: Sequence[Checkpoint], target: int | str, layout: Layout) -> str:
    """What explains a number that names nothing: 500 over 10000 leaves 50000 where the file is not cut off.

    MindIO ACP writes like that.
    """
    if not isinstance(target, int):
        return ""
    tracked = layout.tracked
    begun = [c for c in checkpoints if (at := tracked(c)) is not None and str(target).startswith(str(at))]
    if not begun:
        return ""
    likely = tracked(max(begun, key=lambda c: c.order))
    return f"; its first digits name {likely}, which is: a longer number may have been written over"
