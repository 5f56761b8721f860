"""What the tests of ``ckpt run`` share: a small run of checkpoints, and the command as a real process."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import small_files
import warm
from timed import put, same_times

if TYPE_CHECKING:
    from ckpt_tools.model.answers import Verification

LARGE = 64 << 20

CKPT = [sys.executable, "-m", "ckpt_tools"]
FOREIGN = ("CKPT_", "SLURM_", "OMPI_", "PMI", "TORCHELASTIC_", "MS_")
CLEAN = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
SEEN = """import json, os, sys
print(json.dumps([sys.argv[1:], {k: v for k, v in os.environ.items() if k.startswith('CKPT_')}]))"""
SAY = [sys.executable, "-c", SEEN]
"""A command that prints its words and the variables it sees."""
OLD = 1_700_000_000


Steps = Sequence[int]


def megatron(
    root: Path, steps: Steps = (10, 20), world: int = 2, tracker: bool = True, ranks: Steps | None = None
) -> Path:
    """Megatron-LM checkpoints with one file per tensor parallel rank, six minutes a step."""
    for step in steps:
        for rank in range(world) if ranks is None else ranks:
            path = root / f"iter_{step:07d}/mp_rank_{rank:02d}/model_optim_rng.pt"
            put(path, small_files.megatron(step, rank, world, 1, world), OLD + step * 360)
    root.mkdir(parents=True, exist_ok=True)
    if tracker and steps:
        (root / "latest_checkpointed_iteration.txt").write_text(str(max(steps)))
    return root


def one_file_per_rank(root: Path, steps: Sequence[int] = (10, 20)) -> Path:
    """MindSpore checkpoints of two ranks: no path that both load, so that each is told its own file."""
    for step in steps:
        for rank in range(2):
            path = root / f"rank_{rank}/net-1_{step}.ckpt"
            put(path, small_files.mindspore(True, rank, step_num=step), OLD + step * 360)
    return root


def broken(root: Path, step: int, rank: int = 0) -> None:
    """Cut off the end of a file, and keep its modification time."""
    path = root / f"iter_{step:07d}/mp_rank_{rank:02d}/model_optim_rng.pt"
    with same_times(path):
        path.write_bytes(path.read_bytes()[:-200])


def torchrun_env(
    rank: int, world: int, restart: int = 0, job: str = "none", local: int | None = None, node: int = 0
) -> dict[str, str]:
    """What torchrun gives its worker ``rank``."""
    local = world if local is None else local
    return {
        "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank % local), "LOCAL_WORLD_SIZE": str(local), "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(world // local), "TORCHELASTIC_RUN_ID": job, "TORCHELASTIC_RESTART_COUNT": str(restart), "TORCHELASTIC_MAX_RESTARTS": "3",
    }  # fmt: skip


def ckpt(
    *argv: object, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """One command line, as the user gives it."""
    return warm.completed(list(map(str, argv)), {**CLEAN, **(env or {})}, cwd)


def flip(path: Path, at: int = -1, mask: int = 1) -> None:
    """Flip bits of one byte where no time of the file shows it."""
    data = bytearray(path.read_bytes())
    data[at] ^= mask
    with same_times(path):
        path.write_bytes(data)


def codes_of(found: Verification) -> set[str]:
    """The findings that are more than notes."""
    rows = (f for row in found.files for f in row.report.findings)
    return {f.code for f in (*rows, *found.findings) if f.severity}


def broken_body(root: Path) -> None:
    """Flip a bit that only a checksum over the contents shows."""
    path = root / "iter_0000020/mp_rank_00/model_optim_rng.pt"
    data = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        at = next(i.header_offset for i in archive.infolist() if "/data/" in i.filename)
    # behind the name and the padding of its header
    flip(path, at + 30 + sum(struct.unpack_from("<HH", data, at + 26)))


def decided_body(path: str | None = None, step: int | None = None) -> dict[str, Any]:
    """The body of a decision for one file that every rank loads, or for none."""
    body: dict[str, Any] = {"schema": "ckpt-tools/plan/v1", "checkpoint": None, "resume_step": step}
    if path is None:
        return body
    shared = [{"path": path, "size": 1, "mtime_ns": 0}]
    return {**body, "checkpoint": {"path": path, "step": step, "mtime": 1.0}, "shared": shared}


def sparse(path: Path, begins: bytes = b"", size: int = LARGE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(begins)
    os.truncate(path, size)
    return path
