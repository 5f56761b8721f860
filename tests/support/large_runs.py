"""Megatron-LM checkpoints whose files are large enough that reading them shows: torch.save of random numbers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import run_helpers
import small_files
import torch
from timed import put

BIG = 1 << 20


def settle() -> None:
    """Until files are no longer too young."""
    time.sleep(0.15)


def numbers(step: int, rank: int, size: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step * 1000 + rank)
    return {"iteration": step, "model": {"weight": torch.randn(size // 4, generator=generator)}}


def megatron(root: Path, ranks: int = 2, steps: tuple[int, ...] = (10, 20), size: int = BIG) -> Path:
    """Checkpoints of ``ranks`` files of ``size`` bytes."""
    for step in steps:
        for rank in range(ranks):
            put(part(root, rank, step), small_files.saved(numbers(step, rank, size)), 1_700_000_000 + step)
    (root / "latest_checkpointed_iteration.txt").write_text(str(steps[-1]))
    return root


def part(root: Path, rank: int = 0, step: int = 20) -> Path:
    return root / f"iter_{step:07d}" / f"mp_rank_{rank:02d}" / "model_optim_rng.pt"


def flip(path: Path) -> None:
    """One bit in the middle, in place: same size, same inode; the modification time is set back."""
    run_helpers.flip(path, path.stat().st_size // 2)
