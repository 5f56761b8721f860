"""Which processes decide together: the members of one start of a job, as its launcher tells."""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools.errors import UsageError
from ckpt_tools.launchers import LaunchLine, Started
from ckpt_tools.model.plan import Known
from ckpt_tools.planning.first_launch import make_safe

_UNIQUE = frozenset({"slurm", "mpi"})  # launchers that give every start an id of its own, as far as they know


class Process(Struct, frozen=True):
    """The process that made a decision, as recorded in it: ``host`` is this boot of this machine; ``process``
    and ``agent`` (the parent) are pid and start time, so that each names one process only.
    """

    host: str
    pid: int
    process: str
    agent: str

    @staticmethod
    @cache
    def here() -> Process:
        pid_namespace = ""
        with suppress(OSError):  # containers of one machine share the boot id and not their pids
            pid_namespace = os.readlink("/proc/self/ns/pid")
        host = f"{socket.gethostname()}/{read_boot_id()}/{pid_namespace}"
        return Process(host, os.getpid(), _identify(os.getpid()), _identify(os.getppid()))

    @staticmethod
    def is_alive(identity: str) -> bool:
        """Return True if the process of that identity still runs on this host."""
        pid = identity.partition(".")[0]
        return pid.isdecimal() and _identify(int(pid)) == identity


def read_boot_id() -> str:
    """Return the id of this boot of this machine; "" if the kernel tells none."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as f:
        return f.read().strip()
    return ""


def _identify(pid: int) -> str:
    """Return ``pid.starttime`` (proc(5), stat field 22), without /proc the pid; "" for no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
            return f"{pid}.{f.read().rpartition(')')[2].split()[19]}"
    except OSError:
        pass
    if os.path.isdir("/proc/self"):
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        pass  # another user's process: it runs
    return str(pid)


class Options(Struct, frozen=True):
    """How a job comes to its one decision, by default as in ``ckpt run``. ``timeout`` is in seconds;
    ``plan_dir`` None means this user's own, on this machine. ``words`` are our command, for messages.
    """

    words: Sequence[str] = ("ckpt", "run")
    worker: bool = False
    plan_dir: str | None = None
    job: str = ""
    node: int | None = None
    nodes: int | None = None
    timeout: float = 600.0
    require_mount: bool = False
    agree: bool = False
    meet: str = ""
    rendezvous: str = ""
    view: str = ""
    stage: str = ""
    keep: int | None = None
    resume_args: Sequence[str] = ()


class Membership(Struct, frozen=True):
    """One process in the group that decides: ``key`` names the decision, ``member`` the process. ``unique``:
    no other start has the key. ``start`` is the part of the key that makes it so, "" if only --job does.

    ``nodes`` is 1 if all members share a machine. ``ranks`` are those of this node, None if unknown.
    ``meeting_name`` names where the nodes of the job meet, "" if the launcher gives the job no id. ``job``
    and ``generation`` (the count of restarts) are recorded in the decision.
    """

    key: str = ""
    member: str = ""
    unique: bool = False
    start: str = ""
    rank: int | None = None
    node: int | None = None
    nodes: int = 1
    ranks: range | None = None
    meeting_name: str = ""
    job: str = ""
    generation: int = 0


def make_worker_membership(
    started: Started | None, env: Mapping[str, str], *, job: str, rank: int | None
) -> Membership:
    """Return the membership of ``rank``, else of the rank that the launcher tells. Raise UsageError."""
    if started is None or (started.rank is None and not started.skip and rank is None):
        seen = (started.unclear if started else "") or "no launcher's variables are set"
        hint = (
            "--worker is for a command that torchrun, msrun, srun or mpirun starts; "
            "'ckpt launchers' shows what is seen"
        )
        text = f"the rank of this worker is unknown: {seen}"
        raise UsageError(text, (started.hint if started else "") or hint)
    if rank is None:
        rank = _known_value(started.rank)
    elif job:  # the user numbers the ranks, which several launchers may start
        started = replace(started, start="")
    nodes, ranks = _find_node_ranks(started, rank)
    process = Membership(
        member="scheduler" if rank is None else f"rank-{rank}",
        rank=rank,
        node=_known_value(started.node),
        nodes=nodes,
        ranks=ranks,
        generation=_known_value(started.restart) or 0,
    )
    return _add_key(process, started, env, job)


