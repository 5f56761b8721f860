"""Megatron-LM checkpoints whose files are large enough that reading them shows: torch.save of random numbers."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import small_files
import torch

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
            path = root / f"iter_{step:07d}" / f"mp_rank_{rank:02d}" / "model_optim_rng.pt"
            path.parent.mkdir(parents=True)
            path.write_bytes(small_files.saved(numbers(step, rank, size)))
            os.utime(path, (1_700_000_000 + step, 1_700_000_000 + step))
    (root / "latest_checkpointed_iteration.txt").write_text(str(steps[-1]))
    return root


def part(root: Path, rank: int = 0, step: int = 20) -> Path:
    return root / f"iter_{step:07d}" / f"mp_rank_{rank:02d}" / "model_optim_rng.pt"


def flip(path: Path) -> None:
    """One bit in the middle, in place: same size, same inode; the modification time is set back."""
    was = path.stat()
    with path.open("r+b") as f:
        f.seek(was.st_size // 2)
        byte = f.read(1)[0]
        f.seek(was.st_size // 2)
        f.write(bytes([byte ^ 1]))
    os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
