"""Pods of Kubernetes: what they see counts pods, not processes, so that they tell nodes, and a rank only
where one process runs in each.

Kubeflow's trainer and its training operator configure torchrun (PET_*). An indexed Job tells its pods their
index, not how many they are. Volcano's VC_TASK_INDEX counts within one task of the job; its RANK, like that
of the older PyTorchJob, is a pod and WORLD_SIZE is pods. MindCluster gives a pod RANK = its index, but
WORLD_SIZE = devices of the job, and LOCAL_RANK = a list such as 0,1,2,3. Init containers get the index
variables, not RANK.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from ckpt_tools.launchers.launcher import SAY, Launcher, Started, job_id, known, seen, settled
from ckpt_tools.model.plan import Known

_WORDS = (
    "PET_NODE_RANK PET_NNODES PET_NPROC_PER_NODE PET_RDZV_ID PET_MAX_RESTARTS JOB_COMPLETION_INDEX"
    " VC_TASK_INDEX VK_TASK_INDEX RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MINDX_TASK_ID"
    " KUBERNETES_SERVICE_HOST"
)
_VARIABLES = tuple(_WORDS.split())
_INSIDE = (
    "before torchrun or msrun ask for the whole job (ckpt run, ckpt plan), inside of it for a rank; if every"
    " pod is one rank, "
)


def _detect(env: Mapping[str, str]) -> Started | None:
    found = _pet(env) or _mindcluster(env) or _volcano(env) or _indexed(env) or _pytorch_job(env)
    if found is None:
        return None
    return settled(replace(found, max_restarts=known(env, "PET_MAX_RESTARTS", "kubernetes")))


def _pod(env: Mapping[str, str], unclear: str, hint: str, **numbers: Known | None) -> Started:
    job, job_from = job_id(env, "MINDX_TASK_ID", "PET_RDZV_ID")
    return Started("kubernetes", job=job, job_from=job_from, unclear=unclear, hint=hint, **numbers)  # type: ignore[arg-type]  # numbers only


def _pet(env: Mapping[str, str]) -> Started | None:
    if not any(name in env for name in ("PET_NODE_RANK", "PET_NNODES", "PET_NPROC_PER_NODE")):
        return None
    nodes, each = (
        known(env, "PET_NNODES", "kubernetes"),
        known(env, "PET_NPROC_PER_NODE", "kubernetes"),
    )  # not those of "1:4" and "auto"
    world = (
        Known(nodes.value * each.value, "PET_NNODES × PET_NPROC_PER_NODE (kubernetes)")
        if nodes and each
        else None
    )
    return _pod(
        env,
        f"{seen(env, 'PET_NODE_RANK', 'PET_NNODES', 'PET_NPROC_PER_NODE')}: a pod in which torchrun starts"
        " the ranks, not one of them",
        _INSIDE + 'add --rank "$PET_NODE_RANK"',
        node=known(env, "PET_NODE_RANK", "kubernetes"),
        nodes=nodes,
        world_size=world,
        local_world_size=each,
    )


def _mindcluster(env: Mapping[str, str]) -> Started | None:
    """A pod of an AscendJob for PyTorch; with one device its LOCAL_RANK is a number, and RANK the process."""
    if "," not in env.get("LOCAL_RANK", "") or "RANK" not in env:
        return None
    world, local = known(env, "WORLD_SIZE", "kubernetes"), known(env, "LOCAL_WORLD_SIZE", "kubernetes")
    whole = world and local and local.value and not world.value % local.value
    return _pod(
        env,
        f"{seen(env, 'RANK', 'WORLD_SIZE', 'LOCAL_RANK')}: LOCAL_RANK lists devices, so that RANK is the pod,"
        " not a process",
        _INSIDE + SAY,
        node=known(env, "RANK", "kubernetes"),
        nodes=(
            Known(world.value // local.value, "WORLD_SIZE / LOCAL_WORLD_SIZE (kubernetes)")
            if world and local and whole
            else None
        ),
        world_size=world,
        local_world_size=local,
    )


def _volcano(env: Mapping[str, str]) -> Started | None:
    name = next((name for name in ("VC_TASK_INDEX", "VK_TASK_INDEX") if name in env), None)
    if name is None:
        return None
    node = nodes = None
    tasks = [
        key for key in env if key.startswith("VC_") and key.endswith("_NUM")
    ]  # one for each task of the job, from the plug-in svc
    if "RANK" in env and "LOCAL_RANK" not in env:  # from the plug-in pytorch: master first, then the workers
        node, nodes = known(env, "RANK", "kubernetes"), known(env, "WORLD_SIZE", "kubernetes")
    elif len(tasks) == 1:
        node, nodes = known(env, name, "kubernetes"), known(env, tasks[0], "kubernetes")
    what = seen(env, name, "RANK", "WORLD_SIZE", *sorted(tasks)[:4])
    return _pod(
        env,
        f"{what}: Volcano counts pods, in {name} those of one task only",
        _INSIDE + SAY,
        node=node,
        nodes=nodes,
    )


def _indexed(env: Mapping[str, str]) -> Started | None:
    if "JOB_COMPLETION_INDEX" not in env:
        return None
    return _pod(
        env,
        f"{seen(env, 'JOB_COMPLETION_INDEX', 'RANK', 'WORLD_SIZE')}: the index of a pod, which is a rank only"
        " where each runs one process",
        _INSIDE + 'add --rank "$JOB_COMPLETION_INDEX"',
        node=known(env, "JOB_COMPLETION_INDEX", "kubernetes"),
    )


def _pytorch_job(env: Mapping[str, str]) -> Started | None:
    if "KUBERNETES_SERVICE_HOST" not in env or "RANK" not in env or "LOCAL_RANK" in env:
        return None
    return _pod(
        env,
        f"{seen(env, 'RANK', 'WORLD_SIZE')} in a pod: without LOCAL_RANK it may count pods (PyTorchJob) or"
        " processes",
        _INSIDE + 'add --rank "$RANK" --world-size "$WORLD_SIZE"',
    )


LAUNCHER = Launcher(
    name="kubernetes",
    variables=_VARIABLES,
    detect=_detect,
    reference=(
        "kubernetes.io: Indexed Job; kubeflow/trainer pkg/runtime/framework/plugins/torch;"
        " kubeflow/training-operator pkg/controller.v1/pytorch/envvar.go; volcano-sh/volcano"
        " pkg/controllers/job/plugins/{env,svc,distributed-framework/pytorch}; MindCluster: ascend-operator,"
        " setPytorchEnv"
    ),
)
