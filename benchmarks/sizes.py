"""Throughput and memory against file size: ckpt verify of one warm torch file against torch.load, zipfile and
reading alone.

    python benchmarks/sizes.py [--gib 4] [--sparse 16] [--runs 5]

Files of 1 MiB to --gib GiB of random numbers; one more of --sparse GiB of zeros that take no room on the
disk, for memory only (torch.load would need that much). Goal: our peak RSS does not grow with the file, and
stays under 100 MB. benchmarks/plots.py draws the two pictures.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile

from _race import arguments, ckpt, race
from verify_file import MAKE, READ

SPARSE = """
import sys, torch
class Holes:  # what is all zeros becomes a hole
    def __init__(self, f): self.f = f
    def write(self, data):
        n = len(memoryview(data).cast("B"))
        if n >= 4096 and not any(memoryview(data).cast("B")[:64]) and bytes(data).count(0) == n: self.f.seek(n, 1)
        else: self.f.write(data)
        return n
    def flush(self): self.f.flush()
path, gib = sys.argv[1], float(sys.argv[2])
with open(path, "wb") as f:
    torch.save({"state_dict": {f"layer{i}.weight": torch.zeros(16 << 20) for i in range(int(gib * 16))}}, Holes(f))
    f.truncate()
"""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument("--sparse", type=float, default=16.0)
    options = parser.parse_args()
    rows = []
    for gib in [
        *(g for g in (2**-10, 2**-6, 2**-4, 0.25, 1, 4, 16) if g <= options.gib),
        *([options.sparse] if options.sparse else []),
    ]:
        directory = tempfile.mkdtemp(prefix="ckpt-bench-")
        try:
            path, sparse = os.path.join(directory, "model.pt"), gib > options.gib
            os.spawnl(
                os.P_WAIT, sys.executable, sys.executable, "-c", SPARSE if sparse else MAKE, path, str(gib)
            )
            rivals = {"ckpt verify": [ckpt(), "verify", path, "--quiet"]}
            if not sparse:
                rivals["torch.load"] = [
                    sys.executable,
                    "-c",
                    f"import torch; torch.load({path!r}, weights_only=True)",
                ]
                rivals["zipfile"] = [sys.executable, "-m", "zipfile", "-t", path]
                rivals["reading alone"] = [sys.executable, "-c", READ, path, "1024"]
            size = os.path.getsize(path)
            rows.append(
                {"bytes": size, "sparse": sparse, "results": race(rivals, 1 if sparse else options.runs)}
            )
        finally:
            shutil.rmtree(directory)
        if not options.json:
            what = "  ".join(
                f"{n} {size / 1e9 / r['median']:.2f} GB/s {r['rss_mb']:.0f} MB"
                for n, r in rows[-1]["results"].items()
            )  # type: ignore[attr-defined]
            print(f"{size / 2**20:10.0f} MiB{' (sparse)' if sparse else ''}  {what}")
    if options.json:
        machine = f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"
        print(json.dumps({"title": "throughput and memory by file size", "machine": machine, "sizes": rows}))


if __name__ == "__main__":
    main()
