"""How commands change a tree: by single renames under a lock, following no link. ``.ckpt/journal.jsonl`` gets
a line for each command before its first rename, so that the next command can take back a command that was
interrupted. Undoing a command takes it back in the same way.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from io import BufferedRandom
from typing import Literal

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from ckpt_tools.discovery.exclude import STATE
from ckpt_tools.errors import CannotLook, explain_refusal
from ckpt_tools.model.answers import Change
from ckpt_tools.planning.first_launch import name_home
from ckpt_tools.settings import checked_json
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import OURS, Trust
from ckpt_tools.storage.writes import hold_lock, replace_file

NAME = "journal.jsonl"
UNDOABLE = ("repair", "quarantine")
_TRASH, _INCOMING = f"{STATE}/trash", f"{STATE}/incoming"
_MOST_OPERATIONS = 200  # operations in the journal, at most
_NO_REPLACE = 1  # renameat2(2): RENAME_NOREPLACE
_UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM})
"""Errors of renameat2(2) where the system or the file system does not have it."""
_HINTS = {
    errno.EXDEV: "it lies on another file system than ROOT: name a ROOT on that one",
    errno.ELOOP: "a link leads there: name the directory that it leads to",
    errno.ENOTDIR: "a link leads there: name the directory that it leads to",
    errno.EPERM: "run it as the owner of the files, or as root: what is repaired keeps its owner",
}


FileId = tuple[int, int]
"""(inode, mtime_ns): tells one file or directory from all others whatever its name, and changes when it is
written. A rename changes neither; a device number would not outlive a restart.
"""


class Tree(Struct, frozen=True):
    """A root directory, open as ``fd``; no link is followed on the way below it. Methods raise OSError."""

    root: str
    fd: int

    @contextmanager
    def open_parent(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Yield (descriptor of the directory of ``path``, its name); ``make`` creates missing directories."""
        *directories, name = split_path(path)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        with ExitStack() as files:
            fd = self.fd
            for directory in directories:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(directory, dir_fd=fd)
                        os.fsync(fd)
                fd = os.open(directory, flags, dir_fd=fd)
                files.callback(os.close, fd)
            yield fd, name

    def stat(self, path: str) -> os.stat_result:
        with self.open_parent(path) as (parent, name):
            return os.stat(name, dir_fd=parent, follow_symlinks=False)

    def identify(self, path: str) -> FileId | None:
        """Return the identity of what lies at ``path``; None if nothing does."""
        try:
            info = self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return info.st_ino, info.st_mtime_ns

    def remove_below(self, path: str) -> list[OSError]:
        """Remove all that lies below a directory; return an error for each entry that is left."""
        problems = list[OSError]()
        with suppress(FileNotFoundError), self.open_parent(path) as (parent, top):
            for _, below, names, fd in os.fwalk(top, topdown=False, onerror=problems.append, dir_fd=parent):
                with suppress(OSError):  # its writer may have made it read-only
                    os.fchmod(fd, 0o700)
                for name in (*names, *below):
                    try:
                        info = os.stat(name, dir_fd=fd, follow_symlinks=False)
                        (os.rmdir if stat.S_ISDIR(info.st_mode) else os.unlink)(name, dir_fd=fd)
                    except FileNotFoundError:
                        pass
                    except OSError as e:
                        problems.append(e)
        return problems


def split_path(path: str) -> list[str]:
    """Split a path below a root into names. Raises ValueError if it leads out of the root."""
    names = path.split("/")
    if not path or any(name in ("", ".", "..") or "\0" in name for name in names):
        raise ValueError(f"{path!r} is not a path below a root")
    return names


State = Literal["to do", "done", "gone"]
"""How far a step is. ``gone``: its file is not there any more, or another one is in its place."""


