"""Many processes, one checkpoint: what 64 concurrent `ckpt latest --rank i --level content` read together,
and what a second start reads.

    python benchmarks/herd.py [--ranks 64] [--mib 1] [--runs 3] [--json]

Goals: all calls together read at most 1.05 times the checkpoint; a second start with a warm cache reads at
most 1 MB. Bytes are what the calls' JSON says they read (counted at every read of a file); with strace at
hand, what the system says a second start has read below ROOT.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from _race import arguments, ckpt

SETTLED = 0.3
"""Seconds after which a new file is no longer too young to be kept in the cache."""


def tree(root: str, ranks: int, size: int, steps: int) -> int:
    """Real torch files of random numbers; returns the bytes of one checkpoint."""
    import torch

    total = 0
    for step in range(1, steps + 1):
        for rank in range(ranks):
            path = os.path.join(root, f"iter_{step * 10:07d}", f"mp_rank_{rank:02d}", "model_optim_rng.pt")
            os.makedirs(os.path.dirname(path))
            generator = torch.Generator().manual_seed(step * 1000 + rank)
            state = {
                "iteration": step * 10,
                "model": {
                    f"layer{i}.weight": torch.randn(size // 64, generator=generator) for i in range(16)
                },
            }
            torch.save(state, path)
            os.utime(path, (1_700_000_000 + step, 1_700_000_000 + step))
            total += os.path.getsize(path) * (step == steps)
    with open(os.path.join(root, "latest_checkpointed_iteration.txt"), "w", encoding="utf-8") as f:
        f.write(str(steps * 10))
    time.sleep(SETTLED)
    return total


def command(root: str, rank: int, ranks: int) -> list[str]:
    return [
        ckpt(),
        "latest",
        root,
        "--rank",
        str(rank),
        "--tp",
        str(ranks),
        "--world-size",
        str(ranks),
        "--level",
        "content",
        "--json",
    ]


def herd(root: str, ranks: int, env: dict[str, str]) -> tuple[list[dict[str, int]], float]:
    """The answers of one call per rank, all started at once, and the seconds until the last has ended."""
    started = time.perf_counter()
    calls = [
        subprocess.Popen(
            command(root, i, ranks), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
        )
        for i in range(ranks)
    ]
    answers = []
    for call in calls:
        out, err = call.communicate()
        if call.returncode:
            raise SystemExit(f"ckpt latest ended with {call.returncode}: {err}")
        answers.append(json.loads(out))
    return answers, time.perf_counter() - started


def below(root: str, call: list[str], env: dict[str, str], log: str) -> int | None:
    """Bytes that the system delivered from files below ``root``; None without strace."""
    if shutil.which("strace") is None:
        return None
    subprocess.run(
        ["strace", "-f", "-y", "-e", "trace=read,pread64,preadv,preadv2", "-o", log, *call],
        env=env,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    with open(log, encoding="utf-8", errors="replace") as f:
        rows = [re.search(r"\(\d+<([^>]*)>.*= (\d+)$", line) for line in f]
    return sum(int(row[2]) for row in rows if row and row[1].startswith(root + "/"))


def main() -> None:
    parser = arguments(__doc__)
    parser.set_defaults(runs=3)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--mib", type=float, default=1.0, help="size of each rank's file")
    parser.add_argument("--steps", type=int, default=1, help="checkpoints in the tree")
    options = parser.parse_args()
    directory = os.path.realpath(tempfile.mkdtemp(prefix="ckpt-bench-"))
    try:
        root = os.path.join(directory, "run")
        size = tree(root, options.ranks, int(options.mib * (1 << 20)), options.steps)
        rows = []
        for run in range(options.runs):
            env = {**os.environ, "CKPT_CACHE_DIR": os.path.join(directory, f"cache-{run}")}
            answers, cold = herd(root, options.ranks, env)
            again, warm = herd(root, options.ranks, env)
            steps = {a["checkpoint"]["step"] for a in answers + again}
            if steps != {options.steps * 10}:
                raise SystemExit(f"the ranks do not agree: {steps}")
            off = {**env, "CKPT_NO_CACHE": "1"}
            each, alone = herd(root, options.ranks, off)
            real = below(root, command(root, 0, options.ranks), env, os.path.join(directory, "strace.log"))
            rows.append(
                (
                    sum(a["bytes_read"] for a in answers) / size,
                    max(a["bytes_read"] for a in again),
                    real,
                    cold,
                    warm,
                    alone,
                    sum(a["bytes_read"] for a in each) / size,
                )
            )
        facts = {
            "title": (
                f"{options.ranks} concurrent calls, {options.steps} checkpoint(s) of {size / (1 << 20):.1f}"
                " MiB each"
            ),
            "bytes_read_by_all_over_checkpoint": max(row[0] for row in rows),
            "the_same_without_cache": max(row[6] for row in rows),
            "bytes_read_by_a_second_start": max(row[1] for row in rows),
            "bytes_read_by_a_second_start_as_strace_sees_it": rows[-1][2],
            "seconds_cold": statistics.median(row[3] for row in rows),
            "seconds_warm": statistics.median(row[4] for row in rows),
            "seconds_without_cache": statistics.median(row[5] for row in rows),
        }
        if options.json:
            print(json.dumps(facts))
            return
        print(
            f"{facts['title']}   [{os.cpu_count()} CPUs, Python {sys.version.split()[0]}; worst of"
            f" {options.runs} runs, times are medians]"
        )
        print(
            "  read by all calls / bytes of the checkpoint "
            f" {facts['bytes_read_by_all_over_checkpoint']:8.3f}   goal at most 1.05; --no-cache"
            f" {facts['the_same_without_cache']:.1f}"
        )
        print(
            f"  read by a second start                       {facts['bytes_read_by_a_second_start']:8,} bytes"
            "   goal at most 1,000,000"
        )
        print(
            "  the same below ROOT, as strace sees it      "
            f" {rows[-1][2] if rows[-1][2] is not None else 'strace is not installed':>8} bytes"
        )
        print(
            f"  all calls: cold {facts['seconds_cold']:.2f} s, warm {facts['seconds_warm']:.2f} s, --no-cache"
            f" {facts['seconds_without_cache']:.2f} s"
        )
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
