"""TensorFlow's CheckpointManager with max_to_keep: latest, restore, and a new manager that prunes on.

python checkpoint_manager.py OUT SEALED    # tensorflow; SEALED is 0 or 1
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf

import ckpt_tools


def main(out: Path, sealed: bool) -> dict[str, Any]:
    found = []
    for steps in (range(1, 4), range(4, 6)):
        step, weight = tf.Variable(0), tf.Variable(tf.zeros(200))
        manager = tf.train.CheckpointManager(
            tf.train.Checkpoint(step=step, w=weight), str(out), max_to_keep=2
        )
        manager.restore_or_initialize()
        found.append(int(step))
        for number in steps:
            step.assign(number)
            weight.assign(tf.fill([200], number / 7))
            manager.save(checkpoint_number=number)
            if sealed:
                ckpt_tools.seal(out, background=True)
    ckpt_tools.seal(out, background=True).wait() if sealed else None
    newest = tf.train.latest_checkpoint(str(out))
    again = tf.train.load_checkpoint(newest)
    return {
        "by": f"tensorflow {tf.__version__}",
        "kept": sorted(Path(path).name for path in manager.checkpoints),
        "newest": Path(newest).name,
        "loaded": [*found, float(again.get_tensor("w/.ATTRIBUTES/VARIABLE_VALUE").sum())],
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2] == "1")))
