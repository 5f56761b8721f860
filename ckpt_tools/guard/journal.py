"""How commands change a tree: in single renames under a lock, each written down before it is made as a line
of ``.ckpt/journal.jsonl``, so that whatever dies meanwhile is taken back or finished by the next command.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Any

from msgspec import Struct, convert, to_builtins
from msgspec.structs import replace

from ckpt_tools.discovery.exclude import STATE
from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.guard.tree import Identity, Tree, rename_to_free_name, split_path
from ckpt_tools.model.answers import Change
from ckpt_tools.planning.decision_log import place
from ckpt_tools.settings import checked_json
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import OURS, Trust
from ckpt_tools.storage.writes import hold_lock, replace_file, write_all

NAME = "journal.jsonl"
TRASH, GOING = f"{STATE}/trash", f"{STATE}/going"
_SCHEMA = "ckpt-tools/journal/v2"
_UNDOABLE = ("repair", "quarantine")
_BRINGING_BACK = ("undo", "restore")
_KEPT = 200
"""Operations that are over, and kept."""
_HINTS = {
    errno.EXDEV: "it lies on another file system than ROOT: name a ROOT on that one",
    errno.ELOOP: "a link leads there: name the directory that it leads to",
    errno.ENOTDIR: "a link leads there: name the directory that it leads to",
    errno.EROFS: "the file system is mounted read-only",
    errno.ENOSPC: "make room, then run it again",
    errno.EDQUOT: "make room, then run it again",
}


class State(Enum):
    """How far a step is. ``GONE``: what it was about is not there any more, or something else is."""

    TO_DO = "to do"
    DONE = "done"
    GONE = "gone"


class Step(Struct, frozen=True, array_like=True):
    """Give what is at ``source`` the name ``target``, in one rename; paths lie below the root. Nothing is
    replaced, but with ``kept`` the file at ``target``, which has that second name then: there is no moment
    without one. Which files these are (``what``, ``old``) is set when the step is planned.
    """

    source: str
    target: str
    kept: str = ""
    what: Identity | None = None
    old: Identity | None = None

    def plan(self, at: Tree) -> Step:
        """The step with the files that it is about. Raises OSError where one is missing."""
        old = Identity.of(at.stat(self.target)) if self.kept else None
        return replace(self, what=Identity.of(at.stat(self.source)), old=old)

    def state(self, at: Tree) -> State:
        here, there = at.identity(self.target), at.identity(self.source)
        if self.kept and here == self.what:
            return State.DONE
        if there == self.what and (not self.kept or here == self.old):
            return State.TO_DO
        return State.DONE if here == self.what else State.GONE

    def do(self, at: Tree) -> None:
        """Raises OSError."""
        at.make_above(self.target)
        with at.above(self.source) as (there, name), at.above(self.target) as (here, new):
            if self.kept:
                at.make_above(self.kept)
                with at.above(self.kept) as (away, kept):
                    with suppress(FileExistsError):  # an earlier try died behind this line; or it is not ours
                        os.link(new, kept, src_dir_fd=here, dst_dir_fd=away, follow_symlinks=False)
                    if at.identity(self.kept) != self.old:
                        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.kept)
                    os.fsync(away)
                os.rename(name, new, src_dir_fd=there, dst_dir_fd=here)
            elif at.identity(self.target) == self.what and self.what is not None:
                os.unlink(name, dir_fd=there)  # a file that was given its second name, and died there
            else:
                rename_to_free_name(name, new, there, here)
            os.fsync(here)
            os.fsync(there)

    def inverse(self) -> Step:
        if self.kept:
            return Step(self.kept, self.target, self.source, self.old, self.what)
        return Step(self.target, self.source, "", self.what)


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


class Journal:
    """The lines of a file that is ours alone: one when an operation begins, one when it ends. What is behind
    the last end of a line was never begun. Raises CannotLook, and Untrusted where others can write there.
    """

    def __init__(self, directory: str, trusted: Trust) -> None:
        self.directory, self.path, self._trusted = directory, os.path.join(directory, NAME), trusted
        self._by_number: dict[int, Operation] = {}
        try:
            data = trust.read(self.path, checked_json.MOST, trusted)
        except FileNotFoundError:
            data = b""
        except OSError as e:
            raise CannotLook(f"the journal {self.path} cannot be read: {e.strerror}") from e
        self._size = data.rfind(b"\n") + 1
        try:
            for line in data[: self._size].splitlines():
                self._take(checked_json.parsed(line))
        except (ValueError, KeyError, TypeError) as e:
            hint = f"nobody knows what it was about: look at the tree, then move {self.path} away"
            raise CannotLook(f"the journal {self.path} is damaged: {e!r}", hint) from e

    @property
    def operations(self) -> list[Operation]:
        """The latest first."""
        return [self._by_number[number] for number in sorted(self._by_number, reverse=True)]

    def next_number(self) -> int:
        return 1 + max(self._by_number, default=0)

    def begin(self, operation: Operation) -> None:
        """Put an operation on the disk, before its first step."""
        self._append([{"schema": _SCHEMA, **to_builtins(operation)}])

    def end(self, operation: Operation, status: Status) -> None:
        """Say how an operation ended, and with it what it takes back."""
        ends = [(operation.number, status)]
        if operation.of in self._by_number:
            ends.insert(0, (operation.of, Status.DONE if status is Status.UNDONE else Status.UNDONE))
        self._append([{"number": number, "status": status.value} for number, status in ends])

    def forget_old(self) -> None:
        """Write the file anew without all but the last operations that are over, where these are many."""
        over = [op.number for op in self.operations if op.status is not Status.BEGUN]
        if len(over) < 2 * _KEPT:
            return
        left = {n: op for n, op in self._by_number.items() if n not in over[_KEPT:]}
        data = b"".join(_line({"schema": _SCHEMA, **to_builtins(op)}) for op in left.values())
        with suppress(OSError):
            replace_file(self.directory, NAME, data, self._trusted)
            self._by_number, self._size = left, len(data)

    def _append(self, rows: Sequence[dict[str, Any]]) -> None:
        data = b"".join(map(_line, rows))
        try:
            with trust.directory(self.directory, self._trusted) as at:
                fd = trust.create(NAME, os.O_WRONLY, at, self._trusted)
                try:
                    os.ftruncate(fd, self._size)  # what somebody has left who died while he wrote
                    os.lseek(fd, 0, os.SEEK_END)
                    write_all(fd, data)
                    os.fsync(fd)
                finally:
                    os.close(fd)
                if not self._size:
                    os.fsync(at)
        except OSError as e:
            hint = "make room, or make it writable; or name another directory with CKPT_STATE_DIR"
            raise CannotLook(f"the journal {self.path} cannot be written: {e.strerror}", hint) from e
        self._size += len(data)
        for row in rows:
            self._take(row)

    def _take(self, row: Any) -> None:
        """Raises ValueError, KeyError and TypeError for what this program does not write."""
        number, status = int(row["number"]), Status(row["status"])
        if "steps" not in row:
            self._by_number[number] = replace(self._by_number[number], status=status)
            return
        if row["schema"] != _SCHEMA:
            raise ValueError(f"it is {row['schema']!r}, and not {_SCHEMA}")
        operation = convert(row, Operation)
        for step in operation.steps:
            for path in (step.source, step.target, *([step.kept] if step.kept else ())):
                split_path(path)
        self._by_number[number] = operation


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row).encode("ascii") + b"\n"


# ---- below a root


class Store:
    """The state of a root, held by this process alone. Paths are relative to the root. ``back`` are the moves
    by which a command that was interrupted was taken back.
    """

    def __init__(self, tree: Tree, journal: Journal) -> None:
        self.tree, self.journal = tree, journal
        self.back = list[Step]()

    def place(self, kind: str) -> str:
        """A directory below ``.ckpt`` for the next operation: of the ``quarantine``, of the ``trash`` or of
        what is ``incoming``. Nothing is in it yet; who writes there makes it.
        """
        return f"{STATE}/{kind}/{self.journal.next_number():06d}"

    def run(self, command: str, why: str, steps: Sequence[Step], of: int | None = None) -> Operation:
        """Write down what is to be done, and do it; steps whose file somebody has taken away or written anew
        meanwhile are left out.

        Raises CannotLook where a step fails: then those before it were taken back, or the message says that
        they could not be.
        """
        try:
            planned = tuple(step.plan(self.tree) for step in steps)
        except OSError as e:
            raise _error(command, e) from e
        operation = Operation(self.journal.next_number(), command, why, time.time(), planned, of=of)
        self.journal.begin(operation)
        try:
            for step in operation.steps:
                if step.state(self.tree) is State.TO_DO:
                    step.do(self.tree)
        except OSError as e:
            error = _error(command, e)
            try:
                self.take_back(operation)
            except CannotLook:
                text = f"{error}; a part of it is done, and could not be taken back"
                hint = f"{error.hint}; the next command that changes something here does it"
                raise CannotLook(text, hint) from e
            raise error from e
        self.journal.end(operation, Status.DONE)
        return operation

    def last_to_undo(self) -> Operation | None:
        """The last repair or quarantine that was not taken back."""
        done = (op for op in self.journal.operations if op.status is Status.DONE)
        return next((op for op in done if op.command in _UNDOABLE), None)

    def undo(self, operation: Operation) -> Operation:
        """Take an operation back. Raises UsageError where a file of it is no longer what it left, and
        CannotLook.
        """
        steps = self.backwards(operation)
        return self.run("undo", f"{operation.command} {operation.number}", steps, of=operation.number)

    def backwards(self, operation: Operation) -> list[Step]:
        """The steps that take an operation back. Raises UsageError as ``undo`` does."""
        states = [step.state(self.tree) for step in operation.steps]
        if State.GONE in states:
            path = os.path.join(self.tree.root, operation.steps[states.index(State.GONE)].target)
            text = f"{path} is not as 'ckpt {operation.command}' left it"
            raise UsageError(text, "move back by hand what it has put away")
        done = [s for s, state in zip(operation.steps, states, strict=True) if state is State.DONE]
        return [step.inverse() for step in reversed(done)]

    def close_over(self, numbers: Collection[int]) -> None:
        """Say of operations that nothing of them is left, where that is so."""
        for operation in self.journal.operations:
            if operation.number in numbers and operation.status is Status.DONE:
                moves = (step for step in operation.steps if not step.kept)
                if not any(step.state(self.tree) is State.DONE for step in moves):
                    self.journal.end(operation, Status.UNDONE)

    def write(self, path: str, data: bytes, like: str) -> None:
        """A new file that is on the disk, with the mode and the times of another. Raises CannotLook."""
        try:
            self.tree.make_above(path)
            old = self.tree.stat(like)
            with self.tree.above(path) as (at, name):
                fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=at)
                try:
                    write_all(fd, data)
                    os.fchmod(fd, old.st_mode & 0o7777)
                    os.utime(fd, ns=(old.st_atime_ns, old.st_mtime_ns))
                    os.fsync(fd)
                finally:
                    os.close(fd)
        except OSError as e:
            raise _error("", e) from e

    def step_to_write(self, target: str, data: bytes, kept: str = "replaced") -> Step:
        """The step that puts a new file at ``target``, which is written aside. The one that it replaces is
        kept below that place of ``.ckpt``. Raises CannotLook.
        """
        incoming, is_there = f"{self.place('incoming')}/{target}", self.tree.identity(target) is not None
        self.write(incoming, data, like=target if is_there else f"{STATE}/lock")
        return Step(incoming, target, f"{self.place(kept)}/{target}" if is_there else "")

    def take_back(self, operation: Operation) -> None:
        """Undo what was done of an operation. What has got another file in its place since stays where it
        is. Raises CannotLook.
        """
        done = [step for step in operation.steps if step.state(self.tree) is State.DONE]
        self._go_on(operation, [step.inverse() for step in reversed(done)], Status.UNDONE)

    def _go_on(self, operation: Operation, steps: Sequence[Step], end: Status) -> None:
        try:
            for step in steps:
                is_taken = not step.kept and self.tree.identity(step.target) not in (None, step.what)
                if is_taken or step.state(self.tree) is not State.TO_DO:
                    continue
                if not step.kept:
                    self.back.append(step)
                step.do(self.tree)
        except OSError as e:
            raise _error(operation.command, e) from e
        self.journal.end(operation, end)

    def resume(self) -> None:
        """Take back whatever was interrupted, the latest first: a prune too that had not begun to remove what
        it had moved away. What brought something back is finished: to put that away again may be to put away
        what a job resumes from.
        """
        for op in self.journal.operations:
            trash = f"{TRASH}/{op.number:06d}"
            in_trash = op.command == "prune" and op.status is Status.DONE and self.tree.identity(trash)
            if op.status is Status.BEGUN and op.command in _BRINGING_BACK:
                self._go_on(op, op.steps, Status.DONE)
            elif op.status is Status.BEGUN or in_trash:
                self.take_back(op)
        self.sweep()

    def empty_trash(self) -> list[OSError]:
        """Remove what lies in the trash, from now on for good: why what is left could not be removed.
        Raises OSError.
        """
        with suppress(FileNotFoundError):
            with self.tree.above(f"{TRASH}/0") as (trash, _):
                names = os.listdir(trash)
            self.tree.make_above(f"{GOING}/0")
            with self.tree.above(f"{TRASH}/0") as (at, _), self.tree.above(f"{GOING}/0") as (to, _):
                for name in names:
                    os.rename(name, name, src_dir_fd=at, dst_dir_fd=to)
        return self.tree.remove_below(GOING)

    def sweep(self) -> None:
        """Remove what commands that died were making or removing, and the old ends of the journal."""
        with suppress(OSError):
            shutil.rmtree(os.path.join(self.tree.root, STATE, "incoming"))
        with suppress(OSError):
            self.empty_trash()
        self.journal.forget_old()

    def changes(self) -> list[Change]:
        """Return what was moved back, as rows of an answer."""
        why, root = (
            "a command was interrupted: it is taken back, or finished if it brings back",
            self.tree.root,
        )
        return [Change(f"{root}/{m.source}", "moved", why, f"{root}/{m.target}") for m in self.back]


def _error(command: str, error: OSError) -> CannotLook:
    what = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    hint = _HINTS.get(error.errno or 0, "see that it can be written, then run it again")
    return CannotLook(f"{f'ckpt {command}'.strip()} could not go on, nothing is lost: {what}", hint)


@contextmanager
def opened(
    root: str, state_dir: str | None = None, trusted: Trust = OURS, *, to_change: bool = True
) -> Iterator[Store]:
    """The state of a root, made where it is not there; a command that was interrupted is taken back first, so
    that what it would have done is judged anew. Without ``to_change`` it is only looked at.

    The journal lies in ``state_dir`` where that is given. The lock and the quarantine always lie below the
    root: there is one of each for a tree, and whoever looks for checkpoints must see that something was put
    away. Raises CannotLook, also where the root is not there or another command is at work, and Untrusted
    where others can write there.
    """
    root = os.path.realpath(root)
    try:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as e:
        hint = "name a directory that is there: nothing is made for one that is not"
        raise CannotLook(f"cannot list {root}: {e.strerror}", hint) from e
    state = os.path.join(root, STATE)
    home = state if state_dir is None else place(state_dir, root)
    try:
        if not to_change:
            yield Store(Tree(root, fd), Journal(home, trusted))
            return
        try:
            for directory in (state, home):
                trust.make(directory, trusted)
                trust.check(directory, trusted)
        except OSError as e:
            hint = "see that it can be written; CKPT_STATE_DIR moves the journal elsewhere"
            text = f"{e.filename or state} cannot be made: {e.strerror}"
            raise CannotLook(text, _HINTS.get(e.errno or 0, hint)) from e
        with hold_lock(
            state,
            "lock",
            trusted,
            lambda who: CannotLook(f"{who} is changing this tree", "wait until it has ended"),
        ):
            store = Store(Tree(root, fd), Journal(home, trusted))
            store.resume()
            yield store
            store.sweep()
    finally:
        os.close(fd)
