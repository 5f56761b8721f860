"""A training run with a past: what the pictures of ``ckpt report`` show, and what its tests in a browser ask about.

Eight ranks tensor parallel, the rest data parallel, a save every 500 steps. The job died after step 3,000, left a
dying gasp of half its ranks, and went back to step 2,500; it stood still for a day; and in its last saves files
are damaged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from run_helpers import flip
from small_files import megatron_state, saved
from timed import put, same_times

from ckpt_tools import Selection, api
from ckpt_tools.model.report import Level
from ckpt_tools.output.report import data
from ckpt_tools.output.report.advice import Gathered, Start

TP = 8
EVERY = 500
BEGAN = 1_789_200_000
"""When the first step was trained, in seconds since 1970."""
PACE = 7
"""Seconds a step."""
SHAPES = {"embedding": (64, 40), "layers.0.attention": (48, 24), "layers.0.mlp": (64, 24), "layers.1.attention": (48, 24),
          "layers.1.mlp": (64, 24), "norm": (48,)}  # fmt: skip
DIED, GASP, BACK_TO = 3000, 3173, 2500
PAUSE = 86_400
DIVERGED = 5500


def grow(root: Path, ranks: int = 64, last: int = 8000) -> Path:
    """The whole run; the newest save is not usable, the one before is."""
    at = BEGAN
    for step in range(EVERY, DIED + 1, EVERY):
        at += EVERY * PACE
        save(root, step, range(ranks), ranks, at)
    save(root, GASP, range(ranks // 2), ranks, at + (GASP - DIED) * PACE)
    at += 3 * 3600
    first = BACK_TO + EVERY
    for step in range(first, last + 1, EVERY):
        at += EVERY * PACE + (PAUSE if step == 6000 else 0)
        save(root, step, range(ranks), ranks, at)
    damaged = file(root, last, 17 % ranks)
    flip(damaged, damaged.stat().st_size // 2, 4)
    for rank in range(17 % ranks % TP, ranks, TP):  # all copies of what that rank holds
        cut(file(root, last, rank), 300 + rank)
    cut(file(root, last - EVERY, 9 % ranks), 4000)
    damaged = file(root, 4500, 40 % ranks)
    flip(damaged, damaged.stat().st_size // 2, 4)
    (root / "latest_checkpointed_iteration.txt").write_text(str(last))
    return root


def file(root: Path, step: int, rank: int) -> Path:
    return root / f"iter_{step:07d}/mp_rank_{rank % TP:02d}/model_optim_rng_{rank}.pt"


def save(root: Path, step: int, present: range, ranks: int, at: float) -> None:
    contents = {tp: model(step, tp) for tp in range(TP)}
    for rank in present:
        state = megatron_state(step, rank, TP, 1, ranks, contents[rank % TP])
        put(file(root, step, rank), saved(state), at + rank / 16)


def model(step: int, tp: int) -> dict[str, torch.Tensor]:
    """The numbers of one tensor parallel rank: those of one layer are no numbers any more for a while."""
    numbers = torch.Generator().manual_seed(step * TP + tp)
    made = {name: torch.randn(shape, generator=numbers) * 0.02 for name, shape in SHAPES.items()}
    if (step, tp) == (DIVERGED, 5):
        made["layers.1.mlp"][3, 4:9] = float("nan")
        made["layers.0.mlp"][7, 7] = 2.7e21
    return made


def cut(path: Path, nbytes: int) -> None:
    with same_times(path):
        path.write_bytes(path.read_bytes()[:-nbytes])


def document_of(root: Path, **selected: Any) -> dict[str, Any]:
    """The report of a tree, made when its last save was an hour old."""
    result = api.verify(root, Level.VALUES)
    scan = api.scan(root, trackers=True)
    plan = api.plan(root, Selection(**selected))
    damaged = [result.files[i].report.path for i in data.find_damaged(result.files)]
    maps = {path: api.show(path, explain=True)[0].regions for path in damaged}
    at = max(c.mtime_ns for c in scan.checkpoints) / 1e9 + 3600
    starts = (Start(str(root), None, plan),)
    return data.document(Gathered((str(root),), at, result, (scan,), starts, maps, exit_code=1))
