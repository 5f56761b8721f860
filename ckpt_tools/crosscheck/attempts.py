"""Files of one step that two attempts wrote: a job went back, began to save the step again, and died before all its files were new.

Pure: parts, their times and what their reports tell. Every value may be sound, and names, steps and trackers agree, so only three things can
show it: restart counters in names, counters inside the files that all files of one save share, and times.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import pairwise

from ckpt_tools.findings import finding
from ckpt_tools.layouts import Layout, whole
from ckpt_tools.layouts.common.counters import SHARED
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.frozen import frozen
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Report

_LEAST_NS = 2_000_000_000
"""No job is started, has trained and saves again in less."""
_ALONE_NS = 600 * 1_000_000_000
"""How long a pause must be where no other checkpoint shows what is usual; six times that where there are only two files."""
_NAMED = 3
"""Files that a message names on each side."""
_UNUSUAL = 4
"""How many times longer than in other checkpoints."""


@frozen
class Apart:
    """The files of one checkpoint on both sides of the longest pause between two of them, and why no save takes such a pause."""

    older: tuple[Part, ...]
    newer: tuple[Part, ...]
    why: str

    def sides(self, root: str) -> str:
        """Which files were written when."""
        return f"{_files(self.older, root)}, and {_files(self.newer, root)}"

    def restarted(self, layout: Layout) -> bool:
        """Whether the restart counters in the names say so too: then nothing is left to ask."""
        first, second = ({p.generation for p in parts} for parts in (self.older, self.newer))
        return layout.counts_restarts and first.isdisjoint(second)


def _files(parts: Sequence[Part], root: str) -> str:
    names = [p.path.removeprefix(f"{root}/") for p in parts[:_NAMED]]
    more = f" and {len(parts) - len(names)} more" if len(parts) > len(names) else ""
    first, last = (
        datetime.fromtimestamp(p.mtime_ns // 1_000_000_000, timezone.utc) for p in (parts[0], parts[-1])
    )
    until = f" to {last:%Y-%m-%d %H:%M:%S}" if last != first else ""
    return f"{', '.join(names)}{more} ({first:%Y-%m-%d %H:%M:%S}{until} UTC)"


def apart(
    parts: Sequence[Part], others: Sequence[Sequence[Part]], begun: Sequence[Sequence[Part]] = ()
) -> Apart | None:
    """Whether the times of ``parts``, which are to be loaded together, are those of two attempts, beside the same files of the run's ``others``.

    ``begun`` are saves that never finished: they show what lay in between, but not how long a save takes.
    """
    mine = sorted((p for p in parts if p.size >= 0), key=lambda p: p.mtime_ns)
    at, pause = _longest([p.mtime_ns for p in mine])
    if pause < _LEAST_NS:
        return None
    spans = _spans(others)
    saves = _Saves([*spans, *_spans(begun)])
    usual = sorted(
        max((b - a for a, b in pairwise(span) if not saves.between(a, b)), default=0) for span in spans
    )
    if usual and pause <= _UNUSUAL * usual[(len(usual) - 1) // 2]:
        return None
    older, newer = tuple(mine[:at]), tuple(mine[at:])
    start, end = older[-1].mtime_ns, newer[0].mtime_ns
    if saves.between(start, end):
        return Apart(older, newer, "another checkpoint was written in between")
    if not spans:
        second = _second([p.mtime_ns for p in mine])
        long = (
            pause >= _ALONE_NS and (len(mine) > 2 or pause >= 6 * _ALONE_NS) and pause > 5 * _UNUSUAL * second
        )
        return Apart(older, newer, "no save takes so long") if long else None
    interval = _interval([*spans, [p.mtime_ns for p in older]])
    return (
        Apart(older, newer, "the run saves whole checkpoints more often than that")
        if interval and 4 * pause >= 3 * interval
        else None
    )


class _Saves:
    """When whole saves were written, for the question whether one lies between two times."""

    def __init__(self, spans: Sequence[Sequence[int]]) -> None:
        rows = sorted((span[0], span[-1]) for span in spans)
        self.starts = [first for first, _ in rows]
        self.ends = [last for _, last in rows]
        for i in range(len(rows) - 2, -1, -1):  # the earliest end of those that start here or later
            self.ends[i] = min(self.ends[i], self.ends[i + 1])

    def between(self, start: int, end: int) -> bool:
        i = bisect_right(self.starts, start)
        return i < len(self.ends) and self.ends[i] < end


def _spans(saves: Sequence[Sequence[Part]]) -> list[list[int]]:
    """The times of the files of each save, in order."""
    spans = (sorted(p.mtime_ns for p in parts if p.size >= 0) for parts in saves)
    return [span for span in spans if span]


def _longest(times: Sequence[int]) -> tuple[int, int]:
    """(where, how long) the longest pause between two times in order is."""
    return max(
        ((i + 1, b - a) for i, (a, b) in enumerate(pairwise(times))), key=lambda row: row[1], default=(0, 0)
    )


def _second(times: Sequence[int]) -> int:
    """The second longest pause."""
    return sorted((b - a for a, b in pairwise(times)), reverse=True)[1:2][0] if len(times) > 2 else 0


def _interval(spans: Sequence[Sequence[int]]) -> int:
    """The time between two saves: the shortest but one, because a last save may follow at once."""
    middles = sorted(span[len(span) // 2] for span in spans)
    gaps = sorted(b - a for a, b in pairwise(middles))
    return gaps[min(1, max(0, len(gaps) - 2))] if gaps else 0


def unlike(parts: Sequence[Part], reports: Mapping[str, Report]) -> Iterator[tuple[str, Finding]]:
    """(path, finding) where files of one checkpoint disagree on a counter that all files of one save share: those of the smaller group, of equal ones all."""
    told: dict[tuple[str, str], dict[int, list[Part]]] = defaultdict(lambda: defaultdict(list))
    for p in parts:
        for key, value in reports[p.path].metadata.items() if p.path in reports else ():
            if key.rpartition(".")[2] in SHARED and (n := whole(value)) is not None:
                told[p.piece, key][n].append(p)
    for (_, key), values in told.items():
        if len(values) < 2:
            continue
        most = Counter({n: len(ps) for n, ps in values.items()}).most_common(2)
        usual = most[0][0] if most[0][1] > most[1][1] else None
        for n, odd in values.items():
            other = next(o for o, _ in most if o != n)
            for p in odd if n != usual else ():
                text = f"its {key} is {n}, that of other files of its checkpoint {other}: two attempts wrote them"
                yield p.path, finding("mixed-attempts", text, severity=Severity.ERROR)
