"""What ``ckpt`` keeps below a root, in ``.ckpt``: the journal and its lock, the quarantine, what goes
(trash, and going once that is certain) and what is being made (incoming).
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress

from msgspec import Struct
from msgspec.structs import replace

from ckpt_tools.discovery.exclude import STATE
from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.guard.journal.emptying import emptied
from ckpt_tools.guard.journal.entries import Journal, Operation, Status
from ckpt_tools.guard.journal.steps import Move, State, Step, Tree
from ckpt_tools.model.change import Change
from ckpt_tools.planning.decision_log import place
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import OURS, Trust
from ckpt_tools.storage.writes import write_all

UNDOABLE = ("repair", "quarantine")
_BRINGING_BACK = ("undo", "restore")
TRASH, GOING = f"{STATE}/trash", f"{STATE}/going"
_HINTS = {
    errno.EXDEV: "it lies on another file system than ROOT: name a ROOT on that one",
    errno.ELOOP: "a link leads there: name the directory that it leads to",
    errno.ENOTDIR: "a link leads there: name the directory that it leads to",
    errno.EROFS: "the file system is mounted read-only",
    errno.ENOSPC: "make room, then run it again",
    errno.EDQUOT: "make room, then run it again",
}


class Store(Struct, frozen=True):
    """The state of a root, held by this process alone. Paths are relative to the root. ``back`` are the moves
    by which a command that was interrupted was taken back.
    """

    tree: Tree
    journal: Journal
    now: Callable[[], float] = time.time
    back: Sequence[Move] = ()

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
            planned = tuple(step.planned(self.tree) for step in steps)
        except OSError as e:
            raise _failed(command, e) from e
        number = self.journal.next_number()
        operation = Operation(number, command, why, self.now(), planned, of=of)
        self.journal.write(operation)
        try:
            for step in operation.steps:
                if step.state(self.tree) is State.TO_DO:
                    step.do(self.tree)
        except OSError as e:
            raise self._taken_back(operation, e) from e
        if operation.of is not None:
            self._mark(operation.of, Status.DONE, Status.UNDONE)
        self.journal.mark(operation, Status.DONE)
        return replace(operation, status=Status.DONE)

    def last_to_undo(self) -> Operation | None:
        """The last repair or quarantine that was not taken back."""
        done = (op for op in self.journal.operations() if op.status is Status.DONE)
        return next((op for op in done if op.command in UNDOABLE), None)

    def undo(self, operation: Operation) -> Operation:
        """Take an operation back. Raises UsageError where a file of it is no longer what it left, and
        CannotLook.
        """
        steps = self.backwards(operation)
        return self.run("undo", f"{operation.command} {operation.number}", steps, of=operation.number)

    def backwards(self, operation: Operation) -> list[Step]:
        """The steps that take an operation back. Raises UsageError as ``undo`` does."""
        for step in operation.steps:
            if step.state(self.tree) is State.GONE:
                path = os.path.join(self.tree.root, step.target)
                text = f"{path} is not as 'ckpt {operation.command}' left it"
                raise UsageError(text, "move back by hand what it has put away")
        return [step.inverse() for step in reversed(operation.steps) if step.state(self.tree) is State.DONE]

    def close_over(self, numbers: Collection[int]) -> None:
        """Say of operations that nothing of them is left, where that is so."""
        for operation in self.journal.operations():
            if operation.number in numbers and operation.status is Status.DONE:
                moves = (step for step in operation.steps if isinstance(step, Move))
                if not any(step.state(self.tree) is State.DONE for step in moves):
                    self.journal.mark(operation, Status.UNDONE)

    def write(self, path: str, data: bytes, like: str) -> None:
        """A new file that is on the disk, with the mode and the times of another. Raises CannotLook."""
        try:
            self._write(path, data, like)
        except OSError as e:
            raise _failed("", e) from e

    def _write(self, path: str, data: bytes, like: str) -> None:
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

    def _mark(self, number: int, was: Status, status: Status) -> None:
        for operation in self.journal.operations():
            if operation.number == number and operation.status is was:
                self.journal.mark(operation, status)

    def _taken_back(self, operation: Operation, error: OSError) -> CannotLook:
        """What to say of an operation that failed, after what was done of it is undone."""
        failed = _failed(operation.command, error)
        try:
            self.take_back(operation)
        except CannotLook:
            text = f"{failed}; a part of it is done, and could not be taken back"
            return CannotLook(text, f"{failed.hint}; the next command that changes something here does it")
        return failed

    def take_back(self, operation: Operation) -> list[Move]:
        """Undo what was done of an operation, and return the moves that did it. What has got another file in
        its place since stays where it is. Raises CannotLook.
        """
        back = []
        try:
            for step in reversed(operation.steps):
                inverse = step.inverse()
                if step.state(self.tree) is not State.DONE or inverse.state(self.tree) is not State.TO_DO:
                    continue
                if isinstance(inverse, Move):
                    if self.tree.identity(inverse.target) not in (None, inverse.what):
                        continue
                    back.append(inverse)
                inverse.do(self.tree)
            if operation.of is not None:
                self._mark(operation.of, Status.UNDONE, Status.DONE)
            self.journal.mark(operation, Status.UNDONE)
        except OSError as e:
            raise _failed(operation.command, e) from e
        return back

    def _finish(self, operation: Operation) -> list[Move]:
        """Do what is left of an operation, and return the moves that did it. Where another file has taken the
        place since, what was to come back stays where it is. Raises CannotLook.
        """
        back = []
        try:
            for step in operation.steps:
                if step.state(self.tree) is not State.TO_DO:
                    continue
                if isinstance(step, Move):
                    if self.tree.identity(step.target) is not None:
                        continue
                    back.append(step)
                step.do(self.tree)
            if operation.of is not None:
                self._mark(operation.of, Status.DONE, Status.UNDONE)
            self.journal.mark(operation, Status.DONE)
        except OSError as e:
            raise _failed(operation.command, e) from e
        return back

    def empty_trash(self) -> list[OSError]:
        """Remove what lies in the trash, from now on for good: why what is left could not be removed.
        Raises OSError.
        """
        with suppress(FileNotFoundError):
            with self.tree.above(f"{TRASH}/0") as (trash, _):
                names = os.listdir(trash)
            for name in names:
                source, target = f"{TRASH}/{name}", f"{GOING}/{name}"
                self.tree.make_above(target)
                with self.tree.above(source) as (at, _), self.tree.above(target) as (to, _):
                    os.rename(name, name, src_dir_fd=at, dst_dir_fd=to)
        return emptied(self.tree, GOING)

    def resume(self) -> Store:
        """Return the store after whatever was interrupted is taken back, the latest first: a prune too that
        had not begun to remove what it had moved away. What brought something back is finished: to put that
        away again may be to put away what a job resumes from.
        """
        back = list[Move]()
        for operation in list(self.journal.operations()):
            if operation.status is Status.BEGUN and operation.command in _BRINGING_BACK:
                back += self._finish(operation)
            elif operation.status is Status.BEGUN or self._is_in_trash(operation):
                back += self.take_back(operation)
        self.sweep()
        return replace(self, back=tuple(back))

    def _is_in_trash(self, operation: Operation) -> bool:
        if operation.command != "prune" or operation.status is not Status.DONE:
            return False
        return self.tree.identity(f"{TRASH}/{operation.number:06d}") is not None

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


def _failed(command: str, error: OSError) -> CannotLook:
    what = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    hint = _HINTS.get(error.errno or 0, "see that it can be written, then run it again")
    return CannotLook(f"{f'ckpt {command}'.strip()} could not go on, nothing is lost: {what}", hint)


@contextmanager
def opened(root: str, state_dir: str | None = None, trusted: Trust = OURS) -> Iterator[Store]:
    """The state of a root, made where it is not there; a command that was interrupted is taken back first, so
    that what it would have done is judged anew.

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
    try:
        state = os.path.join(root, STATE)
        home = state if state_dir is None else place(state_dir, root)
        journal = Journal(os.path.join(home, "journal"), trusted)
        _make((state, journal.directory), trusted)
        with _locked(os.path.join(state, "lock"), trusted):
            store = Store(Tree(root, fd), journal).resume()
            yield store
            store.sweep()
    finally:
        os.close(fd)


