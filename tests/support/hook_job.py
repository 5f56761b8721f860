"""What the tests of snippets and of docs/hooks.md share: a directory to start a job in, with a training
script that writes down what it was told.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import run_helpers
import small_files
import warm
from places import SUPPORT
from timed import put

BIN = Path(sys.executable).parent
MPI = dict.fromkeys(
    ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_rmaps_base_oversubscribe"), "1"
)
TRAIN = """\
import json, os, sys, time
seen = {k: v for k, v in os.environ.items() if k.startswith(("CKPT_", "TORCHRUN_"))}
seen["rank"] = next((os.environ[k] for k in ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "MS_NODE_ID", "RANK", "VC_TASK_INDEX", "PET_NODE_RANK") if k in os.environ and
                     not (k == "SLURM_PROCID" and "RANK" in os.environ)), None)
seen["role"], seen["generation"], seen["args"] = os.environ.get("MS_ROLE"), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")), sys.argv[1:]
told = {"args": sys.argv[1:], "path": [os.environ.get("CKPT_PATH", "")]}.get(os.environ.get("MUST_RESUME"))
if told is not None and seen["role"] != "MS_SCHED":  # it would write over the checkpoints that are there
    flags = [i for i, word in enumerate(told) if word in ("--resume", "--load")]
    paths = [told[i + 1] for i in flags] if os.environ["MUST_RESUME"] == "args" else told
    if not paths or not all(map(os.path.exists, paths)) or ("--load" in told and "--ckpt-step" not in told):
        sys.exit(f"starts at 0 although there is a checkpoint: {told}")
with open(os.environ["NOTES"], "a") as f:
    f.write(json.dumps(seen) + "\\n")
fails = int(os.environ.get("FAIL_FIRST", "0"))
while fails and seen["generation"] == 0 and len(open(os.environ["NOTES"]).readlines()) < int(os.environ["WORLD_SIZE"]):
    time.sleep(0.05)  # the first to fail takes the others with it
sys.exit(fails if seen["generation"] == 0 else 0)
"""


class Job:
    """A directory with the usual names in it: train.py, which fails if it starts at 0 although there is a
    checkpoint that it could go on from; and checkpoints of two ranks, at steps 10 and 20, below ``root``.
    """

    def __init__(self, tmp: Path) -> None:
        self.tmp, self.root, self.cwd = tmp, tmp / "run 7" / "checkpoints", tmp / "job"
        self.notes, self.exists = tmp / "notes.jsonl", False
        for directory in (self.root, self.cwd, tmp / "home"):
            directory.mkdir(parents=True)
        for script in ("train.py", "pretrain_gpt.py"):
            (self.cwd / script).write_text(TRAIN)

    def holds(self, what: str) -> None:
        """``found``: two checkpoints; ``none``; ``unusable``: two, each with a file cut short; ``older``:
        only the newest is; ``loop``: those of a plain loop; ``by rank``: with a file of its own for each rank.
        """
        self.exists = what not in ("none", "unusable")
        if what == "loop":
            for step in (10, 20):
                torch_file(self.root / f"step_{step}.pt", step)
        elif what == "by rank":
            run_helpers.one_file_per_rank(self.root)
        elif what != "none":
            run_helpers.megatron(self.root)
        for step in {"unusable": (10, 20), "older": (20,)}.get(what, ()):
            run_helpers.broken(self.root, step)

    def env(self, *stand_ins: str, **more: str) -> dict[str, str]:
        """A clean environment in which our commands are found, and those stand-ins."""
        links = self.tmp / "stand-ins"
        links.mkdir(exist_ok=True)
        for name in stand_ins:
            if not (links / name).exists():
                (links / name).symlink_to(SUPPORT / "stand_ins" / name)
        path = f"{links}:{warm.torchrun()}:{BIN}:{os.environ['PATH']}"
        own = {"PATH": path, "HOME": str(self.tmp / "home"), "NOTES": str(self.notes), "OMP_NUM_THREADS": "1"}
        return {**run_helpers.CLEAN, **own, **more}

    def bash(self, script: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a script as it stands, from a file."""
        file = self.tmp / "script.sh"
        file.write_text(script)
        if self.exists:
            env = {"MUST_RESUME": "args" if "{ckpt.args}" in script or '"$@"' in script else "path", **env}
        line = ["bash", str(file)]
        return subprocess.run(line, cwd=self.cwd, env=env, capture_output=True, text=True, timeout=1000)

    @property
    def told(self) -> list[dict[str, Any]]:
        """What each training process saw, in no order."""
        return list(map(json.loads, self.notes.read_text().splitlines())) if self.notes.exists() else []

    def resumed(self, processes: int, step: str, plans: int = 1, **more: object) -> list[dict[str, Any]]:
        """What they saw, after a check that they are so many and were all told the same by one decision;
        nodes that meet write it down once each.
        """
        told = [t for t in self.told if all(t.get(k) == v for k, v in more.items())]
        assert len(told) == processes, self.told
        assert {t["CKPT_STEP"] for t in told} == {step}
        assert {t["CKPT_RESUME"] for t in told} == {"1" if step else "0"}
        assert (len({t["CKPT_FINGERPRINT"] for t in told}), len({t["CKPT_PLAN"] for t in told})) == (1, plans)
        return told


def printed(name: str, root: object = "/data/run-7") -> str:
    """What ``ckpt hook install`` prints."""
    done = run_helpers.ckpt("hook", "install", name, "--root", root)
    assert done.returncode == 0 and done.stderr == ""
    return done.stdout


def torch_file(path: Path, step: int) -> None:
    """What a training loop saves with torch.save."""
    state = {"step": step, "model": {"w": small_files.tensor(step)}, "optimizer": small_files.adam(step)}
    put(path, small_files.saved(state), run_helpers.OLD + step * 360)


def free_port(low: int = 20000, high: int = 30000) -> int:
    """A port that nobody listens on now, and the one 10,000 above neither."""
    for port in range(low + os.getpid() % 5000, high):
        try:
            for number in (port, port + 10000):
                with socket.socket() as s:
                    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    s.bind(("127.0.0.1", number))
        except OSError:
            continue
        return port
    raise RuntimeError("no free port")
