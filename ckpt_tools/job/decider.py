"""The one decision of a job: its first member makes it under a lock (plans, builds the view, meets other
nodes), all others read it. Decisions about one root are numbered, in a directory for each key.
"""

from __future__ import annotations

import os
import re
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
from ckpt_tools.job.meeting import SAME, Backoff, Meeting, find_board, meeting
from ckpt_tools.job.membership import Membership, Options, Process
from ckpt_tools.launchers import LaunchLine
from ckpt_tools.layouts import layouts_of
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.output import json as as_json
from ckpt_tools.planning import first_launch, trackers
from ckpt_tools.planning.first_launch import FLAG, make_safe
from ckpt_tools.planning.planner import Planner
from ckpt_tools.reading.session import Progress
from ckpt_tools.settings import plugins, resolve
from ckpt_tools.settings.checked_json import Invalid
from ckpt_tools.storage import trust
from ckpt_tools.storage.stalls import limit_time
from ckpt_tools.storage.trust import OURS, Trust, Untrusted
from ckpt_tools.storage.urls import to_absolute
from ckpt_tools.storage.writes import take_lock, write_aside

KEPT_DAYS = 90
"""Days after which a decision that no member takes any more is removed."""
_ROOM = "make room, or name another directory with --plan-dir"
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


def digest_selection(selection: Selection, stage: str = "") -> str:
    """Return a digest of the plug-ins, the directory of staged copies, and the selection but for options that
    differ between ranks.
    """
    common = replace(
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
    text = f"{common} {sorted(selection.fault_ranks)}{others}{stage}"
    return xxh3_64_hexdigest(text.encode("utf-8", "surrogatepass"))


class Decider(Struct, dict=True):
    """Makes or reads the decision of a start in this process. No node starts before all can, and a failing
    node tells the others. ``asked`` is a digest of the question, ``saves`` one of the input of the decision,
    "" if no other start has the key. ``joined`` is the meeting of nodes once this process is in it.
    """

    root: str
    selection: Selection
    membership: Membership
    options: Options
    line: LaunchLine | None
    env: Mapping[str, str]
    listener: Listener = SILENT
    asked: str = ""
    saves: str = ""
    joined: Meeting | None = None
    _open: ExitStack = field(default_factory=ExitStack)

    @cached_property
    def directory(self) -> str:
        """The directory of the decisions about the root."""
        return first_launch.name_home(self.options.plan_dir or resolve.decisions(self.env), self.root)

    @property
    def key(self) -> str:
        """The directory name of the decision; nodes that meet have one each, or would wait for a lock."""
        key = self.membership.key
        return f"{key}.node-{self.membership.node}" if self.options.agree or not key else key

    @property
    def world(self) -> int | None:
        """The number of ranks, as the launcher tells."""
        started = launchers.detect(self.env)
        return started.world_size.value if started and started.world_size else None

    def decide(self) -> Decision:
        """Return the decision for the key, read if another member has made it, else made here, under a lock.
        Raise CkptError, the same on all nodes.
        """
        started, trusted = time.time(), self.selection.trust
        with self._open:  # the meeting tells the others how this node ended
            with self._reporting():
                if self.options.require_mount:
                    self._require_mount()
                directory = os.path.join(self.directory, self.key)
                _make_own(self.directory, trusted, "name a writable directory with --plan-dir")
                if self.membership.unique and not self.membership.start:
                    self.saves = self.digest_saves()
                _make_own(directory, trusted, _ROOM)
            with hold_lock(os.path.join(directory, "lock"), self.options.timeout, trusted):
                with self._reporting():
                    names = _list_names(directory)
                    numbers = [int(m[1]) for name in names if (m := _NUMBERED.fullmatch(name))]
                    last = max((n for n in numbers if f"{n}.json" in names), default=0)
                    newest = os.path.join(directory, f"{last}.json")
                    decision = self._find_usable(newest, started) if last else None
                if decision is None:
                    self._prune()
                    path = os.path.join(directory, f"{max(numbers, default=0) + 1}.json")
                    return self._make_and_publish(path)
                if not decision.document.error and decision.origin.saves != self.saves:
                    text = f"the decision {newest} may be of an earlier start with this job id"
                    remove = f"rm -r {shlex.quote(directory)}"
                    text = f"{text}: its ranks or checkpoints are not those of {to_absolute(self.root)} now"
                    hint = f"give each start its own --job; or end the whole job, then {remove}"
                    raise CannotLook(text, hint)
                self._claim(newest)
        if error := decision.document.error:
            raise error.as_error()
        return decision

    def _require_mount(self) -> None:
        """Raise CannotLook if ROOT lies on the file system of /: what is mounted there is missing."""
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
        selection = replace(self.selection, rank=None)
        planner, message = Planner(self.root, selection, self.listener.progress), ""
        with limit_time(selection.budget):
            try:
                planner.find_candidates()
            except (NoCheckpoint, NoneUsable, UsageError) as error:
                message = str(error)
            files = sorted((p.path, p.size, p.mtime_ns) for c in planner.ranked for p in c.parts)
            tracked = trackers.find_trackers(planner.session, planner.ranked) if files else ()
            text = f"{files} {[(t.path, t.says) for t in tracked]} {message} {ranks}"
        return xxh3_64_hexdigest(text.encode("utf-8", "surrogatepass"))

    # ---- decisions on disk

    def _find_usable(self, path: str, started: float) -> Decision | None:
        """Return the decision in the file ``path``; None if this member, asking since ``started``, needs a
        new one. Raise CannotLook if unknown. Unless the key is unique, the launcher must still run.
        """
        membership, takers = self.membership, _list_names(f"{path.removesuffix('.json')}.taken")
        if make_safe(membership.member) in takers:
            return None
        try:
            decision = read(path, self.selection.trust, FLAG)
        except CannotLook as e:
            if isinstance(e.__cause__, OSError) or takers:  # two decisions could be followed at once
                who = f", and {', '.join(sorted(takers)[:4])} may have started by it" if takers else ""
                remove = f"rm -r {shlex.quote(os.path.dirname(path))}"
                hint = f"make it readable; or end all processes of that start, then {remove}"
                raise CannotLook(f"{e}{who}", hint) from e
            return None  # cut off by a full disk or a power failure, and no member has taken it
        origin, here = decision.origin, Process.here()
        if decision.document.error and origin.decided_at < started:
            return None  # a failure counts for the members that waited for it; later ones try again
        ended = origin.host == here.host and origin.agent != here.agent and not Process.is_alive(origin.agent)
        return decision if (membership.unique and membership.key) or not ended else None

    def _claim(self, path: str) -> None:
        """Record on disk that this member follows the decision ``path``. Raise CannotLook and Untrusted."""
        taken, member = f"{path.removesuffix('.json')}.taken", make_safe(self.membership.member)
        with explain_refusal(f"{taken}/{member} cannot be written", _ROOM), trust.label(FLAG):
            trust.make(taken, self.selection.trust)
            with trust.directory(taken, self.selection.trust) as at:
                os.close(trust.create(member, os.O_WRONLY, at, self.selection.trust))

    def _make_and_publish(self, path: str) -> Decision:
        """Make the decision and write it to ``path``; if that fails, write the error for those that wait."""

        def add_origin(body: Body) -> Decision:
            membership, origin = self.membership, asdict(Process.here())
            origin |= {"root": to_absolute(self.root), "decided_at": time.time(), "job": membership.job}
            origin |= {"generation": membership.generation, "nodes": membership.nodes}
            origin |= {"asked": self.asked, "saves": self.saves}
            return Decision(path, {**body, "decision": origin}, self.selection.trust)

        try:
            decision = add_origin(self.make_body())
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
        """Write a decision, and the note of its checkpoint for later starts (planning/first_launch.py): both
        appear when the block ends without an error.
        """
        files = {decision.path: decision.body}
        if chosen := decision.document.checkpoint:
            last: Body = {"step": decision.step, "path": chosen.path, "job": decision.origin.job}
            last["decided_at"] = decision.origin.decided_at
            files[os.path.join(self.directory, first_launch.LAST)] = last
        with ExitStack() as opened:
            for path, body in files.items():
                home, name = os.path.split(path)
                opened.enter_context(explain_refusal(f"the decision could not be written to {path}", _ROOM))
                with trust.label(FLAG):
                    at = opened.enter_context(trust.directory(home, self.selection.trust))
                data = as_json.dump(body).encode()
                opened.enter_context(write_aside(at, name, data, self.selection.trust))
            yield

    def _prune(self) -> None:
        """Remove decisions that no member has taken for ``KEPT_DAYS``. Errors are ignored."""
        oldest = time.time() - KEPT_DAYS * 86400
        with suppress(OSError):
            entries = [e for e in os.scandir(self.directory) if e.is_dir(follow_symlinks=False)]
            for entry in entries:
                with suppress(OSError, Untrusted):
                    inside = [e.stat(follow_symlinks=False) for e in os.scandir(entry.path)]
                    newest = max(st.st_mtime for st in (os.stat(entry.path), *inside))
                    if entry.name == self.key or newest >= oldest:
                        continue
                    fd = take_lock(os.path.join(entry.path, "lock"), self.selection.trust)
                    if fd is not None:
                        with open(fd, "rb"):
                            shutil.rmtree(entry.path, ignore_errors=True)

    # ---- the other nodes

    @property
    def _nodes_meet(self) -> bool:
        """Whether the nodes meet: each looks at its own disks, or no id lets them share a decision."""
        membership = self.membership
        shares_key = membership.unique and membership.key
        return self.options.agree or (membership.nodes > 1 and not shares_key)

    def _join(self) -> Meeting:
        """Return the meeting, once all nodes are there. Raise UsageError if this node's index is unknown."""
        node, nodes, timeout = self.membership.node, self.membership.nodes, self.options.timeout
        if node is None or node >= nodes:
            text = f"the index of this node among {nodes} nodes is unknown"
            raise UsageError(text, "set CKPT_NODE=N, from 0 (torchrun --node-rank tells it as well)")
        board = find_board(self.membership, self.options, self.line, self.env, self.selection.trust)
        self.joined = self._open.enter_context(meeting(board, node, nodes, timeout))
        return self.joined

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """If the block raises, the first process of this node joins the meeting: it tells other nodes."""
        try:
            yield
        except CkptError:
            rank, ranks = self.membership.rank, self.membership.ranks
            first = rank is None or (ranks is not None and rank == ranks.start)
            if self._nodes_meet and first and self.joined is None:
                with suppress(CkptError):  # raise the error itself, not one of telling it
                    self._join()  # which this error ends for all
            raise

    # ---- deciding

    def make_body(self) -> Body:
        """Return the body of a new decision. Raise CkptError, the same on all nodes that meet."""
        if self.options.agree:
            from ckpt_tools.job.consensus import agree

            ranks, world = self.membership.ranks, self.selection.world_size or self.world
            if ranks is None:
                raise UsageError(
                    "which ranks run on this node is unknown",
                    "add --world-size N (CKPT_NODES and CKPT_NODE as well, where the launcher does not tell)",
                )
            joined = self._join()
            selection = replace(self.selection, rank=None, world_size=world or len(ranks) * joined.size)
            plan = agree(self.root, selection, ranks, joined, asked=self.asked, listener=self.listener)
            return self._describe(plan)
        if not self._nodes_meet:
            return self._plan_alone()
        body = self._join().exchange({}, lambda _: self._plan_alone())
        try:
            check({**body, "decision": {"root": to_absolute(self.root), "decided_at": 0}})
        except Invalid as e:
            raise UsageError(f"node 0 has made no decision that ckpt makes: {e}", SAME) from e
        return body

    def _plan_alone(self) -> Body:
        """Return the body of a decision that this process makes for all; warn of what earlier starts left."""
        plan = make_plan(self.root, replace(self.selection, rank=None), self.listener)
        plan = starts.add_history_warnings(plan, self.root, self.directory, self.selection.trust)
        return self._describe(starts.add_process_warnings(plan, self.directory))

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


def _make_own(path: str, trusted: Trust, hint: str) -> None:
    """Make a directory if it is missing. Raise CannotLook, and Untrusted if others can write it."""
    with explain_refusal(f"{path} cannot be made", hint), trust.label(FLAG):
        trust.make(path, trusted)
        trust.check(path, trusted)


@contextmanager
def hold_lock(path: str, timeout: float, trusted: Trust = OURS) -> Iterator[None]:
    """Hold a lock file; the kernel frees it when the holder dies. Raise CannotLook after ``timeout`` s."""
    hint = "name a writable directory with --plan-dir, on a file system with flock"
    with explain_refusal(f"{path} cannot be locked", hint), trust.label(FLAG):
        fd = take_lock(path, trusted, wait=Backoff(timeout).pause)
    if fd is None:
        text = f"another process has been deciding for more than {timeout:g} s"
        raise CannotLook(text, "wait longer with --timeout, or read less with --budget")
    try:
        yield
    finally:
        os.close(fd)


def _list_names(directory: str) -> list[str]:
    """Return the names in a directory, [] if there is none. Raise CannotLook."""
    hint = "make it readable, or name another directory with --plan-dir"
    with explain_refusal(f"{directory} cannot be listed", hint), suppress(FileNotFoundError):
        return os.listdir(directory)
    return []
