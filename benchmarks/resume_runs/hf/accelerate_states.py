"""Accelerate on two ranks, whose newest state is damaged: both load the one before.

python accelerate_states.py OUT    # accelerate, torch
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import accelerate
import torch
from accelerate import Accelerator
from joined import on_ranks
from spoiling import refusal, spoil

from ckpt_tools.integrations.accelerate import checkpoint


def main(out: Path) -> dict[str, Any]:
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(64, 64)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    saves = out / "states"
    none = checkpoint(saves, allow_none=True, allow_missing=True)
    for step in range(1, 4):
        accelerator.backward(model(torch.ones(2, 64)).square().mean())
        optimizer.step()
        with torch.no_grad():
            model.module.weight.fill_(step)
        accelerator.save_state(str(saves / f"step_{step}"))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        spoil(saves / "step_3")
    accelerator.wait_for_everyone()
    model.module.weight.data.fill_(77)
    if (path := checkpoint(saves, allow_none=True)) is not None:
        accelerator.load_state(path)
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        for one in saves.iterdir():
            spoil(one)
    accelerator.wait_for_everyone()
    return {
        "by": f"accelerate {accelerate.__version__}, {accelerator.num_processes} ranks",
        "first": none is None,
        "own": "step_3",
        "resumed": f"step_{int(model.module.weight[0, 0])}",
        "went_on": len(optimizer.state_dict()["state"]) == 2,
        "refused": refusal(lambda: checkpoint(saves, allow_none=True)),
    }


if __name__ == "__main__":
    on_ranks(main)
