"""Who started us: what each launcher's environment is taken for, and that no environment is an error.

The Slurm environments were recorded from Slurm 22.05.8 (one node, task/none), those of Hydra from
mpiexec.hydra of MPICH 4.0.2. What msrun, MindCluster and the Kubernetes controllers set is rewritten from
their sources, named in each LAUNCHER.reference: they cannot run here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import UserDict
from itertools import product

import pytest
from examples import examples
from fixture_trees import tree
from hypothesis import given
from hypothesis import strategies as st
from in_process import executed

from ckpt_tools.api import latest
from ckpt_tools.errors import UsageError
from ckpt_tools.job.membership import Process
from ckpt_tools.launchers import LAUNCHERS, Started, detect, read_launch_line
from ckpt_tools.model.plan import Known
from ckpt_tools.model.selection import Selection

NUMBERS = ("rank", "world_size", "local_rank", "local_world_size", "node", "nodes", "restart", "max_restarts")


def env(text: str, **more: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in text.split()) | more


def numbers(started: Started) -> dict[str, int]:
    return {name: known.value for name in NUMBERS if (known := getattr(started, name)) is not None}


def values(rank: int, world_size: int, **others: int) -> dict[str, int]:
    return {"rank": rank, "world_size": world_size, **others}


TORCHRUN = env(
    "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 GROUP_RANK=1 GROUP_WORLD_SIZE=2"
    " TORCHELASTIC_RUN_ID=run-7 TORCHELASTIC_RESTART_COUNT=2 TORCHELASTIC_MAX_RESTARTS=32767"
)
RESTARTS = {"restart": 2, "max_restarts": 32767}
MSRUN = env("MS_ROLE=MS_WORKER MS_WORKER_NUM=16 MS_NODE_ID=9 MS_SCHED_HOST=10.0.0.1 MS_SCHED_PORT=8118")
NEWER_MSRUN = MSRUN | env("RANK_ID=9 RANK_SIZE=16 DEVICE_ID=1")
MINDCLUSTER = env(
    "MS_ROLE=MS_WORKER MS_WORKER_NUM=16 MS_LOCAL_WORKER=8 MS_NODE_RANK=1 MS_SERVER_NUM=0 MINDX_TASK_ID=4b7c"
)
SCHEDULER = NEWER_MSRUN | {"MS_ROLE": "MS_SCHED", "RANK_ID": "0"}

_JOB = "SLURM_JOB_NAME=job.sh SLURM_JOB_NUM_NODES=1 SLURM_NNODES=1 SLURM_NODEID=0"
BATCH = env(
    f"SLURM_JOB_ID=1 {_JOB} SLURM_GTIDS=0 SLURM_LOCALID=0 SLURM_NTASKS=4 SLURM_PROCID=0"
    " SLURM_TASKS_PER_NODE=4 SLURM_SUBMIT_DIR=/tmp"
)
SRUN = env(
    f"SLURM_JOB_ID=1 {_JOB} SLURM_GTIDS=0,1,2,3 SLURM_LOCALID=1 SLURM_NTASKS=4 SLURM_PROCID=1 SLURM_STEPID=0"
    " SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=4 SLURM_STEP_TASKS_PER_NODE=4"
    " SLURM_TASKS_PER_NODE=4 SLURM_SUBMIT_DIR=/tmp"
)
SUBMITTED_FROM_A_TASK = env(
    f"SLURM_JOB_ID=9 {_JOB} SLURM_GTIDS=0 SLURM_LOCALID=0 SLURM_NTASKS=3 SLURM_PROCID=0 SLURM_STEP_ID=0"
    " SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=3 SLURM_STEP_TASKS_PER_NODE=3 SLURM_TASKS_PER_NODE=3"
)
SUBMITTED_FROM_A_SHELL = SRUN | env(  # sbatch within srun --pty bash
    "SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_GTIDS=0 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1"
    " SLURM_NTASKS=8 SLURM_GPUS_ON_NODE=1"
)
SALLOC = env(
    "SLURM_JOB_ID=3 SLURM_JOB_NAME=interactive SLURM_JOB_NUM_NODES=1 SLURM_NNODES=1 SLURM_NTASKS=2"
    " SLURM_TASKS_PER_NODE=2"
)
INTERACTIVE_STEP = SALLOC | env(
    "SLURM_GTIDS=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=1 SLURM_PROCID=0 SLURM_STEP_ID=4294967290"
    " SLURM_STEPID=4294967290 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1"
    " SLURM_TASKS_PER_NODE=1"
)
ONE_TASK_PER_NODE = env(
    "SLURM_JOB_ID=5 SLURM_JOB_NAME=train SLURM_GTIDS=1 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_NNODES=2"
    " SLURM_NTASKS=2 SLURM_PROCID=1 SLURM_STEP_ID=0 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NUM_TASKS=2"
    " SLURM_STEP_TASKS_PER_NODE=1(x2)"
)
UNEVEN = SRUN | env(
    "SLURM_NTASKS=7 SLURM_STEP_NUM_TASKS=7 SLURM_STEP_TASKS_PER_NODE=2(x3),1 SLURM_NNODES=4"
    " SLURM_STEP_NUM_NODES=4"
)

OPEN_MPI = env(
    "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2"
    " OMPI_COMM_WORLD_NODE_RANK=1 PMIX_RANK=3"
)
HYDRA = env("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2 PMI_FD=8")
PMIX = {"PMIX_RANK": "3", "PMIX_NAMESPACE": "prterun-a-12@1"}

POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
TRAINER = POD | env(
    "PET_NNODES=4 PET_NPROC_PER_NODE=8 PET_NODE_RANK=3 PET_MASTER_PORT=29500 JOB_COMPLETION_INDEX=3"
)
ELASTIC = POD | env("PET_NNODES=1:3 PET_NPROC_PER_NODE=auto PET_RDZV_ID=j PET_MAX_RESTARTS=3")
VOLCANO = POD | env("VC_TASK_INDEX=0 VK_TASK_INDEX=0 VC_MASTER_NUM=1 VC_WORKER_NUM=3")
ASCEND_JOB = POD | env(
    "RANK=1 WORLD_SIZE=16 LOCAL_WORLD_SIZE=8 LOCAL_RANK=0,1,2,3,4,5,6,7 MINDX_TASK_ID=4b7c"
)
DEEPSPEED = env("RANK=3 LOCAL_RANK=1 WORLD_SIZE=4 LOCAL_SIZE=2 CROSS_RANK=1 CROSS_SIZE=2")

TAKEN = {
    "torchrun": (TORCHRUN, "torchrun", values(5, 8, local_rank=1, local_world_size=4, node=1, nodes=2, **RESTARTS)),
    "torchrun --virtual-local-rank": (TORCHRUN | {"LOCAL_RANK": "0"}, "torchrun", values(5, 8, local_world_size=4, node=1, nodes=2, **RESTARTS)),
    "torchrun under srun": (SRUN | TORCHRUN, "torchrun", values(5, 8, local_rank=1, local_world_size=4, node=1, nodes=2, **RESTARTS)),
    "torchrun in a pod": (ELASTIC | TORCHRUN, "torchrun", values(5, 8, local_rank=1, local_world_size=4, node=1, nodes=2, **RESTARTS)),
    "torchrun in Volcano": (VOLCANO | TORCHRUN, "torchrun", values(5, 8, local_rank=1, local_world_size=4, node=1, nodes=2, **RESTARTS)),
    "torchrun in an AscendJob": (ASCEND_JOB | TORCHRUN, "torchrun", values(5, 8, local_rank=1, local_world_size=4, node=1, nodes=2, **RESTARTS)),
    "msrun": (MSRUN, "msrun", values(9, 16)),
    "newer msrun": (NEWER_MSRUN, "msrun", values(9, 16, local_rank=1)),
    "a device of somebody else": (MSRUN | {"DEVICE_ID": "1"}, "msrun", values(9, 16)),
    "MindCluster": (MINDCLUSTER | NEWER_MSRUN, "msrun", values(9, 16, local_rank=1, local_world_size=8, node=1, nodes=2)),
    "srun": (SRUN, "slurm", values(1, 4, local_rank=1, local_world_size=4, node=0, nodes=1)),
    "four tasks in salloc": (SRUN | {"SLURM_JOB_NAME": "interactive"}, "slurm", values(1, 4, local_rank=1, local_world_size=4, node=0, nodes=1)),
    "srun with PMI": (SRUN | env("PMI_RANK=1 PMI_SIZE=4 PMI_JOBID=1.1 PMI_FD=13 SLURM_MPI_TYPE=pmi2"), "slurm", values(1, 4, local_rank=1, local_world_size=4, node=0, nodes=1)),
    "srun with PMIx": (SRUN | env("PMIX_RANK=1 PMIX_NAMESPACE=slurm.pmix.1.0"), "slurm", values(1, 4, local_rank=1, local_world_size=4, node=0, nodes=1)),
    "one task with a GPU": (ONE_TASK_PER_NODE | {"SLURM_GPUS_ON_NODE": "1"}, "slurm", values(1, 2, local_rank=0, local_world_size=1, node=1, nodes=2)),
    "the last of uneven nodes": (UNEVEN | env("SLURM_NODEID=3 SLURM_PROCID=6 SLURM_LOCALID=0 SLURM_GTIDS=6"), "slurm", values(6, 7, local_rank=0, local_world_size=1, node=3, nodes=4)),
    "the third of uneven nodes": (UNEVEN | env("SLURM_NODEID=2 SLURM_PROCID=5 SLURM_LOCALID=1 SLURM_GTIDS=4,5"), "slurm", values(5, 7, local_rank=1, local_world_size=2, node=2, nodes=4)),
    "Open MPI": (OPEN_MPI, "mpi", values(3, 8, local_rank=1, local_world_size=2)),  # nothing tells the node: NODE_RANK is none
    "Hydra": (HYDRA, "mpi", values(1, 2, local_rank=1, local_world_size=2, node=0, nodes=1)),
    "PMIx": (PMIX, "mpi", {"rank": 3}),
    "mpirun in a job, first node": (BATCH | OPEN_MPI, "mpi", values(3, 8, local_rank=1, local_world_size=2)),
    "mpirun in a job, its daemon": (ONE_TASK_PER_NODE | {"SLURM_GPUS_ON_NODE": "1"} | OPEN_MPI, "mpi", values(3, 8, local_rank=1, local_world_size=2)),
    "DeepSpeed in Volcano": (VOLCANO | env("RANK=3 LOCAL_RANK=1 WORLD_SIZE=4"), "bare", values(3, 4, local_rank=1)),
    "DeepSpeed": (DEEPSPEED, "bare", values(3, 4, local_rank=1, local_world_size=2, node=1, nodes=2)),
    "a rank table": (env("RANK_ID=3 RANK_SIZE=8 DEVICE_ID=7"), "bare", values(3, 8)),
    "in an allocation": (BATCH | env("RANK=3 LOCAL_RANK=1 WORLD_SIZE=4 SLURM_RESTART_COUNT=2"), "bare", values(3, 4, local_rank=1, restart=2)),
}  # fmt: skip


@pytest.mark.parametrize(("given_env", "launcher", "found"), TAKEN.values(), ids=TAKEN)
def test_what_is_taken(given_env, launcher, found):
    s = detect(given_env)
    assert (s.launcher, s.unclear, numbers(s)) == (launcher, "", found) and not s.skip


NEEDED, WITHOUT = ("RANK", "WORLD_SIZE", "LOCAL_RANK"), ("TORCHELASTIC_RUN_ID=run-7",)
LEFT = {"node": 1, "nodes": 2, **RESTARTS}
"""Without one of the numbers that torchrun's workers need."""
REFUSED = [
    (TORCHRUN | {"RANK": "8"}, "torchrun", ("RANK (torchrun) is 8", "8 of WORLD_SIZE"), RESTARTS),
    (TORCHRUN | {"WORLD_SIZE": "0"}, "torchrun", ("WORLD_SIZE",), RESTARTS),
    (TORCHRUN | {"GROUP_RANK": "2"}, "torchrun", ("GROUP_RANK (torchrun) is 2",), RESTARTS),
    (TORCHRUN | {"LOCAL_WORLD_SIZE": "9"}, "torchrun", ("LOCAL_WORLD_SIZE (torchrun) is 9",), RESTARTS),
    (TORCHRUN | {"WORLD_SIZE": "999999999"}, "torchrun", ("WORLD_SIZE (torchrun) is 999999999",), RESTARTS),
    (MINDCLUSTER, "msrun", ("MS_NODE_RANK=1", "MS_NODE_ID"), {"world_size": 16, "local_world_size": 8, "node": 1, "nodes": 2}),
    (SCHEDULER, "msrun", ("MS_ROLE=MS_SCHED",), {"world_size": 16}),
    (env("MS_ROLE=MS_WORKER MS_WORKER_NUM=16 RANK_ID=0 RANK_SIZE=16 DEVICE_ID=3"), "msrun", ("RANK_ID=0", "MS_NODE_ID"), {"world_size": 16}),  # not the scheduler's
    (BATCH, "slurm", ("SLURM_PROCID=0", "script of sbatch"), {"nodes": 1}),
    (BATCH | {"SLURM_STEP_ID": "4294967291"}, "slurm", ("SLURM_STEP_ID=4294967291",), {"nodes": 1}),
    (BATCH | {"SLURM_STEP_ID": "batch"}, "slurm", ("SLURM_STEP_ID=batch",), {"nodes": 1}),
    (SUBMITTED_FROM_A_TASK, "slurm", ("SLURM_GTIDS=0", "different steps"), {}),
    (SUBMITTED_FROM_A_SHELL, "slurm", ("SLURM_NTASKS=8", "different steps"), {}),
    (SUBMITTED_FROM_A_TASK | {"SLURM_NTASKS": "2"}, "slurm", ("SLURM_NTASKS=2", "SLURM_STEP_NUM_TASKS=3"), {}),
    (SALLOC, "slurm", ("SLURM_JOB_ID=3", "shell"), {"nodes": 1}),
    (INTERACTIVE_STEP, "slurm", ("SLURM_STEP_ID=4294967290", "shell"), {"nodes": 1}),
    (INTERACTIVE_STEP | env("SLURM_STEP_ID=0 SLURM_JOB_NAME=bash"), "slurm", ("SLURM_JOB_NAME=bash", "shell"), {"node": 0, "nodes": 1}),
    (ONE_TASK_PER_NODE, "slurm", ("SLURM_PROCID=1", "one task per node"), {"node": 1, "nodes": 2}),
    (ONE_TASK_PER_NODE | {"SLURM_GPUS_ON_NODE": "8"}, "slurm", ("SLURM_GPUS_ON_NODE=8",), {"node": 1, "nodes": 2}),
    (SRUN | {"SLURM_HET_SIZE": "2"}, "slurm", ("SLURM_HET_SIZE=2",), {"node": 0, "nodes": 1}),
    (env("OMPI_COMM_WORLD_RANK=3"), "mpi", ("OMPI_COMM_WORLD_RANK=3",), {}),
    (env("PMIX_RANK=x"), "mpi", ("PMIX_RANK=x",), {}),
    (TRAINER, "kubernetes", ("PET_NODE_RANK=3",), {"world_size": 32, "local_world_size": 8, "node": 3, "nodes": 4}),
    (ELASTIC, "kubernetes", ("PET_NNODES=1:3",), {"max_restarts": 3}),
    (POD | env("JOB_COMPLETION_INDEX=2"), "kubernetes", ("JOB_COMPLETION_INDEX=2",), {"node": 2}),
    (VOLCANO | env("RANK=1 WORLD_SIZE=4 MASTER_PORT=23456"), "kubernetes", ("RANK=1", "WORLD_SIZE=4", "pods"), {"node": 1, "nodes": 4}),
    (VOLCANO, "kubernetes", ("VC_TASK_INDEX=0", "one task"), {}),  # an init container: master 0 or worker 0
    (POD | env("VC_TASK_INDEX=2 VC_TRAIN_NUM=3"), "kubernetes", ("VC_TASK_INDEX=2",), {"node": 2, "nodes": 3}),
    (VOLCANO | env("RANK=1 LOCAL_RANK=x WORLD_SIZE=4"), "kubernetes", ("VC_TASK_INDEX=0",), {}),  # not the plug-in's RANK: no pod either
    (POD | env("RANK=1 WORLD_SIZE=4"), "kubernetes", ("RANK=1, WORLD_SIZE=4", "pods"), {}),
    (POD | env("RANK=1 WORLD_SIZE=4 LOCAL_RANK=x"), "bare", ("LOCAL_RANK=x",), {}),
    (ASCEND_JOB, "kubernetes", ("LOCAL_RANK=0,1,2,3",), {"world_size": 16, "local_world_size": 8, "node": 1, "nodes": 2}),
    *((env(alone), "bare", alone.split(), {}) for alone in (
        "RANK=1", "RANK=1 WORLD_SIZE=2", "RANK=1 LOCAL_RANK=0", "RANK=x WORLD_SIZE=y", "RANK_ID=1", "RANK_ID=1 RANK_SIZE=z DEVICE_ID=1",
    )),
    *(({k: v for k, v in TORCHRUN.items() if k != name}, "torchrun", WITHOUT, LEFT) for name in NEEDED),
    *((TORCHRUN | {name: value}, "torchrun", WITHOUT, LEFT) for name, value in product(NEEDED, ("", "x", "-1", "1.5", "٣", "99999999999"))),
]  # fmt: skip
"""(environment, launcher, what the reason names, the numbers that are left)."""


