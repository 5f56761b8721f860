"""Libraries in C that are preloaded into commands, and the process that runs one command after the other with one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from places import ROOT, SUPPORT
from typing_extensions import Self

CLEAN = {k: v for k, v in os.environ.items() if not k.startswith(("CKPT_", "SLURM_", "OMPI_", "PMI"))}


@cache
def compiled(name: str) -> str:
    """The library, compiled into the directory that the tests keep their state in."""
    out = os.path.join(os.environ["XDG_CACHE_HOME"], f"{name}-{os.getpid()}.so")
    flags = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    line = ["cc", *flags, "-o", out, str(SUPPORT / f"{name}.c"), "-ldl"]
    subprocess.run(line, check=True, timeout=1000)
    return out


@dataclass(frozen=True)
class Ended:
    """How a command ended (negative: by that signal), and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def body(self) -> dict[str, Any]:
        return json.loads(self.out) if self.out.lstrip().startswith("{") else {}


class Child:
    """A process with a library preloaded, which answers each line by one, until it is closed."""

    def __init__(self, library: str, script: str, cwd: Path | None = None) -> None:
        env = {**CLEAN, "LD_PRELOAD": compiled(library), "PYTHONPATH": str(ROOT)}
        env |= {"CKPT_NO_CACHE": "1", "CKPT_JOBS": "1"}
        line = [sys.executable, str(SUPPORT / f"{script}.py")]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(line, env=env, cwd=cwd, text=True, **pipes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def say(self, value: object) -> str:
        """What it answers to a value."""
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()

    def close(self) -> None:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.close()
        self.process.wait(1000)
        self.process.stdout.close()
