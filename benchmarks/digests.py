"""Digests of one warm file for a manifest: ours (XXH3-128) against model_signing (BLAKE3, SHA-256) and
Megatron-core's integrity.json (SHA-256, one thread).

    python benchmarks/digests.py [--gib 4] [--runs 5] [--python-model-signing venv/bin/python]

Timed inside each process, after its imports. Goals: BLAKE3 1.3x, SHA-256 4x, Megatron's scheme 7x slower than
us. Ours is that of a file's chunks (ckpt_tools/inspection/digests.py), read as --io auto does, which for a
large file in the page cache is by helper processes that map it; their memory (some 20 MB each) is not in the
table.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

from _race import arguments, other, show

CLOCK = """
import json, re, sys, time
path = sys.argv[1]
def clocked(f):
    started = time.perf_counter(); f(); seconds = time.perf_counter() - started
    with open("/proc/self/status") as status:  # ru_maxrss begins with that of the process that started us
        print(json.dumps({"seconds": seconds, "rss": int(re.search(r"VmHWM:\\s+(\\d+)", status.read())[1]) * 1024}))
"""
OURS = """
from ckpt_tools.inspection.digests import file_digest
clocked(lambda: file_digest(path))
"""
SIGNING = """
from model_signing import hashing
config = hashing.Config(); config.use_{how}_serialization(hashing_algorithm={algorithm!r})
clocked(lambda: config.hash(path))
"""
MEGATRON = """
import hashlib
def run():  # megatron/core/dist_checkpointing/integrity.py: each file in turn, 1 MiB at a time
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while chunk := f.read(1 << 20): digest.update(chunk)
clocked(run)
"""


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument(
        "--python-model-signing", metavar="PYTHON", help="an interpreter that has model_signing and blake3"
    )
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="ckpt-bench-")
    try:
        path = os.path.join(directory, "data", "model.bin")
        os.mkdir(os.path.dirname(path))
        block = os.urandom(1 << 26)
        with open(path, "wb") as f:
            f.writelines(block for _ in range(max(1, int(options.gib * 16))))
        rivals = {"ckpt, XXH3-128": (sys.executable, OURS, path)}
        left = []
        if signing := other("model_signing", options.python_model_signing):
            for name, how, algorithm in (
                ("BLAKE3", "file", "blake3"),
                ("SHA-256", "file", "sha256"),
                ("SHA-256, 1 GB shards", "shard", "sha256"),
            ):
                rivals[f"model_signing, {name}"] = (
                    signing,
                    SIGNING.format(how=how, algorithm=algorithm),
                    os.path.dirname(path),
                )
        else:
            left.append("model_signing is not installed")
        rivals["Megatron-core's scheme, SHA-256"] = (sys.executable, MEGATRON, path)
        took: dict[str, list[dict[str, float]]] = {name: [] for name in rivals}
        for turn in range(options.runs + 1):
            for name, (python, code, what) in rivals.items():
                said = subprocess.run(
                    [python, "-c", CLOCK + code, what], capture_output=True, check=True
                ).stdout
                if turn:
                    took[name].append(json.loads(said))
        results = {
            n: {
                "median": statistics.median(r["seconds"] for r in rows),
                "best": min(r["seconds"] for r in rows),
                "rss_mb": max(r["rss"] for r in rows) / 1e6,
            }
            for n, rows in took.items()
        }
        goals = {
            "model_signing, BLAKE3": "goal 1.3x",
            "model_signing, SHA-256": "goal 4x",
            "Megatron-core's scheme, SHA-256": "goal 7x",
        }
        size = os.path.getsize(path)
        title = f"digest of a file of {size / 2**30:.2f} GiB"
        facts = {"gb_per_s": {n: round(size / 1e9 / r["median"], 2) for n, r in results.items()}} | (
            {"left_out": left} if left else {}
        )
        show(title, results, "ckpt, XXH3-128", goals, options.json, **facts)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
