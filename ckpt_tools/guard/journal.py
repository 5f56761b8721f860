"""How commands change a tree: in single renames under a lock, which follow no link. ``.ckpt/journal.jsonl``
has a line for each command, written before its first rename, so that the next command takes back what died
meanwhile. To undo a command is to take it back as well.
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
from ckpt_tools.planning.first_launch import place
from ckpt_tools.settings import fault_file
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import OURS, Trust
from ckpt_tools.storage.writes import hold_lock, replace_file

NAME = "journal.jsonl"
UNDOABLE = ("repair", "quarantine")
_TRASH, _INCOMING = f"{STATE}/trash", f"{STATE}/incoming"
_KEPT = 200
"""Operations that the journal has, at most."""
_NO_REPLACE = 1
"""renameat2(2): RENAME_NOREPLACE."""
_UNKNOWN = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM})
"""What file systems without it answer."""
_HINTS = {
    errno.EXDEV: "it lies on another file system than ROOT: name a ROOT on that one",
    errno.ELOOP: "a link leads there: name the directory that it leads to",
    errno.ENOTDIR: "a link leads there: name the directory that it leads to",
    errno.EPERM: "run it as the owner of the files, or as root: what is repaired keeps its owner",
}


Identity = tuple[int, int]
"""(inode, mtime_ns): which file or directory it is, whatever it is called, and that nobody has written it
since. A rename changes neither; the number of a device would not outlive a restart.
"""


class Tree(Struct, frozen=True):
    """A root, opened: what lies below it is reached without following a link. All raise OSError."""

    root: str
    fd: int

    @contextmanager
    def above(self, path: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """The directory that ``path`` lies in, open, and the name in it; ``make`` it where it is missing."""
        *directories, name = split_path(path)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        with ExitStack() as files:
            at = self.fd
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
        """None where nothing is."""
        try:
            info = self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return info.st_ino, info.st_mtime_ns

    def remove_below(self, path: str) -> list[OSError]:
        """Remove all that lies below a directory: why what is left could not be removed."""
        problems = list[OSError]()
        with suppress(FileNotFoundError), self.above(path) as (above, top):
            for _, below, names, at in os.fwalk(top, topdown=False, onerror=problems.append, dir_fd=above):
                with suppress(OSError):  # a directory that its writer has closed for writing
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


def split_path(path: str) -> list[str]:
    """The names on a path below a root. Raises ValueError for one that leads out of it."""
    names = path.split("/")
    if not path or any(name in ("", ".", "..") or "\0" in name for name in names):
        raise ValueError(f"{path!r} is not a path below a root")
    return names


State = Literal["to do", "done", "gone"]
"""How far a step is. ``gone``: what it was about is not there any more, or something else is."""


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

    def find_state(self, at: Tree) -> State:
        here, there = at.identify(self.target), at.identify(self.source)
        if self.kept and here == self.what:
            return "done"
        if there == self.what and (not self.kept or here == self.old):
            return "to do"
        return "done" if here == self.what else "gone"

    def do(self, at: Tree) -> None:
        """Raises OSError."""
        with at.above(self.source) as (there, name), at.above(self.target, make=True) as (here, new):
            if self.kept:
                with at.above(self.kept, make=True) as (away, kept):
                    with suppress(FileExistsError):  # an earlier try died behind this line; or it is not ours
                        os.link(new, kept, src_dir_fd=here, dst_dir_fd=away, follow_symlinks=False)
                    if at.identify(self.kept) != self.old:
                        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.kept)
                    os.fsync(away)
                os.rename(name, new, src_dir_fd=there, dst_dir_fd=here)
            elif at.identify(self.target) == self.what and self.what is not None:
                os.unlink(name, dir_fd=there)  # a file that was given its second name, and died there
            else:
                rename_to_free_name(name, new, there, here)
            os.fsync(here)
            os.fsync(there)

    def inverse(self) -> Step:
        if self.kept:
            return Step(self.kept, self.target, self.source, self.old, self.what)
        return Step(self.target, self.source, "", self.what)


def rename_to_free_name(source: str, target: str, source_at: int, target_at: int) -> None:
    """Rename in open directories; raises FileExistsError where something has the new name, and OSError.

    Without renameat2(2) a file is given the new name before it loses the old one, and a directory is renamed:
    that replaces an empty directory at most.
    """
    with suppress(AttributeError):
        call = ctypes.CDLL(None, use_errno=True).renameat2
        if call(source_at, os.fsencode(source), target_at, os.fsencode(target), _NO_REPLACE) == 0:
            return
        if (number := ctypes.get_errno()) not in _UNKNOWN:
            raise OSError(number, os.strerror(number), target)
    if stat.S_ISDIR(os.stat(source, dir_fd=source_at, follow_symlinks=False).st_mode):
        os.rename(source, target, src_dir_fd=source_at, dst_dir_fd=target_at)
        return
    os.link(source, target, src_dir_fd=source_at, dst_dir_fd=target_at, follow_symlinks=False)
    os.unlink(source, dir_fd=source_at)


class Operation(Struct, frozen=True):
    """What one command does to a tree; ``number`` grows with time, ``at`` is in seconds since the epoch.
    ``command`` is the word after ``ckpt``, ``why`` is for people. What is ``begun`` is taken back by the next
    command, also where it was done and is being undone.
    """

    number: int
    command: str
    why: str
    at: float
    steps: tuple[Step, ...]
    status: Literal["begun", "done", "undone"] = "begun"
    schema: Literal["ckpt-tools/journal/v4"] = "ckpt-tools/journal/v4"


class Store:
    """The state of a root, held by this process alone where it is changed. Paths are relative to the root.
    ``back`` are the moves by which a command that was interrupted was taken back.
    """

    def __init__(self, tree: Tree, directory: str, trusted: Trust) -> None:
        self.tree, self._directory, self._trusted = tree, directory, trusted
        self.back = list[Step]()

    @cached_property
    def operations(self) -> list[Operation]:
        """Those that are not over or can be undone, and the last one, the latest first. Raises CannotLook,
        and Untrusted where others can write the journal.
        """
        path, out = os.path.join(self._directory, NAME), list[Operation]()
        try:
            data = trust.read(path, fault_file.MOST, self._trusted)
        except FileNotFoundError:
            return out
        except OSError as e:
            raise CannotLook(f"the journal {path} cannot be read: {e.strerror}") from e
        try:
            for line in data.splitlines():
                out.append(fault_file.checked(fault_file.parsed(line), Operation))
                for step in out[-1].steps:
                    for below in (step.source, step.target, step.kept or step.target):
                        split_path(below)
        except ValueError as e:
            hint = f"nobody knows what it was about: look at the tree, then move {path} away"
            raise CannotLook(f"the journal {path} is damaged: {e!r}", hint) from e
        return out

    def _write(self, *changed: Operation) -> None:
        known = {op.number: op for op in (*self.operations, *changed)}
        last = max(known)
        self.operations = [
            op
            for number, op in sorted(known.items(), reverse=True)
            if op.status == "begun" or number == last or (op.status == "done" and op.command in UNDOABLE)
        ][:_KEPT]
        data = b"".join(json.dumps(to_builtins(op)).encode("ascii") + b"\n" for op in self.operations)
        hint = "make room, or make it writable; or name another directory with CKPT_STATE_DIR"
        with explain_refusal(f"the journal {self._directory}/{NAME} cannot be written", hint):
            replace_file(self._directory, NAME, data, self._trusted)

    def _number(self) -> int:
        return 1 + max((op.number for op in self.operations), default=0)

    def place(self, kind: str) -> str:
        """A directory below ``.ckpt`` for the next operation: of the ``quarantine``, of the ``trash`` or of
        what is ``incoming``. Nothing is in it yet; who writes there makes it.
        """
        return f"{STATE}/{kind}/{self._number():06d}"

    def run(self, command: str, why: str, steps: Sequence[Step]) -> Operation:
        """Write down what is to be done, and do it; steps whose file somebody has taken away or written anew
        meanwhile are left out. What ``prune`` moves to the trash is only over when that is emptied.

        Raises CannotLook where a step fails: then those before it were taken back, or the message says that
        they could not be.
        """
        planned = list[Step]()
        try:
            for step in steps:
                self.tree.stat(step.source)  # raises where it is missing
                old = self.tree.identify(step.target) if step.kept else None
                planned.append(replace(step, what=self.tree.identify(step.source), old=old))
        except OSError as e:
            raise _error(command, e) from e
        operation = Operation(self._number(), command, why, time.time(), tuple(planned))
        self._write(operation)
        try:
            for step in operation.steps:
                if step.find_state(self.tree) == "to do":
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
        if command != "prune":
            self._write(replace(operation, status="done"))
        return operation

    def take_back(self, operation: Operation) -> None:
        """Undo what was done of an operation. What has got another file in its place since stays where it
        is, and can be brought back later. Raises CannotLook; then the next command goes on with it.
        """
        if operation.status != "begun":
            self._write(operation := replace(operation, status="begun"))
        left = list[Step]()
        try:
            for step in reversed(operation.steps):
                if step.find_state(self.tree) != "done":
                    continue
                back = step.inverse()
                if not back.kept and self.tree.identify(back.target) not in (None, back.what):
                    left.insert(0, step)
                    continue
                if not back.kept:
                    self.back.append(back)
                back.do(self.tree)
        except OSError as e:
            raise _error(operation.command, e) from e
        status: Literal["done", "undone"] = "done" if left and operation.command in UNDOABLE else "undone"
        self._write(replace(operation, steps=tuple(left), status=status))

    def take_back_some(self, found: Sequence[tuple[Operation, Step]]) -> int:
        """Undo steps of operations, which are an operation of their own from then on: its number."""
        first, steps = found[0][0], tuple(step for _, step in found)
        some = Operation(self._number(), first.command, first.why, time.time(), steps)
        rests = list[Operation]()
        for op in dict.fromkeys(op for op, _ in found):
            left = tuple(step for step in op.steps if step not in steps)
            status: Literal["done", "undone"] = "undone" if all(step.kept for step in left) else "done"
            rests.append(replace(op, steps=left, status=status))
        self._write(some, *rests)
        self.take_back(some)
        return some.number

    def resume(self) -> None:
        """Take back whatever was interrupted, the latest first. What was being undone is undone then: to put
        that away again may be to put away what a job resumes from.
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
        kept: str = "replaced",
    ) -> Step:
        """The step that puts a new file at ``target``, which is written aside, or filled by a function, and
        gets the mode and the times of the old one, or of another. The old one is kept below this place of
        ``.ckpt``. Raises CannotLook.
        """
        incoming, is_there = f"{self.place('incoming')}/{target}", self.tree.identify(target) is not None
        try:
            old = self.tree.stat(like or (target if is_there else f"{STATE}/lock"))
            with self.tree.above(incoming, make=True) as (at, name):
                fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=at)
                with os.fdopen(fd, "r+b") as new:
                    new.write(data) if isinstance(data, bytes) else data(new)
                    new.flush()
                    os.fchmod(fd, old.st_mode & 0o7777)
                    os.utime(fd, ns=(old.st_atime_ns, old.st_mtime_ns))
                    os.fsync(fd)
        except OSError as e:
            raise _error("", e) from e
        return Step(incoming, target, f"{self.place(kept)}/{target}" if is_there else "")

    def empty_trash(self, operation: Operation) -> list[OSError]:
        """Remove for good what an operation has moved into the trash: why what is left could not be removed.
        Raises CannotLook.
        """
        self._write(replace(operation, status="done"))
        return self.tree.remove_below(_TRASH)

    def sweep(self) -> None:
        """Remove what commands that died were making or removing."""
        for directory in (_INCOMING, _TRASH):
            with suppress(OSError):
                self.tree.remove_below(directory)

    def changes(self) -> list[Change]:
        """What was moved back, as rows of an answer."""
        why = "a command was interrupted: it is taken back"
        root = self.tree.root
        return [Change(f"{root}/{m.source}", "moved", why, f"{root}/{m.target}") for m in self.back]


