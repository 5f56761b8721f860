"""``ckpt run`` and ``ckpt hook`` inside a real Slurm: sbatch, srun, TaskProlog, requeue, and two nodes (two
slurmds on this machine).
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import hook_job
import pytest
from hook_job import Job, printed
from places import ROOT, SUPPORT
from run_helpers import broken, megatron, one_file_per_rank
from slurm_cluster import PACKAGES, Batch, Slurm, needs
from slurm_keeper import free_ports
from training_script import Training, uninterrupted

# One process of training: it writes down what it sees. With a second word it also asks for its files, as a
# script does that knows only the command line.
TRAIN = """\
import json, os, subprocess, sys, time
seen = {k: v for k, v in os.environ.items() if k.startswith("CKPT_")}
seen |= {"rank": os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["SLURM_PROCID"], "node": os.environ["SLURMD_NODENAME"], "step_id": os.environ["SLURM_STEP_ID"]}
seen |= {"restart": os.environ.get("SLURM_RESTART_COUNT", "0"), "args": sys.argv[1:]}
if sys.argv[1:] == ["latest"]:
    seen["latest"] = subprocess.run(["ckpt", "latest"], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
with open(os.environ["NOTES"], "a") as f:
    f.write(json.dumps(seen) + "\\n")
time.sleep(float(os.environ.get("SECONDS_LONG", "0")))
sys.exit(int(os.environ.get("FAIL", "0")))
"""


@pytest.fixture(scope="session")
def slurm() -> Iterator[Slurm]:
    """Each worker of pytest-xdist has its own."""
    found = Slurm()
    yield found
    found.stop()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    found = Job(tmp_path)
    (found.cwd / "train.py").write_text(TRAIN)
    return found


Submit = Callable[..., Batch]


@pytest.fixture
def batch(slurm: Slurm, job: Job) -> Submit:
    """The script as users write them, in a job of one node and two tasks unless ``options`` say otherwise."""

    def submit(script: str, *options: str, **env: str) -> Batch:
        given = {"ROOT": str(job.root), "PLANS": str(job.tmp / "plans"), **env}
        text = f"#!/bin/bash\nset -euo pipefail\n{script}"
        return slurm.submit(text, job.cwd, job.env(**given), options or ("-N1", "-n2"))

    return submit


# ---- decided in the batch script, read in the tasks

PROLOG = "printf '#!/bin/bash\\nexec ckpt hook --read --format slurm\\n' >prolog && chmod +x prolog\n"


def own_file(job: Job, rank: int, step: int | str = 20) -> str:
    return f"{job.root}/rank_{rank}/net-1_{step}.ckpt"


@pytest.mark.exhaustive
def test_tasks_read_what_the_batch_script_decided(batch: Submit, job: Job) -> None:
    one_file_per_rank(job.root)
    evals = 'eval "$(ckpt hook "$ROOT" --by-rank --allow none --format shell)"'
    run = batch(
        f'{evals}\n{PROLOG}unset CKPT_STEP CKPT_PATH\nsrun -n2 --task-prolog="$PWD/prolog" python train.py'
    )
    assert run.wait() == "0:0", run.said
    told = job.resumed(2, "20")
    assert len({t["CKPT_PLAN"] for t in told}) == 1
    assert {t["rank"]: t["CKPT_PATH"] for t in told} == {str(r): own_file(job, r) for r in range(2)}


@pytest.mark.share(2)
@pytest.mark.parametrize("snippet", [False, True])
def test_a_file_replaced_after_the_decision_stops_its_task(
    batch: Submit, slurm: Slurm, job: Job, snippet: bool
) -> None:
    """Slurm starts no task whose prolog fails, and shows its stderr to nobody. The snippet does not leave the
    other task alone, which would wait for it.
    """
    one_file_per_rank(job.root)
    replace = f"touch {shlex.quote(str(job.root))}/rank_1/net-1_20.ckpt"
    if snippet:
        text = printed("slurm", job.root).replace("\nsrun ", f"\n{replace}\nsrun ")
        run = slurm.submit(text, job.cwd, job.env(SECONDS_LONG="600"), ("-N1", "--ntasks-per-node=2"))
    else:
        step = 'srun --task-prolog="$PWD/prolog" python train.py'
        run = batch(f'eval "$(ckpt hook "$ROOT" --by-rank)"\n{PROLOG}{replace}\n{step}')
    # the highest code of the tasks
    assert run.wait() in ("5:0", *(["143:0", "137:0"] if snippet else [])), run.said
    assert "ckpt: error: " in run.said and "rank_1/net-1_20.ckpt has changed since it was chosen" in run.said
    assert "hint: start again: a new start decides again" in run.said
    assert {t["rank"] for t in job.told} <= {"0"}


@pytest.mark.parametrize(
    "form",
    [
        'eval "$(ckpt hook "$ROOT" --allow none)"\ntouch srun-was-reached\nsrun python train.py',
        'ckpt run "$ROOT" --allow none -- srun python train.py',
    ],
)
def test_none_usable_ends_the_job_before_srun(batch: Submit, job: Job, form: str) -> None:
    job.holds("unusable")
    run = batch(form)
    assert run.wait() == "4:0", run.said
    assert run.show()["JobState"] == "FAILED" and "none is usable" in run.said
    assert job.told == [] and not (job.cwd / "srun-was-reached").exists()


@pytest.mark.share(2)
@pytest.mark.parametrize(
    "form",
    [
        f'eval "$(ckpt hook "$ROOT" --allow none)"\n{PROLOG}srun --task-prolog="$PWD/prolog" python train.py',
        'ckpt run "$ROOT" --allow none -- srun python train.py {ckpt.args}',
    ],
)
def test_first_launch(batch: Submit, job: Job, form: str) -> None:
    run = batch(form)
    assert run.wait() == "0:0", run.said
    assert all(t["args"] == [] for t in job.resumed(2, ""))


def test_the_snippet_as_it_is_printed(slurm: Slurm, job: Job) -> None:
    job.holds("older")
    snippet = printed("slurm", job.root)
    run = slurm.submit(snippet, job.cwd, job.env(), ("-N1", "--ntasks-per-node=2"))
    assert run.wait() == "0:0", run.said
    assert {t["rank"] for t in job.resumed(2, "10")} == {"0", "1"}
    job.holds("unusable")
    broken(job.root, 10)
    run = slurm.submit(snippet, job.cwd, job.env(), ("-N1", "--ntasks-per-node=2"))
    assert run.wait() == "4:0" and len(job.told) == 2


@pytest.mark.share(2)
@pytest.mark.parametrize("name", ["slurm-torchrun", "slurm-agree"])
def test_the_snippets_for_two_nodes(slurm: Slurm, job: Job, name: str) -> None:
    """A real torchrun on each node. Only what translates the nodes' names is a stand-in, because n1 and n2
    are in no DNS; and what gives each its own disk.
    """
    (job.cwd / "train.py").write_text(hook_job.TRAIN)
    snippet = printed(name, job.root)
    if name == "slurm-agree":
        for node in range(2):
            megatron(job.tmp / f"node-{node}{job.root}", ranks=[node])
        broken(job.tmp / f"node-1{job.root}", 20, rank=1)
        own_disk = f'srun bash -c \'exec ckpt run "{job.tmp}/node-$SLURM_NODEID$0" "$@"\' "$ROOT"'
        snippet = snippet.replace('srun ckpt run "$ROOT"', own_disk)
    else:
        job.holds("older")
    fails = "1" if name == "slurm-torchrun" else "0"
    run = slurm.submit(snippet, job.cwd, job.env("scontrol", WORKERS="1", FAIL_FIRST=fails), ())
    assert run.wait() == "0:0", run.said
    # each node writes one
    told = [job.resumed(2, "10", plans=2, generation=n) for n in range(1 + int(fails))]
    assert len({t["CKPT_PLAN"] for of in told for t in of}) == 2 * len(told), "a restart decides anew"


# ---- decided by the tasks of a step


@pytest.mark.exhaustive
def test_the_tasks_of_a_step_share_a_decision_and_the_next_step_takes_another(
    batch: Submit, job: Job
) -> None:
    one_file_per_rank(job.root)
    more = (
        "import os, sys; sys.path.insert(0, os.environ['HELPERS']); import pathlib, run_helpers as h;"
        " h.one_file_per_rank(pathlib.Path(sys.argv[1]), [30])"
    )
    step = 'srun -n2 ckpt run "$ROOT" --worker --plan-dir "$PLANS" -- python train.py latest'
    run = batch(f'{step}\npython -c {shlex.quote(more)} "$ROOT"\nFAIL=7 {step}', HELPERS=str(SUPPORT))
    assert run.wait() == "7:0", run.said
    first, second = ([t for t in job.told if t["step_id"] == s] for s in "01")
    for told, step in ((first, "20"), (second, "30")):
        assert {t["rank"]: t["latest"] for t in told} == {str(r): [own_file(job, r, step)] for r in range(2)}
        assert {t["CKPT_STEP"] for t in told} == {step} and len({t["CKPT_PLAN"] for t in told}) == 1
        assert [t["CKPT_PATH"] for t in told] == [t["latest"][0] for t in told]
    plans = [Path(told[0]["CKPT_PLAN"]) for told in (first, second)]
    assert [p.parent.name for p in plans] == [f"slurm.ckpt-{run.number}.{s}.0" for s in "01"]
    assert all([p.name for p in plan.parent.glob("*.json")] == ["1.json"] for plan in plans)  # one each


def test_around_srun_it_is_decided_once(batch: Submit, job: Job) -> None:
    job.holds("older")
    step = "srun -n2 python train.py --at={ckpt.step} {ckpt.args}"
    run = batch(f'ckpt run "$ROOT" --plan-dir "$PLANS" -- {step}')
    assert run.wait() == "0:0", run.said
    told = job.resumed(2, "10")
    assert all(t["args"] == ["--at=10", "--load", str(job.root), "--ckpt-step", "10"] for t in told)
    assert len({t["CKPT_PLAN"] for t in told}) == 1 and len(list((job.tmp / "plans").glob("*/*/*.json"))) == 1


@pytest.mark.exhaustive
def test_ranks_of_mpirun_on_two_nodes_of_the_job(batch: Submit, job: Job) -> None:
    """mpirun has srun start a daemon on each node: Slurm's numbers there are those of the daemons, not of the
    ranks.
    """
    needs("mpirun")
    megatron(job.root, world=4)
    as_root = "--allow-run-as-root" if os.geteuid() == 0 else ""
    mpirun = f'mpirun {as_root} --oversubscribe --map-by node -n 4 ckpt run "$ROOT" --worker'
    step = f'{mpirun} --plan-dir "$PLANS" -- python train.py latest'
    script = f'{step}\n{step}\n{mpirun} -- python train.py || exit "$?"'
    run = batch(script, "-N2", "--ntasks-per-node=1", SLURM_GPUS_ON_NODE="1")
    assert run.wait() == "2:0" and "each would decide alone" in run.said, run.said
    told = job.resumed(8, "20", plans=2)  # one of each mpirun
    files = (f"{job.root}/iter_0000020/mp_rank_{r:02d}/model_optim_rng.pt" for r in range(4))
    wanted = {(str(r), f"n{r % 2 + 1}", file) for r, file in enumerate(files)}
    assert {(t["rank"], t["node"], *t["latest"]) for t in told} == wanted
    assert len({Path(t["CKPT_PLAN"]).parent for t in told}) == 2


def test_a_signal_to_the_job_reaches_the_command(batch: Submit, slurm: Slurm, job: Job) -> None:
    """``scancel`` on the step: ckpt run has become the command, and is not in between."""
    megatron(job.root, world=1)
    script = "trap 'touch saved-before-the-end; exit 3' TERM; touch ready; while :; do sleep 0.1; done"
    step = f'srun -n1 ckpt run "$ROOT" --worker -- bash -c {shlex.quote(script)}'
    run = batch(step, SLURM_GPUS_ON_NODE="1")
    run.wait(until=job.cwd / "ready")
    slurm.run("scancel", "--signal=TERM", f"{run.number}.0")
    assert run.wait() == "3:0", run.said
    assert (job.cwd / "saved-before-the-end").exists()


# ---- what is no rank


def test_the_batch_script_is_no_rank(batch: Submit, job: Job) -> None:
    one_file_per_rank(job.root)
    refused = '&& exit 1 || echo "exit $?"'
    run = batch(
        f'ckpt latest "$ROOT" {refused}\nckpt launchers\nckpt run "$ROOT" --worker -- true {refused}\n'
    )
    assert run.wait() == "0:0", run.said
    assert run.said.count("exit 2\n") == 2
    why = "SLURM_PROCID=0, SLURM_NTASKS=2: the script of sbatch, and none of the job's tasks"
    assert run.said.count(why) == 3, run.said


def test_one_task_per_node_is_a_question(batch: Submit, job: Job) -> None:
    one_file_per_rank(job.root)
    step = 'srun ckpt run "$ROOT" --worker --plan-dir "$PLANS" -- python train.py'
    run = batch(step, "-N2", "--ntasks-per-node=1")
    assert run.wait() == "2:0"
    assert "one task per node" in run.said and '--rank "$SLURM_PROCID"' in run.said and job.told == []


# ---- two nodes


@pytest.mark.exhaustive
def test_two_nodes_with_a_shared_directory(batch: Submit, job: Job) -> None:
    one_file_per_rank(job.root)
    rank = '--rank "$SLURM_PROCID" --world-size "$SLURM_NTASKS"'  # as the message of the test before says
    step = f'srun bash -c \'ckpt run "$ROOT" --worker {rank} --plan-dir "$PLANS" -- python train.py\''
    run = batch(step, "-N2", "--ntasks-per-node=1")
    assert run.wait() == "0:0", run.said
    told = job.resumed(2, "20")
    assert {t["node"]: t["CKPT_PATH"] for t in told} == {f"n{r + 1}": own_file(job, r) for r in range(2)}
    (plan,) = {t["CKPT_PLAN"] for t in told}
    cluster_and_job, step_id, port, _ = Path(plan).parent.name.split(".")[1:]
    assert (cluster_and_job, step_id) == (f"ckpt-{run.number}", "0")
    assert int(port) > 1023  # srun's, on both nodes
    job.notes.unlink()
    run = batch(step.replace('--plan-dir "$PLANS"', ""), "-N2", "--ntasks-per-node=1")
    assert run.wait() == "2:0" and job.told == []
    assert "each would decide alone" in run.said and "--agree" in run.said


def disks(job: Job, steps: tuple[int, ...] = (10, 20)) -> None:
    """For each node a directory as its disk, with the files of its own two ranks of four."""
    for i, node in enumerate(("n1", "n2")):
        megatron(job.tmp / "disks" / node, steps, world=4, ranks=(2 * i, 2 * i + 1))


AGREE = "srun bash -c 'ckpt run \"$DISKS/$SLURMD_NODENAME\" --agree --timeout 1000 {} -- python train.py'"


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("tasks", "options"),
    [
        (1, '--world-size 4 --rendezvous "$MEET"'),
        (1, '--world-size 4 --plan-dir "$PLANS"'),
        (2, '--worker --plan-dir "$PLANS"'),
    ],
)
def test_nodes_with_disks_of_their_own_agree(batch: Submit, job: Job, tasks: int, options: str) -> None:
    """By a starter on each node (through torch, and through files), and by the ranks themselves. Rank 3's
    newest file is damaged, which only n2 can see.
    """
    disks(job)
    broken(job.tmp / "disks/n2", 20, rank=3)
    env = {"DISKS": str(job.tmp / "disks"), "MEET": f"127.0.0.1:{free_ports(1)[0]}"}
    run = batch(AGREE.format(options), "-N2", f"--ntasks-per-node={tasks}", **env)
    assert run.wait() == "0:0", run.said
    told = job.resumed(2 * tasks, "10", plans=2)
    assert {t["CKPT_PATH"] for t in told if t["node"] == "n2"} == {str(job.tmp / "disks/n2")}


# ---- requeue


# Saves step 30 and, in place, the first half of step 40, and then hangs: until Slurm kills it, or until
# another start finds what it left.
SAVES = """\
import os, sys, time
from pathlib import Path
sys.path.insert(0, os.environ["HELPERS"])
from run_helpers import megatron
if os.environ.get("SLURM_RESTART_COUNT", "0") == "0" and os.environ["SLURM_PROCID"] == "1":
    root = Path(os.environ["ROOT"])
    megatron(root, (30,))
    megatron(root, (40,), tracker=False)
    for rank in range(2):
        path = root / f"iter_0000040/mp_rank_{rank:02d}/model_optim_rng.pt"
        path.write_bytes(path.read_bytes()[:1000 if rank else None])
    Path("in-save").touch()
if os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
    time.sleep(600)
"""


@pytest.mark.exhaustive
def test_requeued_in_the_middle_of_a_save(batch: Submit, slurm: Slurm, job: Job) -> None:
    """``scontrol requeue`` kills the tasks. The second run has the same job id and begins with the same step
    id, and must not take the first one's decision.
    """
    job.holds("found")
    (job.cwd / "saves.py").write_text(SAVES)
    script = 'sh -c "python train.py {ckpt.step} && exec python saves.py"'
    run = batch(f'srun ckpt run "$ROOT" --worker --plan-dir "$PLANS" -- {script}', HELPERS=str(SUPPORT))
    run.wait(until=job.cwd / "in-save")
    slurm.run("scontrol", "requeue", run.number)
    assert run.wait() == "0:0", run.said
    assert run.show()["Restarts"] == "1"
    before, after = ([t for t in job.told if t["restart"] == n] for n in "01")
    assert [[t["CKPT_STEP"] for t in told] for told in (before, after)] == [["20"] * 2, ["30"] * 2]
    plans = [Path(told[0]["CKPT_PLAN"]) for told in (before, after)]
    assert [p.parent.name for p in plans] == [f"slurm.ckpt-{run.number}.0.{n}" for n in "01"]
    assert "iter_0000040" in run.said  # what was passed over is said


@pytest.mark.exhaustive
def test_training_killed_in_a_save_and_requeued_ends_with_the_same_weights(batch: Submit, job: Job) -> None:
    """Each task is a rank of a real training with torch. Rank 1 dies in the save of step 6, the script has
    itself requeued, and goes on from step 4.
    """
    training = Training(job.tmp)
    ours = f"ckpt run {shlex.quote(str(training.root))} --worker --allow none"
    step = f"srun --kill-on-bad-exit=1 {ours} -- python {shlex.join(training.words)} '{{ckpt.args}}'"
    run = batch(f'{step} || scontrol requeue "$SLURM_JOB_ID"', **training.env("0:6:kill-in-save"))
    assert run.wait() == "0:0", run.said
    assert run.show()["Restarts"] == "1"
    for rank in range(2):
        starts = [(s["generation"], s["resumed"], s["CKPT_RESUME"]) for s in training.starts(rank)]
        assert starts == [(0, 0, "0"), (1, 4, "1")]
    assert training.weights(2) == uninterrupted(2, training.steps)


def test_what_is_said_names_the_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("slurm_cluster.PATH", str(tmp_path))
    words = r"not installed: munged.* apt-get install slurm-wlm munge openmpi-bin"
    with pytest.raises(pytest.fail.Exception, match=words):
        Slurm()
    installed = re.search(r"^packages=\((.*)\)$", (ROOT / ".ci/packages").read_text(), re.MULTILINE)
    assert installed and set(PACKAGES.split()) <= set(installed[1].split())
