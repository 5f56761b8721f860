"""Choose among ranked checkpoints with a judge, lazily: nothing older than the winner is judged. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from msgspec import Struct

from ckpt_tools.model.checkpoint import Checkpoint, Order
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import Assignment, Choice, Rejected, Rollback
from ckpt_tools.model.selection import Selection


class Judgement(Struct, frozen=True):
    """What the judge says of a candidate; whether file contents were read for it; the files for each rank."""

    usable: bool
    findings: tuple[Finding, ...] = ()
    read: bool = False
    assignment: Assignment | None = None


Judge = Callable[[Checkpoint], Judgement]
StepOf = Callable[[Checkpoint], "int | None"]
_KINDS = {Kind.PERIODIC: 0, Kind.BEST: 1, Kind.DYING_GASP: 2, Kind.RELEASE: 3}


def _make_step_key(c: Checkpoint) -> tuple[Order, str, str]:
    """Return a key that all saves of one step share; a save without step and epoch has one of its own."""
    if c.step is not None:
        return (c.step, -1, -1), "", ""
    return c.order, c.layout, c.path if c.order == (-1, -1, -1) else ""


def rank(
    candidates: Sequence[Checkpoint],
    order: str = "mtime",
    prefer: Kind | None = None,
    get_position: Callable[[Checkpoint], Order] = attrgetter("order"),
) -> list[Checkpoint]:
    """Return candidates, best first: by modification time (``order`` "mtime") or by step, ties by the other;
    ``get_position`` returns a save's position in training. The kind ``prefer`` goes before all others, a
    release after all. At the same step a periodic save goes before best, and before a dying gasp (an
    emergency save), whose time it takes if that is later.
    """
    gasps, regular = dict[object, int](), dict[object, int]()  # when each step was saved last (ns)
    for c in candidates:
        if c.kind in (Kind.DYING_GASP, Kind.PERIODIC):
            newest, step_key = gasps if c.kind is Kind.DYING_GASP else regular, _make_step_key(c)
            newest[step_key] = max(c.mtime_ns, newest.get(step_key, 0))

    def find_time(c: Checkpoint) -> int:
        step_key = _make_step_key(c)
        if c.kind is Kind.PERIODIC:
            return max(c.mtime_ns, gasps.get(step_key, 0))
        return c.mtime_ns if c.kind is Kind.DYING_GASP else min(c.mtime_ns, regular.get(step_key, c.mtime_ns))

    def make_sort_key(c: Checkpoint) -> tuple[object, ...]:
        latest, furthest = -find_time(c), tuple(-n for n in get_position(c))
        return (
            prefer is not None and c.kind is not prefer,
            c.kind is Kind.RELEASE,
            *((latest, furthest) if order == "mtime" else (furthest, latest)),
            _KINDS[c.kind],
            -c.mtime_ns,
            -(c.generation or 0),
            c.path,
        )

    return sorted(candidates, key=make_sort_key)


def choose(
    ranked: Sequence[Checkpoint],
    judge: Judge,
    *,
    max_attempts: int = 5,
    save_interval: int | None = None,
    step_of: StepOf = lambda c: c.step,
    fallback: bool = True,
) -> Choice:
    """Return the first candidate that the judge accepts, and why every better one was rejected.

    ``max_attempts`` bounds the candidates whose contents are read. When a dying-gasp candidate at step s is
    not usable and ``save_interval`` N is given, only other dying-gasp candidates and periodic ones at or
    below s // N * N follow. Without ``fallback`` only the best is judged.
    """
    rejected, left_out = list[Rejected](), list[Checkpoint]()
    gasps, attempts = list[tuple[int, Rejected]](), 0
    for candidate in ranked:
        if attempts >= max_attempts:
            return Choice(None, tuple(rejected), attempts, exhausted=True, left_out=tuple(left_out))
        if gasps and save_interval and candidate.kind is not Kind.DYING_GASP:
            step = step_of(candidate)
            if step is None or step > min(failed // save_interval * save_interval for failed, _ in gasps):
                left_out.append(candidate)
                continue
        judgement = judge(candidate)
        attempts += judgement.read
        if judgement.usable:
            return Choice(
                candidate,
                tuple(rejected),
                attempts,
                rollback=_make_rollback(gasps, step_of(candidate), save_interval),
                assignment=judgement.assignment,
                left_out=tuple(left_out),
            )
        rejected.append(Rejected(candidate, judgement.findings))
        if not fallback:
            break
        gasp = save_interval and candidate.kind is Kind.DYING_GASP
        if gasp and (step := step_of(candidate)) is not None:
            gasps.append((step, rejected[-1]))
    return Choice(None, tuple(rejected), attempts, left_out=tuple(left_out))


def _make_rollback(
    gasps: Sequence[tuple[int, Rejected]], step: int | None, save_interval: int | None
) -> Rollback | None:
    """Return the rollback to ``step`` from rejected emergency saves (newest first); None if there is none."""
    if not gasps or step is None or not save_interval:
        return None
    origin, rejected = gasps[0]
    reasons = "; ".join(f.message for f in rejected.findings[:2]) or "not resumable"
    why = f"the emergency checkpoint at step {origin} is not usable: {reasons}"
    return Rollback(origin, step, save_interval, f"{why}; {origin - step} steps are lost")


def belongs(c: Checkpoint, selection: Selection) -> bool:
    """Return True if a checkpoint is of the layout, the run and the prefix that the selection names."""
    run, prefix = selection.run, selection.prefix or ""
    if run is not None and run.rstrip("/") not in (c.run, c.parts[0].base, c.run.rpartition("/")[2]):
        return False
    named = has_prefix(c, prefix) or any(p.path.rpartition("/")[2].startswith(prefix) for p in c.parts)
    return named and selection.layout in (None, c.layout)


def has_prefix(c: Checkpoint, prefix: str) -> bool:
    """Return True if ``prefix`` is the whole prefix of the file names: ``bert`` is not ``bert_large``."""
    return prefix in (c.parts[0].prefix, f"{c.parts[0].prefix}_{c.parts[0].generation}")


def allows(selection: Selection, c: Checkpoint, step_of: StepOf = attrgetter("step")) -> bool:
    """Return True if --kind and --max-step leave a checkpoint. ``step_of`` may read, and is called last."""
    if selection.kind not in (None, c.kind):
        return False
    return selection.max_step is None or ((step := step_of(c)) is not None and step <= selection.max_step)


def is_wanted(c: Checkpoint, selection: Selection) -> bool:
    """Return True if the selection asks for a checkpoint; of an unfinished save only its name counts."""
    return belongs(c, selection) and (not c.unfinished or allows(selection, c))