@pytest.mark.parametrize(
    ("given_env", "launcher", "words", "left"), REFUSED, ids=[row[2][0] for row in REFUSED]
)
def test_what_is_refused(given_env, launcher, words, left):
    """No rank: ``unclear`` names what was seen, and ``hint`` says what to do."""
    s = detect(given_env)
    assert (s.launcher, s.rank) == (launcher, None) and s.hint
    assert all(word in s.unclear for word in words), s.unclear
    assert numbers(s) == left


def test_each_number_names_its_variable():
    for given_env, name, known in (
        (TORCHRUN, "rank", Known(5, "RANK (torchrun)")), (TORCHRUN, "world_size", Known(8, "WORLD_SIZE (torchrun)")), (MSRUN, "rank", Known(9, "MS_NODE_ID (msrun)")),
        (SRUN, "rank", Known(1, "SLURM_PROCID (slurm)")), (SRUN, "world_size", Known(4, "SLURM_STEP_NUM_TASKS (slurm)")), (OPEN_MPI, "rank", Known(3, "OMPI_COMM_WORLD_RANK (mpi)")),
        (TRAINER, "world_size", Known(32, "PET_NNODES × PET_NPROC_PER_NODE (kubernetes)")), ({"CKPT_RANK": "3"}, "rank", Known(3, "CKPT_RANK (bare)")),
    ):  # fmt: skip
        assert getattr(detect(given_env), name) == known
    asked = {k: v for k, v in SRUN.items() if "TASKS_PER_NODE" not in k} | {"SLURM_NTASKS_PER_NODE": "4"}
    for garbage in ("", "x", "2(x", "2(x3", "(x3)", "2(xx)", ","):
        s = detect(asked | {"SLURM_STEP_TASKS_PER_NODE": garbage})
        assert s.local_world_size == Known(4, "SLURM_NTASKS_PER_NODE (slurm)")


