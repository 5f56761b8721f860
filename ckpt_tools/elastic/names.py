"""File names of Megatron-LM's legacy checkpoints, with one file per rank as Ascend's sample writes them."""

from __future__ import annotations

import os

from ckpt_tools.errors import UsageError


def directory(
    root: str | os.PathLike[str],
    iteration: int,
    *,
    release: bool,
    staged: bool | None,
    tensor_rank: int | None,
    pipeline_rank: int | None,
) -> str:
    """``<root>/iter_<iteration:07d>/mp_rank_<tensor:02d>[_<pipeline:03d>]``, or release/ in place of the
    iteration.

    ``staged`` says whether there are pipeline stages (None: where there is a ``pipeline_rank``). Raises
    UsageError for a rank that is not known.
    Source: Megatron-LM megatron/training/checkpointing.py get_checkpoint_name().
    """
    if tensor_rank is None:
        raise UsageError("tensor_rank is not known", "say tensor_rank= (0 without tensor parallelism)")
    if staged and pipeline_rank is None:
        raise UsageError("pipeline_rank is not known", "say pipeline_rank=, or pipeline_parallel=False")
    stage = "" if pipeline_rank is None or staged is False else f"_{pipeline_rank:03d}"
    return os.path.join(
        os.fspath(root),
        "release" if release else f"iter_{iteration:07d}",
        f"mp_rank_{tensor_rank:02d}{stage}",
    )


def of_rank(common: str, rank: int) -> tuple[str, str]:
    """(model file, optimizer file): one file of one rank (the Ascend sample's name)."""
    name = os.path.join(common, f"model_optim_rng_{rank}.pt")
    return name, name


def of_shard(common: str, data_parallel_rank: int | None) -> tuple[str, str]:
    """(model file, optimizer file) with a distributed optimizer: one model for the group, one optimizer file
    for each of its ranks.
    """
    if data_parallel_rank is None:
        raise UsageError(
            "data_parallel_rank is not known", "say data_parallel_rank=, or group_info= in set_config()"
        )
    return os.path.join(common, "model_rng.pt"), os.path.join(
        f"{common}_{data_parallel_rank:03d}", "optim.pt"
    )