def _make(directories: Sequence[str], trusted: Trust) -> None:
    try:
        for directory in directories:
            trust.make(directory, trusted)
            trust.check(directory, trusted)
    except OSError as e:
        hint = _HINTS.get(e.errno or 0, "see that it can be written; --state-dir moves the journal elsewhere")
        raise CannotLook(f"{e.filename or directories[0]} cannot be made: {e.strerror}", hint) from e


def interrupted(root: str, state_dir: str | None = None, trusted: Trust = OURS) -> list[Operation]:
    """What a command left half done, for those that only look. Raises CannotLook, and Untrusted."""
    with looked_at(root, state_dir, trusted) as store:
        return store.journal.begun()


@contextmanager
def looked_at(root: str, state_dir: str | None = None, trusted: Trust = OURS) -> Iterator[Store]:
    """The state of a root for those that change nothing. Raises CannotLook, and Untrusted."""
    root = os.path.realpath(root)
    home = os.path.join(root, STATE) if state_dir is None else place(state_dir, root)
    try:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as e:
        raise CannotLook(f"cannot list {root}: {e.strerror}") from e
    try:
        yield Store(Tree(root, fd), Journal(os.path.join(home, "journal"), trusted))
    finally:
        os.close(fd)


@contextmanager
def _locked(path: str, trusted: Trust) -> Iterator[None]:
    """Held by one process; the kernel lets go of it when that dies. Raises CannotLook."""
    home, name = os.path.split(path)
    try:
        with trust.directory(home, trusted) as at:
            fd = trust.create(name, os.O_RDWR, at, trusted)
    except OSError as e:
        raise CannotLook(f"{path} cannot be opened: {e.strerror}") from e
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = os.pread(fd, 200, 0).decode("utf-8", "replace") or "another command"
            raise CannotLook(f"{who} is changing this tree", "wait until it has ended") from None
        except OSError as e:
            hint = "name a directory on a file system with flock with --state-dir"
            raise CannotLook(f"{path} cannot be locked: {e.strerror}", hint) from e
        with suppress(OSError):  # only for the message above
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"process {os.getpid()} on {os.uname().nodename}".encode(), 0)
        yield
    finally:
        os.close(fd)
