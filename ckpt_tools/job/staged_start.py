"""A start by copies of a store's files: the decision, then what it names is brought to this machine and
verified on its way. What comes damaged is decided about anew, where nobody can have started by it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from ckpt_tools import launchers
from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.job.decider import SILENT, Listener, make_plan
from ckpt_tools.job.decision import Decision, body_of
from ckpt_tools.job.membership import Membership, Options, of_worker
from ckpt_tools.job.staging import Damaged, Staged, bring, describe
from ckpt_tools.layouts import layouts_of
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection

_T = TypeVar("_T")


def start(
    decided: Callable[[Selection], Decision],
    selection: Selection,
    membership: Membership,
    options: Options,
    listener: Listener,
) -> tuple[Decision, Staged | None]:
    """Return the decision, and what was brought for this process. Raises CkptError subclasses.

    Where several nodes start by one decision, its contents are looked at before it is made, because nobody
    can take it back; what comes damaged all the same stops this node.
    """
    if options.agree or options.view:
        other = "--agree" if options.agree else "--view"
        raise UsageError(f"--stage and {other} contradict each other", "use one of them")
    ranks, rank = membership.ranks, membership.rank

    def attempt(asked: Selection) -> tuple[Decision, Staged | None]:
        decision = decided(asked)
        if not decision.found:
            return decision, None
        staged = bring(decision, selection, ranks=ranks, keep=options.keep, progress=listener.progress)
        decision.check(ranks if rank is None else [rank])
        return decision, staged

    questions = _questions(selection) if membership.nodes == 1 else (selection,)
    return _until_whole(attempt, questions, listener, "deciding")


def stage(
    root: str,
    selection: Selection,
    home: str,
    *,
    ranks: Collection[int] | None = None,
    keep: int | None = None,
    to: Listener = SILENT,
) -> Staged | None:
    """Plan, and bring what is planned below the directory ``home``, as ``bring`` does; None where there is no
    checkpoint and that is allowed. Raises as ``api.plan`` does, and CannotLook.
    """

    def attempt(asked: Selection) -> Staged | None:
        plan = make_plan(root, asked, to)
        if to.made:
            to.made(plan)
        if plan.checkpoint is None:
            return None
        body = {**body_of(plan), **describe(plan, os.path.abspath(home), layouts_of(selection))}
        return bring(Decision("", body), selection, ranks=ranks, keep=keep, progress=to.progress)

    return _until_whole(attempt, _questions(selection), to, "planning")


def _questions(selection: Selection) -> Sequence[Selection]:
    """Return the question without contents, which are verified once they are here and need not come twice;
    and the one once something came damaged: every content is read, however long it takes.
    """
    thorough = replace(selection, level=max(selection.level, Level.CONTENT), budget=None, cache=False)
    if selection.level is not Level.CONTENT:
        return selection, thorough
    return replace(selection, level=Level.STRUCTURE, compare_only=True), thorough


def _until_whole(
    attempt: Callable[[Selection], _T], questions: Sequence[Selection], to: Listener, doing: str
) -> _T:
    damaged: Damaged | None = None
    for asked in questions:
        if damaged and to.note:
            to.note(f"{damaged}; {doing} anew, with all contents read")
        try:
            return attempt(asked)
        except Damaged as e:
            damaged = e
    hint = "start again; 'ckpt verify' of it says whether the store has it damaged"
    raise CannotLook(str(damaged), hint) from damaged


def ranks_here(env: Mapping[str, str]) -> range | None:
    """Return the ranks of this node, as the launcher of this process tells; None where none does."""
    started = launchers.detect(env)
    if started is None or started.rank is None:
        return None
    return of_worker(started, env, job="", rank=None).ranks
