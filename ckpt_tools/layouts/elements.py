"""The Checkpoint of ``elements``, as DreamerV3 saves: a directory ``20261126T200327F714468/`` for each save,
with ``<name>.pkl`` of each object, the empty ``done``, and ``latest`` beside it, which names it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ckpt_tools.layouts.common.counters import borrowed, named_steps
from ckpt_tools.layouts.common.layout import (
    Beside,
    Complete,
    Counting,
    Layout,
    Metadata,
    Steps,
    Tracker,
    resume_directory,
    whole,
)
from ckpt_tools.layouts.common.lost_files import lost
from ckpt_tools.layouts.common.piece import TELLS_STEP, Changes, Claim, Piece, nest
from ckpt_tools.layouts.files import OBJECTS
from ckpt_tools.model import ranges
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Flaw, Severity
from ckpt_tools.model.part import Part
from ckpt_tools.model.report import Report

_HOME = "20{name}T{name}F{name}[-{step:012d}]"
"""timestamp(millis=True), and the step where the Checkpoint was given one."""
DATE = re.compile(r"(20[0-9]{6}T[0-9]{6}F[0-9]{6})(?:-[0-9]{12,18})?")

_ACTIONS = "counters.actions"


def _read_tracker(data: bytes) -> str | None:
    """The directory that ``latest`` names; other frameworks have a file of that name as well."""
    name = data.decode("utf-8", "surrogateescape").strip("\n")
    return name if DATE.fullmatch(name) else None


def _count(metadata: Metadata) -> int | None:
    return whole(metadata.get("value"))


def _steps(part: Part, metadata: Metadata) -> Steps:
    """DreamerV3 saves the steps of its environments as a number alone."""
    counted = _count(metadata) if part.piece == "step" else None
    return part.step if part.step is not None else counted, None, None


def _check(parts: Sequence[tuple[Part, Report]]) -> Iterator[tuple[str, Flaw]]:
    """An agent counts the actions that it took, of which each is a step of an environment."""
    yield from named_steps(parts, _count, "count", role="progress")
    taken = {p.home: n for p, r in parts if (n := whole(r.metadata.get(_ACTIONS))) is not None}
    counted = [row for row in parts if row[0].home in taken and row[0].piece == "step"]
    told = {p.home: n for p, r in counted if (n := _count(r.metadata)) is not None}
    beside = "the agent beside it"
    yield from borrowed(counted, {"step": ("value",)}, lambda p: taken[p.home], beside=beside)
    agents = [row for row in parts if row[0].home in told and row[0].piece == "agent"]
    yield from borrowed(agents, {"agent": (_ACTIONS,)}, lambda p: told[p.home], beside="the steps beside it")
    for p, report in counted:
        if _count(report.metadata) is None:
            yield p.path, Flaw("bad-pickle", f"it holds no number, as {beside} does")


def _lost(c: Checkpoint, beside: Sequence[Checkpoint]) -> Iterator[Flaw]:
    there = {p.piece for p in c.parts}
    if {"agent", "replay"} <= there and "step" not in there:
        yield _without(c, "step.pkl, which DreamerV3 saves beside an agent and its replay")
    if {"agent", "step"} <= there and "replay" not in there and not beside:
        likely = _without(c, "replay.pkl, which DreamerV3 saves beside an agent and its steps")
        yield replace(likely, severity=Severity.WARNING)
    shards: dict[str, set[int]] = {}
    for p in c.parts:
        if p.piece == "shard":
            shards.setdefault(p.name.rpartition("-")[0], set()).add(dict(p.coords)["shard"])
    for name, numbers in sorted(shards.items()):
        if gone := ranges.gaps(numbers, max(numbers) + 1):
            yield _without(c, f"{name}-{gone[0][0]:04d}.pkl, although there are later ones")
    for name in lost(c, beside, lambda o: frozenset(p.name for p in o.parts)):
        yield _without(c, f"{name}, which the run's other checkpoints have")


def _without(c: Checkpoint, what: str) -> Flaw:
    return Flaw("missing-part", f"there is no {what}", path=c.path)


_PIECES = (
    Piece("step", "progress", "step.pkl", OBJECTS, content=TELLS_STEP),
    Piece("replay", "data", "replay[_<train|eval>].pkl", OBJECTS),
    Piece("agent", "model", "agent.pkl", OBJECTS),
    Piece("shard", "model", "{name}-{shard:04d}.pkl", OBJECTS),
    Piece("state", "model", "{name}.pkl", OBJECTS),
)
_DONE = Piece("done", "done", f"{_HOME}/done", loaded=False, claim=Claim.INSIDE, changes=Changes.MARK)
LAYOUT = Layout(
    name="elements",
    title="elements (DreamerV3)",
    pieces=(*nest(_HOME, _PIECES, unasked=True), _DONE),
    resume=resume_directory,  # Checkpoint.load(path)
    steps=_steps,
    check=_check,
    lost=_lost,
    # empty, and the last file of a save
    beside=Beside(traces=(re.compile(rf"(?:^|/){DATE.pattern}/done$"),)),
    tracker=Tracker(file="latest", read=_read_tracker, name=lambda c: c.path.rpartition("/")[2]),
    complete=Complete(commit="done", needs=("model",)),
    counting=Counting(dated=DATE),
    reshardable=True,
    reference="elements 3.22 checkpoint.py Checkpoint; danijar/dreamerv3 embodied/run/train.py, jax/agent.py",
    limits=(
        "Checkpoint.load() follows latest, not the plan: give it the path, or write the name into latest",
        "of a lone save nothing tells that the last shard of an object is missing",
        "the chunks of the replay are in a directory of their own, and not checked",
    ),
)