class Step(Struct, frozen=True, array_like=True):
    """One rename of ``source`` to ``target``, paths below the root. Only with ``backup`` is a file at
    ``target`` replaced: it gets that second name first, so ``target`` is never missing. ``source_id`` and
    ``target_id`` identify the files there when the step is planned.
    """

    source: str
    target: str
    backup: str = ""
    source_id: FileId | None = None
    target_id: FileId | None = None

    def find_state(self, tree: Tree) -> State:
        """Return how far the step is, by the identities of the files that lie at its paths now."""
        at_target, at_source = tree.identify(self.target), tree.identify(self.source)
        if self.backup and at_target == self.source_id:
            return "done"
        if at_source == self.source_id and (not self.backup or at_target == self.target_id):
            return "to do"
        return "done" if at_target == self.source_id else "gone"

    def do(self, tree: Tree) -> None:
        """Do the step, or the rest of it if an earlier try was interrupted. Raises OSError."""
        source, target = tree.open_parent(self.source), tree.open_parent(self.target, make=True)
        with source as (from_dir, name), target as (to_dir, new):
            if self.backup:
                with tree.open_parent(self.backup, make=True) as (backup_dir, backup):
                    with suppress(FileExistsError):  # an earlier try was interrupted here; or it is not ours
                        os.link(new, backup, src_dir_fd=to_dir, dst_dir_fd=backup_dir, follow_symlinks=False)
                    if tree.identify(self.backup) != self.target_id:
                        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.backup)
                    os.fsync(backup_dir)
                os.rename(name, new, src_dir_fd=from_dir, dst_dir_fd=to_dir)
            elif tree.identify(self.target) == self.source_id and self.source_id is not None:
                os.unlink(name, dir_fd=from_dir)  # an earlier try was interrupted between the two calls
            else:
                rename_to_free_name(name, new, from_dir, to_dir)
            os.fsync(to_dir)
            os.fsync(from_dir)

    def inverse(self) -> Step:
        """Return the step that takes this one back."""
        if self.backup:
            return Step(self.backup, self.target, self.source, self.target_id, self.source_id)
        return Step(self.target, self.source, "", self.source_id)


def rename_to_free_name(source: str, target: str, source_at: int, target_at: int) -> None:
    """Rename between open directories. Raises FileExistsError if the new name is taken, and OSError. Without
    renameat2(2) a file is linked to the new name before it loses the old one, and a directory is renamed,
    which can replace an empty directory at most.
    """
    with suppress(AttributeError):
        call = ctypes.CDLL(None, use_errno=True).renameat2
        if call(source_at, os.fsencode(source), target_at, os.fsencode(target), _NO_REPLACE) == 0:
            return
        if (number := ctypes.get_errno()) not in _UNSUPPORTED:
            raise OSError(number, os.strerror(number), target)
    if stat.S_ISDIR(os.stat(source, dir_fd=source_at, follow_symlinks=False).st_mode):
        os.rename(source, target, src_dir_fd=source_at, dst_dir_fd=target_at)
        return
    os.link(source, target, src_dir_fd=source_at, dst_dir_fd=target_at, follow_symlinks=False)
    os.unlink(source, dir_fd=source_at)


class Operation(Struct, frozen=True):
    """All steps of one command; ``number`` grows with time, ``at`` is in seconds since the epoch. ``command``
    is the word after ``ckpt``, ``why`` is for people. The next command takes back an operation that is
    ``begun``: one that was interrupted, or whose undoing was.
    """

    number: int
    command: str
    why: str
    at: float
    steps: tuple[Step, ...]
    status: Literal["begun", "done", "undone"] = "begun"
    schema: Literal["ckpt-tools/journal/v4"] = "ckpt-tools/journal/v4"


