"""The class Launcher: it reads a process's place in its job from the environment, if it has started it.

The launcher "bare" of this module stands for unknown launchers. It reads CKPT_RANK, the variables of
torch.distributed's env:// (DeepSpeed's launcher sets them), or the variables of an Ascend rank table.
RANK alone may be a node or a process. RANK_ID alone is common in scripts and counts only with RANK_SIZE.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools.model.plan import Known
from ckpt_tools.settings.parsers import MAX_RANK

HINT = "add --rank N (or set CKPT_RANK), and --world-size N"
TORCH = {"rank": "RANK", "world_size": "WORLD_SIZE", "local_rank": "LOCAL_RANK"}
"""By the field of ``Started`` the variable that torch.distributed's env:// reads."""


class Started(Struct, frozen=True):
    """One process's place in the job, each number with the variable that it comes from; None if the launcher
    does not tell the number, or if its meaning is unclear.

    ``rank`` is global; ``local_world_size`` are the ranks on this node, ``node`` is its index, from 0.
    ``job`` is the job's id ("" if there is none), from the variables ``job_from``; ``start`` is an id of this
    start, the same in all its processes and in no other start. ``restart`` counts restarts of the job or its
    workers. ``unclear`` says why a number that seems to be there is not used, with the variables that were
    seen, and ``hint`` what to do about it. ``skip``: this process is no rank at all (msrun's scheduler).
    """

    launcher: str
    rank: Known | None = None
    world_size: Known | None = None
    local_rank: Known | None = None
    local_world_size: Known | None = None
    node: Known | None = None
    nodes: Known | None = None
    job: str = ""
    job_from: str = ""
    start: str = ""
    restart: Known | None = None
    max_restarts: Known | None = None
    unclear: str = ""
    hint: str = ""
    skip: bool = False


class LaunchLine(Struct, frozen=True):
    """One command line that starts a launcher on each node; None: the line has no such number.

    ``nodes`` is how many at most; ``elastic``: their number may differ from start to start. ``node`` is this
    node's index, None also if the launcher numbers the nodes itself; ``per_node`` are the workers on each,
    which the launcher may restart ``restarts`` times. ``endpoint`` is where its nodes meet, as given;
    ``host`` and ``port`` are its parts, or their defaults. ``before`` are the words before ``command``, which
    the workers run, changed so that they can run any program.
    """

    launcher: str
    nodes: int | None
    elastic: bool
    node: int | None
    per_node: int | None
    restarts: int
    job: str
    endpoint: str
    host: str
    port: str
    before: tuple[str, ...]
    command: tuple[str, ...]

    def inside(self, words: Sequence[str]) -> list[str]:
        """Return the line with ``words`` (ckpt run --worker …) inside: each restart then decides anew."""
        return [*self.before, *words, "--", *self.command]


class Launcher(Struct, frozen=True):
    """One launcher. ``variables`` are the variables that it sets, ``reference`` the source of these facts.
    ``read_line`` parses the command lines that start the launcher.
    """

    name: str
    variables: tuple[str, ...]
    detect: Callable[[Mapping[str, str]], Started | None]
    reference: str
    read_line: Callable[[Sequence[str], Mapping[str, str]], LaunchLine | None] | None = None


def number(env: Mapping[str, str], name: str) -> int | None:
    """Return a variable as a non-negative int; None if it is unset or no such number."""
    value = env.get(name, "")
    return int(value) if value.isascii() and value.isdigit() and len(value) < 10 else None


def known(env: Mapping[str, str], name: str, launcher: str) -> Known | None:
    """Return the variable ``name`` as a number with its provenance; None if it is unset or no number."""
    value = number(env, name)
    return None if value is None else Known(value, f"{name} ({launcher})")


def read(env: Mapping[str, str], launcher: str, job: Sequence[str] = (), **fields: str) -> Started:
    """Return the fields of Started from variables: each from the first of its names (between blanks) that is
    set to a number, the job's id from the first variable of ``job`` that is set.
    """
    numbers = {
        field: next((n for name in names.split() if (n := known(env, name, launcher))), None)
        for field, names in fields.items()
    }
    job_id, name = next(((env[name], name) for name in job if env.get(name)), ("", ""))
    return Started(launcher, **numbers, job=job_id, job_from=name)  # type: ignore[arg-type]  # numbers only


