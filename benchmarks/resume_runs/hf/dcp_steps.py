"""torch.distributed.checkpoint on two ranks, whose newest save is damaged: both load the one before.

python dcp_steps.py OUT    # torch
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from joined import on_ranks
from spoiling import refusal, spoil
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from ckpt_tools.integrations.dcp import checkpoint


def main(out: Path) -> dict[str, Any]:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    saves = out / "saves"
    none = checkpoint(saves, allow_none=True, allow_missing=True)
    for step in range(1, 4):
        weights = distribute_tensor(torch.full((64, 64), float(step)), mesh, [Shard(0)])
        dcp.save({"w": weights, "step": step}, checkpoint_id=str(saves / f"step_{step}"))
    if dist.get_rank() == 0:
        spoil(saves / "step_3")
    dist.barrier()
    state = {"w": distribute_tensor(torch.zeros(64, 64), mesh, [Shard(0)]), "step": 0}
    dcp.load(state, checkpoint_id=checkpoint(saves))
    dist.barrier()
    if dist.get_rank() == 0:
        for one in saves.iterdir():
            spoil(one)
    dist.barrier()
    return {
        "by": f"torch {torch.__version__}: dcp, {dist.get_world_size()} ranks",
        "first": none is None,
        "own": "step_3",
        "resumed": f"step_{state['step']}",
        "went_on": float(state["w"].full_tensor().mean()) == state["step"],
        "refused": refusal(lambda: checkpoint(saves, allow_none=True)),
    }


if __name__ == "__main__":
    on_ranks(main)
