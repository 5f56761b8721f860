"""Files of one step that two attempts wrote.

A job went back, began to save the step again, and died before all its files were new.
Pure: parts, their times and what their reports tell. Every value may be sound, and names, steps and trackers
agree, so only three things can show it: restart counters in names, counters inside the files that all files
of one save share, and times.
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
"""How long a pause must be where no other checkpoint shows what is usual. Of only two files it must be longer
than writing the second took at 5 MB/s as well, but no longer than six times this; and so long where both are
of one step.
"""
_NAMED = 3
"""Files that a message names on each side."""
_UNUSUAL = 4
"""How many times longer than in other checkpoints."""


@frozen
class Apart:
    """The files of one checkpoint on both sides of the longest pause,
    and ``why`` no save takes such a pause.
    """

    older: tuple[Part, ...]
    newer: tuple[Part, ...]
    why: str

    def sides(self, root: str) -> str:
        """Which files were written when."""
        return f"{_files(self.older, root)}, and {_files(self.newer, root)}"

    def restarted(self, layout: Layout) -> bool:
        """Whether the restart counters in the names say so too: then nothing is left to ask."""
        first, second = ({p.generation for p in parts} for parts in (self.older, self.newer))
        return bool(layout.counts_restarts) and first.isdisjoint(second)


def _files(parts: Sequence[Part], root: str) -> str:
    names = [p.path.removeprefix(f"{root}/") for p in parts[:_NAMED]]
    more = f" and {len(parts) - len(names)} more" if len(parts) > len(names) else ""
    first, last = (
        datetime.fromtimestamp(p.mtime_ns // 1_000_000_000, timezone.utc) for p in (parts[0], parts[-1])
    )
    until = f" to {last:%Y-%m-%d %H:%M:%S}" if last != first else ""
    return f"{', '.join(names)}{more} ({first:%Y-%m-%d %H:%M:%S}{until} UTC)"


def apart(
    parts: Sequence[Part],
    others: Sequence[Sequence[Part]],
    begun: Sequence[Sequence[Part]] = (),
    commit: str = "",
) -> Apart | None:
    """Whether the times of ``parts``, which are to be loaded together, are those of two attempts.

    ``others`` are the same files of the run's other checkpoints. ``begun`` are saves that never finished:
    they show what lay in between, but not how long a save takes. Files of the role ``commit`` follow when
    every rank is done, however long that takes.
    """
    mine = sorted((p for p in parts if p.size >= 0), key=lambda p: p.mtime_ns)
    times = [p.mtime_ns for p in mine]
    at, pause = _longest(times)
    if pause < _LEAST_NS:
        return None
    spans = _spans(others)
    saves = _Saves([*spans, *_spans(begun)])
    if not _unusual(pause, spans, saves):
        return None
    older, newer = tuple(mine[:at]), tuple(mine[at:])
    why = ""
    if saves.between(older[-1].mtime_ns, newer[0].mtime_ns):
        why = "another checkpoint was written in between"
    elif _commits(older, newer, commit):
        return None
    elif not spans:
        why = "no save takes so long" if _long_alone(pause, mine, newer) else ""
    elif _skips_a_save(pause, [*spans, times[:at]]):
        why = "the run saves whole checkpoints more often than that"
    return Apart(older, newer, why) if why else None


def _commits(older: Sequence[Part], newer: Sequence[Part], commit: str) -> bool:
    """Whether only what a save writes last is newer: a second attempt would have written all before it."""
    roles = {p.role for p in newer}
    return commit in roles and roles <= {commit, "index"} and commit not in {p.role for p in older}


def _unusual(pause: int, spans: Sequence[Sequence[int]], saves: _Saves) -> bool:
    """Whether a pause is much longer than the longest of half of the other saves."""
    longest = []
    for span in spans:
        pauses = (b - a for a, b in pairwise(span) if not saves.between(a, b))
        longest.append(max(pauses, default=0))
    return not longest or pause > _UNUSUAL * sorted(longest)[(len(longest) - 1) // 2]


def _long_alone(pause: int, parts: Sequence[Part], newer: Sequence[Part]) -> bool:
    """Whether a pause is too long for any save, where there is no other to compare with."""
    longest, least = 6 * _ALONE_NS, _ALONE_NS
    if len(parts) == 2:
        writing = 200 * sum(p.size for p in newer)
        at = {(p.step, p.epoch) for p in parts}
        least = longest if len(at) == 1 and at != {(None, None)} else max(least, min(writing, longest))
    return pause >= least and pause > 5 * _UNUSUAL * _second([p.mtime_ns for p in parts])


def _skips_a_save(pause: int, spans: Sequence[Sequence[int]]) -> bool:
    """Whether the run would have saved another checkpoint in that time."""
    interval = _interval(spans)
    return interval > 0 and 4 * pause >= 3 * interval


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
