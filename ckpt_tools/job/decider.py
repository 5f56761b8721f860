"""Makes a job's decision in the process whose turn it is: plan, build the view, or meet the other nodes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress

from msgspec import Struct, field
from msgspec.structs import replace
from xxhash import xxh3_64_hexdigest

from ckpt_tools import api, launchers
from ckpt_tools.cache import Note
from ckpt_tools.errors import CannotLook, CkptError, NoCheckpoint, NoneUsable, UsageError, explain_refusal
from ckpt_tools.job.decision import Body, Decision, body_of, check, failure
from ckpt_tools.job.decisions import Decisions
from ckpt_tools.job.meeting import SAME, Meeting, find_board, meeting
from ckpt_tools.job.membership import Membership, Options
from ckpt_tools.job.starts import with_loop, with_processes_left
from ckpt_tools.launchers import LaunchLine
from ckpt_tools.layouts import layouts_of
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning import trackers
from ckpt_tools.planning.planner import Planner
from ckpt_tools.reading.session import Progress
from ckpt_tools.settings import plugins, resolve
from ckpt_tools.settings.checked_json import Invalid
from ckpt_tools.storage.stalls import limited
from ckpt_tools.storage.trust import OURS


class Listener(Struct, frozen=True):
    """Callbacks of the process that decides: ``made`` gets the plan, to show its warnings once per job,
    ``progress`` is called while it reads, ``note`` gets messages about cached verdicts.
    """

    made: Callable[[LoadPlan], None] | None = None
    progress: Progress | None = None
    note: Note | None = None


SILENT = Listener()


def make_plan(root: str, selection: Selection, to: Listener) -> LoadPlan:
    """Return the plan. If names alone cannot decide, which raises UsageError, contents are compared."""
    try:
        return api.plan(root, selection, progress=to.progress, note=to.note)
    except UsageError:
        if not selection.compare_only:
            raise
        selection = replace(selection, level=Level.CONTENT, compare_only=False)
        return api.plan(root, selection, progress=to.progress, note=to.note)


def digest(selection: Selection) -> str:
    """Return a digest of the selection, without options that differ from rank to rank."""
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
        layouts=None,  # functions, whose addresses differ in every process
    )
    others = plugins.packages()  # every process must have the same plug-ins
    return xxh3_64_hexdigest(
        f"{same} {sorted(selection.fault_ranks)}{others}".encode("utf-8", "surrogatepass")
    )


class Decider(Struct):
    """Makes the decision of a start in this process. No node starts before all can, and a failing node tells
    the others. ``joined`` is the meeting once this process is in it; None if the job needs none, or another
    process of this node decides. ``saves`` is a digest of the input of the decision, "" if the key is of this
    start alone.
    """

    root: str
    selection: Selection
    membership: Membership
    options: Options
    line: LaunchLine | None
    env: Mapping[str, str]
    listener: Listener = SILENT
    saves: str = ""
    joined: Meeting | None = None
    _open: ExitStack = field(default_factory=ExitStack)

    @property
    def world(self) -> int | None:
        started = launchers.detect(self.env)
        return started.world_size.value if started and started.world_size else None

    def decide(self) -> Decision:
        """Return the decision, not yet checked by this process. Raise CkptError, the same on all nodes."""
        with self._open:  # the meeting tells the others how this node ended
            with self.reporting():
                if self.options.require_mount:
                    hint = "check that its file system is mounted, then start again"
                    with explain_refusal(f"{self.root} cannot be looked at", hint):
                        mounted = os.stat(self.root).st_dev != os.stat("/").st_dev
                    if not mounted:
                        text = f"{self.root} lies on the root file system: nothing is mounted there"
                        raise CannotLook(text, "mount it, then start again, or drop --require-mount")
                plan_dir = self.options.plan_dir or resolve.decisions(self.env)
                decisions = Decisions(plan_dir, self.root, self.selection.trust)
                if self.membership.unique and not self.membership.start:
                    self.saves = self.digest_saves()
            return decisions.once(self)

    @property
    def key(self) -> str:
        """The name of the decision; nodes that meet have one each, or would wait for a lock."""
        of = self.membership
        return f"{of.key}.node-{of.node}" if self.options.agree or not of.key else of.key

    @property
    def about(self) -> dict[str, object]:
        of = self.membership
        start = {"job": of.job, "generation": of.generation, "nodes": of.nodes}
        return {**start, "asked": digest(self.selection), "saves": self.saves}

    def digest_saves(self) -> str:
        """Return a digest of candidates' files, of tracker files' contents, and of the number of ranks."""
        ranks = self.membership.nodes
        if self.options.worker:
            ranks = self.selection.world_size or self.world or 0
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

    # ---- the other nodes

    @property
    def _meets(self) -> bool:
        """Whether the nodes meet: each looks at its own disks, or no id lets them share a decision."""
        of = self.membership
        return self.options.agree or (of.nodes > 1 and not (of.unique and of.key))

    def _join(self) -> Meeting:
        """Wait until all nodes are there. Raise UsageError if this node's index or the place is unknown."""
        of, timeout = self.membership, self.options.timeout
        if of.node is None or of.node >= of.nodes:
            text = f"the index of this node among {of.nodes} nodes is unknown"
            raise UsageError(text, "set CKPT_NODE=N, from 0 (torchrun --node-rank tells it as well)")
        board = find_board(of, self.options, self.line, self.env, self.selection.trust)
        self.joined = self._open.enter_context(meeting(board, of.node, of.nodes, timeout))
        return self.joined

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Tell the other nodes, which wait, an error that keeps this node from taking part."""
        try:
            yield
        except CkptError as error:
            rank, ranks = self.membership.rank, self.membership.ranks
            first = rank is None or (ranks is not None and rank == ranks.start)
            if self._meets and first and self.joined is None:
                with suppress(CkptError):  # raise the error itself, not one of telling it
                    self._join().exchange(failure(error), lambda _: {})
            raise

    def wait(self, decision: Decision) -> None:
        """Check the files a last time, and wait until every node can start. Raise the error of any node."""
        if self.joined:
            decision.check(self.membership.ranks if self.options.agree else None)
            self.joined.exchange({}, lambda _: {})
            self._open.close()

    # ---- deciding

    def make(self, decisions: Decisions) -> Body:
        if self.options.agree:
            from ckpt_tools.job.consensus import agree

            ranks, world = self.membership.ranks, self.selection.world_size or self.world
            if ranks is None:
                raise UsageError(
                    "which ranks run on this node is unknown",
                    "add --world-size N (CKPT_NODES and CKPT_NODE as well, where the launcher does not tell)",
                )
            joined, question = self._join(), digest(self.selection)
            asked = replace(self.selection, rank=None, world_size=world or len(ranks) * joined.size)
            plan = agree(self.root, asked, ranks, joined, asked=question, listener=self.listener)
            return self._describe(plan)

        def plan_alone() -> Body:
            made = make_plan(self.root, replace(self.selection, rank=None), self.listener)
            made = with_loop(made, self.root, decisions.directory, self.selection.trust)
            return self._describe(with_processes_left(made, decisions.directory))

        if not self._meets:
            return plan_alone()
        said = self._join().exchange({}, lambda _: plan_alone())
        try:
            check({**said, "decision": {"root": decisions.root, "decided_at": 0}})
        except Invalid as e:
            raise UsageError(f"node 0 has made no decision that ckpt makes: {e}", SAME) from e
        return said

    def _describe(self, plan: LoadPlan) -> Body:
        """Return the body of the decision for a plan, with its view or the files to be staged."""
        selection, options = self.selection, self.options
        if self.listener.made:
            self.listener.made(plan)
        body = body_of(plan)
        if options.stage and plan.checkpoint:
            from ckpt_tools.job.staging.fetching import describe

            body |= describe(plan, options.stage, layouts_of(selection))
        elif options.view and plan.checkpoint:
            from ckpt_tools.job.view import build

            body |= build(plan, options.view, selection.trust, layouts_of(selection))
        return body
