"""MindSpore's Model.train, whose newest checkpoint is damaged: loaded from the one before.

python mindspore_train.py OUT    # mindspore, on the CPU
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["GLOG_v"] = "3"  # noqa: SIM112  its name

import mindspore
import numpy as np
from mindspore import nn
from mindspore.train import CheckpointConfig, Model, ModelCheckpoint
from spoiling import refusal, spoil

from ckpt_tools.integrations.mindspore import checkpoint


def rows() -> Any:
    for number in range(8):
        yield np.full(64, number, np.float32), np.full(2, number / 7, np.float32)


def main(out: Path) -> dict[str, Any]:
    out.mkdir()
    none = checkpoint(out, allow_none=True)
    mindspore.set_seed(0)
    net = nn.Dense(64, 2)
    model = Model(net, nn.MSELoss(), nn.Adam(net.trainable_params()))
    data = mindspore.dataset.GeneratorDataset(list(rows()), ["x", "y"], shuffle=False).batch(2)
    saves = ModelCheckpoint("net", str(out), CheckpointConfig(save_checkpoint_steps=4, keep_checkpoint_max=9))
    model.train(3, data, callbacks=[saves], dataset_sink_mode=False)
    spoil(newest := Path(saves.latest_ckpt_file_name))
    net = nn.Dense(64, 2)
    path = checkpoint(out)
    not_loaded, _ = mindspore.load_param_into_net(net, mindspore.load_checkpoint(path))
    for one in out.glob("*.ckpt"):
        spoil(one)
    return {
        "by": f"mindspore {mindspore.__version__}",
        "first": none is None,
        "own": newest.name,
        "resumed": Path(path).name,
        "went_on": not not_loaded,
        "refused": refusal(lambda: checkpoint(out, allow_none=True)),
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
