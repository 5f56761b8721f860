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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from io import BufferedRandom
from typing import Literal

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from ckpt_tools.discovery.exclude import STATE
from ckpt_tools.errors import CannotLook, explain_refusal
from ckpt_tools.model.answers import Change
from ckpt_tools.planning.first_launch import place
from ckpt_tools.settings import checked_json
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import OURS, Trust
from ckpt_tools.storage.writes import hold_lock, replace_file

NAME = "journal.jsonl"
UNDOABLE = ("repair", "quarantine")
_TRASH, _INCOMING = f"{STATE}/trash", f"{STATE}/incoming"
_NO_REPLACE = 1  # renameat2(2): RENAME_NOREPLACE
_UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM})
"""Errors of renameat2(2) where the system or the file system does not have it."""
_LINK = "a link leads there: name the directory that it leads to"
_HINTS = {
    errno.EXDEV: "it lies on another file system than ROOT: name a ROOT on that one",
    errno.ELOOP: _LINK,
    errno.ENOTDIR: _LINK,
    errno.EPERM: "run it as the owner of the files, or as root: what is repaired keeps its owner",
}
Identity = tuple[int, int]
"""(inode, mtime_ns): tells one file or directory from all others whatever its name, and changes when it is
written. A rename changes neither; a device number would not outlive a restart.
"""


class Step(Struct, frozen=True, array_like=True):
    """One rename of ``source`` to ``target``, paths below the root. Only with ``kept`` is a file at
    ``target`` replaced: it gets that second name first, so ``target`` is never missing. ``what`` and ``old``
    identify the files at ``source`` and ``target``; they are set when the step is planned.
    """

    source: str
    target: str
    kept: str = ""
    what: Identity | None = None
    old: Identity | None = None

    def inverse(self) -> Step:
        if self.kept:
            return Step(self.kept, self.target, self.source, self.old, self.what)
        return Step(self.target, self.source, "", self.what)


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


