"""Nights on which a job did not resume: real trees of the fixtures, each harmed as a night harms them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import own_pickles
import small_files
from fixture_trees import damage, tree_of
from injected import Fault
from run_helpers import OLD, megatron
from timed import put

from ckpt_tools import seal

LFS = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'ab' * 32}\nsize 4976698672\n"
RUN = "llama-7b"
"""The directory that a night leaves its tree in."""
RANK_1 = "mp_rank_01/model_optim_rng.pt"


@dataclass(frozen=True)
class Night:
    """What happened, the tree that it left below a directory, and the words that ``plan`` needs."""

    name: str
    tree: Callable[[Path], object]
    plan: Sequence[str] = ()
    fault: Callable[[Path], Fault] | None = None
    env: Mapping[str, str] = field(default_factory=dict)


def fixture(name: str, to: Path) -> Path:
    """A real run of the fixtures, under its own name."""
    os.rename(tree_of(name, to), to / RUN)
    return to / RUN


def damaged(name: str, edits: Mapping[str, Any]) -> Callable[[Path], None]:
    return lambda at: damage(fixture(name, at), dict(edits))


def torn(at: Path) -> None:
    root = megatron(at / RUN, steps=(200, 300), world=4)
    lost = ["iter_0000200/mp_rank_00", *(f"iter_0000300/mp_rank_0{rank}" for rank in (1, 2, 3))]
    damage(root, {"remove": lost})


def dying_gasp(at: Path) -> None:
    for step in (10, 20, 25):
        for rank in range(4) if step < 25 else (0, 2):
            path = at / f"{RUN}/iter_{step:07d}/mp_rank_0{rank % 2}/model_optim_rng_{rank}.pt"
            put(path, small_files.megatron(step, rank, 2, 1, 4), OLD + step * 360)
    (at / f"{RUN}/latest_checkpointed_iteration.txt").write_text("20")


def flipped(at: Path) -> None:
    root = fixture("hf-trainer/trainer", at)
    seal(root)
    path = root / "checkpoint-20/model.safetensors"
    damage(root, {"flip": {"checkpoint-20/model.safetensors": path.stat().st_size - 100}})


def unknown_code(at: Path) -> None:
    root = fixture("lightning/steps", at)
    for path in sorted(root.rglob("*.ckpt")):
        path.chmod(0o644)
        own_pickles.adding(path, own_pickles.CALL)


def pointers(at: Path) -> None:
    root = fixture("hf-trainer/trainer", at)
    for path in [*root.rglob("*.safetensors"), *root.rglob("*.pt"), *root.rglob("*.pth")]:
        damage(root, {"write": {str(path.relative_to(root)): LFS}})


def closed(at: Path) -> Fault:
    return Fault(str(at / f"{RUN}/iter_0000030/{RANK_1}"), "open", errno.EACCES)


NO_INDEX = ["step-10/.metadata", "step-20/.metadata", "step-20/__3_0.distcp"]
NIGHTS = (
    Night("truncated", damaged("megatron/tp", {"truncate": {f"iter_0000030/{RANK_1}": 700}})),
    Night("torn", torn),
    Night("gone", damaged("megatron/tp", {"remove": ["iter_0000030"]})),
    Night("dying-gasp", dying_gasp, ("--save-interval", "10", "--fault-ranks", "1,3")),
    Night("unmounted", lambda at: (at / "mnt").mkdir()),
    Night("first", lambda at: (at / RUN).mkdir()),
    Night("misspelt", lambda at: fixture("megatron/tp", at).rename(at / "llama-7b-run")),
    Night("refused", lambda at: fixture("megatron/tp", at), fault=closed),
    Night("full", damaged("dcp/four", {"remove": NO_INDEX})),
    Night("flipped", flipped),
    Night("smaller", lambda at: fixture("deepspeed/zero3", at), ("--world-size", "8")),
    Night("unknown-code", unknown_code),
    Night("pointers", pointers),
)