class Journal:
    """The journal and the renames of one root, of one process alone while it changes the tree. Paths are
    relative to the root. ``recovery_steps`` are the renames that took back an interrupted command.
    """

    def __init__(self, tree: Tree, directory: str, trusted: Trust) -> None:
        self.tree, self._directory, self._trusted = tree, directory, trusted
        self.recovery_steps = list[Step]()

    @cached_property
    def operations(self) -> list[Operation]:
        """The operations in the journal, latest first: unfinished ones, ones that can be undone, and the last
        one. Raises CannotLook, and Untrusted if others can write the journal.
        """
        path, out = os.path.join(self._directory, NAME), list[Operation]()
        try:
            data = trust.read(path, checked_json.MOST, self._trusted)
        except FileNotFoundError:
            return out
        except OSError as e:
            raise CannotLook(f"the journal {path} cannot be read: {e.strerror}") from e
        try:
            for line in data.splitlines():
                out.append(checked_json.decode(checked_json.parse(line), Operation))
                for step in out[-1].steps:
                    for path_below in (step.source, step.target, step.backup or step.target):
                        split_path(path_below)
        except ValueError as e:
            hint = f"nobody knows what it was about: look at the tree, then move {path} away"
            raise CannotLook(f"the journal {path} is damaged: {e!r}", hint) from e
        return out

    def _write(self, *changed: Operation) -> None:
        """Put operations into the journal, and drop the ones that nobody needs any more."""
        known = {op.number: op for op in (*self.operations, *changed)}
        last = max(known)
        self.operations = [
            op
            for number, op in sorted(known.items(), reverse=True)
            if op.status == "begun" or number == last or (op.status == "done" and op.command in UNDOABLE)
        ][:_MOST_OPERATIONS]
        data = b"".join(json.dumps(to_builtins(op)).encode("ascii") + b"\n" for op in self.operations)
        hint = "make room, or make it writable; or name another directory with CKPT_STATE_DIR"
        with explain_refusal(f"the journal {self._directory}/{NAME} cannot be written", hint):
            replace_file(self._directory, NAME, data, self._trusted)

    def _find_next_number(self) -> int:
        return 1 + max((op.number for op in self.operations), default=0)

    def name_directory(self, kind: str) -> str:
        """Return the path below the root for files of the next operation; ``kind`` is quarantine, trash,
        incoming or replaced. The directory does not exist yet.
        """
        return f"{STATE}/{kind}/{self._find_next_number():06d}"

    def run(self, command: str, why: str, steps: Sequence[Step]) -> Operation:
        """Write the steps into the journal, then do them; a step whose file was moved or written meanwhile is
        left out. ``prune`` is over only when the trash, to which its files move, is emptied. Raises
        CannotLook if a step fails; the message says if the steps before it could not be taken back.
        """
        planned = list[Step]()
        try:
            for step in steps:
                self.tree.stat(step.source)  # raises where it is missing
                target_id = self.tree.identify(step.target) if step.backup else None
                planned.append(replace(step, source_id=self.tree.identify(step.source), target_id=target_id))
        except OSError as e:
            raise _explain_failure(command, e) from e
        operation = Operation(self._find_next_number(), command, why, time.time(), tuple(planned))
        self._write(operation)
        try:
            for step in operation.steps:
                if step.find_state(self.tree) == "to do":
                    step.do(self.tree)
        except OSError as e:
            error = _explain_failure(command, e)
            try:
                self.take_back(operation)
            except CannotLook:
                text = f"{error}; a part of it is done, and could not be taken back"
                hint = f"{error.hint}; the next command that changes something here does it"
                raise CannotLook(text, hint) from e
            raise error from e
        if command != "prune":
            self._write(replace(operation, status="done"))
        return operation

    def take_back(self, operation: Operation) -> None:
        """Undo the steps of an operation that were done. A file whose old path is taken by another one stays
        where it is, for a later undo. Raises CannotLook; then the next command goes on with it.
        """
        if operation.status != "begun":
            self._write(operation := replace(operation, status="begun"))
        blocked = list[Step]()
        try:
            for step in reversed(operation.steps):
                if step.find_state(self.tree) != "done":
                    continue
                back = step.inverse()
                if not back.backup and self.tree.identify(back.target) not in (None, back.source_id):
                    blocked.insert(0, step)
                    continue
                if not back.backup:
                    self.recovery_steps.append(back)
                back.do(self.tree)
        except OSError as e:
            raise _explain_failure(operation.command, e) from e
        status: Literal["done", "undone"] = "done" if blocked and operation.command in UNDOABLE else "undone"
        self._write(replace(operation, steps=tuple(blocked), status=status))

    def take_back_some(self, chosen: Sequence[tuple[Operation, Step]]) -> int:
        """Undo some steps as an operation of their own, and return its number; rewritten trackers stay."""
        first, steps = chosen[0][0], tuple(step for _, step in chosen)
        own_operation = Operation(self._find_next_number(), first.command, first.why, time.time(), steps)
        changed = list[Operation]()
        for op in dict.fromkeys(op for op, _ in chosen):
            others = tuple(step for step in op.steps if step not in steps)
            only_trackers = all(step.backup for step in others)
            changed.append(replace(op, steps=others, status="undone" if only_trackers else "done"))
        self._write(own_operation, *changed)
        self.take_back(own_operation)
        return own_operation.number

    def resume(self) -> None:
        """Take back all interrupted operations, the latest first. An interrupted undo is finished, not
        reversed: that could put away a checkpoint that a job resumes from by now.
        """
        for op in [op for op in self.operations if op.status == "begun"]:
            self.take_back(op)
        self.sweep()

    def step_to_write(
        self,
        target: str,
        data: bytes | Callable[[BufferedRandom], object],
        *,
        like: str = "",
        backup_kind: str = "replaced",
    ) -> Step:
        """Write a file aside, from bytes or by a function, and return the step that puts it at ``target``. It
        gets mode and times of that file or of ``like``; the old file goes below ``.ckpt/<backup_kind>``.
        Raises CannotLook.
        """
        incoming, exists = (
            f"{self.name_directory('incoming')}/{target}",
            self.tree.identify(target) is not None,
        )
        try:
            example = self.tree.stat(like or (target if exists else f"{STATE}/lock"))
            with self.tree.open_parent(incoming, make=True) as (parent, name):
                fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=parent)
                with os.fdopen(fd, "r+b") as new:
                    new.write(data) if isinstance(data, bytes) else data(new)
                    new.flush()
                    os.fchmod(fd, example.st_mode & 0o7777)
                    os.utime(fd, ns=(example.st_atime_ns, example.st_mtime_ns))
                    os.fsync(fd)
        except OSError as e:
            raise _explain_failure("", e) from e
        return Step(incoming, target, f"{self.name_directory(backup_kind)}/{target}" if exists else "")

    def empty_trash(self, operation: Operation) -> list[OSError]:
        """Empty the trash; return an error for each file that is left. Raises CannotLook."""
        self._write(replace(operation, status="done"))
        return self.tree.remove_below(_TRASH)

    def sweep(self) -> None:
        """Remove the files that interrupted commands were writing or removing."""
        for directory in (_INCOMING, _TRASH):
            with suppress(OSError):
                self.tree.remove_below(directory)

    def list_changes(self) -> list[Change]:
        """Return the renames that took back an interrupted command, as rows of an answer."""
        why = "a command was interrupted: it is taken back"
        root = self.tree.root
        return [Change(f"{root}/{m.source}", "moved", why, f"{root}/{m.target}") for m in self.recovery_steps]


