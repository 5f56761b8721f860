"""``ckpt run --worker`` under two real torchrun agents on loopback: nodes that share a directory, nodes with
disks of their own, pods that count differently.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from run_helpers import CKPT, CLEAN, megatron
from two_nodes import free_port

BIN = Path(sys.executable).parent
# Writes what it sees, and lives until it is told to end: torchrun restarts it when it fails.
WORKER = """
import json, os, pathlib, sys, time
out = pathlib.Path(sys.argv[1])
seen = {k: v for k, v in os.environ.items() if k.startswith(("CKPT_", "TORCHELASTIC_RESTART", "RANK", "GROUP_RANK"))}
(out / f"{sys.argv[2]}-{os.environ['RANK']}-{os.getpid()}").write_text(json.dumps(seen))
while not (out / "end").exists():
    time.sleep(0.05)
    if (out / f"fail-{os.getpid()}").exists():
        sys.exit(1)
"""


class Agents:
    """Two torchrun agents with one worker each."""

    def __init__(self, tmp: Path) -> None:
        self.out, self.port, self.started = tmp / "out", free_port(), list[subprocess.Popen[bytes]]()
        self.out.mkdir()

    def start(self, name: str, *ckpt: str, **env: str) -> subprocess.Popen[bytes]:
        conf = f"keep_alive_interval=1,keep_alive_max_attempt=2,is_host={int(name == 'a')}"
        words = (
            "--nnodes=2 --nproc-per-node=1 --max-restarts=3 --rdzv-backend=c10d --rdzv-id=pods"
            f" --rdzv-endpoint=127.0.0.1:{self.port} --local-addr=127.0.0.1 --rdzv-conf={conf} --no-python"
        )
        line = [str(BIN / "torchrun"), *words.split()]
        script = [sys.executable, "-c", WORKER, str(self.out), name]
        worker = [*CKPT, "run", "--worker", "--timeout", "1000", *ckpt, "--", *script]
        # With a shared store, torch 2.13 does not tell a node that joins later where the first one is.
        full = {**CLEAN, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", **env}
        with (self.out / f"log-{name}").open("ab") as log:
            agent = subprocess.Popen([*line, *worker], env=full, start_new_session=True, stderr=log)
        self.started.append(agent)
        return agent

    def seen(self, name: str, count: int = 1, timeout: float = 1000) -> list[dict[str, Any]]:
        """What the workers of one agent wrote, in the order they started, once there are so many."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            files = sorted(self.out.glob(f"{name}-*"), key=lambda p: p.stat().st_mtime_ns)
            if len(files) >= count:
                time.sleep(0.1)
                return [{**json.loads(p.read_text()), "pid": int(p.name.rpartition("-")[2])} for p in files]
            time.sleep(0.1)
        logs = "\n".join(p.read_text() for p in sorted(self.out.glob("log-*")))
        pytest.fail(f"{name} did not start {count} workers\n{logs}")

    def end(self) -> list[int]:
        (self.out / "end").touch()
        return [a.wait(1000) for a in self.started if a.returncode is None]


@pytest.fixture
def agents(tmp_path: Path) -> Any:
    found = Agents(tmp_path)
    yield found
    for agent in found.started:
        if agent.poll() is None:
            os.killpg(agent.pid, signal.SIGKILL)
            agent.wait()


SAME = ("CKPT_STEP", "CKPT_FINGERPRINT", "CKPT_RESUME")


def same(*workers: dict[str, Any]) -> str:
    assert len({tuple(w[k] for k in SAME) for w in workers}) == 1, workers
    return str(workers[0]["CKPT_STEP"])


@pytest.mark.exhaustive
def test_pods_that_count_their_restarts_differently(agents: Agents, tmp_path: Path) -> None:
    """Pod b is replaced: the new one counts from 0 while a counts on. Both must get one decision, and a new
    one.
    """
    root, options = megatron(tmp_path / "run"), ["--plan-dir", str(tmp_path / "plans")]
    agents.start("a", str(root), *options)
    b = agents.start("b", str(root), *options)
    assert same(*agents.seen("a"), *agents.seen("b")) == "20"
    os.killpg(b.pid, signal.SIGKILL)
    b.wait()
    megatron(root, steps=(30,))
    (agents.out / f"fail-{agents.seen('a')[0]['pid']}").touch()
    agents.start("c", str(root), *options)
    new_a, [c] = agents.seen("a", 2)[1], agents.seen("c")
    assert (new_a["TORCHELASTIC_RESTART_COUNT"], c["TORCHELASTIC_RESTART_COUNT"]) == ("1", "0")
    assert same(new_a, c) == "30"
    assert agents.end() == [0, 0]


@pytest.mark.share(2)
@pytest.mark.parametrize("meet", ["torch", "files"])
@pytest.mark.exhaustive
def test_disks_of_their_own(agents: Agents, tmp_path: Path, meet: str) -> None:
    """Each agent has a disk with its rank's files; what one lacks none resumes from. Through torchrun's own
    store, or a shared directory.
    """
    disks = {name: megatron(tmp_path / name, ranks=(0, 1), steps=(10, 20)) for name in "ab"}
    for rank in range(2):
        (disks["b"] / f"iter_0000020/mp_rank_0{rank}/model_optim_rng.pt").unlink()
    options = ["--agree", *(["--plan-dir", str(tmp_path / "plans")] if meet == "files" else [])]
    for name, disk in disks.items():
        own = {"XDG_STATE_HOME": str(tmp_path / f"state-{name}"), "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0"}
        agents.start(name, str(disk), *options, **own)
    assert same(*agents.seen("a"), *agents.seen("b")) == "10"
    assert agents.end() == [0, 0]
