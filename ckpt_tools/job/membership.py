"""Who decides together: the processes that one start of a job consists of, as its launcher tells."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping

from ckpt_tools.errors import UsageError
from ckpt_tools.job.process import Process
from ckpt_tools.job.torchrun_line import TorchrunLine
from ckpt_tools.launchers import Started
from ckpt_tools.model.frozen import frozen
from ckpt_tools.planning.decision_log import safe

_ONCE = frozenset({"slurm", "mpi"})
"""Launchers whose job ids never come back: a key made of one tells every start apart."""


@frozen
class Membership:
    """``key`` names the decision, ``member`` this process in it. ``unique``: the key is of this start and no
    other.

    ``nodes`` is 1 where all members share a machine. ``ranks`` are those that run on this node, None when
    that is not known.
    ``place`` names where the nodes of the job meet; "" when the launcher gives the job no id.
    """

    key: str
    member: str
    unique: bool
    rank: int | None = None
    node: int | None = None
    nodes: int = 1
    ranks: range | None = None
    place: str = ""
    about: Mapping[str, object] | None = None


def of_worker(started: Started | None, env: Mapping[str, str], *, job: str, rank: int | None) -> Membership:
    """The membership of one rank. Raises UsageError when nothing says which rank this is."""
    if started is None or (started.rank is None and not started.skip and rank is None):
        seen = started.unclear if started and started.unclear else "no launcher's variables are set"
        hint = (
            (started.hint if started else "")
            or "--worker is for a command that torchrun, msrun, srun or mpirun starts; "
            "'ckpt launchers' shows what is seen"
        )
        raise UsageError(f"which rank this worker is is unknown: {seen}", hint)
    mine = rank if rank is not None else started.rank.value if started.rank else None
    world, local = _value(started.world_size), _value(started.local_world_size)
    nodes = _value(started.nodes) or (
        1 if local is None or world is None or local == world else -(-world // local)
    )
    first = mine - at if mine is not None and (at := _value(started.local_rank)) is not None else None
    ranks = (
        range(first, first + local)
        if first is not None and local
        else range(world)
        if nodes == 1 and world
        else None
    )
    generation = str(_value(started.restart) or 0)
    return _membership(
        started,
        env,
        job,
        generation,
        "scheduler" if mine is None else f"rank-{mine}",
        mine,
        _value(started.node),
        nodes,
        ranks,
    )


def of_node(
    started: Started | None,
    line: TorchrunLine | None,
    env: Mapping[str, str],
    *,
    job: str,
    node: int | None,
    nodes: int | None,
    world: int | None,
) -> Membership:
    """The membership of one launcher: alone, or one of several nodes. Raises UsageError when it is not known
    how many.
    """
    if nodes is None:
        nodes = line.nodes if line else None
        if (
            nodes is None and started is not None and started.node is not None
        ):  # None in the script of sbatch, which runs once for all nodes
            nodes = _value(started.nodes)
            if nodes is None:
                raise UsageError(
                    f"this is node {started.node.value} ({started.node.provenance}), and how many there are"
                    " is unknown",
                    "say --nodes N",
                )
    nodes = nodes or 1
    if nodes == 1 and not job:
        return Membership(
            f"{time.time_ns()}-{os.getpid()}",
            "launcher",
            True,
            nodes=1,
            node=0,
            ranks=range(world) if world else None,
            about={"job": job, "generation": 0},
        )
    if node is None:
        node = line.node if line else None
    if node is None and started is not None:
        node = _value(started.node)
    per_node = line.per_node if line else world // nodes if world and world % nodes == 0 else None
    ranks = range(node * per_node, (node + 1) * per_node) if node is not None and per_node else None
    if not job and line and line.options.get("rdzv-id"):
        job, unique = line.options["rdzv-id"], False
    else:
        unique = bool(job)
    generation = str(_value(started.restart) or 0) if started else "0"
    member = f"node-{node}" if node is not None else f"host-{Process.here().host}"
    if (
        job
    ):  # an id of this start alone is a key for all nodes; under any other each has its own, and they meet
        key = f"{job}.{generation}" if unique else f"{job}.{generation}.{member}"
        return Membership(
            safe(key),
            member,
            unique,
            None,
            node,
            nodes,
            ranks,
            safe(job),
            {"job": job, "generation": int(generation)},
        )
    if started is None:
        return Membership("", member, False, None, node, nodes, ranks, "", {"job": "", "generation": 0})
    return _membership(started, env, job, generation, member, None, node, nodes, ranks)


def _membership(
    started: Started,
    env: Mapping[str, str],
    job: str,
    generation: str,
    member: str,
    rank: int | None,
    node: int | None,
    nodes: int,
    ranks: range | None,
) -> Membership:
    # torchrun's agents start their workers again under the same id, and may count that differently: --job
    # names the job there, and no single start
    unique = started.launcher in _ONCE or (bool(job) and started.launcher != "torchrun")
    name = job or started.job
    step = env.get("SLURM_STEP_ID", "") if started.launcher == "slurm" and not job else ""
    if step and (cluster := env.get("SLURM_CLUSTER_NAME")):
        name = f"{cluster}-{name}"  # two clusters count their jobs alike
    here = Process.here()
    if nodes == 1 and not (unique and name):
        # The launcher is our parent: its pid and start time tell two launches of the same name apart.
        name = name or f"{started.launcher}-{here.parent}"
    elif not name:
        return Membership(
            "", member, False, rank, node, nodes, ranks, "", {"job": "", "generation": int(generation)}
        )
    key = ".".join(safe(w) for w in (started.launcher, name, step, generation) if w)
    if not unique:  # each node's processes decide under a key of their own, and the nodes meet
        key += f".{node}.{hashlib.sha256(here.host.encode()).hexdigest()[:12]}"
    return Membership(
        key,
        member,
        unique and bool(name),
        rank,
        node,
        nodes,
        ranks,
        safe(f"{started.launcher}.{name}"),
        {"job": name, "generation": int(generation)},
    )


def _value(known: object) -> int | None:
    value = getattr(known, "value", None)
    return value if isinstance(value, int) else None
