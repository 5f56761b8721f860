"""One watched directory: which checkpoints are there, which are verified now, and which events tell of it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, pairwise
from math import inf
from statistics import median

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from ckpt_tools.api import plan
from ckpt_tools.cache import open_cache
from ckpt_tools.errors import CannotLook, CkptError
from ckpt_tools.guard.targets import verify
from ckpt_tools.guard.watch import DAY, WatchOptions
from ckpt_tools.guard.watch.metrics import STATES, Answer, Tally
from ckpt_tools.guard.watch.pending import Listed, Record, Records, Starts, State, list_checkpoints
from ckpt_tools.model.answers import Event
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding, Severity, Verdict
from ckpt_tools.model.part import Kind
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning import first_launch
from ckpt_tools.planning.verification import read_step
from ckpt_tools.reading.opening import open_session
from ckpt_tools.reading.session import Session
from ckpt_tools.reading.unseen import list_unlisted
from ckpt_tools.storage import count_read
from ckpt_tools.storage.trust import Untrusted
from ckpt_tools.storage.urls import is_url

_BATCH_SECONDS = 60.0  # seconds for which a listing is used; after them newer saves go first
_TAIL = 2000  # last bytes of a command's output that are kept
_GRACE = 5.0  # seconds between SIGTERM and SIGKILL
_SAVES = 9  # number of newest saves whose interval is told
_STATES: dict[Verdict, State] = {
    Verdict.OK: "good",
    Verdict.SUSPECT: "suspect",
    Verdict.BROKEN: "bad",
    Verdict.UNKNOWN: "unknown",
}
_GOOD = ("good", "suspect")
_SEALED = frozenset({"sealed", "already"})
"""States of sealing after which nothing is left to do; others may change the next time."""
_BUDGET = 60.0
"""Seconds for which ``plan`` reads, as in 'ckpt run'. Earlier verdicts are in the cache."""


class WatchedRoot:
    """Watches one root; ``say`` is called with each event. A problem is reported once, until it is solved."""

    def __init__(self, root: str, options: WatchOptions, say: Callable[[Event], object]) -> None:
        self.root, self.options, self._say = root, options, say
        self.records, self.tally = Records(root, options), Tally(root)
        self._problems: dict[str, str] = {}
        self._passed: Mapping[str, object] = {}
        self._answered: object = None
        self._age = options.every if is_url(root) else 0.0

    def load(self) -> None:
        """Read the records of an earlier run; report a problem if they cannot be used."""
        try:
            self.records.load()
        except (OSError, ValueError) as e:
            why = getattr(e, "strerror", None) or e
            message = f"{self.records.directory} cannot be used: {why}; everything is checked again"
            self.report_problem("state-lost", message)
        self.tally.again = self.records.starts.again

    def look(self) -> float:
        """Make one pass; return the seconds until the next one, 0.0 if verifications are left. Raises
        CannotLook if the root cannot be listed; then the records stay as they are.
        """
        trusted, note = self.options.read.trust, partial(self.report_problem, "no-cache")
        with open_cache(self.root, True, self._age, note, trusted) as cache:
            # Our own clock tells that files are settled (Records), not the clock of a file server.
            s = open_session(self.root, replace(self.options.read, settle=-inf), cache=cache)
            found = list_checkpoints(s)
            self.tally.up, self.tally.passed_at = True, time.time()
            self._forget_gone(s, found)
            due = self.records.find_due(found)
            until = time.monotonic() + _BATCH_SECONDS
            while due:
                listed, reason = due.pop(0)
                if cache:  # cached verdicts of a store count: its ETags tell changes
                    retries = reason == "retry" and not self.records.known[listed.key].unsealed
                    cache.max_age = 0.0 if reason == "scrub" or retries else self._age
                self._verify(s, listed, reason)
                if time.monotonic() > until:
                    break
        self.end_problem("cannot-look")
        if unseen := tuple(f for f in list_unlisted(s) if f.severity is not Severity.NOTE):
            message = f"{len(unseen)} entries below {self.root} could not be looked at"
            self.report_problem("unreadable", message, unseen)
        else:
            self.end_problem("unreadable")
        self._look_for_starts()
        self._report_pass(s, found, {listed.key for listed, _ in due})
        return 0.0 if due else self.options.rescan

    @property
    def blind(self) -> bool:
        """Whether the last pass, or its plan, could not look at something."""
        exit_code = self.tally.answer.exit_code if self.tally.answer else 0
        return "unreadable" in self._problems or exit_code == CannotLook.exit_code

    # ---- one checkpoint

    def _verify(self, s: Session, one: Listed, reason: str) -> None:
        """Verify a checkpoint, seal it if asked, report an event, call the hook, and update its record. What
        is written after it was read changes the stamp in the next listing.
        """
        c, before, started = one.checkpoint, self.records.known.get(one.key), time.monotonic()
        with count_read() as read:
            checked = verify(s, [c], one.window)[c.key]
        seconds = time.monotonic() - started
        self.tally.bytes_read += read.bytes
        self.tally.seconds += seconds
        state = _STATES[checked.verdict]
        self.tally.verifications["written" if checked.written else state] += 1
        if checked.written:
            self.records.put_off(one, seconds)
            return
        if c.step is None and checked.verdict is not Verdict.UNKNOWN:
            c = replace(c, step=read_step(s, c, one.window))
        same = before is not None and (before.stamp, before.state) == (one.stamp, state)
        seal, unsealed = self._seal(s, c, state)
        is_sealed = seal is not None and not unsealed
        if not same or reason != "retry" or is_sealed:
            names = ("path", "step", "epoch", "step_in_epoch", "layout", "run")
            fields = {
                **{name: getattr(c, name) for name in names},
                "kind": str(c.kind),
                "state": state,
                "reason": reason,
                "files": checked.files,
                "bytes": checked.size,
                "bytes_read": read.bytes,
                "seconds": round(seconds, 6),
                **({"seal": seal} if seal else {}),
            }
            self.say("checkpoint", fields, checked.findings)
        if not same:
            self._call_hook(c, checked.codes, state)
        saved_at, codes = c.mtime_ns / 1e9, checked.codes
        record = Record(one.stamp, state, time.time(), c.path, c.step, saved_at, codes, unsealed)
        self.records.known[one.key] = record
        if unsealed or state == "unknown":
            self.records.put_off(one, time.monotonic() - started)

    def _seal(self, s: Session, c: Checkpoint, state: str) -> tuple[str | None, bool]:
        """Seal a good checkpoint if asked to; return (states of the seals, whether to try again)."""
        if not self.options.seal or state != "good":
            return None, False
        from ckpt_tools.guard.sealing import seal_verified

        try:
            result = seal_verified(s, c, self.options.read)
        except CkptError as e:
            self.report_problem("seal-failed", str(e))
            return "failed", True
        self.end_problem("seal-failed")
        states = dict.fromkeys(one.state for one in result.checkpoints)
        return ", ".join(states) or "nothing", not states.keys() <= _SEALED

    def _call_hook(self, c: Checkpoint, codes: Sequence[str], state: str) -> None:
        """Run the command for a verified checkpoint, if there is one for its state, and report its end."""
        good = state in _GOOD
        command = self.options.on_good if good else self.options.on_bad if state == "bad" else None
        if command is None:
            return
        values = {
            "CKPT_PATH": c.path,
            "CKPT_STEP": c.step,
            "CKPT_EPOCH": c.epoch,
            "CKPT_STEP_IN_EPOCH": c.step_in_epoch,
            "CKPT_WATCH_ROOT": self.root,
            "CKPT_WATCH_STATE": state,
            "CKPT_WATCH_CODES": ",".join(codes),
        }
        variables = {name: "" if value is None else str(value) for name, value in values.items()}
        ended = run_command(command, variables, self.options.hook_timeout)
        worked = ended.exit_code == 0 and ended.in_time
        self.tally.hooks["ok" if worked else "failed" if ended.in_time else "timeout"] += 1
        self.say("hook", {"path": c.path, "on": "good" if good else "bad", **to_builtins(ended)})

    # ---- all of them

    def _forget_gone(self, s: Session, found: Mapping[str, Listed]) -> None:
        """Forget checkpoints that are gone, if everything could be listed: else they may still be there."""
        self.records.forget_waits(found)
        for key in [] if s.found.unseen else [key for key in self.records.known if key not in found]:
            record = self.records.known.pop(key)
            self.say("gone", {"path": record.path, "step": record.step, "state": record.state})

    def _report_pass(self, s: Session, found: Mapping[str, Listed], queued: Collection[str]) -> None:
        """Sum the root up in the tally, and report changes as an event; keys in ``queued`` are still due."""
        tally, known = self.tally, self.records.known
        shown = {key: r for key, one in found.items() if (r := known.get(key)) and r.stamp == one.stamp}
        states = dict.fromkeys(found, "waiting") | {key: record.state for key, record in shown.items()}
        tally.states = Counter(dict.fromkeys(STATES, 0) | Counter(states.values()))
        tally.codes = Counter(chain(*(record.codes for record in shown.values())))
        good = (r for r in shown.values() if r.state in _GOOD)
        tally.last_good = last = max(good, key=lambda r: r.saved_at, default=None)
        tally.interval = _find_interval(found)
        basis = hash((frozenset(one.basis for one in found.values()), frozenset(states.items())))
        if tally.answer is None or basis != self._answered:
            tally.answer, self._answered = _ask_plan(s, self.options, _find_runs(found)), basis
        answer = to_builtins(tally.answer)
        fields = {
            "checkpoints": dict(tally.states),
            "last_good": last and {"path": last.path, "step": last.step, "saved_at": last.saved_at},
            "tracker_agrees": answer.pop("tracker"),
            "plan": answer,
            "not_checked": _count_waiting(found, shown, queued),
        }
        if fields != self._passed:
            self._passed = fields
            self.say("pass", fields)

    def _look_for_starts(self) -> None:
        """Report if a job has started since the last pass, and count starts in a row from the same step."""
        before, options = self.records.starts, self.options
        try:
            home = first_launch.find_home(self.root, _make_selection(options))
            last = first_launch.read_last_start(home, options.read.trust)
        except CkptError as e:
            self.report_problem("starts-unknown", str(e))
            return
        self.end_problem("starts-unknown")
        if last is None or last.decided_at == before.decided_at:
            return
        again = before.again + 1 if before.decided_at and last.step == before.step else 0
        self.records.starts = Starts(last.decided_at, last.step, again)
        self.tally.again = again
        fields = {"path": last.path, "step": last.step, "decided_at": last.decided_at, "again": again}
        self.say("restart", fields)

    # ---- words

    def save(self) -> None:
        self.write("state-not-written", self.records.directory, self.records.save)

    def write(self, code: str, place: str | None, work: Callable[[], object]) -> None:
        """Write to ``place`` by ``work``; a failure is reported as a problem, and watching goes on."""
        try:
            work()
        except (OSError, Untrusted) as e:
            self.report_problem(code, f"{place} cannot be written: {getattr(e, 'strerror', None) or e}")
        else:
            self.end_problem(code)

    def say(self, kind: str, fields: Mapping[str, object], findings: tuple[Finding, ...] = ()) -> None:
        self._say(Event(kind, time.time(), self.root, fields, findings))

    def report_problem(self, code: str, message: str, findings: tuple[Finding, ...] = ()) -> None:
        """Report what could not be done; the same message is reported once."""
        self.tally.problems[code] += 1
        if self._problems.get(code) != message:
            self._problems[code] = message
            self.say("problem", {"code": code, "message": message}, findings)

    def end_problem(self, code: str) -> None:
        """Note that a problem is over: it is reported again when it comes back."""
        self._problems.pop(code, None)


def _count_waiting(
    found: Mapping[str, Listed], known: Collection[str], queued: Collection[str]
) -> Counter[str]:
    """Return reason to wait -> number of checkpoints, of those that are not ``known`` yet."""
    waiting = (one for key, one in found.items() if key not in known)
    return Counter(
        "queued" if one.key in queued else "young" if one.finished else "unfinished" for one in waiting
    )


def _ask_plan(s: Session, options: WatchOptions, runs: Sequence[str]) -> Answer:
    """Ask ``plan`` about a root, or about each of several ``runs`` (saved last first). Return the first
    failure, else the first answer; a CkptError that ``plan`` raises becomes an answer.
    """
    question, answers, agree = _make_selection(options), list[Answer](), list[bool]()
    for run in runs if len(runs) > 1 else [None]:
        try:
            chosen = plan(s.root, replace(question, run=run)).checkpoint
        except CkptError as e:
            answers.append(Answer(e.exit_code, why=str(e) if run is None else f"run {run}: {e}"))
            continue
        if chosen is None:
            answers.append(Answer(0))
            continue
        answers.append(Answer(0, chosen.path, chosen.step))
        if chosen.parts and (tracker := s.tracker(chosen.layout, chosen.parts[0].base)):
            name = tracker[1]
            agree.append(not isinstance(name, Finding) and s.layouts.of(chosen).tracker.names(chosen, name))
    first = next((a for a in answers if a.exit_code), answers[0])
    return replace(first, tracker=all(agree) if agree else None)


def _make_selection(options: WatchOptions) -> Selection:
    """Return the selection of a job that sets no options but those for reading."""
    names = "jobs io limit_rate settle require seal_dir trust_global key_file trust layouts"
    read = {name: getattr(options.read, name) for name in names.split()}
    age = max(DAY, 2 * options.every)
    return Selection(**read, plan_dir=options.plan_dir, cache=True, max_age=age, budget=_BUDGET)


def _find_runs(found: Mapping[str, Listed]) -> list[str]:
    """Return the runs that have finished checkpoints, those saved last first."""
    newest: dict[str, int] = {}
    for one in found.values():
        if one.finished and one.checkpoint.kind is Kind.PERIODIC:
            run = one.checkpoint.run
            newest[run] = max(newest.get(run, 0), one.checkpoint.mtime_ns)
    return sorted(newest, key=lambda run: -newest[run])


def _find_interval(found: Mapping[str, Listed]) -> float | None:
    """Return the median seconds between the newest saves of the run saved last; None without two."""
    saved = [one.checkpoint for one in found.values() if one.checkpoint.kind is Kind.PERIODIC]
    saved.sort(key=lambda c: c.mtime_ns)
    times = [c.mtime_ns / 1e9 for c in saved if (c.layout, c.run) == (saved[-1].layout, saved[-1].run)]
    gaps = [b - a for a, b in pairwise(times[-_SAVES:])]
    return median(gaps) if gaps else None


# ---- commands of the user, one at a time


class CommandResult(Struct, frozen=True):
    """How a command ended: its exit code (minus the signal), None if it could not be started; ``in_time`` is
    False if it was stopped at the timeout. ``output`` is the end of what it printed.
    """

    exit_code: int | None
    in_time: bool
    seconds: float
    output: str


def run_command(command: str, variables: Mapping[str, str], timeout: float) -> CommandResult:
    """Run a shell command to its end, or stop it after ``timeout`` seconds. Names found in a tree go into
    variables and never into the command, so no name can be a command. If this process is ended meanwhile, the
    command is stopped as well.
    """
    started, tail, in_time = time.monotonic(), b"", True
    try:
        process = subprocess.Popen(  # noqa: S603 - the words of whoever started this process
            ["/bin/sh", "-c", command],
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            bufsize=0,
        )
    except OSError as e:
        return CommandResult(None, True, 0.0, str(e))

    def read() -> None:
        nonlocal tail
        assert process.stdout is not None  # noqa: S101 - for the type checker: it was asked for
        with process.stdout as stream:
            while data := stream.read(1 << 16):
                tail = (tail + data)[-_TAIL:]

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        in_time = False
        _end(process)
    except BaseException:
        _end(process)
        raise
    reader.join(1.0)  # no longer: a process that the command left running may hold the pipe open for ever
    seconds = round(time.monotonic() - started, 6)
    return CommandResult(process.returncode, in_time, seconds, tail.decode("utf-8", "replace"))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a command and all processes that it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE)
            return
