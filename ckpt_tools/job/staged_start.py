"""A start by copies of a store's files: the decision, then what it names is brought to this machine and
verified on its way. What comes damaged is decided about anew, where nobody can have started by it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from msgspec.structs import replace

from ckpt_tools import launchers
from ckpt_tools.errors import CannotLook
from ckpt_tools.job.decider import SILENT, Listener, make_plan
from ckpt_tools.job.decision import Decision, body_of
from ckpt_tools.job.membership import of_worker
from ckpt_tools.job.staging import Damaged, Staged, bring, describe
from ckpt_tools.layouts import layouts_of
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection

_T = TypeVar("_T")


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

    return until_whole(attempt, selection, to, "planning")


def until_whole(
    attempt: Callable[[Selection], _T], selection: Selection, to: Listener, doing: str, *, alone: bool = True
) -> _T:
    """Ask without contents, which are verified once they are here and need not come twice; and where
    something comes damaged, once more, with every content read, however long it takes.

    Where several nodes start by one decision, its contents are looked at before it is made, because nobody
    can take it back; what comes damaged all the same stops this node. Raises as ``attempt``, and CannotLook.
    """
    damaged: Damaged | None = None
    questions = [selection]
    if alone:
        thorough = replace(selection, level=max(selection.level, Level.CONTENT), budget=None, cache=False)
        if selection.level is Level.CONTENT:
            questions = [replace(selection, level=Level.STRUCTURE, compare_only=True)]
        questions.append(thorough)
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
