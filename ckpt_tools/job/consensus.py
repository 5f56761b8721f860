"""Nodes with disks of their own agree on the newest checkpoint of which each has a sound part for every rank
that runs on it.
"""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ckpt_tools.cache.verdicts import Cache, remembering
from ckpt_tools.errors import CannotLook, CkptError, NoCheckpoint, UsageError
from ckpt_tools.findings import finding
from ckpt_tools.job import common_order, reported, transfer, wire
from ckpt_tools.job.exchange import Meeting, failure
from ckpt_tools.job.hosts import valid
from ckpt_tools.job.pruning import TRANSFERRED
from ckpt_tools.job.reported import LISTED, Round, Value
from ckpt_tools.model.checkpoint import Checkpoint, CheckpointKey
from ckpt_tools.model.codec import decode_object, encode_object
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import Choice, LoadPlan, RankLoad
from ckpt_tools.planning import decision_log
from ckpt_tools.planning.choose import Judgement, choose
from ckpt_tools.planning.planner import Planner
from ckpt_tools.storage import counted
from ckpt_tools.storage.stalls import limited
from ckpt_tools.storage.urls import normal

if TYPE_CHECKING:
    from ckpt_tools.job.decider import Decider

_T = TypeVar("_T")


def agree(decider: Decider) -> LoadPlan:
    """The plan that all nodes have come to: the choice and the ranks are the same on each, paths and
    arguments are the node's own.

    Raises on every node what one of them raises; NoneUsable when no checkpoint is sound on all.
    """
    ranks = decider.membership.ranks
    if ranks is None:
        raise UsageError(
            "which ranks run on this node is unknown",
            "say --world-size N (--nodes and --node as well, where the launcher does not tell)",
        )
    selection = decider.selection
    meeting = decider.rendezvous.join()
    with (
        limited(selection.budget),
        remembering(
            decider.root, selection.cache, selection.max_age, decider.listener.note, selection.trust
        ) as cache,
        counted() as read,
    ):
        return replace(_Node(decider, meeting, ranks, cache).plan(), bytes_read=read.bytes)


class _Common(NamedTuple):
    """What all nodes have found of one checkpoint, and what this one has. ``lacking`` are the nodes where it
    is not usable.
    """

    mine: Judgement
    usable: bool
    read: bool
    findings: tuple[Finding, ...]
    lacking: Sequence[int]


