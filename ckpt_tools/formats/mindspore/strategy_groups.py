"""Which ranks hold the same bytes: computed from the layouts in a MindSpore strategy file (protobuf or JSON).

Facts: mindspore/train/_utils.py (``get_parameter_redundancy``, ``_get_strategy_opt_shard``) and
mindspore/train/serialization.py (``_get_cur_rank_dp``) of MindSpore 2.10. MindSpore ignores a parameter that
it cannot place; here all ranks of such a parameter count as different.

MindSpore's strategy and group files as protobuf, read without protobuf.

Facts: node_strategy.proto and parallel_strategy_checkpoint.cc of MindSpore 1.1 to 2.10 (1.1 wrote no
optimizer shards, before 2.0 a group file had no list of ranks at its end),
mindspore/parallel/_parallel_serialization.py. This reader is stricter than protobuf's own: MindSpore writes
fields in one order and a fixed number of times, so any other order or number is damage.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.formats.common.protobuf import Reader
from ckpt_tools.formats.common.tensors import MAX_NAME, MAX_TENSORS, near_miss
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import BytesSource, ShortRead, Source

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
    """Return a Layout; ``maps`` have the grid axes that cut each tensor axis, or -1. Raise ValueError."""
    if len(devices) > MAX_DIMS or min(devices, default=1) < 1 or prod(devices) > MAX_DEVICES:
        raise ValueError(f"{name!r} lies on an impossible grid of devices, {list(devices[:8])}")
    axes = [axis for entries in maps for axis in entries]
    if any(not -1 <= axis < len(devices) for axis in axes):
        raise ValueError(f"{name!r} is split along axes {axes[:8]} of a grid that has {len(devices)}")
    if not (-1 <= shard_size <= MAX_DEVICES and 0 <= shard_step <= MAX_DEVICES):
        raise ValueError(f"{name!r} has {shard_size} optimizer shards {shard_step} ranks apart")
    return Layout(name, tuple(devices), frozenset(axes) - {-1}, shard_step, shard_size)


_LAYOUT_KEYS = ("dev_matrix", "tensor_map", "opt_weight_shard_step", "opt_weight_shard_size")


def from_json(value: Any) -> Strategy:
    """Return the Strategy in the JSON form of a strategy file. Raise ValueError if it is another JSON."""
    try:
        items, nodes = value["parallel_layout_item"], value.get("parallel_strategy_item") or {}
        stages = [node["stage"] for node in nodes.values()]
        found = [(name, *(e[key] for key in _LAYOUT_KEYS)) for name, e in items.items()]
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


def stage_groups(layouts: Sequence[Layout]) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of a stage, from 0, in groups that hold the same bytes of every parameter: a rank's
    smallest group if each of its groups lies in the next larger one, else the rank alone. The grids of all
    ``layouts`` have the same number of devices.
    """
    count = prod(layouts[0].devices)
    distinct = {e._replace(name="") for e in layouts if not e.name.startswith(IGNORED)}
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


MAX_SIZE = 1 << 24
"""Bytes; a stage with fifteen thousand operators takes about two million."""
_MAX_NUMBERS = 4096
_RANKS_IN_HEAD = 7
"""So many different numbers in a row are ranks of a group: they are no tensor's dims."""
_MAX_GROUP = 1 << 30
"""Bytes of a group, which may be longer than what is seen of the file."""
_SHARDS = {0x30, 0x38}


