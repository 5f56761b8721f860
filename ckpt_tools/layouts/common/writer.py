"""Who wrote a file, as its own metadata says:
Megatron-LM's ``args``, MindIO's ``cur_rank``, and what other trainers call it.
"""

from __future__ import annotations

from ckpt_tools.layouts.common.layout import Metadata, whole

_SURE = {
    "rank": ("args.rank", "cur_rank"),
    "tp": ("args.tensor_model_parallel_rank", "args.tp_rank", "tensor_model_parallel_rank", "tp_rank"),
    "pp": ("args.pipeline_model_parallel_rank", "args.pp_rank", "pipeline_model_parallel_rank", "pp_rank"),
    "ep": ("args.expert_model_parallel_rank", "expert_model_parallel_rank", "ep_rank"),
    "dp": ("args.data_parallel_rank", "data_parallel_rank", "dp_rank"),
}
_LIKELY = ("global_rank", "rank_id", "rank")
"""Also what other things are called (the rank of an adapter's matrices):
they count where they agree with most names.
"""


def owner(metadata: Metadata) -> dict[str, int]:
    """The rank and the parallel coordinates of the writer, as far as they are told."""
    told = {
        axis: next((n for k in keys if (n := whole(metadata.get(k))) is not None), None)
        for axis, keys in _SURE.items()
    }
    return {axis: n for axis, n in told.items() if n is not None and n >= 0}


def likely_rank(metadata: Metadata) -> int | None:
    """What may be the writer's rank."""
    return next((n for k in _LIKELY if (n := whole(metadata.get(k))) is not None and n >= 0), None)
