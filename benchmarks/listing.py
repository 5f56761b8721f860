"""Listing 1,024 rank folders x 100 files: ckpt ls against the sample scripts' own glob + sort by getmtime,
whole processes; system calls by strace.

    python benchmarks/listing.py [--ranks 1024] [--files 100] [--runs 5]

Goals: at most 3 times the glob (ratio at least 0.33), at most one stat per file.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile

from _race import arguments, ckpt, race, show

GLOB = (
    "import glob, os, sys; print(sorted(glob.glob(sys.argv[1] + '/rank_*/*.ckpt'), key=os.path.getmtime)[-1])"
)


def stats(command: list[str], log: str) -> int | None:
    """How many stat-like system calls a command makes; None without strace."""
    if not shutil.which("strace"):
        return None
    calls = ["strace", "-f", "-qq", "-e", "trace=stat,lstat,newfstatat,statx,fstat", "-o", log, *command]
    subprocess.run(calls, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    with open(log) as f:
        return sum(bool(re.search(r"\.ckpt\"", line)) for line in f)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--files", type=int, default=100)
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="ckpt-bench-")
    try:
        root = os.path.join(directory, "run")
        for rank in range(options.ranks):
            os.makedirs(os.path.join(root, f"rank_{rank}"))
            for i in range(options.files):
                path = os.path.join(root, f"rank_{rank}", f"net-{i // 10 + 1}_{i % 10 + 1}.ckpt")
                open(path, "w").close()
                os.utime(path, (1_700_000_000 + i, 1_700_000_000 + i))
        rivals = {
            "ckpt ls": [ckpt(), "ls", root, "--json"],
            "glob + sort by getmtime": [sys.executable, "-c", GLOB, root],
        }
        results = race(rivals, options.runs)
        files, calls = (
            options.ranks * options.files,
            stats(rivals["ckpt ls"], os.path.join(directory, "strace.log")),
        )
        per_file = "strace is not installed" if calls is None else round(calls / files, 4)
        show(
            f"list {files} files",
            results,
            "ckpt ls",
            {"glob + sort by getmtime": "goal at least 0.33x"},
            options.json,
            stats_per_file=per_file,
        )
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
