"""Nodes with disks of their own agree on the newest checkpoint that is sound on each for its own ranks."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace
from xxhash import xxh3_128_hexdigest

from ckpt_tools.cache import open_cache
from ckpt_tools.errors import CannotLook, CkptError, NoCheckpoint, NoneUsable, UsageError
from ckpt_tools.findings import finding
from ckpt_tools.job.meeting import SAME, Meeting
from ckpt_tools.model.checkpoint import Checkpoint, CheckpointKey
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.part import Part
from ckpt_tools.model.plan import LoadPlan, RankLoad
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning import first_launch
from ckpt_tools.planning.choose import Judgement, rank
from ckpt_tools.planning.planner import Planner
from ckpt_tools.planning.rules.tree import first_launch_leftovers
from ckpt_tools.storage import count_read
from ckpt_tools.storage.retry import is_directory
from ckpt_tools.storage.stalls import limit_time
from ckpt_tools.storage.urls import normalize

if TYPE_CHECKING:
    from ckpt_tools.job.decider import Listener


Identity = tuple[object, ...]
"""The fields by which every node recognises a checkpoint."""
LISTED = 32
"""The most candidates that a node names: the newest ones."""
_REPORTED, _NAMED = 256, 4
"""The most ranks of other nodes of which a node reports a file, and that findings name."""

# ---- messages


class Candidate(Struct, frozen=True):
    """A checkpoint as one node has it, or all: without parts, and with names that are the same on every node.
    ``step`` is what its files tell. In the common order, ``without`` are the nodes that named no part of it.
    """

    checkpoint: Checkpoint
    step: int | None
    without: list[int] = []

    @property
    def id(self) -> Identity:
        c = self.checkpoint
        return c.layout, c.run, c.step, c.epoch, c.step_in_epoch, c.generation


class Listing(Struct, frozen=True):
    """A node's first message: ``asked``, a digest of the question, first and end of its ``ranks``, and its
    newest ``candidates``. After an ``earlier`` start this is no first launch.
    """

    host: str
    asked: str
    ranks: tuple[int, int]
    candidates: list[Candidate]
    earlier: first_launch_leftovers.EarlierStart | None


class Order(Struct, frozen=True):
    """The conclusion of the first node from all listings."""

    order: list[Candidate]
    hosts: list[str]


class Judged(Struct, frozen=True):
    """The judgement of a checkpoint by one node, or by the first node for all. ``lacks``: ranks whose files
    the node lacks; ``strange``: (rank, path) of a file that it has for a rank of another node.
    """

    ok: bool
    read: bool
    findings: list[Finding]
    lacks: list[int] = []
    strange: list[tuple[int, str]] = []


class Loads(Struct, frozen=True):
    """The files that ranks load, of one node or of all."""

    ranks: list[RankLoad]
    fingerprint: str


# ---- conclusions of the first node


def find_directory(root: str) -> str:
    """Return ``root`` if it is a directory, else its parent: a root may be a file or a prefix of names."""
    return root if is_directory(root) else os.path.dirname(root)


def name_candidate(c: Checkpoint, planner: Planner) -> Candidate:
    """Return a checkpoint of this node with its paths relative to ROOT, which nodes may mount elsewhere."""
    home, base = find_directory(planner.root), c.parts[0].base
    run = f"{os.path.relpath(base, home)}/{c.parts[0].prefix}"
    restarts = (c.generation or 0) if planner.layouts.of(c).counting.restarts else 0
    path = os.path.relpath(c.path, home)
    named = replace(c, run=run, parts=(), path=path, epoch_base=None, restarts=restarts)
    return Candidate(named, planner.step(c))


def order_candidates(listings: Sequence[Listing], planner: Planner) -> Order:
    """Return the common order of the candidates of all nodes. Raise CkptError if there can be none."""
    _require_one_job(listings)
    names = [listing.host for listing in listings]
    hosts = [name if names.count(name) == 1 else f"{name}#{i}" for i, name in enumerate(names)]
    by_id: dict[Identity, dict[int, Candidate]] = {}
    for node, listing in enumerate(listings):
        for candidate in listing.candidates:
            by_id.setdefault(candidate.id, {})[node] = candidate
    if all(len(by_node) < len(listings) for by_node in by_id.values()):
        _require_fresh_start(listings, hosts, planner)
    merged: dict[Checkpoint, Candidate] = {}
    for by_node in by_id.values():
        candidate = by_node[min(by_node)]
        # the mean time: each clock may be off by its own amount, which cancels out over the same nodes
        mtime = sum(other.checkpoint.mtime_ns for other in by_node.values()) // len(by_node)
        c = replace(candidate.checkpoint, mtime_ns=mtime)
        without = [i for i in range(len(listings)) if i not in by_node]
        merged[c] = Candidate(c, candidate.step, without)
    return Order([merged[c] for c in rank(list(merged), planner.order, planner.selection.prefer)], hosts)


def _require_one_job(listings: Sequence[Listing]) -> None:
    """Raise UsageError unless all nodes ask the same question, and run each rank of the job once."""
    if len({listing.asked for listing in listings}) > 1:
        raise UsageError("the nodes were started with different options", SAME)
    end = 0
    for first, stop in sorted(listing.ranks for listing in listings):
        if first != end or stop < first:
            ranks = [list(listing.ranks) for listing in listings]
            text = f"the nodes run the ranks {ranks}, which are not all ranks once"
            raise UsageError(text, "set CKPT_NODE on every node")
        end = stop


def _require_fresh_start(listings: Sequence[Listing], hosts: Sequence[str], planner: Planner) -> None:
    """Raise CkptError unless no node has a checkpoint, and the selection allows to start from nothing."""
    empty = [host for host, listing in zip(hosts, listings, strict=True) if not listing.candidates]
    if len(empty) < len(listings):
        what = "no two nodes have files of the same checkpoint"
        if empty:
            what = f"{', '.join(empty)} has no checkpoint at all"
        text = f"no checkpoint has files on every node: {what}"
        raise NoneUsable(text, "check that node's disk, or copy there what its ranks load")
    if earlier := next((listing.earlier for listing in listings if listing.earlier), None):
        raise first_launch_leftovers.stop_without_earlier(earlier, planner.root)
    if not (planner.selection.allow_none or planner.selection.allow_fresh):
        raise NoCheckpoint("there is no checkpoint on any node")


def _merge_loads(by_node: Sequence[Loads]) -> Loads:
    """Return the loads of all nodes together, with a digest of their fingerprints."""
    fingerprints = "\n".join(loads.fingerprint for loads in by_node)
    digest = xxh3_128_hexdigest(fingerprints.encode("utf-8", "surrogatepass"))
    return Loads([row for loads in by_node for row in loads.ranks], digest)


# ---- each node's part


def agree(
    root: str, selection: Selection, ranks: range, meeting: Meeting, *, asked: str, listener: Listener
) -> LoadPlan:
    """Return the plan of all nodes, with the paths of this one, which runs ``ranks``; ``asked`` is a digest
    of the question. Raise on every node the error of any node.
    """
    verdicts = open_cache(root, selection.cache, selection.max_age, listener.note, selection.trust)
    with limit_time(selection.budget), verdicts as cache, count_read() as read:
        planner = Planner(root, replace(selection, ranks=ranks), listener.progress, cache)
        return replace(_Node(planner, meeting, ranks, asked).plan(), bytes_read=read.bytes)


class _Node(Struct):
    """This node's side of the agreement: every node makes the same exchanges, and fails with all others."""

    planner: Planner
    meeting: Meeting
    ranks: range
    asked: str
    hosts: list[str] = []
    entries: dict[CheckpointKey, Candidate] = {}

    def plan(self) -> LoadPlan:
        """Return the common plan. Raise CannotLook if files that were not looked at may change the answer."""
        ranked = self._exchange_candidates()
        if not ranked:  # no node has anything
            return self.planner.plan_nothing()
        choice = self.planner.choose_first(ranked, self._judge, lambda c: self.entries[c.key].step)
        error = None
        if choice.checkpoint is None:
            error = self.planner.explain_failure(choice, ranked)
            error.plan = replace(error.plan, candidates=tuple(ranked)) if error.plan else None
            plan = self.planner.weigh(error.plan or self.planner.plan_nothing(), str(error))
        else:
            plan = replace(self.planner.finish(choice, choice.checkpoint), candidates=tuple(ranked))
            plan = self.planner.weigh(plan, "")
        host = self.hosts[self.meeting.node]
        own = [replace(r, files=tuple(replace(f, node=host) for f in r.files)) for r in plan.by_rank]
        answer = self.meeting.exchange(Loads(own, plan.fingerprint), _merge_loads, Loads)
        if error is not None:
            if self.planner.selection.allow_fresh:
                return plan
            raise error  # on every node alike: the judgements were common
        others = [r for r in answer.ranks if r.rank not in self.ranks]
        loads = tuple(sorted((*own, *others), key=lambda r: r.rank))
        return replace(plan, by_rank=loads, fingerprint=answer.fingerprint)

    # ---- candidates

    def _exchange_candidates(self) -> list[Checkpoint]:
        """Return the candidates of all nodes in the common order; one of other nodes alone has no parts."""
        planner, found = self.planner, self._find_own_candidates()
        own = {(named := name_candidate(c, planner)).id: (named, c) for c in found[:LISTED]}
        listing = Listing(
            host=socket.gethostname(),
            asked=self.asked,
            ranks=(self.ranks.start, self.ranks.stop),
            candidates=[named for named, _ in own.values()],
            earlier=None if own else first_launch.find_earlier_start(planner.root, planner.selection),
        )
        answer = self.meeting.exchange(listing, lambda all_of: order_candidates(all_of, planner), Order)
        self._require_own_candidates(answer, {identity: c for identity, (_, c) in own.items()})
        self.hosts, ranked = answer.hosts, list[Checkpoint]()
        for candidate in answer.order:
            c = candidate.checkpoint
            if candidate.id in own:
                c = replace(own[candidate.id][1], kind=c.kind)
            else:
                path = normalize(os.path.join(find_directory(planner.root), c.path))
                c = replace(c, parts=(), path=path, mtime_ns=0, restarts=0)
            self.entries[c.key] = candidate
            ranked.append(c)
        return ranked

    def _require_own_candidates(self, answer: Order, own: Mapping[Identity, Checkpoint]) -> None:
        """Raise CannotLook if the order of node 0 lacks a save of this node, or names what there is not."""
        nodes = {i for row in answer.order for i in row.without} - {*range(self.meeting.size)}
        layouts = [self.planner.layouts.get(row.checkpoint.layout) for row in answer.order]
        if nodes or None in layouts or len(answer.hosts) != self.meeting.size:
            raise CannotLook("node 0 tells of nodes or layouts that there are not", SAME)
        listed = {row.id for row in answer.order if self.meeting.node not in row.without}
        for lost in (c for identity, c in own.items() if identity not in listed):
            text = f"the first node leaves out {lost.label}, which this node has"
            hint = "start again; if it stays so, add --meet DIR, a directory that only you can write"
            raise CannotLook(text, hint)

    def _find_own_candidates(self) -> list[Checkpoint]:
        """Return the candidates on this node, best first; [] is no error, as other nodes may have some."""
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
        """Return the common judgement of a checkpoint: it is usable if it is on every node."""
        if without := self.entries[c.key].without:
            texts = (f"{self.hosts[i]} has no file of it among its newest saves" for i in without)
            return Judgement(False, tuple(finding("missing-part", text, path=c.path) for text in texts))
        own = self.planner.judge.judge(c)
        lacks = [] if own.usable else self._find_lacking_ranks(c)
        held = {r: p.path for p in c.parts if p.size > 0 for r in self._find_ranks(p)}
        strange = sorted((r, path) for r, path in held.items() if r not in self.ranks)[:_REPORTED]
        judged = Judged(own.usable, own.read, list(own.findings), lacks, strange)
        answer = self.meeting.exchange(judged, self._merge_judged, Judged)
        if answer.ok:
            return replace(own, read=answer.read)
        return Judgement(False, tuple(answer.findings), answer.read)

    def _merge_judged(self, by_node: Sequence[Judged]) -> Judged:
        """Return the judgement of all nodes, with the findings of each node where it is not usable."""
        rows, elsewhere = list[Finding](), list[Finding]()
        lacks = {r for judged in by_node for r in judged.lacks}
        for host, judged in zip(self.hosts, by_node, strict=True):
            if not judged.ok:
                rows += [replace(f, message=f"{host}: {f.message}") for f in judged.findings]
            for rank_of, path in judged.strange:
                if rank_of in lacks:
                    text = f"a file of rank {rank_of} lies on {host}, where that rank does not run"
                    elsewhere.append(finding("on-other-node", text, path=path))
        rows += elsewhere[:_NAMED]
        return Judged(all(judged.ok for judged in by_node), any(judged.read for judged in by_node), rows)

    def _find_lacking_ranks(self, c: Checkpoint) -> list[int]:
        """Return this node's ranks without a sound file here."""
        bad, reports = (Verdict.BROKEN, Verdict.UNKNOWN), self.planner.session.reports
        sound = [p for p in c.parts if p.path not in reports or reports[p.path].verdict not in bad]
        return sorted(set(self.ranks) - {r for p in sound for r in self._find_ranks(p)})

    def _find_ranks(self, p: Part) -> Sequence[int]:
        """Return the ranks that load a part: the rank in its name, else all at its parallel coordinates."""
        if p.rank is not None or not p.coords:
            return [] if p.rank is None else [p.rank]
        coordinates, topology = set(p.coords), self.planner.topology
        return [r for r in range(topology.world_size) if coordinates <= topology.coordinates(r).items()]
