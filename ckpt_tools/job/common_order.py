"""The order in which all nodes judge the checkpoints that they have, merged by the first node from what each
has listed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from msgspec import Struct

from ckpt_tools.errors import NoCheckpoint, NoneUsable, UsageError
from ckpt_tools.job.meeting import SAME
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


class Identity(Struct, frozen=True, array_like=True):
    """A checkpoint on every node; ``base`` is the directory of its run below the root."""

    layout: str
    base: str
    prefix: str
    step: int | None
    epoch: int | None
    step_in_epoch: int | None
    generation: int | None


class Candidate(Struct, frozen=True):
    """A checkpoint as one node has it; ``path`` is what it is called on every node."""

    id: Identity
    mtime: int
    kind: Kind
    step: int | None
    path: str


class Listing(Struct, frozen=True):
    """What a node puts up first: what it was ``asked``, the ``ranks`` from and up to which it runs, and its
    newest ``candidates``; whether it has ``more`` than it names, and the ``earlier`` start that forbids to
    take this one for a first launch.
    """

    host: str
    asked: str
    ranks: tuple[int, int]
    candidates: list[Candidate]
    more: bool
    earlier: EarlierStart | None


class Entry(Struct, frozen=True):
    """A checkpoint in the common order, and the nodes ``without`` a part of it that they name, each with
    whether it has more than it named.
    """

    id: Identity
    kind: Kind
    step: int | None
    path: str
    without: list[tuple[int, bool]]


class Order(Struct, frozen=True):
    """What the first node concludes of all listings."""

    order: list[Entry]
    hosts: list[str]


def top(root: str) -> str:
    """Return the directory that all of a root lies in: a root may be a prefix of several, or a file."""
    return root if is_directory(root) else os.path.dirname(root)


def name_of(path: str, root: str) -> str:
    """Return what a path is called on every node, wherever each has mounted its disk."""
    return "/".join(_UP if word == ".." else word for word in os.path.relpath(path, top(root)).split("/"))


def identify(c: Checkpoint, root: str) -> Identity:
    """Return what names a checkpoint on every node."""
    base, prefix = name_of(c.parts[0].base, root), c.parts[0].prefix
    return Identity(c.layout, base, prefix, c.step, c.epoch, c.step_in_epoch, c.generation)


def merge(values: Sequence[Listing], planner: Planner) -> Order:
    """Return the common order. Raises UsageError where the nodes are not those of one job, NoneUsable and
    NoCheckpoint where there is nothing that all could resume from.
    """
    _require_one_job(values)
    hosts = _hosts(values)
    listed: dict[Identity, dict[int, Candidate]] = {}
    for node, value in enumerate(values):
        for row in value.candidates:
            listed.setdefault(row.id, {})[node] = row
    if not listed:
        _require_leave_for_nothing(values, planner)
    elif all(len(rows) < len(values) for rows in listed.values()):
        raise _none_common(values, hosts)
    dated = {repr(of): (of, rows) for of, rows in listed.items()}
    seen = [_date(name, of, rows, planner.layouts) for name, (of, rows) in dated.items()]
    ranked = rank(seen, planner.order, planner.selection.prefer)
    return Order([_entry(*dated[c.path], values) for c in ranked], hosts)


def _require_one_job(values: Sequence[Listing]) -> None:
    """Raises UsageError unless all ask the same, and run each rank once."""
    if len({v.asked for v in values}) > 1:
        raise UsageError("the nodes were started with different options", SAME)
    end = 0
    for first, stop in sorted(v.ranks for v in values):
        if first != end or stop < first:
            raise UsageError(
                f"the nodes run the ranks {[list(v.ranks) for v in values]}, which are not all ranks once",
                "say --node on every node",
            )
        end = stop


def _hosts(values: Sequence[Listing]) -> list[str]:
    """Return the names of the nodes, with their number where several have the same."""
    names = [v.host for v in values]
    return [name if names.count(name) == 1 else f"{name}#{i}" for i, name in enumerate(names)]


def _require_leave_for_nothing(values: Sequence[Listing], planner: Planner) -> None:
    """Raises CkptError unless no node may have a checkpoint: the question allows it, and none was there."""
    earlier = next((v.earlier for v in values if v.earlier), None)
    if earlier:
        raise decision_log.gone(planner.root, earlier)
    if not (planner.selection.allow_none or planner.selection.allow_fresh):
        raise NoCheckpoint("there is no checkpoint on any node")


def _none_common(values: Sequence[Listing], hosts: Sequence[str]) -> NoneUsable:
    empty = [host for host, v in zip(hosts, values, strict=True) if not v.candidates]
    what = "no two nodes have parts of the same checkpoint"
    if empty:
        what = f"{', '.join(empty)} has no checkpoint at all"
    return NoneUsable(
        f"no checkpoint has parts on every node: {what}",
        "check that node's disk, or copy there what its ranks load",
    )


def _date(name: str, of: Identity, rows: Mapping[int, Candidate], layouts: Layouts) -> Checkpoint:
    """Return a candidate as all nodes together date it: each clock may be off by its own amount, which
    cancels out over the same nodes. Its path is the ``name`` of it here.
    """
    layout = layouts.get(of.layout)
    return Checkpoint(
        layout=of.layout,
        run=of.base,
        kind=rows[min(rows)].kind,
        parts=(),
        path=name,
        mtime_ns=sum(row.mtime for row in rows.values()) // len(rows),
        step=of.step,
        epoch=of.epoch,
        step_in_epoch=of.step_in_epoch,
        generation=of.generation,
        restarts=(of.generation or 0) if layout and layout.counting.restarts else 0,
    )


def _entry(of: Identity, rows: Mapping[int, Candidate], values: Sequence[Listing]) -> Entry:
    first = rows[min(rows)]
    without = [(i, v.more) for i, v in enumerate(values) if i not in rows]
    return Entry(of, first.kind, first.step, first.path, without)
