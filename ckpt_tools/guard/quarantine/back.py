"""Checkpoints brought back from quarantine, and the last repair or quarantine taken back."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from shlex import quote

from ckpt_tools.discovery.exclude import STATE
from ckpt_tools.discovery.quarantined import QUARANTINE
from ckpt_tools.errors import NoCheckpoint, UsageError
from ckpt_tools.guard import journal
from ckpt_tools.guard.journal import Move, Operation, Status, Step, Store, Swap
from ckpt_tools.guard.journal.steps import State
from ckpt_tools.model.change import Change, Changes
from ckpt_tools.storage.trust import OURS, Trust


def restore(
    root: str,
    paths: Sequence[str],
    *,
    apply: bool = False,
    state_dir: str | None = None,
    trust: Trust = OURS,
) -> Changes:
    """Bring back what ``paths`` name: directories below ``.ckpt/quarantine``, or the paths that files and
    checkpoints had. Without ``apply`` it only says what it would do.

    Raises NoCheckpoint where nothing of the kind lies there, UsageError where something else has its name by
    now, and CannotLook.
    """
    root = os.path.abspath(root)
    with (journal.opened if apply else journal.looked_at)(root, state_dir, trust) as store:
        found = list(dict.fromkeys(pair for path in paths for pair in _asked(store, root, path)))
        steps = [step.inverse() for _, step in found]
        for step in steps:
            if store.tree.identity(step.target) is not None:
                there = os.path.join(root, step.target)
                raise UsageError(f"{there} exists, and is not replaced", "move it away first")
        number = store.run("restore", ", ".join(s.target for s in steps), steps).number if apply else None
        if apply:
            store.close_over({op.number for op, _ in found})
        state = "moved" if apply else "would-move"
        rows = [Change(os.path.join(root, s.source), state, "", os.path.join(root, s.target)) for s in steps]
        return Changes("restore", root, apply, (*store.changes(), *rows), (), number)


def listed(root: str, *, state_dir: str | None = None, trust: Trust = OURS) -> Changes:
    """What lies in the quarantine of ``root``, the last that was put away first. Raises CannotLook."""
    root = os.path.abspath(root)
    with journal.looked_at(root, state_dir, trust) as store:
        rows = [
            Change(os.path.join(root, there), "in-quarantine", why, os.path.join(root, was))
            for was, there, why in _lying(store)
        ]
    return Changes("ls", root, applied=False, changes=tuple(rows))


def _lying(store: Store) -> Iterator[tuple[str, str, str]]:
    """(path that it had, path that it has, when and why it was put away)."""
    for op in store.journal.operations():
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(op.at))
        for step in op.steps:
            was, there = (step.source, step.target) if isinstance(step, Move) else (step.target, step.kept)
            if there.startswith(f"{STATE}/{QUARANTINE}/") and store.tree.identity(there) is not None:
                yield was, there, f"{op.command}, {when}"


def _asked(store: Store, root: str, path: str) -> Iterator[tuple[Operation, Move]]:
    """The moves of operations whose things a path means, that are still where they were moved to."""
    below = os.path.relpath(path, root)
    found = False
    for operation in store.journal.operations():
        if operation.command != "quarantine" or operation.status is not Status.DONE:
            continue
        for step in operation.steps:
            if not isinstance(step, Move) or step.state(store.tree) is not State.DONE:
                continue
            if any(f"{own}/".startswith(f"{below}/") for own in (step.source, step.target)):
                found = True
                yield operation, step
        if found and not below.startswith(STATE):
            return  # the last time that it was put away
    if not found:
        text = f"nothing that 'ckpt quarantine' put away was {path}"
        raise NoCheckpoint(
            text, f"'ckpt ls --quarantine {quote(root)}' lists what lies in {STATE}/{QUARANTINE}"
        )


def undo(root: str, *, apply: bool = False, state_dir: str | None = None, trust: Trust = OURS) -> Changes:
    """Take back the last repair or quarantine below ``root``. Without ``apply`` it only says what it would
    do.

    Raises NoCheckpoint where there is none, UsageError where a file is no longer what it left, and
    CannotLook.
    """
    root = os.path.abspath(root)
    with (journal.opened if apply else journal.looked_at)(root, state_dir, trust) as store:
        operation = store.last_to_undo()
        if operation is None:
            raise NoCheckpoint(f"no command that can be taken back has changed anything in {root}")
        steps = store.backwards(operation)
        number = store.undo(operation).number if apply else None
        rows = [_row(root, step, apply) for step in steps]
        return Changes("undo", root, apply, (*store.changes(), *rows), (), number)


def _row(root: str, step: Step, done: bool) -> Change:
    target = os.path.join(root, step.target)
    if isinstance(step, Swap):
        state = "replaced" if done else "would-replace"
        return Change(target, state, f"by {os.path.join(root, step.incoming)}")
    return Change(os.path.join(root, step.source), "moved" if done else "would-move", "", target)
