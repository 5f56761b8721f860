"""The journal: a numbered file for each operation, written before its first step, renamed after its last."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Any

from msgspec import Struct

from ckpt_tools.errors import CannotLook
from ckpt_tools.guard.journal.steps import Identity, Move, Step, Swap, parts
from ckpt_tools.settings import checked_json
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import Trust
from ckpt_tools.storage.writes import write_all

SCHEMA = "ckpt-tools/journal/v1"
_NAME = re.compile(r"(\d{6,9})\.(begun|done|undone)\.json")
_KEPT = 200
"""Entries that are over, and kept."""


class Status(Enum):
    """How far an operation is. ``UNDONE``: nothing of it is left, it was taken back or could not be ended."""

    BEGUN = "begun"
    DONE = "done"
    UNDONE = "undone"


class Operation(Struct, frozen=True):
    """What one command does to a tree; ``number`` grows with time, ``at`` is in seconds since the epoch.
    ``command`` is the word after ``ckpt``, ``why`` is for people, ``of`` the number of what an undo takes
    back.
    """

    number: int
    command: str
    why: str
    at: float
    steps: tuple[Step, ...]
    status: Status = Status.BEGUN
    of: int | None = None


class Journal(Struct, frozen=True):
    """Entries in a directory that is ours alone. All raise CannotLook, and Untrusted where others can write
    there.
    """

    directory: str
    trusted: Trust

    def operations(self) -> Iterator[Operation]:
        """The latest first."""
        for number in sorted(there := self._listed(), reverse=True):
            yield self._read(number, there[number])

    def begun(self) -> list[Operation]:
        """What was interrupted, the earliest first."""
        there = self._listed()
        return [self._read(n, there[n]) for n in sorted(there) if there[n] is Status.BEGUN]

    def next_number(self) -> int:
        return 1 + max(self._listed(), default=0)

    def write(self, operation: Operation) -> None:
        """Put an entry on the disk, before the first step."""
        name = _name(operation.number, operation.status)
        with self._opened() as at:
            with suppress(FileNotFoundError):
                os.unlink(f"{name}.tmp", dir_fd=at)  # of one that died
            fd = trust.create(f"{name}.tmp", os.O_WRONLY | os.O_EXCL, at, self.trusted)
            try:
                write_all(fd, _encoded(operation))
                os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(f"{name}.tmp", name, src_dir_fd=at, dst_dir_fd=at)
            os.fsync(at)

    def mark(self, operation: Operation, status: Status) -> None:
        """Say how an operation ended."""
        old, new = (_name(operation.number, s) for s in (operation.status, status))
        with self._opened() as at:
            os.rename(old, new, src_dir_fd=at, dst_dir_fd=at)
            os.fsync(at)

    def forget_old(self) -> None:
        """Remove all but the last entries that are over."""
        there = self._listed()
        over = sorted(n for n, status in there.items() if status is not Status.BEGUN)
        with self._opened() as at, suppress(OSError):
            for number in over[:-_KEPT]:
                os.unlink(_name(number, there[number]), dir_fd=at)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        try:
            with trust.directory(self.directory, self.trusted) as at:
                yield at
        except OSError as e:
            hint = "make room, or make it writable; or name another directory with --state-dir"
            raise CannotLook(f"the journal {self.directory} cannot be written: {e.strerror}", hint) from e

    def _listed(self) -> dict[int, Status]:
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return {}
        except OSError as e:
            raise CannotLook(f"the journal {self.directory} cannot be listed: {e.strerror}") from e
        return {int(m[1]): Status(m[2]) for name in names if (m := _NAME.fullmatch(name))}

    def _read(self, number: int, status: Status) -> Operation:
        path = os.path.join(self.directory, _name(number, status))
        try:
            return _decoded(trust.read(path, checked_json.MOST, self.trusted), number, status)
        except OSError as e:
            raise CannotLook(f"the journal {path} cannot be read: {e.strerror}") from e
        except (ValueError, KeyError, TypeError) as e:
            hint = f"nobody knows what it was about: look at the tree, then move {path} away"
            raise CannotLook(f"the journal {path} is damaged: {e!r}", hint) from e


def _name(number: int, status: Status) -> str:
    return f"{number:06d}.{status.value}.json"


def _encoded(operation: Operation) -> bytes:
    body = {
        "schema": SCHEMA,
        "command": operation.command,
        "why": operation.why,
        "at": operation.at,
        "of": operation.of,
        "steps": [_step(step) for step in operation.steps],
    }
    return json.dumps(body).encode("utf-8", "surrogateescape")


def _step(step: Step) -> dict[str, object]:
    if isinstance(step, Move):
        return {"move": [step.source, step.target], "what": _identity(step.what)}
    paths = [step.target, step.incoming, step.kept]
    return {"swap": paths, "old": _identity(step.old), "new": _identity(step.new)}


def _identity(what: Identity | None) -> list[int] | None:
    return None if what is None else [what.inode, what.mtime_ns]


def _decoded(data: bytes, number: int, status: Status) -> Operation:
    """Raises ValueError, KeyError and TypeError for what ``_encoded`` does not write."""
    body: Any = checked_json.parsed(data)
    if body["schema"] != SCHEMA:
        raise ValueError(f"it is {body['schema']!r}, and not {SCHEMA}")
    steps = tuple(_step_of(row) for row in body["steps"])
    at = float(body["at"])
    return Operation(number, str(body["command"]), str(body["why"]), at, steps, status, body["of"])


def _step_of(row: Any) -> Step:
    if "move" in row:
        source, target = map(_path, row["move"])
        return Move(source, target, _identity_of(row["what"]))
    target, incoming, kept = map(_path, row["swap"])
    return Swap(target, incoming, kept, _identity_of(row["old"]), _identity_of(row["new"]))


def _path(path: str) -> str:
    return "/".join(parts(path))


def _identity_of(row: Any) -> Identity:
    inode, mtime_ns = row
    return Identity(int(inode), int(mtime_ns))
