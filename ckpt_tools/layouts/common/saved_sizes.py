"""What files say about the job that saved them: how many ranks it had, and its parallel sizes."""

from __future__ import annotations

from collections.abc import Iterable

from ckpt_tools.layouts.common.layout import Metadata, whole
from ckpt_tools.model.report import Report

AXES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
    "dp": "data_parallel_size",
}
"""Parallel axis -> what Megatron-LM's args call its size."""
_RANKS = 1 << 20
"""No job has more."""


def saved_world_size(reports: Iterable[Report]) -> int | None:
    """The number of ranks that the files themselves say wrote them."""
    return next((n for r in reports if (n := _world(r.metadata))), None)


def saved_sizes(reports: Iterable[Report]) -> dict[str, int]:
    """What the files of one checkpoint say about the job: "world" and the sizes of parallel axes, as far as they do."""
    out: dict[str, int] = {}
    for r in reports:
        sizes = {"world": _world(r.metadata)}
        sizes |= {axis: whole(r.metadata.get(f"args.{key}")) for axis, key in AXES.items()}
        if mp := whole(r.metadata.get("mp_world_size")):
            sizes |= {"tp": mp, "dp": whole(r.metadata.get("dp_world_size"))}
        for axis, n in sizes.items():
            if n and 0 < n <= _RANKS:
                out.setdefault(axis, n)
    if "dp" not in out and "world" in out and "tp" in out:
        out["dp"] = max(1, out["world"] // (out["tp"] * out.get("pp", 1) * out.get("cp", 1)))
    return out


def _world(metadata: Metadata) -> int | None:
    """Megatron-LM's ``args.world_size``; DeepSpeed's data parallel times model parallel size."""
    n = whole(metadata.get("args.world_size"))
    if not n and (dp := whole(metadata.get("dp_world_size"))):
        n = dp * (whole(metadata.get("mp_world_size")) or 1)
    return n if n and 0 < n <= _RANKS else None
