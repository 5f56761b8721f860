"""Attacks by a node that takes part, and by whoever reaches the port where nodes meet. Each says what it got
("" when nothing).
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable
from pathlib import Path

from _scene import HOME, MARK, Answer, Command, Scene

Told = tuple[Answer, str]

_HOSTILE = """
from ckpt_tools.job import consensus as _agree
_tell = _agree._Node._tell
def _changed(value, key=""):
    if isinstance(value, dict):
        return {k: _changed(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [_changed(v, key) for v in value]
    return CHANGES.get(key, value)
_agree._Node._tell = lambda self, value, *more: _tell(self, lambda: _changed(value()), *more)
"""
"""What makes a node hostile: it takes part as any other, and changes what it tells."""


def disks(scene: Scene) -> list[Path]:
    """Each node's disk: node 0 has only the older checkpoint, the hostile node 1 all of both."""
    out = []
    for n in range(2):
        disk = scene.place / f"disk-{n}"
        shutil.copytree(HOME / "fixtures" / "demo", disk)
        (disk / "latest_checkpointed_iteration.txt").unlink()
        shutil.rmtree(disk / "iter_0000020")
        out.append(disk)
    (out[0] / "iter_0000010/mp_rank_00/model_optim_rng_0.pt").unlink()
    (out[0] / "iter_0000010/mp_rank_00/model_optim_rng_2.pt").unlink()
    return out


def node(scene: Scene, n: int, disk: Path, more: tuple[object, ...], code: str = "") -> Command:
    words = [
        "run",
        disk,
        "--agree",
        "--nodes",
        2,
        "--node",
        n,
        "--world-size",
        4,
        "--timeout",
        "60",
        "--job",
        "j",
        *more,
        "--",
        "env",
    ]
    return Command(
        scene,
        words,
        {**scene.environ, "XDG_STATE_HOME": str(scene.home / f"state-{n}"), "OMP_NUM_THREADS": "1"},
        scene.home,
        code,
    )


def hostile_peer(changes: dict[str, object]) -> Callable[[Scene], Told]:
    """A node that says so; the other one brings files from it with a command that notes its words."""

    def carry_out(scene: Scene) -> Told:
        first, second = disks(scene)
        words = scene.place / "words"
        bring = scene.home / "bring"
        bring.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> {words}\ncp "$2" "$3"\n')
        bring.chmod(0o755)
        meet = ("--plan-dir", scene.home / "plans", "--transfer", bring)
        victim = node(scene, 0, first, meet)
        hostile = node(scene, 1, second, meet, f"CHANGES = {changes!r}{_HOSTILE}")
        answer, other = victim.ended(), hostile.ended()
        if "internal error" in other.err:
            raise RuntimeError(f"the hostile node is not what it should be: {other.err}")
        return answer, harm(scene, words)

    return carry_out


def harm(scene: Scene, words: Path) -> str:
    """What reached the victim."""
    if any(MARK in path.name for path in scene.place.rglob("*") if "transferred" not in str(path)):
        return "a file was written where the peer said"
    told = words.read_text().splitlines() if words.exists() else []
    return "the peer's word became an option of --transfer" if any(w.startswith("-") for w in told) else ""


honest_peer = hostile_peer({})
"""A node that changes nothing: so the others fail for what they say."""


def beyond_loopback(scene: Scene) -> Told:
    """Nodes meet at an address that others reach, and nothing proves who they are."""
    first, _ = disks(scene)
    with socket.socket() as s:
        s.bind(("0.0.0.0", 0))
        port = s.getsockname()[1]
    answer = node(
        scene, 0, first, ("--rendezvous", f"{socket.gethostname()}:{port}", "--timeout", "1")
    ).ended()
    return answer, "" if answer.code == 2 else "whoever reaches the port may take part"


def stranger(scene: Scene) -> Told:
    """Who reaches the port and knows everything about the job but its secret."""
    first, second = disks(scene)
    for disk in (first, second):  # together they would start
        shutil.rmtree(disk)
        shutil.copytree(HOME / "fixtures" / "demo" / "iter_0000010", disk / "iter_0000010")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        meet = f"127.0.0.1:{s.getsockname()[1]}"
    nodes = []
    for n, disk in enumerate((first, second)):
        secret = scene.home / f"secret-{n}"
        secret.write_text(f"{n}0123456789abcdefghijklmnopqrstuvwxyz")
        secret.chmod(0o600)
        nodes.append(node(scene, n, disk, ("--rendezvous", meet, "--secret-file", secret)))
    answers = [one.ended() for one in nodes]
    return answers[0], "the victim started with the stranger" if 0 in (a.code for a in answers) else ""
