"""The history of a root: the checkpoint that each start resumed from, and the training lost in between; a
line of JSON for each decision, beside the log of decisions. No decision depends on it: a line that was cut is
counted, and a lost history stops no start.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import takewhile

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools.errors import CkptError
from ckpt_tools.findings import fill_hint
from ckpt_tools.job.decision import Decision
from ckpt_tools.model.finding import Severity
from ckpt_tools.model.plan import LoadPlan
from ckpt_tools.planning import first_launch
from ckpt_tools.planning.rules.choice import another_writer, restart_loop, tracker_stale
from ckpt_tools.planning.rules.rule import Hit, finding_of
from ckpt_tools.settings.checked_json import Invalid, NoJson, decode, parse
from ckpt_tools.storage import trust
from ckpt_tools.storage.stalls import limit_time, run_aside, watch_call
from ckpt_tools.storage.trust import OURS, Trust

NAME = "starts.jsonl"
_PATIENCE = 10.0  # seconds for a read of /proc, which hangs if a process does
_LISTED = 32
_GONE = "bring it back from a copy if nobody meant to remove it; 'ckpt plan ROOT --history' lists the starts"


class PassedOver(Struct, frozen=True):
    """A checkpoint that was not resumed from; ``codes`` are of the findings against it."""

    path: str
    step: int | None
    codes: tuple[str, ...]


class Start(Struct, frozen=True):
    """One decision. ``path`` is None for a start from nothing; ``decided_at`` is in seconds since the epoch.
    ``passed`` are better checkpoints that were given up. ``lost_steps`` and ``lost_seconds`` are how far the
    furthest of them, or of checkpoints ahead, was beyond the chosen one (None if unknown).
    """

    decided_at: float
    path: str | None
    step: int | None = None
    kind: str | None = None
    job: str | None = None
    host: str | None = None
    passed: tuple[PassedOver, ...] = ()
    lost_steps: int | None = None
    lost_seconds: float | None = None


class History(Struct, frozen=True):
    """The starts of a root, the last one first; ``damaged`` is the number of unreadable lines."""

    root: str
    starts: tuple[Start, ...] = ()
    damaged: int = 0

    @property
    def repeats(self) -> int:
        """How many starts in a row, up to the last, resumed from the same checkpoint."""
        if not self.starts or self.starts[0].path is None:
            return 0
        same = self.starts[0].path, self.starts[0].step
        return sum(1 for _ in takewhile(lambda s: (s.path, s.step) == same, self.starts))


def read_history(root: str, directory: str, trusted: Trust = OURS) -> History:
    """Return the history in the log in ``directory``. Raise CannotLook and Untrusted."""
    path = f"{directory}/{NAME}"
    data = first_launch.read_below(path, f"the history of starts {path}", trusted)
    rows = [line for line in (data or b"").split(b"\n") if line.strip()]
    starts = list[Start]()
    for row in rows:
        with suppress(NoJson, Invalid):
            starts.append(decode(parse(row), Start))
    return History(root, tuple(reversed(starts)), len(rows) - len(starts))


def add(directory: str, decision: Decision, trusted: Trust) -> None:
    """Add a decision to the log in ``directory``. No error counts."""
    with suppress(OSError, CkptError), trust.directory(directory, trusted) as at:
        fd = trust.create(NAME, os.O_WRONLY | os.O_APPEND, at, trusted)
        with open(fd, "ab", buffering=0) as file:
            file.write(make_line(decision))
            os.fsync(fd)


def make_line(decision: Decision) -> bytes:
    """Return the line of a decision (docs/json.md), after a line feed, which ends a line that was cut."""
    about, chosen, ahead = decision.origin, decision.document.checkpoint, decision.document.ahead or ()
    passed = [
        {"path": r["path"], "step": r.get("step"), "codes": sorted({f["code"] for f in r["findings"]})}
        for r in (decision.body.get("rejected") or ())[:_LISTED]
    ]
    row: dict[str, object] = {"decided_at": about.decided_at, "host": about.host, "job": about.job}
    row |= {"path": None, "step": None, "kind": None, "passed": passed}
    if chosen:
        row |= {"path": chosen.path, "step": chosen.step, "kind": chosen.kind}
        row["lost_steps"] = _find_loss(chosen.step, [*(r["step"] for r in passed), *(c.step for c in ahead)])
        row["lost_seconds"] = _find_loss(chosen.mtime, [c.mtime for c in ahead])
    return b"\n" + json.dumps(row).encode("utf-8", "surrogateescape")


def _find_loss(chosen: float | None, others: Sequence[float | None]) -> float | None:
    """Return how far the greatest of ``others`` is beyond ``chosen`` (steps or seconds); None if unknown."""
    known = [n for n in others if n is not None]
    return None if chosen is None or not known else max(0, *(n - chosen for n in known))


def add_history_warnings(plan: LoadPlan, root: str, directory: str, trusted: Trust) -> LoadPlan:
    """Return the plan with warnings: a third start in a row from one checkpoint, a later one that is gone."""
    if plan.checkpoint is None:
        return plan
    try:
        before = read_history(root, directory, trusted)
    except CkptError:  # no decision depends on the history
        return plan
    chosen, last = plan.checkpoint, before.starts[0] if before.starts else Start(0, None)
    hits = restart_loop.check((before.repeats if last.path == chosen.path else 0, chosen.path))
    warnings = [finding_of(restart_loop.RULE, hit) for hit in hits]
    known = {c.path for c in (*plan.candidates, *plan.ahead, *(r.checkpoint for r in plan.rejected))}
    step, now = last.step, plan.resume_step
    if step is not None and now is not None and step > now and last.path not in known:
        text = f"the last start resumed from step {step} ({last.path}), of which nothing is left"
        hint = fill_hint(_GONE, root, root)
        hit = Hit(plan.root, text, hint, Severity.WARNING, code="dangling-tracker")
        warnings.append(finding_of(tracker_stale.RULE, hit))
    return replace(plan, warnings=(*plan.warnings, *warnings))


def add_process_warnings(plan: LoadPlan, directory: str) -> LoadPlan:
    """Return the plan with a warning if processes of an earlier start of this run are alive, and may save."""
    run = plan.checkpoint.parts[0].base if plan.checkpoint else plan.root
    with limit_time(_PATIENCE), suppress(OSError):
        left = run_aside(lambda: sorted(_find_processes_left(directory, plan.root, run)))
        return replace(plan, warnings=(*plan.warnings, *another_writer.describe_processes(plan.root, left)))
    return plan


def _find_processes_left(directory: str, root: str, run: str) -> Iterator[int]:
    """Yield processes that follow a decision in ``directory`` about ``run``, but not their children, nor this
    job's: those above this process, and those that its shell has started. Raise OSError without /proc.
    """
    started: dict[int, str] = {}
    for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
        with suppress(FileNotFoundError, PermissionError, ProcessLookupError):
            words = os.fsdecode(_read(f"/proc/{pid}/environ")).split("\0")
            env = dict(word.partition("=")[::2] for word in words)
            if env.get("CKPT_PLAN", "").startswith(f"{directory}/"):
                started[pid] = env.get("CKPT_PATH", "")
    own = [os.getpid(), *_list_ancestors(os.getpid())]
    shells = {*own[:3]} - {1}
    for pid, path in started.items():
        ancestors = list(_list_ancestors(pid))
        of_another_run = path.startswith(f"{root}/") and not f"{path}/".startswith(f"{run}/")
        if not (of_another_run or pid in own or shells & {*ancestors[:1]} or started.keys() & ancestors):
            yield pid


def _list_ancestors(pid: int) -> Iterator[int]:
    """Yield the process's parent, the parent of that, and so on, to the first process of all."""
    while pid > 1:
        try:  # proc(5): the parent is the second word behind the name, which may hold parentheses itself
            pid = int(_read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError, IndexError):
            pid = 1  # it has ended
        yield pid


def _read(path: str) -> bytes:
    """Return the bytes of a file of /proc, within the time limit of ``storage.stalls``. Raise OSError."""
    with watch_call(open, path, "rb") as f:
        return watch_call(f.read)
