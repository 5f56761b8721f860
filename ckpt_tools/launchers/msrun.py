"""MindSpore's msrun. MS_NODE_ID is a process's rank, no node; on several nodes it needs --node_rank.

msrun starts the same command once more as its scheduler (MS_ROLE=MS_SCHED), which is no rank. Newer versions
also set RANK_ID, which a worker without MS_NODE_ID inherits from the scheduler as 0: so RANK_ID is never read
here.
MindCluster gives a pod MS_ROLE, MS_WORKER_NUM, MS_LOCAL_WORKER and MS_NODE_RANK before msrun runs.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from ckpt_tools.launchers.launcher import HINT, Launcher, Started, divide, number, read, settled, show

_WORDS = (
    "MS_ROLE MS_NODE_ID MS_WORKER_NUM MS_LOCAL_WORKER MS_NODE_RANK RANK_ID RANK_SIZE DEVICE_ID MINDX_TASK_ID"
)
_VARIABLES = tuple(_WORDS.split())


def _detect(env: Mapping[str, str]) -> Started | None:
    """Return what msrun tells its workers by variables; None if it did not start this process."""
    if "MS_ROLE" not in env and "MS_WORKER_NUM" not in env:
        return None
    started = read(
        env,
        "msrun",
        ("MINDX_TASK_ID",),
        rank="MS_NODE_ID",
        world_size="MS_WORKER_NUM",
        local_rank="DEVICE_ID",
        local_world_size="MS_LOCAL_WORKER",
        node="MS_NODE_RANK",
    )
    world, local = started.world_size, started.local_world_size
    started = replace(started, nodes=divide(world, local, "MS_WORKER_NUM / MS_LOCAL_WORKER (msrun)"))
    # DEVICE_ID is a local rank only if msrun set it, with RANK_ID and RANK_SIZE, else any device's number
    names = ("RANK_SIZE", "MS_WORKER_NUM"), ("RANK_ID", "MS_NODE_ID")
    if not number(env, "RANK_SIZE") or any(number(env, a) != number(env, b) for a, b in names):
        started = replace(started, local_rank=None)
    if env.get("MS_ROLE") in ("MS_SCHED", "MS_PSERVER"):
        return replace(
            settled(replace(started, rank=None, local_rank=None)),
            unclear=f"{show(env, 'MS_ROLE')}: this process serves the job, and is no rank of it",
            hint="ask in the workers only (MS_ROLE=MS_WORKER), or once per job before msrun",
            skip=True,
        )
    if started.rank is None:
        started = replace(
            started,
            local_rank=None,
            unclear=f"{show(env, *_VARIABLES)}: without MS_NODE_ID it is not known which worker this is",
            hint=(
                "inside msrun, give it --node_rank; in a script before msrun this is a node and no rank."
                f" Else {HINT}"
            ),
        )
    return settled(started)


LAUNCHER = Launcher(
    name="msrun",
    variables=_VARIABLES,
    detect=_detect,
    reference=(
        "mindspore/python/mindspore/parallel/cluster/process_entity/_api.py; MindCluster: ascend-operator,"
        " pkg/controllers/v1, setMindSporeEnv"
    ),
)
