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

from ckpt_tools import launchers
from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.job.decider import SILENT, Listener, make_plan
from ckpt_tools.job.decision import Decision, Stage, StagedFile, body_of
from ckpt_tools.job.membership import of_worker
from ckpt_tools.job.staging.fetching import Damaged, Fetch, describe, is_there, wanted_of
from ckpt_tools.job.staging.place import Place, Record, write_note
from ckpt_tools.layouts import layouts_of
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.settings.checked_json import Invalid

__all__ = ["Damaged", "Staged", "bring", "ranks_here", "stage", "until_whole"]

_T = TypeVar("_T")


class Staged(Struct, frozen=True):
    """A staged checkpoint: ``fetched`` files of ``bytes`` bytes were brought for ``decision``, this node
    needs ``files``. ``removed`` are names of removed checkpoints. While ``lock`` is open, no process removes
    this one.
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

    Raise Damaged, CannotLook if the store or this machine fails, and UsageError if other files are in the
    way.
    """
    try:
        stage = decision.document.stage
    except Invalid as e:
        raise UsageError(f"it cannot be staged: {e}", "start without --stage") from e
    assert stage is not None  # noqa: S101 - for the type checker: it was decided so
    home, name = os.path.split(stage.root)
    place, planned = Place(home, name, selection.trust), {f.path for f in decision.files()}
    options = replace(selection.read_options(), budget=None, cache=False)
    wanted = wanted_of(stage, ranks)
    try:
        place.prepare()
        with ExitStack() as used, ExitStack() as held:
            lock = place.lock("use", fcntl.LOCK_SH)
            used.callback(os.close, lock)
            os.utime(lock)
            held.callback(os.close, place.lock("work"))
            fetch = Fetch(decision.document.top, place.directory, planned, options, progress)
            have, fetched, removed = _bring(place, stage, wanted, fetch, keep, anew=not selection.cache)
            used.pop_all()  # the caller keeps this lock while it uses the checkpoint
    except OSError as e:
        raise CannotLook(
            f"the checkpoint could not be staged in {home}: {e.strerror}"
            + (f": {e.filename}" if e.filename else ""),
            "make room, or name another directory with --stage; what has come is not fetched again",
        ) from e
    files = tuple(have[name] for name in wanted)
    return Staged(decision, place.whole, files, len(fetched), sum(fetched), tuple(removed), lock)


def _bring(
    place: Place,
    stage: Stage,
    wanted: Mapping[str, StagedFile],
    fetch: Fetch,
    keep: int | None,
    *,
    anew: bool,
) -> tuple[dict[str, Record], list[int], list[str]]:
    """Bring missing files, in this process alone. Return all records, sizes fetched, and names removed."""
    texts = {name: text.encode("utf-8", "surrogateescape") for name, text in stage.texts.items()}
    known = wanted_of(stage) | texts
    place.require_ours(known)
    have, done = place.find_whole(known, anew=anew)
    missing = {name: f for name, f in wanted.items() if name not in have}
    fetched = [f.size for name, f in missing.items() if not is_there(f"{place.directory}/{name}", f.size)]
    removed = list[str]()
    if not done or missing or texts.keys() - have.keys():
        os.makedirs(place.directory, 0o755, exist_ok=True)
        removed += place.make_room(sum(fetched), keep)
        # written first, so that the remains after a kill are known as ckpt's
        coming = {name: Record(name) for name in (*missing, *texts)}
        write_note(place.directory, coming | have, place.trusted)
        try:
            have |= {r.name: r for r in fetch.files(missing)}
        except Damaged:
            shutil.rmtree(place.part, ignore_errors=True)  # nothing will load these files
            raise
        have |= {name: place.write_text(name, data) for name, data in texts.items() if name not in have}
        place.finish(have)
    if keep is not None:
        removed += place.remove_idle(keep)
    return have, fetched, removed


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

    return until_whole(attempt, selection, to, "planning")


def until_whole(
    attempt: Callable[[Selection], _T], selection: Selection, to: Listener, doing: str, *, alone: bool = True
) -> _T:
    """Return ``attempt()``, made without reading contents, as these are verified once they are here; if a
    file comes damaged, once more with all contents read, however long it takes.

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


def ranks_here(env: Mapping[str, str]) -> range | None:
    """Return the ranks of this node, as this process's launcher tells; None if it does not."""
    started = launchers.detect(env)
    if started is None or started.rank is None:
        return None
    return of_worker(started, env, job="", rank=None).ranks
