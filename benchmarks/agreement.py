"""Agreement of two nodes with disks of their own, against the import of torch alone: what --agree adds to a
start.

    python benchmarks/agreement.py [--runs 5]

Goal: under 3 s on top of the import of torch; through a shared directory torch is not needed at all.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _race import arguments, ckpt

sys.path.insert(
    0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", "support")
)


def pair(commands: list[list[str]], states: list[str]) -> float:
    """Wall seconds of processes that start together."""
    started = time.perf_counter()
    running = [
        subprocess.Popen(c, stderr=subprocess.DEVNULL, env={**os.environ, "XDG_STATE_HOME": s})
        for c, s in zip(commands, states, strict=True)
    ]
    for p in running:
        if p.wait() != 0:
            raise SystemExit(f"ended with {p.returncode}: {' '.join(p.args)}")  # type: ignore[arg-type]
    return time.perf_counter() - started


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def main() -> None:
    options = arguments(__doc__).parse_args()
    from run_helpers import megatron

    directory = tempfile.mkdtemp(prefix="ckpt-bench-")
    try:
        disks = [
            str(megatron(Path(directory) / f"disk-{n}", world=8, ranks=range(4 * n, 4 * n + 4)))
            for n in range(2)
        ]
        states = [os.path.join(directory, f"state-{n}") for n in range(2)]

        def agents(*meet: str) -> list[list[str]]:
            same = ["--agree", "--nodes", "2", "--world-size", "8", *meet, "-q"]
            return [
                [ckpt(), "run", disk, "--node", str(n), *same, "--", "true"] for n, disk in enumerate(disks)
            ]

        took: dict[str, list[float]] = {}
        for _ in range(options.runs + 1):
            took.setdefault("import torch, twice at once", []).append(
                pair([[sys.executable, "-c", "import torch.distributed"]] * 2, states)
            )
            took.setdefault("--agree through torch", []).append(
                pair(agents("--rendezvous", f"127.0.0.1:{free_port()}"), states)
            )
            took.setdefault("--agree through a shared directory", []).append(
                pair(agents("--plan-dir", os.path.join(directory, "plans"), "--job", "b"), states)
            )
        medians = {name: statistics.median(times[1:]) for name, times in took.items()}
        base = medians["import torch, twice at once"]
        if options.json:
            results = {n: {"median": m, "best": min(took[n][1:]), "rss_mb": 0} for n, m in medians.items()}
            ratio = {n: m / base for n, m in medians.items()}
            goals = {"--agree through torch": f"goal under {base + 3:.2f} s"}
            print(
                json.dumps(
                    {
                        "title": "two nodes agree on one of two checkpoints",
                        "results": results,
                        "ratio": ratio,
                        "goals": goals,
                    }
                )
            )
            return
        print("two nodes agree on one of two checkpoints, 4 ranks each")
        for name, seconds in medians.items():
            print(f"  {name:36} {seconds:6.2f} s   {seconds - base:+6.2f} s   {seconds / base:5.2f}x")
        print("  goal: --agree through torch under +3.00 s")
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