def divide(world: Known | None, local: Known | None, what: str) -> Known | None:
    """Return ``world`` / ``local``, the number of nodes, with the provenance ``what``; None if inexact."""
    if world is None or local is None or not local.value or world.value % local.value:
        return None
    return Known(world.value // local.value, what)


def show(env: Mapping[str, str], *names: str) -> str:
    """Return the variables that are set, as NAME=VALUE for a message; a value has at most 60 characters."""
    texts = ((name, env[name]) for name in names if name in env)
    return ", ".join(
        f"{name}={value[:60] if value[:60].isprintable() else ascii(value[:60])}" for name, value in texts
    )


def clear(started: Started, unclear: str, hint: str) -> Started:
    """Return ``started`` without ranks and numbers of ranks, with the reason ``unclear`` and a hint."""
    none = dict.fromkeys(("rank", "world_size", "local_rank", "local_world_size"))
    return replace(started, **none, unclear=unclear, hint=hint)


def settled(started: Started) -> Started:
    """Return ``started``; if its numbers contradict each other, without them and with the reason."""
    s, world, local, nodes = started, started.world_size, started.local_world_size, started.nodes
    below = ((s.rank, world), (s.local_rank, local), (s.node, nodes), (s.local_rank, world), (s.node, world))
    within = ((local, world), (nodes, world))
    wrong = list[str]()
    for a, b in below:
        if a and b and a.value >= b.value:
            wrong.append(f"{a.provenance} is {a.value}, not below the {b.value} of {b.provenance}")
    for a, b in within:
        if a and b and a.value > b.value:
            wrong.append(f"{a.provenance} is {a.value}, more than the {b.value} of {b.provenance}")
    counts = [n for n in (world, local, nodes) if n and not 0 < n.value <= MAX_RANK + 1]
    wrong += [f"{n.provenance} is {n.value}" for n in counts]
    if not wrong:
        return s
    unclear = "; ".join(filter(None, (s.unclear, wrong[0])))
    return replace(clear(s, unclear, s.hint or HINT), node=None, nodes=None)


_WORDS = (
    "CKPT_RANK CKPT_WORLD_SIZE RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE LOCAL_SIZE CROSS_RANK"
    " CROSS_SIZE RANK_ID RANK_SIZE DEVICE_ID"
)


def _detect(env: Mapping[str, str]) -> Started | None:
    """Return the rank by CKPT_RANK, or the variables of env:// or of Ascend; None if none is set."""
    if number(env, "CKPT_RANK") is not None:
        return settled(read(env, "bare", rank="CKPT_RANK", world_size="CKPT_WORLD_SIZE"))
    if "RANK" in env:
        started = read(
            env,
            "bare",
            **TORCH,
            local_world_size="LOCAL_WORLD_SIZE LOCAL_SIZE",
            node="CROSS_RANK",
            nodes="CROSS_SIZE",
        )
        if started.rank and started.world_size and started.local_rank:
            return settled(started)
        what = show(env, *TORCH.values())
        unclear = f"{what}: without numbers in all three, RANK may be a node or a process"
        return Started("bare", unclear=unclear, hint=HINT)
    if "RANK_ID" in env or "RANK_SIZE" in env:  # DEVICE_ID is a chip's number, no local rank
        started = read(env, "bare", rank="RANK_ID", world_size="RANK_SIZE")
        if started.rank and started.world_size:
            return settled(started)
        what = show(env, "RANK_ID", "RANK_SIZE", "DEVICE_ID")
        return Started("bare", unclear=f"{what}: RANK_ID and RANK_SIZE are not both numbers", hint=HINT)
    return None


LAUNCHER = Launcher(
    name="bare",
    variables=tuple(_WORDS.split()),
    detect=_detect,
    reference=(
        "deepspeed/launcher/launch.py; MindSpore's environment variables RANK_ID, RANK_SIZE and DEVICE_ID"
        " (mindspore.cn, env_var_list)"
    ),
)