def _error(command: str, error: OSError) -> CannotLook:
    what = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    hint = _HINTS.get(error.errno or 0, "check that there is room, and that you may write, then run it again")
    return CannotLook(f"{f'ckpt {command}'.strip()} could not go on, nothing is lost: {what}", hint)


@contextmanager
def opened(
    root: str, state_dir: str | None = None, trusted: Trust = OURS, *, apply: bool = True
) -> Iterator[Store]:
    """The state of a root, made where it is not there; a command that was interrupted is taken back first, so
    that what it would have done is judged anew. Without ``apply`` it is only looked at.

    The journal lies in ``state_dir`` where that is given. The lock and the quarantine always lie below the
    root: there is one of each for a tree, and whoever looks for checkpoints must see that something was put
    away. Raises CannotLook, also where the root is not there or another command is at work, and Untrusted
    where others can write there.
    """
    root = os.path.realpath(root)
    hint = "name a directory that is there: nothing is made for one that is not"
    with explain_refusal(f"cannot list {root}", hint):
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    state = os.path.join(root, STATE)
    home = state if state_dir is None else place(state_dir, root)
    with ExitStack() as files:
        files.callback(os.close, fd)
        if not apply:
            yield Store(Tree(root, fd), home, trusted)
            return
        hint = "check that it can be written; CKPT_STATE_DIR moves the journal elsewhere"
        for directory in (state, home):
            with explain_refusal(f"{directory} cannot be made", hint):
                trust.make(directory, trusted)
                trust.check(directory, trusted)

        def busy(who: str) -> CannotLook:
            return CannotLook(f"{who} is changing this tree", "wait until it has ended")

        files.enter_context(hold_lock(state, "lock", trusted, busy))
        store = Store(Tree(root, fd), home, trusted)
        store.resume()
        yield store
        store.sweep()
