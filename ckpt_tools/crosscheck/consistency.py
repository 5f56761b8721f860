"""Files that contradict their names, each other, or the tracker beside them. Pure: it works on parts and
their reports alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ckpt_tools.discovery.completeness import label
from ckpt_tools.findings import finding
from ckpt_tools.layouts import Layout, Layouts
from ckpt_tools.layouts.common.counters import schedules
from ckpt_tools.model.checkpoint import Checkpoint, CheckpointKey
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.report import Report

Reports = Mapping[str, Report]


def consistency(parts: Sequence[Part], reports: Reports, layouts: Layouts) -> Iterator[tuple[str, Finding]]:
    """(path, finding) where names contradict contents, over a run's parts that were read, and its marks."""
    if not parts:
        return
    read = ((p, reports.get(p.path)) for p in parts)
    rows = [(p, r) for p, r in read if r and (r.format or layouts.piece_of(p).mark)]
    told = list(layouts.of(parts[0]).check(rows))
    told += schedules(rows, {path for path, _ in told})
    yield from told


def signatures(
    parts: Sequence[Part],
    reports: Reports,
    layouts: Layouts,
    hides_cuts: Callable[[str | None], bool],
) -> Iterator[Changed]:
    """Where a rank's tensors differ from those of most of its files in the run.

    Of two signatures that are equally frequent the one of the older file counts as usual. Files of a format
    that ``hides_cuts`` are compared in every layout.
    """
    series: dict[object, list[tuple[Part, Report]]] = defaultdict(list)
    for p in parts:
        report = reports.get(p.path)
        if report is None or not _comparable(report):
            continue
        if same_tensors(p, layouts.of(p)) or hides_cuts(report.format):
            series[_series(p, report, layouts.of(p))].append((p, report))
    for same in series.values():
        same.sort(key=lambda row: (row[0].step or 0, row[0].epoch or 0, row[0].step_in_epoch or 0))
        usual = Counter(r.signature for _, r in same).most_common(1)[0][0]
        typical = next(p for p, r in same if r.signature == usual)
        yield from (Changed(p, typical, p is same[0][0]) for p, r in same if r.signature != usual)


def _comparable(report: Report) -> bool:
    """Whether a file has tensors, all of which could be read."""
    return report.tensors > 0 and not any(f.code in ("truncated", "bad-header") for f in report.findings)


def same_tensors(p: Part, layout: Layout) -> bool:
    """Whether all saves of a part have the same tensors, as far as its layout knows."""
    return layout.compare_steps and not layout.piece(p.piece).weak


def _series(p: Part, report: Report, layout: Layout) -> object:
    """What files have in common whose tensors are compared."""
    what = p.role if layout.compared_by_role else p.piece
    release = p.kind is Kind.RELEASE
    return p.layout, p.run, what, p.rank, p.coords, p.generation, report.format, release


class Changed(NamedTuple):
    """A file with other tensors than most of its place at other steps, one with these, and whether it is the
    first of its place.
    """

    odd: Part
    typical: Part
    first: bool


class Odd(NamedTuple):
    """A file that is not what its replicas are, one that is, and whether "tensors" or the "size" differ."""

    odd: Part
    typical: Part
    what: str


def replicas(checkpoint: Checkpoint, reports: Reports, layout: Layout) -> Iterator[Odd]:
    """Files that the layout says hold the same, with other tensors than most, or a size far from theirs."""
    groups: dict[object, list[Part]] = defaultdict(list)
    for p in checkpoint.parts:
        piece = layout.piece(p.piece)
        if p.rank is not None and "dp" in piece.replicated_over and not piece.sharded and p.size > 0:
            groups[p.piece, p.coords].append(p)
    for same in groups.values():
        if len(same) < 3:  # of two nobody knows which is odd
            continue
        signatures = [r.signature if (r := reports.get(p.path)) else "" for p in same]
        for p, typical in _minority(same, signatures):
            yield Odd(p, typical, "tensors")
        for p, typical in _minority(same, [p.size for p in same]):
            if abs(p.size - typical.size) * 100 > typical.size:
                yield Odd(p, typical, "size")


def _minority(same: Sequence[Part], values: Sequence[str | int]) -> Iterator[tuple[Part, Part]]:
    """(part, one of the others) for parts of another value than more than half of them; "" is none."""
    usual, n = Counter(values).most_common(1)[0]
    if 2 * n <= len(same) or not usual:
        return
    typical = same[values.index(usual)]
    for p, value in zip(same, values, strict=True):
        if value and value != usual:
            yield p, typical


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
