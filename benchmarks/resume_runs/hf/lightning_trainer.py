"""Lightning, whose newest checkpoint is damaged: resumed from the one before.

python lightning_trainer.py OUT    # lightning, torch
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from spoiling import refusal, spoil
from torch.utils.data import DataLoader, TensorDataset

from ckpt_tools.integrations.lightning import checkpoint


class Linear(lightning.LightningModule):
    """A layer that is all of a model."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)
        self.begun = -1

    def on_train_start(self) -> None:
        self.begun = self.global_step

    def training_step(self, batch: list[torch.Tensor], _number: int) -> torch.Tensor:
        return self.linear(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


def fitted(out: Path, steps: int) -> tuple[Linear, int]:
    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        devices=1,
        callbacks=[ModelCheckpoint(dirpath=out, every_n_train_steps=2, save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model, data = Linear(), DataLoader(TensorDataset(torch.ones(64, 64)), batch_size=4)
    trainer.fit(model, data, ckpt_path=checkpoint(out, allow_none=True), weights_only=False)
    return model, trainer.global_step


def main(out: Path) -> dict[str, Any]:
    out.mkdir()
    first, _ = fitted(out, 6)
    spoil(newest := out / "epoch=0-step=6.ckpt")
    model, steps = fitted(out, 10)
    for path in out.glob("*.ckpt"):
        spoil(path)
    return {
        "by": f"lightning {lightning.__version__}",
        "first": first.begun == 0,
        "own": newest.name,
        "resumed": f"epoch=0-step={model.begun}.ckpt",
        "went_on": steps == 10,
        "refused": refusal(lambda: checkpoint(out, allow_none=True)),
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
