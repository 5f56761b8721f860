"""Nodes with disks of their own agree on the newest checkpoint of which each has a sound part for every rank that runs on it."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ckpt_tools.cache import Cache
from ckpt_tools.choose import Judgement, choose, rank
from ckpt_tools.codes import finding
from ckpt_tools.errors import CannotLook, CkptError, NoCheckpoint, NoneUsable, UsageError
from ckpt_tools.job import wire
from ckpt_tools.job.meeting import Meeting, Value, failure
from ckpt_tools.job.pruning import TRANSFERRED
from ckpt_tools.model import Checkpoint, Choice, EarlierStart, FileLoad, Finding, Kind, Level, LoadPlan, Part, RankLoad, Resume, Verdict
from ckpt_tools.pipeline import history, remembering
from ckpt_tools.pipeline.planner import Planner
from ckpt_tools.storage import counted
from ckpt_tools.storage.stalls import limited

if TYPE_CHECKING:
    from ckpt_tools.job.maker import Maker

LISTED = 32
"""Candidates that a node names, at most: the newest ones."""
NAMED = 4
"""Files on other nodes that a finding names, at most."""


def agree(maker: Maker) -> LoadPlan:
    """The plan that all nodes have come to: the choice and the ranks are the same on each, paths and arguments are the node's own.

    Raises on every node what one of them raises; NoneUsable when no checkpoint is sound on all.
    """
    if maker.party.ranks is None:
        raise UsageError(
            "which ranks run on this node is unknown", "say --world-size N (--nodes and --node as well, where the launcher does not tell)"
        )
    selection = maker.selection
    meeting = maker.rendezvous.join()
    with limited(selection.budget), remembering(maker.root, selection.cache, selection.max_age, maker.note) as cache, counted() as read:
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
        self.not_brought: list[Finding] = []

    def plan(self) -> LoadPlan:
        listed = self._tell(self._listing, self._in_order)
        self.hosts = listed["hosts"]
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
            return {"ranks": [wire.row(r, self.hosts[self.meeting.me]) for r in plan.ranks], "fingerprint": plan.fingerprint}

        done = self._tell(weighed, _merged)
        if choice.checkpoint is None:
            if self.selection.allow_fresh:
                return plan
            raise self._failure(choice, ranked)  # on every node alike: the judgements were common
        ranks = tuple(RankLoad(r["rank"], tuple(FileLoad(**{**f, "level": Level(f["level"])}) for f in r["files"])) for r in done["ranks"])
        return replace(plan, ranks=ranks, fingerprint=done["fingerprint"])

    def _weighed(self, choice: Choice, ranked: Sequence[Checkpoint], taken: Mapping[int, Checkpoint]) -> LoadPlan:
        """This node's plan. Raises CannotLook where what this node could not look at may change the answer."""
        if choice.checkpoint is None:
            error = self._failure(choice, ranked)
            made = error.plan or self.planner.nothing()
            return self.planner.weigh(made, str(error))
        made = self.planner.finish(choice, taken[id(choice.checkpoint)])
        return self.planner.weigh(replace(made, candidates=tuple(taken[id(c)] if c is choice.checkpoint else c for c in ranked)), "")

    def _failure(self, choice: Choice, ranked: Sequence[Checkpoint]) -> CkptError:
        error = self.planner.failure(choice, ranked)
        error.plan = replace(error.plan, candidates=tuple(ranked)) if error.plan else None
        return error

    def _tell(self, value: Any, conclude: Any) -> Value:
        """One exchange; what goes wrong while the value is worked out goes wrong everywhere."""
        try:
            mine = value()
        except CkptError as error:
            self.meeting.exchange(failure(error), conclude)
            raise
        return self.meeting.exchange(mine, conclude)

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
            {"id": i, "mtime": c.mtime_ns, "kind": str(c.kind), "step": self.planner.step(c), "path": os.path.relpath(c.path, self.planner.root)}
            for i, c in self.mine.items()
        ]
        return {
            "host": socket.gethostname(),
            "asked": self.maker.asked,
            "ranks": [self.ranks.start, self.ranks.stop],
            "candidates": rows,
            "more": len(ranked) > LISTED,
            "earlier": None if rows else history.earlier(self.planner.root, self.selection),
        }

    def _in_order(self, values: Sequence[Value]) -> Value:
        if len({v["asked"] for v in values}) > 1:
            raise UsageError("the nodes ask different questions", "start 'ckpt run' with the same options on every node")
        owners = sorted((r, i) for i, v in enumerate(values) for r in range(*v["ranks"]))
        if [r for r, _ in owners] != list(range(len(owners))):
            raise UsageError(f"the nodes run the ranks {[v['ranks'] for v in values]}, which are not all ranks once", "say --node on every node")
        hosts = [v["host"] for v in values]
        hosts = [h if hosts.count(h) == 1 else f"{h}#{i}" for i, h in enumerate(hosts)]
        rows: dict[str, dict[int, Value]] = {}
        for i, v in enumerate(values):
            for row in v["candidates"]:
                rows.setdefault(row["id"], {})[i] = row
        if rows and not self.maker.terms.transfer and all(len(at) < len(values) for at in rows.values()):
            without = [hosts[i] for i, v in enumerate(values) if not v["candidates"]]
            what = f"{', '.join(without)} has no checkpoint at all" if without else "no two nodes have parts of the same checkpoint"
            raise NoneUsable(
                f"no checkpoint has parts on every node: {what}", "check that node's disk, or bring the parts there with --transfer COMMAND"
            )
        if not rows and (before := next(filter(None, (v["earlier"] for v in values)), None)):
            raise history.gone(self.planner.root, EarlierStart(*before))
        if not rows and not (self.selection.allow_none or self.selection.allow_fresh):
            raise NoCheckpoint("there is no checkpoint on any node")

        ranked = rank([self._seen(key, at) for key, at in rows.items()], self.planner.order, self.selection.prefer)
        return {"order": [_entry(c, rows[c.path], values) for c in ranked], "hosts": hosts}

    def _seen(self, key: str, at: dict[int, Value]) -> Checkpoint:
        """A candidate as all nodes together date it: each clock may be off by its own amount, which cancels out over the same nodes."""
        layout, base, _, step, epoch, step_in_epoch, generation = wire.parts_of(key)
        mtime_ns = sum(row["mtime"] for row in at.values()) // len(at)
        return Checkpoint(layout, base, Kind(at[min(at)]["kind"]), (), key, mtime_ns, step, epoch, None, step_in_epoch, generation)

    def _known(self, entry: Value) -> Checkpoint:
        """This node's checkpoint of that identity, or one without parts where it has none."""
        mine = self.mine.get(entry["id"])
        layout, base, _, step, epoch, step_in_epoch, generation = wire.parts_of(entry["id"])
        home, path = os.path.join(self.planner.root, base), os.path.normpath(os.path.join(self.planner.root, entry["path"]))
        c = mine or Checkpoint(layout, home, Kind(entry["kind"]), (), path, 0, step, epoch, None, step_in_epoch, generation)
        return replace(c, kind=Kind(entry["kind"]))

    # ---- is it sound everywhere

    def _judge(self, c: Checkpoint, entry: Value, taken: dict[int, Checkpoint]) -> Judgement:
        if entry["without"] and not self.maker.terms.transfer:
            said = [f"{self.hosts[i]} has no part of it" + (f" among its {LISTED} newest" if more else "") for i, more in entry["without"]]
            return Judgement(False, tuple(finding("missing-part", text, path=c.path) for text in said))
        identity = entry["id"]
        asked, mine = c, Judgement(False, (finding("missing-part", f"{self.hosts[self.meeting.me]} has no part of it", path=c.path),))

        self.not_brought = []

        def look() -> Value:
            nonlocal mine
            if c.parts:
                mine = self.planner.judge.judge(c)
            return {"ok": mine.usable, "read": mine.read, "findings": [wire.told(f) for f in (*self.not_brought, *mine.findings)]}

        def common(values: Sequence[Value]) -> Value:
            rows = [{**f, "message": f"{self.hosts[i]}: {f['message']}"} for i, v in enumerate(values) if not v["ok"] for f in v["findings"]]
            return {
                "ok": all(v["ok"] for v in values),
                "read": any(v["read"] for v in values),
                "findings": rows,
                "lacking": [i for i, v in enumerate(values) if not v["ok"]],
            }

        answer = self._tell(look, common)
        if not answer["ok"]:
            offers = self._offers(c, identity, answer["lacking"])
            if self.maker.terms.transfer:
                c = self._brought(c, identity, offers)
                answer = self._tell(look, common)
            answer["findings"] += [wire.told(f) for f in self._elsewhere(offers)] if not answer["ok"] else []
        told = Judgement(answer["ok"], tuple(wire.untold(f) for f in answer["findings"]), answer["read"])
        if told.usable:
            taken[id(asked)] = c
            told = Judgement(True, mine.findings, answer["read"])
        return told

    def _offers(self, c: Checkpoint, identity: str, lacking: Sequence[int]) -> list[Value]:
        """What other nodes have of the ranks of nodes that lack something, and of ranks that hold the same: [{"node", "below", "part"}]."""
        want = self._tell(lambda: {"want": self._wanted(c)}, lambda values: {"want": [v["want"] for v in values]})["want"]
        others, mine = {r for i in lacking if i != self.meeting.me for r in want[i]}, self.mine.get(identity)
        rows = [
            {"node": self.meeting.me, "below": os.path.relpath(p.path, self.planner.root), "part": wire.packed(p), "ranks": ranks}
            for p in (mine.parts if mine else ())
            if others.intersection(ranks := list(self.planner.ranks_of(p))) and p.size > 0
        ]
        return list(self._tell(lambda: {"rows": rows}, lambda values: {"rows": [r for v in values for r in v["rows"]]})["rows"])

    def _wanted(self, c: Checkpoint) -> list[int]:
        """Ranks whose files would help this node: its own that have none, and those that hold the same."""
        own = {r for p in self._sound(c) for r in self.planner.ranks_of(p)}
        alone = [r for r in self.ranks if r not in own]
        return sorted({m for r in alone for m in (r, *(self.planner.alike(r) if self.mine else ()))})

    def _sound(self, c: Checkpoint) -> list[Part]:
        seen = self.planner.session.reports if c.parts else {}
        return [p for p in c.parts if p.path not in seen or seen[p.path].verdict not in (Verdict.BROKEN, Verdict.UNKNOWN)]

    def _elsewhere(self, offers: Sequence[Value]) -> list[Finding]:
        told = [(o["ranks"][0], wire.unpacked(o["part"]), self.hosts[o["node"]]) for o in offers[:NAMED]]
        return [
            finding("on-other-node", f"the {p.role} file of rank {r} lies on {host}, where that rank does not run", path=p.path)
            for r, p, host in told
        ]

    def _brought(self, c: Checkpoint, identity: str, offers: Sequence[Value]) -> Checkpoint:
        """The checkpoint with the files that --transfer brings from other nodes to this one."""
        have, wanted, new = {(p.rank, p.coords, p.role) for p in self._sound(c)}, set(self._wanted(c)), list[Part]()
        for offer in offers:
            p = wire.unpacked(offer["part"])
            if offer["node"] != self.meeting.me and wanted.intersection(offer["ranks"]) and (p.rank, p.coords, p.role) not in have:
                new.append(self._bring(p, self.hosts[offer["node"]], offer["below"]))
                have.add((p.rank, p.coords, p.role))
        if c.parts or not any(p.size > 0 for p in new):
            return replace(c, parts=(*c.parts, *(p for p in new if p.size > 0)))
        # This node had nothing: what was brought is a tree of its own, in which the checkpoint is found as in any other, without what an earlier start brought.
        self.planner = Planner(self._brought_to, self.selection, self.maker.progress, self.cache)
        found = {wire.identity(o, self.planner.root): o for o in self.planner.candidates()}
        now = {p.path for p in new if p.size > 0}
        return replace(found[identity], kind=c.kind, parts=tuple(p for p in found[identity].parts if p.path in now)) if identity in found else c

    @property
    def _brought_to(self) -> str:
        return os.path.join(self.maker.decisions.place(TRANSFERRED), f"node-{self.meeting.me}")

    def _bring(self, part: Part, host: str, below: str) -> Part:
        target = os.path.join(self._brought_to, below)
        aside = f"{target}.part"
        words = [*shlex.split(self.maker.terms.transfer), host, part.path, aside]
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            done = subprocess.run(words, stdout=sys.stderr, timeout=self.maker.terms.timeout, check=False)  # noqa: S603 - the user's own command
            if done.returncode == 0:
                # The time of its save: one of today would tell of a second attempt to save this step.
                os.utime(aside, ns=(part.mtime_ns, part.mtime_ns))
                os.replace(aside, target)
                st = os.stat(target)
                return part._replace(path=target, size=st.st_size, mtime_ns=st.st_mtime_ns)
            why = f"{words[0]} ended with {done.returncode}" if done.returncode > 0 else f"{words[0]} was killed by signal {-done.returncode}"
        except OSError as e:
            why = f"{e.strerror}: {e.filename}"
        except subprocess.TimeoutExpired:
            why = f"{words[0]} took longer than {self.maker.terms.timeout:g} s"
        self.not_brought.append(finding("on-other-node", f"--transfer has not brought {part.path} from {host}: {why}", path=target))
        return part._replace(path=target, size=-1)


def _entry(c: Checkpoint, at: Mapping[int, Value], values: Sequence[Value]) -> Value:
    """A candidate in the common order, and the nodes that name no part of it, each with whether it has more than it named."""
    row, without = at[min(at)], [(i, v["more"]) for i, v in enumerate(values) if i not in at]
    return {"id": c.path, "kind": str(c.kind), "step": row["step"], "path": row["path"], "without": without}


def _merged(values: Sequence[Value]) -> Value:
    from xxhash import xxh3_128_hexdigest

    ranks = sorted((r for v in values for r in v["ranks"]), key=lambda r: int(r["rank"]))
    return {"ranks": ranks, "fingerprint": xxh3_128_hexdigest("\n".join(v["fingerprint"] for v in values).encode())}
