"""Pods of Kubernetes: their variables count pods, not processes. A pod's index is a node, and a rank only if
one process runs in each pod.

Kubeflow's trainer and its training operator configure torchrun (PET_*). An indexed Job tells its pods their
index, not how many they are. Volcano's VC_TASK_INDEX counts within one task of the job; its RANK, like that
of the older PyTorchJob, is a pod and WORLD_SIZE is pods. MindCluster gives a pod RANK = its index, but
WORLD_SIZE = devices of the job, and LOCAL_RANK = a list such as 0,1,2,3. Init containers get the index
variables, not RANK.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from ckpt_tools.launchers.launcher import SAY, Launcher, Started, divide, read, seen, settled
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
    found = _detect_torchrun(env) or _detect_mindcluster(env) or _detect_volcano(env)
    found = found or _detect_indexed(env) or _detect_pytorch_job(env)
    return settled(found) if found else None


def _read_pod(env: Mapping[str, str], unclear: str, hint: str, **fields: str) -> Started:
    """Return a pod's place: the numbers of ``fields`` (variables by field), no rank, and why not."""
    ids = "MINDX_TASK_ID", "PET_RDZV_ID"
    pod = read(env, "kubernetes", ids, max_restarts="PET_MAX_RESTARTS", **fields)
    return replace(pod, unclear=unclear, hint=_INSIDE + hint)


def _detect_torchrun(env: Mapping[str, str]) -> Started | None:
    if not any(name in env for name in ("PET_NODE_RANK", "PET_NNODES", "PET_NPROC_PER_NODE")):
        return None
    pod = _read_pod(
        env,
        f"{seen(env, 'PET_NODE_RANK', 'PET_NNODES', 'PET_NPROC_PER_NODE')}: a pod in which torchrun starts"
        " the ranks, not one of them",
        'add --rank "$PET_NODE_RANK"',
        node="PET_NODE_RANK",
        nodes="PET_NNODES",
        local_world_size="PET_NPROC_PER_NODE",
    )
    if pod.nodes is None or pod.local_world_size is None:  # "1:4" and "auto"
        return pod
    world = pod.nodes.value * pod.local_world_size.value
    return replace(pod, world_size=Known(world, "PET_NNODES × PET_NPROC_PER_NODE (kubernetes)"))


def _detect_mindcluster(env: Mapping[str, str]) -> Started | None:
    """Return the place of a PyTorch pod of an AscendJob; None unless LOCAL_RANK is a list: in a pod with one
    device it is a number, and RANK is the process.
    """
    if "," not in env.get("LOCAL_RANK", "") or "RANK" not in env:
        return None
    pod = _read_pod(
        env,
        f"{seen(env, 'RANK', 'WORLD_SIZE', 'LOCAL_RANK')}: LOCAL_RANK lists devices, so that RANK is the pod,"
        " not a process",
        SAY,
        node="RANK",
        world_size="WORLD_SIZE",
        local_world_size="LOCAL_WORLD_SIZE",
    )
    nodes = divide(pod.world_size, pod.local_world_size, "WORLD_SIZE / LOCAL_WORLD_SIZE (kubernetes)")
    return replace(pod, nodes=nodes)


def _detect_volcano(env: Mapping[str, str]) -> Started | None:
    name = next((name for name in ("VC_TASK_INDEX", "VK_TASK_INDEX") if name in env), None)
    if name is None:
        return None
    fields: dict[str, str] = {}
    # the plug-in svc sets one such variable for each task of the job
    tasks = [key for key in env if key.startswith("VC_") and key.endswith("_NUM")]
    if "RANK" in env and "LOCAL_RANK" not in env:  # the plug-in pytorch counts the master, then the workers
        fields = {"node": "RANK", "nodes": "WORLD_SIZE"}
    elif len(tasks) == 1:
        fields = {"node": name, "nodes": tasks[0]}
    what = seen(env, name, "RANK", "WORLD_SIZE", *sorted(tasks)[:4])
    return _read_pod(env, f"{what}: Volcano counts pods, in {name} those of one task only", SAY, **fields)


def _detect_indexed(env: Mapping[str, str]) -> Started | None:
    if "JOB_COMPLETION_INDEX" not in env:
        return None
    return _read_pod(
        env,
        f"{seen(env, 'JOB_COMPLETION_INDEX', 'RANK', 'WORLD_SIZE')}: the index of a pod, which is a rank only"
        " where each runs one process",
        'add --rank "$JOB_COMPLETION_INDEX"',
        node="JOB_COMPLETION_INDEX",
    )


def _detect_pytorch_job(env: Mapping[str, str]) -> Started | None:
    if "KUBERNETES_SERVICE_HOST" not in env or "RANK" not in env or "LOCAL_RANK" in env:
        return None
    return _read_pod(
        env,
        f"{seen(env, 'RANK', 'WORLD_SIZE')} in a pod: without LOCAL_RANK it may count pods (PyTorchJob) or"
        " processes",
        'add --rank "$RANK" --world-size "$WORLD_SIZE"',
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
