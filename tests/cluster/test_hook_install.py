"""The snippets of ``ckpt hook install``, run as they stand: with a checkpoint, with none, and with none that
is usable.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import run_helpers
from hook_job import BIN, MPI, Job, free_port, printed
from slurm_cluster import needs

from ckpt_tools.cli.hook_install import snippets

SHELL = [name for name, s in snippets().items() if s.kind == "sh"]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_the_list_names_every_snippet() -> None:
    done = run_helpers.ckpt("hook", "install")
    assert (done.returncode, [line.split()[0] for line in done.stdout.splitlines()]) == (0, list(snippets()))
    assert {"slurm", "torchrun", "msrun", "kubernetes", "mindcluster"} <= set(snippets())


def test_help_says_that_nothing_is_edited() -> None:
    assert "Nothing is edited" in run_helpers.ckpt("hook", "install", "--help").stdout
    assert "ckpt hook install" in run_helpers.ckpt("hook", "--help").stdout.replace("\n  ", " ")


def test_what_cannot_be_printed_is_a_usage_error() -> None:
    """What is redirected into a file must not look like a script; a manifest cannot say a line break."""
    rows = {"torchrn": "did you mean 'torchrun'?", "x": "one of: ", "kubernetes --root /a\nb": ""}
    for words, says in rows.items():
        done = run_helpers.ckpt("hook", "install", *words.split(" "))
        assert (done.returncode, done.stdout) == (2, "") and says in done.stderr, words


def test_a_directory_named_install_can_still_be_asked_about(tmp_path: Path) -> None:
    run_helpers.megatron(tmp_path / "install")
    done = run_helpers.ckpt("hook", "./install", "--plan-dir", tmp_path / "plans", cwd=tmp_path)
    assert done.returncode == 0 and "CKPT_STEP=20" in done.stdout


@pytest.mark.parametrize("name", SHELL)
@pytest.mark.parametrize("root", ["/data/run-7", '/data/it\'s a "run" of 50 %;&'])
def test_the_shell_accepts_it_and_shellcheck_has_nothing_to_say(name: str, root: str, tmp_path: Path) -> None:
    script = tmp_path / f"{name}.sh"
    script.write_text(printed(name, root))
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    done = subprocess.run([BIN / "shellcheck", "--severity=style", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    line = next(x for x in script.read_text().splitlines() if x.startswith("ROOT="))
    said = subprocess.run(["bash", "-c", f'{line}\nprintf %s "$ROOT"'], capture_output=True, text=True)
    assert said.stdout == root


# ---- Slurm: srun is a stand-in here; with the real Slurm scripts run in test_run_slurm.py


@pytest.mark.parametrize(("script", "code"), [("exit 127", 127), ("kill -9 $$", 137)])
def test_slurm_stops_when_ckpt_is_missing_or_killed(job: Job, script: str, code: int) -> None:
    """eval of nothing would succeed: the training would start from step 0."""
    job.holds("found")
    (job.tmp / "stand-ins").mkdir()
    (job.tmp / "stand-ins/ckpt").write_text(f"#!/bin/bash\n{script}\n")
    (job.tmp / "stand-ins/ckpt").chmod(0o755)
    assert started(job, "slurm", printed("slurm", job.root))[0] == code
    assert job.told == []


# ---- torchrun


def both_nodes(job: Job, name: str, **more: str) -> list[int]:
    script = job.tmp / "script.sh"
    script.write_text(printed(name, job.root))
    common = {"NNODES": "2", "WORKERS": "1", "MASTER_PORT": str(free_port()), "JOB_ID": "start-1", **more}
    envs = [job.env(NODE_RANK=str(i), PLANS=str(job.tmp / "plans"), **common) for i in range(2)]
    line = ["bash", script]
    nodes = [subprocess.Popen(line, cwd=job.cwd, env=e, stderr=subprocess.DEVNULL) for e in envs]
    return [p.wait(timeout=1000) for p in nodes]


@pytest.mark.share(2)
@pytest.mark.parametrize(("name", "plans"), [("torchrun", 1), ("torchrun-restarts", 2)])
def test_torchrun_on_two_nodes(job: Job, name: str, plans: int) -> None:
    job.holds("found")
    assert both_nodes(job, name) == [0, 0]
    assert {t["rank"] for t in job.resumed(2, "20", plans)} == {"0", "1"}


def test_torchrun_on_two_nodes_stops_on_both(job: Job) -> None:
    job.holds("unusable")
    assert both_nodes(job, "torchrun") == [4, 4]
    assert job.told == []


@pytest.mark.parametrize("name", ["torchrun", "torchrun-restarts", "msrun"])
def test_more_than_one_node_needs_a_shared_directory(job: Job, name: str) -> None:
    done = job.bash(printed(name, job.root), job.env(NNODES="2", MS_WORKER_NUM="4", MS_LOCAL_WORKER="2"))
    assert done.returncode != 0 and "PLANS: a directory that all nodes see" in done.stderr


def test_torchrun_restarts_decide_anew(job: Job) -> None:
    job.holds("found")
    env = job.env(WORKERS="2", MASTER_PORT=str(free_port()), FAIL_FIRST="1")
    done = job.bash(printed("torchrun-restarts", job.root), env)
    assert done.returncode == 0, done.stderr
    first, second = job.resumed(2, "20", generation=0), job.resumed(2, "20", generation=1)
    assert first[0]["CKPT_PLAN"] != second[0]["CKPT_PLAN"]


# ---- each on one node

TRAIN_READS = ("slurm", "msrun")
"""Snippets whose script reads CKPT_PATH."""
OURS = "RESUME=(--resume-args '--resume {path}')"


def started(job: Job, name: str, script: str) -> tuple[int, str]:
    """The exit code of a snippet on one node, and all that was said."""
    port = free_port()
    slurm_job = {"SLURM_JOB_ID": str(port - 10000), "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "n1"}
    own = {"RESTARTS": "0", "RANKS": "2", **({"MS_WORKER_NUM": "2"} if name == "msrun" else {})}
    if name == "mpi":
        needs("mpirun")
    stand_ins = ["srun", "scontrol", *([] if shutil.which("msrun") else ["msrun"])]
    env = job.env(*stand_ins, WORKERS="2", MASTER_PORT=str(port), **own, **MPI, **slurm_job)
    env = {k: v for k, v in env.items() if not k.startswith("SLURM_") or name.startswith("slurm")}
    done = job.bash(script, env)
    logs = "".join(log.read_text() for log in job.cwd.glob("msrun_log/worker_*.log"))
    return done.returncode, done.stdout + done.stderr + logs


SINGLE = [name for name in SHELL if name not in ("mindcluster", "slurm-agree", "slurm-torchrun")]


@pytest.mark.share(5)
@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.parametrize(("holds", "step"), [("older", "10"), ("none", ""), ("unusable", None)])
def test_a_snippet_starts_from_what_is_there(job: Job, name: str, holds: str, step: str | None) -> None:
    """The real msrun where it is installed (it was run with mindspore 2.10.0), else what its source says."""
    job.holds(holds)
    code, said = started(job, name, printed(name, job.root))
    if step is None:  # these have a code of their own
        assert code == (1 if name in ("torchrun-restarts", "msrun") else 4), said
        assert job.told == [] and "none is usable" in said
        assert "exitcode  : 4" in said or name != "torchrun-restarts"
        return
    assert code == 0, said
    told = job.resumed(3 if name == "msrun" else 2, step)
    assert sorted(t["rank"] for t in told if t["role"] != "MS_SCHED") == ["0", "1"]
    if name not in TRAIN_READS:
        args = ["--load", str(job.root), "--ckpt-step", "10"] if step else []
        assert all(t["args"] == args for t in told)


# checkpoints of which no layout has arguments: a plain loop, and a file for each rank


@pytest.mark.share(5)
@pytest.mark.parametrize("name", SINGLE)
@pytest.mark.parametrize("held", ["loop", "by rank"])
def test_a_snippet_resumes_or_stops(job: Job, name: str, held: str) -> None:
    """It never starts a script at 0 that does not learn of the checkpoint."""
    job.holds(held)
    code, said = started(job, name, printed(name, job.root))
    assert "starts at 0" not in said, said
    if name in TRAIN_READS:
        assert code == 0, said
        assert {t["CKPT_STEP"] for t in job.told if t["role"] != "MS_SCHED"} == {"20"}
        ours = {f"{job.root}/rank_{rank}/net-1_20.ckpt" for rank in range(2)}
        paths = ours if held == "by rank" else {str(job.root / "step_20.pt")}
        assert {t["CKPT_PATH"] for t in job.told if t["role"] != "MS_SCHED"} == paths
    else:
        assert code != 0 and "would not learn of it" in said and "--resume-args" in said, said
        assert job.told == []


@pytest.mark.share(3)
@pytest.mark.parametrize("name", [name for name in SINGLE if name not in TRAIN_READS])
def test_a_snippet_resumes_a_loop_that_says_its_arguments(job: Job, name: str) -> None:
    job.holds("loop")
    script = printed(name, job.root)
    assert "\nRESUME=() # " in script and OURS in script
    code, said = started(job, name, script.replace("RESUME=()", OURS))
    assert code == 0, said
    assert {tuple(t["args"]) for t in job.told} == {("--resume", str(job.root / "step_20.pt"))}


# ---- MindCluster: the variables of its operator, a real torchrun, and no Ascend, no TaskD and no MindIO


@pytest.mark.share(2)
@pytest.mark.parametrize(("holds", "step"), [("older", "10"), ("none", "")])
def test_mindcluster(job: Job, holds: str, step: str) -> None:
    job.holds(holds)
    manager = "import os; open('manager-was-started', 'w').write(os.environ['TASKD_PROCESS_ENABLE'])"
    (job.cwd / "manager.py").write_text(manager)
    pod = {"MINDX_TASK_ID": "6f1c", "RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "0,1"}  # fmt: skip
    own = dict.fromkeys(("POD_IP", "MASTER_ADDR"), "127.0.0.1")
    own |= {"MASTER_PORT": str(free_port()), "TTP_PORT": "8000"}
    own |= {"PLANS": str(job.tmp / "plans"), "LOGS": str(job.tmp / "logs")}
    done = job.bash(printed("mindcluster", job.root), job.env(**pod, **own, FAIL_FIRST="1"))
    assert done.returncode == 0, done.stderr
    assert (job.cwd / "manager-was-started").read_text() == "on"
    first, second = job.resumed(2, step, generation=0), job.resumed(2, step, generation=1)
    assert first[0]["CKPT_PLAN"] != second[0]["CKPT_PLAN"]
    args = ["--save", str(job.root), "--save-interval", "1000", "--load", str(job.root)]
    args += ["--load", str(job.root), "--ckpt-step", "10"] if step else []
    assert all(t["args"] == args for t in first + second)


def test_slurm_a_file_replaced_after_the_decision_stops_the_task(job: Job) -> None:
    job.holds("found")
    script = printed("slurm", job.root).replace("\nsrun ", f"\ntouch '{job.root}'/iter_0000020/*/*.pt\nsrun ")
    done = job.bash(script, job.env("srun", SLURM_JOB_ID="7"))
    said = ("task prolog failed with 5", "has changed since it was chosen")
    assert done.returncode == 1 and all(words in done.stderr for words in said)
    assert job.told == []
