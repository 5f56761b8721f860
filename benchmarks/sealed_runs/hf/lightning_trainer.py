"""Lightning's ModelCheckpoint, which keeps the two best and the last: resumed from "last", and pruned again.

python lightning_trainer.py OUT SEALED    # lightning, torch; SEALED is 0 or 1
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from ckpt_tools.guard.callbacks.lightning import seal_callback


class Linear(lightning.LightningModule):
    """A layer that is all of a model."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def training_step(self, batch: list[torch.Tensor], _number: int) -> torch.Tensor:
        self.log("count", float(self.global_step))
        return self.linear(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


def fit(out: Path, sealed: bool, steps: int, resume: str | None) -> tuple[Linear, ModelCheckpoint]:
    lightning.seed_everything(0)
    best = {"monitor": "count", "mode": "max", "save_top_k": 2}
    saves = ModelCheckpoint(dirpath=out, every_n_train_steps=2, save_last=True, **best)
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        devices=1,
        callbacks=[saves, *([seal_callback()] * sealed)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Linear()
    trainer.fit(model, DataLoader(TensorDataset(torch.ones(32, 4)), batch_size=4), ckpt_path=resume)
    return model, saves


def main(out: Path, sealed: bool) -> dict[str, Any]:
    fit(out, sealed, 6, None)
    model, saves = fit(out, sealed, 12, "last")
    again = Linear.load_from_checkpoint(saves.last_model_path)
    return {
        "by": f"lightning {lightning.__version__}",
        "kept": sorted(p.name for p in out.iterdir() if not p.name.startswith(".")),
        "newest": [Path(saves.last_model_path).name, Path(saves.best_model_path).name],
        "loaded": [float(m.linear.weight.double().sum()) for m in (model, again)],
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2] == "1")))
