"""The place of one staged checkpoint on a disk of this machine, and its note: the name of each file before it
comes, and the digest of each once it is whole.

A file counts as whole if its size, times and inode are those in the note, written in the same boot of this
machine. After another boot, which may have lost bytes not yet on the disk, and with --no-cache, its bytes are
digested.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import PurePath
from typing import Literal

from msgspec import Struct, to_builtins
from msgspec.structs import replace
from xxhash import xxh3_128, xxh3_128_hexdigest

from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.job.decision import StagedFile
from ckpt_tools.job.files import Backoff, boot
from ckpt_tools.output.words import size as words_of_size
from ckpt_tools.settings import checked_json
from ckpt_tools.settings.checked_json import Count, Text, Whole
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import OURS, Trust
from ckpt_tools.storage.writes import replace_file, take_lock

NOTE = ".ckpt-stage.json"
"""The note in a staged checkpoint."""
ASIDE = ".ckpt-aside"
"""The directory in which files wait until they are whole."""
SCHEMA = "ckpt-tools/staged/v1"
_OWN = ".ckpt-stage"
"""The directory of locks, and of checkpoints that are being removed."""
_PART = ".part"
"""The end of the name of a checkpoint that is not whole yet."""
_NAME = re.compile(r"[A-Za-z0-9_.-]+-[0-9a-f]{16}")
_GONE = "gone."
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_BUFFER = 4 << 20


class Record(Struct, frozen=True):
    """One file. ``level`` is how deeply it was verified, "" if nothing stored could verify its bytes;
    ``seen`` is size, mtime, ctime (ns) and inode. Until it is whole only ``name`` is set.
    """

    name: Text
    url: Text = ""
    size: Count = 0
    etag: Text = ""
    version: Text = ""
    level: Text = ""
    digest: Text = ""
    seen: tuple[Whole, ...] = ()

    def is_copy_of(self, of: StagedFile | bytes | None) -> bool:
        """Return True if it is the copy of an object, or the small file of these bytes."""
        if isinstance(of, bytes):
            return self.digest == xxh3_128_hexdigest(of)
        return of is not None and (self.url, self.size, self.etag) == (of.url, of.size, of.etag)


class Note(Struct, frozen=True):
    """The contents of the note; ``boot`` is the boot in which the files were seen."""

    schema: Literal["ckpt-tools/staged/v1"]
    boot: Text
    files: list[Record]

    @property
    def is_current(self) -> bool:
        return self.boot == boot() != ""


def see(path: str) -> tuple[int, ...]:
    """Return the fields of a file's stat that change with it, as in ``Record.seen``. Raise OSError."""
    st = os.lstat(path)
    return st.st_size, st.st_mtime_ns, st.st_ctime_ns, st.st_ino


def digest_of(fd: int) -> str:
    """Return the XXH3-128 (hex) of a file's bytes."""
    digest, at, buffer = xxh3_128(), 0, memoryview(bytearray(_BUFFER))
    while n := os.preadv(fd, [buffer], at):
        digest.update(buffer[:n])
        at += n
    return digest.hexdigest()


def read_note(directory: str, trusted: Trust) -> Note | None:
    """Return a directory's note or None. Raise OSError, Untrusted, UsageError if it is no note of ours."""
    try:
        data = trust.read(os.path.join(directory, NOTE), checked_json.MOST, trusted)
    except FileNotFoundError:
        return None
    try:
        return checked_json.checked(checked_json.parsed(data), Note)
    except (checked_json.NoJson, checked_json.Invalid):
        text = f"{directory} was not staged by ckpt"
        raise UsageError(text, "remove it, or name another DIR with --stage") from None


def write_note(directory: str, records: Mapping[str, Record], trusted: Trust = OURS) -> None:
    rows = [to_builtins(record) for _, record in sorted(records.items())]
    note = {"schema": SCHEMA, "boot": boot(), "files": rows}
    replace_file(directory, NOTE, json.dumps(note, indent=1).encode(), trusted)


