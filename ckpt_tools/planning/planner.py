"""From a root and a question to a load plan: candidates, topology, the judge that reads files, and the words that explain it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from ckpt_tools.crosscheck import unfinished
from ckpt_tools.crosscheck.trackers import tracker_findings
from ckpt_tools.discovery import completeness
from ckpt_tools.errors import (
    CannotLook,
    CkptError,
    NoCheckpoint,
    NoneUsable,
    NotNewest,
    NotRecognised,
    UsageError,
)
from ckpt_tools.findings import finding
from ckpt_tools.layouts import BY_NAME
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.plan import Choice, FileLoad, LoadPlan, RankLoad, Resume
from ckpt_tools.model.report import Report
from ckpt_tools.planning import choice_warnings, other_writers, shrunk
from ckpt_tools.planning.assign import Assignment, files, fingerprint
from ckpt_tools.planning.candidates import Candidates, number
from ckpt_tools.planning.choose import Judgement, choose
from ckpt_tools.planning.judge import Judge
from ckpt_tools.planning.newest import Times
from ckpt_tools.planning.precedence import in_order, ordered
from ckpt_tools.planning.topology import ALONE, HIGHEST
from ckpt_tools.reading.unseen import HINT, Answer, told, weigh


class Planner(Candidates):
    """One plan. ``plan()`` raises CkptError subclasses as docs/exit-codes.md lists them."""

    def plan(self) -> LoadPlan:
        """The plan; with ``allow_fresh`` one without a checkpoint where none can be used, and that is known."""
        try:
            return self._seen()
        except (NoCheckpoint, NoneUsable, NotRecognised) as error:
            if not self.selection.allow_fresh or error.plan is None:
                raise
            return error.plan

    def _seen(self) -> LoadPlan:
        """The plan, and what could not be looked at on the way to it."""
        try:
            made = self._plan()
        except CannotLook:
            raise
        except CkptError as error:
            if hasattr(self, "session") and not (
                self.selection.skip_unreadable and isinstance(error, UsageError)
            ):
                self._weighed(error.plan, str(error))
            raise
        return self.weigh(made, "")

    def weigh(self, made: LoadPlan | None, otherwise: str) -> LoadPlan:
        """The plan with what could not be looked at on the way to it. Raises CannotLook where that could change the answer."""
        warnings = self._weighed(made, otherwise) if hasattr(self, "session") else []
        made = made or self.nothing()
        known = {(f.code, f.path) for f in made.warnings}
        return replace(
            made, warnings=(*made.warnings, *(f for f in warnings if (f.code, f.path) not in known))
        )

    def _weighed(self, made: LoadPlan | None, otherwise: str) -> list[Finding]:
        """Warnings about what could not be looked at. Raises CannotLook where it could change the answer; ``otherwise`` is what would be said without it."""
        rejected = [r.checkpoint for r in made.rejected] if made else []
        answer = Answer(
            made.checkpoint if made else None,
            rejected,
            getattr(self, "checkpoints", None),
            self.selection.skip_unreadable,
        )
        blocking, warnings = weigh(self.session, answer)
        if not blocking:
            return warnings
        row, more = blocking[0], f" (and {len(blocking) - 1} more)" if len(blocking) > 1 else ""
        found = tuple(told(row, self.root) for row in blocking)
        plan = replace(
            made or self.nothing(),
            warnings=(*(made.warnings if made else ()), *found),
            checkpoint=None,
            resume=Resume(None),
            ranks=(),
            shared=(),
        )
        else_ = f"; without it: {otherwise}" if otherwise else ""
        raise CannotLook(
            f"{row.path}{more}: {row.why}{else_}",
            HINT if not self.selection.skip_unreadable else "make it readable",
            plan=plan,
        )

    def _plan(self) -> LoadPlan:
        ranked = self.candidates()
        if not ranked:
            return self.nothing()
        choice = self._choice(ranked)
        self._ask_how_many(choice)
        choice = self._with_lost(choice)
        if choice.checkpoint is None:
            raise self.failure(choice, self.ranked)
        return self.finish(choice, choice.checkpoint)

    def _ask_how_many(self, choice: Choice) -> None:
        """Raises UsageError where the choice is older only because a still older save had more ranks, and nothing tells whether the job still has them."""
        chosen, world = choice.checkpoint, self.topology.world_size
        if chosen is self.ranked[0] or self.topology.provenance["world_size"].provenance != HIGHEST:
            return
        saves = ordered(
            self.checkpoints,
            "step" if self.selection.resume_from == "tracker" else self.order,
            self.selection.prefer,
        )
        newer = {id(c) for c in takewhile(lambda c: c is not chosen, saves)} & {id(c) for c in self.ranked}
        for size, mine in shrunk.readings(saves, world):
            judge = self._judge_of(size)
            asked = [c for c in mine if id(c) in newer][: self.selection.max_attempts] if judge else []
            if judge and (newest := next((c for c in asked if judge.judge(c).usable), None)):
                raise shrunk.question(size, mine, world, newest, chosen)

    def _judge_of(self, size: int) -> Judge | None:
        """The judge for a job of ``size`` ranks; none where what the caller says rules such a job out."""
        if not shrunk.possible(size, self.selection, self.topology.sizes):
            return None
        topology = replace(self.topology, world_size=size)
        if self.selection.strategy_dir is not None:
            from ckpt_tools.planning.strategy import strategy_groups

            try:
                topology = replace(topology, strategy=strategy_groups(self.selection.strategy_dir, size))
            except UsageError:
                return None
        judge = Judge(
            self.session, self.checkpoints, topology, self.saved, self.selection, self.expected, self.ranked
        )
        judge.begun = self.unfinished
        return judge

    def _with_lost(self, choice: Choice) -> Choice:
        """The choice and what would have gone before it had it not been lost. Raises NotNewest where the caller wants the newest or nothing."""
        c = choice.checkpoint
        told = None if c is None or c.counted else replace(c, step=self.step(c))
        before = [r for r in self.lost if c is None or r.checkpoint.order > (told or c).order]
        choice = replace(choice, rejected=(*before, *choice.rejected))
        if before and c is not None and self.selection.no_fallback:
            raise NotNewest(before[0].findings[0].message, plan=self.empty(replace(choice, checkpoint=None)))
        return choice

    def _choice(self, ranked: list[Checkpoint]) -> Choice:
        """The choice; where neither time nor step is to be believed, the one that both lead to, or that a witness decides. Raises UsageError where none does."""
        judged: dict[int, Judgement] = {}

        def judge(c: Checkpoint) -> Judgement:
            if id(c) not in judged:
                judged[id(c)] = self.judge.judge(c)
            return judged[id(c)]

        choice = self._chosen(ranked, judge)
        if self.times is Times.IN_STEP or self.times.mute:
            return choice
        one = choice.checkpoint or ranked[0]
        by_step = ordered(ranked, "step", self.selection.prefer)
        if (
            self.times.believed
            and choice_warnings.witnesses(
                self.session, self.times, one, choice_warnings.heads(in_order(by_step), self.expected)[1]
            ).verdict
            == "mtime"
        ):
            return choice
        other = self._chosen(by_step, judge)
        same = choice.checkpoint is other.checkpoint
        if not same and self.newest_of(one, other.checkpoint or by_step[0]) == "mtime":
            return choice
        self.order, self.ranked = "step", by_step
        return other

    def _chosen(self, ranked: Sequence[Checkpoint], judge: Callable[[Checkpoint], Judgement]) -> Choice:
        """The first of those ranked that is usable."""
        selection = self.selection
        return choose(
            ranked,
            judge,
            max_attempts=selection.max_attempts,
            save_interval=selection.save_interval,
            step_of=self.step,
            fallback=not selection.no_fallback,
        )

    def failure(self, choice: Choice, ranked: Sequence[Checkpoint]) -> CkptError:
        plan = self.empty(choice)
        if choice.exhausted:
            read = (
                "the one checkpoint that was read is not usable"
                if choice.attempts == 1
                else f"none of {choice.attempts} checkpoints that were read is usable"
            )
            text = f"{read}; --max-attempts {self.selection.max_attempts} stopped the search"
            f = finding("attempts-exhausted", text, path=self.root)
            return NoneUsable(text, f.hint, plan=replace(plan, warnings=(*plan.warnings, f)))
        reasons = "; ".join(
            dict.fromkeys(f.code for r in choice.rejected for f in r.findings if f.severity is Severity.ERROR)
        )
        if self.selection.no_fallback:
            return NotNewest(f"the newest checkpoint is not usable ({reasons})", plan=plan)
        return NoneUsable(f"{number(ranked)}, none is usable ({reasons})", plan=plan)

    def finish(self, choice: Choice, c: Checkpoint) -> LoadPlan:
        s, a, reports = self.session, self.judge.assignments[id(c)], self.session.reports
        layout = BY_NAME[c.layout]
        ranks = tuple(RankLoad(r, self._resolved(files(a.loads[r], reports))) for r in sorted(a.loads))
        told = self._told(c, a, reports)
        told = replace(told, path=s.found.resolved(told.path))
        shared = self._resolved(files(a.shared, reports))
        loaded = [*shared, *(f for r in ranks for f in r.files)]
        other_writers.require_unchanged(loaded)
        paths = {f.path for f in loaded}
        resume = layout.resume(told, paths.pop() if len(paths) == 1 else None)
        run = [o for o in self.checkpoints if o.layout == c.layout and o.run == c.run]

        def lost() -> set[str]:
            """Paths of checkpoints that cannot be resumed from, as far as that is known."""
            homes = {
                r.checkpoint.path
                for r in choice.rejected
                if r.checkpoint.parts and r.checkpoint.parts[0].home
            }
            return homes | {o.path for o in run if completeness.missing(o, self.expected)}

        planned = [
            replace(f, path=f.path or p.path)
            for p in a.parts
            for f in reports[p.path].findings
            if f.severity is Severity.WARNING
        ]
        below = [p for p in a.parts if reports[p.path].level < self.selection.level]
        unread = [p for p in a.parts if p.path in s.reader.unread]
        rollback = choice.rollback
        if rollback:
            rollback = replace(
                rollback,
                why=f"the dying-gasp checkpoint at step {rollback.origin} is not usable: {rollback.why}; {rollback.origin - rollback.target} steps are lost",
            )
        order = "step" if self.selection.resume_from == "tracker" else self.order
        warnings = [
            *self.warnings,
            *a.findings,
            *planned,
            *completeness.losses(c, self.expected),
            *tracker_findings(s, run, lost),
            *choice_warnings.unfinished(self.unfinished, c, order, self.root, self.under_way),
            *unfinished.torn_lately(s, choice.rejected, self._usual),
            *self.other_writers(c),
        ]
        if unread:
            text = f"the budget of {self.selection.budget:g} s was over before {len(unread)} of the {len(a.parts)} files to load, {sum(p.size for p in unread):,} bytes,"
            warnings.append(
                finding(
                    "budget-spent",
                    f"{text} were read as deeply as --level {self.selection.level} asks",
                    path=self.root,
                )
            )
        if others := len(below) - sum(p in unread for p in below):
            text = f"{others} files were looked at less deeply than --level {self.selection.level}"
            warnings.append(finding("below-level", text, path=self.root))
        known = dict(self.topology.provenance)
        world: int | None = self.topology.world_size
        saved = self.saved
        if not ranks and known["world_size"].provenance == ALONE:  # a set that any number of ranks may load
            world = saved = None
            del known["world_size"]
        return LoadPlan(
            self.root, told, resume, ranks, shared, world, saved, known, rollback, choice.rejected,
            tuple(o for o in self.checkpoints if o is not c and o.order > c.order), choice.attempts, s.reader.bytes_verified,
            tuple(dict.fromkeys(warnings)), fingerprint(self.root, ranks, shared), tuple(self.ranked), budget=self.selection.budget, below_level=len(below), excluded=len(s.found.hidden.paths),
        )  # fmt: skip

    def _resolved(self, loads: tuple[FileLoad, ...]) -> tuple[FileLoad, ...]:
        """The same files without a link to a directory below the root: it could lead elsewhere when they are loaded."""
        found = self.session.found
        if not any(links.outside or links.followed for links in found.links):
            return loads
        return tuple(replace(f, path=found.resolved(f.path)) for f in loads)

    def _told(self, c: Checkpoint, a: Assignment, reports: Mapping[str, Report]) -> Checkpoint:
        """The checkpoint with the step and epoch that its planned files tell."""
        step, epoch = c.step if c.parts[0].step is not None else None, c.epoch
        layout = BY_NAME[c.layout]
        for p in a.parts[:8]:
            said = layout.steps(p, reports[p.path].metadata)
            step, epoch = (step if step is not None else said[0]), (epoch if epoch is not None else said[1])
        return replace(
            c, step=self.step(c) if step is None else step, epoch=epoch
        )  # its other files come last: they may be those that were replaced
