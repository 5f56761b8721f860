"""Nodes with disks of their own agree on the newest checkpoint that is sound on each for its own ranks."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace
from xxhash import xxh3_128_hexdigest

from ckpt_tools.cache import remembering
from ckpt_tools.errors import CannotLook, CkptError, NoCheckpoint, NoneUsable, UsageError
from ckpt_tools.findings import finding
from ckpt_tools.job.meeting import SAME, Meeting
from ckpt_tools.model.checkpoint import Checkpoint, CheckpointKey
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import Choice, LoadPlan, RankLoad
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning import first_launch
from ckpt_tools.planning.choose import Judgement, rank
from ckpt_tools.planning.planner import Planner
from ckpt_tools.planning.rules.tree import first_launch_leftovers
from ckpt_tools.storage import counted
from ckpt_tools.storage.retry import is_directory
from ckpt_tools.storage.stalls import limited
from ckpt_tools.storage.urls import normal

if TYPE_CHECKING:
    from ckpt_tools.job.decider import Listener


Identity = tuple[object, ...]
"""What a checkpoint is called on every node."""
LISTED = 32
"""The most candidates that a node names: the newest ones."""
_FOREIGN, _NAMED = 256, 4
"""The most files for ranks of other nodes that a node reports, and that findings name."""
_UP = "^"  # stands for ".." in names of paths: links may lead out of ROOT

# ---- messages


class Candidate(Struct, frozen=True):
    """A checkpoint as one node has it, or all: without parts, and with names that are the same on every node.
    ``step`` is what its files tell. In the common order, ``without`` are the nodes that named no part of it,
    each with True if it has more checkpoints than it named.
    """

    checkpoint: Checkpoint
    step: int | None
    without: list[tuple[int, bool]] = []

    @property
    def id(self) -> Identity:
        c = self.checkpoint
        return c.layout, c.run, c.step, c.epoch, c.step_in_epoch, c.generation


class Listing(Struct, frozen=True):
    """A node's first message: ``asked``, a digest of the question, first and end of its ``ranks``, and its
    newest ``candidates``; ``more``: it has more of them. ``earlier`` is an earlier start, after which this
    one is no first launch.
    """

    host: str
    asked: str
    ranks: tuple[int, int]
    candidates: list[Candidate]
    more: bool
    earlier: first_launch_leftovers.EarlierStart | None


class Order(Struct, frozen=True):
    """The conclusion of the first node from all listings."""

    order: list[Candidate]
    hosts: list[str]


class Judged(Struct, frozen=True):
    """The judgement of a checkpoint by one node, or by the first node for all. ``lacks``: ranks whose files
    the node lacks; ``strange``: (role, ranks, path) of files it has for ranks of other nodes.
    """

    ok: bool
    read: bool
    findings: list[Finding]
    lacks: list[int] = []
    strange: list[tuple[str, list[int], str]] = []


class Loads(Struct, frozen=True):
    """The files that ranks load, of one node or of all."""

    ranks: list[RankLoad]
    fingerprint: str


# ---- conclusions of the first node


def top(root: str) -> str:
    """Return the directory of a root that is a file or a prefix of names, else the root."""
    return root if is_directory(root) else os.path.dirname(root)


def describe(c: Checkpoint, planner: Planner) -> Candidate:
    """Return a checkpoint of this node as all nodes name it, wherever each has mounted its disk."""

    def name(path: str) -> str:
        below = os.path.relpath(path, top(planner.root)).split("/")
        return "/".join(_UP if word == ".." else word for word in below)

    run = f"{name(c.parts[0].base)}/{c.parts[0].prefix}"
    restarts = (c.generation or 0) if planner.layouts.of(c).counting.restarts else 0
    named = replace(c, run=run, parts=(), path=name(c.path), epoch_base=None, restarts=restarts)
    return Candidate(named, planner.step(c))


def merge(values: Sequence[Listing], planner: Planner) -> Order:
    """Return the common order of all nodes' candidates. Raise UsageError unless all nodes ask the same and
    run each rank once, NoneUsable or NoCheckpoint if there is nothing that all could resume from.
    """
    _require_one_job(values)
    names = [v.host for v in values]
    hosts = [name if names.count(name) == 1 else f"{name}#{i}" for i, name in enumerate(names)]
    listed: dict[Identity, dict[int, Candidate]] = {}
    for node, value in enumerate(values):
        for row in value.candidates:
            listed.setdefault(row.id, {})[node] = row
    if all(len(rows) < len(values) for rows in listed.values()):
        _require_fresh_start(values, hosts, planner)
    found: dict[Checkpoint, Candidate] = {}
    for rows in listed.values():
        first = rows[min(rows)]
        # the mean time: each clock may be off by its own amount, which cancels out over the same nodes
        mtime = sum(row.checkpoint.mtime_ns for row in rows.values()) // len(rows)
        c = replace(first.checkpoint, mtime_ns=mtime)
        without = [(i, v.more) for i, v in enumerate(values) if i not in rows]
        found[c] = Candidate(c, first.step, without)
    return Order([found[c] for c in rank(list(found), planner.order, planner.selection.prefer)], hosts)


def _require_one_job(values: Sequence[Listing]) -> None:
    if len({v.asked for v in values}) > 1:
        raise UsageError("the nodes were started with different options", SAME)
    end = 0
    for first, stop in sorted(v.ranks for v in values):
        if first != end or stop < first:
            text = f"the nodes run the ranks {[list(v.ranks) for v in values]}, which are not all ranks once"
            raise UsageError(text, "set CKPT_NODE on every node")
        end = stop


def _require_fresh_start(values: Sequence[Listing], hosts: Sequence[str], planner: Planner) -> None:
    """Raise CkptError unless no node has a checkpoint, and the question allows to start from nothing."""
    empty = [host for host, v in zip(hosts, values, strict=True) if not v.candidates]
    if len(empty) < len(values):
        what = "no two nodes have files of the same checkpoint"
        if empty:
            what = f"{', '.join(empty)} has no checkpoint at all"
        text = f"no checkpoint has files on every node: {what}"
        raise NoneUsable(text, "check that node's disk, or copy there what its ranks load")
    if earlier := next((v.earlier for v in values if v.earlier), None):
        raise first_launch_leftovers.stop_without_earlier(earlier, planner.root)
    if not (planner.selection.allow_none or planner.selection.allow_fresh):
        raise NoCheckpoint("there is no checkpoint on any node")


def _merge_loads(values: Sequence[Loads]) -> Loads:
    """Return the loads of all nodes together, with a digest of their fingerprints."""
    digest = xxh3_128_hexdigest("\n".join(v.fingerprint for v in values).encode("utf-8", "surrogatepass"))
    return Loads([r for v in values for r in v.ranks], digest)


# ---- each node's part


def agree(
    root: str, selection: Selection, ranks: range, meeting: Meeting, *, asked: str, listener: Listener
) -> LoadPlan:
    """Return the plan that all nodes have agreed on, with this node's paths and arguments; this node runs
    ``ranks``. The choice and the ranks are the same on each. ``asked`` is a digest of the question. Raise on
    every node the error of any node; NoneUsable if no checkpoint is sound on all.
    """
    verdicts = remembering(root, selection.cache, selection.max_age, listener.note, selection.trust)
    with limited(selection.budget), verdicts as cache, counted() as read:
        planner = Planner(root, replace(selection, ranks=ranks), listener.progress, cache)
        return replace(_Node(planner, meeting, ranks, asked).plan(), bytes_read=read.bytes)


class _Node(Struct):
    """This node's side of the agreement; every node makes the same exchanges in the same order. An error that
    one raises ends the meeting of all.
    """

    planner: Planner
    meeting: Meeting
    ranks: range
    asked: str
    hosts: list[str] = []
    entries: dict[CheckpointKey, Candidate] = {}

    def plan(self) -> LoadPlan:
        ranked = self._exchange_candidates()
        if not ranked:  # no node has anything
            return self.planner.plan_nothing()
        choice = self.planner.choose_first(ranked, self._judge, lambda c: self.entries[c.key].step)
        plan, host = self._weigh(choice, ranked), self.hosts[self.meeting.me]
        mine = [replace(r, files=tuple(replace(f, node=host) for f in r.files)) for r in plan.by_rank]
        answer = self.meeting.exchange(Loads(mine, plan.fingerprint), _merge_loads, Loads)
        if choice.checkpoint is None:
            if self.planner.selection.allow_fresh:
                return plan
            raise self._explain_failure(choice, ranked)  # on every node alike: the judgements were common
        others = [r for r in answer.ranks if r.rank not in self.ranks]
        loads = tuple(sorted((*mine, *others), key=lambda r: r.rank))
        return replace(plan, by_rank=loads, fingerprint=answer.fingerprint)

    # ---- candidates

    def _exchange_candidates(self) -> list[Checkpoint]:
        """Return the candidates of all nodes in the common order, without parts if this node has none."""
        planner, found = self.planner, self._find_own()
        mine = {(row := describe(c, planner)).id: (row, c) for c in found[:LISTED]}
        listing = Listing(
            host=socket.gethostname(),
            asked=self.asked,
            ranks=(self.ranks.start, self.ranks.stop),
            candidates=[row for row, _ in mine.values()],
            more=len(found) > LISTED,
            earlier=None if mine else first_launch.find_earlier_start(planner.root, planner.selection),
        )
        answer = self.meeting.exchange(listing, lambda values: merge(values, planner), Order)
        self._require_mine(answer, {of: c for of, (_, c) in mine.items()})
        self.hosts, ranked = answer.hosts, list[Checkpoint]()
        for row in answer.order:
            c = row.checkpoint
            if row.id in mine:
                c = replace(mine[row.id][1], kind=c.kind)
            else:
                path = normal(os.path.join(top(planner.root), c.path))
                c = replace(c, parts=(), path=path, mtime_ns=0, restarts=0)
            self.entries[c.key] = row
            ranked.append(c)
        return ranked

    def _require_mine(self, answer: Order, mine: Mapping[Identity, Checkpoint]) -> None:
        """Raise CannotLook if the common order lacks a checkpoint of this node: all would start from an older
        one, or from nothing; also if it tells of nodes or layouts that there are not.
        """
        nodes = {i for row in answer.order for i, _ in row.without} - {*range(self.meeting.size)}
        layouts = [self.planner.layouts.get(row.checkpoint.layout) for row in answer.order]
        if nodes or None in layouts or len(answer.hosts) != self.meeting.size:
            raise CannotLook("node 0 tells of nodes or layouts that there are not", SAME)
        known = {row.id for row in answer.order if all(i != self.meeting.me for i, _ in row.without)}
        for lost in (c for of, c in mine.items() if of not in known):
            raise CannotLook(
                f"the first node leaves out {lost.label}, which this node has",
                "start again; if it stays so, add --meet DIR, a directory that only you can write",
            )

    def _find_own(self) -> list[Checkpoint]:
        """Return this node's own candidates, best first; [] is no error, as other nodes may have some."""
        ranked = list[Checkpoint]()
        try:
            ranked = self.planner.find_candidates()
            self.planner.settle_order()
        except CannotLook:
            raise
        except CkptError as error:
            self.planner.weigh(error.plan, str(error))
            if not isinstance(error, NoCheckpoint):
                raise
        if not ranked:
            self.planner.weigh(None, "there is no checkpoint on this node")
        return ranked

    # ---- judgements

    def _judge(self, c: Checkpoint) -> Judgement:
        """Return the common judgement of a checkpoint, after an exchange if every node has files of it."""
        without = self.entries[c.key].without
        if without:
            texts = (
                f"{self.hosts[i]} has no file of it" + (f" among its {LISTED} newest" if more else "")
                for i, more in without
            )
            return Judgement(False, tuple(finding("missing-part", text, path=c.path) for text in texts))
        mine = self.planner.judge.judge(c)
        lacks = set[int]()
        if not mine.usable:  # find this node's ranks without a sound file here
            bad, reports = (Verdict.BROKEN, Verdict.UNKNOWN), self.planner.session.reports
            sound = [p for p in c.parts if p.path not in reports or reports[p.path].verdict not in bad]
            lacks = set(self.ranks) - {r for p in sound for r in self._ranks_of(p)}
        judged = Judged(mine.usable, mine.read, list(mine.findings), sorted(lacks), self._find_foreign(c))
        answer = self.meeting.exchange(judged, self._conclude, Judged)
        if answer.ok:
            return replace(mine, read=answer.read)
        return Judgement(False, tuple(answer.findings), answer.read)

    def _conclude(self, values: Sequence[Judged]) -> Judged:
        """Return the judgement of all nodes, with the findings of each node that says no."""
        rows = [
            replace(f, message=f"{self.hosts[i]}: {f.message}")
            for i, v in enumerate(values)
            if not v.ok
            for f in v.findings
        ]
        lacks = {r for v in values for r in v.lacks}
        elsewhere = [
            finding(
                "on-other-node",
                f"the {role} file of rank {min(lost)} lies on {self.hosts[i]}, where that rank does not run",
                path=path,
            )
            for i, v in enumerate(values)
            for role, ranks, path in v.strange
            if (lost := lacks & {*ranks})
        ]
        rows += elsewhere[:_NAMED]
        return Judged(all(v.ok for v in values), any(v.read for v in values), rows)

    def _ranks_of(self, p: Part) -> Sequence[int]:
        """Return the ranks that load a part: the rank in its name, or the ranks at its coordinates."""
        if p.rank is not None or not p.coords:
            return [] if p.rank is None else [p.rank]
        place, topology = set(p.coords), self.planner.topology
        return [r for r in range(topology.world_size) if place <= topology.coordinates(r).items()]

    def _find_foreign(self, c: Checkpoint) -> list[tuple[str, list[int], str]]:
        """Return (role, ranks, path) of files here for ranks of other nodes, at most ``_FOREIGN``."""
        own, parts = {*self.ranks}, (p for p in c.parts if p.size > 0)
        rows = ((p.role, sorted({*self._ranks_of(p)} - own), p.path) for p in parts)
        return list(islice((row for row in rows if row[1]), _FOREIGN))

    # ---- the plan

    def _weigh(self, choice: Choice, ranked: Sequence[Checkpoint]) -> LoadPlan:
        """Return this node's plan. Raise CannotLook if files not looked at may change the answer."""
        if choice.checkpoint is None:
            error = self._explain_failure(choice, ranked)
            return self.planner.weigh(error.plan or self.planner.plan_nothing(), str(error))
        made = replace(self.planner.finish(choice, choice.checkpoint), candidates=tuple(ranked))
        return self.planner.weigh(made, "")

    def _explain_failure(self, choice: Choice, ranked: Sequence[Checkpoint]) -> CkptError:
        error = self.planner.explain_failure(choice, ranked)
        error.plan = replace(error.plan, candidates=tuple(ranked)) if error.plan else None
        return error