@pytest.mark.parametrize(
    ("given_env", "job", "job_from"),
    [
        (TORCHRUN, "run-7", "TORCHELASTIC_RUN_ID"),
        (TORCHRUN | {"TORCHELASTIC_RUN_ID": "none"}, "", ""),  # its default
        (MINDCLUSTER | NEWER_MSRUN, "4b7c", "MINDX_TASK_ID"),
        (SRUN, "1", "SLURM_JOB_ID"),
        (BATCH, "1", "SLURM_JOB_ID"),  # the script and its tasks say the same
        (BATCH | env("RANK=3 LOCAL_RANK=1 WORLD_SIZE=4"), "1", "SLURM_JOB_ID"),
        (SRUN | env("SLURM_ARRAY_JOB_ID=2 SLURM_ARRAY_TASK_ID=3"), "2_3", "SLURM_ARRAY_JOB_ID and SLURM_ARRAY_TASK_ID"),
        (ELASTIC, "j", "PET_RDZV_ID"),
        (ASCEND_JOB, "4b7c", "MINDX_TASK_ID"),
    ],
)  # fmt: skip
def test_ids_of_jobs(given_env, job, job_from):
    s = detect(given_env)
    assert (s.job, s.job_from) == (job, job_from)
    if s.launcher == "slurm":
        again = detect(given_env | {"SLURM_RESTART_COUNT": "1"})
        assert again.restart == Known(1, "SLURM_RESTART_COUNT (slurm)")


