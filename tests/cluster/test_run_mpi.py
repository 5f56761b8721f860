"""``ckpt run`` and ``ckpt latest`` under a real mpirun (Open MPI)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hook_job import BIN
from run_helpers import CLEAN, broken, megatron, one_file_per_rank
from slurm_cluster import needs
from training_script import Training, uninterrupted

SAY = """\
import json, os, sys
seen = {k: v for k, v in os.environ.items() if k.startswith("CKPT_")}
with open(f"{os.environ['NOTES']}/{os.environ['OMPI_COMM_WORLD_RANK']}-{sys.argv[1]}", "x") as f:
    json.dump({**seen, "args": sys.argv[2:]}, f)
sys.exit(int(os.environ.get("FAIL" + os.environ["OMPI_COMM_WORLD_RANK"], "0")))
"""


class Mpi:
    """A directory with checkpoints, and mpirun beside it."""

    def __init__(self, tmp: Path) -> None:
        needs("mpirun")
        self.tmp, self.root, self.plans, self.notes = tmp, tmp / "run 7", tmp / "plans", tmp / "notes"
        self.root.mkdir()
        self.notes.mkdir()
        (tmp / "say.py").write_text(SAY)
        self.ckpt = [str(BIN / "ckpt"), "run", str(self.root), "--plan-dir", str(self.plans)]
        self.say = [sys.executable, str(tmp / "say.py")]

    @staticmethod
    def mpirun(ranks: int = 2) -> list[str]:
        as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return ["mpirun", *as_root, "--oversubscribe", "-n", str(ranks)]

    def start(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        own = {"PATH": f"{BIN}:{os.environ['PATH']}", "NOTES": str(self.notes), "OMP_NUM_THREADS": "1"}
        full = {**CLEAN, **own, **env}
        return subprocess.run(words, env=full, capture_output=True, text=True, timeout=1000)

    def told(self, start: str) -> dict[str, dict[str, str]]:
        """By rank, what those of one start saw."""
        return {p.name.partition("-")[0]: json.loads(p.read_text()) for p in self.notes.glob(f"*-{start}")}

    @property
    def decisions(self) -> list[Path]:
        return sorted(self.plans.glob("*/*/[0-9]*.json"))


@pytest.fixture
def mpi(tmp_path: Path) -> Mpi:
    return Mpi(tmp_path)


def test_the_ranks_share_a_decision_and_each_is_told_its_own_file(mpi: Mpi) -> None:
    one_file_per_rank(mpi.root)
    worker = [*mpi.mpirun(), *mpi.ckpt, "--worker", "--", *mpi.say]
    done = mpi.start(*worker, "first", "--at={ckpt.step}", "{ckpt.path}")
    assert done.returncode == 0, done.stderr
    told = mpi.told("first")
    files = [str(mpi.root / f"rank_{r}/net-1_20.ckpt") for r in range(2)]
    assert {rank: t["CKPT_PATH"] for rank, t in told.items()} == dict(zip("01", files, strict=True))
    assert [told[rank]["args"] for rank in "01"] == [["--at=20", file] for file in files]
    assert [str(p) for p in mpi.decisions] == [told["0"]["CKPT_PLAN"]] == [told["1"]["CKPT_PLAN"]]
    one_file_per_rank(mpi.root, (30,))
    assert mpi.start(*worker, "second").returncode == 0
    assert {t["CKPT_STEP"] for t in mpi.told("second").values()} == {"30"}  # another mpirun decides anew
    # by its own id, whoever of the first one was told
    assert len(mpi.decisions) == len({p.parent for p in mpi.decisions}) == 2


@pytest.mark.parametrize("inside", [False, True])
def test_latest_gives_each_rank_its_own_file_of_one_step(mpi: Mpi, inside: bool) -> None:
    """Asked alone, and inside a job that has decided; rank 1's newest file is damaged."""
    one_file_per_rank(mpi.root)
    bad = mpi.root / "rank_1/net-1_20.ckpt"
    data, at = bad.read_bytes(), bad.stat().st_mtime
    bad.write_bytes(data[:-30])
    os.utime(bad, (at, at))
    ask = ["sh", "-c", 'ckpt latest "$ROOT" > "$NOTES/$OMPI_COMM_WORLD_RANK-asked"']
    around = [*mpi.ckpt, "--worker", "--"] if inside else []
    done = mpi.start(*mpi.mpirun(), *around, *ask, ROOT=str(mpi.root))
    assert done.returncode == 0, done.stderr
    for r in range(2):
        assert (mpi.notes / f"{r}-asked").read_text() == f"{mpi.root}/rank_{r}/net-1_10.ckpt\n"


def test_around_mpirun_it_is_decided_once(mpi: Mpi) -> None:
    megatron(mpi.root, world=4)
    broken(mpi.root, 20, 3)
    done = mpi.start(*mpi.ckpt, "--", *mpi.mpirun(4), *mpi.say, "outer", "{ckpt.args}")
    assert done.returncode == 0, done.stderr
    told = mpi.told("outer")
    args = ["--load", str(mpi.root), "--ckpt-step", "10"]
    assert {rank: t["args"] for rank, t in told.items()} == dict.fromkeys("0123", args)
    (plan,) = mpi.decisions
    assert {t["CKPT_PLAN"] for t in told.values()} == {str(plan)}


def test_exit_codes_pass_through(mpi: Mpi) -> None:
    megatron(mpi.root)
    inner = [*mpi.mpirun(), *mpi.ckpt, "--worker", "--", *mpi.say]
    outer = [*mpi.ckpt, "--", *mpi.mpirun(), *mpi.say]
    assert mpi.start(*inner, "inner", FAIL1="37").returncode == 37
    assert mpi.start(*outer, "outer", FAIL1="38").returncode == 38


def test_none_usable_starts_no_rank(mpi: Mpi) -> None:
    megatron(mpi.root)
    for step in (10, 20):
        broken(mpi.root, step)
    for line in (
        [*mpi.mpirun(), *mpi.ckpt, "--worker", "--allow=none", "--", *mpi.say, "x"],
        [*mpi.ckpt, "--allow=none", "--", *mpi.mpirun(), *mpi.say, "x"],
    ):
        done = mpi.start(*line)
        assert done.returncode == 4 and "none is usable" in done.stderr and mpi.told("x") == {}


@pytest.mark.exhaustive
def test_training_killed_in_a_save_ends_with_the_same_weights(mpi: Mpi) -> None:
    """Each process is a rank of a real training with torch. Rank 1 dies in the save of step 6, and the next
    mpirun goes on from step 4.
    """
    training = Training(mpi.tmp)
    ours = ["ckpt", "run", str(training.root), "--worker", "--allow=none", "--"]
    line = [*mpi.mpirun(), *ours, sys.executable, *training.words, "{ckpt.args}"]
    assert mpi.start(*line, **training.env("0:6:kill-in-save")).returncode != 0
    done = mpi.start(*line, **training.env())
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert [start["resumed"] for start in training.starts(rank)] == [0, 4], done.stderr
    assert training.weights(2) == uninterrupted(2, training.steps)
