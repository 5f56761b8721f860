"""A real Slurm of its own on this machine, as a user meets it: sbatch, srun and scontrol, on two nodes.

A keeper (slurm_keeper.py) starts its daemons and ends them. Tried with Slurm 22.05.8 and munge 0.5.15 of
Debian 12, as root and as an ordinary user.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from places import SUPPORT

PACKAGES = "slurm-wlm munge openmpi-bin gcc libc6-dev prometheus"
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
"""Where the daemons are: an ordinary user's PATH lacks these two on Debian."""
_ENDED = (
    "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "DEADLINE", "PREEMPTED",
)  # fmt: skip


def needs(*commands: str) -> None:
    """Fail, not skip: without them nobody has seen that it works."""
    missing = [name for name in commands if shutil.which(name, path=PATH) is None]
    if missing:
        pytest.fail(
            f"not installed: {', '.join(missing)}. These tests run the real ones: apt-get install {PACKAGES}",
            pytrace=False,
        )


class Slurm:
    """The cluster, as a user meets it: ``sbatch``, ``srun`` and ``scontrol``."""

    def __init__(self) -> None:
        needs("munged", "slurmctld", "slurmd", "slurmstepd", "sbatch", "srun", "scontrol", "sinfo")
        # A socket's name may have 107 bytes, and user munge must come through: so not below the directories
        # of pytest.
        self.home = Path(tempfile.mkdtemp(prefix="ckpt-slurm-"))
        self.home.chmod(0o711)
        line = [sys.executable, SUPPORT / "slurm_keeper.py", self.home]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        env = {**os.environ, "PATH": PATH}
        self.keeper = subprocess.Popen(line, env=env, start_new_session=True, **pipes)
        assert self.keeper.stdout
        if (said := self.keeper.stdout.readline()) != "ready\n":
            said += self.keeper.stdout.read()
            self.stop()
            pytest.fail(f"Slurm does not start: {said}", pytrace=False)

    def stop(self) -> None:
        assert self.keeper.stdin
        self.keeper.stdin.close()
        self.keeper.wait(1000)
        assert self.keeper.stdout
        self.keeper.stdout.close()

    def env(self, env: Mapping[str, str]) -> dict[str, str]:
        return {**env, "SLURM_CONF": f"{self.home}/slurm.conf"}

    def run(self, *words: object, env: Mapping[str, str] = os.environ) -> str:
        """What a command of Slurm's prints."""
        done = subprocess.run(
            [str(w) for w in words], env=self.env(env), capture_output=True, text=True, timeout=1000
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def submit(
        self, script: str, cwd: Path, env: Mapping[str, str], options: Sequence[str] = ("-N1", "-n2")
    ) -> Batch:
        """Hand a batch script to sbatch, as a file in ``cwd``."""
        file = cwd / f"{secrets.token_hex(4)}.sbatch"
        file.write_text(script if script.startswith("#!") else f"#!/bin/bash\n{script}")
        out = file.with_suffix(".out")
        where = [f"--chdir={cwd}", f"--output={out}", "--open-mode=append"]
        number = self.run("sbatch", "--parsable", *where, *options, file, env=env)
        return Batch(self, number.strip(), out)


class Batch:
    """One job of sbatch."""

    def __init__(self, slurm: Slurm, number: str, out: Path) -> None:
        self.slurm, self.number, self.out = slurm, number, out

    def show(self) -> dict[str, str]:
        """``scontrol show job``: it knows a job that has ended for five minutes (MinJobAge), without
        accounting.
        """
        return dict(re.findall(r"(\w+)=(\S*)", self.slurm.run("scontrol", "-o", "show", "job", self.number)))

    def wait(self, timeout: float = 1000, until: Path | None = None) -> str:
        """The job's exit code when it has ended, as Slurm writes it: "4:0" is exit code 4 and no signal. Or
        "" as soon as a file is there.
        """
        end = time.monotonic() + timeout
        while True:
            if until and until.exists():
                return ""
            seen = self.show()
            if seen["JobState"] in _ENDED:
                assert until is None, f"{until} did not appear\n{self.said}"
                return seen["ExitCode"]
            state = f"{seen['JobState']} ({seen.get('Reason')})"
            assert time.monotonic() < end, f"still {state} after {timeout:g} s\n{self.said}{self.slurm_logs}"
            time.sleep(0.2)

    @property
    def said(self) -> str:
        """Its stdout and stderr, those of its tasks too."""
        return self.out.read_text() if self.out.exists() else ""

    @property
    def slurm_logs(self) -> str:
        return "".join(f"\n{p.name}: {p.read_text()[-1500:]}" for p in sorted(self.slurm.home.glob("*.log")))