def test_what_to_do_and_who_is_none():
    assert '--rank "$SLURM_PROCID"' in detect(ONE_TASK_PER_NODE).hint
    assert '--rank "$JOB_COMPLETION_INDEX"' in detect(POD | env("JOB_COMPLETION_INDEX=2")).hint
    assert detect(SCHEDULER).skip
    assert detect({}) is None
    assert detect({"PATH": "/bin", "DEVICE_ID": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}) is None


READ = {name for launcher in LAUNCHERS for name in launcher.variables}
VARIABLES = sorted(READ | {"VC_A_NUM", "SLURM_STEPID", "SLURM_JOBID"})
ODD = (
    "", "0", "1", "2", "7", "-1", "x", "none", "1:4", "auto", "2(x3),1", "0,1", "4294967290", "9" * 30,
    "\x1b[2J", "\udc80", "²", "MS_SCHED", "MS_WORKER", "bash", "1 ",
)  # fmt: skip


@pytest.mark.slow
@examples(500)
@given(st.dictionaries(st.sampled_from(VARIABLES), st.sampled_from(ODD) | st.text(max_size=8), max_size=14))
def test_no_environment_is_an_error(given_env):
    for s in (detect(given_env), *(launcher.detect(given_env) for launcher in LAUNCHERS)):
        if s is None:
            continue
        assert (s.rank is None) == bool(s.unclear) == bool(s.hint)
        assert not (s.skip and s.rank)
        assert bool(s.job) == bool(s.job_from)
        for index, count in ((s.rank, s.world_size), (s.local_rank, s.local_world_size), (s.node, s.nodes)):
            assert not (index and count) or 0 <= index.value < count.value
        assert not (s.local_world_size and s.world_size) or s.local_world_size.value <= s.world_size.value
        known = [one for name in NUMBERS if name != "restart" and (one := getattr(s, name))]
        assert all(one.provenance.endswith(f"({s.launcher})") for one in known)
        s.unclear.encode()  # can be printed