class Walk:
    """One walk over a file; ``free_bytes`` may change unseen, and are None if no regions are wanted."""

    def __init__(self, source: Source, *, mapped: bool = False) -> None:
        if not source.size:
            raise Damage("empty-file", "the file has no bytes", 0)
        if source.size > MAX_SIZE:
            raise Damage("too-complex", f"a strategy file of {source.size} bytes", 0)
        self.reader = Reader(source)
        self.reader.step = source.size  # every byte is looked at, so all are read at once
        self.free_bytes: list[tuple[int, int, str]] | None = [] if mapped else None

    def mark_free(self, at: int, end: int, what: str) -> None:
        """Record that bytes may change unseen, if a map of the file is wanted."""
        if self.free_bytes is not None:
            self.free_bytes.append((at, end, what))

    def explain(self, anatomy: Anatomy) -> None:
        """Explain free bytes as unprotected, all others as protected: keys, lengths and order are fixed."""
        at = 0
        for start, end, what in sorted(self.free_bytes or ()):
            anatomy.explain(at, start - at, "fields and lengths")
            anatomy.explain(start, end - start, what, Guard.UNPROTECTED)
            at = end
        anatomy.explain(at, self.reader.size - at, "fields and lengths")

    def fields(
        self, at: int, limit: int, once: bytes, repeated: bytes = b"", optional: bytes = b""
    ) -> Iterator[tuple[int, int, int]]:
        """Yield a message's fields in order; a key of ``once`` occurs once, of ``optional`` at most once."""
        last, start = 0, at
        seen: set[int] = set()
        for key, value, inner in self.reader.fields(at, limit, once + repeated + optional):
            if key < last or (key in seen and key not in repeated):
                raise Damage("bad-header", "a field out of place", inner)
            last = key
            seen.add(key)
            yield key, value, inner
        if len(seen.intersection(once)) < len(once):
            raise Damage("bad-header", "a record without all of its fields", start)

    def read_numbers(self, at: int, limit: int, bits: int, signed: bool, what: str) -> tuple[int, ...]:
        """Return the numbers of a message that holds nothing else; each has at most ``bits`` bits."""
        numbers: list[int] = []
        for _, value, end in self.fields(at, limit, b"", b"\x08"):
            if len(numbers) == _MAX_NUMBERS:
                raise Damage("too-complex", f"more than {_MAX_NUMBERS} numbers in a list", at)
            numbers.append(self.check_number(value, at + 1, end, bits, signed=signed, what=what))
            at = end
        return tuple(numbers)

    def check_number(self, value: int, at: int, end: int, bits: int, *, signed: bool, what: str) -> int:
        """Return a varint's value; a negative one takes ten bytes. Raise Damage if it needs more bits."""
        if signed and value >> 63:
            value -= 1 << 64
        low, high = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
        if not low <= value < high:
            raise Damage("bad-header", f"{value} does not fit into {bits} bits", at)
        if what:
            self.mark_free(at, end, what)
        return value

    def read_name(self, at: int, length: int, what: str) -> str:
        """Return a text, whose bytes may change unseen. Raise Damage if it is no text or too long."""
        self.mark_free(at, at + length, f"{what}: only that it is plain text is checked")
        return self.reader.text(at, length, MAX_NAME, what)

    def read_records(self, at: int, keys: bytes) -> Iterator[tuple[int, int, int]]:
        """Yield (key, start, end) of each field with a length; only ``keys`` may occur, in rising order."""
        last = 0
        for _ in range(MAX_TENSORS):
            if at == self.reader.size:
                return
            key = self.reader.byte(at)
            if key not in keys or key < last:
                raise Damage("bad-header", f"{key:#04x} is none of the fields that may stand here", at)
            length, start = self.reader.varint(at + 1, self.reader.size + 1)
            if start + length > self.reader.size:
                raise Damage("truncated", f"a record should end at byte {start + length}", self.reader.size)
            last, at = key, start + length
            yield key, start, at
        raise Damage("too-complex", f"more than {MAX_TENSORS} records", at)


def _read_operator(walk: Walk, at: int, limit: int) -> int:
    """Return the pipeline stage of an operator; its cut is read but not needed to load a checkpoint."""
    stage = 0
    for key, value, inner in walk.fields(at, limit, b"\x0a\x12"):
        if key == 0x0A:
            walk.read_name(inner, value, "operator name")
            continue
        for field, number, start in walk.fields(inner, inner + value, b"\x08", b"\x12"):
            if field == 0x08:
                what = "stage of an operator"
                stage = walk.check_number(number, inner + 1, start, 32, signed=False, what=what)
            else:
                walk.read_numbers(start, start + number, 32, signed=False, what="how an operator is cut")
    return stage


def _read_layout(walk: Walk, at: int, limit: int) -> tuple[Layout, int]:
    """Return one parameter's Layout, and where its grid of devices begins. A tensor axis cut along several
    axes of the grid has a tensor_map of its own; a param_split_shape mostly is empty.
    """
    name, devices, maps, shards, grid = "", tuple[int, ...](), list[tuple[int, ...]](), dict[int, int](), at
    for outer, size, start in walk.fields(at, limit, b"\x0a\x12"):
        if outer == 0x0A:
            name = walk.read_name(start, size, "parameter name")
            continue
        before = start
        for key, value, inner in walk.fields(start, start + size, b"\x0a\x1a\x28", b"\x12", b"\x22\x30\x38"):
            if not key & 7:  # a number
                what = "field, step or number of optimizer shards"
                shards[key] = walk.check_number(value, before + 1, inner, 32, signed=True, what=what)
                before = inner
                continue
            before = inner + value
            if key == 0x0A:
                devices, grid = walk.read_numbers(inner, before, 32, signed=False, what=""), inner
            elif key == 0x12:
                what = "axes along which a parameter is cut"
                maps.append(walk.read_numbers(inner, before, 32, signed=True, what=what))
            else:
                walk.read_numbers(inner, before, 64, signed=True, what="manual split of a parameter")
    if not maps or len(_SHARDS & shards.keys()) == 1:
        raise Damage("bad-header", "a layout without all of its fields", at)
    try:
        return make_layout(name, devices, maps, shards.get(0x30, 0), shards.get(0x38, 0)), grid
    except ValueError as e:
        raise Damage("bad-header", str(e), at) from None


