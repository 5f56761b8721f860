"""A job's one decision: its first member makes it under a lock (plans, builds the view, meets other nodes),
all others read it. Decisions about one root are numbered, in a directory for each key.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property

from msgspec import Struct, field
from msgspec.structs import asdict, replace
from xxhash import xxh3_64_hexdigest

from ckpt_tools import api, launchers
from ckpt_tools.cache import Note
from ckpt_tools.errors import CannotLook, CkptError, NoCheckpoint, NoneUsable, UsageError, explain_refusal
from ckpt_tools.job import starts
from ckpt_tools.job.decision import Body, Decision, body_of, check, describe_failure, read
from ckpt_tools.job.files import hold_lock, make_own
from ckpt_tools.job.meeting import SAME, Meeting, find_board, meeting
from ckpt_tools.job.membership import Membership, Options, Process
from ckpt_tools.launchers import LaunchLine
from ckpt_tools.layouts import layouts_of
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.output import json as as_json
from ckpt_tools.planning import first_launch, trackers
from ckpt_tools.planning.first_launch import FLAG, safe
from ckpt_tools.planning.planner import Planner
from ckpt_tools.reading.session import Progress
from ckpt_tools.settings import plugins, resolve
from ckpt_tools.settings.checked_json import Invalid
from ckpt_tools.storage import trust
from ckpt_tools.storage.stalls import limited
from ckpt_tools.storage.trust import OURS, Untrusted
from ckpt_tools.storage.urls import absolute
from ckpt_tools.storage.writes import take_lock, written

KEPT_DAYS = 90
"""Days after which a decision that no member takes any more is removed."""
_ROOM = "make room, or name another directory with --plan-dir"
_GONE = ".gone."  # the beginning of the name of a directory that is being removed; no key begins so
_NUMBERED = re.compile(r"(\d{1,9})\.(json|taken)")


class Listener(Struct, frozen=True):
    """Callbacks of the process that decides: ``made`` gets the plan, to show its warnings once per job,
    ``progress`` is called while it reads, ``note`` gets messages about cached verdicts.
    """

    made: Callable[[LoadPlan], None] | None = None
    progress: Progress | None = None
    note: Note | None = None


SILENT = Listener()


def make_plan(root: str, selection: Selection, to: Listener) -> LoadPlan:
    """Return the plan. If names alone cannot decide, which raises UsageError, contents are compared."""
    try:
        return api.plan(root, selection, progress=to.progress, note=to.note)
    except UsageError:
        if not selection.compare_only:
            raise
        selection = replace(selection, level=Level.CONTENT, compare_only=False)
        return api.plan(root, selection, progress=to.progress, note=to.note)


def digest(selection: Selection) -> str:
    """Return a digest of the selection, without options that differ from rank to rank."""
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
        layouts=None,  # functions, whose addresses differ in every process
    )
    others = plugins.packages()  # every process must have the same plug-ins
    return xxh3_64_hexdigest(
        f"{same} {sorted(selection.fault_ranks)}{others}".encode("utf-8", "surrogatepass")
    )


class Decider(Struct, dict=True):
    """Makes or reads the decision of a start in this process. No node starts before all can, and a failing
    node tells the others. ``joined`` is the meeting once this process is in it; None if the job needs none,
    or another process of this node decides. ``saves`` is a digest of the input of the decision, "" if the key
    is of this start alone.
    """

    root: str
    selection: Selection
    membership: Membership
    options: Options
    line: LaunchLine | None
    env: Mapping[str, str]
    listener: Listener = SILENT
    saves: str = ""
    joined: Meeting | None = None
    _open: ExitStack = field(default_factory=ExitStack)

    @cached_property
    def directory(self) -> str:
        """The directory of the decisions about the root."""
        return first_launch.place(self.options.plan_dir or resolve.decisions(self.env), self.root)

    @property
    def key(self) -> str:
        """The name of the decision; nodes that meet have one each, or would wait for a lock."""
        of = self.membership
        return f"{of.key}.node-{of.node}" if self.options.agree or not of.key else of.key

    @property
    def world(self) -> int | None:
        started = launchers.detect(self.env)
        return started.world_size.value if started and started.world_size else None

    def decide(self) -> Decision:
        """Return the decision for the key, not yet checked by this process: read if another member has made
        it, else made here, under a lock. Raise CkptError, the same on all nodes.

        Each member takes a decision once: a member that asks again is of a later generation. A key that is
        not unique does not tell launches apart: then a decision whose launcher is gone is not followed.
        CannotLook is raised for one of another digest of saves: its key may be that of an earlier start.
        """
        started, trusted = time.time(), self.selection.trust
        with self._open:  # the meeting tells the others how this node ended
            with self._reporting():
                if self.options.require_mount:
                    self._require_mount()
                place = os.path.join(self.directory, self.key)
                make_own(self.directory, trusted, "name a writable directory with --plan-dir")
                if self.membership.unique and not self.membership.start:
                    self.saves = self.digest_saves()
                make_own(place, trusted, _ROOM)
            with hold_lock(os.path.join(place, "lock"), self.options.timeout, trusted):
                with self._reporting():
                    names = _list_names(place)
                    numbers = [int(m[1]) for name in names if (m := _NUMBERED.fullmatch(name))]
                    last = max((n for n in numbers if f"{n}.json" in names), default=0)
                    newest = os.path.join(place, f"{last}.json")
                    decision = self._find_usable(newest, started) if last else None
                if decision is None:
                    self._prune()
                    return self._make(os.path.join(place, f"{max(numbers, default=0) + 1}.json"))
                if not decision.document.error and decision.about.saves != self.saves:
                    text = f"the decision {newest} may be of an earlier start with this job id"
                    remove = f"rm -r {shlex.quote(place)}"
                    raise CannotLook(
                        f"{text}: its ranks or checkpoints are not those of {absolute(self.root)} now",
                        f"give each start its own --job; or end the whole job, then {remove}",
                    )
                self._claim(newest)
        if error := decision.document.error:
            raise error.as_error()
        return decision

    def _require_mount(self) -> None:
        hint = "check that its file system is mounted, then start again"
        with explain_refusal(f"{self.root} cannot be looked at", hint):
            mounted = os.stat(self.root).st_dev != os.stat("/").st_dev
        if not mounted:
            text = f"{self.root} lies on the root file system: nothing is mounted there"
            raise CannotLook(text, "mount it, then start again, or drop --require-mount")

    def digest_saves(self) -> str:
        """Return a digest of candidates' files, of tracker files' contents, and of the number of ranks."""
        ranks = self.membership.nodes
        if self.options.worker:
            ranks = self.selection.world_size or self.world or 0
        asked = replace(self.selection, rank=None)
        planner, why = Planner(self.root, asked, self.listener.progress), ""
        with limited(asked.budget):
            try:
                planner.find_candidates()
            except (NoCheckpoint, NoneUsable, UsageError) as error:
                why = str(error)
            files = sorted((p.path, p.size, p.mtime_ns) for c in planner.ranked for p in c.parts)
            told = trackers.find_trackers(planner.session, planner.ranked) if files else ()
            seen = f"{files} {[(t.path, t.says) for t in told]} {why} {ranks}"
        return xxh3_64_hexdigest(seen.encode("utf-8", "surrogatepass"))

    # ---- decisions on disk

    def _find_usable(self, path: str, started: float) -> Decision | None:
        """Return the newest decision, None if this member needs another. Raise CannotLook if unknown."""
        of, takers = self.membership, _list_names(f"{path.removesuffix('.json')}.taken")
        if safe(of.member) in takers:
            return None
        try:
            decision = read(path, self.selection.trust, FLAG)
        except CannotLook as e:
            if isinstance(e.__cause__, OSError) or takers:  # two decisions could be followed at once
                who = f", and {', '.join(sorted(takers)[:4])} may have started by it" if takers else ""
                start = f"rm -r {shlex.quote(os.path.dirname(path))}"
                hint = f"make it readable; or end all processes of that start, then {start}"
                raise CannotLook(f"{e}{who}", hint) from e
            return None  # cut off by a full disk or a power failure, and no member has taken it
        about, here = decision.about, Process.here()
        if decision.document.error and about.decided_at < started:
            return None  # a failure counts for the members that waited for it; later ones try again
        ended = about.host == here.host and about.agent != here.agent and not Process.alive(about.agent)
        return decision if (of.unique and of.key) or not ended else None

    def _claim(self, path: str) -> None:
        """Note that this member takes the decision at ``path``. Raise CannotLook and Untrusted."""
        taken, member = f"{path.removesuffix('.json')}.taken", safe(self.membership.member)
        with explain_refusal(f"{taken}/{member} cannot be written", _ROOM), trust.named(FLAG):
            trust.make(taken, self.selection.trust)
            with trust.directory(taken, self.selection.trust) as at:
                os.close(trust.create(member, os.O_WRONLY, at, self.selection.trust))

    def _make(self, path: str) -> Decision:
        """Make the decision, or write the error of making it for the members that wait, and raise it."""

        def add_origin(body: Body) -> Decision:
            of, start = self.membership, asdict(Process.here())
            start |= {"root": absolute(self.root), "decided_at": time.time(), "job": of.job}
            start |= {"generation": of.generation, "nodes": of.nodes}
            start |= {"asked": digest(self.selection), "saves": self.saves}
            return Decision(path, {**body, "decision": start}, self.selection.trust)

        try:
            decision = add_origin(self.make())
            with self._publish(decision):
                self._claim(path)  # before other nodes hear that this one can start
                if self.joined:
                    decision.check(self.membership.ranks if self.options.agree else None)
                    self.joined.exchange({}, lambda _: {})  # until every node can start
                    self._open.close()
            starts.add(self.directory, decision, self.selection.trust)
        except CkptError as e:
            with suppress(CkptError), self._publish(add_origin(describe_failure(e))):
                pass  # raise the first error, not one of writing it
            raise
        return decision

    @contextmanager
    def _publish(self, decision: Decision) -> Iterator[None]:
        """Write a decision to the disk; it appears at its path when the block ends well. A later start learns
        from it that there was a checkpoint here (planning/first_launch.py).
        """
        files = {decision.path: decision.body}
        if chosen := decision.document.checkpoint:
            files[os.path.join(self.directory, first_launch.LAST)] = {
                "step": decision.step,
                "path": chosen.path,
                "job": decision.about.job,
                "decided_at": decision.about.decided_at,
            }
        with ExitStack() as opened:
            for path, body in files.items():
                home, name = os.path.split(path)
                opened.enter_context(explain_refusal(f"the decision could not be written to {path}", _ROOM))
                with trust.named(FLAG):
                    at = opened.enter_context(trust.directory(home, self.selection.trust))
                data = as_json.dump(body).encode()
                opened.enter_context(written(at, name, data, self.selection.trust))
            yield

    def _prune(self) -> None:
        """Remove the directories of other keys older than ``KEPT_DAYS``: each is moved aside first, none
        while a process decides in it. Errors are ignored.
        """
        oldest = time.time() - KEPT_DAYS * 86400
        with suppress(OSError):
            entries = [e for e in os.scandir(self.directory) if e.is_dir(follow_symlinks=False)]
            for entry in entries:
                with suppress(OSError, Untrusted):
                    aside = entry.path
                    if not entry.name.startswith(_GONE):
                        inside = [e.stat(follow_symlinks=False) for e in os.scandir(entry.path)]
                        newest = max(st.st_mtime for st in (os.stat(entry.path), *inside))
                        if entry.name == self.key or newest >= oldest:
                            continue
                        fd = take_lock(os.path.join(entry.path, "lock"), self.selection.trust)
                        if fd is None:
                            continue
                        aside = os.path.join(self.directory, f"{_GONE}{secrets.token_hex(4)}")
                        with open(fd, "rb"):
                            os.rename(entry.path, aside)
                    shutil.rmtree(aside, ignore_errors=True)

    # ---- the other nodes

    @property
    def _meets(self) -> bool:
        """Whether the nodes meet: each looks at its own disks, or no id lets them share a decision."""
        of = self.membership
        return self.options.agree or (of.nodes > 1 and not (of.unique and of.key))

    def _join(self) -> Meeting:
        """Wait until all nodes are there. Raise UsageError if this node's index or the place is unknown."""
        of = self.membership
        if of.node is None or of.node >= of.nodes:
            text = f"the index of this node among {of.nodes} nodes is unknown"
            raise UsageError(text, "set CKPT_NODE=N, from 0 (torchrun --node-rank tells it as well)")
        board = find_board(of, self.options, self.line, self.env, self.selection.trust)
        self.joined = self._open.enter_context(meeting(board, of.node, of.nodes, self.options.timeout))
        return self.joined

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Tell the other nodes, which wait, an error that keeps this node from taking part."""
        try:
            yield
        except CkptError:
            rank, ranks = self.membership.rank, self.membership.ranks
            first = rank is None or (ranks is not None and rank == ranks.start)
            if self._meets and first and self.joined is None:
                with suppress(CkptError):  # raise the error itself, not one of telling it
                    self._join()  # which this error ends for all
            raise

    # ---- deciding

    def make(self) -> Body:
        """Return the body of a new decision. Raise CkptError, the same on all nodes that meet."""
        if self.options.agree:
            from ckpt_tools.job.consensus import agree

            ranks, world = self.membership.ranks, self.selection.world_size or self.world
            if ranks is None:
                raise UsageError(
                    "which ranks run on this node is unknown",
                    "add --world-size N (CKPT_NODES and CKPT_NODE as well, where the launcher does not tell)",
                )
            joined, question = self._join(), digest(self.selection)
            asked = replace(self.selection, rank=None, world_size=world or len(ranks) * joined.size)
            plan = agree(self.root, asked, ranks, joined, asked=question, listener=self.listener)
            return self._describe(plan)
        if not self._meets:
            return self._plan_alone()
        said = self._join().exchange({}, lambda _: self._plan_alone())
        try:
            check({**said, "decision": {"root": absolute(self.root), "decided_at": 0}})
        except Invalid as e:
            raise UsageError(f"node 0 has made no decision that ckpt makes: {e}", SAME) from e
        return said

    def _plan_alone(self) -> Body:
        made = make_plan(self.root, replace(self.selection, rank=None), self.listener)
        made = starts.with_loop(made, self.root, self.directory, self.selection.trust)
        return self._describe(starts.with_processes_left(made, self.directory))

    def _describe(self, plan: LoadPlan) -> Body:
        """Return the body of the decision for a plan, with its view or the files to be staged."""
        selection, options = self.selection, self.options
        if self.listener.made:
            self.listener.made(plan)
        body = body_of(plan)
        if options.stage and plan.checkpoint:
            from ckpt_tools.job.staging.fetching import describe

            body |= describe(plan, options.stage, layouts_of(selection))
        elif options.view and plan.checkpoint:
            from ckpt_tools.job.view import build

            body |= build(plan, options.view, selection.trust, layouts_of(selection))
        return body


def _list_names(directory: str) -> list[str]:
    hint = "make it readable, or name another directory with --plan-dir"
    with explain_refusal(f"{directory} cannot be listed", hint), suppress(FileNotFoundError):
        return os.listdir(directory)
    return []
