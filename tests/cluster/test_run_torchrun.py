"""``ckpt run`` with the real torchrun: a job that is killed while it saves, whose newest checkpoint rots, and
that comes back with the same weights.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import small_files
import warm
from run_helpers import CKPT, CLEAN, megatron
from training_script import Training, uninterrupted
from two_nodes import free_port

BIN = Path(sys.executable).parent
STEPS = Training.steps


class Job(Training):
    """One training job below ``tmp``: its checkpoints, its logs, and how it is started."""

    def __init__(self, tmp: Path, processes: int) -> None:
        super().__init__(tmp)
        self.plans, self.processes = tmp / "plans", processes

    def torchrun(self, *options: str, home: str | Path = "") -> list[str]:
        """That of a process which has torch already, unless the ``home`` of another is given."""
        command = os.path.join(home or warm.torchrun(), "torchrun")
        return [command, "--standalone", f"--nproc-per-node={self.processes}", *options]

    def ckpt(self, *options: str) -> list[str]:
        return [str(BIN / "ckpt"), "run", str(self.root), "--plan-dir", str(self.plans), *options]

    def start(self, *words: str, fault: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        own = {"OMP_NUM_THREADS": "1", "PYTHON_EXEC": warm.python_with_torch()}
        own |= {"FAULT": fault, "FAULT_RANK": str(self.processes - 1)}
        full = {**os.environ, **own, **env}
        return subprocess.run(words, env=full, capture_output=True, text=True, timeout=1000)

    def worker(self) -> list[str]:
        """The words behind those of torchrun, for a worker that asks by itself."""
        ours = self.ckpt("--worker", "--allow=none", "--settle", "0")
        return [*ours, "--", warm.python_with_torch(), *self.words, "{ckpt.args}"]

    @property
    def told(self) -> list[dict[str, Any]]:
        """What every start of rank 0 wrote; all ranks must have written the same steps and the same decision."""
        first, *others = (self.starts(rank) for rank in range(self.processes))
        shared = ("generation", "resumed", "CKPT_PLAN", "CKPT_STEP", "CKPT_FINGERPRINT")
        for rank in others:
            assert [[s.get(k) for k in shared] for s in rank] == [[s.get(k) for k in shared] for s in first]
        return first


PROCESSES = pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.exhaustive)])


@pytest.mark.exhaustive
def test_a_job_without_any_fault_ends_with_the_weights_that_one_process_computes(tmp_path: Path) -> None:
    """Started as usual, with processes that load torch themselves: with them the weights of jobs that came
    back are compared.
    """
    job = Job(tmp_path, 2)
    done = job.start(*job.torchrun(home=BIN), *job.words, PYTHON_EXEC=sys.executable)
    assert done.returncode == 0, done.stderr
    assert job.weights(2) == uninterrupted(2, STEPS)


@PROCESSES
@pytest.mark.exhaustive
def test_in_place_restart_takes_a_new_decision_and_ends_with_the_same_weights(
    processes: int, tmp_path: Path
) -> None:
    """Killed in the save of step 6, while step 4 rots: torchrun restarts the workers, and they go on from
    step 2.
    """
    job = Job(tmp_path, processes)
    line = [*job.torchrun("--max-restarts=2", "--no-python"), *job.worker()]
    done = job.start(*line, fault="0:6:corrupt-and-kill")
    assert done.returncode == 0, done.stderr
    first, second = job.told
    assert [(s["generation"], s["resumed"]) for s in (first, second)] == [(0, 0), (1, 2)], done.stderr
    assert (first["CKPT_RESUME"], second["CKPT_RESUME"]) == ("0", "1")
    assert first["CKPT_PLAN"] != second["CKPT_PLAN"]
    assert job.weights(processes) == uninterrupted(processes, STEPS)


@PROCESSES
def test_new_launch_resumes_and_ends_with_the_same_weights(processes: int, tmp_path: Path) -> None:
    """The whole job dies in the save of step 6; the next start goes on from step 4."""
    job = Job(tmp_path, processes)
    line = [*job.torchrun(), *job.words, "{ckpt.args}"]
    died = job.start(*job.ckpt("--allow=none"), "--", *line, fault="0:6:kill-in-save")
    assert died.returncode == 1, died.stderr  # torchrun's own code, passed on
    assert (job.root / "iter_0000006").is_dir() and not (job.notes / "final-0.json").exists()
    done = job.start(*job.ckpt(), "--", *line)
    assert done.returncode == 0, done.stderr
    assert [s["resumed"] for s in job.told] == [0, 4]
    assert job.weights(processes) == uninterrupted(processes, STEPS)
    assert "iter_0000006" in done.stderr or "step 6" in done.stderr  # what was passed over is said


@pytest.mark.exhaustive
def test_relaunch_under_the_same_id_decides_anew(tmp_path: Path) -> None:
    """A requeued job often keeps its rendezvous id and begins again with restart count 0."""
    job = Job(tmp_path, 2)
    line = [*job.torchrun("--rdzv-id=same", "--no-python"), *job.worker()]
    assert job.start(*line, fault="0:4:kill-in-save").returncode == 1
    assert job.start(*line).returncode == 0
    assert [s["resumed"] for s in job.told] == [0, 2]


def test_the_outer_form_refuses_restarts_with_a_line_that_works(tmp_path: Path) -> None:
    job = Job(tmp_path, 1)
    line = [*job.torchrun("--max_restarts", "3"), *job.words]
    done = job.start(*job.ckpt("--allow=none"), "--", *line)
    assert done.returncode == 2 and done.stdout == ""
    hint = done.stderr.rpartition("decision with: ")[2].strip()
    done = job.start("bash", "-c", hint, PATH=f"{BIN}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert [s["CKPT_RESUME"] for s in job.told] == ["0"]


# ---- the ImageNet sample on two nodes of eight devices: rank_0/ and rank_8/, each with a file of the same state

SAMPLE = """\
import argparse, os, sys
parser = argparse.ArgumentParser()
parser.add_argument("--resume", default="")
args = parser.parse_args()
if not args.resume and os.environ["EXISTS"]:
    sys.exit("starts at 0 although there is a checkpoint")
