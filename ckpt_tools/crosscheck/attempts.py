"""Files of one step that two attempts wrote.

A job went back, began to save the step again, and died before all its files were new.
Every value may be sound, and names, steps and trackers agree: counters inside the files that all files of one
save share tell.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from ckpt_tools.discovery.completeness import label
from ckpt_tools.findings import finding
from ckpt_tools.layouts import Layout, whole
from ckpt_tools.layouts.common.counters import SHARED
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Report


def unlike(parts: Sequence[Part], reports: Mapping[str, Report]) -> Iterator[tuple[str, Finding]]:
    """(path, finding) where files of one checkpoint disagree on a counter that all files of one save share.

    Those of the smaller group are wrong; where the groups are equal all of them.
    """
    told: dict[tuple[str, str], dict[int, list[Part]]] = defaultdict(lambda: defaultdict(list))
    for p in parts:
        for key, n in _shared(reports[p.path]) if p.path in reports else ():
            told[p.piece, key][n].append(p)
    for (_, key), values in told.items():
        if len(values) > 1:
            yield from _disagreeing(key, values)


def _shared(report: Report) -> Iterator[tuple[str, int]]:
    """The counters in a file that are the same in all files of its save."""
    for key, value in report.metadata.items():
        if key.rpartition(".")[2] in SHARED and (n := whole(value)) is not None:
            yield key, n


def _disagreeing(key: str, values: Mapping[int, Sequence[Part]]) -> Iterator[tuple[str, Finding]]:
    """The files whose counter is not the one that most have; ``values`` maps what it is to the files."""
    (first, most), (second, next_most) = Counter({n: len(ps) for n, ps in values.items()}).most_common(2)
    for n, odd in values.items():
        if n == first and most > next_most:
            continue
        other = second if n == first else first
        text = f"its {key} is {n}, that of other files of its checkpoint {other}: two attempts wrote them"
        for p in odd:
            yield p.path, finding("mixed-attempts", text, severity=Severity.ERROR)


def of_different_restarts(c: Checkpoint, others: Sequence[Checkpoint], layout: Layout) -> Iterator[Finding]:
    """That names of its files count different restarts: a note if they were written together, for after a
    crash in the middle of a save the ranks count differently; not if its files are copies of each other.
    """
    if len({p.generation for p in c.parts}) < 2 or all(layout.piece(p.piece).single for p in c.parts):
        return
    spread = max(p.mtime_ns for p in c.parts) - min(p.mtime_ns for p in c.parts)
    nearest = min((abs(o.mtime_ns - c.mtime_ns) for o in others if o.key != c.key), default=0)
    severity = Severity.NOTE if spread < nearest else Severity.WARNING
    text = f"{label(c)} joins files of different restarts"
    yield finding("generation-mismatch", text, path=c.path, severity=severity)
