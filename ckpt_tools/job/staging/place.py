"""The place of a staged checkpoint on a disk of this machine, and the note in it, with a digest of each file.

A file counts as whole if its size, times and inode are those in the note, written in the same boot of this
machine. After another boot, which may have lost unwritten bytes, and with --no-cache, its bytes are digested.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
import secrets
import shutil
from collections.abc import Collection, Iterator
from contextlib import ExitStack, suppress
from typing import Literal

from msgspec import Struct, to_builtins
from msgspec.structs import replace
from xxhash import xxh3_128, xxh3_128_hexdigest

from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.job.decision import StagedFile
from ckpt_tools.job.meeting import Backoff
from ckpt_tools.job.membership import read_boot_id
from ckpt_tools.job.view import find_foreign, list_homes
from ckpt_tools.output.words import size as words_of_size
from ckpt_tools.settings import checked_json
from ckpt_tools.settings.checked_json import Count, Text, Whole
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import OURS, Trust
from ckpt_tools.storage.writes import replace_file, take_lock

OWN = ".ckpt-stage"
"""The directory of locks, of copies that are not whole yet, and of copies that are being removed."""
NOTE = ".ckpt-stage.json"
"""The note in a staged checkpoint."""
SCHEMA = "ckpt-tools/staged/v1"
_GONE = "gone."
_FOREVER = float(1 << 40)
_BUFFER = 4 << 20


class Record(Struct, frozen=True):
    """One file. ``level`` is how deeply it was verified, "" if nothing stored could verify its bytes;
    ``seen`` is size, mtime, ctime (ns) and inode.
    """

    name: Text
    url: Text = ""
    size: Count = 0
    etag: Text = ""
    version: Text = ""
    level: Text = ""
    digest: Text = ""
    seen: tuple[Whole, ...] = ()

    def is_copy_of(self, f: StagedFile) -> bool:
        return (self.url, self.size, self.etag) == (f.url, f.size, f.etag)


class Note(Struct, frozen=True):
    """The contents of the note; ``boot`` is the boot in which the files were seen."""

    schema: Literal["ckpt-tools/staged/v1"]
    boot: Text
    files: list[Record]


def list_marks(st: os.stat_result) -> tuple[int, ...]:
    """Return the fields of a stat that change with the file."""
    return st.st_size, st.st_mtime_ns, st.st_ctime_ns, st.st_ino


def digest_file(fd: int) -> str:
    """Return the XXH3-128 (hex) of a file's bytes."""
    digest, at, buffer = xxh3_128(), 0, memoryview(bytearray(_BUFFER))
    while n := os.preadv(fd, [buffer], at):
        digest.update(buffer[:n])
        at += n
    return digest.hexdigest()


