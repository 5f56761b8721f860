"""Verifying one large warm torch file against reading alone: in this process, so that start-up does not count,
and as whole processes.

    python benchmarks/io.py [--gib 4] [--runs 5] [--rivals]

"Reading alone" is preadv into one buffer per thread and nothing else, with as many threads as we use; the
better of 256 KiB, 1 MiB and 2 MiB buffers.
Goal: 0.85 of its speed. With --rivals also zipfile -t (4x), torch.load (12x),
unzip -t (40x), sha256sum (25x), once each.
CPU seconds tell more than wall time where other work runs on the machine.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable

from _race import arguments, ckpt, once
from verify_file import MAKE

from ckpt_tools.inspection.check import inspect
from ckpt_tools.model.finding import Verdict
from ckpt_tools.model.report import Level
from ckpt_tools.storage.stalls import default_jobs

KIB = 1024


def alone(path: str, step: int) -> None:
    """Read the file and do nothing with it."""
    fd, threads = os.open(path, os.O_RDONLY), default_jobs()
    size = os.fstat(fd).st_size

    def read(i: int) -> None:
        buffer = mmap.mmap(-1, step)
        for at in range(size * i // threads, size * (i + 1) // threads, step):
            os.preadv(fd, [buffer], at)

    workers = [threading.Thread(target=read, args=(i,)) for i in range(threads)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    os.close(fd)


def ours(path: str) -> None:
    report = inspect(path, Level.CONTENT)[0]
    if report.verdict is not Verdict.OK or report.level is not Level.CONTENT:
        raise SystemExit(f"{path}: {report.verdict}")


def timed(work: Callable[[], None]) -> tuple[float, float]:
    """(wall, CPU) seconds."""
    wall, before = time.perf_counter(), spent()
    work()
    return time.perf_counter() - wall, spent() - before


def spent() -> float:
    return sum(
        u.ru_utime + u.ru_stime
        for u in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def within(path: str, runs: int) -> dict[str, dict[str, float]]:
    """Median and best of everybody, in turn, in this process."""
    work: dict[str, Callable[[], None]] = {
        f"preadv alone, {k} KiB": lambda k=k: alone(path, k * KIB) for k in (256, 1024, 2048)
    }  # type: ignore[misc]
    work["ckpt's reading"] = lambda: ours(path)
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in work}
    for turn in range(runs + 1):
        for name, do in work.items():
            one = timed(do)
            if turn:
                took[name].append(one)
    return {
        name: {
            "wall": statistics.median(t[0] for t in all_),
            "best": min(t[0] for t in all_),
            "cpu": statistics.median(t[1] for t in all_),
        }
        for name, all_ in took.items()
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument("--rivals", action="store_true")
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="ckpt-bench-")
    try:
        path = os.path.join(directory, "model.pt")
        subprocess.run([sys.executable, "-c", MAKE, path, str(options.gib)], check=True)
        size = os.path.getsize(path)
        results = within(path, options.runs)
        base = min((r for n, r in results.items() if "alone" in n), key=lambda r: r["wall"])
        best, cpu = (min(r[k] for n, r in results.items() if "alone" in n) for k in ("best", "cpu"))
        rows = {
            n: {
                **r,
                "speed": size / r["wall"],
                "of_alone": base["wall"] / r["wall"],
                "of_alone_best": best / r["best"],
                "of_alone_cpu": cpu / r["cpu"],
            }
            for n, r in results.items()
        }
        commands = {"ckpt verify": [ckpt(), "verify", path, "-q", "--no-cache"]}
        if options.rivals:
            commands |= {
                "python -m zipfile -t": [sys.executable, "-m", "zipfile", "-t", path],
                "torch.load": [
                    sys.executable,
                    "-c",
                    f"import torch; torch.load({path!r}, weights_only=True)",
                ],
            }
            commands |= {
                tool: [tool, *more, path]
                for tool, *more in (("sha256sum",), ("unzip", "-tqq"))
                if shutil.which(tool)
            }
        whole = {
            n: [once(c) for _ in range(options.runs if n.startswith("ckpt") else 1)]
            for n, c in commands.items()
        }
        processes = {
            n: {"wall": statistics.median(t[0] for t in all_), "rss_mb": max(t[1] for t in all_) / 1e6}
            for n, all_ in whole.items()
        }
        if options.json:
            results = {n: {"median": r["wall"], "best": r["best"], "rss_mb": 0.0} for n, r in rows.items()}
            title = f"read {size / 2**30:.2f} GiB torch zip in process, warm; ratio: speed of reading alone"
            goals = {"ckpt's reading": "goal 0.85x"}
            gb = {n: round(r["speed"] / 1e9, 2) for n, r in rows.items()}
            best = {n: round(r["of_alone_best"], 2) for n, r in rows.items() if n.startswith("ckpt")}
            whole_s = {n: round(p["wall"], 3) for n, p in processes.items()}
            ratio = {n: r["of_alone"] for n, r in rows.items()}
            print(
                json.dumps(
                    {
                        "title": title,
                        "results": results,
                        "ratio": ratio,
                        "goals": goals,
                        "gb_per_s": gb,
                        "ratio_of_best_times": best,
                        "whole_processes": whole_s,
                    }
                )
            )
            return
        print(f"{size / 2**30:.2f} GiB, {default_jobs()} threads, load {os.getloadavg()[0]:.1f}")
        for n, r in rows.items():
            print(
                f"  {n:24} {r['wall']:7.3f} s  best {r['best']:7.3f} s  CPU {r['cpu']:6.3f} s "
                f" {r['speed'] / 1e9:6.2f} GB/s  of reading alone: {r['of_alone']:.2f} (best"
                f" {r['of_alone_best']:.2f}, CPU {r['of_alone_cpu']:.2f})"
            )
        for n, p in processes.items():
            print(
                f"  {n:24} {p['wall']:7.3f} s  {p['rss_mb']:6.0f} MB "
                f" {p['wall'] / processes['ckpt verify']['wall']:.1f}x the time of ckpt verify"
            )
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
