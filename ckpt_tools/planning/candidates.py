"""Which checkpoints a question is about, best first."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from shlex import quote

from ckpt_tools.cache.verdicts import Cache
from ckpt_tools.crosscheck import trackers
from ckpt_tools.crosscheck import unfinished as under_way
from ckpt_tools.crosscheck.lost import emptied
from ckpt_tools.crosscheck.pages import equal, same_tensors
from ckpt_tools.crosscheck.steps import step_in_contents
from ckpt_tools.crosscheck.unfinished import Sizes, marked
from ckpt_tools.discovery import completeness
from ckpt_tools.discovery import group as grouping
from ckpt_tools.discovery.roots import absent
from ckpt_tools.discovery.set_aside import as_warning
from ckpt_tools.discovery.sidecars import unfetched
from ckpt_tools.errors import CannotLook, NoneUsable, UsageError
from ckpt_tools.findings import finding
from ckpt_tools.layouts import layouts_of
from ckpt_tools.model.checkpoint import Checkpoint, CheckpointKey, apart
from ckpt_tools.model.finding import Finding, Verdict
from ckpt_tools.model.frozen import replace
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Choice, LoadPlan, Rejected, Resume
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning import choice_warnings, filters, restarts
from ckpt_tools.planning import other_writers as writers
from ckpt_tools.planning.choose import rank
from ckpt_tools.planning.common_steps import newest_untold, untold, with_common_steps, with_steps_in_epochs
from ckpt_tools.planning.judge import Judge
from ckpt_tools.planning.newest import Times
from ckpt_tools.planning.precedence import Files, Signature, ask_where_unclear, in_order, ordered, passed_over
from ckpt_tools.planning.replicas import Groups
from ckpt_tools.planning.run import Run
from ckpt_tools.planning.topology import expert_names, find_topology, saved_sizes, without_leftovers
from ckpt_tools.reading.opening import open_session
from ckpt_tools.reading.session import Progress, Session
from ckpt_tools.storage.retry import there
from ckpt_tools.storage.urls import absolute, is_url


def number(checkpoints: Sequence[Checkpoint]) -> str:
    return "1 checkpoint exists" if len(checkpoints) == 1 else f"{len(checkpoints)} checkpoints exist"


def _how_to_create(root: str, hint: str) -> str:
    if is_url(root):
        return (
            "check its spelling; before a first launch create it once by hand: upload an empty object called"
            f" {root}/.keep"
        )
    made = "mkdir" if there(os.path.dirname(absolute(root))) else "mkdir -p"
    by_hand = f"before a first launch create it once by hand: {made} {quote(root)}"
    return f"{hint} Or {by_hand}" if hint.endswith("?") else f"{hint}; {by_hand}"


def _failed(error: CannotLook) -> bool:
    """Whether nothing has answered, rather than that there is nothing or that it may not be told: a store
    would be waited for twice.
    """
    cause = error.__cause__
    return isinstance(cause, OSError) and not isinstance(
        cause, (FileNotFoundError, NotADirectoryError, PermissionError)
    )


_MAY_BE_RUNS = ("fold", "seed", "run", "exp", "trial")


class Candidates:
    """The candidates of one question, best first, and what is known of their run.

    ``candidates()`` raises CkptError subclasses as docs/exit-codes.md lists them. Attributes that it fills
    in: ``session`` (what is below the root), ``checkpoints`` (the finished ones of the run), ``exports``
    (what nobody trains on, left out beside them), ``unfinished`` (its saves that never finished), ``lost``
    (what a tracker names and is gone), ``expected`` (what each should have), ``ranked``, ``topology``,
    ``saved`` (the world size that wrote the files) and ``judge``.
    """

    session: Session
    checkpoints: list[Checkpoint]

    def __init__(
        self, root: str, selection: Selection, progress: Progress | None, cache: Cache | None = None
    ) -> None:
        self.root = absolute(root)
        self.selection = selection
        self.layouts = layouts_of(selection)
        self.progress = progress
        self.cache = cache
        self.warnings: list[Finding] = []
        self.steps: dict[CheckpointKey, int | None] = {}
        self.arranged = frozenset[str]()  # the layouts that have files below the root
        self.unfinished: list[Checkpoint] = []
        self.exports: list[Checkpoint] = []
        self.lost: list[Rejected] = []
        self.ranked: list[Checkpoint] = []
        self.order = "mtime"
        self.times = Times.IN_STEP  # what the modification times look like, where the caller named no order
        self.names = min(Level.STRUCTURE, selection.level)  # at presence the names must do

    def candidates(self) -> list[Checkpoint]:
        """The finished checkpoints of the run, best first; none where there may be none and none exists."""
        self.steps.clear()
        try:
            self.session = self._session()
        except CannotLook as error:
            if _failed(error) or not absent(self.root):
                raise
            self._require_leave_for_no_root(error)
            return []
        self.warnings += map(as_warning, self.session.notes)
        self.warnings += unfetched(bare.path for bare in self.session.found.bare)
        everything = self._without_exports(
            grouping.group(self.session.parts, self.session.layouts, self.selection.save_interval)
        )
        self.arranged = frozenset(c.layout for c in everything)
        requested = [c for c in everything if filters.requested(c, self.selection)]
        self.unfinished = [c for c in requested if c.unfinished]
        finished = [c for c in requested if not c.unfinished]
        if not finished:
            self._require_first_launch(everything)
            return []
        self.checkpoints = self._of_one_run(finished)
        self.warnings += self._told_apart(everything)
        self.lost = self._gone()
        self.unfinished = self._unfinished_of_the_run()
        self._settle_steps_and_places()
        self._prepare_judge(self._not_hidden())
        return self.ranked

    def _without_exports(self, everything: list[Checkpoint]) -> list[Checkpoint]:
        """Without those of layouts that hold exports alone, where anything else was asked for."""
        saves = [c for c in everything if not self.layouts.of(c).of_exports]
        asked = any(filters.requested(c, self.selection) for c in saves)
        if not asked or self.selection.kind is Kind.RELEASE:
            return everything
        self.exports = [c for c in everything if self.layouts.of(c).of_exports]
        return saves

    def _gone(self) -> list[Rejected]:
        """What trackers name, and saves of which only a directory is left."""
        named = trackers.lost(self.session, self.checkpoints, self.unfinished)
        lost = (*named, *emptied(self.session, self.checkpoints))
        return [r for r in lost if filters.allows(self.selection, r.checkpoint)]

    def _unfinished_of_the_run(self) -> list[Checkpoint]:
        """Without those that a tracker calls finished; with a lone run of dying gasps beside the lone
        periodic one (as in ``_of_one_run``), and where only the mark in a name makes it a run of its own.
        """
        saves = [c for c in self.unfinished if trackers.declared(self.session, c) is None]
        runs = {c.run for c in self.checkpoints}
        gasps = {c.run for c in saves if c.kind is Kind.DYING_GASP} - runs
        if len(runs) == len(gasps) == 1:
            runs |= gasps
        beside = {os.path.dirname(c.parts[0].home) for c in self.checkpoints}
        return [
            c for c in saves if c.run in runs or (marked(c) and os.path.dirname(c.parts[0].home) in beside)
        ]

    def _settle_steps_and_places(self) -> None:
        """Steps where names count them differently, and coordinates, as the contents tell them."""
        both = with_steps_in_epochs([*self.checkpoints, *self.unfinished], self.layouts, self._doubtful)
        finished = len(self.checkpoints)
        self.checkpoints, self.unfinished = both[:finished], both[finished:]
        if len({c.layout for c in self.checkpoints}) > 1:
            self.checkpoints = [replace(c, step=self.step(c)) for c in self.checkpoints]
        elif not any(self.layouts.of(c).last_resort for c in self.checkpoints):  # those are placed already
            self.checkpoints = with_common_steps(self.session, self.checkpoints, self.step, self.names)
        if (self.selection.resume_from or self.selection.order) == "step":
            self.checkpoints = restarts.with_told_steps(self.session, self.checkpoints, self.names)
        placed = expert_names(self.session, self.checkpoints, self.names)
        self.checkpoints = without_leftovers(self.session, placed, self.names)

    def _doubtful(self, one: Checkpoint, other: Checkpoint) -> None:
        """Raises UsageError unless the caller has said what tells the newest."""
        selection = self.selection
        if (selection.resume_from or selection.order or selection.prefer) is None:
            raise newest_untold(self.root, one, other, mute=True)

    def _not_hidden(self) -> list[Checkpoint]:
        """The checkpoints that --kind and --max-step leave. Raises NoneUsable where they leave none."""
        left = [c for c in self.checkpoints if filters.allows(self.selection, c, self.step)]
        if not left:
            text = f"{number(self.checkpoints)}, but --kind or --max-step hides them all"
            raise NoneUsable(text, "relax the filters", plan=self.nothing(), rule="tree/filters-hide-all")
        if self.selection.max_step is not None:
            kept = {c.key for c in left}
            from ckpt_tools.planning import hidden_steps  # few runs are cut off at a step

            hidden = [
                replace(c, step=self.step(c))
                for c in self.checkpoints
                if c.key not in kept and self.selection.kind in (None, c.kind)
            ]
            self.warnings += hidden_steps.of_no_step([c for c in hidden if c.step is None], left)
            above = [c for c in hidden if c.step is not None]
            self.warnings += hidden_steps.told_inside(self.session, above, left, self.selection.level)
        return left

    def _prepare_judge(self, candidates: list[Checkpoint]) -> None:
        """Rank the candidates, and make ready what judges them."""
        s, selection = self.session, self.selection
        self.expected = completeness.expected(
            self.checkpoints, s.layouts, selection.world_size, lambda c: saved_sizes(s, c, self.names)
        )
        self.ranked = self._best_first(candidates)
        self.topology, self.saved, notes = find_topology(s, self.ranked, self.expected, selection)
        self.warnings += notes
        run = Run(
            checkpoints=self.checkpoints,
            candidates=candidates,
            unfinished=self.unfinished,
            expected=self.expected,
            topology=self.topology,
            saved=self.saved,
        )
        self.judge = Judge(s, selection, run)

    def _best_first(self, candidates: Sequence[Checkpoint]) -> list[Checkpoint]:
        """In the order that the caller named, else in the one that tells the newest."""
        selection = self.selection
        if selection.resume_from == "tracker":
            from ckpt_tools.planning.tracker_order import from_tracker

            ranked = rank(candidates, self.order, selection.prefer)
            return from_tracker(self.session, ranked, self.checkpoints, selection.prefer)
        requested = selection.resume_from or selection.order
        saves, known = in_order(candidates, self.layouts, selection.prefer), set[CheckpointKey]()
        if requested is None:
            known = ask_where_unclear(candidates, saves, self.layouts, self._contents)
            self.times = choice_warnings.times_of(saves, self.session.now_ns, self.layouts)
            self.warnings += restarts.warn_where_behind(self.session, saves, self.names, mute=self.times.mute)
        else:
            self.times = Times.IN_STEP
        self.order = requested or ("step" if self.times.mute else "mtime")
        self.warnings += choice_warnings.unlike_times(self.times, candidates, self.layouts)
        unlike = [c for c in candidates if c.key not in known]
        self.warnings += passed_over(unlike, saves, self.layouts)
        if self.order == "mtime":
            self.warnings += choice_warnings.clocks(self.session, candidates)
            by_mtime, by_step = choice_warnings.heads(saves, self.expected, selection.prefer)
            if apart(by_mtime.order, by_step.order) and by_mtime.unit == by_step.unit:
                self.warnings.append(choice_warnings.disagreement(self.session, by_mtime, by_step))
        return ordered(candidates, self.layouts, self.order, selection.prefer)

    def _same(self, c: Checkpoint, other: Checkpoint) -> bool:
        """Whether both are files of the same bytes or at least the same tensors: one each, or side by side
        one for each role.
        """
        if len(c.parts) > 1 and (c.parts[0].home or other.parts[0].home):
            return False
        theirs = {p.role: p for p in other.parts}
        pairs = [(p, theirs[p.role]) for p in c.parts if p.role in theirs]
        if not 0 < len({p.role for p in c.parts}) == len(pairs) == len(other.parts) == len(theirs):
            return False
        return all(equal(*pair, self.session) or same_tensors(*pair, self.session) for pair in pairs)

    @property
    def _contents(self) -> Files:
        return Files(self.root, self._same, self._signature, self._are_sound)

    def _are_sound(self, c: Checkpoint) -> bool:
        """Whether nothing is known to be wrong with its files by themselves."""
        reports = (self.session.report(p, self.selection.level) for p in c.parts)
        return all(report.verdict is not Verdict.BROKEN for report in reports)

    def _signature(self, c: Checkpoint) -> Signature:
        """The names and shapes of its tensors; of those that lie elsewhere, the names in the list of them."""
        read = [self.session.inspect(p.path, Level.STRUCTURE)[1] for p in c.parts]
        tensors = frozenset((t.name, t.shape) for anatomy in read for t in anatomy.tensors)
        return tensors or frozenset((key, ()) for anatomy in read for key in anatomy.keys)

    def newest_of(self, by_mtime: Checkpoint, by_step: Checkpoint) -> str:
        """The order that tells which of two is the newest. Raises UsageError when only the caller can say."""
        from ckpt_tools.planning import decision_log

        log = decision_log.sides_with(
            decision_log.last(decision_log.place_of(self.root, self.selection), self.selection.trust),
            by_mtime,
            by_step,
            self.step(by_mtime),
        )
        witnesses = choice_warnings.witnesses(self.session, self.times, by_mtime, by_step, log)
        if witnesses.verdict is None:
            raise choice_warnings.newest_in_doubt(self.times, witnesses, by_mtime, by_step)
        return witnesses.verdict

    def settled(self) -> None:
        """For those who judge in one order only.

        Raises UsageError where it is in doubt which checkpoint is the newest.
        """
        if self.times is Times.IN_STEP or self.times.mute:
            complete = [c for c in self.ranked if not completeness.missing(c, self.expected)]
            if complete and (other := next(iter(self.untold(complete[0], complete)), None)):
                raise newest_untold(self.root, complete[0], other, mute=self.times.mute)
            return
        by_mtime, by_step = choice_warnings.heads(
            in_order(self.ranked, self.layouts, self.selection.prefer), self.expected, self.selection.prefer
        )
        if apart(by_mtime.order, by_step.order):
            self.order = self.newest_of(by_mtime, by_step)

    def untold(self, chosen: Checkpoint, candidates: Sequence[Checkpoint]) -> Iterator[Checkpoint]:
        """Candidates that may be later than the one chosen, where the caller has not said what tells."""
        selection = self.selection
        if (selection.resume_from or selection.order or selection.prefer) is None:
            saves = in_order(candidates, self.layouts)
            if others := list(untold(chosen, saves, mute=self.times.mute)):
                from ckpt_tools.planning.choice_links import are_one_file  # rare

                yield from (c for c in others if not are_one_file(c, chosen))

    def _session(self) -> Session:
        """What is below the root. Raises CannotLook."""
        options = self.selection.read_options(self.progress)
        return open_session(self.root, options, cache=self.cache)

    def _require_leave_for_no_root(self, error: CannotLook) -> None:
        """A root that is not there: a misspelt one looks like a first launch.

        Raises CannotLook unless the caller has said that it may be one.
        """
        if self.selection.allow_none and self.selection.allow_missing:
            text = "it does not exist: this is taken for a first launch (--allow-missing)"
            self.warnings.append(finding("missing-root", text, path=self.root))
            return
        hint = _how_to_create(self.root, error.hint)
        if self.selection.allow_missing:
            hint += "; --allow-missing counts only together with --allow-none"
        raise CannotLook(str(error), hint) from error

    def _require_first_launch(self, everything: Sequence[Checkpoint]) -> None:
        """Nothing that was asked for was ever finished.

        Raises CkptError unless the question allows that and nothing speaks against it.
        """
        if not everything and self.session.found.alone:
            from ckpt_tools.discovery.renamed_names import is_packed  # rare, too

            text = f"{self.root} is a file, and not a checkpoint that ckpt knows"
            unpack = "unpack it, and " if is_packed(os.path.basename(self.root)) else ""
            raise CannotLook(text, f"{unpack}name the directory of the checkpoints")
        from ckpt_tools.planning import first_launch  # most questions are about a run that is there

        error, reasons = first_launch.first_launch(self.session, self.selection, everything, self.unfinished)
        self.warnings += reasons
        if error is not None:
            error.plan = self.nothing()
            raise error

    def _of_one_run(self, finished: list[Checkpoint]) -> list[Checkpoint]:
        """Those that were asked for. Raises UsageError for several runs."""
        if (prefix := self.selection.prefix) is not None:
            finished = [c for c in finished if filters.is_whole_prefix(c, prefix)] or finished
        runs = self.session.runs(finished)
        self._require_more_than_shares(runs)
        if len(runs) < 2:
            called = {self._called(c).rstrip("-_0123456789") for c in finished}
            if len(called) > 1 or called.pop().endswith(_MAY_BE_RUNS):
                from ckpt_tools.planning import names_of_runs  # most count alike, and no runs

                names_of_runs.require_one(self.root, self.session, finished)
            return finished
        from ckpt_tools.planning import own_runs  # most roots hold one run
        from ckpt_tools.planning.choice_links import runs_of_links

        last = own_runs.finals(runs) | own_runs.exports_beside(runs, self.layouts)
        aside = {
            *own_runs.shares(runs, self.layouts),
            *own_runs.no_saves(runs),
            *own_runs.kept_longer(runs),
            *(() if is_url(self.root) else runs_of_links(runs)),
            *last,
        }
        self.warnings += last.values()
        finished = [c for c in finished if (c.layout, c.run) not in aside]
        runs = {run: members for run, members in runs.items() if run not in aside}
        own = own_runs.own_runs(runs, self.layouts)
        if own_runs.several(own):
            raise UsageError(
                f"{self.root} holds {completeness.listed(own)}",
                self._which_run(own),
                rule="tree/several-runs",
            )
        kept = own_runs.of_own(own, finished)
        self.warnings += own_runs.passed_over(finished, kept)
        return kept

    def _called(self, c: Checkpoint) -> str:
        """The name of a checkpoint's directory, or of its file where that may have any; else ""."""
        p = c.parts[0]
        named = not p.home and self.layouts.piece_of(p).of_any_name and not self.layouts.of(c).last_resort
        return p.name.partition(".")[0] if named else p.home

    def _require_more_than_shares(self, runs: Iterable[tuple[str, str]]) -> None:
        """Raises NoneUsable where nothing is left but what replicas keep for themselves beside the saves."""
        named = ((self.layouts[layout].shares, os.path.basename(run)) for layout, run in runs)
        if self.selection.run is None and all(own and own.fullmatch(name) for own, name in named):
            text = f"{self.root} holds {completeness.listed(runs)}: only what replicas keep for themselves"
            hint = "bring back the saves of all of them, which lay beside it"
            raise NoneUsable(text, hint, plan=self.nothing())

    def _told_apart(self, everything: Sequence[Checkpoint]) -> Iterator[Finding]:
        """What was asked for, where it reads like one part of a state. Raises UsageError."""
        if (self.selection.run, self.selection.prefix) != (None, None):
            from ckpt_tools.planning.one_part import one_part  # only where a run was named

            if part := one_part(self.checkpoints, everything, self.layouts, self._own_layout):
                yield part

    def _which_run(self, runs: Mapping[tuple[str, str], Sequence[Checkpoint]]) -> str:
        """What to say where one of several runs must be named, unless they are none."""
        if not all(self.layouts[layout].last_resort for layout, _ in runs):
            return f"{filters.naming_one(runs)}{_later(runs)}"
        from ckpt_tools.layouts.common.named_parts import are_parts  # only where there are several

        if are_parts(run for _, run in runs):
            return f"they read like parts of one state, none of which is one alone: {self._own_layout()}"
        return f"{filters.naming_one(runs)}; if they are one run, {self._own_layout()}"

    def _own_layout(self) -> str:
        """How to describe files that no layout places."""
        from ckpt_tools.reading.unplaced import how_to_describe  # only where nothing else can be said

        return how_to_describe(self.session)

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
        piece = self.layouts.of(c).piece(c.parts[0].piece)
        group = Groups(self.topology, self.selection).of(rank, piece)
        return [r for r in group.ranks if r != rank] if group else []

    def ranks_of(self, part: Part) -> Sequence[int]:
        """The ranks that load a part: the one in its name, or those at its coordinates."""
        if part.rank is not None:
            return [part.rank]
        if not part.coords:
            return []
        place, ranks = set(part.coords), range(self.topology.world_size)
        return [r for r in ranks if place <= self.topology.coordinates(r).items()]

    def nothing(self) -> LoadPlan:
        """The plan without a checkpoint."""
        return self.empty(Choice(None))

    def other_writers(self, chosen: Checkpoint | None = None) -> Iterator[Finding]:
        """What somebody else wrote in the run while this question was answered."""
        if session := getattr(self, "session", None):
            run = [*self._run, *self.unfinished]
            look = writers.Inspection(self.root, session.started_ns, time.time_ns(), session.found.unfinished)
            yield from writers.other_writers(run, look, chosen)

    def under_way(self, c: Checkpoint) -> str:
        """How far a save is that may still be written."""
        return under_way.state(self.session, c, self._usual)

    @property
    def _run(self) -> Sequence[Checkpoint]:
        """The finished checkpoints of the run, none before they are known."""
        return getattr(self, "checkpoints", ())

    @cached_property
    def _usual(self) -> Sizes:
        return under_way.sizes(self._run)

    def empty(self, choice: Choice) -> LoadPlan:
        """A plan that loads nothing, with what was found on the way to it."""
        session = getattr(self, "session", None)
        saves = choice_warnings.unfinished(
            self.unfinished, None, self.order, self.root, self.under_way, layouts=self.layouts
        )
        torn: Iterable[Finding] = ()
        if session and choice.rejected:
            torn = under_way.torn_lately(session, choice.rejected, self._usual)
        return LoadPlan(
            root=self.root,
            checkpoint=None,
            resume=Resume(None),
            rejected=choice.rejected,
            attempts=choice.attempts,
            bytes_verified=session.reader.bytes_verified if session else 0,
            warnings=(*self.warnings, *saves, *torn, *self.other_writers()),
            candidates=tuple(self.ranked),
            budget=self.selection.budget,
            excluded=len(session.found.excluded.paths) if session else 0,
        )


def _later(runs: Mapping[tuple[str, str], Sequence[Checkpoint]]) -> str:
    """Which of runs of several layouts was written last: it may be a later save of another one, renamed."""
    if len({layout for layout, _ in runs}) < 2:
        return ""
    *_, before, last = sorted((c for saves in runs.values() for c in saves), key=lambda c: c.mtime_ns)
    return f"; {last.path} was written last" if before.mtime_ns < last.mtime_ns else ""
