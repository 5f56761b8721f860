"""A real Dask scheduler and real worker processes on this machine, for one test or for many."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import warm
from places import ROOT, SUPPORT
from run_helpers import CLEAN

RUN = (
    "import sys; from ckpt_tools.reading import scheduler; scheduler.BATCH = {batch}; from ckpt_tools.reading"
    " import engines; engines.GRACE = {grace}; from ckpt_tools.cli import main; main()"
)


class Cluster:
    """``workers`` are processes of one thread each, without a nanny that would start them again."""

    def __init__(self, tmp: Path, workers: int = 2, **env: str) -> None:
        self.file, self.notes, self.tmp = tmp / "scheduler.json", tmp / "notes", tmp
        self.notes.mkdir()
        own = {"NOTES": str(self.notes), "PYTHONPATH": str(ROOT), "CKPT_CACHE_DIR": str(tmp / "cache")}
        self.env = {**CLEAN, **own, **env}
        self.workers: list[subprocess.Popen[bytes]] = []
        here = ["--host=127.0.0.1", "--port=0", "--dashboard-address=127.0.0.1:0"]
        self.scheduler = self._start("scheduler", *here)
        try:
            self.until(self.file.exists)
            for _ in range(workers):
                self.add()
            self.until(lambda: len(list(self.notes.iterdir())) == workers)
        except BaseException:
            self.close()
            raise

    def add(self) -> None:
        alone = ["--nthreads=1", "--no-nanny", "--memory-limit=0", f"--local-directory={self.tmp}"]
        self.workers.append(self._start("worker", *alone, f"--preload={SUPPORT / 'slow_reads.py'}"))

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        line = [sys.executable, "-m", "dask", *words, "--no-dashboard", f"--scheduler-file={self.file}"]
        with open(self.tmp / f"{words[0]}.log", "ab") as log:
            return subprocess.Popen(line, env=self.env, stdout=log, stderr=log)

    def until(self, true: object, seconds: float = 1000.0) -> None:
        ends = time.monotonic() + seconds
        while not true():  # type: ignore[operator]
            assert time.monotonic() < ends and self.scheduler.poll() is None, "".join(
                p.read_text() for p in self.tmp.glob("*.log")
            )
            time.sleep(0.02)

    def reads(self) -> dict[int, list[tuple[str, int, int]]]:
        """By process: (path, offset, length) of what it has read."""
        out = defaultdict(list)
        for p in self.notes.iterdir():
            for line in p.read_text().splitlines():
                path, offset, length = line.rsplit(" ", 2)
                out[int(p.name)].append((path, int(offset), int(length)))
        return out

    def forget_reads(self) -> None:
        for p in self.notes.iterdir():
            os.truncate(p, 0)  # a worker writes at its end, wherever that is

    def begin(self, *words: str, batch: int = 256 << 20, grace: float = 60.0) -> subprocess.Popen[str]:
        """``ckpt`` with these words, asking these workers, with batches of so many bytes."""
        code = RUN.format(batch=batch, grace=grace)
        asked = [sys.executable, "-c", code, *words, "--scheduler", f"file:{self.file}"]
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(asked, env=self.env, **pipes)

    def run(self, *words: str, batch: int = 256 << 20, grace: float = 60.0) -> tuple[int, str, str]:
        process = self.begin(*words, batch=batch, grace=grace)
        out, err = process.communicate(timeout=1000)
        return process.returncode, out, err

    def close(self) -> None:
        for process in [*self.workers, self.scheduler]:
            process.kill()
            process.wait()


def alone(*words: str, cache: str) -> tuple[int, str, str]:
    """The same by this machine alone."""
    done = warm.completed(words, {**CLEAN, "CKPT_CACHE_DIR": cache})
    return done.returncode, done.stdout, done.stderr


def without_time(text: str) -> str:
    """An answer without the only thing in it that no two runs share."""
    import re

    return re.sub(r'"seconds": [0-9.e-]+', "", text, count=1)
