"""A checkpoint of a store brought to a disk of this machine, whole or not at all: once for all processes of a
node, and kept for the starts to come.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct, field
from msgspec.structs import replace

from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.job.process import Process
from ckpt_tools.job.staging import records
from ckpt_tools.job.staging.aside import Aside
from ckpt_tools.job.staging.fetching import Damaged, Fetch
from ckpt_tools.job.staging.locks import Lock
from ckpt_tools.job.staging.place import Place
from ckpt_tools.job.staging.records import LINES, NOTE, Record, seen
from ckpt_tools.job.staging.wanted import Staging, Wanted, described
from ckpt_tools.model.selection import ReadOptions
from ckpt_tools.storage.stores.copies import digest_of_file
from ckpt_tools.storage.trust import OURS, Trust
from ckpt_tools.storage.writes import write_all

__all__ = ["Damaged", "How", "Lock", "Staged", "Staging", "bring", "described"]


class How(Struct, frozen=True):
    """How files are brought: ``keep`` is how many staged checkpoints may stay, with this one (None: all).
    ``planned`` are the URLs of those that are loaded; ``progress`` is called with bytes that came, and
    those that are to come. ``anew``: what lies there already counts by its bytes, not by its times.
    """

    root: str
    planned: Collection[str] = ()
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


def bring(staging: Staging, ranks: Collection[int] | None, how: How) -> Staged:
    """Have the files of these ranks (None: of all) in the directory of ``staging``. Raises Damaged,
    CannotLook where the store or this machine fails, and UsageError where something else is in the way.
    """
    home, name = os.path.split(staging.directory)
    place = Place(home, name, how.trust)
    try:
        place.prepare()
        lock = place.lock("use").shared()
        try:
            os.utime(lock)
            with place.lock("work").held():
                staged = _Stage(place, staging, how).bring(staging.of_ranks(ranks), lock)
        except BaseException:
            os.close(lock)
            raise
    except OSError as e:
        raise CannotLook(
            f"the checkpoint could not be staged in {home}: {e.strerror}"
            + (f": {e.filename}" if e.filename else ""),
            "make room, or name another directory with --stage; what has come is not fetched again",
        ) from e
    return staged


class _Stage:
    """One checkpoint, brought by this process alone."""

    def __init__(self, place: Place, staging: Staging, how: How) -> None:
        self.place, self.staging, self.how = place, staging, how
        self._noted: Mapping[str, Record] = {}

    def bring(self, wanted: Sequence[Wanted], lock: int) -> Staged:
        whole, part = self._known()
        have = {**part, **whole}
        missing = [w for w in wanted if not _is(have.get(w.name), w)]
        removed: list[str] = []
        if missing or part or not self._told(whole) or have != {**part, **self._noted}:
            os.makedirs(self.place.part, 0o755, exist_ok=True)
            needed = sum(w.object.size for w in missing) - Aside(self.place.part).room(missing)
            removed = self.place.make_room(needed, self.how.keep)
            names = (*(w.name for w in missing), *self.staging.texts)
            records.added(self.place.part, *map(records.coming, names))
            if missing:
                have.update((r.name, r) for r in self._fetched(missing))
            have.update((r.name, r) for r in self._texts())
            have = self._put(have)
        if self.how.keep is not None:
            removed += self.place.prune(self.how.keep)
        return Staged(
            self.place.whole,
            tuple(have[w.name] for w in wanted),
            len(missing),
            sum(w.object.size for w in missing),
            tuple(removed),
            lock,
        )

    def _known(self) -> tuple[dict[str, Record], dict[str, Record]]:
        """The files that are there already, and those that an earlier attempt brought: each looked at."""
        place, trusted, anew = self.place, self.how.trust, self.how.anew
        noted = records.finished(place.whole, trusted)
        self._noted = noted
        place.require_ours({*noted, *(f.name for f in self.staging.files), *self.staging.texts})
        lines = records.unfinished(place.part, trusted)
        return records.whole(noted, place.whole, anew=anew), records.whole(lines, place.part, anew=anew)

    def _told(self, whole: Mapping[str, Record]) -> bool:
        """Whether the small files are there that are written anew."""
        return all(
            name in whole and _read(os.path.join(self.place.whole, name), len(data)) == data
            for name, data in self.staging.texts.items()
        )

    def _fetched(self, missing: Sequence[Wanted]) -> list[Record]:
        total, came = sum(w.object.size for w in missing), 0

        def progress(n: int) -> None:
            nonlocal came
            came += n
            if self.how.progress is not None:
                self.how.progress(came, total)

        how = self.how
        try:
            return Fetch(how.root, self.place.part, how.planned, how.read, progress).files(missing)
        except Damaged:  # nobody will load it
            shutil.rmtree(self.place.part, ignore_errors=True)
            raise

    def _texts(self) -> list[Record]:
        """Write the small files that no object is a copy of."""
        out = []
        for name, data in self.staging.texts.items():
            path = os.path.join(self.place.part, name)
            os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
            with suppress(FileNotFoundError):
                os.unlink(path)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
            try:
                write_all(fd, data)
                digest, now = digest_of_file(fd), seen(os.fstat(fd))
            finally:
                os.close(fd)
            row = Record(name, "", len(data), "", "", "", digest, now, Process.here().host)
            out.append(row)
        return out

    # ---- all of it, or nothing

    def _put(self, have: dict[str, Record]) -> dict[str, Record]:
        """Give what is whole its place: the directory at once, or where there is one, each file and then the
        note about all.
        """
        place = self.place
        if not os.path.isdir(place.whole):
            self._note(place.part, have)
            os.rename(place.part, place.whole)
            with suppress(OSError):
                os.unlink(os.path.join(place.whole, LINES))
            return have
        for name, record in list(have.items()):
            path = os.path.join(place.part, name)
            if os.path.lexists(path):
                to = os.path.join(place.whole, name)
                os.makedirs(os.path.dirname(to), 0o755, exist_ok=True)
                os.replace(path, to)
                have[name] = replace(record, seen=seen(os.stat(to)))
        self._note(place.whole, have)
        shutil.rmtree(place.part, ignore_errors=True)
        return have

    def _note(self, directory: str, have: Mapping[str, Record]) -> None:
        """Written aside, synced, renamed: it is there whole, or not at all."""
        _require_apart(directory, have)
        path = os.path.join(directory, NOTE)
        fd = os.open(
            f"{path}.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644
        )
        try:
            write_all(fd, records.note(have, self.how.about))
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(f"{path}.tmp", path)


def _require_apart(directory: str, have: Mapping[str, Record]) -> None:
    """Raises UsageError where the file system takes two names for one, such as A and a: the last file to come
    would be both.
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


def _is(record: Record | None, wanted: Wanted) -> bool:
    """Whether what is there is a copy of the very object."""
    of = wanted.object
    return record is not None and (record.url, record.size, record.etag) == (wanted.url, of.size, of.etag)


def _read(path: str, most: int) -> bytes:
    with open(path, "rb") as f:
        return f.read(most + 1)


def of_decision(body: Mapping[str, object], how: How, ranks: Collection[int] | None) -> Staged:
    """Have the files that a decision says to stage."""
    row = body["stage"]
    assert isinstance(row, dict)  # noqa: S101 - schema.py has looked; for the type checker
    planned = {f["path"] for f in _files(body)}
    return bring(Staging.of(row), ranks, replace(how, planned=planned))


def _files(body: Mapping[str, object]) -> Sequence[Mapping[str, str]]:
    shared, ranks = body.get("shared") or (), body.get("ranks") or ()
    assert isinstance(shared, Sequence)  # noqa: S101
    assert isinstance(ranks, Sequence)  # noqa: S101
    return [*shared, *(f for r in ranks for f in r["files"])]
