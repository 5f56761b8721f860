"""Engines of ``--scheduler``: threads, a real Dask scheduler with real worker processes on this machine, and mpirun."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import warm
from places import FIXTURES, ROOT, SUPPORT
from run_helpers import CLEAN
from slurm_cluster import needs

MIB = 1 << 20
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
    return re.sub(r'"seconds": [0-9.e-]+', "", text, count=1)


class Threads(ThreadPoolExecutor):
    """An engine whose workers are threads here. ``before`` is called with the files of a unit before it is
    worked on; what was sent is kept as a pickle.
    """

    def __init__(self, before: Callable[[Any], object] = lambda _: None) -> None:
        super().__init__(3)
        self.before, self.sent = before, list[bytes]()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.sent.append(pickle.dumps(args))
        self.before(args[1])
        return super().submit(fn, *args, **kwargs)


def big(path: Path, megabytes: int = 64) -> Path:
    torch.manual_seed(1)
    torch.save({"step": 3, "model": {f"layer{i}": torch.randn(megabytes, 4096) for i in range(64)}}, path)
    return path


def not_its_own_crash(line: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """What the ranks answered. Open MPI 4.1.4 with PMIx 4.2.2, Debian 12's, at times dies of SIGSEGV in
    PMIx_server_finalize when all ranks have ended: then nobody knows their exit code, and they are asked
    again. A rank that dies of a signal is 128 + its number, so it is never taken for mpirun.
    """
    words = []
    for _ in range(5):
        done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=1000)
        if done.returncode >= 0:
            return done
        words.append(f"mpirun ended by signal {-done.returncode}:\n{done.stderr}")
    pytest.fail("\n".join(words), pytrace=False)


def mpirun(*words: str, tmp: Path, ranks: int = 3) -> subprocess.CompletedProcess[str]:
    needs("mpirun")
    as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    env = {**CLEAN, "PYTHONPATH": str(FIXTURES.parent), "CKPT_CACHE_DIR": str(tmp), "OMP_NUM_THREADS": "1"}
    line = ["mpirun", *as_root, "--oversubscribe", "-n", str(ranks), sys.executable, "-m", "mpi4py.futures"]
    return not_its_own_crash([*line, "-m", "ckpt_tools", *words, "--scheduler", "mpi"], env)
