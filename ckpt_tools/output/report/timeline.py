"""What the times of saves tell: where training went back, and where no save was made for long."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from ckpt_tools.model.part import Kind
from ckpt_tools.output.json import Object
from ckpt_tools.output.report.checkpoints import Row

LONG = 2.5
"""Times the usual pause between two saves from which on a pause is a gap."""
ENOUGH = 3
"""Pauses of a run from which on there is a usual one."""


def timeline(rows: Sequence[Row]) -> Object:
    """Rollbacks and gaps of every run, as indexes of the checkpoints on both sides, in the order of time."""
    runs = defaultdict[tuple[int, str, str], list[int]](list)
    for i, row in enumerate(rows):
        c = row.checkpoint
        if c.mtime_ns > 0 and c.step is not None and c.kind in (Kind.PERIODIC, Kind.DYING_GASP):
            runs[row.root, c.layout, c.run].append(i)
    rollbacks, gaps = list[Object](), list[Object]()
    for members in runs.values():
        members.sort(key=lambda i: (rows[i].checkpoint.mtime_ns, rows[i].checkpoint.order))
        rollbacks += _rollbacks(rows, members)
        gaps += _gaps(rows, members)
    return {"rollbacks": rollbacks, "gaps": gaps}


def _rollbacks(rows: Sequence[Row], members: Sequence[int]) -> list[Object]:
    """Where a later save is of an earlier step."""
    steps = {i: rows[i].checkpoint.step or 0 for i in members}
    return [
        {"from": a, "to": b, "steps": steps[a] - steps[b]}
        for a, b in pairwise(members)
        if steps[b] < steps[a]
    ]


def _gaps(rows: Sequence[Row], members: Sequence[int]) -> list[Object]:
    """Pauses that are longer than usual."""
    times = {i: rows[i].checkpoint.mtime_ns / 1e9 for i in members}
    pauses = [times[b] - times[a] for a, b in pairwise(members)]
    if len(pauses) < ENOUGH or (usual := median(pauses)) <= 0:
        return []
    return [
        {"from": a, "to": b, "seconds": round(times[b] - times[a], 3), "usual": round(usual, 3)}
        for a, b in pairwise(members)
        if times[b] - times[a] > LONG * usual
    ]
