"""Many small torch files, whole process: ckpt verify with a process per CPU against one, zipfile.testzip and
torch.load on each in one process.

    python benchmarks/small_files.py [--files 1000] [--runs 5]

1 MiB each, of 16 tensors. What such a file takes is Python, which threads do not share.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile

from _race import arguments, ckpt, race, show

MAKE = """
import os, sys, torch
root, n = sys.argv[1], int(sys.argv[2])
for rank in range(n):
    home = f"{root}/iter_0000100/mp_rank_{rank:03d}"
    os.makedirs(home)
    generator = torch.Generator().manual_seed(rank)
    state = {"iteration": 100, "model": {f"layer{i}.weight": torch.randn(16384, generator=generator) for i in range(16)}}
    torch.save(state, f"{home}/model_optim_rng.pt")
with open(f"{root}/latest_checkpointed_iteration.txt", "w") as f:
    f.write("100")
"""
EACH = "import glob, sys; paths = glob.glob(sys.argv[1] + '/*/*/*.pt')\n"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--files", type=int, default=1000)
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="ckpt-bench-")
    try:
        root = os.path.join(directory, "run")
        os.spawnl(os.P_WAIT, sys.executable, sys.executable, "-c", MAKE, root, str(options.files))
        rivals = {
            "ckpt verify": [ckpt(), "verify", root, "--quiet", "--no-cache"],
            "ckpt verify --jobs 1": [ckpt(), "verify", root, "--quiet", "--no-cache", "--jobs", "1"],
            "ckpt verify --level structure": [
                ckpt(),
                "verify",
                root,
                "--quiet",
                "--no-cache",
                "--level",
                "structure",
            ],
            "zipfile.testzip of each": [
                sys.executable,
                "-c",
                EACH + "import zipfile\nfor p in paths: zipfile.ZipFile(p).testzip()",
                root,
            ],
            "torch.load of each": [
                sys.executable,
                "-c",
                EACH + "import torch\nfor p in paths: torch.load(p, weights_only=True)",
                root,
            ],
        }
        results = race(rivals, options.runs)
        show(f"verify {options.files} torch files of 1 MiB, warm", results, "ckpt verify", {}, options.json)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
