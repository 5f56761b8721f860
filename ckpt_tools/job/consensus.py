"""Nodes with disks of their own agree on the newest checkpoint that is sound on each for its own ranks."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from xxhash import xxh3_128_hexdigest

from ckpt_tools.cache import remembering
from ckpt_tools.errors import CannotLook, CkptError, NoCheckpoint, NoneUsable, UsageError
from ckpt_tools.findings import finding
from ckpt_tools.job.decision import failure
from ckpt_tools.job.meeting import SAME, Meeting
from ckpt_tools.model.checkpoint import Checkpoint, CheckpointKey
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.part import Kind, Part
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


_T = TypeVar("_T")
LISTED = 32
"""The most candidates that a node names: the newest ones."""
_FOREIGN, _NAMED = 256, 4
"""The most files for ranks of other nodes that a node reports, and that findings name."""
_UP = "^"  # stands for ".." in names of paths: links may lead out of ROOT

# ---- messages


class Identity(Struct, frozen=True, array_like=True):
    """The name of a checkpoint on every node; ``base`` is the directory of its run below the root."""

    layout: str
    base: str
    prefix: str
    step: int | None
    epoch: int | None
    step_in_epoch: int | None
    generation: int | None


class Candidate(Struct, frozen=True):
    """A checkpoint as one node has it, or all; ``path`` is its name on every node. In the common order,
    ``without`` are the nodes that named no part of it, each with True if it has more checkpoints than it
    named.
    """

    id: Identity
    mtime: int
    kind: Kind
    step: int | None
    path: str
    without: list[tuple[int, bool]] = []


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


def name_of(path: str, root: str) -> str:
    """Return the name of a path that is the same on every node, wherever each has mounted its disk."""
    return "/".join(_UP if word == ".." else word for word in os.path.relpath(path, top(root)).split("/"))


def identify(c: Checkpoint, root: str) -> Identity:
    """Return the identity of a checkpoint, the same on every node."""
    base, prefix = name_of(c.parts[0].base, root), c.parts[0].prefix
    return Identity(c.layout, base, prefix, c.step, c.epoch, c.step_in_epoch, c.generation)


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
    found = {repr(of): _merge_rows(rows, values) for of, rows in listed.items()}
    seen = list[Checkpoint]()
    for name, row in found.items():
        layout, of = planner.layouts.get(row.id.layout), row.id
        restarts = (of.generation or 0) if layout and layout.counting.restarts else 0
        c = _without_parts(row, name)
        seen.append(replace(c, run=of.base, mtime_ns=row.mtime, restarts=restarts))
    return Order([found[c.path] for c in rank(seen, planner.order, planner.selection.prefer)], hosts)


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


def _merge_rows(rows: Mapping[int, Candidate], values: Sequence[Listing]) -> Candidate:
    """Return one candidate from the ``rows`` of nodes that have it, with their mean time: each clock may be
    off by its own amount, which cancels out over the same nodes.
    """
    mtime = sum(row.mtime for row in rows.values()) // len(rows)
    without = [(i, v.more) for i, v in enumerate(values) if i not in rows]
    return replace(rows[min(rows)], mtime=mtime, without=without)


def _without_parts(row: Candidate, path: str) -> Checkpoint:
    """Return a candidate as a checkpoint without files, for a node that may have none of them."""
    of = row.id
    return Checkpoint(
        layout=of.layout,
        run=repr(of),  # not a run of this node, but distinct for each identity
        kind=row.kind,
        parts=(),
        path=path,
        mtime_ns=0,
        step=of.step,
        epoch=of.epoch,
        step_in_epoch=of.step_in_epoch,
        generation=of.generation,
    )


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
    """This node's side of the agreement; every node makes the same exchanges in the same order."""

    planner: Planner
    meeting: Meeting
    ranks: range
    asked: str
    mine: dict[Identity, Checkpoint] = {}
    hosts: list[str] = []
    entries: dict[CheckpointKey, Candidate] = {}

    def plan(self) -> LoadPlan:
        ranked = self._exchange_candidates()
        if not ranked:  # no node has anything
            return self.planner.plan_nothing()
        choice = self.planner.choose_first(ranked, self._judge, lambda c: self.entries[c.key].step)
        plan = self._fail_together(lambda: self._weigh(choice, ranked))
        host = self.hosts[self.meeting.me]
        mine = [replace(r, files=tuple(replace(f, node=host) for f in r.files)) for r in plan.by_rank]
        answer = self.meeting.exchange(Loads(mine, plan.fingerprint), _merge_loads, Loads)
        if choice.checkpoint is None:
            if self.planner.selection.allow_fresh:
                return plan
            raise self._explain_failure(choice, ranked)  # on every node alike: the judgements were common
        others = [r for r in answer.ranks if r.rank not in self.ranks]
        loads = tuple(sorted((*mine, *others), key=lambda r: r.rank))
        return replace(plan, by_rank=loads, fingerprint=answer.fingerprint)

    def _fail_together(self, work: Callable[[], _T]) -> _T:
        """Return ``work()``. Its error is raised on every node: they wait for an exchange."""
        try:
            return work()
        except CkptError as error:
            self.meeting.exchange(failure(error), lambda _: {})
            raise

    # ---- candidates

    def _exchange_candidates(self) -> list[Checkpoint]:
        """Return the candidates of all nodes in the common order, without parts if this node has none. Raise
        CannotLook if the order lacks one of this node's: all would start from an older checkpoint, or from
        nothing.
        """
        listing, ranked = self._fail_together(self._list), list[Checkpoint]()
        answer = self.meeting.exchange(listing, lambda values: merge(values, self.planner), Order)
        self.hosts = answer.hosts
        me, size = self.meeting.me, self.meeting.size

        def require_mine() -> None:
            strange = any(not 0 <= i < size for e in answer.order for i, _ in e.without)
            strange = strange or any(self.planner.layouts.get(e.id.layout) is None for e in answer.order)
            if strange or len(answer.hosts) != size:
                raise CannotLook("node 0 tells of nodes or layouts that there are not", SAME)
            known = {e.id for e in answer.order if all(i != me for i, _ in e.without)}
            if lost := next((c for i, c in self.mine.items() if i not in known), None):
                raise CannotLook(
                    f"the first node leaves out {lost.label}, which this node has",
                    "start again; if it stays so, add --meet DIR, a directory that only you can write",
                )

        self._fail_together(require_mine)
        root = self.planner.root
        for row in answer.order:
            mine = self.mine.get(row.id)
            path = normal(os.path.join(top(root), row.path))
            c = replace(mine, kind=row.kind) if mine else _without_parts(row, path)
            self.entries[c.key] = row
            ranked.append(c)
        return ranked

    def _list(self) -> Listing:
        """Return this node's own candidates, best first; [] is no error, as other nodes may have some."""
        root, ranked = self.planner.root, list[Checkpoint]()
        try:
            ranked = self.planner.find_candidates()
            self.planner.settle_order()
        except CannotLook:
            raise
        except CkptError as error:
            self.planner.weigh(error.plan, str(error))
            if not isinstance(error, NoCheckpoint):
                raise
            ranked = []
        if not ranked:
            self.planner.weigh(None, "there is no checkpoint on this node")
        self.mine = {identify(c, root): c for c in ranked[:LISTED]}
        rows = [
            Candidate(i, c.mtime_ns, c.kind, self.planner.step(c), name_of(c.path, root))
            for i, c in self.mine.items()
        ]
        return Listing(
            host=socket.gethostname(),
            asked=self.asked,
            ranks=(self.ranks.start, self.ranks.stop),
            candidates=rows,
            more=len(ranked) > LISTED,
            earlier=None if rows else first_launch.find_earlier_start(root, self.planner.selection),
        )

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
        mine = self._fail_together(lambda: self.planner.judge.judge(c))
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