class Recorder(UserDict):
    """An environment that notes what is asked for."""

    def __init__(self, given_env: dict[str, str], asked: set[str]) -> None:
        self.asked = set[str]()
        super().__init__(given_env)
        self.asked = asked

    def __contains__(self, name: object) -> bool:
        self.asked.add(str(name))
        return super().__contains__(name)

    def __getitem__(self, name: str) -> str:
        self.asked.add(name)
        return super().__getitem__(name)


def test_launchers_declare_what_they_read():
    alone = ("CKPT_RANK=1", "PMIX_RANK=1", "RANK=1 LOCAL_RANK=0,1", "SLURM_ARRAY_JOB_ID=1 SLURM_ARRAY_TASK_ID=1 SLURM_PROCID=0 SLURM_STEP_ID=0 SLURM_NTASKS=1")  # fmt: skip
    samples = [*(row[0] for row in (*TAKEN.values(), *REFUSED)), *map(env, alone)]
    assert " ".join(one.name for one in LAUNCHERS) == "torchrun msrun slurm mpi kubernetes bare"
    # older names, and whom it lets go first
    others = {"slurm": {"SLURM_JOBID", "SLURM_STEPID", "OMPI_COMM_WORLD_RANK", "MPI_LOCALRANKID"}}
    for launcher in LAUNCHERS:
        asked: set[str] = set()
        for sample in samples:
            launcher.detect(Recorder(sample, asked))
        named = {name for name in asked - others.get(launcher.name, set()) if not name.endswith("_NUM")}
        assert named == {name for name in launcher.variables if not name.endswith("_NUM")}
        assert launcher.reference


