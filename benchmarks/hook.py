"""The pre-start hook: from the start of ckpt run to the first instruction of its command, on 8 small rank
files.

    python benchmarks/hook.py [--runs 21]

Goals: under 0.3 s, with torch not imported; under 0.2 times the import of torch, which every rank pays anyway
(ratio above 5).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time

from _race import arguments, ckpt, race, show

SUPPORT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests", "support")
# In a process of its own: what a process needed before it became another counts as memory of both.
MAKE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from run_helpers import megatron
megatron(Path(sys.argv[1]), steps=(10,), world=8)
"""
PROBE = """
import os, sys
from ckpt_tools.cli import main
def report(*a): sys.stderr.write("loaded: " + " ".join(m for m in ("torch", "numpy", "rich", "fsspec") if m in sys.modules)); os._exit(0)
os.execvpe = report
sys.argv = ["ckpt", "run", sys.argv[1], "--plan-dir", sys.argv[2], "--", "true"]
main()
"""


def until_exec(root: str, plans: str, runs: int) -> list[float]:
    """Seconds from the start of the process to the time that the command it becomes reads from the same
    clock.
    """
    said = []
    for _ in range(runs + 1):
        start = time.clock_gettime(time.CLOCK_BOOTTIME)
        done = subprocess.run(
            [ckpt(), "run", root, "--plan-dir", plans, "-q", "--", "cat", "/proc/uptime"],
            capture_output=True,
            text=True,
            check=True,
        )
        said.append(float(done.stdout.split()[0]) - start)  # hundredths of a second
    return sorted(said[1:])


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(runs=21)
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="ckpt-bench-")
    try:
        root, plans = os.path.join(directory, "run"), os.path.join(directory, "plans")
        subprocess.run([sys.executable, "-c", MAKE, root, SUPPORT], check=True)
        rivals = {
            "ckpt run … -- true": [ckpt(), "run", root, "--plan-dir", plans, "-q", "--", "true"],
            "true": ["true"],
            "import torch": [sys.executable, "-c", "import torch"],
        }
        results = race(rivals, options.runs)
        waits = until_exec(root, plans, options.runs)
        probe = subprocess.run(
            [sys.executable, "-c", PROBE, root, plans], capture_output=True, text=True, check=True
        )
        show(
            "ckpt run on 8 small rank files",
            results,
            "ckpt run … -- true",
            {"import torch": "goal above 5x"},
            options.json,
            seconds_to_exec=f"median {waits[len(waits) // 2]:.2f} (goal under 0.30)",
            heavy_modules_loaded=probe.stderr.rpartition("loaded:")[2].split(),
        )
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