class Place(Struct, frozen=True):
    """The place of one staged checkpoint: ``name`` in the directory ``home``."""

    home: str
    name: str
    trusted: Trust = OURS

    @property
    def whole(self) -> str:
        """The directory of the checkpoint, there once it is whole."""
        return os.path.join(self.home, self.name)

    @property
    def own(self) -> str:
        return os.path.join(self.home, OWN)

    @property
    def part(self) -> str:
        """The directory of its files while they are being copied: of this boot, as another may lose bytes."""
        return os.path.join(self.own, f"{self.name}.{read_boot_id() or os.getpid()}.part")

    def list_parts(self) -> list[str]:
        """Return the directories of files that came in this boot or another one, and never were a whole."""
        return glob.glob(f"{glob.escape(self.own)}/{self.name}.*.part*")

    def remove_lost_parts(self) -> None:
        """Remove files of another boot, which may have lost some of their bytes."""
        for path in {*self.list_parts()} - {self.part}:
            shutil.rmtree(path, ignore_errors=True)

    def lock(self, what: str, how: int = fcntl.LOCK_EX) -> int:
        """Return the descriptor of a lock, waiting for it: "use" is shared by processes that use the
        checkpoint, "work" exclusive for the one that brings its files. Raise OSError.
        """
        fd = take_lock(self.find_lock(what), self.trusted, how, Backoff(_FOREVER).pause)
        assert fd is not None  # noqa: S101 - for the type checker: who waits for ever gets it
        return fd

    def find_lock(self, what: str) -> str:
        return os.path.join(self.own, f"{self.name}.{what}")

    def prepare(self) -> None:
        """Make the directory ``home`` if missing. Raise OSError, and Untrusted if others can write it."""
        with trust.label("--stage"):
            trust.make(self.own, self.trusted)
            for path in (self.home, self.own):
                trust.check(path, self.trusted)
            with suppress(FileNotFoundError):
                trust.check(self.whole, self.trusted)
        for path in glob.glob(f"{glob.escape(self.own)}/{_GONE}*"):
            shutil.rmtree(path, ignore_errors=True)

    def require_ours(self, names: Collection[str]) -> None:
        """Raise UsageError if the checkpoint has what ckpt did not bring, or others can write there."""
        foreign = self.whole if os.path.islink(self.whole) else find_foreign(self.whole, names, NOTE)
        if foreign:
            text = f"{foreign} was not put there by ckpt: the staged checkpoint is not used"
            raise UsageError(text, "move it, and let the job save elsewhere")
        with trust.label("--stage"):
            for home in list_homes(names):
                with suppress(FileNotFoundError):
                    trust.check(os.path.join(self.whole, home), self.trusted)

    def read_note(self) -> Note | None:
        """Return the note, or None. Raise OSError, Untrusted, UsageError if it is no note of ours."""
        try:
            data = trust.read(os.path.join(self.whole, NOTE), checked_json.MOST, self.trusted)
        except FileNotFoundError:
            return None
        try:
            return checked_json.decode(checked_json.parse(data), Note)
        except (checked_json.NoJson, checked_json.Invalid):
            text = f"{self.whole} was not staged by ckpt"
            raise UsageError(text, "remove it, or name another DIR with --stage") from None

    def find_whole(self, *, anew: bool) -> tuple[dict[str, Record], bool]:
        """Return the records of files that are as they were written, and True if the note is of this boot."""
        note, found = self.read_note(), dict[str, Record]()
        same_boot = note is not None and note.boot == read_boot_id() != ""
        for record in note.files if note else ():
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with suppress(OSError), ExitStack() as opened:
                fd = os.open(os.path.join(self.whole, record.name), flags)
                opened.callback(os.close, fd)
                now = list_marks(os.fstat(fd))
                if now[0] != record.size or (same_boot and now != record.seen):
                    continue
                if (anew or not same_boot) and digest_file(fd) != record.digest:
                    continue
                found[record.name] = replace(record, seen=now)
        return found, same_boot

    # ---- putting files in place

    def write_text(self, name: str, data: bytes) -> Record:
        """Write a small file that ckpt makes itself, and return its record. Raise OSError."""
        path = os.path.join(self.part, name)
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        home, base = os.path.split(path)
        with trust.directory(home, self.trusted) as at:  # a temporary name might be published
            fd = trust.create(base, os.O_WRONLY | os.O_TRUNC, at, self.trusted)
        with open(fd, "wb") as file:
            file.write(data)
        digest = xxh3_128_hexdigest(data)
        return Record(name, size=len(data), digest=digest, seen=list_marks(os.stat(path)))

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
                    records[name] = replace(record, seen=list_marks(os.stat(to)))
        names: dict[int, str] = {}
        for name, record in sorted(records.items()):
            size, *_, inode = list_marks(os.stat(os.path.join(directory, name)))
            other = names.setdefault(inode, name)
            if other != name or (size, inode) != (record.size, record.seen[-1]):
                raise UsageError(
                    f"{name} cannot be staged in {directory}: another file of the checkpoint is there",
                    "name a DIR with --stage on a file system that tells A from a, or start without --stage",
                )
        rows = [to_builtins(record) for _, record in sorted(records.items())]
        note = {"schema": SCHEMA, "boot": read_boot_id(), "files": rows}
        replace_file(directory, NOTE, json.dumps(note, indent=1).encode(), self.trusted)
        if directory == self.part:
            os.rename(self.part, self.whole)

    # ---- room

    def make_room(self, needed: int, keep: int | None) -> Iterator[str]:
        """Do as ``remove_idle`` (None: remove nothing) until ``needed`` bytes are free. Raise CannotLook."""
        idle = iter(()) if keep is None else self.remove_idle(keep)
        while needed > (free := shutil.disk_usage(self.home).free):
            if (name := next(idle, None)) is None:
                more = "" if keep else "; --keep N removes those that were used least recently"
                text = f"{self.home} has {words_of_size(free)} free, and {words_of_size(needed)} are needed"
                raise CannotLook(text, f"make room, or name another directory{more}")
            yield name

    def remove_idle(self, keep: int) -> Iterator[str]:
        """Remove least recently used checkpoints one by one, and yield the name of each. ``keep`` of them
        stay, this one included, and all in use. Raise OSError.
        """
        by_last_use = list[tuple[int, Place]]()
        for path in glob.glob(f"{glob.escape(self.own)}/*.use"):
            other = replace(self, name=os.path.basename(path).removesuffix(".use"))
            with suppress(FileNotFoundError):  # another process has removed it just now
                if other != self and (os.path.isdir(other.whole) or other.list_parts()):
                    by_last_use.append((os.stat(path).st_mtime_ns, other))
        by_last_use.sort(key=lambda row: (row[0], row[1].name))
        for _, other in by_last_use[: max(0, len(by_last_use) - (keep - 1))]:
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
                note = self.read_note()
                self.require_ours({f.name for f in note.files} if note else ())
            except UsageError:
                return False
            # renamed in one step, so that no process meets a half of it
            gone = os.path.join(self.own, f"{_GONE}{secrets.token_hex(8)}")
            with suppress(FileNotFoundError):
                os.rename(self.whole, gone)
            for path in self.list_parts():
                shutil.rmtree(path, ignore_errors=True)
            for what in ("use", "work"):
                os.unlink(self.find_lock(what))
        shutil.rmtree(gone, ignore_errors=True)
        return True
