"""Nodes with disks of their own agree on the newest checkpoint of which each has a sound part for every rank
that runs on it.
"""

from __future__ import annotations

import os
import shlex
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckpt_tools.cache.verdicts import Cache, remembering
from ckpt_tools.errors import CannotLook, CkptError, NoCheckpoint, NoneUsable, UsageError
from ckpt_tools.findings import finding
from ckpt_tools.job import reported, wire
from ckpt_tools.job.exchange import Meeting, failure
from ckpt_tools.job.fetch import NotBrought, bring
from ckpt_tools.job.hosts import valid
from ckpt_tools.job.pruning import TRANSFERRED
from ckpt_tools.job.reported import LISTED, Round, Value
from ckpt_tools.layouts import BY_NAME
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Choice, EarlierStart, LoadPlan, RankLoad, Resume
from ckpt_tools.planning import decision_log
from ckpt_tools.planning.choose import Judgement, choose, rank
from ckpt_tools.planning.planner import Planner
from ckpt_tools.storage import counted
from ckpt_tools.storage.stalls import limited

if TYPE_CHECKING:
    from ckpt_tools.job.decider import Maker

NAMED = 4
"""Files on other nodes that a finding names, at most."""


def agree(maker: Maker) -> LoadPlan:
    """The plan that all nodes have come to: the choice and the ranks are the same on each, paths and
    arguments are the node's own.

    Raises on every node what one of them raises; NoneUsable when no checkpoint is sound on all.
    """
    if maker.party.ranks is None:
        raise UsageError(
            "which ranks run on this node is unknown",
            "say --world-size N (--nodes and --node as well, where the launcher does not tell)",
        )
    selection = maker.selection
    meeting = maker.rendezvous.join()
    with (
        limited(selection.budget),
        remembering(maker.root, selection.cache, selection.max_age, maker.note, selection.trust) as cache,
        counted() as read,
    ):
        return replace(_Node(maker, meeting, cache).plan(), bytes_read=read.bytes)


