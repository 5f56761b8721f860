"""A job id that comes back: the ranks of one start never resume by decisions of two. Decisions that nobody has made or
taken for long are removed by a later start; the clock is ours.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from run_helpers import SAY, ckpt, decided_body, megatron
from told_decider import Decisions

from ckpt_tools import launchers
from ckpt_tools.errors import CannotLook
from ckpt_tools.job import Options
from ckpt_tools.job import decider as room
from ckpt_tools.job.decider import KEPT_DAYS, Decider, hold_lock
from ckpt_tools.job.membership import Membership, make_node_membership, make_worker_membership
from ckpt_tools.model.selection import Selection

pytestmark = pytest.mark.slow  # several starts of processes


def task(rank: int, world: int, port: str = "40001", **more: str) -> dict[str, str]:
    """What srun gives one of its tasks, all on one node."""
    given = {
        "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_NODEID": 0, "SLURM_NTASKS": world,
        "SLURM_STEP_NUM_TASKS": world, "SLURM_STEP_NUM_NODES": 1, "SLURM_STEP_TASKS_PER_NODE": world, "SLURM_GPUS_ON_NODE": 1,
        "SLURM_STEP_LAUNCHER_PORT": port, **more,
    }  # fmt: skip
    return {name: str(value) for name, value in given.items() if value != ""}


def mpi(rank: int, random: str = "1a-2b", local: int = 2) -> dict[str, str]:
    place = {"RANK": rank, "SIZE": 2, "LOCAL_RANK": rank, "LOCAL_SIZE": local}
    return {f"OMPI_COMM_WORLD_{name}": f"{value}" for name, value in place.items()} | (
        {"OMPI_MCA_orte_precondition_transports": random} if random else {}
    )


def bare(rank: int, world: int = 2) -> dict[str, str]:
    """What a script of one's own says, for each process or each machine."""
    return {"CKPT_RANK": str(rank), "CKPT_WORLD_SIZE": str(world)}


def membership(env: dict[str, str], job: str = "", rank: int | None = None) -> Membership:
    return make_worker_membership(launchers.detect(env), env, job=job, rank=rank)


@pytest.mark.parametrize("job", ["", "nightly"])
@pytest.mark.parametrize(
    ("first", "beside", "later"),
    [
        (task(0, 2), task(1, 2), task(1, 2, "50002")),
        (task(0, 2, SLURM_JOB_START_TIME="1"), task(1, 2, SLURM_JOB_START_TIME="1"), task(1, 2, SLURM_JOB_START_TIME="2")),
        (mpi(0), mpi(1), mpi(1, "3c-4d")),
    ],
    ids=["srun", "job start", "mpirun"],
)  # fmt: skip
def test_launchers_that_tell_their_starts_apart(
    first: dict[str, str], beside: dict[str, str], later: dict[str, str], job: str
) -> None:
    one, same, other = (membership(env, job) for env in (first, beside, later))
    assert one.key == same.key != other.key and one.unique
    assert one.start


@pytest.mark.parametrize("started", [False, True])
def test_an_id_that_nothing_tells_from_that_of_an_earlier_start_and_a_key_that_nobody_gave(
    started: bool,
) -> None:
    """Several launchers may start the ranks of one job, and each component of it has a port of its own."""
    named = (
        membership(task(0, 2), "nightly", rank=1), membership(task(0, 2, SLURM_HET_SIZE="2"), rank=1), membership(task(0, 2, "")),
        membership(mpi(0, ""), "nightly"), membership(bare(0), "nightly"), make_node_membership(None, None, {}, Options(job="nightly", node=0, nodes=2), 2),
    )  # fmt: skip
    nameless = (
        membership(task(0, 2), rank=1),
        membership(mpi(0, "")),
        make_node_membership(None, None, {}, Options(), 2),
    )
    assert {(one.unique, bool(one.start)) for one in (nameless if started else named)} == {(True, started)}


def come(decisions: Decisions, rank: int, tree: int) -> int | None:
    """The tree that a rank starts by, which finds this one; None where it stops (exit code 5)."""
    body = {"schema": "ckpt-tools/plan/v1", "checkpoint": None, "resume_step": tree}
    with suppress(CannotLook):
        return decisions.told("job", f"rank-{rank}", lambda: body, saves=f"{tree}").decide().step
    return None


STARTS = st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 3), max_size=6)), max_size=5)


@examples(2000)
@given(STARTS)
def test_law(tmp_path_factory: pytest.TempPathFactory, starts: Sequence[tuple[int, Sequence[int]]]) -> None:
    """Whoever comes in whichever start, in whichever order, again after a stop or not at all, and whatever
    lies between two starts: all that start have decided from what is there now.
    """
    home, tree = tmp_path_factory.mktemp("decisions"), 0
    for saved, ranks in starts:
        tree += saved
        decisions, seen = Decisions(str(home / "plans"), str(home / "run")), dict[int, int | None]()
        for rank in ranks:
            if seen.get(rank) is None:  # who has started does not ask again
                seen[rank] = come(decisions, rank, tree)
        assert set(seen.values()) <= {tree, None}
        assert not seen or tree in seen.values() or saved or len(starts) > 1


def digest(root: Path, **selection: Any) -> str:
    """What a member of the job nightly finds."""
    of = make_node_membership(None, None, {}, Options(job="nightly", node=0, nodes=2), 2)
    return Decider(str(root), Selection(**selection), of, Options(), None, {}).digest_saves()


