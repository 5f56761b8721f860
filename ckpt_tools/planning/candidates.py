"""Which checkpoints a question is about, best first."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from ckpt_tools.cache.verdicts import Cache
from ckpt_tools.crosscheck import trackers
from ckpt_tools.crosscheck import unfinished as under_way
from ckpt_tools.crosscheck.steps import step_in_contents
from ckpt_tools.crosscheck.unfinished import Sizes
from ckpt_tools.discovery import completeness
from ckpt_tools.discovery import group as grouping
from ckpt_tools.discovery.walk import absent
from ckpt_tools.errors import CannotLook, NoneUsable, UsageError
from ckpt_tools.findings import finding
from ckpt_tools.layouts import BY_NAME
from ckpt_tools.model.checkpoint import Checkpoint, CheckpointKey
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Choice, LoadPlan, Rejected, Resume
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning import choice_warnings, decision_log
from ckpt_tools.planning import other_writers as writers
from ckpt_tools.planning.choose import rank
from ckpt_tools.planning.judge import Judge
from ckpt_tools.planning.newest import Times
from ckpt_tools.planning.precedence import ask_where_unclear, in_order, ordered, passed_over
from ckpt_tools.planning.replicas import Groups
from ckpt_tools.planning.topology import expert_names, find_topology, saved_sizes
from ckpt_tools.reading.session import Progress, Session


def number(checkpoints: Sequence[Checkpoint]) -> str:
    return "1 checkpoint exists" if len(checkpoints) == 1 else f"{len(checkpoints)} checkpoints exist"


def belongs(c: Checkpoint, selection: Selection) -> bool:
    """Whether the filters by layout, run and prefix leave a checkpoint."""
    return (
        selection.layout in (None, c.layout)
        and (
            selection.run is None
            or selection.run.rstrip("/") in (c.run, c.parts[0].base, os.path.basename(c.run))
        )
        and (
            selection.prefix is None
            or named(c, selection.prefix)
            or any(os.path.basename(p.path).startswith(selection.prefix) for p in c.parts)
        )
    )


def named(c: Checkpoint, prefix: str) -> bool:
    """Whether a prefix is the whole of what keeps the checkpoint's run apart: ``bert`` is not ``bert_large``."""
    return prefix in (c.parts[0].prefix, f"{c.parts[0].prefix}_{c.parts[0].generation}")


