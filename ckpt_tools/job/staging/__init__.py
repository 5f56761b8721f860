"""A checkpoint of a store brought to a disk of this machine, whole or not at all: once for all processes of a
node, and kept for later starts. Files are verified on the way; if one comes damaged, a new decision is made
before any process can have started.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import PurePath
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace
from xxhash import xxh3_128_hexdigest

from ckpt_tools import launchers
from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.job.decider import SILENT, Listener, make_plan
from ckpt_tools.job.decision import Decision, Stage, StagedFile, body_of
from ckpt_tools.job.files import Backoff, create, read_boot_id
from ckpt_tools.job.membership import make_worker_membership
from ckpt_tools.job.staging.fetching import Damaged, Fetch, describe, has_size, select_files
from ckpt_tools.job.staging.records import ASIDE, NOTE, Record, find_whole, read_note, seen, write_note
from ckpt_tools.layouts import layouts_of
from ckpt_tools.model.report import Level
from ckpt_tools.model.selection import Selection
from ckpt_tools.output.words import size as words_of_size
from ckpt_tools.settings.checked_json import Invalid
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import OURS, Trust
from ckpt_tools.storage.writes import take_lock

__all__ = ["Damaged", "Staged", "bring", "find_ranks_of_node", "retry_if_damaged", "stage"]

_T = TypeVar("_T")
OWN = ".ckpt-stage"
"""The directory of locks, and of checkpoints that are being removed."""
PART = ".part"
"""The end of the name of a checkpoint that is not whole yet."""
_NAME = re.compile(r"[A-Za-z0-9_.-]+-[0-9a-f]{16}")
_GONE = "gone."
_FOREVER = float(1 << 40)


def _explain_foreign(path: str) -> UsageError:
    """Return the error for a file in a staged checkpoint that ckpt did not bring."""
    return UsageError(
        f"{path} was not put there by ckpt: the staged checkpoint is not used",
        "move it, and let the job save elsewhere",
    )


class Place(Struct, frozen=True):
    """The place of one staged checkpoint: ``name`` in the directory ``home``."""

    home: str
    name: str
    trusted: Trust = OURS

    @property
    def whole(self) -> str:
        """The directory of the checkpoint once it is whole."""
        return os.path.join(self.home, self.name)

    @property
    def part(self) -> str:
        """The directory of its files while they are still being copied."""
        return self.whole + PART

    def lock(self, what: str, how: int = fcntl.LOCK_EX) -> int:
        """Return the descriptor of a lock, waiting for it: "use" is shared by processes that use the
        checkpoint, "work" exclusive for the one that brings its files. Raise OSError.
        """
        fd = take_lock(self.find_lock(what), self.trusted, how, Backoff(_FOREVER).pause)
        assert fd is not None  # noqa: S101 - for the type checker: who waits for ever gets it
        return fd

    def find_lock(self, what: str) -> str:
        return os.path.join(self.home, OWN, f"{self.name}.{what}")

    def prepare(self) -> None:
        """Make the directory ``home`` if missing. Raise OSError, and Untrusted if others can write it."""
        with trust.label("--stage"):
            trust.make(os.path.join(self.home, OWN), self.trusted)
            for path in (self.home, os.path.join(self.home, OWN)):
                trust.check(path, self.trusted)
            for path in (self.whole, self.part):
                with suppress(FileNotFoundError):
                    trust.check(path, self.trusted)
        for name in os.listdir(os.path.join(self.home, OWN)):
            if name.startswith(_GONE):
                shutil.rmtree(os.path.join(self.home, OWN, name), ignore_errors=True)

    def require_ours(self, known: Collection[str]) -> None:
        """Raise UsageError if the checkpoint, whole or in part, has a file, link or directory that ckpt did
        not bring, as a framework might load it; Untrusted if others can write in it. Raise OSError.
        """
        homes = {ASIDE, *(str(home) for file in known for home in PurePath(file).parents)}
        for directory in (self.whole, self.part):
            if os.path.islink(directory):
                raise _explain_foreign(directory)
            for above, below, files in os.walk(directory):
                at = os.path.relpath(above, directory)
                for file in files if at != ASIDE else ():  # files in ASIDE have temporary names
                    if not file.startswith((".nfs", NOTE)) and os.path.normpath(f"{at}/{file}") not in known:
                        raise _explain_foreign(os.path.join(above, file))
                for home in below:
                    path = os.path.join(above, home)
                    if os.path.normpath(f"{at}/{home}") not in homes or os.path.islink(path):
                        raise _explain_foreign(path)
                    with trust.label("--stage"):
                        trust.check(path, self.trusted)

    def find_whole(self, *, anew: bool) -> tuple[dict[str, Record], bool]:
        """Return the records of whole files, and True if the checkpoint's note has all."""
        note, part_note = read_note(self.whole, self.trusted), read_note(self.part, self.trusted)
        records = find_whole(note, self.whole, anew=anew)
        if part_note is None or part_note.boot != read_boot_id():  # bytes not yet on the disk may be lost
            shutil.rmtree(self.part, ignore_errors=True)
        else:
            records = find_whole(part_note, self.part) | records
        return records, (note is None or note.boot == read_boot_id()) and not os.path.isdir(self.part)

    # ---- putting files in place

    def write_text(self, name: str, data: bytes) -> Record:
        """Write a small file that ckpt makes itself, and return its record. Raise OSError."""
        path = os.path.join(self.part, name)
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        with suppress(FileNotFoundError):
            os.unlink(path)
        create(path, data)
        digest = xxh3_128_hexdigest(data)
        return Record(name, size=len(data), digest=digest, seen=seen(os.stat(path)))

    def publish(self, records: dict[str, Record]) -> None:
        """Move the brought files to ``whole``: the directory in one step or, if there is one, each file, and
        then the note. Raise UsageError if the file system takes two names for one, such as A and a: the later
        file would be both.
        """
        directory = self.part
        if os.path.isdir(self.whole):
            directory = self.whole
            for name, record in list(records.items()):
                path, to = os.path.join(self.part, name), os.path.join(self.whole, name)
                if os.path.lexists(path):
                    os.makedirs(os.path.dirname(to), 0o755, exist_ok=True)
                    os.replace(path, to)
                    records[name] = replace(record, seen=seen(os.stat(to)))
        names: dict[int, str] = {}
        for name, record in sorted(records.items()):
            size, *_, inode = seen(os.stat(os.path.join(directory, name)))
            other = names.setdefault(inode, name)
            if other != name or (size, inode) != (record.size, record.seen[-1]):
                raise UsageError(
                    f"{name} cannot be staged in {directory}: another file of the checkpoint is there",
                    "name a DIR with --stage on a file system that tells A from a, or start without --stage",
                )
        write_note(directory, records)
        if directory == self.whole:
            shutil.rmtree(self.part, ignore_errors=True)
        else:
            os.rename(self.part, self.whole)

    # ---- room

    def make_room(self, needed: int, keep: int | None) -> list[str]:
        """Free space for ``needed`` bytes: unless ``keep`` is None, remove least recently used checkpoints.
        Return the removed names. Raise CannotLook if that is not enough, and OSError.
        """
        removed: list[str] = []
        while needed > (free := shutil.disk_usage(self.home).free):
            name = next(self.remove_idle(keep), None) if keep is not None else None
            if name is None:
                more = "" if keep else "; --keep N removes those that were used least recently"
                text = f"{self.home} has {words_of_size(free)} free, and {words_of_size(needed)} are needed"
                raise CannotLook(text, f"make room, or name another directory{more}")
            removed.append(name)
        return removed

    def remove_idle(self, keep: int | None) -> Iterator[str]:
        """Remove least recently used checkpoints one by one, and yield the name of each. ``keep`` of them
        stay, this one included, and all in use. Raise OSError.
        """
        found = {e.name.removesuffix(PART) for e in os.scandir(self.home) if e.is_dir(follow_symlinks=False)}
        by_last_use = list[tuple[int, Place]]()
        for name in filter(_NAME.fullmatch, found - {self.name}):
            other = replace(self, name=name)
            with suppress(FileNotFoundError):  # a directory without our lock is not a staged checkpoint
                by_last_use.append((os.stat(other.find_lock("use")).st_mtime_ns, other))
        by_last_use.sort(key=lambda row: (row[0], row[1].name))
        for _, other in by_last_use[: max(0, len(by_last_use) - max(0, (keep or 1) - 1))]:
            with suppress(OSError):  # a failure to remove stops no job
                if other.remove():
                    yield other.name

    def remove(self) -> bool:
        """Remove the checkpoint; False if it is in use, being brought, or holds files of others."""
        with ExitStack() as held:
            for what in ("use", "work"):
                if (fd := take_lock(self.find_lock(what), self.trusted)) is None:
                    return False
                held.callback(os.close, fd)
            try:
                notes = [read_note(path, self.trusted) for path in (self.whole, self.part)]
                self.require_ours({f.name for n in notes if n for f in n.files})
            except UsageError:
                return False
            gone = list[str]()
            # renamed in one step, so that no process meets a half of it
            for path in filter(os.path.isdir, (self.whole, self.part)):
                gone.append(os.path.join(self.home, OWN, f"{_GONE}{secrets.token_hex(8)}"))
                os.rename(path, gone[-1])
            for what in ("use", "work"):
                os.unlink(self.find_lock(what))
        for path in gone:
            shutil.rmtree(path, ignore_errors=True)
        return True


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
    wanted = select_files(stage, ranks)
    try:
        place.prepare()
        with ExitStack() as used, ExitStack() as held:
            lock = place.lock("use", fcntl.LOCK_SH)
            used.callback(os.close, lock)
            os.utime(lock)
            held.callback(os.close, place.lock("work"))
            place.require_ours({*select_files(stage), *stage.texts})
            records, fetched, removed = _bring(place, stage, wanted, fetch, keep, anew=not selection.cache)
            used.pop_all()  # the caller keeps this lock while it uses the checkpoint
    except OSError as e:
        raise CannotLook(
            f"the checkpoint could not be staged in {home}: {e.strerror}"
            + (f": {e.filename}" if e.filename else ""),
            "make room, or name another directory with --stage; what has come is not fetched again",
        ) from e
    files = tuple(records[name] for name in wanted)
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
    records, is_complete = place.find_whole(anew=anew)
    missing = {name: f for name, f in wanted.items() if not records.get(name, Record("")).is_copy_of(f)}
    texts = _find_stale_texts(stage.texts, records)
    fetched = [f.size for name, f in missing.items() if not has_size(f"{place.part}/{name}", f.size)]
    removed = list[str]()
    if missing or texts or not is_complete:
        os.makedirs(place.part, 0o755, exist_ok=True)
        removed += place.make_room(sum(fetched), keep)
        # written first, so that the remains after a kill are known as ckpt's
        write_note(place.part, {name: Record(name) for name in (*missing, *texts)} | records)
        records |= {r.name: r for r in fetch.files(missing)}
        records |= {name: place.write_text(name, data) for name, data in texts.items()}
        place.publish(records)
    if keep is not None:
        removed += place.remove_idle(keep)
    return records, fetched, removed


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
