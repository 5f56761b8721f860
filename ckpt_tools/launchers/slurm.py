"""Slurm. Only a task of srun is a rank: the script of sbatch has SLURM_PROCID=0 too, but no step id.

Other processes that look like a rank and are none: the shell of salloc or of ``srun --pty bash`` (a special
step id, or the only task of a job named like a shell), a script submitted from within a task (it inherits the
step's variables, but not its task ids), and the one task per node that starts torchrun or msrun.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from ckpt_tools.launchers.launcher import HINT, Launcher, Started, clear, known, number, read, settled, show
from ckpt_tools.model.plan import Known

_WORDS = (
    "SLURM_PROCID SLURM_STEP_ID SLURM_STEP_NUM_TASKS SLURM_NTASKS SLURM_LOCALID SLURM_STEP_TASKS_PER_NODE"
    " SLURM_TASKS_PER_NODE SLURM_NTASKS_PER_NODE SLURM_GTIDS SLURM_NODEID SLURM_STEP_NUM_NODES"
    " SLURM_NNODES SLURM_JOB_NUM_NODES SLURM_GPUS_ON_NODE SLURM_JOB_NAME SLURM_JOB_ID SLURM_ARRAY_JOB_ID"
    " SLURM_ARRAY_TASK_ID SLURM_HET_SIZE SLURM_RESTART_COUNT SLURM_JOB_START_TIME SLURM_STEP_LAUNCHER_PORT"
)
_TASKS = (
    "start it by srun in every task, or add --rank N (and --world-size N); 'ckpt plan' and 'ckpt run' need no"
    " rank"
)
_SEEN = (
    "SLURM_STEP_ID SLURM_JOB_NAME SLURM_PROCID SLURM_NTASKS SLURM_STEP_NUM_TASKS SLURM_STEP_NUM_NODES"
    " SLURM_NNODES SLURM_STEP_TASKS_PER_NODE SLURM_GTIDS SLURM_GPUS_ON_NODE SLURM_HET_SIZE"
)
_SHELLS = ("bash", "interactive", "sh", "zsh")


def _detect(env: Mapping[str, str]) -> Started | None:
    """Return what Slurm tells this process by variables, or why it is no rank; None outside of a job."""
    if not any(name in env for name in ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_PROCID")):
        return None
    if "OMPI_COMM_WORLD_RANK" in env or "MPI_LOCALRANKID" in env:
        return None  # mpirun in a job: on other nodes the Slurm numbers are of its daemons
    step = "SLURM_STEP_ID" if "SLURM_STEP_ID" in env else "SLURM_STEPID"
    if number(env, step) is None:  # special steps have ids of 4294967290 and above
        is_shell = "SLURM_PROCID" not in env or env.get(step)
        name = "the shell of an allocation" if is_shell else "the script of sbatch"
        what = show(env, "SLURM_JOB_ID", "SLURM_PROCID", "SLURM_STEP_ID", "SLURM_NTASKS")
        started = _read(env, nodes="SLURM_JOB_NUM_NODES SLURM_NNODES")
        return settled(replace(started, unclear=f"{what}: {name}, and none of the job's tasks", hint=_TASKS))
    started = _read(
        env,
        node="SLURM_NODEID",  # not read for a script, which runs on one node for all nodes
        nodes="SLURM_STEP_NUM_NODES SLURM_NNODES SLURM_JOB_NUM_NODES",
        rank="SLURM_PROCID",
        world_size="SLURM_STEP_NUM_TASKS SLURM_NTASKS",
        local_rank="SLURM_LOCALID",
    )
    started = replace(started, local_world_size=_count_local_tasks(env, started.node))
    if mix := _explain_mix(env, started):
        return replace(clear(started, mix, _TASKS), node=None, nodes=None)
    if unclear := _explain_unclear(env, started):
        return settled(clear(started, *unclear))
    return settled(started)


def _read(env: Mapping[str, str], **fields: str) -> Started:
    """Return the numbers of ``fields`` (variables by field), the job's id, and an id of this start."""
    ids = "SLURM_JOB_ID", "SLURM_JOBID"
    started = read(env, "slurm", ids, restart="SLURM_RESTART_COUNT", **fields)
    if env.get("SLURM_ARRAY_JOB_ID") and env.get("SLURM_ARRAY_TASK_ID"):
        job = f"{env['SLURM_ARRAY_JOB_ID']}_{env['SLURM_ARRAY_TASK_ID']}"
        started = replace(started, job=job, job_from="SLURM_ARRAY_JOB_ID and SLURM_ARRAY_TASK_ID")
    names = "SLURM_JOB_START_TIME", "SLURM_STEP_LAUNCHER_PORT"  # srun's port: Slurm 22.05 sets no start time
    start_id = "" if "SLURM_HET_SIZE" in env else "-".join(filter(None, map(env.get, names)))
    return replace(started, start=start_id)


def _explain_mix(env: Mapping[str, str], s: Started) -> str:
    """Return which variables are of different steps, as in a script submitted from a task; "" if none are."""
    tasks, on_node = number(env, "SLURM_NTASKS"), env.get("SLURM_GTIDS", "").count(",") + 1
    tasks_fit = s.world_size is None or tasks in (None, s.world_size.value)
    local = s.local_world_size
    if tasks_fit and ("SLURM_GTIDS" not in env or local is None or local.value == on_node):
        return ""
    why = "they are of different steps, as in a script that was submitted from within another job"
    return f"{show(env, *_SEEN.split())}: {why}"


def _explain_unclear(env: Mapping[str, str], s: Started) -> tuple[str, str] | None:
    """Return why the numbers of a seeming task are not used, and a hint; None if they are used."""
    if s.rank is None or s.world_size is None:
        why, hint = "not all of a task's numbers are there", HINT
    elif (number(env, "SLURM_HET_SIZE") or 1) > 1:
        why, hint = "a heterogeneous job, whose numbers count one component", HINT
    elif s.world_size.value == 1 and env.get("SLURM_JOB_NAME") in _SHELLS:
        why, hint = "a single task of a job named so is an interactive shell", _TASKS
    elif s.nodes and s.nodes.value == s.world_size.value and number(env, "SLURM_GPUS_ON_NODE") != 1:
        why = "one task per node, which is a rank, or starts the ranks of its node by torchrun or msrun"
        hint = (
            'if every task is one rank, add --rank "$SLURM_PROCID" --world-size "$SLURM_NTASKS"; else ask'
            " inside of what it starts"
        )
    else:
        return None
    return f"{show(env, *_SEEN.split())}: {why}", hint


def _count_local_tasks(env: Mapping[str, str], node: Known | None) -> Known | None:
    """Return the number of tasks on this node, from a list for all such as "2(x3),1", else as requested per
    node.
    """
    for name in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"):
        end = 0
        for item in env.get(name, "").split(","):
            found = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", item)
            if found is None:
                break
            end += int(found[2] or 1)
            if node is not None and node.value < end:
                return Known(int(found[1]), f"{name} (slurm)")
    return known(env, "SLURM_NTASKS_PER_NODE", "slurm")


LAUNCHER = Launcher(
    name="slurm",
    variables=tuple(_WORDS.split()),
    detect=_detect,
    reference=(
        "Slurm 22.05.8 run here (sbatch, srun, salloc, requeue, arrays); srun(1) and sbatch(1), OUTPUT"
        " ENVIRONMENT VARIABLES; special steps: slurm/slurm.h"
    ),
)
