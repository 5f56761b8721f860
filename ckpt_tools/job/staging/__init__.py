"""A checkpoint of a store brought to a disk of this machine, whole or not at all: once for all processes of a
node, and kept for later starts. Files are verified on the way; if one comes damaged, a new decision is made
before any process can have started.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace
from xxhash import xxh3_128_hexdigest

from ckpt_tools import launchers
from ckpt_tools.errors import CannotLook, UsageError, explain_refusal
from ckpt_tools.job.decider import SILENT, Listener, make_plan
from ckpt_tools.job.decision import Decision, body_of
from ckpt_tools.job.membership import make_worker_membership
from ckpt_tools.job.staging.fetching import Damaged, Fetch, describe, has_size, select_files
from ckpt_tools.job.staging.place import Place, Record
from ckpt_tools.layouts import layouts_of
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.settings.checked_json import Invalid

__all__ = ["Damaged", "Staged", "bring", "find_ranks_of_node", "retry_if_damaged", "stage"]

_T = TypeVar("_T")


class Staged(Struct, frozen=True):
    """A staged checkpoint: ``fetched`` files of ``bytes`` bytes were brought for ``decision``, this node
    needs ``files``. ``removed`` are names of removed checkpoints. Until ``lock`` is closed, this one stays.
    """

    decision: Decision
    directory: str
    files: tuple[Record, ...]
    fetched: int
    bytes: int
    removed: tuple[str, ...]
    lock: int


def bring(
    decision: Decision,
    selection: Selection,
    *,
    ranks: Collection[int] | None = None,
    keep: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Staged:
    """Stage the files of a decision for ``ranks`` (None: for all). With --no-cache, files already here are
    checked by bytes, not by times. ``keep`` staged checkpoints stay, this one included (None: all).
    ``progress`` gets the bytes that came, and those of all files.

    Raise Damaged, CannotLook if the store or this machine fails, UsageError if other files are in the way.
    """
    try:
        stage = decision.document.stage
    except Invalid as e:
        raise UsageError(f"it cannot be staged: {e}", "start without --stage") from e
    assert stage is not None  # noqa: S101 - for the type checker: it was decided so
    home, name = os.path.split(stage.root)
    place, planned = Place(home, name, selection.trust), {f.path for f in decision.document.files()}
    options = replace(selection.read_options(), budget=None, cache=False)
    fetch = Fetch(decision.document.top, place.part, planned, options, progress)
    wanted, removed = select_files(stage, ranks), list[str]()
    hint = "make room, or name another directory with --stage; what has come is not fetched again"
    with explain_refusal(f"the checkpoint could not be staged in {home}", hint), ExitStack() as used:
        place.prepare()
        lock = place.lock("use", fcntl.LOCK_SH)
        used.callback(os.close, lock)
        os.utime(lock)
        with ExitStack() as held:  # by one process at a time
            held.callback(os.close, place.lock("work"))
            place.require_ours({*select_files(stage), *stage.texts})
            place.remove_lost_parts()
            records, is_complete = place.find_whole(anew=not selection.cache)
            missing = {n: f for n, f in wanted.items() if not records.get(n, Record("")).is_copy_of(f)}
            texts = _find_stale_texts(stage.texts, records)
            fetched = [f.size for n, f in missing.items() if not has_size(f"{place.part}/{n}", f.size)]
            if missing or texts or not is_complete:
                removed += place.make_room(sum(fetched), keep)
                os.makedirs(place.part, 0o755, exist_ok=True)
                records |= {r.name: r for r in fetch.files(missing)}
                records |= {n: place.write_text(n, data) for n, data in texts.items()}
                place.publish(records)
            if keep is not None:
                removed += place.remove_idle(keep)
            shutil.rmtree(place.part, ignore_errors=True)
        used.pop_all()  # the caller keeps this lock while it uses the checkpoint
    files = tuple(records[name] for name in wanted)
    return Staged(decision, place.whole, files, len(fetched), sum(fetched), tuple(removed), lock)


def _find_stale_texts(texts: Mapping[str, str], records: Mapping[str, Record]) -> dict[str, bytes]:
    """Return the bytes by name of small files that are missing or have other bytes."""
    encoded = {name: text.encode("utf-8", "surrogateescape") for name, text in texts.items()}
    known = {(name, record.digest) for name, record in records.items()}
    return {n: data for n, data in encoded.items() if (n, xxh3_128_hexdigest(data)) not in known}


# ---- deciding


def stage(
    root: str,
    selection: Selection,
    home: str,
    *,
    ranks: Collection[int] | None = None,
    keep: int | None = None,
    to: Listener = SILENT,
) -> Staged | None:
    """Plan, and bring the planned files below the directory ``home``, as ``bring`` does. Return None if there
    is no checkpoint and that is allowed. Raise as ``api.plan`` does, and CannotLook.
    """

    def attempt(asked: Selection) -> Staged | None:
        plan = make_plan(root, asked, to)
        if to.made:
            to.made(plan)
        if plan.checkpoint is None:
            return None
        body = {**body_of(plan), **describe(plan, os.path.abspath(home), layouts_of(selection))}
        return bring(Decision("", body), selection, ranks=ranks, keep=keep, progress=to.progress)

    return retry_if_damaged(attempt, selection, to, "planning")


def retry_if_damaged(
    attempt: Callable[[Selection], _T], selection: Selection, to: Listener, doing: str, *, alone: bool = True
) -> _T:
    """Return ``attempt(selection)``, made without reading contents, which are verified once they are here; if
    a file comes damaged, attempt once more with all contents read. ``doing`` is a word for the message.

    If several nodes start by one decision (not ``alone``), contents are read before it is made, because it
    cannot be taken back; a damaged file then stops this node. Raise as ``attempt``, and CannotLook.
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


def find_ranks_of_node(env: Mapping[str, str]) -> range | None:
    """Return the ranks of this node, as this process's launcher tells; None if it does not."""
    started = launchers.detect(env)
    if started is None or started.rank is None:
        return None
    return make_worker_membership(started, env, job="", rank=None).ranks