@pytest.fixture
def environment(monkeypatch):
    def put(given_env: dict[str, str]) -> None:
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
        for name, value in given_env.items():
            monkeypatch.setenv(name, value)

    put({})
    return put


@pytest.mark.slow
def test_latest_says_what_is_unclear(tmp_path, environment):
    root = str(tree("tp", tmp_path))
    with pytest.raises(UsageError, match=r"which rank is asking is unknown"):
        latest(root)
    environment(BATCH)
    said = "unknown: SLURM_JOB_ID=1, SLURM_PROCID=0, SLURM_NTASKS=4: the script of sbatch"
    with pytest.raises(UsageError, match=said) as e:
        latest(root)
    assert "srun" in e.value.hint
    assert latest(root, Selection(rank=1)).ranks[0].rank == 1  # --rank goes before everything
    environment({"CKPT_RANK": "1"})
    assert latest(root).ranks[0].rank == 1
    environment(SCHEDULER)  # msrun's loads nothing
    with pytest.raises(UsageError, match=r"^MS_ROLE=MS_SCHED"):
        latest(root)


@pytest.mark.slow
def test_the_command(environment):
    environment(TORCHRUN)
    out = executed(["launchers"])[1]
    assert re.search(r"^rank +5 +RANK \(torchrun\)$", out, re.MULTILINE)
    assert re.search(r"^job +run-7 +TORCHELASTIC_RUN_ID$", out, re.MULTILINE)
    answer = json.loads(executed(["launchers", "--json"])[1])
    assert set(answer["detected"]) == set(Started.__match_args__)
    assert answer["detected"]["nodes"] == {"value": 2, "provenance": "GROUP_WORLD_SIZE (torchrun)"}
    first = answer["launchers"][0]
    assert (first["name"], first["rank"], first["world_size"]) == ("torchrun", 5, 8)
    environment(BATCH | {"SLURM_JOB_ID": "\x1b[2J"})
    out = executed(["launchers"])[1]
    assert "unclear: SLURM_JOB_ID=" in out and "hint: " in out and "\x1b" not in out
    environment({})
    assert json.loads(executed(["launchers", "--json"])[1])["detected"] is None


