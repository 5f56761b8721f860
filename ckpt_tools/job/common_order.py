"""The order in which all nodes judge the checkpoints that they have, merged by the first node from what each
has listed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ckpt_tools.errors import NoCheckpoint, NoneUsable, UsageError
from ckpt_tools.job.meeting import SAME, Value
from ckpt_tools.layouts import Layouts
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import EarlierStart
from ckpt_tools.planning import decision_log
from ckpt_tools.planning.choose import rank
from ckpt_tools.planning.planner import Planner
from ckpt_tools.storage.retry import is_directory

LISTED = 32
"""Candidates that a node names, at most: the newest ones."""
_UP = "^"
"""What stands for .. in names: links may lead out of ROOT."""


class Identity(NamedTuple):
    """A checkpoint on every node; ``base`` is the directory of its run below the root."""

    layout: str
    base: str
    prefix: str
    step: int | None
    epoch: int | None
    step_in_epoch: int | None
    generation: int | None


def top(root: str) -> str:
    """Return the directory that all of a root lies in: a root may be a prefix of several, or a file."""
    return root if is_directory(root) else os.path.dirname(root)


def name_of(path: str, root: str) -> str:
    """Return what a path is called on every node, wherever each has mounted its disk."""
    return "/".join(_UP if word == ".." else word for word in os.path.relpath(path, top(root)).split("/"))


def identify(c: Checkpoint, root: str) -> str:
    """Return what names a checkpoint on every node: its Identity as JSON."""
    base = name_of(c.parts[0].base, root)
    return json.dumps([c.layout, base, c.parts[0].prefix, c.step, c.epoch, c.step_in_epoch, c.generation])


def merge(values: Sequence[Value], planner: Planner) -> Value:
    """Return the common order. Raises UsageError where the nodes are not those of one job, NoneUsable and
    NoCheckpoint where there is nothing that all could resume from.
    """
    _require_one_job(values)
    hosts = _hosts(values)
    listed: dict[str, dict[int, Value]] = {}
    for node, value in enumerate(values):
        for row in value["candidates"]:
            listed.setdefault(row["id"], {})[node] = row
    if not listed:
        _require_leave_for_nothing(values, planner)
    elif all(len(rows) < len(values) for rows in listed.values()):
        raise _none_common(values, hosts)
    seen = [_date(identity, rows, planner.layouts) for identity, rows in listed.items()]
    ranked = rank(seen, planner.order, planner.selection.prefer)
    return {"order": [_entry(c.path, listed[c.path], values) for c in ranked], "hosts": hosts}


def _require_one_job(values: Sequence[Value]) -> None:
    """Raises UsageError unless all ask the same, and run each rank once."""
    if len({v["asked"] for v in values}) > 1:
        raise UsageError("the nodes were started with different options", SAME)
    end = 0
    for first, stop in sorted(v["ranks"] for v in values):
        if first != end or stop < first:
            raise UsageError(
                f"the nodes run the ranks {[v['ranks'] for v in values]}, which are not all ranks once",
                "say --node on every node",
            )
        end = stop


def _hosts(values: Sequence[Value]) -> list[str]:
    """Return the names of the nodes, with their number where several have the same."""
    names = [v["host"] for v in values]
    return [name if names.count(name) == 1 else f"{name}#{i}" for i, name in enumerate(names)]


def _require_leave_for_nothing(values: Sequence[Value], planner: Planner) -> None:
    """Raises CkptError unless no node may have a checkpoint: the question allows it, and none was there."""
    earlier = next((v["earlier"] for v in values if v["earlier"]), None)
    if earlier:
        raise decision_log.gone(planner.root, EarlierStart(*earlier))
    if not (planner.selection.allow_none or planner.selection.allow_fresh):
        raise NoCheckpoint("there is no checkpoint on any node")


def _none_common(values: Sequence[Value], hosts: Sequence[str]) -> NoneUsable:
    empty = [host for host, v in zip(hosts, values, strict=True) if not v["candidates"]]
    what = "no two nodes have parts of the same checkpoint"
    if empty:
        what = f"{', '.join(empty)} has no checkpoint at all"
    return NoneUsable(
        f"no checkpoint has parts on every node: {what}",
        "check that node's disk, or copy there what its ranks load",
    )


def _date(identity: str, rows: Mapping[int, Value], layouts: Layouts) -> Checkpoint:
    """Return a candidate as all nodes together date it: each clock may be off by its own amount, which
    cancels out over the same nodes. Its path is what names it on every node.
    """
    of = Identity(*json.loads(identity))
    layout = layouts.get(of.layout)
    return Checkpoint(
        layout=of.layout,
        run=of.base,
        kind=Kind(rows[min(rows)]["kind"]),
        parts=(),
        path=identity,
        mtime_ns=sum(row["mtime"] for row in rows.values()) // len(rows),
        step=of.step,
        epoch=of.epoch,
        step_in_epoch=of.step_in_epoch,
        generation=of.generation,
        restarts=(of.generation or 0) if layout and layout.counts_restarts else 0,
    )


def _entry(identity: str, rows: Mapping[int, Value], values: Sequence[Value]) -> Value:
    """Return a candidate in the common order, and the nodes that name no part of it, each with whether it
    has more than it named.
    """
    first = rows[min(rows)]
    without = [(i, v["more"]) for i, v in enumerate(values) if i not in rows]
    return {**{key: first[key] for key in ("kind", "step", "path")}, "id": identity, "without": without}