def _explain_failure(command: str, error: OSError) -> CannotLook:
    """Return the error for a failed system call of a command ("": the caller names none)."""
    cause = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    hint = _HINTS.get(error.errno or 0, "check that there is room, and that you may write, then run it again")
    return CannotLook(f"{f'ckpt {command}'.strip()} could not go on, nothing is lost: {cause}", hint)


@contextmanager
def open_journal(
    root: str, state_dir: str | None = None, trusted: Trust = OURS, *, apply: bool = True
) -> Iterator[Journal]:
    """Yield the Journal of a root. With ``apply`` its directories are made, and an interrupted command is
    taken back first, so that its checkpoints are judged anew; without, nothing is written.

    The journal lies in ``state_dir`` if given. Lock and quarantine always lie below the root: a tree has one
    of each, and whoever looks for checkpoints must see that some were put away. Raises CannotLook, also if
    the root is missing or another command is at work, and Untrusted if others can write there.
    """
    root = os.path.realpath(root)
    hint = "name a directory that is there: nothing is made for one that is not"
    with explain_refusal(f"cannot list {root}", hint):
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    state = os.path.join(root, STATE)
    journal_dir = state if state_dir is None else name_home(state_dir, root)
    with ExitStack() as stack:
        stack.callback(os.close, fd)
        if not apply:
            yield Journal(Tree(root, fd), journal_dir, trusted)
            return
        hint = "check that it can be written; CKPT_STATE_DIR moves the journal elsewhere"
        for directory in (state, journal_dir):
            with explain_refusal(f"{directory} cannot be made", hint):
                trust.make(directory, trusted)
                trust.check(directory, trusted)

        def busy(who: str) -> CannotLook:
            return CannotLook(f"{who} is changing this tree", "wait until it has ended")

        stack.enter_context(hold_lock(state, "lock", trusted, busy))
        journal = Journal(Tree(root, fd), journal_dir, trusted)
        journal.resume()
        yield journal
        journal.sweep()
