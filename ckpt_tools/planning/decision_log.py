"""What earlier starts resumed from, as the log of decisions tells.

Every command that chooses reads it; those that decide for a job write it (job/decisions.py).
"""

from __future__ import annotations

import os
import re

from ckpt_tools.errors import CannotLook, NoneUsable, UsageError
from ckpt_tools.model.checkpoint import Checkpoint
from ckpt_tools.model.plan import EarlierStart, LoadPlan
from ckpt_tools.model.selection import Selection
from ckpt_tools.settings import directories
from ckpt_tools.storage import trust
from ckpt_tools.storage.retry import there
from ckpt_tools.storage.trust import OURS, Trust
from ckpt_tools.storage.urls import absolute, real_path

LAST = "last.json"
"""The last start of a root that had a checkpoint."""
FLAG = "--plan-dir"
MOST = 256 << 20
"""Bytes of one file below it: the decision for 100,000 ranks has 50 MB."""


_AGES = 1e18
"""Seconds that no clock shows: beyond them an integer may be no float."""


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


def last(directory: str, trusted: Trust = OURS) -> EarlierStart | None:
    """The last start that had a checkpoint, from the ``place`` of a root; None when there was none.

    Raises CannotLook when that cannot be read: taken for "none", a lost mount would look like a first launch.
    Raises Untrusted when others could have written it, or taken it away.
    """
    path = os.path.join(directory, LAST)
    what = f"{path}, which tells whether an earlier start had a checkpoint,"
    try:
        data = _read(path, trusted)
        if data is None:
            return None
        from ckpt_tools.settings import checked_json  # a first launch need not wait for it

        return _start(checked_json.parsed(data))
    except OSError as e:
        raise CannotLook(
            f"{what} cannot be read: {e.strerror}",
            "make it readable, or name another directory with --plan-dir",
        ) from e
    except ValueError as e:
        from shlex import quote

        hint = f"to start from nothing anyway say --allow-fresh; to forget what it said: rm {quote(path)}"
        raise CannotLook(f"{what} is damaged: {e}", hint) from e


def read_below(path: str, what: str, trusted: Trust = OURS) -> bytes | None:
    """The bytes of a file below --plan-dir, as ``last`` reads its own. Raises CannotLook, and Untrusted."""
    try:
        return _read(path, trusted)
    except OSError as e:
        hint = "make it readable, or name another directory with --plan-dir"
        raise CannotLook(f"{what} {path} cannot be read: {e.strerror}", hint) from e


def _read(path: str, trusted: Trust) -> bytes | None:
    """The bytes of a file below --plan-dir; None where it is not there, and others could not have taken it
    away.
    """
    with trust.named(FLAG):
        try:
            return trust.read(path, MOST, trusted)
        except FileNotFoundError:
            trust.absent(path, trusted)
            return None


def _start(note: object) -> EarlierStart:
    """Raises ValueError unless it is what ``Decisions.save`` writes."""
    from ckpt_tools.settings import checked_json

    if not isinstance(note, dict) or not isinstance(note.get("path"), str):
        raise ValueError("it is no note of ckpt")  # noqa: TRY004 - garbage, as what is no JSON
    checked_json.path(note["path"], "path")
    step, rows = note.get("step"), note.get("ahead")
    passed = tuple(
        (row[0], _seconds(row[1]))
        for row in (rows if isinstance(rows, list) else ())
        if isinstance(row, list) and len(row) == 2
    )
    return EarlierStart(
        step=step if isinstance(step, int) else None,
        path=note["path"],
        decided_at=_seconds(note.get("decided_at")),
        mtime=_seconds(note.get("mtime")),
        passed=passed,
    )


def _seconds(value: object) -> float:
    return float(value) if isinstance(value, int | float) and abs(value) < _AGES else 0.0


def sides_with(
    before: EarlierStart | None, by_mtime: Checkpoint, by_step: Checkpoint, step: int | None
) -> str | None:
    """Which of two checkpoints an earlier start speaks for, as newest.Witnesses has it; ``step`` is that of
    the newest by time.

    It resumed from the one of the higher step; or it passed that one over, and the newest by time is what it
    resumed from or was saved since.
    """
    if before is None:
        return None
    resumed_from = before.path, before.mtime
    if resumed_from == _path_and_time(by_step):
        return "step"
    if _path_and_time(by_step) not in before.passed:
        return None
    saved_since = step is not None and before.step is not None and step > before.step
    return "mtime" if saved_since or resumed_from == _path_and_time(by_mtime) else None


def _path_and_time(c: Checkpoint) -> tuple[str, float]:
    """What a note of a start names a checkpoint by; the time in seconds."""
    return c.path, round(c.mtime_ns / 1e9, 6)


def earlier(root: str, selection: Selection) -> EarlierStart | None:
    """The earlier start that forbids to take this one for a first launch.

    Raises CannotLook when that cannot be known.
    """
    before = None if selection.allow_fresh else last(place_of(root, selection), selection.trust)
    return before if before and not _another_run(before, selection) else None


def gone(root: str, before: EarlierStart, plan: LoadPlan | None = None) -> NoneUsable:
    """There is nothing where an earlier start resumed from a checkpoint: a file system that is not mounted
    looks like a first launch.
    """
    text = (
        f"there is no checkpoint in {root}, "
        f"but an earlier start resumed from step {before.step} ({before.path})"
    )
    return NoneUsable(
        text,
        "is the file system mounted? To start from nothing anyway say --allow-fresh",
        plan=plan,
        rule="tree/earlier-start-had-one",
    )


def first_launch(root: str, selection: Selection, plan: LoadPlan | None) -> None:
    """Raise NoneUsable unless this may be the first launch."""
    if before := earlier(root, selection):
        raise gone(root, before, plan)


def _another_run(before: EarlierStart, selection: Selection) -> bool:
    """Whether the earlier start was of another run in the same root: what it resumed from is still there, and
    the question is about one run.
    """
    narrowed = (selection.run, selection.prefix, selection.layout) != (None, None, None)
    if not narrowed:
        return False
    try:
        return there(before.path)
    except OSError:  # nobody can say so
        return False
