"""Every block of shell in docs/hooks.md, taken out and run as it stands; and what the page says about
options, snippets and exit codes.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import run_helpers
from hook_job import MPI, Job, free_port
from places import DOCS
from slurm_cluster import needs

from ckpt_tools.cli.hook_install import snippets
from ckpt_tools.errors import BY_EXIT_CODE
from ckpt_tools.job.decider import KEPT_DAYS
from ckpt_tools.settings import resolve

PAGE = (DOCS / "hooks.md").read_text()
BLOCKS = dict(re.findall(r"<!-- tested: ([\w-]+) -->\n```sh\n(.*?)```", PAGE, re.DOTALL))
ARGS = ["--load", "{root}", "--ckpt-step", "10"]
PROCESSES = dict.fromkeys(("bare", "own-loop", "script"), 1)
PROCESSES |= dict.fromkeys(("srun", "torchrun", "torchrun-restarts", "mpi"), 2) | {"msrun": 3}
"""Blocks that start a training, and how many processes of it."""
THEIRS = (
    "--max-restarts --max_restarts --no-python --nnodes --nproc-per-node --standalone --rdzv-id --load --save"
    " --ckpt-step --kill-on-bad-exit --worker_num --local_worker_num --master_port --log_dir --join"
)
"""Flags of others that the page names."""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def run(job: Job, name: str, **more: str) -> subprocess.CompletedProcess[str]:
    if name == "mpi":
        needs("mpirun")
    stand_ins = ["srun"] if shutil.which("msrun") else ["srun", "msrun"]
    env = {"ROOT": str(job.root), "PLANS": str(job.tmp / "plans"), "PORT": str(free_port())}
    env |= {"SLURM_JOB_ID": "7"} if name == "srun" else {}
    return job.bash(BLOCKS[name], job.env(*stand_ins, **env, **MPI, **more))


def test_every_block_of_shell_is_run() -> None:
    assert len(re.findall(r"```(?:sh|bash)\n", PAGE)) == len(BLOCKS)
    assert set(BLOCKS) == {*PROCESSES, "agree", "view", "decision"}


@pytest.mark.share(6)
@pytest.mark.parametrize("name", PROCESSES)
def test_a_block_resumes(job: Job, name: str) -> None:
    own = "--resume-args" in BLOCKS[name]
    job.holds("loop" if own else "older")
    done = run(job, name)
    assert done.returncode == 0, done.stderr
    told = job.resumed(PROCESSES[name], "20" if own else "10")
    if "{ckpt.args}" in BLOCKS[name] and not own:
        assert all(t["args"] == [w.replace("{root}", str(job.root)) for w in ARGS] for t in told)


@pytest.mark.share(6)
@pytest.mark.parametrize("name", [name for name in PROCESSES if name != "own-loop"])
@pytest.mark.parametrize("held", ["loop", "by rank"])
def test_a_block_never_starts_at_0_where_there_is_a_checkpoint(job: Job, name: str, held: str) -> None:
    """Of layouts that have no arguments: where the script is not told in another way, it does not start."""
    job.holds(held)
    done = run(job, name)
    logs = "".join(log.read_text() for log in job.cwd.glob("msrun_log/worker_*.log"))
    assert "starts at 0" not in done.stderr + logs
    if done.returncode == 0:
        assert {t["CKPT_STEP"] for t in job.told} == {"20"}
    else:
        assert "would not learn of it" in done.stderr + logs and job.told == []


@pytest.mark.share(12)
@pytest.mark.parametrize("name", PROCESSES)
@pytest.mark.parametrize("held", ["none", "unusable"])
def test_a_block_starts_fresh_or_stops(job: Job, name: str, held: str) -> None:
    """With the exit codes that the page says: ckpt's own, but for launchers that have only one of their own."""
    job.holds(held)
    done = run(job, name)
    if held == "none":
        assert done.returncode == 0, done.stderr
        assert all(t["args"] == [] for t in job.resumed(PROCESSES[name], ""))
        return
    assert done.returncode == (1 if name in ("torchrun-restarts", "msrun") else 4), done.stderr
    logs = "".join(log.read_text() for log in job.cwd.glob("msrun_log/worker_*.log"))
    assert "none is usable" in done.stderr + logs
    assert job.told == []


@pytest.mark.exhaustive
def test_nodes_agree(job: Job) -> None:
    pytest.importorskip("torch")
    (job.tmp / "script.sh").write_text(BLOCKS["agree"])
    common = {"ROOT": "ckpt", "FIRST": "127.0.0.1", "PORT": str(free_port()), "START": "start-1"}
    line, nodes = ["bash", job.tmp / "script.sh"], []
    for i in range(2):
        disk = job.cwd / f"node-{i}"
        run_helpers.megatron(disk / "ckpt", ranks=[i])
        shutil.copy(job.cwd / "train.py", disk)
        env = job.env(NODE=str(i), **common)
        nodes.append(subprocess.Popen(line, cwd=disk, env=env, stderr=subprocess.DEVNULL))
    assert [p.wait(timeout=1000) for p in nodes] == [0, 0]
    job.resumed(2, "20", plans=2)


def test_the_view_holds_the_chosen_one_alone(job: Job) -> None:
    job.holds("older")
    done = run(job, "view")
    assert done.returncode == 0, done.stderr
    (told,) = job.resumed(1, "10")
    view = job.tmp / "home/view"
    assert told["CKPT_PATH"] == str(view) and told["args"] == ["--load", str(view)]
    assert [p.name for p in view.glob("iter_*")] == ["iter_0000010"]
    assert (view / "latest_checkpointed_iteration.txt").read_text() == "10"


def test_the_decision_can_be_looked_at(job: Job) -> None:
    job.holds("older")
    done = run(job, "decision", CKPT_WORLD_SIZE="2")
    assert done.returncode == 0, done.stderr
    assert '"resume_step": 10' in done.stdout and "decided_at" in done.stdout
    assert done.stdout.splitlines()[-1] == str(job.root / "iter_0000010/mp_rank_00/model_optim_rng.pt")


def test_what_the_page_names_is_there() -> None:
    helps = "".join(run_helpers.ckpt(command, "--help").stdout for command in ("run", "hook", "plan"))
    known = set(re.findall(r"--[a-z][a-z-]+", helps))
    others = set(THEIRS.split())
    used = set(re.findall(r"(?<![\w-])--[a-z][a-z_-]+", PAGE))
    assert used - others <= known, used - others - known
    table = PAGE.partition("## Which form")[2].partition("\n**")[0]
    named = " ".join(re.findall(r"\|([^|]*)\|$", table, re.MULTILINE))
    ours = {name for name in snippets() if not name.startswith("watch-")}
    assert set(re.findall(r"`([\w-]+)`", named)) == ours
    codes = PAGE.partition("## Exit codes")[2]
    for code in (*BY_EXIT_CODE, 0, 70, 126, 127, 130, 143):
        assert re.search(rf"^\| (?:\d+, )*{code}(?:, \d+)* \|", codes, re.MULTILINE), code
    assert f"for {KEPT_DAYS} days" in PAGE and "`--allow fresh`" in PAGE
    keys = ("plan-dir", "agree", "meet", "view", "require-mount")
    assert all(v.name in PAGE or v.said in PAGE for v in resolve.ENV if v.key in keys)
