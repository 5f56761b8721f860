"""Make a load plan from a root and a selection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ckpt_tools.cache import Cache
from ckpt_tools.discovery import completeness
from ckpt_tools.errors import CannotLook, CkptError, NoCheckpoint, NoneUsable, NotRecognised, UsageError
from ckpt_tools.layouts.common.saved_by import ALONE
from ckpt_tools.model.checkpoint import Checkpoint, CheckpointKey, is_ahead
from ckpt_tools.model.finding import Finding, Severity
from ckpt_tools.model.part import Kind, Part
from ckpt_tools.model.plan import Assignment, Choice, FileLoad, Known, Load, LoadPlan, RankLoad, Resume
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning import choice_warnings, first_launch, order, other_writers, topology, trackers
from ckpt_tools.planning.candidates import Candidates
from ckpt_tools.planning.engine import GAPS, find_gaps
from ckpt_tools.planning.first_launch import describe_unplaced
from ckpt_tools.planning.lost_files import find_headless, find_lost_texts
from ckpt_tools.planning.rules.choice import export_newer, none_usable, tracker_stale
from ckpt_tools.planning.rules.rule import error_of
from ckpt_tools.planning.rules.save import mixed_counters, unfinished
from ckpt_tools.planning.rules.save.parallel_sizes import HIGHEST, ask_for_world_size
from ckpt_tools.planning.rules.tree import could_not_look
from ckpt_tools.planning.seals import find_later_lost_saves
from ckpt_tools.planning.unplaced import require_fetched, require_no_stranger, require_none_newer
from ckpt_tools.reading.session import Progress
from ckpt_tools.reading.unseen import HINT, Answer, make_finding, weigh
from ckpt_tools.settings import plugins
from ckpt_tools.storage.urls import is_url

if TYPE_CHECKING:
    from ckpt_tools.launchers.launcher import Started

_TELLING = 8
"""How many files at most are read for the step and the epoch."""


class Planner(Candidates):
    """One plan. ``plan()`` raises CkptError subclasses as docs/exit-codes.md lists them."""

    def plan(self) -> LoadPlan:
        """Return the plan with its warnings. With ``allow_fresh`` it may have no checkpoint."""
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
        """Raise CannotLook if a store's list of files is shown to have lacked some."""
        if is_url(self.root) and hasattr(self, "session"):
            rejected, chosen = (made.rejected, made.checkpoint is not None) if made else ((), False)
            other_writers.require_whole(self.root, self.session.started_ns, rejected, chosen=chosen)

    def weigh(self, made: LoadPlan | None, otherwise: str) -> LoadPlan:
        """Return the plan with warnings about unread files. Raises CannotLook, which names ``otherwise``."""
        unseen = self._find_unseen(made, otherwise)
        made = made or self.plan_nothing()
        return replace(made, warnings=_join_findings(made.warnings, unseen))

    def _find_unseen(self, made: LoadPlan | None, otherwise: str) -> list[Finding]:
        """Return warnings about files that could not be read. Raises CannotLook if one may matter."""
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
        known, made = made.warnings if made else (), made or self.plan_nothing()
        unseen = _join_findings(known, (make_finding(row, self.root) for row in blocking))
        plan = replace(made, warnings=unseen, checkpoint=None, resume=Resume(None), by_rank=(), shared=())
        raise could_not_look.stop(text, "make it readable" if selection.skip_unreadable else HINT, plan)

    def _plan(self) -> LoadPlan:
        """Return the plan that loads the choice; one without a checkpoint if none has to exist."""
        ranked = self.find_candidates()
        if not ranked:
            return self.plan_nothing()
        choice = self.choose(ranked, self.judge.judge)
        self._require_clear_world_size(choice)
        choice = self._reject_lost_saves(choice)
        if choice.checkpoint is None:
            raise self.explain_failure(choice, self.ranked)
        c = choice.checkpoint
        if self.selection.no_fallback and self.selection.max_step is None:
            for f in choice_warnings.find_odd_links(self.session, c, self.step(c)):  # to a newer save
                raise none_usable.stop_without_newest(f"{f.path}: {f.message}", self.plan_nothing())
        require_fetched(self.session, c, choice.rejected)
        found = self.session.found
        if len(self.arranged) > 1:
            require_no_stranger(self.session, c, self.selection)
        if found.bare or found.strange:
            with_step = replace(c, step=self.step(c))
            self.warnings += require_none_newer(self.session, with_step, self.selection)
        if found.empty or found.bare or found.strange:
            self.warnings += trackers.find_begun_later(self.session, c)
        self.warnings += (f for f in find_lost_texts(self.session) if f.path == c.parts[0].home)
        return self.finish(choice, c)

    def _require_clear_world_size(self, choice: Choice) -> None:
        """Raise UsageError if newer saves were rejected only because an older one had more ranks."""
        world = self.topology.provenance["world_size"]
        if choice.checkpoint is None or not choice.rejected or world.provenance != HIGHEST:
            return
        groups = self.selection.replica_groups.values()
        highest = max((rank for rows in groups for row in rows for rank in row), default=-1)
        size, newest = none_usable.find_smaller_job(choice, self.layouts, self.topology.world_size)
        if newest and highest < size:
            raise ask_for_world_size(size, self.topology.world_size, newest, choice.checkpoint)

    def _reject_lost_saves(self, choice: Choice) -> Choice:
        """Reject lost saves that are newer than the choice. Raises NotNewest with --no-fallback."""
        c, lost = choice.checkpoint, self.lost
        if c is not None:
            chosen = c if c.counted else replace(c, step=self.step(c))
            # of what has no number, nothing tells that it was earlier
            lost = [r for r in lost if r.checkpoint.order > chosen.order or {*r.checkpoint.order} == {-1}]
        choice = replace(choice, rejected=(*lost, *choice.rejected))
        return choice if c is None else self.require_best(choice, lost)

    def explain_failure(self, choice: Choice, ranked: Sequence[Checkpoint]) -> CkptError:
        """Return the error that no checkpoint is usable, with the reasons of the rejected ones."""
        asked, plan, layouts = self.selection, self.plan_nothing(choice), self.layouts
        unplaced = partial(describe_unplaced, self.session)
        return none_usable.explain_failure(choice, ranked, asked, plan, layouts, unplaced=unplaced)

    def finish(self, choice: Choice, c: Checkpoint) -> LoadPlan:
        """Return the plan that loads ``c``. Raises CannotLook where a file has changed."""
        assignment = choice.assignment
        assert assignment is not None  # noqa: S101 - there is a choice; for the type checker
        if is_url(self.root):
            from ckpt_tools.storage.stores.mounts import learn_versions  # most roots lie on a disk

            learn_versions([part.path for part in assignment.parts])
        by_rank = sorted(assignment.loads.items())
        ranks = tuple(RankLoad(r, self._make_file_loads(loads)) for r, loads in by_rank)
        shared = self._make_file_loads(assignment.shared)
        loaded = [*shared, *(f for r in ranks for f in r.files)]
        chosen = self._settle_step_and_path(c, assignment.parts)
        other_writers.require_unchanged(loaded)
        file_for_all = loaded[0].path if self.judge.are_replicas(c, assignment) else None
        known, saved = self._count_ranks(c, by_rank=bool(ranks))
        warnings = tuple(dict.fromkeys(self._find_warnings(choice, c, assignment)))
        return LoadPlan(
            root=self.root,
            checkpoint=chosen,
            resume=self._make_resume(c, chosen, file_for_all),
            by_rank=ranks,
            shared=shared,
            world_size=known["world_size"].value if "world_size" in known else None,
            saved_world_size=saved,
            topology=known,
            rollback=choice.rollback,
            rejected=choice.rejected,
            ahead=tuple(o for o in self.checkpoints if is_ahead(self.get_position(o), self.get_position(c))),
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

    def _count_ranks(self, c: Checkpoint, *, by_rank: bool) -> tuple[dict[str, Known], int | None]:
        """Return the job's sizes, and how many ranks saved ``c``; None if any number of ranks can load it."""
        known, saved = dict(self.topology.provenance), self.saved
        source = known["world_size"].provenance
        # if every rank loads all files, of rank numbers only those in its own names count
        if not by_rank and source == ALONE:
            del known["world_size"]
            return known, None
        if not by_rank and source == HIGHEST:
            saved = completeness.expect_ranks([c], self.layouts) or saved
            known["world_size"] = Known(saved or self.topology.world_size, HIGHEST)
        return known, saved

    def _make_file_loads(self, loads: Iterable[Load]) -> tuple[FileLoad, ...]:
        """Return what was verified of each file; its path has no links, which may change later."""
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

    def _settle_step_and_path(self, c: Checkpoint, parts: Sequence[Part]) -> Checkpoint:
        """Return the checkpoint by its real path, with the step and epoch that its planned files tell."""
        step, epoch = c.step if c.parts[0].step is not None else None, c.epoch
        layout = self.layouts.of(c)
        for p in parts[:_TELLING]:
            told_step, told_epoch, _ = layout.steps(p, self.session.known(p).metadata)
            step = told_step if step is None else step
            epoch = told_epoch if epoch is None else epoch
        # if its path is a file for which another one is loaded, the path of that one
        own_file = next((p for p in c.parts if p.path == c.path and p not in parts), None)
        path = next((p.path for p in parts if own_file and p.role == own_file.role), c.path)
        path = self.session.found.resolved(path)
        step = order.get_step(self.step(c) if step is None else step, c, self.positions)
        return replace(c, step=step, epoch=epoch, path=path)

    def _make_resume(self, c: Checkpoint, chosen: Checkpoint, file_for_all: str | None) -> Resume:
        """Return how a job is told what to load. Raises UsageError for an export that a tracker must name."""
        layout, base = self.layouts.of(c), c.parts[0].base
        resume = layout.resume(chosen, file_for_all)
        if c.kind is Kind.RELEASE and resume.path == base and not trackers.find_tracker_of(self.session, c):
            raise tracker_stale.ask_to_name(c, layout, base, self.session.tracker(layout.name, base))
        return resume

    def _find_smaller(self, c: Checkpoint) -> Iterator[Finding]:
        """Yield a warning if the run's other saves have files of ranks that this save and the job lack."""
        world, most = self.topology.world_size, self.expected.ranks
        hint = f"right if {world} ranks saved it; if its save was cut short, add --world-size {most}"
        lost = (f for f in find_gaps(c, self.expected) if f.ranks and f.ranks[0][0] >= world)
        yield from (replace(f, severity=Severity.WARNING, hint=hint) for f in lost)

    def _find_warnings(self, choice: Choice, c: Checkpoint, assignment: Assignment) -> Iterator[Finding]:
        """Yield warnings about a choice that can be used: its files, other saves, trackers, writers."""
        parts, run = assignment.parts, [o for o in self.checkpoints if (o.layout, o.run) == (c.layout, c.run)]
        yield from self.warnings
        yield from self._find_passed_over(choice, c)
        yield from assignment.findings
        yield from choice_warnings.find_warnings_of_files(parts, self.session)
        grown = any(f.code == "missing-rank" for f in assignment.findings)  # new ranks lack random states
        gaps = find_gaps(c, self.expected, (*GAPS, mixed_counters.RULE), spared=True)
        expected = ("missing-rank", Severity.NOTE) if grown else None
        yield from (f for f in gaps if (f.code, f.severity) != expected)
        yield from self._find_smaller(c)
        if self.selection.level > Level.PRESENCE:
            yield from choice_warnings.find_lost_best(self.session, c)
            yield from choice_warnings.find_odd_companions(self.session, c, self.checkpoints)
        yield from topology.find_leftovers_beside(self.session, c, self.expected)
        if self.session.found.strange:
            yield from find_headless(self.session, self.session.members(c))
        found = trackers.find_tracker_findings(self.session, run, lambda: self._find_unusable(choice, run))
        tracker = self.selection.resume_from != "tracker" and trackers.find_tracker_of(self.session, c)
        yield from (f for f in found if not (f.path == tracker and f.code == "stale-tracker"))
        yield from choice_warnings.find_odd_links(self.session, c, self.step(c))
        yield from self.find_unfinished(c)
        temporary = trackers.list_temporary(self.session)
        later = (path for path in temporary if trackers.get_time_written(path) >= c.mtime_ns)
        yield from map(unfinished.describe_temporary, later)
        yield from trackers.find_torn_lately(self.session, choice.rejected)
        yield from find_later_lost_saves(self.session, c, self.step(c), self.checkpoints)
        yield from self.find_other_writers(c)
        yield from choice_warnings.find_unread(parts, self.session, self.selection)

    def _find_passed_over(self, choice: Choice, c: Checkpoint) -> Iterator[Finding]:
        """Yield exports written after the choice, and saves that --save-interval leaves out."""
        lost = {r.checkpoint.key for r in choice.rejected}
        exports = (o for o in (*self.ranked, *self.exports) if o.key not in lost)
        yield from export_newer.find_exports(c, exports, {f.path for f in self.warnings})
        if choice.left_out:
            yield export_newer.describe_left_out(choice.left_out, self.selection.save_interval)

    def _find_unusable(self, choice: Choice, run: Sequence[Checkpoint]) -> set[CheckpointKey]:
        """Return keys of checkpoints that cannot be resumed from, as far as this is known."""
        lost = {r.checkpoint.key for r in choice.rejected if r.checkpoint.parts}
        lost.update(o.key for o in run if find_gaps(o, self.expected))
        if self.selection.ranks is not None and choice.checkpoint:  # other nodes have its other files
            lost.discard(choice.checkpoint.key)
        return lost


def _join_findings(warnings: Sequence[Finding], more: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the warnings, then the findings of ``more`` whose code and path no warning has."""
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


def load_plan(root: str, selection: Selection, progress: Progress | None, cache: Cache | None) -> LoadPlan:
    """Return the plan. One without a checkpoint is returned only if no earlier start resumed from one."""
    try:
        made = Planner(root, selection, progress, cache).plan()
    except NoCheckpoint as error:  # that an earlier checkpoint is gone says more
        first_launch.require_first_launch(root, selection, error.plan)
        raise
    if made.checkpoint is None:
        first_launch.require_first_launch(root, selection, made)
    if selection.strict:
        broken = tuple(plugins.findings())
        for hit in could_not_look.find_unknown(made.below_level, selection.level, broken):
            plan = replace(made, checkpoint=None, resume=Resume(None), by_rank=(), shared=())
            raise error_of(could_not_look.RULE, hit, plan=plan)
    return made


def find_asking_rank(full: LoadPlan, selection: Selection, started: Started | None) -> int:
    """Return the rank of --rank, else the launcher's. Raises UsageError if it is unknown and matters."""
    if selection.rank is not None:
        return selection.rank
    if started and started.rank:
        return started.rank.value
    if len({tuple(f.path for f in r.files) for r in full.by_rank}) <= 1:
        return full.by_rank[0].rank if full.by_rank else 0
    message = f"{len(full.by_rank)} ranks load different files, and which rank is asking is unknown"
    if started and started.unclear:
        raise UsageError(f"{message}: {started.unclear}", started.hint)
    raise UsageError(message, "pass --rank N, or set CKPT_RANK")


def narrow_to_rank(full: LoadPlan, mine: int) -> LoadPlan:
    """Return the plan with the files of one rank. Raises UsageError if the rank is outside the world."""
    if full.checkpoint is None or (full.shared and not full.by_rank):
        return full
    ranks = tuple(r for r in full.by_rank if r.rank == mine)
    if not ranks:
        hint = "add --world-size N, and --replica-groups all if every rank loads the same file"
        raise UsageError(f"rank {mine} is outside the world of {full.world_size} ranks", hint)
    files = ranks[0].files
    resume = full.resume if full.resume.path or len(files) != 1 else replace(full.resume, path=files[0].path)
    return replace(full, by_rank=ranks, resume=resume)
