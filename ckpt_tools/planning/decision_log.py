"""What earlier starts resumed from, as the log of decisions tells.

Every command that chooses reads it; those that decide for a job write it (job/decisions.py).
"""

from __future__ import annotations

import os
import re
from contextlib import suppress

from msgspec import Struct

from ckpt_tools.errors import UsageError
from ckpt_tools.model.plan import EarlierStart, LoadPlan
from ckpt_tools.model.selection import Selection
from ckpt_tools.planning.rules.tree import could_not_look, first_launch_leftovers
from ckpt_tools.settings import checked_json, directories
from ckpt_tools.storage import trust
from ckpt_tools.storage.retry import there
from ckpt_tools.storage.trust import OURS, Trust
from ckpt_tools.storage.urls import absolute, real_path

LAST = "last.json"
"""The last start of a root that had a checkpoint."""
FLAG = "--plan-dir"
MOST = 256 << 20
"""Bytes of one file below it: the decision for 100,000 ranks has 50 MB."""


def safe(name: str) -> str:
    """A name as a single path component."""
    return re.sub(r"[^A-Za-z0-9_.=-]", "_", name)[:80].lstrip(".") or "_"


def place(plan_dir: str, root: str) -> str:
    """The directory of the decisions about one root. Raises UsageError where it would lie inside the root."""
    import xxhash

    root, plan_dir = absolute(root), absolute(plan_dir)
    inside = real_path(plan_dir) + os.sep
    if inside.startswith(real_path(root).rstrip(os.sep) + os.sep):
        raise UsageError(
            f"--plan-dir {plan_dir} lies inside {root}, where ckpt never writes",
            "name a directory outside it",
        )
    digest = xxhash.xxh3_64_hexdigest(os.fsencode(root))
    return os.path.join(plan_dir, f"{safe(os.path.basename(root))}-{digest}")


def place_of(root: str, selection: Selection) -> str:
    """As ``place``, in the directory that the caller named, else in this user's own."""
    return place(selection.plan_dir or directories.decisions(), root)


def read_last_start(directory: str, trusted: Trust = OURS) -> EarlierStart | None:
    """Return the last start that had a checkpoint, from the ``place`` of a root; None when there was none.

    Raises CannotLook when that cannot be read, Untrusted when others could have written it, or taken it away.
    """
    path = os.path.join(directory, LAST)
    what = f"{path}, which tells whether an earlier start had a checkpoint,"
    try:
        data = read_below(path, what, trusted)
        note = None if data is None else checked_json.checked(checked_json.parsed(data), _Note)
    except ValueError as e:
        raise could_not_look.stop_damaged_log(what, path, str(e)) from e
    return EarlierStart(note.step, note.path, note.decided_at) if note else None


def read_below(path: str, what: str, trusted: Trust = OURS) -> bytes | None:
    """Return the bytes of a file below --plan-dir, None without one. Raises CannotLook, and Untrusted."""
    try:
        with trust.named(FLAG):
            try:
                return trust.read(path, MOST, trusted)
            except FileNotFoundError:
                trust.absent(path, trusted)
                return None
    except OSError as e:
        raise could_not_look.stop_unread_log(what, str(e.strerror)) from e


class _Note(Struct, frozen=True):
    """What ``Decisions.save`` writes there."""

    path: checked_json.Path
    step: int | None = None
    decided_at: checked_json.Number = 0.0


def find_earlier_start(root: str, selection: Selection) -> EarlierStart | None:
    """Return the start that forbids to take this one for the first, None without. Raises CannotLook."""
    before = None if selection.allow_fresh else read_last_start(place_of(root, selection), selection.trust)
    if before and (selection.run, selection.prefix, selection.layout) != (None, None, None):
        with suppress(OSError):  # nobody can say so
            return None if there(before.path) else before
    return before


def require_first_launch(root: str, selection: Selection, plan: LoadPlan | None) -> None:
    """Raise NoneUsable unless this may be the first launch."""
    if before := find_earlier_start(root, selection):
        raise first_launch_leftovers.stop_without_earlier(before, root, plan)
