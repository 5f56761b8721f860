"""Checkpoints and a judge in, a choice out.

Pure: the judge is called lazily, newest candidate first, and nothing older than the winner is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.frozen import frozen
from ckpt_tools.model.part import Kind
from ckpt_tools.model.plan import Assignment, Choice, Rejected, Rollback


@frozen
class Judgement:
    """What the judge says of one candidate: usable or not, why, whether file bodies had to be read for it, and
    what each rank would load.
    """

    usable: bool
    findings: tuple[Finding, ...] = ()
    read: bool = False
    assignment: Assignment | None = None


Judge = Callable[[Checkpoint], Judgement]
StepOf = Callable[[Checkpoint], "int | None"]
_KINDS = {Kind.PERIODIC: 0, Kind.BEST: 1, Kind.DYING_GASP: 2, Kind.RELEASE: 3}


def rank(
    candidates: Sequence[Checkpoint], order: str = "mtime", prefer: Kind | None = None
) -> list[Checkpoint]:
    """Best first: by modification time (``order`` "mtime") or by step, ties by the other; a release after
    every iteration.

    Those of the kind ``prefer`` go before all others. At the same step periodic goes before dying-gasp and
    best, and is as new as they are; not so two periodic ones of one step, which a rollback lies between.
    """
    lent: dict[tuple[str, str, tuple[int, int, int]], int] = {}

    def told(c: Checkpoint) -> tuple[str, str, tuple[int, int, int]]:
        alone = (
            c.path if c.order == (-1, -1, -1) else ""
        )  # nothing tells their steps, so they are not the same step
        return c.layout + alone, c.run, c.order

    for c in candidates:
        if c.kind is not Kind.PERIODIC:
            lent[told(c)] = max(c.mtime_ns, lent.get(told(c), 0))

    def key(c: Checkpoint) -> tuple[object, ...]:
        mtime = -max(c.mtime_ns, lent.get(told(c), 0)) if c.kind is Kind.PERIODIC else -c.mtime_ns
        step = tuple(-x for x in c.order)
        first, second = (mtime, step) if order == "mtime" else (step, mtime)
        return (
            prefer is not None and c.kind is not prefer,
            c.kind is Kind.RELEASE,
            first,
            second,
            _KINDS[c.kind],
            -c.mtime_ns,
            -(c.generation or 0),
            c.path,
        )

    return sorted(candidates, key=key)


def choose(
    ranked: Sequence[Checkpoint],
    judge: Judge,
    *,
    max_attempts: int = 5,
    save_interval: int | None = None,
    step_of: StepOf = lambda c: c.step,
    fallback: bool = True,
) -> Choice:
    """The first candidate that the judge accepts, and why every better one lost.

    ``max_attempts`` bounds the candidates whose bodies are read. When a dying-gasp candidate at step s is not
    usable and ``save_interval`` N is given, only other dying-gasp candidates and periodic ones at or below s
    // N * N follow. Without ``fallback`` only the best is judged.
    """
    rejected: list[Rejected] = []
    attempts, why = 0, ""
    limit: int | None = None
    origin: int | None = None
    for i, candidate in enumerate(ranked):
        if attempts >= max_attempts:
            return Choice(None, tuple(rejected), attempts, exhausted=True)
        dying = candidate.kind is Kind.DYING_GASP
        if limit is not None and not dying:
            step = step_of(candidate)
            if step is None or step > limit:
                continue
        judgement = judge(candidate)
        attempts += judgement.read
        if judgement.usable:
            to = step_of(candidate)
            rollback = (
                Rollback(origin, to, save_interval or 1, why)
                if origin is not None and to is not None
                else None
            )
            return Choice(
                candidate, tuple(rejected), attempts, rollback=rollback, assignment=judgement.assignment
            )
        rejected.append(Rejected(candidate, judgement.findings))
        if not fallback and i == 0:
            return Choice(None, tuple(rejected), attempts)
        step = step_of(candidate) if dying and save_interval else None
        if step is not None and save_interval:
            target = step // save_interval * save_interval
            if origin is None:
                origin, why = step, "; ".join(f.message for f in judgement.findings[:2]) or "not resumable"
            limit = target if limit is None else min(limit, target)
    return Choice(None, tuple(rejected), attempts)
