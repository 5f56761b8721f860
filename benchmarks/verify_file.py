"""Verifying one warm torch file, whole process: ckpt verify against zipfile, torch.load and unzip.

    python benchmarks/verify_file.py [--gib 4] [--runs 5]

Goals: reading alone at least 0.85x, zipfile 4x, torch.load 12x, sha256sum 25x, unzip 40x slower than us; our
peak RSS under 100 MB. unzip and sha256sum are the system's.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile

from _race import arguments, ckpt, race, show

MAKE = """
import sys, torch
path, gib = sys.argv[1], float(sys.argv[2])
n = int(gib * 2**30 / 64 / 4)
generator = torch.Generator().manual_seed(1)
torch.save({"epoch": 3, "state_dict": {f"layer{i}.weight": torch.randn(n, generator=generator) for i in range(64)}}, path)
"""


READ = """
import os, sys, threading
fd = os.open(sys.argv[1], os.O_RDONLY)
size, threads, step = os.fstat(fd).st_size, os.cpu_count(), int(sys.argv[2]) * 1024
def read(i):
    buffer = bytearray(step)
    for at in range(size * i // threads, size * (i + 1) // threads, step):
        os.preadv(fd, [buffer], at)
workers = [threading.Thread(target=read, args=(i,)) for i in range(threads)]
for w in workers: w.start()
for w in workers: w.join()
"""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--gib", type=float, default=4.0)
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="ckpt-bench-")
    try:
        path = os.path.join(directory, "model.pt")
        os.spawnl(os.P_WAIT, sys.executable, sys.executable, "-c", MAKE, path, str(options.gib))
        rivals = {
            "ckpt verify": [ckpt(), "verify", path, "--quiet"],
            "python -m zipfile -t": [sys.executable, "-m", "zipfile", "-t", path],
            "torch.load(weights_only=True)": [
                sys.executable,
                "-c",
                f"import torch; torch.load({path!r}, weights_only=True)",
            ],
        }
        for kib in (256, 1024):
            rivals[f"reading alone (preadv, {kib} KiB, a thread per CPU)"] = [
                sys.executable,
                "-c",
                READ,
                path,
                str(kib),
            ]
        for tool, arguments_ in (("unzip", ["-tqq"]), ("sha256sum", [])):
            if found := shutil.which(tool):
                rivals[" ".join([tool, *arguments_])] = [found, *arguments_, path]
        results = race(rivals, options.runs)
        goals = {
            "ckpt verify": "goal: under 100 MB",
            "python -m zipfile -t": "goal 4x",
            "torch.load(weights_only=True)": "goal 12x",
            "unzip -tqq": "goal 40x",
            "sha256sum": "goal 25x",
            **{name: "goal 0.85x" for name in rivals if name.startswith("reading")},
        }
        size = os.path.getsize(path)
        show(
            f"verify {size / 2**30:.2f} GiB torch zip, warm",
            results,
            "ckpt verify",
            goals,
            options.json,
            gb_per_s=round(size / 1e9 / results["ckpt verify"]["median"], 2),
        )
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
