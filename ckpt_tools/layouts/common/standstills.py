"""Files of a few numbers (where a data loader is, what a training loop counts) that are an older save's, as
the numbers tell: they stand still over as many steps as let them move elsewhere in the run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.layouts.common.counters import place_in_run
from ckpt_tools.layouts.common.layout import whole
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Report

_MAY_STOP = ("best", "patience", "wait", "ocdbt_generation")
"""Parts of the names of what grows only while training gets better, or by how the writes of a save happened
to be put together (TensorStore's commits).
"""


class _File(NamedTuple):
    """Where in its run a file lies, and the numbers in it."""

    number: int
    part: Part
    holds: Mapping[str, int]


def standstills(parts: Sequence[tuple[Part, Report]], told: Collection[str]) -> Iterator[tuple[str, Finding]]:
    """Files without tensors whose numbers are all those of an older save, of which one moved between two
    others that are as far apart.

    A count of steps moves always, a position in an epoch by the same between any two saves of one distance, a
    count of epochs by one more or less. So it must have moved by two at least. Those ``told`` are known
    anyway.
    """
    by_place: dict[object, list[_File]] = {}
    for p, r in parts:
        number = place_in_run(p)
        if number is None or not p.home or r.tensors or "last_epoch" in r.metadata or p.path in told:
            continue
        holds = {k: n for k, v in r.metadata.items() if (n := whole(v)) is not None}
        if holds and not any(word in k.lower() for k in r.metadata for word in _MAY_STOP):
            place = (p.piece, p.rank, p.coords, p.path.removeprefix(p.home))
            by_place.setdefault(place, []).append(_File(number, p, holds))
    for files in by_place.values():
        yield from _of_one_place(sorted(files, key=lambda f: f.number))


def _of_one_place(files: Sequence[_File]) -> Iterator[tuple[str, Finding]]:
    moves, alike = _Moves(files), dict[object, list[_File]]()
    for f in files:
        older_ones = alike.setdefault(frozenset(f.holds.items()), [])
        for older in older_ones if moves.any_of(f.holds) else ():
            key = moves.over(f.number - older.number, f)
            if key in f.holds:
                same = f"its {key} is {f.holds[key]}, the same as in checkpoint {older.number}"
                text = f"{same}, though it moves between others that are as far apart"
                yield f.part.path, finding("step-mismatch", text, severity=Severity.WARNING)
                break
        older_ones.append(f)


class _Moves:
    """What moves by more than one between two files of a place."""

    def __init__(self, files: Sequence[_File]) -> None:
        self._files = files
        self._at: dict[int, list[_File]] = {}
        values: dict[str, list[int]] = {}
        for f in files:
            self._at.setdefault(f.number, []).append(f)
            for key, n in f.holds.items():
                values.setdefault(key, []).append(n)
        self._ever = {key for key, ns in values.items() if max(ns) - min(ns) > 1}
        self._over: dict[int, list[tuple[_File, _File, str]]] = {}

    def any_of(self, holds: Mapping[str, int]) -> bool:
        return not self._ever.isdisjoint(holds)

    def over(self, distance: int, but: _File) -> str:
        """What moves between two files other than ``but`` that are that far apart; "" without any."""
        if distance not in self._over:
            self._over[distance] = list(self._pairs(distance)) if distance > 0 else []
        return next((key for a, b, key in self._over[distance] if but is not a and but is not b), "")

    def _pairs(self, distance: int) -> Iterator[tuple[_File, _File, str]]:
        for a in self._files:
            for b in self._at.get(a.number + distance, ()):
                for key in sorted(self._ever & a.holds.keys() & b.holds.keys()):
                    if abs(a.holds[key] - b.holds[key]) > 1:
                        yield a, b, key
                        break
