"""A start by copies of a store's files: the decision, then what it names is brought to this machine and
verified on its way. What comes damaged is decided about anew, where nobody can have started by it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools import launchers
from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.job.decider import Listener, planned
from ckpt_tools.job.decision import Body, Decision, body_of
from ckpt_tools.job.membership import Membership, of_worker
from ckpt_tools.job.options import Options
from ckpt_tools.job.staging import Damaged, How, Staged, bring, described
from ckpt_tools.layouts import layouts_of
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection

AGAIN = "start again; 'ckpt verify' of it says whether the store has it damaged"


def shallow(selection: Selection) -> Selection:
    """The question without contents: these are verified as they are brought, and need not come twice."""
    if selection.level is not Level.CONTENT:
        return selection
    return replace(selection, level=Level.STRUCTURE, compare_only=True)


def thorough(selection: Selection) -> Selection:
    """The question once something came damaged: every content is read, however long it takes."""
    return replace(selection, level=max(selection.level, Level.CONTENT), budget=None, cache=False)


def start(
    decided: Callable[[Selection], Decision],
    selection: Selection,
    membership: Membership,
    options: Options,
    listener: Listener,
) -> tuple[Decision, int | None, Staged | None]:
    """The decision, the rank of this process, and what was brought for it. Raises CkptError subclasses.

    Where several nodes start by one decision, its contents are looked at before it is made, because nobody
    can take it back; what comes damaged all the same stops this node.
    """
    if options.agree or options.view:
        other = "--agree" if options.agree else "--view"
        raise UsageError(f"--stage and {other} contradict each other", "say one of them")
    ranks, rank = membership.ranks, membership.rank
    damaged: Damaged | None = None
    for asked in (shallow(selection), thorough(selection)) if membership.nodes == 1 else (selection,):
        if damaged and listener.note:
            listener.note(f"{damaged}; deciding anew, with all contents read")
        decision = decided(asked)
        if not decision.found:
            return decision, rank, None
        try:
            root = decision.about["root"]
            staged = _bring(root, decision.body, selection, Copies("", ranks, options.keep), listener)
        except Damaged as e:
            damaged = e
            continue
        decision.check(ranks if rank is None else [rank])
        return decision, rank, staged
    raise CannotLook(str(damaged), AGAIN) from damaged


class Copied(Struct, frozen=True):
    """A plan whose files were brought: ``body`` is its JSON with the local paths."""

    body: Body
    staged: Staged


class Copies(Struct, frozen=True):
    """What is to be brought where: the files of ``ranks`` (None: of all) below the directory ``home``."""

    home: str
    ranks: Collection[int] | None = None
    keep: int | None = None


def stage(root: str, selection: Selection, copies: Copies, to: Listener) -> Copied | None:
    """Plan, and bring what is planned; None where there is no checkpoint and that is allowed. Raises as
    ``api.plan`` does, and CannotLook.
    """
    damaged: Damaged | None = None
    for asked in (shallow(selection), thorough(selection)):
        if damaged and to.note:
            to.note(f"{damaged}; planning anew, with all contents read")
        plan = planned(root, asked, to)
        if to.made:
            to.made(plan)
        if plan.checkpoint is None:
            return None
        body = {**body_of(plan), **described(plan, os.path.abspath(copies.home), layouts_of(selection))}
        try:
            return Copied(body, _bring(plan.root, body, selection, copies, to))
        except Damaged as e:
            damaged = e
    raise CannotLook(str(damaged), AGAIN) from damaged


def _bring(root: str, body: Mapping[str, Any], selection: Selection, copies: Copies, to: Listener) -> Staged:
    how = How(
        root=root,
        keep=copies.keep,
        read=replace(selection.read_options(), budget=None, cache=False),
        trust=selection.trust,
        about={"checkpoint": body["checkpoint"]["path"], "step": body["resume_step"]},
        progress=to.progress,
        anew=not selection.cache,
    )
    return bring(body, how, copies.ranks)


def ranks_here(env: Mapping[str, str]) -> range | None:
    """The ranks of this node, as the launcher of this process tells; None where none does."""
    started = launchers.detect(env)
    if started is None or started.rank is None:
        return None
    return of_worker(started, env, job="", rank=None).ranks
