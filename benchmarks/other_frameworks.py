"""Verifying a MindSpore .ckpt with CRC and a TensorFlow bundle against what their own frameworks do to read
and check all of it, whole processes, warm.

    python benchmarks/other_frameworks.py [--gib 4] [--runs 5] [--python-mindspore PYTHON]
    [--python-tensorflow PYTHON]

The frameworks also write the files; whatever is not installed is left out. Goals:
load_checkpoint(crc_check=True) 10x, tf.train.load_checkpoint reading all tensors 5x (2 GiB) slower.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile

from _race import arguments, ckpt, other, race, show

MINDSPORE = """
import sys, numpy as np, mindspore as ms
n, rng = int(float(sys.argv[2]) * 2**30 / 16 / 4), np.random.default_rng(1)
ms.save_checkpoint([{"name": f"layer{i}.weight", "data": ms.Tensor(rng.standard_normal(n, dtype=np.float32))} for i in range(16)], sys.argv[1], crc_check=True)
"""
TENSORFLOW = """
import sys, numpy as np, tensorflow as tf
n, rng = int(float(sys.argv[2]) * 2**30 / 16 / 4), np.random.default_rng(1)
tf.train.Checkpoint(**{f"layer{i}": tf.Variable(rng.standard_normal(n, dtype=np.float32)) for i in range(16)}).write(sys.argv[1])
"""
READ_TENSORFLOW = """
import sys, tensorflow as tf
reader = tf.train.load_checkpoint(sys.argv[1])
for name in reader.get_variable_to_shape_map(): reader.get_tensor(name)
"""
READ_MINDSPORE = """
import sys, mindspore as ms
ms.load_checkpoint(sys.argv[1], crc_check=True)
"""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument(
        "--gib", type=float, default=4.0, help="size of MindSpore's file; TensorFlow's is half of it"
    )
    parser.add_argument("--python-mindspore", metavar="PYTHON")
    parser.add_argument("--python-tensorflow", metavar="PYTHON")
    options = parser.parse_args()
    frameworks = (
        (
            "mindspore",
            other("mindspore", options.python_mindspore),
            MINDSPORE,
            READ_MINDSPORE,
            "net-1_1.ckpt",
            options.gib,
            "goal 10x",
        ),
        (
            "tensorflow",
            other("tensorflow", options.python_tensorflow),
            TENSORFLOW,
            READ_TENSORFLOW,
            "ckpt-1",
            options.gib / 2,
            "goal 5x",
        ),
    )
    for name, python, write, read, file, gib, goal in frameworks:
        if python is None:
            print(f"{name} is not installed: left out", file=sys.stderr)
            continue
        directory = tempfile.mkdtemp(prefix="ckpt-bench-")
        try:
            path = os.path.join(directory, file)
            subprocess.run([python, "-c", write, path, str(gib)], check=True, capture_output=True)
            size = sum(e.stat().st_size for e in os.scandir(directory))
            rival = {
                "mindspore": "load_checkpoint(crc_check=True)",
                "tensorflow": "tf.train.load_checkpoint, all tensors",
            }[name]
            results = race(
                {
                    "ckpt verify": [ckpt(), "verify", path, "--quiet"],
                    rival: [python, "-c", read, path],
                    f"import {name}": [python, "-c", f"import {name}"],
                },
                options.runs,
            )
            title = f"verify {size / 2**30:.2f} GiB of {name}"
            show(
                title,
                results,
                "ckpt verify",
                {rival: goal},
                options.json,
                gb_per_s=round(size / 1e9 / results["ckpt verify"]["median"], 2),
            )
        finally:
            shutil.rmtree(directory)


if __name__ == "__main__":
    main()
