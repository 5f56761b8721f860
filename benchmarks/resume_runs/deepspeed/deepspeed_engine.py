"""DeepSpeed on two ranks, ZeRO stage 2, whose newest tag is damaged: both load the one before, whatever ``latest`` says.

python deepspeed_engine.py OUT    # deepspeed, torch
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from joined import on_ranks
from spoiling import refusal, spoil

os.environ |= {"DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": f"{sys.prefix}/extensions"}


def engine_of(width: int) -> Any:
    import deepspeed
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(width, width)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 2},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    optimizer = torch.optim.AdamW(model.parameters())
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def main(out: Path) -> dict[str, Any]:
    import deepspeed
    import torch
    import torch.distributed as dist

    from ckpt_tools.integrations.deepspeed import checkpoint

    deepspeed.init_distributed(dist_backend="gloo")
    model_engine = engine_of(8)
    saves = out / "engine"
    none = checkpoint(saves, allow_none=True, allow_missing=True)
    for step in range(1, 4):
        model_engine.backward(model_engine(torch.ones(1, 8, dtype=torch.bfloat16)).square().mean())
        model_engine.step()
        model_engine.save_checkpoint(str(saves), f"global_step{step}")
    dist.barrier()
    own = (saves / "latest").read_text()
    if dist.get_rank() == 0:
        spoil(saves / own)
    dist.barrier()
    model_engine = engine_of(8)
    if (found := checkpoint(saves, allow_none=True)) is not None:
        model_engine.load_checkpoint(**found)
    resumed = model_engine.global_steps
    model_engine.backward(model_engine(torch.ones(1, 8, dtype=torch.bfloat16)).square().mean())
    model_engine.step()
    dist.barrier()
    if dist.get_rank() == 0:
        for tag in saves.glob("global_step*"):
            spoil(tag)
    dist.barrier()
    return {
        "by": f"deepspeed {deepspeed.__version__}, ZeRO-2 on {dist.get_world_size()} ranks",
        "first": none is None,
        "own": own,
        "resumed": f"global_step{resumed}",
        "went_on": model_engine.global_steps == resumed + 1,
        "refused": refusal(lambda: checkpoint(saves, allow_none=True)),
    }


if __name__ == "__main__":
    on_ranks(main)
