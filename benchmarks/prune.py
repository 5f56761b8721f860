"""How fast ``ckpt prune`` deletes what it has moved away, beside ``rm -rf`` of the same tree: python benchmarks/prune.py
[--files 100000] [--dir DIR] [--rounds 3].

Each round makes the tree anew, once for each of the two, and takes turns in who is first. The checkpoint is gone from its
tree before, by one rename; the time of that is said beside it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import median

from ckpt_tools.guard.journal import Step
from ckpt_tools.guard.tree import Tree


def made(root: Path, files: int, directories: int, size: int) -> Path:
    """A directory of that many files, spread over directories."""
    data = os.urandom(size)
    for n in range(directories):
        home = root / f"checkpoint/part_{n:05d}"
        home.mkdir(parents=True)
        for at in range(files // directories):
            (home / f"shard_{at:06d}.bin").write_bytes(data)
    os.sync()
    return root / "checkpoint"


def ours(root: Path) -> tuple[float, float]:
    """Seconds until it is out of sight, and until it is gone."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    tree, started = Tree(str(root), fd), time.perf_counter()
    Step("checkpoint", ".ckpt/trash/000001/checkpoint").plan(tree).do(tree)
    moved = time.perf_counter()
    assert not tree.remove_below(".ckpt/trash")
    os.close(fd)
    return moved - started, time.perf_counter() - started


def rm(root: Path) -> float:
    started = time.perf_counter()
    subprocess.run(["rm", "-rf", str(root / "checkpoint")], check=True)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=4096, help="bytes of each")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", default=None, help="where, which says on what file system")
    asked = parser.parse_args()
    for directories in (1, 100, 10_000):
        seen: list[tuple[float, float, float]] = []
        for turn in range(asked.rounds):
            times: dict[str, tuple[float, ...]] = {}
            for who in ("ours", "rm")[:: 1 if turn % 2 else -1]:
                with tempfile.TemporaryDirectory(dir=asked.dir) as home:
                    root = Path(home)
                    made(root, asked.files, directories, asked.size)
                    times[who] = ours(root) if who == "ours" else (rm(root),)
            seen.append((*times["ours"], times["rm"][0]))  # type: ignore[arg-type]
        sight, gone, theirs = (median(row[n] for row in seen) for n in range(3))
        print(
            f"{asked.files:,} files in {directories:,} directories: out of sight in {sight * 1000:.1f} ms,"
            f" gone in {gone:.2f} s ({asked.files / gone:,.0f} files/s); rm -rf {theirs:.2f} s"
            f" ({asked.files / theirs:,.0f} files/s)"
        )


if __name__ == "__main__":
    main()
