"""Looking at every number of one warm safetensors file: our values level against torch.isfinite and
numpy.isfinite on tensors in memory.

    python benchmarks/values.py [--gib 2] [--runs 5] [--dtype float32]

Timed inside each process, after its imports. Ours reads the file, counts NaN, infinities, denormals and
zeros, and finds the extremes; the others ask one question of tensors that are loaded already (the time to
load them is a line of its own). Goals: at least 1 GB/s on one core, peak RSS that does not grow with the
file, and no slower than loading and asking.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

from _race import arguments, show

MAKE = """
import sys, torch
from safetensors.torch import save_file
path, gib, dtype = sys.argv[1], float(sys.argv[2]), getattr(torch, sys.argv[3])
n = int(gib * 2**30 / 64 / dtype.itemsize / 1024)
generator = torch.Generator().manual_seed(1)
save_file({f"layer{i}.weight": (torch.randn(n, 1024, generator=generator) * 0.02).to(dtype) for i in range(64)}, path)
"""
CLOCK = """
import json, resource, sys, time
path, threads = sys.argv[1], int(sys.argv[2])
def done(**seconds):
    print(json.dumps({"rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, **seconds}))
"""
OURS = """
from ckpt_tools.model.report import Level
from ckpt_tools.storage import LocalSource
from ckpt_tools.inspection.tensor_values import values
from ckpt_tools.inspection.check import inspect
import numpy
_, anatomy = inspect(path, Level.STRUCTURE)
with LocalSource(path) as source:
    began, cpu = time.perf_counter(), time.process_time()
    assert not list(values(source, anatomy))
    done(ask=time.perf_counter() - began, cpu=time.process_time() - cpu)
"""
TORCH = """
import torch
from safetensors.torch import load_file
torch.set_num_threads(threads)
began = time.perf_counter()
tensors = [t.clone() for t in load_file(path).values()]
loaded, cpu = time.perf_counter(), time.process_time()
assert all(torch.isfinite(t).all() for t in tensors)
done(load=loaded - began, ask=time.perf_counter() - loaded, cpu=time.process_time() - cpu)
"""
NUMPY = """
import numpy
from safetensors.numpy import load_file
began = time.perf_counter()
tensors = list(load_file(path).values())
loaded, cpu = time.perf_counter(), time.process_time()
assert all(numpy.isfinite(t).all() for t in tensors)
done(load=loaded - began, ask=time.perf_counter() - loaded, cpu=time.process_time() - cpu)
"""


def timed(code: str, path: str, threads: int) -> dict[str, float]:
    """What one process says about itself."""
    done = subprocess.run(
        [sys.executable, "-c", CLOCK + code, path, str(threads)], capture_output=True, text=True, check=True
    )
    said: dict[str, float] = json.loads(done.stdout)
    return said


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--dtype", default="float32", choices=["float64", "float32", "float16", "bfloat16"])
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="ckpt-bench-")
    try:
        path, ours, cpus = (
            os.path.join(directory, "model.safetensors"),
            "ckpt_tools.inspection.tensor_values, one thread",
            os.cpu_count() or 1,
        )
        subprocess.run([sys.executable, "-c", MAKE, path, str(options.gib), options.dtype], check=True)
        rivals = {
            ours: (OURS, 1),
            "torch.isfinite(t).all(), one thread": (TORCH, 1),
            f"torch.isfinite(t).all(), {cpus} threads": (TORCH, cpus),
        }
        if options.dtype != "bfloat16":
            rivals["numpy.isfinite(t).all()"] = (NUMPY, 1)
        said: dict[str, list[dict[str, float]]] = {name: [] for name in rivals}
        for turn in range(options.runs + 1):
            for name, (code, threads) in rivals.items():
                one = timed(code, path, threads)
                if turn:  # the first warms the cache
                    said[name].append(one)
        results = {}
        for name, runs in said.items():
            for what in ("ask", "load"):
                if seconds := [r[what] for r in runs if what in r]:
                    label = name if what == "ask" else f"  loading for it: {name.partition('(')[0]}"
                    results[label] = {
                        "median": statistics.median(seconds),
                        "best": min(seconds),
                        "rss_mb": max(r["rss"] for r in runs) / 1e6,
                    }
        size = os.path.getsize(path)
        title = f"values of {size / 2**30:.2f} GiB {options.dtype}, warm"
        rates = {
            "gb_per_s": round(size / 1e9 / results[ours]["median"], 2),
            "gb_per_cpu_second": round(size / 1e9 / statistics.median(r["cpu"] for r in said[ours]), 2),
        }
        show(title, results, ours, {ours: "goal: 1 GB/s, flat memory"}, options.json, **rates)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