class Candidates:
    """Those of one question; ``candidates()`` raises CkptError subclasses as docs/exit-codes.md lists them."""

    def __init__(
        self, root: str, selection: Selection, progress: Progress | None, cache: Cache | None = None
    ) -> None:
        self.root, self.selection, self.progress, self.cache = (
            os.path.abspath(root),
            selection,
            progress,
            cache,
        )
        self.warnings: list[Finding] = []
        self.steps: dict[CheckpointKey, int | None] = {}
        self.unfinished: list[
            Checkpoint
        ] = []  # saves that never finished, of the run that the question is about
        self.lost: list[Rejected] = []  # checkpoints that a tracker names and that are gone
        self.order = "mtime"
        self.times = Times.IN_STEP  # what the modification times look like, where the caller named no order
        self.names = min(Level.STRUCTURE, selection.level)  # at presence the names must do

    def candidates(self) -> list[Checkpoint]:
        """The finished checkpoints of the run, best first, with topology and judge ready; none where none exists and the question allows that."""
        selection = self.selection
        self.steps.clear()
        try:
            self.session = s = self._session()
        except CannotLook as error:
            if not absent(self.root):
                raise
            self._missing(error)
            return []
        self.warnings += (replace(f, severity=Severity.WARNING) for f in s.notes)
        everything = grouping.group(s.parts, selection.save_interval)
        finished = [c for c in everything if not c.unfinished]
        self.unfinished = [c for c in everything if c.unfinished and self._asked(c)]
        chosen = [c for c in finished if self._asked(c)]
        if not chosen:
            if not everything and s.found.alone:
                raise CannotLook(
                    f"{self.root} is a file that is no checkpoint ckpt knows",
                    "name the directory of the checkpoints",
                )
            self._first_launch(everything)
            return []
        self.checkpoints = self._one_run(chosen)
        self.lost = [
            r for r in trackers.lost(s, self.checkpoints, self.unfinished) if self._counts(r.checkpoint)
        ]
        self.unfinished = [c for c in self.unfinished if trackers.declared(s, c) is None]
        names = {c.run for c in self.checkpoints}
        gasps = {c.run for c in self.unfinished if c.kind is Kind.DYING_GASP} - names
        names |= gasps if len(names) == len(gasps) == 1 else set()  # as in _one_run()
        self.unfinished = [c for c in self.unfinished if c.run in names]
        if (
            len({c.layout for c in self.checkpoints}) > 1
        ):  # names of two layouts count steps differently: let the contents say
            self.checkpoints = [replace(c, step=self.step(c)) for c in self.checkpoints]
        self.checkpoints = expert_names(s, self.checkpoints, self.names)
        candidates = [c for c in self.checkpoints if self._wanted(c)]
        if not candidates:
            raise NoneUsable(
                f"{number(self.checkpoints)}, but --kind or --max-step hides them all",
                "relax the filters",
                plan=self.nothing(),
            )
        self.expected = completeness.expected(
            self.checkpoints, selection.world_size, lambda c: saved_sizes(s, c, self.names)
        )
        self.ranked = ranked = self._ranked(candidates)
        self.topology, self.saved, notes = find_topology(s, ranked, self.expected, selection)
        self.warnings += notes
        self.judge = Judge(
            s, self.checkpoints, self.topology, self.saved, selection, self.expected, candidates
        )
        self.judge.begun = self.unfinished
        return ranked

    def _ranked(self, candidates: Sequence[Checkpoint]) -> list[Checkpoint]:
        """Best first, in the order that the caller named, else in the one that tells the newest."""
        selection, s = self.selection, self.session
        if selection.resume_from == "tracker":
            return self._from_tracker(rank(candidates, self.order, selection.prefer))
        named, saves = selection.resume_from or selection.order, in_order(candidates, selection.prefer)
        if named is None:
            ask_where_unclear(candidates, saves)
        self.times = choice_warnings.times_of(saves, s.now_ns) if named is None else Times.IN_STEP
        self.order = named or ("step" if self.times.mute else "mtime")
        self.warnings += (*choice_warnings.mute(self.times, candidates), *passed_over(candidates, saves))
        if self.order == "mtime":
            self.warnings += choice_warnings.clocks(s, candidates)
            by_mtime, by_step = choice_warnings.heads(saves, self.expected, selection.prefer)
            self.warnings += (
                [choice_warnings.disagreement(s, by_mtime, by_step)]
                if by_mtime.order != by_step.order
                else []
            )
        return ordered(candidates, self.order, selection.prefer)

    def _counts(self, c: Checkpoint) -> bool:
        """Whether a checkpoint of which only the tracker tells is one that the question is about."""
        limit = self.selection.max_step
        return self.selection.kind in (None, c.kind) and not (
            limit is not None and (c.step is None or c.step > limit)
        )

    def newest_of(self, by_mtime: Checkpoint, by_step: Checkpoint) -> str:
        """The order that tells which of two is the newest. Raises UsageError when only the caller can say."""
        before = decision_log.last(
            decision_log.place(self.selection.plan_dir, self.root), self.selection.trust
        )
        log = decision_log.sides_with(before, by_mtime, by_step, self.step(by_mtime))
        said = choice_warnings.witnesses(self.session, self.times, by_mtime, by_step, log)
        if said.verdict is None:
            raise choice_warnings.question(self.times, said, by_mtime, by_step)
        return said.verdict

    def settled(self) -> None:
        """For those who judge in one order only. Raises UsageError where it is in doubt which checkpoint is the newest."""
        if self.times is Times.IN_STEP or self.times.mute:
            return
        by_mtime, by_step = choice_warnings.heads(
            in_order(self.ranked, self.selection.prefer), self.expected, self.selection.prefer
        )
        if by_mtime.order != by_step.order:
            self.order = self.newest_of(by_mtime, by_step)

    def _session(self) -> Session:
        """What is below the root. Raises CannotLook."""
        selection = self.selection
        return Session(
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
            exclude=selection.exclude,
            trust_global=selection.trust_global,
            trust=selection.trust,
        )

    def _missing(self, error: CannotLook) -> None:
        """A root that is not there: a misspelt one looks like a first launch. Raises CannotLook unless the caller has said that it may be one."""
        if self.selection.allow_none and self.selection.allow_missing:
            self.warnings.append(
                finding(
                    "missing-root",
                    "it does not exist: this is taken for a first launch (--allow-missing)",
                    path=self.root,
                )
            )
            return
        from shlex import quote  # only after a mistake: it costs start-up time

        alone = (
            "; --allow-missing counts only together with --allow-none" if self.selection.allow_missing else ""
        )
        hint = f"check its spelling and that its file system is mounted; before a first launch create it once by hand: mkdir {quote(self.root)}"
        raise CannotLook(str(error), hint + alone) from error

    def _from_tracker(self, ranked: Sequence[Checkpoint]) -> list[Checkpoint]:
        """The checkpoint that the tracker names and, behind it, those of earlier steps. Raises UsageError when it names none."""
        first = next(
            (c for c in ranked if BY_NAME[c.layout].tracker), ranked[0]
        )  # a dying gasp may lie beside the run, and have none
        layout, base = BY_NAME[first.layout], first.parts[0].base
        said = self.session.tracker(layout.name, base)
        if said is None:
            what = (
                f"there is no {layout.tracker} in {base}"
                if layout.tracker and layout.always_tracked
                else f"the layout {layout.name} has no tracker"
            )
            raise UsageError(what, "say --resume-from mtime or --resume-from step")
        if isinstance(said[1], Finding) and said[1].code == "unreadable":
            raise CannotLook(
                f"{said[0]}: {said[1].message}",
                "make it readable, or say --resume-from mtime or --resume-from step",
            )
        if isinstance(said[1], Finding) or said[1] is None:
            raise UsageError(
                f"{said[0]} is empty, or not what its framework writes",
                "say --resume-from mtime or --resume-from step",
            )
        named = [c for c in ranked if layout.tracked(c) == said[1]]
        if not named:
            hidden = any(layout.tracked(c) == said[1] for c in self.checkpoints if c.layout == layout.name)
            where = "which --kind or --max-step hides" if hidden else "which is not there"
            raise UsageError(
                f"{said[0]} names {said[1]}, {where}", "say --resume-from mtime or --resume-from step"
            )
        older = [
            c
            for c in rank(ranked, "step", self.selection.prefer)
            if c not in named and c.order <= named[0].order
        ]
        return [*named, *older]

    def _first_launch(self, everything: Sequence[Checkpoint]) -> None:
        """Nothing that was asked for was ever finished. Raises CkptError unless the question allows that and nothing speaks against it."""
        from ckpt_tools.planning import first_launch  # most questions are about a run that is there

        error, reasons = first_launch.first_launch(self.session, self.selection, everything, self.unfinished)
        self.warnings += reasons
        if error is not None:
            error.plan = self.nothing()
            raise error

    def _one_run(self, chosen: list[Checkpoint]) -> list[Checkpoint]:
        """Those that were asked for. A lone run of dying gasps (MindIO TTP) belongs to the lone periodic run beside it. Raises UsageError for several runs."""
        if (prefix := self.selection.prefix) is not None:
            chosen = [c for c in chosen if named(c, prefix)] or chosen
        runs = self.session.runs(chosen)
        last_words = [r for r, members in runs.items() if all(c.kind is Kind.DYING_GASP for c in members)]
        if len(runs) > 1 and not (len(runs) == 2 and len(last_words) == 1):
            raise UsageError(
                f"{self.root} holds {completeness.listed(runs)}", "say which with --run, --prefix or --layout"
            )
        return chosen

    def _asked(self, c: Checkpoint) -> bool:
        """Whether the filters by layout, run and prefix leave a checkpoint, and of unfinished saves those by kind and step, which their names must tell."""
        selection, limit = self.selection, self.selection.max_step
        return belongs(c, selection) and not (
            c.unfinished
            and (
                selection.kind not in (None, c.kind)
                or (limit is not None and (c.step is None or c.step > limit))
            )
        )

    def _wanted(self, c: Checkpoint) -> bool:
        limit = self.selection.max_step
        if self.selection.kind is not None and c.kind is not self.selection.kind:
            return False
        return limit is None or ((step := self.step(c)) is not None and step <= limit)

    def step(self, c: Checkpoint) -> int | None:
        """The checkpoint's global step: from its name, else what most of its files tell."""
        if c.step is not None:
            return c.step
        if c.key not in self.steps:
            self.steps[c.key] = step_in_contents(self.session, c, self.checkpoints, self.names)
        return self.steps[c.key]

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

    def other_writers(self, chosen: Checkpoint | None = None) -> Iterator[Finding]:
        """What somebody else wrote in the run while this question was answered."""
        if session := getattr(self, "session", None):
            run = [*getattr(self, "checkpoints", ()), *self.unfinished]
            look = writers.Inspection(self.root, session.started_ns, time.time_ns(), session.found.unfinished)
            yield from writers.other_writers(run, look, chosen)

    def under_way(self, c: Checkpoint) -> str:
        """How far a save is that may still be written."""
        return under_way.state(self.session, c, self._usual)

    @cached_property
    def _usual(self) -> Sizes:
        return under_way.sizes(getattr(self, "checkpoints", ()))

    def empty(self, choice: Choice) -> LoadPlan:
        found = getattr(self, "session", None)
        saves = choice_warnings.unfinished(self.unfinished, None, self.order, self.root, self.under_way)
        torn = under_way.torn_lately(found, choice.rejected, self._usual) if found and choice.rejected else ()
        warnings = (*self.warnings, *saves, *torn, *self.other_writers())
        return LoadPlan(
            self.root, None, Resume(None), rejected=choice.rejected, attempts=choice.attempts,
            bytes_verified=found.reader.bytes_verified if found else 0, warnings=warnings, candidates=tuple(getattr(self, "ranked", ())),
            budget=self.selection.budget, excluded=len(found.found.hidden.paths) if found else 0,
        )  # fmt: skip