class Store:
    """The journal and the renames of one root, which is open as ``fd``, of one process alone while it changes
    the tree. Paths are relative to the root, and no link is followed on the way. ``back`` tells of the
    renames that took back an interrupted command.
    """

    def __init__(self, root: str, fd: int, directory: str, trusted: Trust) -> None:
        self.root, self._fd, self._directory, self._trusted = root, fd, directory, trusted
        self.back = list[Change]()

    # ---- the tree

    @contextmanager
    def above(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Yield (open directory that ``path`` lies in, its name); ``make`` creates missing directories.
        Raises OSError.
        """
        *directories, name = split_path(path)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        with ExitStack() as files:
            at = self._fd
            for directory in directories:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(directory, dir_fd=at)
                        os.fsync(at)
                at = os.open(directory, flags, dir_fd=at)
                files.callback(os.close, at)
            yield at, name

    def stat(self, path: str) -> os.stat_result:
        with self.above(path) as (at, name):
            return os.stat(name, dir_fd=at, follow_symlinks=False)

    def identify(self, path: str) -> Identity | None:
        """Return the identity of what lies at ``path``; None if nothing does. Raises OSError."""
        try:
            info = self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return info.st_ino, info.st_mtime_ns

    def is_open(self, step: Step) -> bool:
        """Return whether a step is still to be done, with the files that it was planned for."""
        is_target = not step.kept or self.identify(step.target) == step.old
        return is_target and self.identify(step.source) == step.what

    def is_done(self, step: Step) -> bool:
        return self.identify(step.target) == step.what

    def do(self, step: Step) -> None:
        """Do a step, or the rest of it if an earlier try was interrupted. Raises OSError."""
        with self.above(step.source) as (here, name), self.above(step.target, make=True) as (there, new):
            if step.kept:
                with self.above(step.kept, make=True) as (kept_dir, kept):
                    with suppress(FileExistsError):  # an earlier try was interrupted here; or it is not ours
                        os.link(new, kept, src_dir_fd=there, dst_dir_fd=kept_dir, follow_symlinks=False)
                    if self.identify(step.kept) != step.old:
                        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), step.kept)
                    os.fsync(kept_dir)
                os.rename(name, new, src_dir_fd=here, dst_dir_fd=there)
            elif step.what is not None and self.is_done(step):
                os.unlink(name, dir_fd=here)  # an earlier try was interrupted between the two calls
            else:
                rename_to_free_name(name, new, here, there)
            os.fsync(there)
            os.fsync(here)

    def sweep(self) -> list[OSError]:
        """Remove the files that commands were writing or removing; return an error for each that is left."""
        problems = list[OSError]()
        for directory in (_INCOMING, _TRASH):
            try:
                with self.above(directory) as (at, name):
                    problems += _remove_below(name, at)
            except FileNotFoundError:
                pass
            except OSError as e:
                problems.append(e)
        return problems

    # ---- the journal

    @cached_property
    def operations(self) -> list[Operation]:
        """The operations in the journal, latest first: unfinished ones, ones that can be undone, and the last
        one. Raises CannotLook, and Untrusted if others can write the journal.
        """
        path, out = os.path.join(self._directory, NAME), list[Operation]()
        try:
            for line in trust.read(path, checked_json.MOST, self._trusted).splitlines():
                out.append(checked_json.checked(checked_json.parsed(line), Operation))
                for step in out[-1].steps:
                    for path_below in (step.source, step.target, step.kept or step.target):
                        split_path(path_below)
        except FileNotFoundError:
            pass
        except OSError as e:
            raise CannotLook(f"the journal {path} cannot be read: {e.strerror}") from e
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
        ]
        data = b"".join(json.dumps(to_builtins(op)).encode("ascii") + b"\n" for op in self.operations)
        hint = "make room, or make it writable; or name another directory with CKPT_STATE_DIR"
        with explain_refusal(f"the journal {self._directory}/{NAME} cannot be written", hint):
            trust.make(self._directory, self._trusted)
            replace_file(self._directory, NAME, data, self._trusted)

    @property
    def next_number(self) -> int:
        return 1 + max((op.number for op in self.operations), default=0)

    def place(self, kind: str) -> str:
        """Return the directory below ``.ckpt`` for files of the next operation; ``kind`` is quarantine,
        trash, incoming or replaced. It is not there yet: who writes into it makes it.
        """
        return f"{STATE}/{kind}/{self.next_number:06d}"

    def step_to_write(
        self,
        target: str,
        data: bytes | Callable[[BufferedRandom], object],
        *,
        like: str = "",
        kept: str = "replaced",
    ) -> Step:
        """Write a file aside, from bytes or by a function, and return the step that puts it at ``target``. It
        gets mode and times of that file or of ``like``; the old file goes below ``.ckpt/<kept>``. Raises
        CannotLook.
        """
        incoming, is_there = f"{self.place('incoming')}/{target}", self.identify(target) is not None
        with _explained(""), self.above(incoming, make=True) as (at, name):
            old = self.stat(like or (target if is_there else f"{STATE}/lock"))
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=at)
            with os.fdopen(fd, "r+b") as new:
                new.write(data) if isinstance(data, bytes) else data(new)
                new.flush()
                os.fchmod(fd, old.st_mode & 0o7777)
                os.utime(fd, ns=(old.st_atime_ns, old.st_mtime_ns))
                os.fsync(fd)
        return Step(incoming, target, f"{self.place(kept)}/{target}" if is_there else "")

    def run(self, command: str, why: str, steps: Iterable[Step]) -> Operation:
        """Write the steps into the journal, then do them; a step whose file was moved or written meanwhile is
        left out. ``prune`` is over only when the trash, to which its files move, is emptied. Raises
        CannotLook if a step fails; the message says if the steps before it could not be taken back.
        """
        planned = list[Step]()
        with _explained(command):
            for step in steps:
                self.stat(step.source)  # raises where it is missing
                old = self.identify(step.target) if step.kept else None
                planned.append(replace(step, what=self.identify(step.source), old=old))
        operation = Operation(self.next_number, command, why, time.time(), tuple(planned))
        self._write(operation)
        try:
            with _explained(command):
                for step in filter(self.is_open, operation.steps):
                    self.do(step)
        except CannotLook as error:
            try:
                self.take_back(operation)
            except CannotLook as e:
                text = f"{error}; a part of it is done, and could not be taken back"
                hint = f"{error.hint}; the next command that changes something here does it"
                raise CannotLook(text, hint) from e
            raise
        if command != "prune":
            self.finish(operation)
        return operation

    def finish(self, operation: Operation) -> None:
        self._write(replace(operation, status="done"))

    def take_back(self, operation: Operation) -> list[Step]:
        """Undo the steps of an operation that were done; return the renames that did it. A file whose old
        path is taken by another one stays where it is, for a later undo. Raises CannotLook; then the next
        command goes on with it.
        """
        if operation.status != "begun":
            self._write(operation := replace(operation, status="begun"))
        blocked, moved = list[Step](), list[Step]()
        with _explained(operation.command):
            for step in filter(self.is_done, reversed(operation.steps)):
                if not step.kept and self.identify(step.source) not in (None, step.what):
                    blocked.insert(0, step)
                    continue
                moved.append(step.inverse())
                self.do(moved[-1])
        status: Literal["done", "undone"] = "done" if blocked and operation.command in UNDOABLE else "undone"
        self._write(replace(operation, steps=tuple(blocked), status=status))
        return [step for step in moved if not step.kept]

    def take_back_some(self, chosen: Sequence[tuple[Operation, Step]]) -> int:
        """Undo some steps as an operation of their own, and return its number; rewritten trackers stay."""
        first, steps = chosen[0][0], tuple(step for _, step in chosen)
        own_operation = Operation(self.next_number, first.command, first.why, time.time(), steps)
        changed = list[Operation]()
        for op in dict.fromkeys(op for op, _ in chosen):
            rest = tuple(step for step in op.steps if step not in steps)
            only_trackers = all(step.kept for step in rest)
            changed.append(replace(op, steps=rest, status="undone" if only_trackers else "done"))
        self._write(own_operation, *changed)
        self.take_back(own_operation)
        return own_operation.number

    def resume(self) -> None:
        """Take back all interrupted operations, the latest first. An interrupted undo is finished, not
        reversed: that could put away a checkpoint that a job resumes from by now.
        """
        why = "a command was interrupted: it is taken back"
        for op in [op for op in self.operations if op.status == "begun"]:
            for step in self.take_back(op):
                to = f"{self.root}/{step.target}"
                self.back.append(Change(f"{self.root}/{step.source}", "moved", why, to))
        self.sweep()


def split_path(path: str) -> list[str]:
    """Split a path below a root into names. Raises ValueError if it leads out of the root."""
    names = path.split("/")
    if not path or any(name in ("", ".", "..") or "\0" in name for name in names):
        raise ValueError(f"{path!r} is not a path below a root")
    return names


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


def _remove_below(top: str, above: int) -> list[OSError]:
    """Remove all below the directory ``top`` of an open one; return an error for each entry that is left."""
    problems = list[OSError]()
    for _, below, names, at in os.fwalk(top, topdown=False, onerror=problems.append, dir_fd=above):
        with suppress(OSError):  # its writer may have made it read-only
            os.fchmod(at, 0o700)
        for name in (*names, *below):
            try:
                info = os.stat(name, dir_fd=at, follow_symlinks=False)
                (os.rmdir if stat.S_ISDIR(info.st_mode) else os.unlink)(name, dir_fd=at)
            except FileNotFoundError:
                pass
            except OSError as e:
                problems.append(e)
    return problems


@contextmanager
def _explained(command: str) -> Iterator[None]:
    """Turn an OSError of the block into CannotLook: ``command`` cannot go on."""
    try:
        yield
    except OSError as e:
        what = f"{e.filename}: {e.strerror}" if e.filename else str(e.strerror)
        hint = _HINTS.get(e.errno or 0, "check that there is room, and that you may write, then run it again")
        raise CannotLook(f"{f'ckpt {command}'.strip()} could not go on, nothing is lost: {what}", hint) from e


@contextmanager
def opened(
    root: str, state_dir: str | None = None, trusted: Trust = OURS, *, apply: bool = True
) -> Iterator[Store]:
    """Yield the Store of a root. With ``apply`` its directories are made, and an interrupted command is taken
    back first, so that its checkpoints are judged anew; without, nothing is written.

    The journal lies in ``state_dir`` if given. Lock and quarantine always lie below the root: a tree has one
    of each, and whoever looks for checkpoints must see that some were put away. Raises CannotLook, also if
    the root is missing or another command is at work, and Untrusted if others can write there.
    """
    root = os.path.realpath(root)
    hint = "name a directory that is there: nothing is made for one that is not"
    with explain_refusal(f"cannot list {root}", hint):
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    state = os.path.join(root, STATE)
    store = Store(root, fd, state if state_dir is None else place(state_dir, root), trusted)

    def refuse(who: str) -> CannotLook:
        return CannotLook(f"{who} is changing this tree", "wait until it has ended")

    with ExitStack() as stack:
        stack.callback(os.close, fd)
        if apply:
            stack.enter_context(hold_lock(state, "lock", trusted, refuse))
            store.resume()
        yield store
        if apply:
            store.sweep()
