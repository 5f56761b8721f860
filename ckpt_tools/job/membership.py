"""Who decides together: the processes that one start of a job consists of, as its launcher tells."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from ckpt_tools.errors import UsageError
from ckpt_tools.job.process import Process
from ckpt_tools.launchers import LaunchLine, Started
from ckpt_tools.model.plan import Known
from ckpt_tools.planning.decision_log import safe

_ONCE = frozenset({"slurm", "mpi"})
"""Launchers that give every start an id of its own, as far as they know."""


class Membership(Struct, frozen=True):
    """``key`` names the decision, ``member`` this process in it. ``unique``: the key is of this start and no
    other. ``start`` is what makes it so; "" where only the word of whoever gave the id does.

    ``nodes`` is 1 where all members share a machine. ``ranks`` are those that run on this node, None when
    that is not known.
    ``place`` names where the nodes of the job meet; "" when the launcher gives the job no id.
    ``about`` is what the decision records of the start.
    """

    key: str
    member: str
    unique: bool
    start: str = ""
    rank: int | None = None
    node: int | None = None
    nodes: int = 1
    ranks: range | None = None
    place: str = ""
    about: Mapping[str, object] = field(default_factory=dict)


def of_worker(started: Started | None, env: Mapping[str, str], *, job: str, rank: int | None) -> Membership:
    """The membership of one rank. Raises UsageError when nothing says which rank this is."""
    if started is None or (started.rank is None and not started.skip and rank is None):
        seen = (started.unclear if started else "") or "no launcher's variables are set"
        hint = (
            "--worker is for a command that torchrun, msrun, srun or mpirun starts; "
            "'ckpt launchers' shows what is seen"
        )
        raise UsageError(
            f"the rank of this worker is unknown: {seen}", (started.hint if started else "") or hint
        )
    if rank is None:
        rank = _value(started.rank)
    elif job:  # several launchers may start the ranks of a job that somebody else numbers
        started = replace(started, start="")
    nodes = _nodes(started)
    process = Membership(
        key="",
        member="scheduler" if rank is None else f"rank-{rank}",
        unique=False,
        rank=rank,
        node=_value(started.node),
        nodes=nodes,
        ranks=_ranks_beside(started, rank, nodes),
    )
    return _by_launcher(process, started, env, job)


def _nodes(started: Started) -> int:
    """How many nodes the job has, as a worker's launcher tells."""
    if nodes := _value(started.nodes):
        return nodes
    world, local = _value(started.world_size), _value(started.local_world_size)
    if local is None or world is None or local == world:
        return 1
    return -(-world // local)


def _ranks_beside(started: Started, rank: int | None, nodes: int) -> range | None:
    """The ranks that run on the node of a worker."""
    world, local = _value(started.world_size), _value(started.local_world_size)
    at = _value(started.local_rank)
    if rank is not None and at is not None and local:
        return range(rank - at, rank - at + local)
    return range(world) if nodes == 1 and world else None


def of_node(
    started: Started | None,
    line: LaunchLine | None,
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
    nodes = (_nodes_started(started, line) if nodes is None else nodes) or 1
    if nodes == 1 and not job:
        return _alone(world)
    if node is None and line:
        node = line.node
    if node is None and started:
        node = _value(started.node)
    process = Membership(
        key="",
        member=f"node-{node}" if node is not None else f"host-{Process.here().host}",
        unique=False,
        node=node,
        nodes=nodes,
        ranks=_ranks_of_node(node, nodes, line, world),
        about=_about("", 0),
    )
    generation = _restarts(started) if started else 0
    if job:  # an id of this start alone is a key for all nodes
        key = f"{job}.{generation}"
        return replace(process, key=safe(key), unique=True, place=safe(job), about=_about(job, generation))
    if line and line.job:  # under any other id each node has a key of its own, and they meet
        key, about = f"{line.job}.{generation}.{process.member}", _about(line.job, generation)
        return replace(process, key=safe(key), place=safe(line.job), about=about)
    return _by_launcher(process, started, env, "") if started else process


def _nodes_started(started: Started | None, line: LaunchLine | None) -> int | None:
    """How many nodes the job has, as far as the command line or the launcher of this process tells."""
    if line and line.nodes is not None:
        return line.nodes
    if started is None or started.node is None:  # as in the script of sbatch, which runs once for all nodes
        return None
    if started.nodes is None:
        raise UsageError(
            f"this is node {started.node.value} ({started.node.provenance}), and how many there are"
            " is unknown",
            "set CKPT_NODES=N",
        )
    return started.nodes.value


def _ranks_of_node(node: int | None, nodes: int, line: LaunchLine | None, world: int | None) -> range | None:
    """The ranks that run on a node, where all run as many."""
    per_node = None
    if line:
        per_node = line.per_node
    elif world and world % nodes == 0:
        per_node = world // nodes
    return range(node * per_node, (node + 1) * per_node) if node is not None and per_node else None


def _alone(world: int | None) -> Membership:
    """A launcher that shares its decision with nobody: no other start has its key."""
    return Membership(
        key=f"{time.time_ns()}-{os.getpid()}",
        member="launcher",
        unique=True,
        start="launcher",
        node=0,
        ranks=range(world) if world else None,
        about=_about("", 0),
    )


def _by_launcher(process: Membership, started: Started, env: Mapping[str, str], job: str) -> Membership:
    """The membership of a process under the id that its launcher gives the job, or ``job``."""
    # torchrun's agents start their workers again under the same id, and may count that differently: --job
    # names the job there, and no single start
    unique = started.launcher in _ONCE or (bool(job) and started.launcher != "torchrun")
    name, generation = job or started.job, _restarts(started)
    step = env.get("SLURM_STEP_ID", "") if started.launcher == "slurm" and not job else ""
    if step and (cluster := env.get("SLURM_CLUSTER_NAME")):
        name = f"{cluster}-{name}"  # two clusters count their jobs alike
    here = Process.here()
    if not name and process.nodes != 1:
        return replace(process, about=_about("", generation))
    host, start = hashlib.sha256(here.host.encode()).hexdigest()[:12], started.start
    if not name:  # the launcher is our parent: its pid and start time tell two of the same name apart
        name, start = f"{started.launcher}-{here.parent}", host
    key = ".".join(safe(w) for w in (started.launcher, name, step, start, str(generation)) if w)
    if not unique:  # each node's processes decide under a key of their own, and the nodes meet
        key += f".{process.node}.{host}"
    place, about = safe(f"{started.launcher}.{name}"), _about(name, generation)
    return replace(process, key=key, unique=unique, start=start, place=place, about=about)


def _about(job: str, generation: int) -> Mapping[str, object]:
    return {"job": job, "generation": generation}


def _restarts(started: Started) -> int:
    """How often the job or its workers were started again."""
    return _value(started.restart) or 0


def _value(known: Known | None) -> int | None:
    return known.value if known else None
