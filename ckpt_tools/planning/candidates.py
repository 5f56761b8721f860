"""Find the checkpoints that a question is about, order them, and choose one of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from shlex import quote

from msgspec.structs import replace

from ckpt_tools.cache import Cache
from ckpt_tools.discovery import completeness
from ckpt_tools.discovery import group as grouping
from ckpt_tools.discovery.exclude import hint_exclude
from ckpt_tools.discovery.seals import find_unfetched
from ckpt_tools.discovery.unrecognised import strip_packing
from ckpt_tools.discovery.walk import is_absent
from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.layouts import layouts_of
from ckpt_tools.model.checkpoint import Checkpoint, CheckpointKey, Order, is_comparable
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import Choice, LoadPlan, Rejected, Resume
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning import choice_warnings, order, other_writers, topology, trackers
from ckpt_tools.planning import judge as judging
from ckpt_tools.planning.choose import Judge, Judgement, StepOf, allows, choose, has_prefix, is_wanted, rank
from ckpt_tools.planning.engine import find_gaps
from ckpt_tools.planning.facts import Run
from ckpt_tools.planning.rules.choice import export_newer, none_usable
from ckpt_tools.planning.rules.order import times_contradict_steps, times_mute
from ckpt_tools.planning.rules.rule import error_of, finding_of
from ckpt_tools.planning.rules.save import unfinished
from ckpt_tools.planning.rules.tree import could_not_look, filters_hide_all, several_runs
from ckpt_tools.planning.verification import read_count, read_step
from ckpt_tools.reading.opening import open_session
from ckpt_tools.reading.session import Progress, Session
from ckpt_tools.settings import plugins
from ckpt_tools.storage.urls import is_url, to_absolute


class Candidates:
    """The candidates of one question and the choice of one; ``find_candidates()`` fills in the rest."""

    session: Session

    def __init__(
        self, root: str, selection: Selection, progress: Progress | None, cache: Cache | None = None
    ) -> None:
        self.root = to_absolute(root)
        self.selection = selection
        self.layouts = layouts_of(selection)
        self.progress = progress
        self.cache = cache
        self.warnings: list[Finding] = []
        self.arranged = frozenset[str]()  # the layouts that have files below the root
        self.checkpoints: list[Checkpoint] = []  # the finished ones of the run
        self.unfinished: list[Checkpoint] = []
        self.exports: list[Checkpoint] = []  # left out, as other saves are there
        self.lost: list[Rejected] = []  # a tracker names them, and they do not exist any more
        self.ranked: list[Checkpoint] = []  # best first
        self.order = "mtime"
        self.positions: order.Positions = {}
        self.level = min(Level.STRUCTURE, selection.level)  # at level presence names must do

    def find_candidates(self) -> list[Checkpoint]:
        """Return the finished checkpoints of the run, best first; [] if none exists and none has to."""
        try:
            options = self.selection.read_options(self.progress)
            self.session = open_session(self.root, options, cache=self.cache)
        except CannotLook as error:
            self._require_leave_without_root(error)
            return []
        self.warnings += self.session.notes
        self.warnings += find_unfetched(bare.path for bare in self.session.found.bare)
        saves = grouping.group(self.session.parts, self.session.layouts, self.selection.save_interval)
        everything = self._leave_out_exports(saves)
        self.arranged = frozenset(c.layout for c in (*everything, *self.exports))
        requested = [c for c in everything if is_wanted(c, self.selection)]
        self.unfinished = [c for c in requested if c.unfinished]
        finished = [c for c in requested if not c.unfinished]
        if not finished:
            self._require_first_launch(everything)
            return []
        self.checkpoints = self._keep_one_run(finished)
        lost = trackers.find_lost(self.session, self.checkpoints, self.unfinished)
        self.lost = [r for r in lost if allows(self.selection, r.checkpoint)]
        self.unfinished = self._find_unfinished_of_run()
        self._settle_steps_and_positions()
        self._prepare_judge()
        return self.ranked

    def _leave_out_exports(self, all_saves: list[Checkpoint]) -> list[Checkpoint]:
        """Return the saves without exports (kept in ``self.exports``); all if only exports are asked for."""
        saves = [c for c in all_saves if not self.layouts.of(c).of_exports]
        is_asked_for = any(is_wanted(c, self.selection) for c in saves)
        if not is_asked_for or self.selection.kind is Kind.RELEASE:
            return all_saves
        self.exports = [c for c in all_saves if self.layouts.of(c).of_exports]
        return saves

    def _find_unfinished_of_run(self) -> list[Checkpoint]:
        """Return unfinished saves of the run; a mark in their names may make them look like another run."""
        saves = [c for c in self.unfinished if trackers.find_tracker_of(self.session, c) is None]
        runs = {c.run for c in self.checkpoints}
        gasps = {c.run for c in saves if c.kind is Kind.DYING_GASP} - runs
        if len(runs) == len(gasps) == 1:
            runs |= gasps
        beside = {os.path.dirname(completeness.name_place(c)) for c in self.checkpoints}

        def is_marked_beside(c: Checkpoint) -> bool:
            return trackers.is_marked(c) and os.path.dirname(c.parts[0].home) in beside

        return [c for c in saves if c.run in runs or is_marked_beside(c)]

    def _settle_steps_and_positions(self) -> None:
        """Set steps and coordinates from contents where names are ambiguous, and ``positions``. Reads."""
        saves = order.count_steps_in_epochs([*self.checkpoints, *self.unfinished], self.layouts)
        finished = len(self.checkpoints)
        self.checkpoints, self.unfinished = saves[:finished], saves[finished:]
        if len({c.layout for c in self.checkpoints}) > 1:
            self.checkpoints = [replace(c, step=self.step(c)) for c in self.checkpoints]
        elif not any(self.layouts.of(c).is_last_resort for c in self.checkpoints):  # their order is known
            self.checkpoints = order.add_told_steps(self.checkpoints, self.step)
        settled = topology.settle_expert_names(self.session, self.checkpoints, self.level)
        self.checkpoints = topology.leave_out_leftovers(self.session, settled, self.level)
        saves = [*self.checkpoints, *self.unfinished]
        self.positions = order.find_positions(
            saves, self.layouts, lambda c: read_count(self.session, c, self.checkpoints, self.level)
        )

    def _prepare_judge(self) -> None:
        """Rank the checkpoints that the filters leave, and make their judge. Raises NoneUsable."""
        s, selection = self.session, self.selection
        candidates = [c for c in self.checkpoints if allows(selection, c, self.step)]
        if not candidates:
            raise filters_hide_all.stop(none_usable.count_checkpoints(self.checkpoints), self.plan_nothing())
        sizes = partial(topology.read_saved_sizes, s, level=self.level)
        self.expected = completeness.expect_sizes(self.checkpoints, s.layouts, selection.world_size, sizes)
        # the rules of the order have the last word
        if selection.resume_from == "tracker":
            ranked = order.order_saves(candidates, "step", selection.prefer, self.positions)
            tracked = trackers.find_tracked(s, ranked, self.checkpoints)
            latest, keys = self.get_position(tracked[0]), {c.key for c in tracked}
            others = (c for c in ranked if c.key not in keys and self.get_position(c) <= latest)
            self.ranked = [*tracked, *others]
        else:
            self.order = selection.resume_from or selection.order or "mtime"
            self.ranked = order.order_saves(candidates, self.order, selection.prefer, self.positions)
        # ``saved``: the world size that wrote the files
        self.topology, self.saved, notes = topology.find_topology(s, self.ranked, self.expected, selection)
        self.warnings += notes
        run = Run(self.checkpoints, candidates, self.expected, self.topology, self.saved)
        self.judge = judging.Judge(s, selection, run)

    def _require_leave_without_root(self, error: CannotLook) -> None:
        """Raise CannotLook for a ROOT that does not exist, unless --allow none,missing says it may."""
        cause = error.__cause__
        may_be_absent = isinstance(cause, (FileNotFoundError, NotADirectoryError, PermissionError))
        if (isinstance(cause, OSError) and not may_be_absent) or not is_absent(self.root):
            raise error
        if self.selection.allow_none and self.selection.allow_missing:
            self.warnings.append(could_not_look.describe_first_launch(self.root))
            return
        first, by_hand = "check its spelling", f"upload an empty object called {self.root}/.keep"
        if not is_url(self.root):
            first, by_hand = error.hint, f"mkdir {quote(self.root)}"
        then = " Or" if first.endswith("?") else ";"
        hint = f"{first}{then} before a first launch create it once by hand: {by_hand}"
        if self.selection.allow_missing:
            hint += "; --allow missing counts only together with --allow none"
        raise could_not_look.stop(str(error), hint) from error

    def _require_first_launch(self, saves: Sequence[Checkpoint]) -> None:
        """Raise CkptError if no save was finished and this may be no first launch. Adds warnings."""
        if not saves and self.session.found.alone:
            name = os.path.basename(self.root)
            unpack = "unpack it, and " if strip_packing(name) != name else ""
            text = f"{self.root} is a file, and not a checkpoint that ckpt knows"
            raise could_not_look.stop(text, f"{unpack}name the directory of the checkpoints")
        from ckpt_tools.planning import first_launch  # most questions are about a run that exists

        error, reasons = first_launch.find_objections(self.session, self.selection, saves, self.unfinished)
        self.warnings += reasons
        if error is not None:
            if names := ", ".join(map(str, plugins.list_left_out())):  # files there may be of their layouts
                error.args = (f"{error} (left out by CKPT_NO_PLUGINS: {names})",)
            error.plan = self.plan_nothing()
            raise error

    def _keep_one_run(self, finished: list[Checkpoint]) -> list[Checkpoint]:
        """Return the saves of the run that is meant. Raises UsageError if it may be several."""
        runs = self._find_runs_asked_for(finished)
        own = several_runs.find_runs(runs, self.layouts)
        if question := several_runs.ask_which(own, runs, self.layouts, self.root):
            raise question
        if not own:
            raise none_usable.stop_without_state(self.root, completeness.list_runs(runs), self.plan_nothing())
        saves = [c for c in finished if (c.layout, c.run) in own]
        self.warnings += export_newer.find_newer_models(finished, saves)
        return saves

    def _find_runs_asked_for(self, finished: list[Checkpoint]) -> several_runs.Runs:
        """Return saves by run, as --prefix and --run leave them; runs of links alone are left out."""
        if (prefix := self.selection.prefix) is not None:
            finished = [c for c in finished if has_prefix(c, prefix)] or finished
        runs = self.session.runs(finished)
        if (run := self.selection.run) is not None:
            name = run.rstrip("/").removeprefix("./")
            runs = {key: saves for key, saves in runs.items() if key[1] == name} or runs
        if len(runs) < 2 or is_url(self.root):
            return runs
        linked = choice_warnings.find_linked_runs(runs)
        return {key: saves for key, saves in runs.items() if key not in linked}

    def step(self, c: Checkpoint) -> int | None:
        """Return the checkpoint's global step: from its name, else what most of its files tell."""
        return c.step if c.step is not None else read_step(self.session, c, self.checkpoints, self.level)

    def get_position(self, c: Checkpoint) -> Order:
        """Return a save's position in training: (step, epoch, step in epoch), -1 where unknown."""
        return self.positions.get(c.key, c.order)

    @property
    def has_given_order(self) -> bool:
        """Whether the caller has said how to find the newest checkpoint (a flag or CKPT_PREFER)."""
        return (self.selection.resume_from or self.selection.order or self.selection.prefer) is not None

    def settle_order(self) -> None:
        """Rank as if complete saves were usable, for callers that judge later. Raises UsageError."""
        if self.ranked:
            self.choose(self.ranked, lambda c: Judgement(not find_gaps(c, self.expected)))

    def choose(self, ranked: Sequence[Checkpoint], judge_one: Judge) -> Choice:
        """Choose by time, or by step where the rules of the order say so. Raises UsageError if in doubt."""
        judged: dict[CheckpointKey, Judgement] = {}

        def judge(c: Checkpoint) -> Judgement:
            if c.key not in judged:
                judged[c.key] = judge_one(c)
            return judged[c.key]

        def judge_at_best(c: Checkpoint) -> Judgement:
            try:
                return judge(c)
            except (UsageError, CannotLook):  # a doubt about it counts once it is the choice
                return Judgement(usable=True)

        choice = self.choose_first(ranked, judge)
        if self.has_given_order:
            self._require_clear_order(choice, ranked, judge_at_best)
            return choice
        latest = choice.checkpoint or ranked[0]
        by_step = order.order_saves(self.ranked, "step", self.selection.prefer, self.positions)
        position = self.get_position(latest)
        comparables = [c for c in by_step if c is latest or is_comparable(self.get_position(c), position)]
        by_position = self.choose_first(comparables, judge_at_best)
        furthest = by_position.checkpoint or comparables[0]
        facts = self._make_order_facts(latest, furthest)
        if choice.checkpoint is by_position.checkpoint is None and not facts.why_mute:
            return choice  # no order makes one of them usable
        flagged = self.choose_first(by_step, judge_at_best).checkpoint or by_step[0]
        facts = replace(facts, step_flag=flagged.key == furthest.key)
        if not facts.differ:
            choice = _add_rejected(choice, by_position.rejected)
            facts = self._add_later_tracker(facts, latest, ranked, judge_at_best)
        if facts.newest is furthest is not latest:
            choice = self.choose_first(by_step, judge)
            self.order, self.ranked = "step", by_step
        return self._reject_later_saves(choice, facts, ranked, judge)

    def _add_later_tracker(
        self, facts: order.OrderFacts, newest: Checkpoint, ranked: Sequence[Checkpoint], judge: Judge
    ) -> order.OrderFacts:
        """Return the facts with a tracker or link, written after the newest save, to a usable one."""
        links = list(trackers.find_later_links(newest, ranked))
        for path, c in chain(links, trackers.find_later_trackers(self.session, newest, ranked)):
            if judge(c).usable:
                return replace(facts, tracker=path, tracked=c, tracker_is_link=(path, c) in links)
        return facts

    def _require_clear_order(self, choice: Choice, ranked: Sequence[Checkpoint], at_best: Judge) -> None:
        """Raise UsageError if neither step nor time tells which of two usable saves is the newest."""
        c = choice.checkpoint
        if c is None or self.selection.order not in ("step", "mtime"):
            return
        facts = replace(self._make_order_facts(c, c), step_flag=False)
        alike = (o for o in ranked if o.key != c.key and o.mtime_ns == c.mtime_ns and o.kind is c.kind)
        unknown = (o for o in alike if facts.get_position(o) == facts.get_position(c) == order.UNKNOWN)
        others = [o for o in unknown if at_best(o).usable]
        for hit in times_mute.check(replace(facts, others=others[:1])):
            if hit.effect is None:
                raise error_of(times_mute.RULE, hit)

    def _reject_later_saves(
        self, choice: Choice, facts: order.OrderFacts, ranked: Sequence[Checkpoint], judge: Judge
    ) -> Choice:
        """Return the choice with maybe later, unusable saves rejected. Raises UsageError for a usable one."""
        chosen = choice.checkpoint
        others = list(self.find_maybe_newer(chosen, ranked)) if chosen else []
        usable = next((c for c in others if judge(c).usable), None)
        facts = replace(facts, others=[usable] if usable else ())
        for rule in (times_contradict_steps, times_mute):
            for hit in rule.check(facts):
                if hit.effect is None:  # the effect of the rule itself: ask
                    raise error_of(rule.RULE, hit)
                self.warnings.append(finding_of(rule.RULE, hit))
        known = {r.checkpoint.key for r in choice.rejected}
        lost = [Rejected(c, judge(c).findings) for c in others if c.key not in known]
        return self.require_best(_add_rejected(choice, lost), lost)

    def choose_first(self, ranked: Sequence[Checkpoint], judge: Judge, step: StepOf | None = None) -> Choice:
        """Return the first of the ranked checkpoints that is usable; ``step`` returns a checkpoint's step."""
        selection = self.selection
        return choose(
            ranked,
            judge,
            max_attempts=selection.max_attempts,
            save_interval=selection.save_interval,
            step_of=step or self.step,
            fallback=not selection.no_fallback,
        )

    def _make_order_facts(self, by_time: Checkpoint, by_step: Checkpoint) -> order.OrderFacts:
        """Return the facts for the rules of the order: the newest saves by time and by step."""
        s = self.session

        def exclude(wanted: Checkpoint, other: Checkpoint) -> str:
            path = os.path.relpath(wanted.path, s.root)
            label = path if wanted.label == other.label else wanted.label
            clause = hint_exclude(s.root, wanted, other.path, label=label)
            # without a step or a known state it may be one item of a save, beside the others
            known = self.get_position(wanted) != order.UNKNOWN
            whole = known or choice_warnings.describe_state(wanted.parts, s)
            return clause if whole and clause.startswith("--") else ""

        made = order.OrderFacts(s.root, s.now_ns, self.ranked, by_time, by_step, self.positions, exclude)
        if not made.differ:
            return made
        loser = by_time if made.newest is by_step else by_step
        path = None if trackers.find_tracker_of(s, made.newest) else trackers.find_tracker_of(s, loser)
        return replace(made, tracker=path or "")

    def find_maybe_newer(self, chosen: Checkpoint, candidates: Sequence[Checkpoint]) -> Iterator[Checkpoint]:
        """Yield candidates that may be later than the chosen one, unless the caller gave the order."""
        if not self.has_given_order:
            models = choice_warnings.describe_state(chosen.parts, self.session) == "weights-only"
            found = self._make_order_facts(chosen, chosen).find_undecided(candidates, models=models)
            yield from (c for c in found if not choice_warnings.are_one_file(c, chosen, self.session))

    def require_best(self, choice: Choice, lost: Sequence[Rejected]) -> Choice:
        """Return the choice. Raises NotNewest if a better save is ``lost`` and --no-fallback is given."""
        if lost and self.selection.no_fallback:
            plan = self.plan_nothing(replace(choice, checkpoint=None))
            raise none_usable.stop_without_newest(lost[0].findings[0].message, plan)
        return choice

    def find_other_writers(self, chosen: Checkpoint | None = None) -> Iterator[Finding]:
        """Yield warnings about files of the run that something else wrote since the session began."""
        if session := getattr(self, "session", None):
            run = [*self.checkpoints, *self.unfinished]
            yield from other_writers.find_other_writers(run, session, chosen)

    def find_unfinished(self, chosen: Checkpoint | None = None) -> Iterator[Finding]:
        """Yield unfinished saves that are, or may be, later than the chosen one; all if none is chosen."""
        by = "step" if self.selection.resume_from == "tracker" else self.order

        def goes_before(c: Checkpoint, chosen: Checkpoint) -> bool:
            if c.kind is Kind.RELEASE is not chosen.kind:  # another framework's release/ may be called so
                return c.mtime_ns >= chosen.mtime_ns
            later = c.layout == chosen.layout and c.order > chosen.order
            return later or rank([chosen, c], by)[0] is c

        doubtful = {c.key for c in self.find_maybe_newer(chosen, self.unfinished)} if chosen else set()
        newer = (c for c in self.unfinished if not chosen or c.key in doubtful or goes_before(c, chosen))
        rows = [(c, trackers.describe_age(self.session, c), c.key in doubtful) for c in rank([*newer], by)]
        yield from unfinished.describe_newer(rows, chosen, self.layouts, self.root)

    def plan_nothing(self, choice: Choice = Choice(None)) -> LoadPlan:  # noqa: B008 - it is frozen
        """Return a plan without a checkpoint, with the warnings and rejected saves until now."""
        session = getattr(self, "session", None)
        torn: Iterable[Finding] = ()
        if session and choice.rejected:
            torn = trackers.find_torn_lately(session, choice.rejected)
        return LoadPlan(
            root=self.root,
            checkpoint=None,
            resume=Resume(None),
            rejected=choice.rejected,
            attempts=choice.attempts,
            bytes_verified=session.reader.bytes_verified if session else 0,
            warnings=(*self.warnings, *self.find_unfinished(), *torn, *self.find_other_writers()),
            candidates=tuple(self.ranked),
            budget=self.selection.budget,
            excluded=len(session.found.excluded.paths) if session else 0,
        )


def _add_rejected(choice: Choice, rejected: Sequence[Rejected]) -> Choice:
    """Return the choice with more rejected saves, each save once."""
    known = {r.checkpoint.key for r in choice.rejected}
    more = (r for r in rejected if r.checkpoint.key not in known)
    return replace(choice, rejected=(*choice.rejected, *more))