class _Node:
    """This node's side of the agreement; every node goes through the same exchanges in the same order."""

    def __init__(self, decider: Decider, meeting: Meeting, ranks: range, cache: Cache | None) -> None:
        self.decider, self.meeting, self.ranks, self.cache = decider, meeting, ranks, cache
        world = decider.selection.world_size or decider.world or len(ranks) * meeting.size
        self.selection = replace(decider.selection, ranks=ranks, world_size=world, rank=None)
        self.planner = Planner(decider.root, self.selection, decider.listener.progress, cache)
        self.mine: dict[str, Checkpoint] = {}
        self.hosts: list[str] = []
        self.nodes_ranks: list[range] = []
        self.entries: dict[CheckpointKey, Value] = {}
        self.usable: dict[CheckpointKey, Checkpoint] = {}

    def plan(self) -> LoadPlan:
        ranked = self._candidates()
        if not ranked:  # no node has anything
            return self.planner.nothing()
        choice = choose(
            ranked,
            self._judge,
            max_attempts=self.selection.max_attempts,
            save_interval=self.selection.save_interval,
            step_of=lambda c: self.entries[c.key]["step"],
            fallback=not self.selection.no_fallback,
        )
        plan = self._found(lambda: self._weighed(choice, ranked), reported.LOADED)
        loaded = {"ranks": self._rows(plan), "fingerprint": plan.fingerprint}
        answer = self.meeting.exchange(loaded, self._merged, reported.LOADED)
        if choice.checkpoint is None:
            if self.selection.allow_fresh:
                return plan
            raise self._failure(choice, ranked)  # on every node alike: the judgements were common
        ranks = self._all_ranks(plan, answer["ranks"])
        return replace(plan, by_rank=ranks, fingerprint=answer["fingerprint"])

    def _found(self, work: Callable[[], _T], checks: Round) -> _T:
        """What this node has worked out for an exchange; what goes wrong meanwhile goes wrong everywhere."""
        try:
            return work()
        except CkptError as error:
            self.meeting.exchange(failure(error), lambda _: {}, checks)
            raise

    # ---- which candidates there are

    def _candidates(self) -> list[Checkpoint]:
        """What any node has, in the common order; without parts where this one has none of it."""
        listing = self._found(self._listing, reported.LISTING)
        order = self.meeting.exchange(
            listing,
            lambda values: common_order.merged(
                values, self.planner, transfer=bool(self.decider.options.transfer)
            ),
            reported.LISTING,
        )
        common_order.check(order, self.mine, self.meeting.me, self.meeting.size, self.ranks)
        self.hosts, self.nodes_ranks = order["hosts"], [range(*r) for r in order["ranks"]]
        ranked = [self._known(entry) for entry in order["order"]]
        self.entries = {c.key: entry for c, entry in zip(ranked, order["order"], strict=True)}
        return ranked

    def _listing(self) -> Value:
        ranked = self._finished()
        if not ranked:
            self.planner.weigh(None, "there is no checkpoint on this node")
        root = self.planner.root
        self.mine = {wire.identity(c, root): c for c in ranked[:LISTED]}
        rows = [
            {
                "id": i,
                "mtime": c.mtime_ns,
                "kind": str(c.kind),
                "step": self.planner.step(c),
                "path": wire.name_of(c.path, root),
            }
            for i, c in self.mine.items()
        ]
        return {
            "host": self._host(),
            "asked": self.decider.request,
            "ranks": [self.ranks.start, self.ranks.stop],
            "candidates": rows,
            "more": len(ranked) > LISTED,
            "earlier": None if rows else decision_log.earlier(root, self.selection),
        }

    def _finished(self) -> list[Checkpoint]:
        """This node's own candidates, best first. None is no error: another node may have some."""
        try:
            ranked = self.planner.candidates()
            self.planner.settled()
        except CannotLook:
            raise
        except CkptError as error:
            self.planner.weigh(error.plan, str(error))
            if not isinstance(error, NoCheckpoint):
                raise
            return []
        return ranked

    def _host(self) -> str:
        """This machine's name, by which --transfer finds it. Raises UsageError for one that is no word for a
        command.
        """
        name = socket.gethostname()
        if valid(name):
            return name
        if self.decider.options.transfer:
            raise UsageError(
                f"the name of this machine, {name!r}, is no host name",
                "give it one of letters, digits, hyphens and dots",
            )
        return f"node-{self.meeting.me}"

    def _known(self, entry: Value) -> Checkpoint:
        """This node's checkpoint of that identity, or one without parts where it has none."""
        kind = Kind(entry["kind"])
        if mine := self.mine.get(entry["id"]):
            return replace(mine, kind=kind)
        of, top = wire.parts_of(entry["id"]), wire.top(self.planner.root)
        return Checkpoint(
            layout=of.layout,
            run=entry["id"],  # no run of this node; it tells apart what differs by its prefix alone
            kind=kind,
            parts=(),
            path=normal(os.path.join(top, entry["path"])),
            mtime_ns=0,
            step=of.step,
            epoch=of.epoch,
            step_in_epoch=of.step_in_epoch,
            generation=of.generation,
        )

    # ---- is it sound everywhere

    def _judge(self, c: Checkpoint) -> Judgement:
        entry, carries = self.entries[c.key], self.decider.options.transfer
        if entry["without"] and not carries:
            return Judgement(False, self._lacking(c, entry))
        common, here = self._judged_by_all(c, ()), c
        if not common.usable:
            offered = self._offers(c, entry["id"], common.lacking)
            if carries:
                here, failures = self._brought(c, entry["id"], offered)
                common = self._judged_by_all(here, failures)
            if not common.usable:
                elsewhere = transfer.on_other_nodes(offered, self.hosts)
                return Judgement(False, (*common.findings, *elsewhere), common.read)
        self.usable[c.key] = here
        return replace(common.mine, read=common.read)

    def _lacking(self, c: Checkpoint, entry: Value) -> tuple[Finding, ...]:
        texts = (
            f"{self.hosts[i]} has no part of it" + (f" among its {LISTED} newest" if more else "")
            for i, more in entry["without"]
        )
        return tuple(finding("missing-part", text, path=c.path) for text in texts)

    def _judged_by_all(self, c: Checkpoint, not_brought: Sequence[Finding]) -> _Common:
        """One exchange of what each node finds of a checkpoint."""
        mine = self._found(lambda: self._judged_here(c), reported.JUDGEMENT)
        value = {
            "ok": mine.usable,
            "read": mine.read,
            "findings": [encode_object(f) for f in (*not_brought, *mine.findings)],
        }
        answer = self.meeting.exchange(value, self._judgements, reported.JUDGEMENT)
        self._check_judgement(answer, mine)
        findings = tuple(decode_object(Finding, f) for f in answer["findings"])
        return _Common(mine, answer["ok"], answer["read"], findings, answer["lacking"])

    def _judged_here(self, c: Checkpoint) -> Judgement:
        if c.parts:
            return self.planner.judge.judge(c)
        text = f"{self.hosts[self.meeting.me]} has no part of it"
        return Judgement(False, (finding("missing-part", text, path=c.path),))

    def _judgements(self, values: Sequence[Value]) -> Value:
        """What the first node concludes: usable where it is so on all nodes."""
        lacking = [i for i, v in enumerate(values) if not v["ok"]]
        rows = [
            {**f, "message": f"{self.hosts[i]}: {f['message']}"}
            for i in lacking
            for f in values[i]["findings"]
        ]
        read = any(v["read"] for v in values)
        return {"ok": not lacking, "read": read, "findings": rows, "lacking": lacking}

    def _check_judgement(self, answer: Value, mine: Judgement) -> None:
        """Raises UsageError where a checkpoint is said to be sound on all nodes without being so here, or not
        to be and nobody says why.
        """
        lacking = set(answer["lacking"])
        if (
            not lacking <= set(range(self.meeting.size))
            or answer["ok"] == bool(lacking)
            or (self.meeting.me in lacking) == mine.usable
        ):
            raise reported.refuse(
                "node 0", f"this node found the checkpoint {'not ' * mine.usable}usable, which is not so"
            )
        if lacking and not answer["findings"]:
            raise reported.refuse("node 0", "a checkpoint is not usable, and nothing is wrong with it")

    # ---- files of other nodes

    def _offers(self, c: Checkpoint, identity: str, lacking: Sequence[int]) -> list[Value]:
        """What nodes have of the ranks of nodes that lack something, and of ranks that hold the same."""
        meeting, planner = self.meeting, self.planner
        want = self._found(
            lambda: transfer.wanted(planner, c, self.ranks, listed=bool(self.mine)), reported.WANTED
        )
        answer = meeting.exchange(
            {"want": want}, lambda values: {"want": [v["want"] for v in values]}, reported.WANTED
        )
        if len(answer["want"]) != meeting.size:
            raise reported.refuse(
                "node 0", f"{len(answer['want'])} nodes want files, and here are {meeting.size}"
            )
        others = {r for i in lacking if i != meeting.me for r in answer["want"][i]}
        rows = transfer.offers(planner, self.mine.get(identity), meeting.me, others)
        offered: list[Value] = meeting.exchange({"rows": rows}, transfer.all_offers, reported.OFFERS)["rows"]
        for row in offered:
            transfer.check_offer(row, planner.layouts, wire.parts_of(identity), meeting.size)
        return offered

    def _brought(
        self, c: Checkpoint, identity: str, offered: Sequence[Value]
    ) -> tuple[Checkpoint, Sequence[Finding]]:
        """The checkpoint with the files that --transfer brings from other nodes to this one, and findings
        about those that it did not bring.
        """
        options = self.decider.options
        to = os.path.join(self.decider.decisions.place(TRANSFERRED), f"node-{self.meeting.me}")
        ranks = transfer.wanted(self.planner, c, self.ranks, listed=bool(self.mine))
        theirs = [row for row in offered if row["node"] != self.meeting.me]
        carrier = transfer.Transfer(shlex.split(options.transfer), to, options.timeout)
        new = carrier.missing(self.planner, c, theirs, ranks, self.hosts)
        if c.parts or not new:
            return replace(c, parts=(*c.parts, *new)), carrier.failures
        # This node had nothing: what was brought is a tree of its own, in which the checkpoint is found as in
        # any other, without what an earlier start brought.
        self.planner = Planner(to, self.selection, self.decider.listener.progress, self.cache)
        found = {wire.identity(o, self.planner.root): o for o in self.planner.candidates()}
        if identity not in found:
            return c, carrier.failures
        return transfer.only(found[identity], new, c.kind), carrier.failures

    # ---- what all ranks load

    def _weighed(self, choice: Choice, ranked: Sequence[Checkpoint]) -> LoadPlan:
        """This node's plan. Raises CannotLook where what this node could not look at may change the answer"""
        chosen = choice.checkpoint
        if chosen is None:
            error = self._failure(choice, ranked)
            return self.planner.weigh(error.plan or self.planner.nothing(), str(error))
        here = self.usable[chosen.key]
        candidates = tuple(here if c.key == chosen.key else c for c in ranked)
        made = replace(self.planner.finish(choice, here), candidates=candidates)
        return self.planner.weigh(made, "")

    def _failure(self, choice: Choice, ranked: Sequence[Checkpoint]) -> CkptError:
        error = self.planner.failure(choice, ranked)
        error.plan = replace(error.plan, candidates=tuple(ranked)) if error.plan else None
        return error

    def _rows(self, plan: LoadPlan) -> list[Value]:
        """What the ranks of this node load, for the others."""
        return [wire.row(r, self.hosts[self.meeting.me]) for r in plan.by_rank]

    def _merged(self, values: Sequence[Value]) -> Value:
        """What the ranks of all nodes load, as the first node concludes it."""
        from xxhash import xxh3_128_hexdigest

        for i, v in enumerate(values):
            if strange := [r["rank"] for r in v["ranks"] if r["rank"] not in self.nodes_ranks[i]]:
                raise reported.refuse(f"node {i}", f"rank {strange[0]} runs there")
        ranks = sorted((r for v in values for r in v["ranks"]), key=lambda r: int(r["rank"]))
        digest = xxh3_128_hexdigest("\n".join(v["fingerprint"] for v in values).encode())
        return {"ranks": ranks, "fingerprint": digest}

    def _all_ranks(self, plan: LoadPlan, rows: Sequence[Value]) -> tuple[RankLoad, ...]:
        """What all ranks load. Those of this node load what this node has found,
        whatever others say of them.
        """
        mine, loads = [wire.load_of(row) for row in self._rows(plan)], [wire.load_of(row) for row in rows]
        own, everywhere = {r.rank for r in mine}, {r.rank for r in loads}
        if everywhere & set(self.ranks) != own or len(everywhere) != len(loads):
            raise reported.refuse(
                "node 0", f"other ranks of this node load something than {sorted(own)}, or one does twice"
            )
        others = [r for r in loads if r.rank not in self.ranks]
        for r in others:
            if not self._runs_where_its_files_are(r):
                raise reported.refuse("node 0", f"rank {r.rank} loads files of a node where it does not run")
        return tuple(sorted((*mine, *others), key=lambda r: r.rank))

    def _runs_where_its_files_are(self, load: RankLoad) -> bool:
        hosts = {f.node for f in load.files}
        return any(
            load.rank in ranks and hosts <= {host}
            for ranks, host in zip(self.nodes_ranks, self.hosts, strict=True)
        )
