"""Files of a few numbers (where a data loader is, what a training loop counts) that are an older save's, as
the numbers tell: they stand still over as many steps as let them move elsewhere in the run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
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
    for at, f in enumerate(files):
        others = [o for o in files if o is not f]
        for older in files[:at]:
            key = _moves(others, f.number - older.number) if older.holds == f.holds else ""
            if key in f.holds:
                same = f"its {key} is {f.holds[key]}, the same as in checkpoint {older.number}"
                text = f"{same}, though it moves between others that are as far apart"
                yield f.part.path, finding("step-mismatch", text, severity=Severity.WARNING)
                break


def _moves(files: Sequence[_File], distance: int) -> str:
    """What moves between two files that are that far apart; "" without any."""
    if distance <= 0:
        return ""
    for a, b in combinations(files, 2):
        if b.number - a.number == distance:
            for key in sorted(a.holds.keys() & b.holds.keys()):
                if abs(a.holds[key] - b.holds[key]) > 1:
                    return key
    return ""