def _find_node_ranks(started: Started, rank: int | None) -> tuple[int, range | None]:
    """Return (number of nodes, ranks of this node or None), for a process that is ``rank``."""
    world, local = _known_value(started.world_size), _known_value(started.local_world_size)
    nodes, local_rank = _known_value(started.nodes), _known_value(started.local_rank)
    if not nodes:
        nodes = 1 if local is None or world is None or local == world else -(-world // local)
    if rank is not None and local_rank is not None and local:
        return nodes, range(rank - local_rank, rank - local_rank + local)
    return nodes, (range(world) if nodes == 1 and world else None)


def make_node_membership(
    started: Started | None,
    line: LaunchLine | None,
    env: Mapping[str, str],
    options: Options,
    world: int | None = None,
) -> Membership:
    """Return the membership of a process that starts a node's ranks. Raise UsageError for unknown nodes."""
    started = started or Started("")
    nodes = _count_nodes(started, line, options.nodes)
    world = _known_value(started.world_size) if world is None else world
    if nodes == 1 and not options.job:  # it shares its decision with no process: no other start has its key
        ranks, key = range(world) if world else None, f"{time.time_ns()}-{os.getpid()}"
        return Membership(key, "launcher", True, start="launcher", node=0, ranks=ranks)
    numbers = (options.node, line.node if line else None, _known_value(started.node))
    node = next((number for number in numbers if number is not None), None)
    process = Membership(
        member=f"node-{node}" if node is not None else f"host-{Process.here().host}",
        node=node,
        nodes=nodes,
        ranks=_divide_ranks(node, line, world, nodes),
        generation=_known_value(started.restart) or 0,
    )
    if options.job:  # an id of this start alone
        return _add_key(process, Started(""), env, options.job)
    if line and line.job:
        return _add_key(process, Started(line.launcher, job=line.job), env, "")
    return _add_key(process, started, env, "") if started.launcher else process


def _divide_ranks(node: int | None, line: LaunchLine | None, world: int | None, nodes: int) -> range | None:
    """Return the ranks of a node by its command line, else an equal share of ``world``; None if unknown."""
    share = world // nodes if world and not line and world % nodes == 0 else None
    per_node = line.per_node if line else share
    return range(node * per_node, (node + 1) * per_node) if node is not None and per_node else None


def _count_nodes(started: Started, line: LaunchLine | None, option: int | None) -> int:
    """Return the number of nodes by option, command line or launcher. Raise UsageError if unknown."""
    nodes = line.nodes if line and option is None else option
    if nodes is None and started.node:  # the script of sbatch, which runs once for all nodes, has no node
        if started.nodes is None:
            node = f"node {started.node.value} ({started.node.provenance})"
            raise UsageError(f"this is {node}, and how many there are is unknown", "set CKPT_NODES=N")
        nodes = started.nodes.value
    return nodes or 1


def _add_key(process: Membership, started: Started, env: Mapping[str, str], job: str) -> Membership:
    """Return ``process`` with the key of its decision, made from ``job`` or else its launcher's job id."""
    # torchrun's agents restart their workers under the same id, and may count restarts differently: there
    # --job names the job, and no single start
    unique = started.launcher in _UNIQUE or (bool(job) and started.launcher != "torchrun")
    name, generation = job or started.job, process.generation
    step = env.get("SLURM_STEP_ID", "") if started.launcher == "slurm" and not job else ""
    if step and (cluster := env.get("SLURM_CLUSTER_NAME")):
        name = f"{cluster}-{name}"  # two clusters count their jobs alike
    here = Process.here()
    if not name and process.nodes != 1:
        return process
    host, start = hashlib.sha256(here.host.encode()).hexdigest()[:12], started.start
    if not name:  # the launcher is our parent: its pid and start time distinguish it
        name, start = f"{started.launcher}-{here.agent}", host
    key = ".".join(make_safe(w) for w in (started.launcher, name, step, start, str(generation)) if w)
    if not unique:  # each node has its own key, and the nodes meet
        key += f".{process.node}.{host}"
    meeting_name = make_safe(f"{started.launcher}.{name}")
    return replace(process, key=key, unique=unique, start=start, meeting_name=meeting_name, job=name)


def _known_value(known: Known | None) -> int | None:
    return known.value if known else None
