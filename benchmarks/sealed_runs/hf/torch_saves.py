"""torch.save, DCP and DCP's asynchronous save in a loop that keeps two: found, pruned and loaded again.

python torch_saves.py OUT SEALED    # torch; SEALED is 0 or 1
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from ckpt_tools.guard import finish
from ckpt_tools.guard.callbacks import saving, seal_when_done

KEPT = 2


def saves(out: Path) -> list[Path]:
    """As training scripts list what they saved: every entry that has a number, in order."""
    found = [p for p in out.iterdir() if re.fullmatch(r"step_\d+(\.pt)?", p.name)]
    return sorted(found, key=lambda p: int(re.findall(r"\d+", p.name)[0]))


def prune(out: Path) -> None:
    for old in saves(out)[:-KEPT]:
        shutil.rmtree(old) if old.is_dir() else old.unlink()


def main(out: Path, sealed: bool) -> dict[str, Any]:
    flat, sharded = out / "flat", out / "sharded"
    flat.mkdir(parents=True)
    dist.init_process_group("gloo", init_method=f"file://{out}/meet", rank=0, world_size=1)
    for step in range(1, 5):
        state = {"w": torch.full((200,), float(step)), "step": step}
        file, directory = flat / f"step_{step}.pt", sharded / f"step_{step}"
        if sealed:
            with saving(file):
                torch.save(state, file)
        else:
            torch.save(state, file)
        future: Any = dcp.async_save(state, checkpoint_id=str(directory))
        if sealed:
            seal_when_done(future, directory)
        future.result()
        prune(flat)
        prune(sharded)
    finish()
    os.unlink(out / "meet")
    newest = saves(sharded)[-1]
    state = {"w": torch.zeros(200), "step": 0}
    dcp.load(state, checkpoint_id=str(newest))
    dist.destroy_process_group()
    loaded = torch.load(saves(flat)[-1], weights_only=True)
    return {
        "by": f"torch {torch.__version__}: torch.save, DCP's async_save",
        "runs": ["flat", "sharded"],
        "kept": [p.name for p in (*saves(flat), *saves(sharded))],
        "newest": newest.name,
        "loaded": [float(state["w"].sum()), state["step"], float(loaded["w"].sum())],
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2] == "1")))
