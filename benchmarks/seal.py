"""What a seal costs: sealing a warm file against verifying it, and against what others swear to; saving a model
and sealing it against saving it alone.

    python benchmarks/seal.py [--gib 4] [--runs 5] [--only files|saves] [--python-model-signing venv/bin/python]

Goals: sealing at 0.9 of the rate of verify; save and seal in 1.05 of the time of saving alone. All but
sha256sum are timed inside a process of their own, after their imports; a save ends with the file on the disk
(fsync), as a job that means it does. Memory is the peak of the process; helpers that map the file take some
20 MB each beside it.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from _race import arguments, other, show

CLOCK = """
import json, os, re, sys, time
path = sys.argv[1]
def clocked(f, more=dict):
    started, cpu = time.perf_counter(), os.times()
    f()
    seconds, now = time.perf_counter() - started, os.times()
    with open("/proc/self/status") as status:  # ru_maxrss begins with that of the process that started us
        rss = int(re.search(r"VmHWM:\\s+(\\d+)", status.read())[1]) * 1024
    print(json.dumps({"seconds": seconds, "rss": rss, "cpu": sum(now[:4]) - sum(cpu[:4]), **more()}))
"""
VERIFY = """
from ckpt_tools.api import verify
import ckpt_tools.planning.verification
clocked(lambda: verify(path))
"""
SEAL = """
from ckpt_tools import guard
import ckpt_tools.guard.sealing
def run():
    (one,) = guard.seal(path, again=True, digest={digest!r}).checkpoints
    assert one.state == "sealed", one
clocked(run)
"""
SIGNING = """
from model_signing import hashing
config = hashing.Config(); config.use_file_serialization(hashing_algorithm={algorithm!r})
clocked(lambda: config.hash(path))
"""
SAVE = """
import torch
from ckpt_tools import guard
import ckpt_tools.guard.sealing
state = {{f"w{{i}}": torch.randn(1 << 24) for i in range({tensors})}}
def run():
    global saved
    started = time.perf_counter()
    torch.save(state, path)
    saved = time.perf_counter() - started
    sealing = guard.seal(path, again=True, background=True) if {when!r} == "beside" else None
    with open(path, "rb") as f: os.fsync(f.fileno())
    if {when!r} == "after": guard.seal(path, again=True)
    if sealing: assert sealing.wait().checkpoints[0].state == "sealed"
os.path.exists(path) and os.unlink(path)
clocked(run, lambda: {{"save": saved}})
"""
MIB_OF_A_TENSOR = 64


def timed(rivals: Mapping[str, tuple[str, str, str]], runs: int) -> dict[str, dict[str, float]]:
    """Each rival in turn, as often as is asked for, after a round that does not count."""
    return {name: _summary(rows) for name, rows in rounds(rivals, runs).items()}


def rounds(rivals: Mapping[str, tuple[str, str, str]], runs: int) -> dict[str, list[dict[str, float]]]:
    """What each run said of itself."""
    took: dict[str, list[dict[str, float]]] = {name: [] for name in rivals}
    for turn in range(runs + 1):
        for name, (python, code, what) in rivals.items():
            said = subprocess.run([python, "-c", CLOCK + code, what], capture_output=True, check=True).stdout
            if turn:
                took[name].append(json.loads(said))
    return took


def _summary(rows: list[dict[str, float]]) -> dict[str, float]:
    return {
        "median": statistics.median(r["seconds"] for r in rows),
        "best": min(r["seconds"] for r in rows),
        "cpu": min(r["cpu"] for r in rows),
        "rss_mb": max(r["rss"] for r in rows) / 1e6,
    }


def of_files(directory: str, options: Any) -> None:
    """Sealing warm files of two formats against verifying them and against what others do."""
    made = f"import torch, sys; from safetensors.torch import save_file; s = {{f'w{{i}}': torch.randn(1 << 24) for i in range({int(options.gib * 16)})}}; "
    signing = other("model_signing", options.python_model_signing)
    for name, save in (
        ("model.pt", "torch.save(s, sys.argv[1])"),
        ("model.safetensors", "save_file(s, sys.argv[1])"),
    ):
        home = os.path.join(directory, name.replace(".", "_"))
        os.mkdir(home)
        path = os.path.join(home, name)
        subprocess.run([sys.executable, "-c", made + save, path], check=True)
        rivals = {
            "ckpt seal": (sys.executable, SEAL.format(digest="xxh3"), path),
            "ckpt seal --digest sha256": (sys.executable, SEAL.format(digest="sha256"), path),
            "sha256sum": (
                sys.executable,
                "import subprocess\nclocked(lambda: subprocess.run(['sha256sum', path], check=True, stdout=-3))",
                path,
            ),
        }
        if signing:
            rivals |= {
                f"model_signing, {n}": (signing, SIGNING.format(algorithm=a), home)
                for n, a in (("BLAKE3", "blake3"), ("SHA-256", "sha256"))
            }
        # Before there is a seal, which verify would compare as well.
        results = timed({"ckpt verify, unsealed": (sys.executable, VERIFY, path)}, options.runs)
        results |= timed(rivals, options.runs)
        subprocess.run(
            [sys.executable, "-c", CLOCK + SEAL.format(digest="xxh3"), path], check=True, stdout=-3
        )
        results |= timed({"ckpt verify, sealed": (sys.executable, VERIFY, path)}, options.runs)
        size = os.path.getsize(path)
        rate = results["ckpt verify, unsealed"]["median"] / results["ckpt seal"]["median"]
        facts = {
            "gb_per_s": {n: round(size / 1e9 / r["median"], 2) for n, r in results.items()},
            "rate of sealing over that of verify (goal 0.9)": round(rate, 2),
        }
        show(f"seal {size / 2**30:.2f} GiB, {name}", results, "ckpt seal", {}, options.json, **facts)
        shutil.rmtree(home)


def of_saves(directory: str, options: Any) -> None:
    """A save with its seal against the save alone.

    torch.save is the same in all of them, and by far the most uneven (the disk): its median is that of all
    runs, and what follows it is compared.
    """
    path, tensors = os.path.join(directory, "saved.pt"), int(options.gib * 16)
    ways = {
        "torch.save, fsync": "",
        "torch.save, fsync, seal": "after",
        "torch.save, seal beside fsync": "beside",
    }
    rivals = {n: (sys.executable, SAVE.format(tensors=tensors, when=when), path) for n, when in ways.items()}
    took = rounds(rivals, options.runs)
    save = statistics.median(r["save"] for rows in took.values() for r in rows)
    then = {n: statistics.median(r["seconds"] - r["save"] for r in rows) for n, rows in took.items()}
    alone, *sealed = ways
    facts = {
        "torch.save, seconds (median of all runs)": round(save, 2),
        "what follows it, seconds": {n: round(seconds, 3) for n, seconds in then.items()},
        "save and seal over save alone (goal 1.05)": {
            n: round((save + then[n]) / (save + then[alone]), 3) for n in sealed
        },
    }
    results = {name: _summary(rows) for name, rows in took.items()}
    show(f"save {options.gib:g} GiB", results, alone, {}, options.json, **facts)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument(
        "--python-model-signing", metavar="PYTHON", help="an interpreter that has model_signing and blake3"
    )
    parser.add_argument("--only", choices=["files", "saves"], help="one of the two tables")
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="ckpt-bench-")
    try:
        if options.only != "saves":
            of_files(directory, options)
        if options.only != "files":
            of_saves(directory, options)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