class _Node:
    """This node's side of the agreement; every node goes through the same exchanges in the same order."""

    def __init__(self, maker: Maker, meeting: Meeting, cache: Cache | None) -> None:
        assert maker.party.ranks is not None  # noqa: S101 - agree() has looked; for the type checker
        self.maker, self.meeting, self.cache, self.ranks = maker, meeting, cache, maker.party.ranks
        world = maker.selection.world_size or maker.world or len(self.ranks) * meeting.size
        self.selection = replace(maker.selection, ranks=self.ranks, world_size=world, rank=None)
        self.planner = Planner(maker.root, self.selection, maker.progress, cache)
        self.mine: dict[str, Checkpoint] = {}
        self.hosts: list[str] = []
        self.nodes_ranks: list[range] = []
        self.not_brought: list[Finding] = []

    def plan(self) -> LoadPlan:
        listed = self._tell(self._listing, self._in_order, reported.LISTING)
        self._believe(listed)
        self.hosts, self.nodes_ranks = listed["hosts"], [range(*r) for r in listed["ranks"]]
        ranked = [self._known(entry) for entry in listed["order"]]
        if not ranked:  # no node has anything
            return self.planner.nothing()
        entries = {id(c): entry for c, entry in zip(ranked, listed["order"], strict=True)}
        taken: dict[int, Checkpoint] = {}
        choice = choose(
            ranked,
            lambda c: self._judge(c, entries[id(c)], taken),
            max_attempts=self.selection.max_attempts,
            save_interval=self.selection.save_interval,
            step_of=lambda c: entries[id(c)]["step"],
            fallback=not self.selection.no_fallback,
        )
        plan = LoadPlan(self.planner.root, None, Resume(None))

        def weighed() -> Value:
            nonlocal plan
            plan = self._weighed(choice, ranked, taken)
            return {
                "ranks": [wire.row(r, self.hosts[self.meeting.me]) for r in plan.ranks],
                "fingerprint": plan.fingerprint,
            }

        done = self._tell(weighed, self._merged, reported.LOADED)
        if choice.checkpoint is None:
            if self.selection.allow_fresh:
                return plan
            raise self._failure(choice, ranked)  # on every node alike: the judgements were common
        return replace(plan, ranks=self._all_ranks(plan, done["ranks"]), fingerprint=done["fingerprint"])

    def _all_ranks(self, plan: LoadPlan, rows: Sequence[Value]) -> tuple[RankLoad, ...]:
        """What all ranks load. Those of this node load what this node has found,
        whatever others say of them.
        """
        mine = [wire.load_of(wire.row(r, self.hosts[self.meeting.me])) for r in plan.ranks]
        loads = [wire.load_of(row) for row in rows]
        own, others = {r.rank for r in mine}, [r for r in loads if r.rank not in self.ranks]
        if {r.rank for r in loads} & set(self.ranks) != own or len({r.rank for r in loads}) != len(loads):
            raise reported.refuse(
                "node 0", f"other ranks of this node load something than {sorted(own)}, or one does twice"
            )
        for r in others:
            if not any(
                r.rank in ranks and {f.node for f in r.files} <= {host}
                for ranks, host in zip(self.nodes_ranks, self.hosts, strict=True)
            ):
                raise reported.refuse("node 0", f"rank {r.rank} loads files of a node where it does not run")
        return tuple(sorted((*mine, *others), key=lambda r: r.rank))

    def _believe(self, listed: Value) -> None:
        """Raise UsageError unless what was concluded is about these nodes, and leaves out no checkpoint that
        this one has named.
        """
        ids, size = [e["id"] for e in listed["order"]], self.meeting.size
        if len(listed["hosts"]) != size or len(listed["ranks"]) != size:
            raise reported.refuse("node 0", f"there are {len(listed['hosts'])} nodes, and here {size}")
        if listed["ranks"][self.meeting.me] != [self.ranks.start, self.ranks.stop]:
            raise reported.refuse("node 0", f"this node runs the ranks {listed['ranks'][self.meeting.me]}")
        if len(set(ids)) != len(ids) or len(ids) > LISTED * size or not self.mine.keys() <= set(ids):
            raise reported.refuse(
                "node 0", "a checkpoint that this node has is no candidate, or one is twice"
            )
        for e in listed["order"]:
            without = {i for i, _ in e["without"]}
            if not without <= set(range(size)) or (self.meeting.me in without) != (e["id"] not in self.mine):
                raise reported.refuse("node 0", f"this node has or lacks {e['path']}, which is not so")

    def _weighed(
        self, choice: Choice, ranked: Sequence[Checkpoint], taken: Mapping[int, Checkpoint]
    ) -> LoadPlan:
        """This node's plan. Raises CannotLook where what this node could not look at may change the answer"""
        if choice.checkpoint is None:
            error = self._failure(choice, ranked)
            made = error.plan or self.planner.nothing()
            return self.planner.weigh(made, str(error))
        made = self.planner.finish(choice, taken[id(choice.checkpoint)])
        return self.planner.weigh(
            replace(made, candidates=tuple(taken[id(c)] if c is choice.checkpoint else c for c in ranked)), ""
        )

    def _failure(self, choice: Choice, ranked: Sequence[Checkpoint]) -> CkptError:
        error = self.planner.failure(choice, ranked)
        error.plan = replace(error.plan, candidates=tuple(ranked)) if error.plan else None
        return error

    def _tell(self, value: Any, conclude: Any, checks: Round) -> Value:
        """One exchange; what goes wrong while the value is worked out goes wrong everywhere."""
        try:
            mine = value()
        except CkptError as error:
            self.meeting.exchange(failure(error), conclude, checks)
            raise
        return self.meeting.exchange(mine, conclude, checks)

    # ---- which candidates there are

    def _listing(self) -> Value:
        try:
            ranked = self.planner.candidates()
            self.planner.settled()
        except CannotLook:
            raise
        except CkptError as error:
            self.planner.weigh(error.plan, str(error))
            if not isinstance(error, NoCheckpoint):
                raise
            ranked = []
        if not ranked:
            self.planner.weigh(None, "there is no checkpoint on this node")
        self.mine = {wire.identity(c, self.planner.root): c for c in ranked[:LISTED]}
        rows = [
            {
                "id": i,
                "mtime": c.mtime_ns,
                "kind": str(c.kind),
                "step": self.planner.step(c),
                "path": wire.name_of(c.path, self.planner.root),
            }
            for i, c in self.mine.items()
        ]
        return {
            "host": self._host(),
            "asked": self.maker.asked,
            "ranks": [self.ranks.start, self.ranks.stop],
            "candidates": rows,
            "more": len(ranked) > LISTED,
            "earlier": None if rows else decision_log.earlier(self.planner.root, self.selection),
        }

    def _host(self) -> str:
        """This machine's name, by which --transfer finds it. Raises UsageError for one that is no word for a
        command.
        """
        name = socket.gethostname()
        if valid(name):
            return name
        if self.maker.terms.transfer:
            raise UsageError(
                f"the name of this machine, {name!r}, is no host name",
                "give it one of letters, digits, hyphens and dots",
            )
        return f"node-{self.meeting.me}"

    def _in_order(self, values: Sequence[Value]) -> Value:
        if len({v["asked"] for v in values}) > 1:
            raise UsageError(
                "the nodes ask different questions", "start 'ckpt run' with the same options on every node"
            )
        ends = sorted((v["ranks"][0], v["ranks"][1]) for v in values)
        if [a for a, _ in ends] != [0, *(b for _, b in ends[:-1])] or any(a > b for a, b in ends):
            raise UsageError(
                f"the nodes run the ranks {[v['ranks'] for v in values]}, which are not all ranks once",
                "say --node on every node",
            )
        hosts = [v["host"] for v in values]
        hosts = [h if hosts.count(h) == 1 else f"{h}#{i}" for i, h in enumerate(hosts)]
        rows: dict[str, dict[int, Value]] = {}
        for i, v in enumerate(values):
            for row in v["candidates"]:
                rows.setdefault(row["id"], {})[i] = row
        if rows and not self.maker.terms.transfer and all(len(at) < len(values) for at in rows.values()):
            without = [hosts[i] for i, v in enumerate(values) if not v["candidates"]]
            what = (
                f"{', '.join(without)} has no checkpoint at all"
                if without
                else "no two nodes have parts of the same checkpoint"
            )
            raise NoneUsable(
                f"no checkpoint has parts on every node: {what}",
                "check that node's disk, or bring the parts there with --transfer COMMAND",
            )
        if not rows and (before := next(filter(None, (v["earlier"] for v in values)), None)):
            raise decision_log.gone(self.planner.root, EarlierStart(*before))
        if not rows and not (self.selection.allow_none or self.selection.allow_fresh):
            raise NoCheckpoint("there is no checkpoint on any node")

        ranked = rank(
            [self._seen(key, at) for key, at in rows.items()], self.planner.order, self.selection.prefer
        )
        return {
            "order": [_entry(c, rows[c.path], values) for c in ranked],
            "hosts": hosts,
            "ranks": [v["ranks"] for v in values],
        }

    def _seen(self, key: str, at: dict[int, Value]) -> Checkpoint:
        """A candidate as all nodes together date it: each clock may be off by its own amount, which cancels
        out over the same nodes.
        """
        of = wire.parts_of(key)
        mtime_ns = sum(row["mtime"] for row in at.values()) // len(at)
        kind = Kind(at[min(at)]["kind"])
        return Checkpoint(
            of.layout,
            of.base,
            kind,
            (),
            key,
            mtime_ns,
            of.step,
            of.epoch,
            None,
            of.step_in_epoch,
            of.generation,
        )

    def _known(self, entry: Value) -> Checkpoint:
        """This node's checkpoint of that identity, or one without parts where it has none."""
        mine = self.mine.get(entry["id"])
        of, at = wire.parts_of(entry["id"]), wire.top(self.planner.root)
        home, path = os.path.join(at, of.base), os.path.normpath(os.path.join(at, entry["path"]))
        kind = Kind(entry["kind"])
        c = mine or Checkpoint(
            of.layout, home, kind, (), path, 0, of.step, of.epoch, None, of.step_in_epoch, of.generation
        )
        return replace(c, kind=kind)

    # ---- is it sound everywhere

    def _judge(self, c: Checkpoint, entry: Value, taken: dict[int, Checkpoint]) -> Judgement:
        if entry["without"] and not self.maker.terms.transfer:
            lacks = [
                f"{self.hosts[i]} has no part of it" + (f" among its {LISTED} newest" if more else "")
                for i, more in entry["without"]
            ]
            return Judgement(False, tuple(finding("missing-part", text, path=c.path) for text in lacks))
        identity = entry["id"]
        asked, mine = (
            c,
            Judgement(
                False,
                (finding("missing-part", f"{self.hosts[self.meeting.me]} has no part of it", path=c.path),),
            ),
        )

        self.not_brought = []

        def look() -> Value:
            nonlocal mine
            if c.parts:
                mine = self.planner.judge.judge(c)
            return {
                "ok": mine.usable,
                "read": mine.read,
                "findings": [wire.told(f) for f in (*self.not_brought, *mine.findings)],
            }

        def common(values: Sequence[Value]) -> Value:
            rows = [
                {**f, "message": f"{self.hosts[i]}: {f['message']}"}
                for i, v in enumerate(values)
                if not v["ok"]
                for f in v["findings"]
            ]
            return {
                "ok": all(v["ok"] for v in values),
                "read": any(v["read"] for v in values),
                "findings": rows,
                "lacking": [i for i, v in enumerate(values) if not v["ok"]],
            }

        answer = self._judged(self._tell(look, common, reported.JUDGEMENT), mine)
        if not answer["ok"]:
            offers = self._offers(c, identity, answer["lacking"])
            if self.maker.terms.transfer:
                c = self._brought(c, identity, offers)
                answer = self._judged(self._tell(look, common, reported.JUDGEMENT), mine)
            answer["findings"] += [wire.told(f) for f in self._elsewhere(offers)] if not answer["ok"] else []
        told = Judgement(answer["ok"], tuple(wire.untold(f) for f in answer["findings"]), answer["read"])
        if told.usable:
            taken[id(asked)] = c
            told = replace(mine, read=answer["read"])
        return told

    def _judged(self, answer: Value, mine: Judgement) -> Value:
        """What all have found of a checkpoint. Raises UsageError where it is sound on all without being so
        here, or not and nobody says why.
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
        return answer

    def _offers(self, c: Checkpoint, identity: str, lacking: Sequence[int]) -> list[Value]:
        """What other nodes have of the ranks of nodes that lack something, and of ranks that hold the same:
        [{"node", "below", "part"}].
        """
        want = self._tell(
            lambda: {"want": self._wanted(c)},
            lambda values: {"want": [v["want"] for v in values]},
            reported.WANTED,
        )["want"]
        if len(want) != self.meeting.size:
            raise reported.refuse("node 0", f"{len(want)} nodes want files, and here are {self.meeting.size}")
        others, mine = {r for i in lacking if i != self.meeting.me for r in want[i]}, self.mine.get(identity)
        root = self.planner.root
        rows = [
            {
                "node": self.meeting.me,
                "below": wire.name_of(p.path, root),
                "part": wire.packed(p, root),
                "ranks": ranks,
            }
            for p in (mine.parts if mine else ())
            if others.intersection(ranks := list(self.planner.ranks_of(p)))
            and p.size > 0
            and wire.inside(p.path, root)
        ]
        told = self._tell(lambda: {"rows": rows}, _offered, reported.OFFERS)["rows"]
        for row in told:
            self._possible(row, wire.parts_of(identity))
        return list(told)

    def _possible(self, row: Value, of: wire.Identity) -> None:
        """Raise UsageError for a part that is none of this checkpoint, or of no node."""
        part = row["part"]
        layout = BY_NAME.get(of.layout)
        known = (
            layout is not None
            and part["layout"] == of.layout
            and any(p.name == part["piece"] for p in layout.pieces)
        )
        if (
            row["node"] >= self.meeting.size
            or not row["ranks"]
            or not known
            or not part["path"].endswith(f"/{row['below']}")
        ):
            raise reported.refuse(f"node {row['node']}", f"{row['below']} is a part of this checkpoint")

    def _wanted(self, c: Checkpoint) -> list[int]:
        """Ranks whose files would help this node: its own that have none, and those that hold the same."""
        own = {r for p in self._sound(c) for r in self.planner.ranks_of(p)}
        alone = [r for r in self.ranks if r not in own]
        return sorted({m for r in alone for m in (r, *(self.planner.alike(r) if self.mine else ()))})

    def _sound(self, c: Checkpoint) -> list[Part]:
        seen = self.planner.session.reports if c.parts else {}
        return [
            p
            for p in c.parts
            if p.path not in seen or seen[p.path].verdict not in (Verdict.BROKEN, Verdict.UNKNOWN)
        ]

    def _elsewhere(self, offers: Sequence[Value]) -> list[Finding]:
        told = [
            (o["ranks"][0], wire.unpacked(o["part"], self.planner.root), self.hosts[o["node"]])
            for o in offers[:NAMED]
        ]
        return [
            finding(
                "on-other-node",
                f"the {p.role} file of rank {r} lies on {host}, where that rank does not run",
                path=p.path,
            )
            for r, p, host in told
        ]

    def _brought(self, c: Checkpoint, identity: str, offers: Sequence[Value]) -> Checkpoint:
        """The checkpoint with the files that --transfer brings from other nodes to this one."""
        have, wanted, new = (
            {(p.rank, p.coords, p.role) for p in self._sound(c)},
            set(self._wanted(c)),
            list[Part](),
        )
        for offer in offers:
            p = wire.unpacked(offer["part"], self.planner.root)
            if (
                offer["node"] != self.meeting.me
                and wanted.intersection(offer["ranks"])
                and (p.rank, p.coords, p.role) not in have
            ):
                new.append(self._bring(p, self.hosts[offer["node"]].partition("#")[0], offer["below"]))
                have.add((p.rank, p.coords, p.role))
        if c.parts or not any(p.size > 0 for p in new):
            return replace(c, parts=(*c.parts, *(p for p in new if p.size > 0)))
        # This node had nothing: what was brought is a tree of its own, in which the checkpoint is found as in
        # any other, without what an earlier start brought.
        self.planner = Planner(self._brought_to, self.selection, self.maker.progress, self.cache)
        found = {wire.identity(o, self.planner.root): o for o in self.planner.candidates()}
        now = {p.path for p in new if p.size > 0}
        return (
            replace(
                found[identity], kind=c.kind, parts=tuple(p for p in found[identity].parts if p.path in now)
            )
            if identity in found
            else c
        )

    @property
    def _brought_to(self) -> str:
        return os.path.join(self.maker.decisions.place(TRANSFERRED), f"node-{self.meeting.me}")

    def _bring(self, part: Part, host: str, below: str) -> Part:
        terms, target = self.maker.terms, os.path.join(self._brought_to, below)
        try:
            st = bring(shlex.split(terms.transfer), host, part, self._brought_to, below, terms.timeout)
            return part._replace(path=target, size=st.st_size, mtime_ns=st.st_mtime_ns)
        except NotBrought as e:
            self.not_brought.append(
                finding(
                    "on-other-node", f"--transfer has not brought {part.path} from {host}: {e}", path=target
                )
            )
        return part._replace(path=target, size=-1)

    def _merged(self, values: Sequence[Value]) -> Value:
        from xxhash import xxh3_128_hexdigest

        for i, v in enumerate(values):
            if strange := [r["rank"] for r in v["ranks"] if r["rank"] not in self.nodes_ranks[i]]:
                raise reported.refuse(f"node {i}", f"rank {strange[0]} runs there")
        ranks = sorted((r for v in values for r in v["ranks"]), key=lambda r: int(r["rank"]))
        return {
            "ranks": ranks,
            "fingerprint": xxh3_128_hexdigest("\n".join(v["fingerprint"] for v in values).encode()),
        }


def _offered(values: Sequence[Value]) -> Value:
    """What all nodes have to give. Raises UsageError for one that speaks for another."""
    for i, v in enumerate(values):
        if any(r["node"] != i for r in v["rows"]):
            raise reported.refuse(f"node {i}", "another node has a file")
    return {"rows": [r for v in values for r in v["rows"]]}


def _entry(c: Checkpoint, at: Mapping[int, Value], values: Sequence[Value]) -> Value:
    """A candidate in the common order, and the nodes that name no part of it, each with whether it has more
    than it named.
    """
    row, without = at[min(at)], [(i, v["more"]) for i, v in enumerate(values) if i not in at]
    return {"id": c.path, "kind": str(c.kind), "step": row["step"], "path": row["path"], "without": without}
