"""A checkpoint of a store brought to a disk of this machine, whole or not at all: once for all processes of a
node, and kept for the starts to come.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import PurePath
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.job.decision import Decision
from ckpt_tools.job.process import Process
from ckpt_tools.job.schema import Stage
from ckpt_tools.job.staging import records
from ckpt_tools.job.staging.fetching import Aside, Damaged, Fetch
from ckpt_tools.job.staging.records import ASIDE, LINES, NOTE, Record, finished, seen, unfinished
from ckpt_tools.job.staging.wanted import Wanted, described, wanted_of
from ckpt_tools.job.waiting import Backoff
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.output.words import size as words_of_size
from ckpt_tools.settings.checked_json import Invalid, checked
from ckpt_tools.storage import trust
from ckpt_tools.storage.stores.copies import digest_of_data
from ckpt_tools.storage.trust import OURS, Trust
from ckpt_tools.storage.writes import take_lock, write_all, written_aside

__all__ = ["Damaged", "How", "Staged", "bring", "described"]

OWN = ".ckpt-stage"
"""The directory of locks, and of what is on its way out."""
PART = ".part"
"""The end of the name of a checkpoint that is not whole yet."""
_NAME = re.compile(r"[A-Za-z0-9_.-]+-[0-9a-f]{16}")
_GONE = "gone."
_FOREVER = float(1 << 40)


def _not_ours(path: str) -> UsageError:
    return UsageError(
        f"{path} was not put there by ckpt: the staged checkpoint is not used",
        "move it, and let the job save elsewhere",
    )


class Place(Struct, frozen=True):
    """The directory ``home``, and in it the checkpoint ``name``."""

    home: str
    name: str
    trusted: Trust = OURS

    @property
    def whole(self) -> str:
        """Where the checkpoint lies once it is whole."""
        return os.path.join(self.home, self.name)

    @property
    def part(self) -> str:
        """Where its files lie until then."""
        return self.whole + PART

    def lock(self, what: str, how: int = fcntl.LOCK_EX) -> int:
        """Return a lock, open and taken, once it is free: ``use`` is shared by those who use the checkpoint,
        ``work`` held by the one who brings its files. Raises OSError.
        """
        fd = take_lock(self._lock_at(self.name, what), self.trusted, how, Backoff(_FOREVER).pause)
        assert fd is not None  # noqa: S101 - for the type checker: who waits for ever gets it
        return fd

    def _lock_at(self, name: str, what: str) -> str:
        return os.path.join(self.home, OWN, f"{name}.{what}")

    def prepare(self) -> None:
        """Make the directory where it is not there. Raises OSError, and Untrusted where others can write
        it.
        """
        with trust.named("--stage"):
            trust.make(os.path.join(self.home, OWN), self.trusted)
            for path in (self.home, os.path.join(self.home, OWN)):
                trust.check(path, self.trusted)
            for path in (self.whole, self.part):
                with suppress(FileNotFoundError):
                    trust.check(path, self.trusted)
        for name in os.listdir(os.path.join(self.home, OWN)):
            if name.startswith(_GONE):
                shutil.rmtree(os.path.join(self.home, OWN, name), ignore_errors=True)

    def require_ours(self, known: Collection[str], *names: str) -> None:
        """Raises UsageError where the staged checkpoint, or what of it is not whole yet, has files, links or
        directories that ckpt did not bring: a framework might load them, and nobody else has them; Untrusted
        where others can write in it. Raises OSError.
        """
        homes = {ASIDE, *(str(home) for file in known for home in PurePath(file).parents)}
        for name in names or (self.name, self.name + PART):
            directory = os.path.join(self.home, name)
            if os.path.islink(directory):
                raise _not_ours(directory)
            for above, below, files in os.walk(directory):
                at = os.path.relpath(above, directory)
                for file in files if at != ASIDE else ():  # there they have names of their own
                    if not file.startswith((".nfs", NOTE)) and os.path.normpath(f"{at}/{file}") not in known:
                        raise _not_ours(os.path.join(above, file))
                for home in below:
                    path = os.path.join(above, home)
                    if os.path.normpath(f"{at}/{home}") not in homes or os.path.islink(path):
                        raise _not_ours(path)
                    with trust.named("--stage"):
                        trust.check(path, self.trusted)

    # ---- room

    def make_room(self, needed: int, keep: int | None) -> list[str]:
        """Look whether so many bytes fit; where they do not and ``keep`` allows it, remove what was used
        least recently. Returns what was removed. Raises CannotLook, and OSError.
        """
        removed: list[str] = []
        while needed > (free := shutil.disk_usage(self.home).free):
            name = next(self.remove_idle(keep), None) if keep is not None else None
            if name is None:
                more = "" if keep else "; --keep N removes those that were used least recently"
                raise CannotLook(
                    f"{words_of_size(needed)} are to be staged, and {self.home} has {words_of_size(free)}"
                    f" free: {words_of_size(needed - free)} too little",
                    f"make room, or name another directory{more}",
                )
            removed.append(name)
        return removed

    def remove_idle(self, keep: int | None) -> Iterator[str]:
        """Remove the least recently used one, but for ``keep`` checkpoints with this one and those in use,
        and say which, as often as somebody asks. Raises OSError.
        """
        others = sorted(self._others())
        for _, name in others[: max(0, len(others) - max(0, (keep or 1) - 1))]:
            with suppress(OSError):  # what cannot be removed stays, and stops no job
                if self._remove(name):
                    yield name

    def _others(self) -> Iterator[tuple[int, str]]:
        """(when it was used last, in ns; its name) of each other one."""
        names = {e.name.removesuffix(PART) for e in os.scandir(self.home) if e.is_dir(follow_symlinks=False)}
        for name in names - {self.name}:
            if _NAME.fullmatch(name):
                with suppress(FileNotFoundError):  # nobody else than us makes such a lock
                    yield os.stat(self._lock_at(name, "use")).st_mtime_ns, name

    def _remove(self, name: str) -> bool:
        """Remove a checkpoint that nobody uses or brings, and that holds nothing but what was brought."""
        with ExitStack() as held:
            for what in ("use", "work"):
                if (fd := take_lock(self._lock_at(name, what), self.trusted)) is None:
                    return False
                held.callback(os.close, fd)
            whole, part = (os.path.join(self.home, name + end) for end in ("", PART))
            try:
                known = {*finished(whole, self.trusted), *unfinished(part, self.trusted)}
                self.require_ours(known, name, name + PART)
            except UsageError:
                return False
            gone = list[str]()
            for path in filter(os.path.isdir, (whole, part)):  # in one step: nobody meets a half of it
                gone.append(os.path.join(self.home, OWN, f"{_GONE}{secrets.token_hex(8)}"))
                os.rename(path, gone[-1])
            for what in ("use", "work"):
                os.unlink(self._lock_at(name, what))
        for path in gone:
            shutil.rmtree(path, ignore_errors=True)
        return True


class How(Struct, frozen=True):
    """How files are brought: ``keep`` is how many staged checkpoints may stay, with this one (None: all).
    ``progress`` is called with bytes that came, and those that are to come. ``anew``: what lies there already
    counts by its bytes, not by its times.
    """

    root: str
    keep: int | None = None
    read: ReadOptions = ReadOptions()
    trust: Trust = OURS
    about: Mapping[str, object] = field(default_factory=dict)
    progress: Callable[[int, int], object] | None = None
    anew: bool = False


class Staged(Struct, frozen=True):
    """What lies there now: ``fetched`` files of ``bytes`` bytes were brought for it, ``files`` it has for
    this node. ``removed`` are names of others that went. ``lock`` is open: as long as it is, nobody removes
    this one.
    """

    directory: str
    files: tuple[Record, ...]
    fetched: int
    bytes: int
    removed: tuple[str, ...]
    lock: int


def bring(body: Mapping[str, Any], how: How, ranks: Collection[int] | None) -> Staged:
    """Have the files that a decision says to stage, for these ranks (None: for all). Raises Damaged,
    CannotLook where the store or this machine fails, and UsageError where something else is in the way.
    """
    try:
        stage = checked(body["stage"], Stage)
    except Invalid as e:
        raise UsageError(f"it cannot be staged: {e}", "start without --stage") from e
    planned = {f["path"] for f in Decision("", body).files()}
    home, name = os.path.split(stage.root)
    place = Place(home, name, how.trust)
    try:
        place.prepare()
        with ExitStack() as used, ExitStack() as held:
            lock = place.lock("use", fcntl.LOCK_SH)
            used.callback(os.close, lock)
            os.utime(lock)
            held.callback(os.close, place.lock("work"))
            staged = _bring(place, stage, how, ranks, planned=planned, lock=lock)
            used.pop_all()  # whoever uses it keeps the lock
            return staged
    except OSError as e:
        raise CannotLook(
            f"the checkpoint could not be staged in {home}: {e.strerror}"
            + (f": {e.filename}" if e.filename else ""),
            "make room, or name another directory with --stage; what has come is not fetched again",
        ) from e


def _bring(
    place: Place,
    stage: Stage,
    how: How,
    ranks: Collection[int] | None,
    *,
    planned: Collection[str],
    lock: int,
) -> Staged:
    """The same, by this process alone."""
    texts = {name: text.encode("utf-8", "surrogateescape") for name, text in stage.texts.items()}
    wanted = wanted_of(stage, ranks)
    noted = records.finished(place.whole, how.trust)
    place.require_ours({*noted, *(w.name for w in wanted_of(stage)), *texts})
    whole = records.whole(noted, place.whole, anew=how.anew)
    part = records.whole(records.unfinished(place.part, how.trust), place.part, anew=how.anew)
    have = {**part, **whole}
    missing = [w for w in wanted if not w.is_copied_by(have.get(w.name))]
    told = {name: have[name].digest for name in texts if name in have}
    size, removed = sum(w.object.size for w in missing), list[str]()
    if missing or part or whole != noted or told != _digests(texts):
        os.makedirs(place.part, 0o755, exist_ok=True)
        removed = place.make_room(size - Aside(place.part).room(missing), how.keep)
        records.added(place.part, *map(records.coming, (*(w.name for w in missing), *texts)))
        have |= _fetch(place, missing, planned, how)
        have |= _write_texts(place.part, texts)
        have = _put(place, have, how.about)
    if how.keep is not None:
        removed += place.remove_idle(how.keep)
    files = tuple(have[w.name] for w in wanted)
    return Staged(place.whole, files, len(missing), size, tuple(removed), lock)


def _fetch(place: Place, missing: Sequence[Wanted], planned: Collection[str], how: How) -> dict[str, Record]:
    """Bring what is missing. Raises Damaged."""
    total, came = sum(w.object.size for w in missing), 0

    def progress(n: int) -> None:
        nonlocal came
        came += n
        if how.progress is not None:
            how.progress(came, total)

    if not missing:
        return {}
    try:
        came_whole = Fetch(how.root, place.part, planned, how.read, progress).files(missing)
    except Damaged:  # nobody will load it
        shutil.rmtree(place.part, ignore_errors=True)
        raise
    return {r.name: r for r in came_whole}


def _digests(texts: Mapping[str, bytes]) -> dict[str, str]:
    return {name: digest_of_data(data) for name, data in texts.items()}


def _write_texts(part: str, texts: Mapping[str, bytes]) -> dict[str, Record]:
    """Write the small files that no object is a copy of."""
    out = dict[str, Record]()
    for name, data in texts.items():
        path = os.path.join(part, name)
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        with suppress(FileNotFoundError):
            os.unlink(path)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            write_all(fd, data)
            now, host = seen(os.fstat(fd)), Process.here().host
        finally:
            os.close(fd)
        out[name] = Record(name, "", len(data), "", "", "", digest_of_data(data), now, host)
    return out


def _put(place: Place, have: dict[str, Record], about: Mapping[str, object]) -> dict[str, Record]:
    """Give what is whole its place: the directory at once, or where there is one, each file and then the note
    about all.
    """
    if not os.path.isdir(place.whole):
        _note(place.part, have, about)
        os.rename(place.part, place.whole)
        with suppress(OSError):
            os.unlink(os.path.join(place.whole, LINES))
        return have
    for name, record in list(have.items()):
        path, to = os.path.join(place.part, name), os.path.join(place.whole, name)
        if os.path.lexists(path):
            os.makedirs(os.path.dirname(to), 0o755, exist_ok=True)
            os.replace(path, to)
            have[name] = replace(record, seen=seen(os.stat(to)))
    _note(place.whole, have, about)
    shutil.rmtree(place.part, ignore_errors=True)
    return have


def _note(directory: str, have: Mapping[str, Record], about: Mapping[str, object]) -> None:
    """Write the note about all files. Raises UsageError where the file system takes two names for one, such
    as A and a: the last file to come would be both.
    """
    names: dict[int, str] = {}
    for name, record in sorted(have.items()):
        size, *_, inode = seen(os.stat(os.path.join(directory, name)))
        other = names.setdefault(inode, name)
        if other != name or (size, inode) != (record.size, record.seen[-1]):
            raise UsageError(
                f"{name} cannot be staged in {directory}: another file of the checkpoint has its place there",
                "name a DIR with --stage on a file system that tells A from a, or start without --stage",
            )
    path = os.path.join(directory, NOTE)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(f"{path}.tmp", flags, 0o644)
    with written_aside(fd, records.note(have, about), f"{path}.tmp", path):
        pass
