"""MindSpore's Model.train with a ModelCheckpoint that keeps two: pruned, listed and loaded.

python mindspore_train.py OUT SEALED    # mindspore, on the CPU; SEALED is 0 or 1
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["GLOG_v"] = "3"  # noqa: SIM112  its name

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.train import CheckpointConfig, Model, ModelCheckpoint

from ckpt_tools.guard.callbacks.mindspore import seal_callback


def rows() -> Any:
    for number in range(8):
        yield np.full(4, number, np.float32), np.full(2, number / 7, np.float32)


def train(out: Path, sealed: bool, **config: Any) -> tuple[Any, ModelCheckpoint]:
    ms.set_seed(0)
    network = nn.Dense(4, 2)
    model = Model(network, nn.MSELoss(), nn.Adam(network.trainable_params()))
    data = ms.dataset.GeneratorDataset(list(rows()), ["x", "y"], shuffle=False).batch(2)
    kept = CheckpointConfig(save_checkpoint_steps=2, keep_checkpoint_max=2, **config)
    saves = ModelCheckpoint("net", str(out), kept)
    model.train(3, data, callbacks=[saves, *([seal_callback(saves)] * sealed)], dataset_sink_mode=False)
    return network, saves


def main(out: Path, sealed: bool) -> dict[str, Any]:
    kept, totals = [], []
    for name, config in {
        "plain": {},
        "async": {"async_save": True},
        "names": {"format": "safetensors"},
    }.items():
        network, saves = train(out / name, sealed, **config)
        newest = Path(saves.latest_ckpt_file_name)
        how = {"format": "safetensors"} if name == "names" else {}
        loaded = ms.load_checkpoint(str(newest), **how)
        again = nn.Dense(4, 2)
        ms.load_param_into_net(again, loaded)
        totals.append(
            [newest.name, float(again.weight.asnumpy().sum()), float(network.weight.asnumpy().sum())]
        )
        kept += sorted(p.name for p in (out / name).iterdir() if not p.name.startswith("."))
    return {
        "by": f"mindspore {ms.__version__}: plain, asynchronous, safetensors",
        "runs": ["plain", "async", "names"],
        "kept": kept,
        "newest": totals[0][0],
        "loaded": totals,
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2] == "1")))
