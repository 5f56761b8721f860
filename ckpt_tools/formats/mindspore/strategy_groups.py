"""Which ranks hold the same bytes: computed from the layouts in a MindSpore strategy file (protobuf or JSON).

Facts: mindspore/train/_utils.py (``get_parameter_redundancy``, ``_get_strategy_opt_shard``) and
mindspore/train/serialization.py (``_get_cur_rank_dp``) of MindSpore 2.10. MindSpore ignores a parameter that
it cannot place; here all ranks of such a parameter count as different.
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
"""Prefixes of names of buffers, whose layout says nothing about the checkpoint."""

_WORDS = (
    "current_stage parallel_strategy_item parallel_layout_item stage parallel_strategy dev_matrix tensor_map"
    " tensor_shape field opt_weight_shard_step opt_weight_shard_size param_split_shape indices_offset"
)
KEYS = frozenset(_WORDS.split())
"""Every key of the JSON form."""
_MERGED = re.compile(r"(\d{1,9})-(.+)", re.DOTALL)


class Layout(NamedTuple):
    """One parameter's place on the devices of its pipeline stage: ``devices`` is the shape of their grid,
    ``split`` the axes of the grid (counted from the right) that cut the tensor. ``shard_size`` is the number
    of optimizer shards, ``shard_step`` ranks apart: 0 for none, -1 for as many as the stage has room for.
    """

    name: str
    devices: tuple[int, ...]
    split: frozenset[int]
    shard_step: int = 0
    shard_size: int = 0


class Strategy(NamedTuple):
    """One strategy file's content; ``stage`` is its pipeline stage, None if unknown or if it has several."""

    stage: int | None
    layouts: tuple[Layout, ...]

    def by_stage(self) -> Mapping[int | None, Sequence[Layout]]:
        """Return stage -> layouts; merge_pipeline_strategys wrote the stage first: ``1-backbone.weight``."""
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
    """Return a Layout; ``maps`` hold axes of the grid, or -1. Raise ValueError for impossible numbers."""
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
    """Return the Strategy in the JSON form of a strategy file. Raise ValueError if it is another JSON."""
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
    """Yield every number in the entries of parameters and of operators. Raise KeyError and TypeError."""
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


def find_uneven(strategy: Strategy) -> str:
    """Return why grids of a stage contradict each other, "" if they have the same number of devices."""
    for layouts in strategy.by_stage().values():
        counts = {prod(e.devices) for e in layouts}
        if len(counts) > 1:
            grids = " and ".join(map(str, sorted(counts)[:4]))
            return f"the parameters of a stage lie on grids of {grids} devices"
    return ""


def _group_ranks(layout: Layout) -> list[tuple[int, ...]]:
    """Return, for each rank of the stage from 0, the ranks with the same slice and optimizer shard of it."""
    count, slices = prod(layout.devices), dict[int, list[int]]()
    strides, stride = list[tuple[int, int]](), 1
    for axis, size in enumerate(reversed(layout.devices)):
        if axis in layout.split:
            strides.append((stride, size))
        stride *= size
    for rank in range(count):
        index = 0  # of the rank's slice
        for stride, size in strides:
            index = index * size + rank // stride % size
        slices.setdefault(index, []).append(rank)
    shards = layout.shard_size or 1  # without optimizer shards each rank holds its whole slice
    if shards == -1:  # as many shards as there are ranks ``shard_step`` apart in the stage
        shards = max(1, count // (layout.shard_step or 1))
    groups: list[tuple[int, ...]] = [(rank,) for rank in range(count)]
    for ranks in slices.values():
        if len(ranks) % shards:
            continue  # it is unknown which rank holds which shard
        for first in range(shards):
            group = tuple(ranks[first::shards])
            for rank in group:
                groups[rank] = group
    return groups


def stage_groups(layouts: Iterable[Layout]) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of a stage, from 0, in groups that hold the same bytes of every parameter: a rank's
    smallest group if each of its groups lies in the next larger one, else the rank alone. Raise ValueError.
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
        """Return whether the group of rank ``first`` in one split lies in one group of another split."""
        return len({splits[large][member][0] for member in splits[small][first]}) == 1

    is_grouped, groups = bytearray(count), list[tuple[int, ...]]()
    for rank in range(count):
        if is_grouped[rank]:
            continue
        by_size = sorted(range(len(splits)), key=lambda i: len(splits[i][rank]))
        nested = by_size and all(lies_inside(s, splits[s][rank][0], large) for s, large in pairwise(by_size))
        group = splits[by_size[0]][rank] if nested else (rank,)
        for member in group:
            is_grouped[member] = True
        groups.append(group)
    return tuple(groups)
