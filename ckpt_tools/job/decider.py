"""Makes a job's decision in the process that is the one to make it: plan, build the view, or meet the other
nodes.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace
from xxhash import xxh3_64_hexdigest

from ckpt_tools import api, launchers
from ckpt_tools.cache.verdicts import Note
from ckpt_tools.errors import CannotLook, NoCheckpoint, NoneUsable, UsageError, explain_refusal
from ckpt_tools.job.decision import Body, Decision, body_of, check
from ckpt_tools.job.decisions import Decisions
from ckpt_tools.job.meeting import SAME
from ckpt_tools.job.rendezvous import Rendezvous
from ckpt_tools.job.starts import with_loop
from ckpt_tools.layouts import layouts_of
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning import trackers
from ckpt_tools.planning.planner import Planner
from ckpt_tools.reading.session import Progress
from ckpt_tools.settings import directories, plugins
from ckpt_tools.settings.checked_json import Invalid
from ckpt_tools.storage.stalls import limited
from ckpt_tools.storage.trust import OURS


class Listener(Struct, frozen=True):
    """What the process that decides calls meanwhile: ``made`` with the plan, for its warnings to be shown
    once per job, ``progress`` while it reads, ``note`` with what it has to say of kept verdicts.
    """

    made: Callable[[LoadPlan], None] | None = None
    progress: Progress | None = None
    note: Note | None = None


SILENT = Listener()


def make_plan(root: str, selection: Selection, to: Listener) -> LoadPlan:
    """Return the plan. A question about names is asked only if contents do not answer it."""
    try:
        return api.plan(root, selection, progress=to.progress, note=to.note)
    except UsageError:
        if not selection.compare_only:
            raise
        selection = replace(selection, level=Level.CONTENT, compare_only=False)
        return api.plan(root, selection, progress=to.progress, note=to.note)


def digest(selection: Selection) -> str:
    """Return a digest of the question, without what differs from rank to rank."""
    same = replace(
        selection,
        rank=None,
        jobs=0,
        io="auto",
        limit_rate=None,
        world_size=None,
        world_from="",
        fault_ranks=frozenset(),
        cache=False,
        max_age=0,
        plan_dir=None,
        trust=OURS,
        layouts=None,  # functions, which every process has at another address
    )
    others = plugins.packages()  # what they know of files, another process must know as well
    return xxh3_64_hexdigest(
        f"{same} {sorted(selection.fault_ranks)}{others}".encode("utf-8", "surrogatepass")
    )


def _require_mount(root: str) -> None:
    with explain_refusal(
        f"{root} cannot be looked at", "check that its file system is mounted, then start again"
    ):
        mounted = os.stat(root).st_dev != os.stat("/").st_dev
    if not mounted:
        raise CannotLook(
            f"{root} lies on the root file system: nothing is mounted there",
            "mount it, then start again, or drop --require-mount",
        )


class Decider(Struct, frozen=True):
    """Makes the decision where this process is the one to make it."""

    root: str
    selection: Selection
    rendezvous: Rendezvous
    listener: Listener = SILENT

    @property
    def world(self) -> int | None:
        started = launchers.detect(self.rendezvous.env)
        return started.world_size.value if started and started.world_size else None

    def decide(self) -> Decision:
        """Return the decision of this start, before it is known whether this process may follow it. Raises
        CkptError when there is nothing to decide for; with several nodes then all of them do.
        """
        selection, of, options = self.selection, self.rendezvous.membership, self.rendezvous.options
        with self.rendezvous:
            with self.rendezvous.reporting():
                if options.require_mount:
                    _require_mount(self.root)
                plan_dir = options.plan_dir or directories.decisions(self.rendezvous.env)
                decisions = Decisions(plan_dir, self.root, trusted=selection.trust)
                saves = "" if of.start or not of.unique else self.digest_saves()
            key = of.key
            if options.agree or not key:  # those who meet: one would wait for the lock of the other
                key = f"{key}.node-{of.node}"
            return decisions.once(
                key,
                of.member,
                unique=of.unique and bool(of.key),
                timeout=options.timeout,
                make=lambda: self._make(decisions),
                about={**of.about, "nodes": of.nodes, "asked": digest(selection), "saves": saves},
                peers=self.rendezvous,
            )

    def digest_saves(self) -> str:
        """Return a digest of candidates' files, of what trackers say, and of the number of ranks."""
        of, options = self.rendezvous.membership, self.rendezvous.options
        ranks = self.selection.world_size or self.world if options.worker else of.nodes
        asked = replace(self.selection, rank=None)
        planner, why = Planner(self.root, asked, self.listener.progress), ""
        with limited(asked.budget):
            try:
                planner.find_candidates()
            except (NoCheckpoint, NoneUsable, UsageError) as error:
                why = str(error)
            files = sorted((p.path, p.size, p.mtime_ns) for c in planner.ranked for p in c.parts)
            told = trackers.find_trackers(planner.session, planner.ranked) if files else ()
            seen = f"{files} {[(t.path, t.says) for t in told]} {why} {ranks}"
        return xxh3_64_hexdigest(seen.encode("utf-8", "surrogatepass"))

    def _make(self, decisions: Decisions) -> Body:
        selection, options = replace(self.selection, rank=None), self.rendezvous.options

        def body(plan: LoadPlan) -> Body:
            if self.listener.made:
                self.listener.made(plan)
            if options.stage and plan.checkpoint:
                from ckpt_tools.job.staging import describe

                return {**body_of(plan), **describe(plan, options.stage, layouts_of(selection))}
            if options.view and plan.checkpoint:
                from ckpt_tools.job.view import build

                return {**body_of(plan), **build(plan, options.view, options.trust, layouts_of(selection))}
            return body_of(plan)

        def plan_alone() -> Body:
            made = make_plan(self.root, selection, self.listener)
            return body(with_loop(made, self.root, decisions.directory, selection.trust))

        if options.agree:
            from ckpt_tools.job.consensus import agree

            world = selection.world_size or self.world
            asked = digest(selection)
            return body(agree(self.root, selection, self.rendezvous, self.listener, asked=asked, world=world))
        if not self.rendezvous.needed:
            return plan_alone()
        said = self.rendezvous.join().exchange({}, lambda _: plan_alone())
        try:
            check({**said, "decision": {"root": decisions.root, "decided_at": 0}})
        except Invalid as e:
            raise UsageError(f"node 0 has made no decision that ckpt makes: {e}", SAME) from e
        return said