def _compare_grids(walk: Walk, strategy: Strategy, grids: list[int]) -> None:
    """Check that the grids of a stage have the same number of devices; mark a stage's only grid as free."""
    if text := find_uneven(strategy):
        raise Damage("bad-header", text, grids[0], Severity.WARNING)
    if walk.free_bytes is None:
        return
    stages = strategy.by_stage()
    is_merged = stages.get(strategy.stage) is not strategy.layouts
    for layout, at in zip(strategy.layouts, grids, strict=True):
        siblings = stages[int(layout.name.partition("-")[0])] if is_merged else strategy.layouts
        if len(siblings) == 1:
            start = at
            for _ in layout.devices:
                _, end = walk.reader.varint(start + 1, walk.reader.size)
                walk.mark_free(start + 1, end, "grid of devices, which no other parameter confirms")
                start = end


def read_file(source: Source, operators: bool = True, anatomy: Anatomy | None = None) -> tuple[int, Strategy]:
    """Return (current_stage, Strategy); the first operator tells the stage. Raise Damage and ShortRead."""
    walk = Walk(source, mapped=anatomy is not None and anatomy.regions is not None)
    layouts, grids, stage = list[Layout](), list[int](), None
    if walk.reader.byte(0) != 0x08:
        raise Damage("bad-header", "the file does not begin with current_stage", 0)
    value, at = walk.reader.varint(1, walk.reader.size + 1)
    current = walk.check_number(value, 1, at, 32, signed=False, what="current_stage")
    for key, start, end in walk.read_records(at, b"\x12\x1a"):
        if key == 0x12 and (stage is None or operators):
            operator_stage = _read_operator(walk, start, end)
            stage = operator_stage if stage is None else stage
        elif key == 0x1A:
            layout, grid = _read_layout(walk, start, end)
            layouts.append(layout)
            grids.append(grid)
    if not layouts:
        raise Damage("truncated", "the file holds no layout of a parameter", walk.reader.size)
    strategy = Strategy(stage, tuple(layouts))
    _compare_grids(walk, strategy, grids)
    if anatomy is not None:
        walk.explain(anatomy)
    return current, strategy


def begins_like_groups(head: bytes) -> bool:
    """Return whether a group comes first: like a .ckpt record, but only with a name, and ranks as dims."""
    reader, ranks, limit = Reader(BytesSource(head)), list[int](), 0
    try:
        _, length, start = next(reader.fields(0, _MAX_GROUP, b"\x0a"))
        limit = start + length
        fields = reader.fields(start, limit, b"\x0a\x12")
        (first, size, name), (second, count, at) = next(fields), next(fields)
        if (first, second) != (0x0A, 0x12) or at + count != limit or not count:
            return False
        reader.text(name, size, MAX_NAME, "group name")
        for _, rank, _ in reader.fields(at, limit, b"\x08"):
            ranks.append(rank)
    except (Damage, StopIteration):
        return False
    except ShortRead:  # ``head`` ends within the ranks
        return len(set(ranks)) == len(ranks) >= _RANKS_IN_HEAD
    return True


def read_groups(source: Source, anatomy: Anatomy) -> int:
    """Return the number of communication groups in a group file. Raise Damage and ShortRead."""
    walk, count = Walk(source, mapped=anatomy.regions is not None), 0
    for key, start, end in walk.read_records(0, b"\x0a\x12"):
        if key == 0x12:
            if end != walk.reader.size:
                raise Damage("bad-header", "something follows the list of ranks", end)
            walk.read_numbers(start, end, 32, signed=False, what="ranks that restore the checkpoint")
            continue
        count += 1
        for inner, value, at in walk.fields(start, end, b"\x0a\x12"):
            if inner == 0x0A:
                walk.read_name(at, value, "group name")
                continue
            ranks = walk.read_numbers(at, at + value, 32, signed=False, what="ranks of a group")
            if len(set(ranks)) < len(ranks):
                raise Damage("bad-header", "a rank occurs twice in a group", at)
    walk.explain(anatomy)
    return count
