"""The order in which all nodes judge the checkpoints that they have: merged by the first node from what each
has listed, and checked by every node before it follows it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ckpt_tools.errors import NoCheckpoint, NoneUsable, UsageError
from ckpt_tools.job import reported, wire
from ckpt_tools.job.reported import LISTED, Value
from ckpt_tools.layouts import Layouts
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import EarlierStart
from ckpt_tools.planning import decision_log
from ckpt_tools.planning.choose import rank
from ckpt_tools.planning.planner import Planner

Listed = Mapping[str, Mapping[int, Value]]
"""What names a checkpoint on every node -> the nodes that have a part of it -> what each says of it."""


def merged(values: Sequence[Value], planner: Planner, *, transfer: bool) -> Value:
    """The common order, from what each node has listed. Raises UsageError where the nodes are not those of
    one job, NoneUsable and NoCheckpoint where there is nothing that all could resume from.
    """
    _require_one_job(values)
    hosts = _hosts(values)
    listed: dict[str, dict[int, Value]] = {}
    for node, value in enumerate(values):
        for row in value["candidates"]:
            listed.setdefault(row["id"], {})[node] = row
    if not listed:
        _require_leave_for_nothing(values, planner)
    elif not transfer:
        _require_a_common_one(listed, values, hosts)
    seen = [_seen(identity, rows, planner.layouts) for identity, rows in listed.items()]
    return {
        "order": [
            _entry(c.path, listed[c.path], values)
            for c in rank(seen, planner.order, planner.selection.prefer)
        ],
        "hosts": hosts,
        "ranks": [v["ranks"] for v in values],
    }


def _require_one_job(values: Sequence[Value]) -> None:
    """Raises UsageError unless all ask the same, and run each rank once."""
    if len({v["asked"] for v in values}) > 1:
        raise UsageError(
            "the nodes were started with different options",
            "start 'ckpt run' with the same options on every node",
        )
    end = 0
    for first, stop in sorted(v["ranks"] for v in values):
        if first != end or stop < first:
            raise UsageError(
                f"the nodes run the ranks {[v['ranks'] for v in values]}, which are not all ranks once",
                "say --node on every node",
            )
        end = stop


def _hosts(values: Sequence[Value]) -> list[str]:
    """The names of the nodes, with their number where several have the same."""
    names = [v["host"] for v in values]
    return [name if names.count(name) == 1 else f"{name}#{i}" for i, name in enumerate(names)]


def _require_leave_for_nothing(values: Sequence[Value], planner: Planner) -> None:
    """Raises CkptError unless no node may have a checkpoint: the question allows it, and none was there."""
    earlier = next((v["earlier"] for v in values if v["earlier"]), None)
    if earlier:
        raise decision_log.gone(planner.root, EarlierStart(*earlier))
    if not (planner.selection.allow_none or planner.selection.allow_fresh):
        raise NoCheckpoint("there is no checkpoint on any node")


def _require_a_common_one(listed: Listed, values: Sequence[Value], hosts: Sequence[str]) -> None:
    if any(len(rows) == len(values) for rows in listed.values()):
        return
    empty = [host for host, v in zip(hosts, values, strict=True) if not v["candidates"]]
    what = "no two nodes have parts of the same checkpoint"
    if empty:
        what = f"{', '.join(empty)} has no checkpoint at all"
    raise NoneUsable(
        f"no checkpoint has parts on every node: {what}",
        "check that node's disk, or bring the parts there with --transfer COMMAND",
    )


def _seen(identity: str, rows: Mapping[int, Value], layouts: Layouts) -> Checkpoint:
    """A candidate as all nodes together date it: each clock may be off by its own amount, which cancels out
    over the same nodes. Its path is what names it on every node.
    """
    of = wire.parts_of(identity)
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
    """A candidate in the common order, and the nodes that name no part of it, each with whether it has more
    than it named.
    """
    first = rows[min(rows)]
    without = [(i, v["more"]) for i, v in enumerate(values) if i not in rows]
    return {
        "id": identity,
        "kind": str(Kind(first["kind"])),
        "step": first["step"],
        "path": first["path"],
        "without": without,
    }


def check(order: Value, mine: Collection[str], me: int, size: int, ranks: range) -> None:
    """Raises UsageError unless the common order is about these nodes, and leaves out no checkpoint that this
    one has named (``mine``).
    """
    if len(order["hosts"]) != size or len(order["ranks"]) != size:
        raise reported.refuse("node 0", f"there are {len(order['hosts'])} nodes, and here {size}")
    if order["ranks"][me] != [ranks.start, ranks.stop]:
        raise reported.refuse("node 0", f"this node runs the ranks {order['ranks'][me]}")
    ids = [e["id"] for e in order["order"]]
    if len(set(ids)) != len(ids) or len(ids) > LISTED * size or not set(mine) <= set(ids):
        raise reported.refuse("node 0", "a checkpoint that this node has is no candidate, or one is twice")
    for e in order["order"]:
        without = {node for node, _ in e["without"]}
        if not without <= set(range(size)) or (me in without) != (e["id"] not in mine):
            raise reported.refuse("node 0", f"this node has or lacks {e['path']}, which is not so")
