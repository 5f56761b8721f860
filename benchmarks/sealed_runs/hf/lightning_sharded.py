"""Lightning's sharded checkpoints of two processes, of which ModelCheckpoint keeps the two best.

python lightning_sharded.py OUT SEALED    # lightning, torch: FSDP2 on the CPU; SEALED is 0 or 1
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

from ckpt_tools.guard.callbacks.lightning import seal_callback

TWO = {"data_parallel_size": 2, "tensor_parallel_size": 1, "process_group_backend": "gloo"}


class Linear(lightning.LightningModule):
    """A layer that is all of a model, sharded over two processes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def configure_model(self) -> None:
        fully_shard(self.linear, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: list[torch.Tensor], _number: int) -> torch.Tensor:
        self.log("count", float(self.global_step))
        return self.linear(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


def fit(out: Path, sealed: bool, epochs: int, resume: str | None) -> lightning.Trainer:
    lightning.seed_everything(0)
    saves = ModelCheckpoint(dirpath=out, save_top_k=2, monitor="count", mode="max")
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=2,
        strategy=ModelParallelStrategy(**TWO),
        callbacks=[saves, *([seal_callback()] * sealed)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Linear(), DataLoader(TensorDataset(torch.ones(32, 4)), batch_size=4), ckpt_path=resume)
    return trainer


def main(out: Path, sealed: bool) -> dict[str, Any]:
    first = fit(out, sealed, 3, None)
    last = first.checkpoint_callback.best_model_path
    trainer = fit(out, sealed, 5, last)
    trainer.strategy.barrier()
    return {
        "by": f"lightning {lightning.__version__}, FSDP2 on 2 ranks",
        "kept": sorted(p.name for p in out.iterdir() if not p.name.startswith(".")),
        "newest": [Path(last).name, Path(trainer.checkpoint_callback.best_model_path).name],
        "loaded": [trainer.global_step],
    }


if __name__ == "__main__":
    found = main(Path(sys.argv[1]), sys.argv[2] == "1")
    if torch.distributed.get_rank() == 0:
        print(json.dumps(found))
