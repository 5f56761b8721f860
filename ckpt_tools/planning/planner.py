"""Make a load plan from a root and a selection: which checkpoints it is about, the choice, and the plan."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from shlex import quote

from msgspec.structs import replace

from ckpt_tools.cache.verdicts import Cache
from ckpt_tools.discovery import completeness
from ckpt_tools.discovery import group as grouping
from ckpt_tools.discovery.roots import absent
from ckpt_tools.discovery.sidecars import unfetched
from ckpt_tools.discovery.unrecognised import unpacked
from ckpt_tools.errors import CannotLook, CkptError, NoCheckpoint, NoneUsable, NotRecognised, UsageError
from ckpt_tools.layouts import layouts_of
from ckpt_tools.layouts.common.rank_grid import ALONE
from ckpt_tools.model.checkpoint import Checkpoint, CheckpointKey, comparable
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Assignment, Choice, FileLoad, Load, LoadPlan, RankLoad, Rejected, Resume
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning import choice_warnings, filters, order, other_writers, topology, trackers
from ckpt_tools.planning import judge as judging
from ckpt_tools.planning import unfinished as under_way
from ckpt_tools.planning.choose import Judge, Judgement, StepOf, choose, rank
from ckpt_tools.planning.engine import find_gaps
from ckpt_tools.planning.lost_files import find_headless, find_lost_texts
from ckpt_tools.planning.none_usable import count_checkpoints, explain_failure, find_smaller_job
from ckpt_tools.planning.rules.choice import export_newer, none_usable
from ckpt_tools.planning.rules.order import times_contradict_steps, times_mute
from ckpt_tools.planning.rules.rule import error_of, finding_of
from ckpt_tools.planning.rules.save import unfinished
from ckpt_tools.planning.rules.save.parallel_sizes import HIGHEST, ask_how_many
from ckpt_tools.planning.rules.tree import could_not_look, filters_hide_all, several_runs
from ckpt_tools.planning.run import Run
from ckpt_tools.planning.scan import read_count, read_step
from ckpt_tools.planning.seals import find_later_and_gone
from ckpt_tools.planning.unplaced import require_fetched, require_no_stranger, require_none_newer
from ckpt_tools.reading.opening import open_session
from ckpt_tools.reading.session import Progress, Session
from ckpt_tools.reading.unseen import HINT, Answer, as_finding, weigh
from ckpt_tools.settings import plugins
from ckpt_tools.storage.retry import there
from ckpt_tools.storage.urls import absolute, is_url

_TELLING = 8
"""Files at most that are asked for the step and the epoch."""


class Planner:
    """One plan. ``plan()`` raises CkptError subclasses as docs/exit-codes.md lists them.

    ``find_candidates()`` fills in ``session``, ``checkpoints`` (the finished ones of the run), ``exports``
    (left out beside them), ``unfinished``, ``lost`` (what a tracker names and is gone), ``expected``,
    ``ranked`` (best first), ``topology``, ``saved`` (the world size that wrote the files) and ``judge``.
    """

    session: Session

    def __init__(
        self, root: str, selection: Selection, progress: Progress | None, cache: Cache | None = None
    ) -> None:
        self.root = absolute(root)
        self.selection = selection
        self.layouts = layouts_of(selection)
        self.progress = progress
        self.cache = cache
        self.warnings: list[Finding] = []
        self.arranged = frozenset[str]()  # the layouts that have files below the root
        self.checkpoints: list[Checkpoint] = []
        self.unfinished: list[Checkpoint] = []
        self.exports: list[Checkpoint] = []
        self.lost: list[Rejected] = []
        self.ranked: list[Checkpoint] = []
        self.order = "mtime"
        self.places: order.Places = {}
        self.names = min(Level.STRUCTURE, selection.level)  # at presence the names must do

    def plan(self) -> LoadPlan:
        """Return the plan, with what could not be looked at; ``allow_fresh`` takes one without checkpoint."""
        try:
            made = self._plan()
            self._require_whole_list(made)
        except CannotLook:
            raise
        except CkptError as error:
            self._require_whole_list(error.plan)
            if not (self.selection.skip_unreadable and isinstance(error, UsageError)):
                self._find_unseen(error.plan, str(error))
            fresh = isinstance(error, (NoCheckpoint, NoneUsable, NotRecognised)) and error.plan
            if fresh and self.selection.allow_fresh:
                return fresh
            raise
        return self.weigh(made, "")

    def _require_whole_list(self, made: LoadPlan | None) -> None:
        """Raises CannotLook where the list of a store is shown to have lacked something."""
        if is_url(self.root) and hasattr(self, "session"):
            rejected, chosen = (made.rejected, made.checkpoint is not None) if made else ((), False)
            other_writers.require_whole(self.root, self.session.started_ns, rejected, chosen=chosen)

    def weigh(self, made: LoadPlan | None, otherwise: str) -> LoadPlan:
        """The plan with what could not be looked at on the way to it. Raises CannotLook."""
        unseen = self._find_unseen(made, otherwise)
        made = made or self.nothing()
        return replace(made, warnings=_join_findings(made.warnings, unseen))

    def _find_unseen(self, made: LoadPlan | None, otherwise: str) -> list[Finding]:
        """Return warnings about what could not be looked at. Raises CannotLook where it may matter."""
        selection = self.selection
        if not hasattr(self, "session"):
            return []
        answer = Answer(
            chosen=made.checkpoint if made else None,
            rejected=[r.checkpoint for r in made.rejected] if made else [],
            candidates=self.checkpoints or None,
            skip=selection.skip_unreadable,
            run_named=selection.run is not None or selection.prefix is not None,
        )
        blocking, warnings = weigh(self.session, answer)
        if not blocking:
            return warnings
        more = f" (and {len(blocking) - 1} more)" if len(blocking) > 1 else ""
        text = f"{blocking[0].path}{more}: {blocking[0].why}"
        text += f"; without it: {otherwise}" if otherwise else ""
        told, made = made.warnings if made else (), made or self.nothing()
        unseen = _join_findings(told, (as_finding(row, self.root) for row in blocking))
        plan = replace(made, warnings=unseen, checkpoint=None, resume=Resume(None), by_rank=(), shared=())
        raise could_not_look.stop(text, "make it readable" if selection.skip_unreadable else HINT, plan)

    def _plan(self) -> LoadPlan:
        ranked = self.find_candidates()
        if not ranked:
            return self.nothing()
        choice = self._choose(ranked, self.judge.judge)
        self._ask_how_many(choice)
        choice = self._add_lost(choice)
        if choice.checkpoint is None:
            raise self.explain_failure(choice, self.ranked)
        c = choice.checkpoint
        self._require_newest(c)
        require_fetched(self.session, c, choice.rejected)
        found = self.session.found
        if len(self.arranged) > 1:
            require_no_stranger(self.session, c, self.selection)
        if found.bare or found.strange:
            require_none_newer(self.session, replace(c, step=self.step(c)), self.selection)
        if found.empty or found.bare or found.strange:
            self.warnings += under_way.find_begun_later(self.session, c)
            self.warnings += (f for f in find_lost_texts(self.session) if f.path == c.parts[0].home)
        return self.finish(choice, c)

    def _ask_how_many(self, choice: Choice) -> None:
        """Raises UsageError where the choice is older only because a still older save had more ranks."""
        world = self.topology.provenance["world_size"]
        if choice.checkpoint is None or not choice.rejected or world.provenance != HIGHEST:
            return
        groups = self.selection.replica_groups.values()
        highest = max((rank for rows in groups for row in rows for rank in row), default=-1)
        job = find_smaller_job(choice, self.layouts, self.topology.world_size)
        if job and highest < job[0]:
            raise ask_how_many(job[0], self.topology.world_size, job[1], choice.checkpoint)

    def _add_lost(self, choice: Choice) -> Choice:
        """Add what would have gone before the choice. Raises NotNewest if the caller wants no older one."""
        c = choice.checkpoint
        told = None if c is None or c.counted else replace(c, step=self.step(c))
        before = [r for r in self.lost if c is None or _goes_before(r.checkpoint, told or c)]
        choice = replace(choice, rejected=(*before, *choice.rejected))
        return choice if c is None else self._require_best(choice, before)

    def _require_best(self, choice: Choice, lost: Sequence[Rejected]) -> Choice:
        """The choice; raises NotNewest where something better is lost, and the caller wants no older one."""
        if lost and self.selection.no_fallback:
            plan = self.nothing(replace(choice, checkpoint=None))
            raise none_usable.stop_without_newest(lost[0].findings[0].message, plan)
        return choice

    def settle_order(self) -> None:
        """Settle the order for who judges in one order only. Raises UsageError if the newest is in doubt."""
        if self.ranked:
            self._choose(self.ranked, lambda c: Judgement(not find_gaps(c, self.expected)))

    def _choose(self, ranked: Sequence[Checkpoint], judge_one: Judge) -> Choice:
        """Choose by time, or by step where the rules of the order say so. Raises UsageError if in doubt."""
        judged: dict[CheckpointKey, Judgement] = {}

        def judge(c: Checkpoint) -> Judgement:
            if c.key not in judged:
                judged[c.key] = judge_one(c)
            return judged[c.key]

        def at_best(c: Checkpoint) -> Judgement:
            try:
                return judge(c)
            except (UsageError, CannotLook):  # a doubt about it counts once it is the choice
                return Judgement(usable=True)

        choice = self.choose_first(ranked, judge)
        if self.ordered:
            return choice
        one = choice.checkpoint or ranked[0]
        by_step = order.order_saves(self.ranked, "step", self.selection.prefer, self.places)
        place = self.places.get(one.key, one.order)
        alike = [c for c in by_step if c is one or comparable(self.places.get(c.key, c.order), place)]
        other = self.choose_first(alike, at_best)
        two = other.checkpoint or alike[0]
        facts = self._make_order_facts(one, two)
        if choice.checkpoint is other.checkpoint is None and not facts.why_mute:
            return choice  # no order makes one of them usable
        flag = self.choose_first(by_step, at_best).checkpoint or by_step[0]
        facts = replace(facts, step_flag=flag.key == two.key)
        if not facts.differ:
            choice = _add_rejected(choice, other.rejected)
            later = trackers.find_later_trackers(self.session, one, ranked)
            path, tracked = next(((path, c) for path, c in later if at_best(c).usable), ("", None))
            facts = replace(facts, named=path, tracked=tracked) if tracked else facts
        if facts.newest is two is not one:
            choice = self.choose_first(by_step, judge)
            self.order, self.ranked = "step", by_step
        return self._add_others(choice, facts, ranked, judge)

    def _add_others(
        self,
        choice: Choice,
        facts: order.OrderFacts,
        ranked: Sequence[Checkpoint],
        judge: Judge,
    ) -> Choice:
        """Add candidates that may be later and cannot be used. Raises UsageError if one of them can be."""
        chosen = choice.checkpoint
        others = list(self.find_untold(chosen, ranked)) if chosen else []
        usable = next((c for c in others if judge(c).usable), None)
        facts = replace(facts, others=[usable] if usable else ())
        for rule in (times_contradict_steps, times_mute):
            for hit in rule.check(facts):
                if hit.effect is None:  # as much as the rule does at most
                    raise error_of(rule.RULE, hit)
                self.warnings.append(finding_of(rule.RULE, hit))
        known = {r.checkpoint.key for r in choice.rejected}
        lost = [Rejected(c, judge(c).findings) for c in others if c.key not in known]
        return self._require_best(_add_rejected(choice, lost), lost)

    def choose_first(
        self, ranked: Sequence[Checkpoint], judge: Judge, step_of: StepOf | None = None
    ) -> Choice:
        """The first of those ranked that is usable."""
        selection = self.selection
        return choose(
            ranked,
            judge,
            max_attempts=selection.max_attempts,
            save_interval=selection.save_interval,
            step_of=step_of or self.step,
            fallback=not selection.no_fallback,
        )

    def explain_failure(self, choice: Choice, ranked: Sequence[Checkpoint]) -> CkptError:
        """Why there is no checkpoint to resume from, although some exist."""
        return explain_failure(choice, ranked, self.selection, self.session, self.nothing(choice))

    def finish(self, choice: Choice, c: Checkpoint) -> LoadPlan:
        """Return the plan that loads ``c``. Raises CannotLook where a file has changed."""
        assignment = choice.assignment
        assert assignment is not None  # noqa: S101 - there is a choice; for the type checker
        if is_url(self.root):
            from ckpt_tools.storage.stores.refresh import learn_versions  # most roots lie on a disk

            learn_versions([part.path for part in assignment.parts])
        ranks = tuple(
            RankLoad(r, self._make_file_loads(loads)) for r, loads in sorted(assignment.loads.items())
        )
        shared = self._make_file_loads(assignment.shared)
        loaded = [*shared, *(f for r in ranks for f in r.files)]
        chosen = self._tell_step(c, assignment.parts)
        other_writers.require_unchanged(loaded)
        one = loaded[0].path if self.judge.are_replicas(c, assignment) else None
        counted = bool(ranks) or self.topology.provenance["world_size"].provenance != ALONE
        known = dict(self.topology.provenance)
        if not counted:  # any number of ranks may load such a set
            del known["world_size"]
        warnings = tuple(dict.fromkeys(self._find_warnings(choice, c, assignment)))
        return LoadPlan(
            root=self.root,
            checkpoint=chosen,
            resume=self.layouts.of(c).resume(chosen, one),
            by_rank=ranks,
            shared=shared,
            world_size=self.topology.world_size if counted else None,
            saved_world_size=self.saved if counted else None,
            topology=known,
            rollback=choice.rollback,
            rejected=choice.rejected,
            ahead=tuple(o for o in self.checkpoints if o.key != c.key and o.order > c.order),
            attempts=choice.attempts,
            bytes_verified=self.session.reader.bytes_verified,
            warnings=warnings,
            fingerprint=make_fingerprint(self.root, ranks, shared),
            candidates=tuple(self.ranked),
            budget=self.selection.budget,
            below_level=len(choice_warnings.find_below_level(assignment.parts, self.session, self.selection)),
            excluded=len(self.session.found.excluded.paths),
            state=choice_warnings.describe_state(assignment.parts, self.session),
        )

    def _make_file_loads(self, loads: Iterable[Load]) -> tuple[FileLoad, ...]:
        """Return what verification saw of files, by paths without links, which could lead elsewhere later."""
        found, rows = self.session.found, list[FileLoad]()
        linked = any(links.outside or links.followed for links in found.links)
        for load in loads:
            p, report = load.part, self.session.reports.get(load.part.path)
            etag, version = other_writers.get_versions(p.path)
            row = FileLoad(
                role=p.role,
                path=found.resolved(p.path) if linked else p.path,
                size=p.size,
                mtime_ns=p.mtime_ns,
                level=report.level if report else Level.PRESENCE,
                coverage=report.coverage if report else 0.0,
                source_rank=p.rank,
                substituted=load.substituted and p.rank is not None,
                reason=load.reason,
                etag=etag,
                version=version,
            )
            rows.append(row)
        return tuple(rows)

    def _tell_step(self, c: Checkpoint, parts: Sequence[Part]) -> Checkpoint:
        """Return the checkpoint by its real path, with the step and epoch that its planned files tell."""
        step, epoch = c.step if c.parts[0].step is not None else None, c.epoch
        layout = self.layouts.of(c)
        for p in parts[:_TELLING]:
            told = layout.steps(p, self.session.known(p).metadata)
            step = told[0] if step is None else step
            epoch = told[1] if epoch is None else epoch
        # where its path is one of its files, and another one is loaded in its place, that of this one
        named = next((p for p in c.parts if p.path == c.path and p not in parts), None)
        path = next((p.path for p in parts if named and p.role == named.role), c.path)
        path = self.session.found.resolved(path)
        step = order.step_at(self.step(c) if step is None else step, c, self.places)
        return replace(c, step=step, epoch=epoch, path=path)

    def _find_warnings(self, choice: Choice, c: Checkpoint, assignment: Assignment) -> Iterator[Finding]:
        """What the caller should know about the choice, although it can be used."""
        parts, run = assignment.parts, [o for o in self.checkpoints if (o.layout, o.run) == (c.layout, c.run)]
        yield from self.warnings
        yield from self._find_passed_over(choice, c)
        yield from assignment.findings
        yield from choice_warnings.find_warnings_of_files(parts, self.session)
        yield from find_gaps(c, self.expected, spared=True)
        if self.selection.level > Level.PRESENCE:
            yield from choice_warnings.find_lost_best(self.session, c)
            yield from choice_warnings.find_odd_companions(self.session, c, self.checkpoints)
        yield from topology.find_leftovers_beside(self.session, c, self.expected)
        if self.session.found.strange:
            yield from find_headless(self.session, self.session.members(c))
        told = trackers.find_tracker_findings(self.session, run, lambda: self._find_unusable(choice, run))
        meant = self.selection.resume_from != "tracker" and trackers.find_tracker_of(self.session, c)
        yield from (f for f in told if not (f.path == meant and f.code == "stale-tracker"))
        yield from choice_warnings.find_odd_links(self.session, c, self.step(c))
        yield from self.find_unfinished(c)
        yield from under_way.find_later_temporary(self.session, c)
        yield from under_way.find_torn_lately(self.session, choice.rejected)
        yield from find_later_and_gone(self.session, c, self.step(c), self.checkpoints)
        yield from self.find_other_writers(c)
        yield from choice_warnings.find_unread(parts, self.session, self.selection)

    def _find_passed_over(self, choice: Choice, c: Checkpoint) -> Iterator[Finding]:
        """Exports that were written after the choice, and what --save-interval leaves out."""
        lost = {r.checkpoint.key for r in choice.rejected}
        exports = (o for o in (*self.ranked, *self.exports) if o.key not in lost)
        yield from export_newer.find_exports(c, exports, {f.path for f in self.warnings})
        if choice.left_out:
            yield export_newer.describe_left_out(choice.left_out, self.selection.save_interval)

    def _require_newest(self, c: Checkpoint) -> None:
        """Raises NotNewest where the caller wants the newest or nothing, and what a link led to may be it."""
        if self.selection.no_fallback and self.selection.max_step is None:
            for f in choice_warnings.find_odd_links(self.session, c, self.step(c)):
                raise none_usable.stop_without_newest(f"{f.path}: {f.message}", self.nothing())

    def _find_unusable(self, choice: Choice, run: Sequence[Checkpoint]) -> set[CheckpointKey]:
        """The checkpoints that cannot be resumed from, as far as that is known."""
        lost = {r.checkpoint.key for r in choice.rejected if r.checkpoint.parts}
        lost.update(o.key for o in run if find_gaps(o, self.expected))
        if self.selection.ranks is not None and choice.checkpoint:  # other nodes have the rest of it
            lost.discard(choice.checkpoint.key)
        return lost

    # ---- which checkpoints there are

    def find_candidates(self) -> list[Checkpoint]:
        """The finished checkpoints of the run, best first; none where there may be none and none exists."""
        try:
            self.session = open_session(
                self.root, self.selection.read_options(self.progress), cache=self.cache
            )
        except CannotLook as error:
            self._require_leave_for_no_root(error)
            return []
        self.warnings += self.session.notes
        self.warnings += unfetched(bare.path for bare in self.session.found.bare)
        everything = self._leave_out_exports(
            grouping.group(self.session.parts, self.session.layouts, self.selection.save_interval)
        )
        self.arranged = frozenset(c.layout for c in everything)
        requested = [c for c in everything if filters.is_requested(c, self.selection)]
        self.unfinished = [c for c in requested if c.unfinished]
        finished = [c for c in requested if not c.unfinished]
        if not finished:
            self._require_first_launch(everything)
            return []
        self.checkpoints = self._keep_one_run(finished)
        named = trackers.find_lost(self.session, self.checkpoints, self.unfinished)  # and gone
        self.lost = [r for r in named if filters.allows(self.selection, r.checkpoint)]
        self.unfinished = self._find_unfinished_of_run()
        self._settle_steps_and_places()
        self._prepare_judge()
        return self.ranked

    def _leave_out_exports(self, everything: list[Checkpoint]) -> list[Checkpoint]:
        """Without those of layouts that hold exports alone, where anything else was asked for."""
        saves = [c for c in everything if not self.layouts.of(c).of_exports]
        asked = any(filters.is_requested(c, self.selection) for c in saves)
        if not asked or self.selection.kind is Kind.RELEASE:
            return everything
        self.exports = [c for c in everything if self.layouts.of(c).of_exports]
        return saves

    def _find_unfinished_of_run(self) -> list[Checkpoint]:
        """Return saves of the run that never finished; only the mark in a name may set their run apart."""
        saves = [c for c in self.unfinished if trackers.find_tracker_of(self.session, c) is None]
        runs = {c.run for c in self.checkpoints}
        gasps = {c.run for c in saves if c.kind is Kind.DYING_GASP} - runs
        if len(runs) == len(gasps) == 1:
            runs |= gasps
        beside = {os.path.dirname(c.parts[0].home) for c in self.checkpoints}
        return [
            c
            for c in saves
            if c.run in runs or (under_way.is_marked(c) and os.path.dirname(c.parts[0].home) in beside)
        ]

    def _settle_steps_and_places(self) -> None:
        """Steps where names count them differently, and coordinates, as the contents tell them."""
        both = order.count_steps_in_epochs([*self.checkpoints, *self.unfinished], self.layouts)
        finished = len(self.checkpoints)
        self.checkpoints, self.unfinished = both[:finished], both[finished:]
        if len({c.layout for c in self.checkpoints}) > 1:
            self.checkpoints = [replace(c, step=self.step(c)) for c in self.checkpoints]
        elif not any(self.layouts.of(c).is_last_resort for c in self.checkpoints):  # those are placed
            self.checkpoints = order.add_told_steps(self.checkpoints, self.step)
        placed = topology.settle_expert_names(self.session, self.checkpoints, self.names)
        self.checkpoints = topology.leave_out_leftovers(self.session, placed, self.names)
        saves = [*self.checkpoints, *self.unfinished]
        self.places = order.find_places(
            saves, self.layouts, lambda c: read_count(self.session, c, self.checkpoints, self.names)
        )

    def _prepare_judge(self) -> None:
        """Rank the checkpoints that the filters leave, and make their judge. Raises NoneUsable."""
        s, selection = self.session, self.selection
        candidates = [c for c in self.checkpoints if filters.allows(selection, c, self.step)]
        if not candidates:
            raise filters_hide_all.stop(count_checkpoints(self.checkpoints), self.nothing())
        self.expected = completeness.expected(
            self.checkpoints,
            s.layouts,
            selection.world_size,
            lambda c: topology.read_saved_sizes(s, c, self.names),
        )
        # the rules of the order have the last word
        if selection.resume_from == "tracker":
            ranked = order.order_saves(candidates, "step", selection.prefer, self.places)
            named = trackers.find_tracked(s, ranked, self.checkpoints)
            self.ranked = order.start_from_named(ranked, named, self.places)
        else:
            self.order = selection.resume_from or selection.order or "mtime"
            self.ranked = order.order_saves(candidates, self.order, selection.prefer, self.places)
        self.topology, self.saved, notes = topology.find_topology(s, self.ranked, self.expected, selection)
        self.warnings += notes
        run = Run(
            checkpoints=self.checkpoints,
            candidates=candidates,
            expected=self.expected,
            topology=self.topology,
            saved=self.saved,
        )
        self.judge = judging.Judge(s, selection, run)

    @property
    def ordered(self) -> bool:
        """Whether the caller has said which checkpoint is the newest."""
        return (self.selection.resume_from or self.selection.order or self.selection.prefer) is not None

    def _make_order_facts(self, by_time: Checkpoint, by_step: Checkpoint) -> order.OrderFacts:
        """What the rules of the order see of the newest by time and by step."""
        s = self.session
        made = order.OrderFacts(s.root, s.now_ns, self.ranked, by_time, by_step, self.places)
        if not made.differ:
            return made
        loser = by_time if made.newest is by_step else by_step
        named = None if trackers.find_tracker_of(s, made.newest) else trackers.find_tracker_of(s, loser)
        return replace(made, named=named or "")

    def find_untold(self, chosen: Checkpoint, candidates: Sequence[Checkpoint]) -> Iterator[Checkpoint]:
        """Candidates that may be later than the one chosen, where the caller has not said what tells."""
        if not self.ordered:
            found = list(self._make_order_facts(chosen, chosen).find_unplaced(candidates, chosen))
            yield from (c for c in found if not choice_warnings.are_one_file(c, chosen))

    def _require_leave_for_no_root(self, error: CannotLook) -> None:
        """Raise CannotLook for a ROOT that is not there, unless the caller says that it may be missing."""
        cause = error.__cause__
        told = isinstance(cause, (FileNotFoundError, NotADirectoryError, PermissionError))
        if (isinstance(cause, OSError) and not told) or not absent(self.root):
            raise error
        if self.selection.allow_none and self.selection.allow_missing:
            self.warnings.append(could_not_look.describe_first_launch(self.root))
            return
        first, by_hand = "check its spelling", f"upload an empty object called {self.root}/.keep"
        if not is_url(self.root):
            up = "" if there(os.path.dirname(self.root)) else " -p"
            first, by_hand = error.hint, f"mkdir{up} {quote(self.root)}"
        then = " Or" if first.endswith("?") else ";"
        hint = f"{first}{then} before a first launch create it once by hand: {by_hand}"
        if self.selection.allow_missing:
            hint += "; --allow missing counts only together with --allow none"
        raise could_not_look.stop(str(error), hint) from error

    def _require_first_launch(self, everything: Sequence[Checkpoint]) -> None:
        """Raise CkptError if nothing was finished, unless that is allowed and nothing speaks against it."""
        if not everything and self.session.found.alone:
            name = os.path.basename(self.root)
            unpack = "unpack it, and " if unpacked(name) != name else ""
            text = f"{self.root} is a file, and not a checkpoint that ckpt knows"
            raise could_not_look.stop(text, f"{unpack}name the directory of the checkpoints")
        from ckpt_tools.planning import first_launch  # most questions are about a run that is there

        error, reasons = first_launch.find_objections(
            self.session, self.selection, everything, self.unfinished
        )
        self.warnings += reasons
        if error is not None:
            if left := ", ".join(map(str, plugins.left_out())):  # what is there may be theirs
                error.args = (f"{error} (left out by CKPT_NO_PLUGINS: {left})",)
            error.plan = self.nothing()
            raise error

    def _keep_one_run(self, finished: list[Checkpoint]) -> list[Checkpoint]:
        """Those that were asked for. Raises UsageError for several runs."""
        runs = self._find_runs_asked_for(finished)
        own = several_runs.find_runs(runs, self.layouts)
        if question := several_runs.ask_which(own, runs, self.layouts, self.root):
            raise question
        if not own:
            raise none_usable.stop_without_state(self.root, completeness.listed(runs), self.nothing())
        kept = [c for c in finished if (c.layout, c.run) in own]
        self.warnings += export_newer.find_newer_models(finished, kept)
        return kept

    def _find_runs_asked_for(
        self, finished: list[Checkpoint]
    ) -> Mapping[tuple[str, str], Sequence[Checkpoint]]:
        """The saves of each run that --prefix and --run leave, without those that links lead to."""
        if (prefix := self.selection.prefix) is not None:
            finished = [c for c in finished if filters.is_whole_prefix(c, prefix)] or finished
        runs = self.session.runs(finished)
        if (run := self.selection.run) is not None:
            name = run.rstrip("/").removeprefix("./")
            runs = {key: saves for key, saves in runs.items() if key[1] == name} or runs
        if len(runs) < 2 or is_url(self.root):
            return runs
        linked = choice_warnings.find_linked_runs(runs)
        return {key: saves for key, saves in runs.items() if key not in linked}

    def step(self, c: Checkpoint) -> int | None:
        """The checkpoint's global step: from its name, else what most of its files tell."""
        return c.step if c.step is not None else read_step(self.session, c, self.checkpoints, self.names)

    def find_other_writers(self, chosen: Checkpoint | None = None) -> Iterator[Finding]:
        """What somebody else wrote in the run while this question was answered."""
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

        doubtful = {c.key for c in self.find_untold(chosen, self.unfinished)} if chosen else set()
        newer = (c for c in self.unfinished if not chosen or c.key in doubtful or goes_before(c, chosen))
        begun = [(c, under_way.state(self.session, c), c.key in doubtful) for c in rank([*newer], by)]
        yield from unfinished.describe_newer(begun, chosen, self.layouts, self.root)

    def nothing(self, choice: Choice = Choice(None)) -> LoadPlan:  # noqa: B008 - it is frozen
        """A plan that loads nothing, with what was found on the way to it."""
        session = getattr(self, "session", None)
        torn: Iterable[Finding] = ()
        if session and choice.rejected:
            torn = under_way.find_torn_lately(session, choice.rejected)
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
    known = {r.checkpoint.key for r in choice.rejected}
    return replace(
        choice, rejected=(*choice.rejected, *(r for r in rejected if r.checkpoint.key not in known))
    )


