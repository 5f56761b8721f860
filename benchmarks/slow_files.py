"""Planning from names alone where each file system call takes 1 ms more (a busy network file system): ckpt
plan against the sample scripts' glob + sort by getmtime.

    python benchmarks/slow_files.py [--ranks 1024] [--files 100] [--runs 3] [--ms 1]

Goal: at most 0.6 times the glob (ratio at least 1.67). The delay is added to both by a library that
LD_PRELOAD puts before the C library, made here with gcc; it also slows the imports of both.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile

from _race import arguments, ckpt, race, show
from listing import GLOB
from planning import tree

HERE = os.path.dirname(os.path.abspath(__file__))


def library(directory: str) -> str | None:
    """The delaying library, compiled; None without a compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    path = os.path.join(directory, "slow_calls.so")
    subprocess.run(
        [compiler, "-O2", "-w", "-shared", "-fPIC", "-o", path, os.path.join(HERE, "_slow_calls.c"), "-ldl"],
        check=True,
    )
    return path


def measure(ranks: int, files: int, runs: int, ms: float) -> dict[str, dict[str, float]] | None:
    """One race on a tree of its own; None where the delay cannot be added."""
    directory = tempfile.mkdtemp(prefix="ckpt-bench-")
    try:
        slow, root = library(directory), os.path.join(directory, "run")
        if slow is None:
            return None
        tree(root, ranks, files)
        late = ["env", f"LD_PRELOAD={slow}", f"CKPT_SLOW_US={ms * 1000:.0f}"]
        plan = [ckpt(), "plan", root, "--level", "presence", "--json", "--quiet"]
        return race(
            {
                "ckpt plan": [*late, *plan],
                "glob + sort by getmtime": [*late, sys.executable, "-c", GLOB, root],
            },
            runs,
        )
    finally:
        shutil.rmtree(directory)


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(runs=3)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument("--ms", type=float, default=1.0, help="milliseconds added to every call")
    options = parser.parse_args()
    results = measure(options.ranks, options.files, options.runs, options.ms)
    if results is None:
        raise SystemExit("there is no C compiler to make the delay with")
    title = f"plan {options.ranks * options.files} files, {options.ms:g} ms added to every call"
    show(title, results, "ckpt plan", {"glob + sort by getmtime": "goal at least 1.67x"}, options.json)


if __name__ == "__main__":
    main()
