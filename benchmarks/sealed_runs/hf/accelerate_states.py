"""Accelerate's save_state with its own names, of which it keeps two; load_state finds the newest.

python accelerate_states.py OUT SEALED    # accelerate, torch; SEALED is 0 or 1
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import accelerate
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration

from ckpt_tools.guard import finish
from ckpt_tools.guard.callbacks import saving


def main(out: Path, sealed: bool) -> dict[str, Any]:
    kept = ProjectConfiguration(project_dir=str(out), automatic_checkpoint_naming=True, total_limit=2)
    accelerator = Accelerator(cpu=True, project_config=kept)
    model = torch.nn.Linear(4, 4)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    ranks = {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
    totals = []
    for step in range(4):
        model.weight.data.fill_(step)
        accelerator.backward(model(torch.ones(2, 4)).square().mean())
        optimizer.step()
        path = out / f"checkpoints/checkpoint_{accelerator.save_iteration}"
        with saving(path, **ranks) if sealed else nullcontext():
            accelerator.save_state()
        totals.append(float(model.weight.double().sum()))
    model.weight.data.fill_(77)
    finish()
    accelerator.load_state()
    return {
        "by": f"accelerate {accelerate.__version__}",
        "kept": sorted(p.name for p in (out / "checkpoints").iterdir()),
        "newest": float(model.weight.double().sum()) == totals[-1],
        "loaded": [len(optimizer.state_dict()["state"])],
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2] == "1")))
