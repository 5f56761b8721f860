"""Planning from names alone (ckpt plan --level presence) for 1,024 rank folders x 100 checkpoints against the
sample scripts' own glob + sort by getmtime.

    python benchmarks/planning.py [--ranks 1024] [--files 100] [--runs 5] [--growth]

Goals: at most 3 times the glob (ratio at least 0.33), at most one stat per file, under 200 MB. With --growth:
the same for 10^4, 10^5 and 10^6 files; goal: each at most 11 times the one before.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile

from _race import arguments, ckpt, race, show
from listing import GLOB, stats


def tree(root: str, ranks: int, files: int) -> None:
    """Empty names will not do: an empty file is damage. One byte each."""
    for rank in range(ranks):
        os.makedirs(os.path.join(root, f"rank_{rank}"))
        for i in range(files):
            path = os.path.join(root, f"rank_{rank}", f"net-{i // 10 + 1}_{i % 10 + 1}.ckpt")
            with open(path, "wb") as f:
                f.write(b"\n")
            os.utime(path, (1_700_000_000 + i, 1_700_000_000 + i))


def measure(ranks: int, files: int, runs: int, json: bool) -> None:
    """One race on a tree of its own."""
    directory = tempfile.mkdtemp(prefix="ckpt-bench-")
    try:
        root = os.path.join(directory, "run")
        tree(root, ranks, files)
        plan = [ckpt(), "plan", root, "--level", "presence", "--json", "--quiet"]
        results = race(
            {"ckpt plan": plan, "glob + sort by getmtime": [sys.executable, "-c", GLOB, root]}, runs
        )
        few = ranks * files <= 200_000  # a million take strace minutes, and are no different
        calls = stats(plan, os.path.join(directory, "strace.log")) if few else None
        per_file = (
            round(calls / (ranks * files), 4)
            if calls is not None
            else "strace is not installed"
            if few
            else "not counted"
        )
        show(
            f"plan {ranks * files} files",
            results,
            "ckpt plan",
            {"glob + sort by getmtime": "goal at least 0.33x"},
            json,
            stats_per_file=per_file,
        )
    finally:
        shutil.rmtree(directory)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--files", type=int, default=100)
    parser.add_argument(
        "--growth",
        action="store_true",
        help="10^4, 10^5 and 10^6 files in folders of 100 (making the last takes minutes)",
    )
    parser.add_argument("--small", action="store_true", help="with --growth: no 10^6")
    options = parser.parse_args()
    for ranks in (100, 1000, 10_000)[: 2 if options.small else 3] if options.growth else (options.ranks,):
        measure(ranks, options.files, options.runs, options.json)


if __name__ == "__main__":
    main()
