"""Verifying with two Dask workers against one, beside two plain processes against one that read the same
files.

    python benchmarks/many.py [--files 16] [--mib 512] [--runs 5] [--rate 500]

Goals: the gain from the second worker at least 0.85 of that which reading alone has from a second process; at
least 1.8 where each worker reads at most ``--rate`` MB/s. Workers have one thread each; they run all the
time, and what is measured is ``ckpt verify`` as a whole process, without and with the time that it needs
before it can ask anybody (measured on an empty directory).
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from _race import arguments, once
from verify_file import MAKE

READ = """
import os, sys
buffer = bytearray(512 * 1024)
for path in sys.argv[1:]:
    fd = os.open(path, os.O_RDONLY)
    for at in range(0, os.fstat(fd).st_size, len(buffer)):
        os.preadv(fd, [buffer], at)
"""
SLOW = """
import os, time
from ckpt_tools import storage
if not hasattr(storage, "unlimited"):  # Dask loads it twice
    rate, due, storage.unlimited = float(os.environ["RATE"]), [0.0], storage.LocalSource.readinto
    def readinto(self, offset, buffer):
        storage.unlimited(self, offset, buffer)
        due[0] = max(due[0], time.monotonic() - 0.05) + len(buffer) / rate
        time.sleep(max(0.0, due[0] - time.monotonic()))
    storage.LocalSource.readinto = readinto
"""


class Workers:
    """A Dask scheduler and ``count`` workers of one thread, each with at most ``rate`` bytes per second."""

    def __init__(self, directory: str, count: int, rate: float | None) -> None:
        self.file = os.path.join(directory, f"scheduler-{count}-{rate}.json")
        slow = os.path.join(directory, "slow_reader.py")
        with open(slow, "w") as f:
            f.write(SLOW)
        self.processes = [
            self._start(
                "scheduler",
                "--host",
                "127.0.0.1",
                "--port",
                "0",
                "--dashboard-address",
                "127.0.0.1:0",
                "--scheduler-file",
                self.file,
            )
        ]
        while not os.path.exists(self.file):
            time.sleep(0.05)
        limit = ["--preload", slow] if rate else []
        env = {**os.environ, "RATE": str(rate)}
        more = [
            "--scheduler-file",
            self.file,
            "--nthreads",
            "1",
            "--no-nanny",
            "--no-dashboard",
            "--memory-limit",
            "0",
            "--local-directory",
            directory,
        ]
        self.processes += [self._start("worker", *more, *limit, env=env) for _ in range(count)]
        probe = (
            f"from distributed import Client; Client(scheduler_file={self.file!r}).wait_for_workers({count})"
        )
        subprocess.run(
            [sys.executable, "-c", probe], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def _start(self, *words: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "dask", *words],
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def verify(self, path: str) -> list[str]:
        return [
            sys.executable,
            "-m",
            "ckpt_tools",
            "verify",
            path,
            "--quiet",
            "--no-cache",
            "--scheduler",
            f"file:{self.file}",
        ]

    def close(self) -> None:
        for process in reversed(self.processes):
            process.kill()
            process.wait()


def together(commands: Sequence[Sequence[str]]) -> float:
    """Wall seconds of processes side by side."""
    started = time.perf_counter()
    processes = [subprocess.Popen(c) for c in commands]
    if any([p.wait() for p in processes]):  # noqa: C419 - all of them are waited for
        raise SystemExit("reading failed")
    return time.perf_counter() - started


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--files", type=int, default=16)
    parser.add_argument("--mib", type=float, default=512)
    parser.add_argument("--rate", type=float, default=500)
    options = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="ckpt-bench-")
    engines: list[Workers] = []
    try:
        root, empty = os.path.join(directory, "run"), os.path.join(directory, "small")
        os.makedirs(root)
        os.makedirs(empty)
        files = [os.path.join(root, f"model-{i}.pt") for i in range(options.files)]
        os.spawnl(os.P_WAIT, sys.executable, sys.executable, "-c", MAKE, files[0], str(options.mib / 1024))
        for path in files[1:]:
            shutil.copyfile(files[0], path)
        os.spawnl(
            os.P_WAIT, sys.executable, sys.executable, "-c", MAKE, os.path.join(empty, "a.pt"), "0.0001"
        )
        seconds: dict[str, list[float]] = {}
        kinds = [(count, rate) for rate in (None, options.rate * 1e6) for count in (1, 2)]
        engines = [Workers(directory, *kind) for kind in kinds]
        names = ["one worker", "two workers", "one limited worker", "two limited workers"]
        for turn in range(options.runs + 1):
            took = {
                f"{n} reading": together([[sys.executable, "-c", READ, *files[i::n]] for i in range(n)])
                for n in (1, 2)
            }
            for name, e in zip(names, engines, strict=True):
                took[f"{name}, start"] = once(e.verify(empty))[0]
                took[name], _, code = once(e.verify(root))
                if code:
                    raise SystemExit(f"ckpt verify ended with {code}")
            for name, s in took.items() if turn else ():
                seconds.setdefault(name, []).append(s)
        show(options, seconds, sum(map(os.path.getsize, files)))
    finally:
        for e in engines:
            e.close()
        shutil.rmtree(directory)


def show(options: object, seconds: dict[str, list[float]], size: int) -> None:
    # Each turn is a ratio of its own, so that what the machine does meanwhile hits both sides.
    def gain(one: str, two: str, net: bool = True) -> float:
        rows = zip(
            seconds[one],
            seconds[two],
            *([seconds[f"{one}, start"], seconds[f"{two}, start"]] if net else ()),
            strict=True,
        )
        return statistics.median((a - (s[0] if s else 0)) / (b - (s[1] if s else 0)) for a, b, *s in rows)

    reading = gain("1 reading", "2 reading", net=False)
    facts = {
        "gb": round(size / 1e9, 2),
        "gain of reading": round(reading, 2),
        "gain of workers": round(gain("one worker", "two workers"), 2),
        "of that of reading (goal 0.85)": round(gain("one worker", "two workers") / reading, 2),
        "gain with limited workers (goal 1.8)": round(gain("one limited worker", "two limited workers"), 2),
        "the same with the start": round(gain("one limited worker", "two limited workers", net=False), 2),
        "load": os.getloadavg()[0],
    }
    rows = {
        name: {"median": statistics.median(s), "best": min(s), "rss_mb": 0.0} for name, s in seconds.items()
    }
    machine = f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}"
    if getattr(options, "json", False):
        ratio = {name: r["median"] / rows["two workers"]["median"] for name, r in rows.items()}
        print(
            json.dumps(
                {
                    "title": f"verify {facts['gb']} GB by Dask workers of one thread",
                    "machine": machine,
                    "results": rows,
                    "ratio": ratio,
                    "goals": {},
                    **facts,
                }
            )
        )
        return
    print(f"verify {facts['gb']} GB, warm   [{machine}]")
    for name, r in rows.items():
        rate = "" if name.endswith("start") else f"{size / 1e9 / r['median']:7.2f} GB/s"
        print(f"  {name:32} {r['median']:8.3f} s  best {r['best']:8.3f} s {rate}")
    for name, value in facts.items():
        print(f"  {name}: {value}")


if __name__ == "__main__":
    main()
