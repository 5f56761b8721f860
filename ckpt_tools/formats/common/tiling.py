"""Whether boxes fill a shape without hole or overlap: the chunks of a sharded tensor.

torch checks the same before it saves (torch/distributed/checkpoint/default_planner.py,
_validate_global_plan): chunks in bounds, no two overlap, and their volumes add up to the tensor's.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from ckpt_tools.model.tensor import Box

_FEW = 32
"""Boxes that are compared pair by pair when nothing else separates them."""


class Untiled(NamedTuple):
    """How boxes fail ("bounds", "overlap", "hole", "complex"), and one that shows it or -1."""

    kind: str
    box: int


def untiled(shape: tuple[int, ...], boxes: Sequence[Box]) -> Untiled | None:
    """Why ``boxes`` do not fill ``shape`` exactly, None if they do; one without volume need only lie inside.
    O(n log n) for grids and for cells that are cut again and again; else bounded by "complex".
    """
    dims = [d for d, n in enumerate(shape) if n]  # without elements it must be filled in its other dimensions
    volume, solid = 0, []
    for i, b in enumerate(boxes):
        if not all(0 <= a <= z <= n for a, z, n in zip(b.start, b.stop, shape, strict=True)):
            return Untiled("bounds", i)
        v = math.prod(b.stop[d] - b.start[d] for d in dims)
        if v:
            volume += v
            solid.append(i)
    bad = _find_overlap(boxes, solid, dims)
    if bad is None and volume != math.prod(shape[d] for d in dims):
        return Untiled("hole", -1)
    return bad


def _find_overlap(boxes: Sequence[Box], members: list[int], every: list[int]) -> Untiled | None:
    """Divide the boxes into groups that cannot touch, until each is one box or has one dimension."""
    stack = [(members, every)]
    budget = 24 * (len(every) + 1) * (len(members) + 1)
    while stack:
        group, dims = stack.pop()
        if len(group) < 2:
            continue
        budget -= len(group) * (len(dims) + 1)
        if budget < 0:
            return Untiled("complex", group[0])
        if not dims:
            return Untiled("overlap", group[1])
        runs = {d: _find_runs(boxes, group, d) for d in dims}
        regular = [d for d in dims if runs[d].regular]
        if regular:
            stack += _find_cells(boxes, group, dims, regular)
            continue
        if len(dims) == 1:
            return Untiled("overlap", runs[dims[0]].touching)
        most = max(dims, key=lambda d: len(runs[d].groups))
        if len(runs[most].groups) > 1:
            stack.extend((g, dims) for g in runs[most].groups)
        elif len(group) > _FEW:
            return Untiled("complex", group[0])
        elif (pair := _find_pair(boxes, group, dims)) is not None:
            return Untiled("overlap", pair)
    return None


def _find_cells(
    boxes: Sequence[Box], group: list[int], dims: list[int], regular: list[int]
) -> list[tuple[list[int], list[int]]]:
    """The boxes that are equal in all regular dimensions, so that no others overlap, and what is left."""
    cells = defaultdict[tuple[int, ...], list[int]](list)
    for i in group:
        cells[tuple(boxes[i].start[d] for d in regular)].append(i)
    rest = [d for d in dims if d not in regular]
    return [(cell, rest) for cell in cells.values()]


class _Runs(NamedTuple):
    """One dimension of a group, ``regular`` if any two extents are equal or disjoint, cut into ``groups``
    where none reaches across; ``touching`` overlaps the one before it, or is -1.
    """

    regular: bool
    groups: list[list[int]]
    touching: int


def _find_runs(boxes: Sequence[Box], group: list[int], d: int) -> _Runs:
    order = sorted(group, key=lambda i: (boxes[i].start[d], boxes[i].stop[d]))
    groups: list[list[int]] = []
    regular, touching, end, last = True, -1, -1, (-1, -1)
    for i in order:
        extent = boxes[i].start[d], boxes[i].stop[d]
        if extent[0] >= end:
            groups.append([i])
        else:
            groups[-1].append(i)
            touching = i if touching < 0 else touching
            regular = regular and extent == last
        end, last = max(end, extent[1]), extent
    return _Runs(regular, groups, touching)


def _find_pair(boxes: Sequence[Box], group: list[int], dims: list[int]) -> int | None:
    for n, i in enumerate(group):
        for j in group[:n]:
            if all(
                boxes[i].start[d] < boxes[j].stop[d] and boxes[j].start[d] < boxes[i].stop[d] for d in dims
            ):
                return i
    return None
