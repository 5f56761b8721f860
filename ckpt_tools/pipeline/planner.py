"""From a root and a question to a load plan: candidates, topology, the judge that reads files, and the words that explain it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ckpt_tools import completeness
from ckpt_tools import group as grouping
from ckpt_tools.choose import choose, rank
from ckpt_tools.codes import finding
from ckpt_tools.errors import CannotLook, CkptError, NoCheckpoint, NoneUsable, NotNewest, UsageError
from ckpt_tools.layouts import BY_NAME
from ckpt_tools.model import Checkpoint, Choice, Finding, Kind, Level, LoadPlan, RankLoad, Report, Resume, Severity
from ckpt_tools.pipeline.across import tracker_findings
from ckpt_tools.pipeline.judge import Judge
from ckpt_tools.pipeline.session import Progress, Session
from ckpt_tools.pipeline.topology import ALONE, expert_names, find_topology
from ckpt_tools.plan import Assignment, files, fingerprint
from ckpt_tools.question import Selection

_SKEW_NS = 5_000_000_000


def _count(checkpoints: Sequence[Checkpoint]) -> str:
    return "1 checkpoint exists" if len(checkpoints) == 1 else f"{len(checkpoints)} checkpoints exist"


class Planner:
    """One plan. ``plan()`` raises CkptError subclasses as docs/exit-codes.md lists them."""

    def __init__(self, root: str, selection: Selection, progress: Progress | None) -> None:
        self.root, self.selection, self.progress = os.path.abspath(root), selection, progress
        self.warnings: list[Finding] = []
        self.steps: dict[int, int | None] = {}
        self.names = min(Level.STRUCTURE, selection.level)  # at presence the names must do

    def plan(self) -> LoadPlan:
        selection = self.selection
        try:
            self.session = s = Session(
                self.root,
                jobs=selection.jobs,
                require=selection.require,
                settle=selection.settle,
                progress=self.progress,
                key_file=selection.key_file,
            )
        except CannotLook:
            if selection.allow_none and not os.path.lexists(self.root) and os.path.isdir(os.path.dirname(self.root)):
                return self._empty(Choice(None))
            raise
        everything = grouping.group(s.parts, selection.fault_ranks, selection.save_interval)
        finished = [c for c in everything if not c.unfinished]
        if not finished:
            if selection.allow_none:
                return self._empty(Choice(None))
            raise NoCheckpoint(self._nothing(everything), plan=self._empty(Choice(None)))
        self.checkpoints = self._one_run(finished)
        if len({c.layout for c in self.checkpoints}) > 1:  # names of two layouts count steps differently: let the contents say
            self.checkpoints = [replace(c, step=self._step(c)) for c in self.checkpoints]
        self.checkpoints = expert_names(s, self.checkpoints, self.names)
        candidates = [c for c in self.checkpoints if self._wanted(c)]
        if not candidates:
            raise NoneUsable(
                f"{_count(self.checkpoints)}, but --kind or --max-step hides them all",
                "relax the filters",
                plan=self._empty(Choice(None)),
            )
        self.order = selection.resume_from if selection.resume_from in ("mtime", "step") else selection.order
        ranked = rank(candidates, self.order, selection.prefer)
        if selection.resume_from == "tracker":
            ranked = self._from_tracker(ranked)
        self.ranked = ranked
        self.expected = completeness.expected(self.checkpoints, selection.world_size)
        self.topology, self.saved, notes = find_topology(s, ranked, self.checkpoints, selection)
        self.warnings += notes
        self._compare_orders(candidates)
        self.judge = Judge(s, self.checkpoints, self.topology, self.saved, selection, self.expected)
        choice = choose(
            ranked,
            self.judge.judge,
            max_attempts=selection.max_attempts,
            save_interval=selection.save_interval,
            step_of=self._step,
            fallback=not selection.no_fallback,
        )
        if choice.checkpoint is None:
            raise self._failure(choice, ranked)
        return self._finish(choice, choice.checkpoint)

    # ---- which checkpoints

    def _from_tracker(self, ranked: Sequence[Checkpoint]) -> list[Checkpoint]:
        """The checkpoint that the tracker names and, behind it, those of earlier steps. Raises UsageError when it names none."""
        first = next((c for c in ranked if BY_NAME[c.layout].tracker), ranked[0])  # a dying gasp may lie beside the run, and have none
        layout, base = BY_NAME[first.layout], first.parts[0].base
        said = self.session.tracker(layout.name, base)
        if said is None:
            what = (
                f"there is no {layout.tracker} in {base}" if layout.tracker and layout.always_tracked else f"the layout {layout.name} has no tracker"
            )
            raise UsageError(what, "say --resume-from mtime or --resume-from step")
        if isinstance(said[1], Finding) or said[1] is None:
            raise UsageError(f"{said[0]} is empty, or not what its framework writes", "say --resume-from mtime or --resume-from step")
        named = [c for c in ranked if layout.tracked(c) == said[1]]
        if not named:
            hidden = any(layout.tracked(c) == said[1] for c in self.checkpoints if c.layout == layout.name)
            where = "which --kind or --max-step hides" if hidden else "which is not there"
            raise UsageError(f"{said[0]} names {said[1]}, {where}", "say --resume-from mtime or --resume-from step")
        older = [c for c in rank(ranked, "step", self.selection.prefer) if c not in named and c.order <= named[0].order]
        return [*named, *older]

    def _nothing(self, everything: Sequence[Checkpoint]) -> str:
        s = self.session
        if everything or s.found.unfinished:
            return f"{self.root} holds only unfinished saves ({len(everything) + len(s.found.unfinished)})"
        if s.found.bare:
            return f"{self.root} holds checkpoint files ({len(s.found.bare)}), but in no layout that ckpt knows"
        return f"there is no checkpoint in {self.root}"

    def _one_run(self, finished: list[Checkpoint]) -> list[Checkpoint]:
        """The checkpoints of the run that the question is about. A lone run of dying gasps (MindIO TTP) belongs to the lone periodic run beside it."""
        selection = self.selection
        chosen = [
            c
            for c in finished
            if selection.layout in (None, c.layout)
            and (selection.run is None or selection.run.rstrip("/") in (c.run, c.parts[0].base, os.path.basename(c.run)))
            and (selection.prefix is None or c.parts[0].prefix == selection.prefix)
        ]
        if not chosen:
            raise NoneUsable(
                f"{_count(finished)}, but none in the run that was asked for",
                "'ckpt ls' names the runs",
                plan=self._empty(Choice(None)),
            )
        runs = self.session.runs(chosen)
        last_words = [r for r, members in runs.items() if all(c.kind is Kind.DYING_GASP for c in members)]
        if len(runs) > 1 and not (len(runs) == 2 and len(last_words) == 1):
            names = ", ".join(sorted(f"{run} ({layout})" for layout, run in runs))
            raise UsageError(f"{self.root} holds several runs: {names}", "say which with --run, --prefix or --layout")
        return chosen

    def _wanted(self, c: Checkpoint) -> bool:
        limit = self.selection.max_step
        if self.selection.kind is not None and c.kind is not self.selection.kind:
            return False
        return limit is None or ((step := self._step(c)) is not None and step <= limit)

    def _step(self, c: Checkpoint) -> int | None:
        """The checkpoint's global step: from its name, else what most of its files tell."""
        if c.step is None and id(c) not in self.steps:
            layout = BY_NAME[c.layout]
            read = [(p, self.session.report(p, self.names).metadata) for p in c.parts[:8]]
            steps = [step for p, m in read if (step := layout.steps(p, m)[0]) is not None]
            told = max(steps, key=steps.count, default=None)  # one of its files may hold another save
            if told is None and c.kind is Kind.DYING_GASP:  # a breakpoint file counts inside the epoch: its periodic siblings place the epoch
                near = sorted(
                    (o for o in self.checkpoints if o.run == c.run and o.kind is Kind.PERIODIC), key=lambda o: abs(o.mtime_ns - c.mtime_ns)
                )[:8]
                siblings = [(o.parts[0], self.session.report(o.parts[0], self.names).metadata) for o in near]
                told = next((step for p, _ in read if (step := layout.place(p, siblings)) is not None), None)
            self.steps[id(c)] = told
        return c.step if c.step is not None else self.steps[id(c)]

    def _compare_orders(self, candidates: Sequence[Checkpoint]) -> None:
        """Warn when mtime and step name different winners among complete checkpoints, or when a clock is wrong; not when the caller chose step."""
        if self.order == "step" or self.selection.resume_from == "tracker" or self.selection.prefer is not None:
            return
        whole_ones = [c for c in candidates if not completeness.missing(c, self.expected)] or list(candidates)
        by_mtime, by_step = rank(whole_ones, "mtime")[0], rank(whole_ones, "step")[0]
        if by_mtime.order != by_step.order:
            said = self.session.tracker(by_step.layout, by_step.parts[0].base)
            witness = "" if said is None or isinstance(said[1], Finding) else f"; the tracker says {said[1]}"
            text = f"newest by time is {completeness.label(by_mtime)}, by step {completeness.label(by_step)}{witness}"
            self.warnings.append(finding("mtime-disagrees-with-step", text, path=by_mtime.path))
        ahead = [c for c in candidates if c.mtime_ns > self.session.now_ns + _SKEW_NS]
        self.warnings += [finding("mtime-in-future", f"{completeness.label(c)} was modified after now", path=c.path) for c in ahead[:3]]

    # ---- the answer

    def _empty(self, choice: Choice) -> LoadPlan:
        found = getattr(self, "session", None)
        return LoadPlan(
            self.root, None, Resume(None), rejected=choice.rejected, attempts=choice.attempts,
            bytes_verified=found.bytes_read if found else 0, warnings=tuple(self.warnings), candidates=tuple(getattr(self, "ranked", ())),
        )  # fmt: skip

    def _failure(self, choice: Choice, ranked: Sequence[Checkpoint]) -> CkptError:
        plan = self._empty(choice)
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
        return NoneUsable(f"{_count(ranked)}, none is usable ({reasons})", plan=plan)

    def _finish(self, choice: Choice, c: Checkpoint) -> LoadPlan:
        s, a, reports = self.session, self.judge.assignments[id(c)], self.session.reports
        layout = BY_NAME[c.layout]
        ranks = tuple(RankLoad(r, files(a.loads[r], reports)) for r in sorted(a.loads))
        told = self._told(c, a, reports)
        shared = files(a.shared, reports)
        paths = {f.path for f in (*shared, *(f for r in ranks for f in r.files))}
        resume = layout.resume(told, paths.pop() if len(paths) == 1 else None)
        run = [o for o in self.checkpoints if o.layout == c.layout and o.run == c.run]
        lost = {o.path for o in run if completeness.missing(o, self.expected)} | {
            r.checkpoint.path for r in choice.rejected if r.checkpoint.parts[0].home
        }
        planned = [replace(f, path=f.path or p.path) for p in a.parts for f in reports[p.path].findings if f.severity is Severity.WARNING]
        below = [p for p in a.parts if reports[p.path].level < self.selection.level]
        rollback = choice.rollback
        if rollback:
            rollback = replace(
                rollback,
                why=f"the dying-gasp checkpoint at step {rollback.origin} is not usable: {rollback.why}; {rollback.origin - rollback.target} steps are lost",
            )
        warnings = [*self.warnings, *(f for f in a.findings), *planned, *tracker_findings(s, run, lost)]
        warnings += (
            [finding("below-level", f"{len(below)} files were looked at less deeply than --level {self.selection.level}", path=self.root)]
            if below
            else []
        )
        known = dict(self.topology.provenance)
        world: int | None = self.topology.world_size
        saved = self.saved
        if not ranks and known["world_size"].provenance == ALONE:  # a set that any number of ranks may load
            world = saved = None
            del known["world_size"]
        return LoadPlan(
            self.root, told, resume, ranks, shared, world, saved, known, rollback, choice.rejected,
            tuple(o for o in self.checkpoints if o is not c and o.order > c.order), choice.attempts, s.bytes_read,
            tuple(dict.fromkeys(warnings)), fingerprint(self.root, ranks, shared), tuple(self.ranked),
        )  # fmt: skip

    def _told(self, c: Checkpoint, a: Assignment, reports: Mapping[str, Report]) -> Checkpoint:
        """The checkpoint with the step and epoch that its planned files tell."""
        step, epoch = c.step if c.parts[0].step is not None else None, c.epoch
        layout = BY_NAME[c.layout]
        for p in a.parts[:8]:
            said = layout.steps(p, reports[p.path].metadata)
            step, epoch = (step if step is not None else said[0]), (epoch if epoch is not None else said[1])
        return replace(
            c, step=self._step(c) if step is None else step, epoch=epoch
        )  # its other files come last: they may be those that were replaced