def put_in_place(aside: str, path: str) -> None:
    os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
    os.rename(aside, path)


def _is_whole(path: str, record: Record, *, by_bytes: bool) -> bool:
    """Return True if a file is as it was recorded: by its bytes, or by its stat."""
    with suppress(OSError):
        if not by_bytes:
            return see(path) == record.seen
        with open(os.open(path, _READ), "rb", buffering=0) as file:
            return digest_of(file.fileno()) == record.digest
    return False


class Place(Struct, frozen=True):
    """The place of one staged checkpoint: ``name`` in the directory ``home``."""

    home: str
    name: str
    trusted: Trust = OURS

    @property
    def whole(self) -> str:
        """The directory of the checkpoint once it has been whole."""
        return os.path.join(self.home, self.name)

    @property
    def part(self) -> str:
        """The directory of its files until then."""
        return self.whole + _PART

    @property
    def directory(self) -> str:
        """The directory of its files now: what is missing of a checkpoint that was whole comes there too."""
        return self.whole if os.path.isdir(self.whole) else self.part

    def lock(self, what: str, how: int = fcntl.LOCK_EX) -> int:
        """Return the descriptor of a lock, waiting for it: "use" is shared by processes that use the
        checkpoint, "work" exclusive for the one that brings its files. Raise OSError.
        """
        fd = take_lock(self.lock_at(what), self.trusted, how, Backoff(float("inf")).pause)
        assert fd is not None  # noqa: S101 - for the type checker: who waits for ever gets it
        return fd

    def lock_at(self, what: str) -> str:
        return os.path.join(self.home, _OWN, f"{self.name}.{what}")

    def prepare(self) -> None:
        """Make the directory ``home`` if missing. Raise OSError, and Untrusted if others can write it."""
        own = os.path.join(self.home, _OWN)
        with trust.named("--stage"):
            trust.make(own, self.trusted)
            for path in (self.home, own, self.whole, self.part):
                with suppress(FileNotFoundError):
                    trust.check(path, self.trusted)
        for name in os.listdir(own):
            if name.startswith(_GONE):
                shutil.rmtree(os.path.join(own, name), ignore_errors=True)

    def require_ours(self, known: Collection[str]) -> None:
        """Raise UsageError if the checkpoint, whole or in part, has a file, link or directory that ckpt did
        not bring, as a framework might load it; Untrusted if others can write in it. Raise OSError.
        """
        for path in self._find_foreign(known):
            raise UsageError(
                f"{path} was not put there by ckpt: the staged checkpoint is not used",
                "move it, and let the job save elsewhere",
            )

    def _find_foreign(self, known: Collection[str]) -> Iterator[str]:
        homes = {ASIDE, *(str(home) for file in known for home in PurePath(file).parents)}
        for top in (self.whole, self.part):
            if os.path.islink(top):
                yield top
            for above, below, files in os.walk(top):
                at = os.path.relpath(above, top)
                for name in files if at != ASIDE else ():  # files in ASIDE have temporary names
                    if not name.startswith((".nfs", NOTE)) and os.path.normpath(f"{at}/{name}") not in known:
                        yield f"{above}/{name}"
                for name in below:
                    if os.path.normpath(f"{at}/{name}") not in homes or os.path.islink(f"{above}/{name}"):
                        yield f"{above}/{name}"
                    with trust.named("--stage"):
                        trust.check(f"{above}/{name}", self.trusted)

    def find_whole(
        self, known: Mapping[str, StagedFile | bytes], *, anew: bool
    ) -> tuple[dict[str, Record], bool]:
        """Return the records of whole files among the ``known`` ones, by their bytes if ``anew`` or after a
        boot, and True if the note needs no change. Removes each file that was whole and has changed, and
        after a boot each that is not known to be whole.
        """
        note = read_note(self.directory, self.trusted)
        rows, current = (note.files, note.is_current) if note else ([], False)
        have = {
            record.name: replace(record, seen=see(path))
            for record in rows
            if record.digest and record.is_copy_of(known.get(record.name))
            if _is_whole(path := f"{self.directory}/{record.name}", record, by_bytes=anew or not current)
        }
        coming = {record.name for record in rows if current and not record.digest}
        for name in known.keys() - have.keys() - coming:
            with suppress(FileNotFoundError):
                os.unlink(f"{self.directory}/{name}")
        return have, current and self.directory == self.whole

    def write_text(self, name: str, data: bytes) -> Record:
        """Write a small file that is a copy of no object. Raise OSError."""
        path = os.path.join(self.directory, name)
        replace_file(self.directory, f"{NOTE}.text", data, self.trusted)
        put_in_place(os.path.join(self.directory, f"{NOTE}.text"), path)
        return Record(name, size=len(data), digest=xxh3_128_hexdigest(data), seen=see(path))

    def finish(self, have: Mapping[str, Record]) -> None:
        """Note the files that are whole, and give the directory its name. Raise UsageError if the file system
        takes two names for one, such as A and a: the later file would be both.
        """
        directory, names = self.directory, dict[int, str]()
        for name, record in sorted(have.items()):
            size, *_, inode = see(os.path.join(directory, name))
            other = names.setdefault(inode, name)
            if other != name or (size, inode) != (record.size, record.seen[-1]):
                raise UsageError(
                    f"{name} cannot be staged in {directory}: another file of the checkpoint is there",
                    "name a DIR with --stage on a file system that tells A from a, or start without --stage",
                )
        write_note(directory, have, self.trusted)
        if directory != self.whole:
            os.rename(directory, self.whole)

    # ---- room

    def make_room(self, needed: int, keep: int | None) -> list[str]:
        """Free space for ``needed`` bytes: unless ``keep`` is None, remove least recently used checkpoints.
        Return the removed names. Raise CannotLook if that is not enough, and OSError.
        """
        removed, idle = list[str](), iter(()) if keep is None else self.remove_idle(keep)
        while needed > (free := shutil.disk_usage(self.home).free):
            if (name := next(idle, None)) is None:
                more = "" if keep else "; --keep N removes those that were used least recently"
                text = f"{self.home} has {words_of_size(free)} free, and {words_of_size(needed)} are needed"
                raise CannotLook(text, f"make room, or name another directory{more}")
            removed.append(name)
        return removed

    def remove_idle(self, keep: int) -> Iterator[str]:
        """Remove least recently used checkpoints one by one, and yield the name of each. ``keep`` of them
        stay, this one included, and all in use. Raise OSError.
        """
        found = {e.name.removesuffix(_PART) for e in os.scandir(self.home) if e.is_dir(follow_symlinks=False)}
        others = list[tuple[int, Place]]()
        for name in filter(_NAME.fullmatch, found - {self.name}):
            other = replace(self, name=name)
            with suppress(FileNotFoundError):  # a directory without our lock is not a staged checkpoint
                others.append((os.stat(other.lock_at("use")).st_mtime_ns, other))
        others.sort(key=lambda row: (row[0], row[1].name))
        for _, other in others[: max(0, len(others) - max(0, keep - 1))]:
            with suppress(OSError, UsageError):  # a failure to remove stops no job
                if other.remove():
                    yield other.name

    def remove(self) -> bool:
        """Remove the checkpoint; False if it is in use or being brought. Raise UsageError if it holds files
        of others, and OSError.
        """
        with ExitStack() as held:
            for what in ("use", "work"):
                if (fd := take_lock(self.lock_at(what), self.trusted)) is None:
                    return False
                held.callback(os.close, fd)
            note = read_note(self.directory, self.trusted)
            self.require_ours({f.name for f in note.files} if note else ())
            # renamed in one step, so that no process meets a half of it
            gone = os.path.join(self.home, _OWN, f"{_GONE}{secrets.token_hex(8)}")
            os.rename(self.directory, gone)
            for what in ("use", "work"):
                os.unlink(self.lock_at(what))
        shutil.rmtree(gone, ignore_errors=True)
        return True
