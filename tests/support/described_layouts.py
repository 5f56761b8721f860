"""Small trees of four saves of some layouts, as their frameworks write them, and what gives files their times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from typing import NamedTuple

import small_files
from timed import put

from ckpt_tools.layouts import LAYOUTS as ALL_LAYOUTS

START = 1_760_000_000
HOUR = 3600
STEPS = (80, 90, 100, 110)
"""The names of the last two sort before those of the first two, unless they have leading zeros."""
Files = Mapping[str, bytes]


class Save(NamedTuple):
    """The step or epoch of a save, and its files by their paths below the tree."""

    step: int
    files: Files


def megatron(step: int, n: int, *, every_rank: bool = False) -> Files:
    """Along each of three axes there are ``n`` ranks; tensor parallel ones are neighbours."""
    place = f"iter_{step:07d}/mp_rank_{{:02d}}{'_{:03d}' if n > 1 else ''}/model_optim_rng{{}}.pt"
    files = dict[str, bytes]()
    for rank, (p, d, t) in enumerate(product(range(n), repeat=3)):
        if every_rank or d == 0:
            path = place.format(t, *([p] if n > 1 else []), f"_{rank}" if every_rank else "")
            files[path] = small_files.megatron(step, rank, n, n, n**3)
    return files


def ascend(step: int, n: int) -> Files:
    return megatron(step, n, every_rank=True)


def deepspeed(step: int, n: int) -> Files:
    home, zero = f"global_step{step}", "zero_pp_rank_{}_mp_rank_{:02d}_optim_states.pt"
    files = dict[str, bytes]()
    for m in range(n):
        files[f"{home}/mp_rank_{m:02d}_model_states.pt"] = small_files.deepspeed_model(step, n, n, m)
    for m, d in product(range(n), repeat=2):
        files[f"{home}/{zero.format(d, m)}"] = small_files.deepspeed_zero(step, n, d * n + m)
    return files


def trainer(step: int, _n: int) -> Files:
    return {f"checkpoint-{step}/{name}": data for name, data in small_files.trainer(step).items()}


def dcp(step: int, n: int) -> Files:
    return {f"step-{step}/{name}": data for name, data in small_files.dcp(step, n).items()}


def lightning(step: int, _n: int) -> Files:
    return {f"epoch={step // 10}-step={step}.ckpt": small_files.lightning(step // 10, step)}


def sample(epoch: int, _n: int) -> Files:
    name = "model_best" if epoch == 1 else "checkpoint"
    return {f"rank_0/{name}.pth.tar": small_files.sample(epoch)}


def mindspore(step: int, n: int, *, crc: bool = False) -> Files:
    told = {"epoch_num": 1, "step_num": step}
    shards = {r: small_files.mindspore(crc, r % max(1, n // 2), **told) for r in range(n)}
    return {f"rank_{r}/net-1_{step}.ckpt": data for r, data in shards.items()}


def mindio(step: int, _n: int) -> Files:
    return mindspore(step, 4, crc=True)


LAYOUTS: dict[str, Callable[[int, int], Files]] = {
    f.__name__: f for f in (megatron, ascend, deepspeed, trainer, dcp, lightning, sample, mindspore, mindio)
}  # fmt: skip


def described_tree(layout: str, root: Path, several: bool = False) -> list[Save]:
    """Write the saves of a layout, of one rank along each axis or of ``several``; there is no tracker. A job of
    ``sample`` overwrites its last file, and copies its best one: that of epoch 1.
    """
    steps = (1, 7) if layout == "sample" else STEPS
    saves = [Save(step, LAYOUTS[layout](step, 2 if several else 1)) for step in steps]
    for save in saves:
        for path, data in save.files.items():
            put(root / path, data, START)
    return saves


def trackers(root: Path) -> list[Path]:
    names = {layout.tracker.file for layout in ALL_LAYOUTS if layout.tracker.file} | {"last.ckpt"}
    return [p for p in root.rglob("*") if p.name in names and p.is_file()]
