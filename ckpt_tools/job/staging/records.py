"""What is known of the files of a staged checkpoint: a note beside them has the name of each before it comes,
and the digest of each once all are whole.

A file counts as whole if its size, times and inode are those in the note, written in the same boot of this
machine. After another boot, which may have lost unwritten bytes, and with --no-cache, its bytes are digested.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Literal

from msgspec import Struct, to_builtins
from msgspec.structs import replace
from xxhash import xxh3_128

from ckpt_tools.errors import UsageError
from ckpt_tools.job.decision import StagedFile
from ckpt_tools.job.files import read_boot_id
from ckpt_tools.settings import checked_json
from ckpt_tools.settings.checked_json import Count, Text, Whole
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import Trust
from ckpt_tools.storage.writes import finish_aside

NOTE = ".ckpt-stage.json"
"""The note in a staged checkpoint."""
ASIDE = ".ckpt-aside"
"""The directory in which files wait until they are whole."""
OWN_NAMES = frozenset({NOTE, f"{NOTE}.tmp", ASIDE})
"""Names in a staged checkpoint that ckpt uses for itself."""
SCHEMA = "ckpt-tools/staged/v1"
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

    def is_copy_of(self, f: StagedFile) -> bool:
        return (self.url, self.size, self.etag) == (f.url, f.size, f.etag)


class Note(Struct, frozen=True):
    """The contents of the note; ``boot`` is the boot in which the files were seen."""

    schema: Literal["ckpt-tools/staged/v1"]
    boot: Text
    files: list[Record]


def seen(st: os.stat_result) -> tuple[int, ...]:
    """Return the fields of a stat that change with the file."""
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
        return checked_json.decode(checked_json.parse(data), Note)
    except (checked_json.NoJson, checked_json.Invalid):
        text = f"{directory} was not staged by ckpt"
        raise UsageError(text, "remove it, or name another DIR with --stage") from None


def find_whole(note: Note | None, directory: str, *, anew: bool = False) -> dict[str, Record]:
    """Return the records of files as they were written, by their bytes if ``anew`` or after a boot."""
    same_boot = note is not None and note.boot == read_boot_id() != ""
    found = dict[str, Record]()
    for record in note.files if note else ():
        if not record.digest:
            continue
        with suppress(OSError):
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(os.path.join(directory, record.name), flags)
            try:
                now = seen(os.fstat(fd))
                if now[0] != record.size or (same_boot and now != record.seen):
                    continue
                if (anew or not same_boot) and digest_of(fd) != record.digest:
                    continue
                found[record.name] = replace(record, seen=now)
            finally:
                os.close(fd)
    return found


def write_note(directory: str, records: Mapping[str, Record]) -> None:
    rows = [to_builtins(record) for _, record in sorted(records.items())]
    note = {"schema": SCHEMA, "boot": read_boot_id(), "files": rows}
    path = os.path.join(directory, NOTE)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(f"{path}.tmp", flags, 0o644)
    with finish_aside(fd, json.dumps(note, indent=1).encode(), f"{path}.tmp", path):
        pass
