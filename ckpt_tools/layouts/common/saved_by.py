"""What files say about the job that saved them: its sizes, who wrote each, where ranks stand in its grids."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from msgspec import Struct, field

from ckpt_tools.layouts import COORDS
from ckpt_tools.layouts.common.counters import as_int, read_first
from ckpt_tools.layouts.common.layout import Metadata
from ckpt_tools.model.plan import Known
from ckpt_tools.model.report import Report

_ARGS = {
    "tp": "args.tensor_model_parallel_size",
    "pp": "args.pipeline_model_parallel_size",
    "cp": "args.context_parallel_size",
    "ep": "args.expert_model_parallel_size",
    "etp": "args.expert_tensor_parallel_size",
    "dp": "args.data_parallel_size",
}
"""Parallel axis -> what Megatron-LM calls its size."""
PLACES = ("tp", "pp", "ep")
"""Parallel axes along which each coordinate holds another part of a model."""
MOST_RANKS = 1 << 20
"""The most ranks that a job has."""


def read_size(axis: str, reports: Iterable[Report]) -> Known | None:
    """Return the size of a parallel axis as the first file that has it says; None if no file has it."""
    key = _ARGS[axis]
    return next((Known(n, f"{key} in the files") for n in _read_numbers(key, reports)), None)


def read_shard_count(axis: str, reports: Iterable[Report]) -> Known | None:
    """Return the highest ``mp_world_size`` of DeepSpeed, for tp alone: names miss shards that are lost."""
    most = max(_read_numbers("mp_world_size", reports), default=0) if axis == "tp" else 0
    return Known(most, "mp_world_size in the files") if most else None


def _read_numbers(key: str, reports: Iterable[Report]) -> Iterator[int]:
    """Yield the numbers that files have under a metadata key, if a job could have so many ranks."""
    numbers = (as_int(r.metadata.get(key)) for r in reports)
    return (n for n in numbers if n and 0 < n <= MOST_RANKS)


def find_world_size(reports: Iterable[Report]) -> int | None:
    """Return the number of ranks that saved, as the files themselves say; None if none says it."""
    return next((n for r in reports if (n := _read_world_size(r.metadata))), None)


def read_world_size(reports: Iterable[Report]) -> int | None:
    """Return ``world_size`` of files that count ranks by it: in other layouts it may be anything."""
    return next(_read_numbers("world_size", reports), None)


def read_sizes(reports: Iterable[Report]) -> dict[str, int]:
    """Return what the files of one checkpoint say about the job: "world" and parallel axes -> their sizes."""
    out: dict[str, int] = {}
    keys = {"args.world_size", "dp_world_size", "mp_world_size", *_ARGS.values()}
    for r in reports:
        if r.metadata.keys().isdisjoint(keys):
            continue  # as of most
        sizes = {"world": _read_world_size(r.metadata)}
        sizes |= {axis: as_int(r.metadata.get(key)) for axis, key in _ARGS.items()}
        if mp := as_int(r.metadata.get("mp_world_size")):
            sizes |= {"tp": mp, "dp": as_int(r.metadata.get("dp_world_size"))}
        for axis, n in sizes.items():
            if n and 0 < n <= MOST_RANKS:
                out.setdefault(axis, n)
    if "dp" not in out and "world" in out and "tp" in out:
        out["dp"] = max(1, out["world"] // (out["tp"] * out.get("pp", 1) * out.get("cp", 1)))
    return out


def _read_world_size(metadata: Metadata) -> int | None:
    """Return Megatron-LM's ``args.world_size``, or DeepSpeed's data parallel times model parallel size."""
    n = as_int(metadata.get("args.world_size"))
    if not n and (dp := as_int(metadata.get("dp_world_size"))):
        n = dp * (as_int(metadata.get("mp_world_size")) or 1)
    return n if n and 0 < n <= MOST_RANKS else None


_PLACE = re.compile(r"(?:(?:mp|tp|pp)_rank_\d{2,}(?:_\d{3,})*_?)+")
"""Names of directories of one place of the grid, as Megatron-LM, DeepSpeed and NeMo call them."""


def describe_place(path: str, sizes: Mapping[str, int]) -> str:
    """Return in words, by content, else by directory, why a file is of one tp, pp or ep place of several."""
    known = [(axis, sizes[axis]) for axis in PLACES if axis in sizes]
    if several := [f"{axis}={n}" for axis, n in known if n > 1]:
        return f"one place of {' '.join(several)}, as the file says"
    directory = None if known else next(filter(_PLACE.fullmatch, path.split("/")[-2::-1]), None)
    return f"the place that {directory} names" if directory else ""


_SURE = {
    "rank": ("args.rank", "cur_rank"),
    "tp": ("args.tensor_model_parallel_rank", "args.tp_rank", "tensor_model_parallel_rank", "tp_rank"),
    "pp": ("args.pipeline_model_parallel_rank", "args.pp_rank", "pipeline_model_parallel_rank", "pp_rank"),
    "ep": ("args.expert_model_parallel_rank", "expert_model_parallel_rank", "ep_rank"),
    "dp": ("args.data_parallel_rank", "data_parallel_rank", "dp_rank"),
}
"""Rank and coordinates of the writer: Megatron-LM's ``args``, MindIO's ``cur_rank``, and other trainers'."""
_LIKELY = ("global_rank", "rank_id", "rank")
"""Entries that hold the writer's rank, or something else (the rank of an adapter's matrices): they count if
most names agree with them.
"""


