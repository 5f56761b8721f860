"""What ``ckpt watch`` costs: memory over many checkpoints, and CPU while nothing happens.

    python benchmarks/watch.py [--checkpoints 10000] [--saves 10000] [--idle 60]

A tree of that many small checkpoints is verified by the real command and then left alone; then a run that
keeps its ten newest is watched for that many saves, a pass for each, in one process.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests/support"))

import small_files

from ckpt_tools.guard.watch import WatchOptions
from ckpt_tools.guard.watch.root import WatchedRoot
from ckpt_tools.model.selection import ReadOptions

KEPT = 10
_TICKS = os.sysconf("SC_CLK_TCK")


def rss(pid: int | str = "self") -> int:
    """MiB of memory that a process has."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) >> 10


def cpu(pid: int) -> float:
    """Seconds of CPU that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def save(root: Path, step: int) -> None:
    path = root / f"iter_{step:07d}/mp_rank_00/model_optim_rng.pt"
    path.parent.mkdir(parents=True)
    path.write_bytes(small_files.megatron(step, 0, 1, 1, 1))
    small_files.megatron.cache_clear()  # or this process would keep them all
    at = 1_700_000_000 + step * 60
    os.utime(path, (at, at))
    (root / "latest_checkpointed_iteration.txt").write_text(str(step))


def many(home: Path, count: int, idle: float) -> None:
    root, env = home / "many", {**os.environ, "XDG_STATE_HOME": str(home / "state")}
    root.mkdir()
    for step in range(1, count + 1):
        save(root, step)
    command = [sys.executable, "-m", "ckpt_tools", "watch", root, "--settle", "0s"]
    started, told = time.perf_counter(), 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdout
        for line in process.stdout:
            event = json.loads(line)
            told += event["type"] == "checkpoint"
            if told % (count // 4) == 0 and event["type"] == "checkpoint":
                print(f"{told:6,} verified: {rss(process.pid)} MiB", flush=True)
            if event["type"] == "pass" and not event["checkpoints"]["waiting"]:
                break
        took = time.perf_counter() - started
        print(f"{count:,} checkpoints in {took:.0f} s ({1000 * took / count:.0f} ms each)", flush=True)
        before, clock = cpu(process.pid), time.monotonic()
        time.sleep(idle)
        used, over = cpu(process.pid) - before, time.monotonic() - clock
        print(f"idle for {over:.0f} s: {used:.2f} s of CPU; {rss(process.pid)} MiB", flush=True)
        process.terminate()


def saves(home: Path, count: int) -> None:
    root, seen = home / "kept", list[object]()
    root.mkdir()
    os.environ["XDG_STATE_HOME"], os.environ["CKPT_CACHE_DIR"] = str(home / "state"), str(home / "cache")
    read = ReadOptions(jobs=1, settle=0.0, cache=True)
    watched = WatchedRoot(str(root), WatchOptions(read=read), lambda e: seen.append(e.type))
    with watched.records.hold():
        for step in range(1, count + 1):
            save(root, step)
            if step > KEPT:
                shutil.rmtree(root / f"iter_{step - KEPT:07d}")
            watched.look()
            watched.records.save()
            if step % (count // 10) == 0 or step == 100:
                print(f"{step:6,} saves: {rss()} MiB, {seen.count('checkpoint'):,} told of", flush=True)
                seen[:] = ["checkpoint"] * seen.count("checkpoint")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--checkpoints", type=int, default=10_000)
    parser.add_argument("--saves", type=int, default=10_000)
    parser.add_argument("--idle", type=float, default=60.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ckpt-watch-") as home:
        if asked.checkpoints:
            many(Path(home), asked.checkpoints, asked.idle)
        if asked.saves:
            saves(Path(home), asked.saves)


if __name__ == "__main__":
    main()