ONE_NODE = TORCHRUN | env("RANK=1 LOCAL_WORLD_SIZE=8 GROUP_RANK=0 GROUP_WORLD_SIZE=1")


@pytest.mark.parametrize("ranks", [ONE_NODE, TORCHRUN, NEWER_MSRUN, SRUN, OPEN_MPI, HYDRA, PMIX])
def test_no_rank_decides_for_itself(ranks, environment, tmp_path):
    """Without --worker each would resume from what is the newest when it asks."""
    root = tree("tp", tmp_path)
    environment(ranks | {"XDG_STATE_HOME": str(tmp_path), "CKPT_NO_CACHE": "1"})
    code, out, err = executed(["hook", str(root)])
    assert code == 2 and "would decide alone" in err and "--" in err, (out, err)


LINES = {
    "torchrun --nproc 2 train.py -- --x": "torchrun --nproc 2 --no-python run -- python -u train.py -- --x",
    "torchrun --node_rank 1 -- a.py": "torchrun --node_rank 1 --no-python run -- python -u a.py",
    "torchrun --role -m --module pkg -m": "torchrun --role -m --no-python run -- python -u -m pkg -m",
    "torchrun --no_py ./a.sh": "torchrun --no-python run -- ./a.sh",
    **dict.fromkeys(("python train.py --launcher torchrun", "echo which torchrun", "torchrun --help"), ""),
}


@pytest.mark.parametrize(("words", "inside"), LINES.items())
def test_lines_that_start_torchrun(words, inside):
    line = read_launch_line(words.split(), {})
    assert " ".join(line.inside(["run"]) if line else ()) == inside


def test_without_proc_a_process_that_ended_is_not_alive(monkeypatch):
    ended = subprocess.Popen(["true"])
    ended.wait()
    monkeypatch.setattr("builtins.open", lambda *_, **__: os.stat("/nowhere"))
    monkeypatch.setattr(os.path, "isdir", lambda _: False)
    assert [Process.is_alive(str(pid)) for pid in (os.getpid(), ended.pid)] == [True, False]


@pytest.mark.parametrize("rank", ["rank_3", "rank3", "Rank-003/"])
def test_no_rank_decides_in_a_directory_of_its_own(rank, environment, tmp_path):
    root = f"{tmp_path}/run/{rank}"
    os.makedirs(root)
    environment(OPEN_MPI | {"XDG_STATE_HOME": str(tmp_path)})
    code, out, err = executed(["run", root, "--worker", "--allow=none", "--", "no-such-command"])
    assert code == 2 and "each rank would decide for itself" in err, (out, err)
