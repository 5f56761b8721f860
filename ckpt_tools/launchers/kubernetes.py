"""Pods of Kubernetes. Variables count pods: an index is a node, and a rank only if each runs one process.

Kubeflow's trainer and its training operator configure torchrun (PET_*). An indexed Job tells its pods their
index, not how many they are. Volcano's VC_TASK_INDEX counts within one task of the job; its RANK, like that
of the older PyTorchJob, is a pod and WORLD_SIZE is pods. MindCluster gives a pod RANK = its index, but
WORLD_SIZE = devices of the job, and LOCAL_RANK = a list such as 0,1,2,3. Init containers get no RANK.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from ckpt_tools.launchers.launcher import HINT, Launcher, Started, divide, read, settled, show
from ckpt_tools.model.plan import Known

_WORDS = (
    "PET_NODE_RANK PET_NNODES PET_NPROC_PER_NODE PET_RDZV_ID PET_MAX_RESTARTS JOB_COMPLETION_INDEX"
    " VC_TASK_INDEX VK_TASK_INDEX RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MINDX_TASK_ID"
    " KUBERNETES_SERVICE_HOST"
)
_TORCHRUN = ("PET_NODE_RANK", "PET_NNODES", "PET_NPROC_PER_NODE")
_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
_INSIDE = (
    "before torchrun or msrun ask for the whole job (ckpt run, ckpt plan), inside of it for a rank; only if"
    " every pod is one rank, "
)


def _read_pod(env: Mapping[str, str], seen: Sequence[str], hint: str = HINT, **fields: str) -> Started:
    """Return what a pod's variables say (``fields``: by field), without a rank: ``seen`` count pods."""
    ids = "MINDX_TASK_ID", "PET_RDZV_ID"
    pod = read(env, "kubernetes", ids, max_restarts="PET_MAX_RESTARTS", **fields)
    why = "this counts pods, or those of one task, which are ranks only where each runs one process"
    unclear = f"{show(env, *seen)}: {why}"
    return replace(pod, unclear=unclear, hint=_INSIDE + hint)


def _read_volcano(env: Mapping[str, str], index: str) -> Started:
    """Return what the variables of a pod of Volcano say; ``index`` is the variable with its number."""
    fields: dict[str, str] = {}
    # the plug-in svc sets one such variable for each task of the job
    tasks = [key for key in env if key.startswith("VC_") and key.endswith("_NUM")]
    if "RANK" in env and "LOCAL_RANK" not in env:  # the plug-in pytorch counts the master, then the workers
        fields = {"node": "RANK", "nodes": "WORLD_SIZE"}
    elif len(tasks) == 1:
        fields = {"node": index, "nodes": tasks[0]}
    return _read_pod(env, (index, "RANK", "WORLD_SIZE", *sorted(tasks)[:4]), **fields)


def _detect(env: Mapping[str, str]) -> Started | None:
    """Return what variables of the pod say; None outside of Kubernetes, or if nothing looks like a rank."""
    if any(name in env for name in _TORCHRUN):
        fields = dict(zip(("node", "nodes", "local_world_size"), _TORCHRUN, strict=True))
        pod = _read_pod(env, _TORCHRUN, 'add --rank "$PET_NODE_RANK"', **fields)
        if pod.nodes and pod.local_world_size:  # not "1:4" and "auto"
            world = pod.nodes.value * pod.local_world_size.value
            pod = replace(pod, world_size=Known(world, "PET_NNODES × PET_NPROC_PER_NODE (kubernetes)"))
    elif "," in env.get("LOCAL_RANK", "") and "RANK" in env:
        # a PyTorch pod of an AscendJob: with one device LOCAL_RANK is a number, and RANK is the process
        fields = {"node": "RANK", "world_size": "WORLD_SIZE", "local_world_size": "LOCAL_WORLD_SIZE"}
        pod = _read_pod(env, _RANKS, **fields)
        nodes = divide(pod.world_size, pod.local_world_size, "WORLD_SIZE / LOCAL_WORLD_SIZE (kubernetes)")
        pod = replace(pod, nodes=nodes)
    elif index := next((name for name in ("VC_TASK_INDEX", "VK_TASK_INDEX") if name in env), None):
        pod = _read_volcano(env, index)
    elif "JOB_COMPLETION_INDEX" in env:
        index = "JOB_COMPLETION_INDEX"
        pod = _read_pod(env, (index, *_RANKS), f'add --rank "${index}"', node=index)
    elif "KUBERNETES_SERVICE_HOST" in env and "RANK" in env and "LOCAL_RANK" not in env:
        pod = _read_pod(env, _RANKS, 'add --rank "$RANK" --world-size "$WORLD_SIZE"')
    else:
        return None
    return settled(pod)


LAUNCHER = Launcher(
    name="kubernetes",
    variables=tuple(_WORDS.split()),
    detect=_detect,
    reference=(
        "kubernetes.io: Indexed Job; kubeflow/trainer pkg/runtime/framework/plugins/torch;"
        " kubeflow/training-operator pkg/controller.v1/pytorch/envvar.go; volcano-sh/volcano"
        " pkg/controllers/job/plugins/{env,svc,distributed-framework/pytorch}; MindCluster: ascend-operator,"
        " setPytorchEnv"
    ),
)