epoch = 0
if args.resume and int(os.environ["RANK"]) in (0, 8):  # one rank of each node, or it would take long
    import torch
    epoch = torch.load(args.resume, weights_only=True)["epoch"]
open(os.path.join(os.environ["SEEN"], os.environ["RANK"]), "w").write(f"{args.resume} {epoch}")
"""


@pytest.mark.parametrize("form", ["args", "path", "shell", "inner", "none"])
def test_a_file_of_two_nodes_resumes_all_ranks(form: str, tmp_path: Path) -> None:
    """Every rank gets one file that is there, in each form; on a first launch none has an argument."""
    root, seen, main = tmp_path / "ckpt", tmp_path / "seen", tmp_path / "main.py"
    seen.mkdir()
    main.write_text(SAMPLE)
    for rank in (0, 8):
        (root / f"rank_{rank}").mkdir(parents=True)
        if form != "none":
            (root / f"rank_{rank}/model_best.pth.tar").write_bytes(small_files.sample(7))
    (tmp_path / "job").mkdir()
    job = Job(tmp_path / "job", 16)
    job.root = root
    line = job.torchrun()
    ours = job.ckpt("--allow=none")
    plan = shlex.join([ours[0], "plan", str(root), "--world-size", "16", "--format", "shell"])
    script = f'eval "$({plan})" && eval "set -- $CKPT_ARGS" && {shlex.join([*line, str(main)])} "$@"'
    words = {
        "args": [*ours, "--", *line, str(main), "{ckpt.args}"],
        "path": [*ours, "--", *line, str(main), "--resume", "{ckpt.path}"],
        "none": [*ours, "--", *line, str(main), "--resume", "{ckpt.path}", "{ckpt.args}"],
        "shell": ["sh", "-c", script],
        "inner": [*line, "--no-python", *ours, "--worker", "--", sys.executable, str(main), "{ckpt.args}"],
    }[form]
    done = job.start(*words, SEEN=str(seen), EXISTS="" if form == "none" else "1")
    assert done.returncode == 0, done.stderr
    told = {int(path.name): path.read_text().split(" ") for path in seen.iterdir()}
    assert sorted(told) == list(range(16))
    path = "" if form == "none" else f"{root}/rank_0/model_best.pth.tar"
    assert {resumed for resumed, _ in told.values()} == {path}
    assert [told[rank][1] for rank in (0, 8)] == (["0", "0"] if form == "none" else ["7", "7"])


# ---- workers of two agents on loopback: nodes that share a directory, nodes with disks of their own, pods that count
# differently

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
