"""Models and optimizers of two tensor parallel ranks, and one of their files copied over another."""

from __future__ import annotations

import os
import shutil
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

import timed
import torch
from small_files import saved

DAY = 1_700_000_000


def put(path: Path, data: bytes, at: int) -> None:
    timed.put(path, data, DAY + at)


def copy(root: Path, source: str, over: str, times: str = "kept") -> None:
    """What ``times`` says afterwards: those of what was replaced (``kept``: only the bytes tell), of the
    original (``cp -p``), or of now (``cp``).
    """
    mtime = {
        "kept": (root / over).stat().st_mtime_ns,
        "original": (root / source).stat().st_mtime_ns,
        "now": (DAY + 3600) * 10**9,
    }[times]
    shutil.copyfile(root / source, root / over)
    os.utime(root / over, ns=(mtime, mtime))


def numbers(*seed: int) -> torch.Tensor:
    """Large enough that a stored checksum covers most of its file."""
    generator = torch.Generator().manual_seed(sum(n * 1000**i for i, n in enumerate(seed, 1)))
    return torch.rand(4096, generator=generator)


def shard(
    tree: Path,
    steps: Sequence[int],
    of: Callable[[int, int], tuple[int, ...]] = lambda step, rank: (step, rank),
) -> Path:
    """Megatron's model and distributed optimizer of two tensor parallel ranks; ``of`` says what the numbers
    of a rank's optimizer depend on.
    """
    for step in steps:
        for tp in range(2):
            home = tree / f"iter_{step:07d}" / f"mp_rank_{tp:02d}"
            args = Namespace(world_size=2, tensor_model_parallel_size=2, pipeline_model_parallel_size=1)
            model = {"args": args, "iteration": step, "model": {"w": numbers(step, tp, 7)}}
            put(home / "model_optim_rng.pt", saved(model), step)
            put(home / "distrib_optim.pt", saved({0: {"param": numbers(*of(step, tp))}}), step)
    put(tree / "latest_checkpointed_iteration.txt", str(steps[-1]).encode(), steps[-1] + 1)
    return tree


def optimizer(step: int, tp: int) -> str:
    return f"iter_{step:07d}/mp_rank_{tp:02d}/distrib_optim.pt"
