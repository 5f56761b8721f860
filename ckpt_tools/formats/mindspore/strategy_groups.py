"""Which ranks hold the same bytes, from the layouts of parameters in a MindSpore strategy file. Pure
arithmetic on what either form of the file says.

Facts: mindspore/train/_utils.py (``get_parameter_redundancy``, ``_get_strategy_opt_shard``) and
mindspore/train/serialization.py (``_get_cur_rank_dp``) of MindSpore 2.10. Where those pass over a parameter
that they cannot place, its ranks count as different here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

from ckpt_tools.formats.common.tensors import near_miss

MAX_DEVICES, MAX_DIMS = 1 << 24, 64
IGNORED = ("accu_grads", "inputs")
"""Names that begin like this are buffers, whose layout says nothing about the checkpoint."""

_WORDS = (
    "current_stage parallel_strategy_item parallel_layout_item stage parallel_strategy dev_matrix tensor_map"
    " tensor_shape field opt_weight_shard_step opt_weight_shard_size param_split_shape indices_offset"
)
KEYS = frozenset(_WORDS.split())
"""Every key of the JSON form."""
_MERGED = re.compile(r"(\d{1,9})-(.+)", re.DOTALL)


class Layout(NamedTuple):
    """How a parameter lies on the devices of its pipeline stage: ``devices`` is the shape of their grid,
    ``split`` are the axes of the grid along which the tensor is cut, counted from the right. ``shard_size``
    is the number of optimizer shards: 0 none, -1 as many as ``shard_step`` leaves.
    """

    name: str
    devices: tuple[int, ...]
    split: frozenset[int]
    shard_step: int = 0
    shard_size: int = 0


class Strategy(NamedTuple):
    """What a strategy file says; ``stage`` is its pipeline stage, None if it does not say or has several."""

    stage: int | None
    layouts: tuple[Layout, ...]

    def by_stage(self) -> Mapping[int | None, Sequence[Layout]]:
        """The layouts by stage, which merge_pipeline_strategys writes first: ``1-backbone.weight``."""
        named = [(m, layout) for layout in self.layouts if (m := _MERGED.fullmatch(layout.name))]
        if len(named) < len(self.layouts):
            return {self.stage: self.layouts}
        stages: dict[int | None, list[Layout]] = {}
        for m, layout in named:
            stages.setdefault(int(m[1]), []).append(layout._replace(name=m[2]))
        return stages


def make_layout(
    name: str, devices: Sequence[int], maps: Iterable[Sequence[int]], shard_step: int, shard_size: int
) -> Layout:
    """A layout with possible numbers; ``maps`` hold axes of the grid or -1. Raises ValueError."""
    if len(devices) > MAX_DIMS or min(devices, default=1) < 1 or prod(devices) > MAX_DEVICES:
        raise ValueError(f"{name!r} lies on an impossible grid of devices, {list(devices[:8])}")
    axes = [axis for entries in maps for axis in entries]
    if any(not -1 <= axis < len(devices) for axis in axes):
        raise ValueError(f"{name!r} is split along axes {axes[:8]} of a grid that has {len(devices)}")
    if not (-1 <= shard_size <= MAX_DEVICES and 0 <= shard_step <= MAX_DEVICES):
        raise ValueError(f"{name!r} has {shard_size} optimizer shards {shard_step} ranks apart")
    return Layout(name, tuple(devices), frozenset(axes) - {-1}, shard_step, shard_size)


_PLACE = ("dev_matrix", "tensor_map", "opt_weight_shard_step", "opt_weight_shard_size")


def from_json(value: Any) -> Strategy:
    """The JSON form of a strategy file. Raises ValueError when it is none."""
    try:
        items, nodes = value["parallel_layout_item"], value.get("parallel_strategy_item") or {}
        stages = [node["stage"] for node in nodes.values()]
        found = [(name, *(e[key] for key in _PLACE)) for name, e in items.items()]
        numbers = [*_list_numbers(items.values(), nodes.values()), *stages, value.get("current_stage", 0)]
        unknown = set[Any]().union(value, *items.values(), *nodes.values()) - KEYS
    except (TypeError, KeyError, AttributeError) as e:
        raise ValueError(f"it has not the fields of a strategy file ({e!r:.200})") from e
    if odd := next((k for k in sorted(unknown) if near_miss(k, KEYS)), None):
        raise ValueError(f"{odd[:200]!r} is one bit away from {near_miss(odd, KEYS)!r}")
    if not all(type(n) is int for n in numbers) or min(stages, default=0) < 0:
        raise ValueError("a number in it is not a whole number")
    if not found:
        raise ValueError("it holds no layout of a parameter")
    layouts = (make_layout(name, devices, (axes,), *shards) for name, devices, axes, *shards in found)
    return Strategy(next(iter(stages), None), tuple(layouts))


def _list_numbers(items: Iterable[Any], nodes: Iterable[Any]) -> Iterator[Any]:
    """Every number in the entries of parameters and of operators. Raises KeyError and TypeError."""
    for e in items:
        yield from e["dev_matrix"]
        yield from e["tensor_map"]
        yield e["opt_weight_shard_step"]
        yield e["opt_weight_shard_size"]
        yield e["field"]
        yield from e["tensor_shape"]
        yield from e.get("param_split_shape", ())
        yield from e.get("indices_offset", ())
    for node in nodes:
        for cut in node["parallel_strategy"]:
            yield from cut


def uneven(strategy: Strategy) -> str:
    """Why grids contradict each other, "" if not: those of a stage have the same number of devices."""
    for layouts in strategy.by_stage().values():
        counts = {prod(e.devices) for e in layouts}
        if len(counts) > 1:
            grids = " and ".join(map(str, sorted(counts)[:4]))
            return f"the parameters of a stage lie on grids of {grids} devices"
    return ""


def _group_ranks(layout: Layout) -> list[tuple[int, ...]]:
    """For each rank of the stage, from 0, the ranks that hold the same slice of the parameter."""
    count, cells = prod(layout.devices), dict[int, list[int]]()
    strides, stride = list[tuple[int, int]](), 1
    for axis, size in enumerate(reversed(layout.devices)):
        if axis in layout.split:
            strides.append((stride, size))
        stride *= size
    for rank in range(count):
        cell = 0
        for stride, size in strides:
            cell = cell * size + rank // stride % size
        cells.setdefault(cell, []).append(rank)
    shards = layout.shard_size
    if shards == -1:
        shards = count // layout.shard_step if layout.shard_step else count
    out: list[tuple[int, ...]] = [(rank,) for rank in range(count)]
    for ranks in cells.values():
        if shards and len(ranks) % shards:
            continue  # nothing tells how the shards lie
        for first in range(shards or 1):
            group = tuple(ranks[first :: shards or 1])
            for rank in group:
                out[rank] = group
    return out


def stage_groups(layouts: Iterable[Layout]) -> tuple[tuple[int, ...], ...]:
    """The ranks of a stage, from 0, in groups with the same bytes of every parameter: the smallest of a
    rank's groups if each lies in the next larger one, else it alone. Raises ValueError.
    """
    all_layouts = list(layouts)
    counts = {prod(layout.devices) for layout in all_layouts}
    if len(counts) != 1:
        grids = " and ".join(map(str, sorted(counts)[:4]))
        raise ValueError(f"its parameters lie on grids of {grids} devices")
    count = counts.pop()
    distinct = {e._replace(name="") for e in all_layouts if not e.name.startswith(IGNORED)}
    splits = [_group_ranks(layout) for layout in distinct]

    @cache
    def lies_inside(small: int, first: int, large: int) -> bool:
        """Whether one group of a split, known by its first rank, lies in a single one of another split."""
        return len({splits[large][member][0] for member in splits[small][first]}) == 1

    placed, out = bytearray(count), list[tuple[int, ...]]()
    for rank in range(count):
        if placed[rank]:
            continue
        mine = sorted(range(len(splits)), key=lambda i: len(splits[i][rank]))
        nested = mine and all(lies_inside(s, splits[s][rank][0], large) for s, large in pairwise(mine))
        group = splits[mine[0]][rank] if nested else (rank,)
        for member in group:
            placed[member] = True
        out.append(group)
    return tuple(out)
