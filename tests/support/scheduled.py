"""What tests of ``--scheduler`` share: an engine of threads, files worth cutting, and mpirun."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from places import FIXTURES
from run_helpers import CLEAN
from slurm_cluster import needs

MIB = 1 << 20


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
