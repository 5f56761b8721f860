"""Trackers pointed at what a job resumes from."""

from __future__ import annotations

import os

from ckpt_tools.api import plan
from ckpt_tools.errors import UsageError
from ckpt_tools.guard import journal
from ckpt_tools.guard.journal import Move, Step, Store, Swap
from ckpt_tools.guard.trackers import Wanted, wanted
from ckpt_tools.model.change import Change, Changes
from ckpt_tools.model.selection import Selection
from ckpt_tools.reading.opening import open_session


def repair_trackers(
    root: str,
    *,
    apply: bool = False,
    state_dir: str | None = None,
    selection: Selection | None = None,
) -> Changes:
    """Point the tracker of a run at what ``plan`` chooses, where it says something else, nothing, or is gone.
    Without ``apply`` it only says what it would do.

    Raises what ``plan`` raises: where nothing can be chosen nothing is changed.
    """
    root, selection = os.path.abspath(root), selection or Selection(cache=True)
    if not apply:
        return _done(root, selection, None)
    with journal.opened(root, state_dir, selection.trust) as store:
        return _done(root, selection, store)


def _done(root: str, selection: Selection, store: Store | None) -> Changes:
    chosen = plan(root, selection).checkpoint
    if chosen is None:
        raise UsageError(f"there is no checkpoint in {root} that a tracker could name")
    s = open_session(root, selection.read_options())
    tracker = wanted(s, chosen)
    back = store.changes() if store is not None else ()
    if tracker is None:
        return Changes("repair", root, store is not None, (*back,))
    number = None
    if store is not None:
        number = store.run("repair", f"{tracker.path}: {tracker.then}", [_step(store, root, tracker)]).number
    state = "pointed" if store is not None else "would-point"
    said = "it is not there" if tracker.now is None else f"it named {tracker.now}"
    row = Change(tracker.path, state, f"{said}, and names {tracker.then} then", label=chosen.label)
    return Changes("repair", root, store is not None, (*back, row), (), number)


def _step(store: Store, root: str, tracker: Wanted) -> Step:
    target = os.path.relpath(tracker.path, root)
    incoming = f"{store.place('incoming')}/{target}"
    there = store.tree.identity(target) is not None
    store.write(incoming, tracker.data, like=target if there else ".ckpt/lock")
    return Swap(target, incoming, f"{store.place('replaced')}/{target}") if there else Move(incoming, target)
