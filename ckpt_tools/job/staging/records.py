"""What is known of the files of a staged checkpoint: a line for each that is whole, as long as others are on
their way, and a note beside them once all are.

A file counts as whole where its size, times and inode are those that were written down in the same boot of
this machine. After another boot, which may have lost what was not on the disk yet, and with --no-cache, its
bytes are digested.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import asdict, replace

from ckpt_tools import __version__
from ckpt_tools.errors import UsageError
from ckpt_tools.job.process import Process
from ckpt_tools.settings import checked_json
from ckpt_tools.settings.checked_json import Count, Text, Whole
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import Trust
from ckpt_tools.storage.writes import write_all

NOTE = ".ckpt-stage.json"
"""The note in a staged checkpoint; the last file to appear in it."""
LINES = ".ckpt-stage.jsonl"
"""The lines about the files of one that is not whole yet."""
ASIDE = ".ckpt-aside"
"""The directory in which files wait until they are whole."""
OWN_NAMES = frozenset({NOTE, f"{NOTE}.tmp", LINES, ASIDE})
"""What ckpt has in a staged checkpoint for itself."""
SCHEMA = "ckpt-tools/staged/v1"


class Record(Struct, frozen=True):
    """One file that is whole. ``level`` is how deeply it was verified on its way, "" where nothing is stored
    that its bytes could be held against but their number and the version that the store named; ``seen`` are
    size, mtime, ctime (ns) and inode, ``host`` the boot of the machine that saw them.
    """

    name: Text
    url: Text
    size: Count
    etag: Text
    version: Text
    level: Text
    digest: Text
    seen: tuple[Whole, ...]
    host: Text

    def found(self, path: str, *, anew: bool = False) -> Record | None:
        """The record, as of this boot, where the file at ``path`` is the one that was written: by its bytes
        after another boot, or if they are to be read ``anew``, else by its times.
        """
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            now, here = seen(os.fstat(fd)), Process.here().host
            if now[0] != self.size:
                return None
            if self.host == here and (now != self.seen or not anew):
                return self if now == self.seen else None
            from ckpt_tools.storage.stores.copies import digest_of_file

            same = digest_of_file(fd) == self.digest
            return replace(self, seen=now, host=here) if same else None
        except OSError:
            return None
        finally:
            os.close(fd)

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"


class _Note(Struct):
    """What the note about a whole checkpoint says of it."""

    schema: Literal["ckpt-tools/staged/v1"]
    files: list[Record]


def whole(rows: Mapping[str, Record], directory: str, *, anew: bool = False) -> dict[str, Record]:
    """Those whose files in a directory are whole; if that is to be seen ``anew``, by their bytes."""
    found = {name: row.found(os.path.join(directory, name), anew=anew) for name, row in rows.items()}
    return {name: row for name, row in found.items() if row is not None}


def seen(st: os.stat_result) -> tuple[int, ...]:
    """What tells that a file is still the same."""
    return st.st_size, st.st_mtime_ns, st.st_ctime_ns, st.st_ino


def coming(name: str) -> Record:
    """What is written down before a file comes, so that what a killed process leaves is known to be ckpt's.
    No file has this digest: none counts as whole by it.
    """
    return Record(name, "", 0, "", "", "", "", (), "")


def added(directory: str, *records: Record) -> None:
    """Write down that files are whole, or coming. Raises OSError."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(os.path.join(directory, LINES), flags, 0o644)
    try:
        write_all(fd, b"".join(record.line() for record in records))
    finally:
        os.close(fd)


def unfinished(directory: str, trusted: Trust) -> dict[str, Record]:
    """What the lines in a directory say, by name; a last one that was cut off says nothing. Raises OSError,
    and Untrusted.
    """
    try:
        data = trust.read(os.path.join(directory, LINES), checked_json.MOST, trusted)
    except FileNotFoundError:
        return {}
    rows = []
    for line in data.splitlines():
        try:
            rows.append(checked_json.checked(checked_json.parsed(line), Record))
        except (checked_json.NoJson, checked_json.Invalid):
            continue
    return {row.name: row for row in rows}


def finished(directory: str, trusted: Trust) -> dict[str, Record]:
    """What the note in a directory says, by name; nothing where it is not there. Raises OSError, Untrusted,
    and UsageError where something else has its name.
    """
    try:
        data = trust.read(os.path.join(directory, NOTE), checked_json.MOST, trusted)
    except FileNotFoundError:
        return {}
    try:
        note = checked_json.checked(checked_json.parsed(data), _Note)
    except (checked_json.NoJson, checked_json.Invalid):
        raise UsageError(
            f"{directory} is no checkpoint that ckpt has staged",
            "remove it, or name another DIR with --stage",
        ) from None
    return {row.name: row for row in note.files}


def note(records: Mapping[str, Record], about: Mapping[str, object]) -> bytes:
    """What the note about a whole checkpoint says."""
    rows = [asdict(record) for _, record in sorted(records.items())]
    return json.dumps(
        {"schema": SCHEMA, "tool_version": __version__, **about, "files": rows}, indent=1
    ).encode()
