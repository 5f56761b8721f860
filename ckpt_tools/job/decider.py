"""Makes a job's decision in the process that is the one to make it: plan, build the view, or meet the other
nodes.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools import api
from ckpt_tools.cache.verdicts import Note
from ckpt_tools.errors import NoCheckpoint, NoneUsable, UsageError
from ckpt_tools.job import schema
from ckpt_tools.job.decision import Body, body_of
from ckpt_tools.job.decisions import Decisions
from ckpt_tools.job.meeting import SAME
from ckpt_tools.job.membership import Membership
from ckpt_tools.job.options import Options
from ckpt_tools.job.rendezvous import Rendezvous
from ckpt_tools.job.starts import with_loop
from ckpt_tools.layouts import Layouts, layouts_of
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning import trackers
from ckpt_tools.planning.planner import Planner
from ckpt_tools.reading.session import Progress
from ckpt_tools.settings import plugins
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


def planned(root: str, selection: Selection, to: Listener) -> LoadPlan:
    """The plan. A question that arises while no contents are read is asked only if they do not answer it."""
    try:
        return api.plan(root, selection, progress=to.progress, note=to.note)
    except UsageError:
        if not selection.compare_only:
            raise
        selection = replace(selection, level=Level.CONTENT, compare_only=False)
        return api.plan(root, selection, progress=to.progress, note=to.note)


def digest(selection: Selection) -> str:
    """A digest of the question, without what differs from rank to rank."""
    import xxhash

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
    return xxhash.xxh3_64_hexdigest(
        f"{same} {sorted(selection.fault_ranks)}{others}".encode("utf-8", "surrogatepass")
    )


class Decider(Struct, frozen=True):
    """Makes the decision where this process is the one to make it."""

    root: str
    selection: Selection
    options: Options
    membership: Membership
    decisions: Decisions
    rendezvous: Rendezvous
    listener: Listener = SILENT
    world: int | None = None

    @property
    def request(self) -> str:
        """What is asked, as all nodes must ask it."""
        return digest(self.selection)

    @property
    def _layouts(self) -> Layouts:
        return layouts_of(self.selection)

    def make(self) -> Body:
        """The body of the decision. Raises CkptError when there is nothing to decide for; with several nodes
        then all of them do.
        """
        if self.options.agree:
            from ckpt_tools.job.consensus import agree

            return self._body(agree(self))
        if not self.rendezvous.needed:
            return self._body(self.plan())
        body = self.rendezvous.join().exchange({}, lambda _: self._body(self.plan()))
        try:
            schema.check({**body, "decision": {"root": self.decisions.root, "decided_at": 0}})
        except Invalid as e:
            raise UsageError(f"node 0 has made no decision that ckpt makes: {e}", SAME) from e
        return body

    def digest_saves(self) -> str:
        """A digest of what is decided from: files of candidates, what trackers say, the number of ranks."""
        import xxhash

        ranks = self.selection.world_size or self.world if self.options.worker else self.membership.nodes
        planner, why = Planner(self.root, self.selection, self.listener.progress), ""
        with limited(self.selection.budget):
            try:
                planner.find_candidates()
            except (NoCheckpoint, NoneUsable, UsageError) as error:
                why = str(error)
            files = sorted((p.path, p.size, p.mtime_ns) for c in planner.ranked for p in c.parts)
            told = trackers.find_trackers(planner.session, planner.ranked) if files else ()
            seen = f"{files} {[(t.path, t.says) for t in told]} {why} {ranks}"
        return xxhash.xxh3_64_hexdigest(seen.encode("utf-8", "surrogatepass"))

    def plan(self) -> LoadPlan:
        """The plan for the whole job; one without a checkpoint where that is allowed."""
        made = planned(self.root, self.selection, self.listener)
        return with_loop(made, self.root, self.decisions.directory, self.selection.trust)

    def _body(self, plan: LoadPlan) -> Body:
        if self.listener.made:
            self.listener.made(plan)
        if self.options.stage and plan.checkpoint:
            from ckpt_tools.job.staging import described

            return {**body_of(plan), **described(plan, self.options.stage, self._layouts)}
        if self.options.view and plan.checkpoint:
            from ckpt_tools.job.view import build

            return {**body_of(plan), **build(plan, self.options.view, self.options.trust, self._layouts)}
        return body_of(plan)
