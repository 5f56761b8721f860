"""Which checkpoints a question is about, best first."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from ckpt_tools import completeness
from ckpt_tools import group as grouping
from ckpt_tools.cache import Cache
from ckpt_tools.choose import rank
from ckpt_tools.errors import CannotLook, NoCheckpoint, NoneUsable, UsageError
from ckpt_tools.layouts import BY_NAME
from ckpt_tools.model import Checkpoint, Choice, Finding, Kind, Level, LoadPlan, Part, Resume
from ckpt_tools.pipeline import doubts
from ckpt_tools.pipeline.judge import Judge
from ckpt_tools.pipeline.session import Progress, Session
from ckpt_tools.pipeline.topology import expert_names, find_topology
from ckpt_tools.question import Selection
from ckpt_tools.replicas import Groups

_NAMED = 16
"""Runs that an error names at most."""


def number(checkpoints: Sequence[Checkpoint]) -> str:
    return "1 checkpoint exists" if len(checkpoints) == 1 else f"{len(checkpoints)} checkpoints exist"


class Candidates:
    """Those of one question; ``candidates()`` raises CkptError subclasses as docs/exit-codes.md lists them."""

    def __init__(self, root: str, selection: Selection, progress: Progress | None, cache: Cache | None = None) -> None:
        self.root, self.selection, self.progress, self.cache = os.path.abspath(root), selection, progress, cache
        self.warnings: list[Finding] = []
        self.steps: dict[int, int | None] = {}
        self.unfinished: list[Checkpoint] = []  # saves that never finished, of the run that the question is about
        self.order = "mtime"
        self.names = min(Level.STRUCTURE, selection.level)  # at presence the names must do

    def candidates(self) -> list[Checkpoint]:
        """The finished checkpoints of the run, best first, with topology and judge ready; none where none exists and the question allows that."""
        selection = self.selection
        try:
            self.session = s = Session(
                self.root,
                jobs=selection.jobs,
                require=selection.require,
                settle=selection.settle,
                progress=self.progress,
                key_file=selection.key_file,
                cache=self.cache,
                budget=selection.budget,
                io=selection.io,
                limit_rate=selection.limit_rate,
            )
        except CannotLook:
            if selection.allow_none and not os.path.lexists(self.root) and os.path.isdir(os.path.dirname(self.root)):
                return []
            raise
        everything = grouping.group(s.parts, selection.fault_ranks, selection.save_interval)
        finished = [c for c in everything if not c.unfinished]
        self.unfinished = [c for c in everything if c.unfinished and self._asked(c)]
        if not finished:
            if selection.allow_none:
                return []
            raise NoCheckpoint(self._nothing(everything), plan=self.nothing())
        self.checkpoints = self._one_run(finished)
        names = {c.run for c in self.checkpoints}
        gasps = {c.run for c in self.unfinished if c.kind is Kind.DYING_GASP} - names
        names |= gasps if len(names) == len(gasps) == 1 else set()  # as in _one_run()
        self.unfinished = [c for c in self.unfinished if c.run in names]
        if len({c.layout for c in self.checkpoints}) > 1:  # names of two layouts count steps differently: let the contents say
            self.checkpoints = [replace(c, step=self.step(c)) for c in self.checkpoints]
        self.checkpoints = expert_names(s, self.checkpoints, self.names)
        candidates = [c for c in self.checkpoints if self._wanted(c)]
        if not candidates:
            raise NoneUsable(
                f"{number(self.checkpoints)}, but --kind or --max-step hides them all",
                "relax the filters",
                plan=self.nothing(),
            )
        self.order = selection.resume_from if selection.resume_from in ("mtime", "step") else selection.order
        ranked = rank(candidates, self.order, selection.prefer)
        if selection.resume_from == "tracker":
            ranked = self._from_tracker(ranked)
        self.ranked = ranked
        self.expected = completeness.expected(self.checkpoints, selection.world_size)
        self.topology, self.saved, notes = find_topology(s, ranked, self.expected, selection)
        self.warnings += notes
        if self.order == "mtime" and selection.resume_from != "tracker" and selection.prefer is None:  # else the caller chose another order
            self.warnings += doubts.orders(s, candidates, self.expected, witness=selection.witness)
        self.judge = Judge(s, self.checkpoints, self.topology, self.saved, selection, self.expected)
        return ranked

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
        chosen = [c for c in finished if self._asked(c)]
        if not chosen:
            raise NoneUsable(
                f"{number(finished)}, but none in the run that was asked for",
                "'ckpt ls' names the runs",
                plan=self.nothing(),
            )
        runs = self.session.runs(chosen)
        last_words = [r for r, members in runs.items() if all(c.kind is Kind.DYING_GASP for c in members)]
        if len(runs) > 1 and not (len(runs) == 2 and len(last_words) == 1):
            names = sorted(f"{run} ({layout})" for layout, run in runs)
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            raise UsageError(f"{self.root} holds several runs: {', '.join(names[:_NAMED])}{more}", "say which with --run, --prefix or --layout")
        return chosen

    def _asked(self, c: Checkpoint) -> bool:
        """Whether the filters by layout, run and prefix leave a checkpoint, and of unfinished saves those by kind and step, which their names must tell."""
        selection, limit = self.selection, self.selection.max_step
        return (
            selection.layout in (None, c.layout)
            and (selection.run is None or selection.run.rstrip("/") in (c.run, c.parts[0].base, os.path.basename(c.run)))
            and (selection.prefix is None or c.parts[0].prefix == selection.prefix)
            and not (c.unfinished and (selection.kind not in (None, c.kind) or (limit is not None and (c.step is None or c.step > limit))))
        )

    def _wanted(self, c: Checkpoint) -> bool:
        limit = self.selection.max_step
        if self.selection.kind is not None and c.kind is not self.selection.kind:
            return False
        return limit is None or ((step := self.step(c)) is not None and step <= limit)

    def step(self, c: Checkpoint) -> int | None:
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

    def alike(self, rank: int) -> Sequence[int]:
        """The other ranks that hold the same model state as ``rank``, as far as that is known."""
        c = self.ranked[0]
        told = Groups(self.topology, self.selection).of(rank, BY_NAME[c.layout].piece(c.parts[0].piece))
        return [r for r in told[0] if r != rank] if told else []

    def ranks_of(self, part: Part) -> Sequence[int]:
        """The ranks that load a part: the one in its name, or those at its coordinates."""
        if part.rank is not None or not part.coords:
            return [] if part.rank is None else [part.rank]
        at = [(r, self.topology.coordinates(r)) for r in range(self.topology.world_size)]
        return [r for r, where in at if all(where.get(a) == n for a, n in part.coords)]

    def nothing(self) -> LoadPlan:
        """The plan without a checkpoint."""
        return self.empty(Choice(None))

    def empty(self, choice: Choice) -> LoadPlan:
        found = getattr(self, "session", None)
        warnings = (*self.warnings, *doubts.unfinished(self.unfinished, None, self.order, self.root))
        return LoadPlan(
            self.root, None, Resume(None), rejected=choice.rejected, attempts=choice.attempts,
            bytes_verified=found.reader.bytes_verified if found else 0, warnings=warnings, candidates=tuple(getattr(self, "ranked", ())),
            budget=self.selection.budget,
        )  # fmt: skip
