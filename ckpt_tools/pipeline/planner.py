"""From a root and a question to a load plan: candidates, topology, the judge that reads files, and the words that explain it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ckpt_tools import completeness
from ckpt_tools.choose import choose
from ckpt_tools.codes import finding
from ckpt_tools.errors import CkptError, NoneUsable, NotNewest
from ckpt_tools.layouts import BY_NAME
from ckpt_tools.model import Checkpoint, Choice, LoadPlan, RankLoad, Report, Severity
from ckpt_tools.pipeline import doubts
from ckpt_tools.pipeline.across import tracker_findings
from ckpt_tools.pipeline.candidates import Candidates, number
from ckpt_tools.pipeline.topology import ALONE
from ckpt_tools.plan import Assignment, files, fingerprint

_NAMED = 16
"""Runs that an error names at most."""


class Planner(Candidates):
    """One plan. ``plan()`` raises CkptError subclasses as docs/exit-codes.md lists them."""

    def plan(self) -> LoadPlan:
        ranked, selection = self.candidates(), self.selection
        if not ranked:
            return self.nothing()
        choice = choose(
            ranked,
            self.judge.judge,
            max_attempts=selection.max_attempts,
            save_interval=selection.save_interval,
            step_of=self.step,
            fallback=not selection.no_fallback,
        )
        if choice.checkpoint is None:
            raise self.failure(choice, ranked)
        return self.finish(choice, choice.checkpoint)

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
        reasons = "; ".join(dict.fromkeys(f.code for r in choice.rejected for f in r.findings if f.severity is Severity.ERROR))
        if self.selection.no_fallback:
            return NotNewest(f"the newest checkpoint is not usable ({reasons})", plan=plan)
        return NoneUsable(f"{number(ranked)}, none is usable ({reasons})", plan=plan)

    def finish(self, choice: Choice, c: Checkpoint) -> LoadPlan:
        s, a, reports = self.session, self.judge.assignments[id(c)], self.session.reports
        layout = BY_NAME[c.layout]
        ranks = tuple(RankLoad(r, files(a.loads[r], reports)) for r in sorted(a.loads))
        told = self._told(c, a, reports)
        shared = files(a.shared, reports)
        paths = {f.path for f in (*shared, *(f for r in ranks for f in r.files))}
        resume = layout.resume(told, paths.pop() if len(paths) == 1 else None)
        run = [o for o in self.checkpoints if o.layout == c.layout and o.run == c.run]

        def lost() -> set[str]:
            """Paths of checkpoints that cannot be resumed from, as far as that is known."""
            homes = {r.checkpoint.path for r in choice.rejected if r.checkpoint.parts and r.checkpoint.parts[0].home}
            return homes | {o.path for o in run if completeness.missing(o, self.expected)}

        planned = [replace(f, path=f.path or p.path) for p in a.parts for f in reports[p.path].findings if f.severity is Severity.WARNING]
        below = [p for p in a.parts if reports[p.path].level < self.selection.level]
        unread = [p for p in a.parts if p.path in s.reader.unread]
        rollback = choice.rollback
        if rollback:
            rollback = replace(
                rollback,
                why=f"the dying-gasp checkpoint at step {rollback.origin} is not usable: {rollback.why}; {rollback.origin - rollback.target} steps are lost",
            )
        order = "step" if self.selection.resume_from == "tracker" else self.order
        warnings = [*self.warnings, *a.findings, *planned, *tracker_findings(s, run, lost), *doubts.unfinished(self.unfinished, c, order, self.root)]
        if unread:
            text = f"the budget of {self.selection.budget:g} s was over before {len(unread)} of the {len(a.parts)} files to load, {sum(p.size for p in unread):,} bytes,"
            warnings.append(finding("budget-spent", f"{text} were read as deeply as --level {self.selection.level} asks", path=self.root))
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
            tuple(dict.fromkeys(warnings)), fingerprint(self.root, ranks, shared), tuple(self.ranked), budget=self.selection.budget, below_level=len(below),
        )  # fmt: skip

    def _told(self, c: Checkpoint, a: Assignment, reports: Mapping[str, Report]) -> Checkpoint:
        """The checkpoint with the step and epoch that its planned files tell."""
        step, epoch = c.step if c.parts[0].step is not None else None, c.epoch
        layout = BY_NAME[c.layout]
        for p in a.parts[:8]:
            said = layout.steps(p, reports[p.path].metadata)
            step, epoch = (step if step is not None else said[0]), (epoch if epoch is not None else said[1])
        return replace(c, step=self.step(c) if step is None else step, epoch=epoch)  # its other files come last: they may be those that were replaced