def test_what_a_decision_is_made_from(root: Path, tmp_path: Path) -> None:
    seen = [digest(root)]
    (root / "events.out.tfevents.1").write_bytes(b"x")
    (root / "logs").mkdir()
    assert digest(root) == digest(root, world_size=2) == seen[0]  # what a script writes when it starts
    (root / "latest_checkpointed_iteration.txt").write_text("10")
    seen.append(digest(root))
    (root / "iter_0000010/mp_rank_00/model_optim_rng.pt").unlink()
    seen.append(digest(root))
    megatron(root, steps=(30,))
    seen.append(digest(root))
    with (root / "iter_0000030/mp_rank_00/model_optim_rng.pt").open("ab") as file:
        file.write(b"x")  # it was still being written
    seen.append(digest(root))
    megatron(root / "other", steps=(40,))
    seen.append(digest(root))  # a question, which has an answer
    assert len(set(seen)) == len(seen)
    nothing = tmp_path / "empty"
    nothing.mkdir()
    assert digest(nothing, allow_none=True) == digest(nothing, allow_none=True)


@pytest.fixture
def rank(root: Path, tmp_path: Path) -> Any:
    def start(env: dict[str, str], *more: str) -> subprocess.CompletedProcess[str]:
        words = ["run", root, "--worker", "--plan-dir", tmp_path / "plans", "--replica-groups", "all"]
        return ckpt(*words, *more, "--", *SAY, env=env)

    return start


def step(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    found = re.search(r'"CKPT_STEP": "(\d+)"', done.stdout)
    assert found
    return found[1]


@pytest.mark.parametrize("name", [(), ("--job", "nightly")], ids=["slurm", "job"])
def test_srun_under_a_job_id_that_came_back(root: Path, rank: Any, name: tuple[str, ...]) -> None:
    """Rank 1 had not come when the first died; and the second has more of them."""
    assert step(rank(task(0, 2), *name)) == "20"
    megatron(root, steps=(30,))
    assert [step(rank(task(r, 4, "50002"), *name)) for r in (1, 3, 0, 2)] == ["30"] * 4
    megatron(root, steps=(40,))
    assert step(rank(task(0, 4, "50002"), *name)) == "40"  # it is of a later start, as it has come before


def test_a_job_name_that_is_given_twice(root: Path, rank: Any) -> None:
    assert step(rank(bare(0), "--job", "nightly")) == "20"
    assert step(rank(bare(0), "--job", "nightly")) == "20"
    megatron(root, steps=(30,))
    stopped = rank(bare(1), "--job", "nightly")
    assert stopped.returncode == 5 and "earlier start with this job id" in stopped.stderr
    assert step(rank(bare(1), "--job", "nightly-2")) == "30"
    remove = re.search(r"rm -r \S+", stopped.stderr)
    assert remove
    subprocess.run(["sh", "-c", remove[0]], check=True)
    assert [step(rank(bare(r), "--job", "nightly")) for r in (1, 0)] == ["30", "30"]


def test_a_replaced_process_that_trained_by_the_earlier_decision(root: Path, rank: Any) -> None:
    """Rank 0 was replaced before rank 1 came, so that the newest decision is not the one rank 1 started by."""
    assert [step(rank(bare(r), "--job", "uid")) for r in (0, 1, 0)] == ["20"] * 3
    megatron(root, steps=(30,))
    assert rank(bare(1), "--job", "uid").returncode == 5
    assert [step(rank(bare(r), "--job", "uid")) for r in (0, 1)] == ["30", "30"]


DAY = 86400.0


def decide(decisions: Decisions, key: str, member: str = "rank-0") -> Path:
    body = decided_body("/r/iter_20", 20)
    decisions.told(key, member, lambda: body).decide()
    return Path(decisions.directory, key)


def after(decisions: Decisions, days: float) -> set[str]:
    """The keys that are left when somebody decides so much later."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "time", SimpleNamespace(time=lambda: time.time() + days * DAY))
        decide(decisions, "next")
    return {p.name for p in Path(decisions.directory).iterdir() if p.is_dir()} - {"next"}


@pytest.fixture
def decisions(tmp_path: Path) -> Decisions:
    return Decisions(str(tmp_path / "plans"), str(tmp_path / "run"))


def test_a_decision_goes_when_it_was_not_taken_for_long(decisions: Decisions) -> None:
    keys = [decide(decisions, name) for name in ("old", "taken", "new")]
    for key in keys[:2]:
        for path in (*key.rglob("*"), key):
            os.utime(path, (at := time.time() - 50 * DAY, at))
    decide(decisions, "taken", "rank-1")
    assert after(decisions, 0) == after(decisions, KEPT_DAYS - 51) == {"old", "taken", "new"}
    assert after(decisions, KEPT_DAYS - 49) == {"taken", "new"}
    assert after(decisions, KEPT_DAYS + 1) == set()


def test_a_key_under_which_somebody_decides_stays(decisions: Decisions) -> None:
    key = decide(decisions, "old")
    with hold_lock(str(key / "lock"), 1):
        assert after(decisions, 3650) == {"old"}
    assert after(decisions, 3650) == set()


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_what_cannot_be_seen_stays(
    decisions: Decisions, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    key = decide(decisions, "old")
    real = os.scandir

    def failing(path: Any) -> Any:
        if path == str(key):
            raise OSError(number, os.strerror(number), path)
        return real(path)

    monkeypatch.setattr(os, "scandir", failing)
    assert after(decisions, 3650) == {"old"}


def test_the_command_says_nothing_of_it(root: Path, plans: Path) -> None:
    key = decide(Decisions(str(plans), str(root)), "old")
    for path in (*key.rglob("*"), key):
        os.utime(path, (1, 1))
    done = ckpt("run", root, "--plan-dir", plans, "-q", "--", "true")
    assert (done.returncode, done.stderr) == (0, "") and not key.exists()