def _goes_before(gone: Checkpoint, chosen: Checkpoint) -> bool:
    """Return True if what a tracker names was saved later; it is the latest where only a date tells."""
    unplaced = (gone.step, gone.epoch, gone.generation) == (None, None, None)
    return unplaced or gone.order > chosen.order


def _join_findings(warnings: Sequence[Finding], more: Iterable[Finding]) -> tuple[Finding, ...]:
    """Both, and what is said of a file already not once more."""
    known = {(f.code, f.path) for f in warnings}
    return tuple(dict.fromkeys((*warnings, *(f for f in more if (f.code, f.path) not in known))))


def make_fingerprint(root: str, ranks: Sequence[RankLoad], shared: Sequence[FileLoad] = ()) -> str:
    """Return XXH3-128 (hex) over paths below ``root``, sizes, times and ETags of files, and the rank map."""
    import xxhash

    def name(f: FileLoad) -> str:
        return f.path.removeprefix(root).lstrip("/")

    digest = xxhash.xxh3_128()
    planned = chain(shared, chain.from_iterable(r.files for r in ranks))
    for path, size, mtime_ns, etag in sorted({(name(f), f.size, f.mtime_ns, f.etag) for f in planned}):
        tag = f"\0{etag}" if etag else ""
        digest.update(f"{path}\0{size}\0{mtime_ns}{tag}\n".encode("utf-8", "surrogateescape"))
    for r in ranks:
        names = "\0".join(map(name, r.files))
        digest.update(f"{r.rank}\0{names}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