def read_owner(metadata: Metadata) -> dict[str, int]:
    """Return the rank and the parallel coordinates of the writer, as far as entries of ``_SURE`` tell."""
    coordinates = ((axis, read_first(metadata, keys)) for axis, keys in _SURE.items())
    return {axis: n for axis, n in coordinates if n is not None and n >= 0}


def guess_rank(metadata: Metadata) -> int | None:
    """Return the rank that entries of ``_LIKELY`` give, which may be the writer's; or None."""
    return next((n for k in _LIKELY if (n := as_int(metadata.get(k))) is not None and n >= 0), None)


def say_partial(metadata: Metadata) -> str:
    """Return why a MindSpore file is no replica of any other, as its own metadata tell; else ""."""
    if metadata.get("remove_redundancy") == "True":
        return "it was saved with remove_redundancy and lacks what other ranks hold"
    return ""


ALONE = "a single file without a rank"
"""Where the number of ranks comes from if no file, name or user tells it."""
_DENSE = {"tp": "tp", "cp": "cp", "dp": "dp", "pp": "pp"}
"""Axes of the grid of the dense layers, and the names of the coordinates on them."""
_EXPERTS = {"tp": "etp", "ep": "ep", "dp": "edp"}
"""The same for the experts' layers; their pipeline stages are those of the dense layers."""


_Axis = tuple[str, int, int]
"""Name, stride (ranks between neighbours on the axis) and size: unpacked for every rank of a job."""


class Topology(Struct, frozen=True, dict=True):
    """How many ranks there are and how they are arranged."""

    world_size: int
    sizes: Mapping[str, int] = field(default_factory=dict)
    order: str = "tp-cp-ep-dp-pp"  # fastest-varying axis first
    provenance: Mapping[str, Known] = field(default_factory=dict)
    strategy: tuple[tuple[int, ...], ...] = ()  # groups of ranks with the same state, by --strategy-dir

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the coordinates of a rank in both grids.

        These are tp, cp, dp and pp for the dense layers, and etp, ep and edp for the experts. Both grids
        cover all ranks, with the axes in the same order (Megatron-LM core/parallel_state.py, RankGenerator):
        tp·cp·dp·pp, and etp·ep·edp·pp, where etp is tp unless given and context parallelism splits nothing.
        """
        return {name: rank // stride % size for name, stride, size in self._axes}

    @cached_property
    def _axes(self) -> tuple[_Axis, ...]:
        """The axes of both grids, of the dense layers first."""
        size = {axis: max(1, self.sizes.get(axis, 1)) for axis in COORDS}
        etp = max(1, self.sizes.get("etp", size["tp"]))
        replicas = max(1, self.world_size // (size["tp"] * size["cp"] * size["pp"]))
        of_experts = max(1, self.world_size // (etp * size["ep"] * size["pp"]))
        dense = {**size, "ep": 1, "dp": replicas}
        experts = {**size, "tp": etp, "cp": 1, "dp": of_experts}
        return (*self._list_axes(dense, _DENSE), *self._list_axes(experts, _EXPERTS))

    def _list_axes(self, sizes: Mapping[str, int], names: Mapping[str, str]) -> Iterator[_Axis]:
        """Yield the axes of one grid that have a name, fastest-varying axis first."""
        given = self.order.split("-")
        stride = 1
        for axis in (*given, *(a for a in COORDS if a not in given)):
            if axis in names:
                yield names[axis], stride, sizes[axis]
            stride *= sizes[axis]

    def apart(self, replicated_over: tuple[str, ...]) -> tuple[str, ...]:
        """Return axes along which ranks hold different state, if they share it along ``replicated_over``."""
        dense = tuple(axis for axis in COORDS if axis not in (*replicated_over, "ep"))
        tp, etp = self.sizes.get("tp", 1), self.sizes.get("etp", 0)
        have_experts = self.sizes.get("ep", 1) > 1 or etp not in (0, tp)
        return (*dense, "ep", "etp") if have_experts else dense
