"""Two nodes with disks of their own that agree on a checkpoint."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from run_helpers import CKPT, CLEAN, SAY, ckpt, megatron
from slurm_keeper import free_ports

WORLD = 4


def free_port() -> int:
    return free_ports(1)[0]


class Nodes:
    """Two nodes: node 0 runs the ranks 0 and 1, node 1 the ranks 2 and 3, and each disk holds the files of
    its ranks only.
    """

    def __init__(self, tmp: Path, steps: Sequence[int] = (10, 20)) -> None:
        ranks = {tmp / "disk-0": (0, 1), tmp / "disk-1": (2, 3)}
        self.disks = [megatron(disk, steps=steps, world=WORLD, ranks=own) for disk, own in ranks.items()]
        self.shared, self.tmp, self.world = tmp / "shared", tmp, WORLD

    def line(
        self, n: int, *options: str, command: Sequence[str] = SAY, meet: str = ""
    ) -> tuple[list[str], dict[str, str]]:
        """The words of one node's command, and its own environment."""
        where = {"": ["--plan-dir", str(self.shared)], "own": []}.get(meet, ["--rendezvous", meet])
        told = {"job": "j", "nodes": 2, "node": n, "world-size": self.world, "timeout": 1000}
        nodes = ["--agree", *(f"--{name}={value}" for name, value in told.items())]
        words = ["run", str(self.disks[n]), *nodes, *where, *options, "--", *command]
        return words, {"XDG_STATE_HOME": str(self.tmp / f"state-{n}"), "OMP_NUM_THREADS": "1"}

    def start(
        self, n: int, *options: str, command: Sequence[str] = SAY, meet: str = "", inside: Sequence[str] = ()
    ) -> subprocess.Popen[str]:
        words, env = self.line(n, *options, command=command, meet=meet)
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([*inside, *CKPT, *words], env={**CLEAN, **env}, **pipes)

    def run(self, *options: str, meet: str = "") -> list[tuple[int, dict[str, str], str]]:
        """(exit code, variables the command saw, stderr) of each node."""

        def one(n: int) -> subprocess.CompletedProcess[str]:
            words, env = self.line(n, *options, meet=meet)
            return ckpt(*words, env=env)

        with ThreadPoolExecutor(2) as pool:
            ended = list(pool.map(one, range(2)))
        return [(d.returncode, json.loads(d.stdout)[1] if d.stdout else {}, d.stderr) for d in ended]


def run_each(
    disks: Sequence[Path], world: int, tmp: Path, *options: str
) -> list[tuple[int, dict[str, str], str]]:
    """What a node with each of the ``disks`` says, as of ``Nodes``."""
    nodes = Nodes(tmp / "unused", steps=())
    nodes.disks, nodes.shared, nodes.tmp, nodes.world = list(disks), tmp / "shared", tmp, world
    return nodes.run(*options)
