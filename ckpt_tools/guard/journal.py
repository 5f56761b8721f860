"""How commands change a tree: by single renames under a lock, following no link. ``.ckpt/journal.jsonl`` gets
a line for each command before its first rename, so that the next command can take back one that was
interrupted. Undoing a command takes it back in the same way.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from typing import Literal

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from ckpt_tools.discovery.exclude import STATE
from ckpt_tools.errors import CannotLook, UsageError, explain_refusal
from ckpt_tools.model.answers import Change
from ckpt_tools.settings import checked_json
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import OURS, Trust
from ckpt_tools.storage.writes import hold_lock, replace_file

NAME = "journal.jsonl"
UNDOABLE = ("repair", "quarantine")
_TRASH, _INCOMING = f"{STATE}/trash", f"{STATE}/incoming"
_MOST_OPERATIONS = 200  # operations in the journal, at most
_HINT = (
    "check that there is room, that the files are yours and on the file system of ROOT, and that no link"
    " leads to them, then run it again"
)

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

    def identify(self, path: str) -> FileId | None:
        """Return the identity of what lies at ``path``; None if nothing does."""
        try:
            with self.open_parent(path) as (parent, name):
                info = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return info.st_ino, info.st_mtime_ns

    def move(self, source: str, target: str, *, replacing: bool = False) -> None:
        """Give something another path; only with ``replacing`` may a file be there. A directory is renamed,
        which can replace an empty one at most; a file has both names for a moment, because a rename would
        replace a file that has come meanwhile.
        """
        with self.open_parent(source) as (old_at, old), self.open_parent(target, make=True) as (new_at, new):
            info = os.stat(old, dir_fd=old_at, follow_symlinks=False)
            is_linked = self.identify(target) == (info.st_ino, info.st_mtime_ns)  # it was interrupted here
            if not (is_linked or replacing or stat.S_ISDIR(info.st_mode)):
                try:
                    os.link(old, new, src_dir_fd=old_at, dst_dir_fd=new_at, follow_symlinks=False)
                    is_linked = True
                except FileExistsError:
                    raise
                except OSError:  # some file systems have no links, and others none of somebody else's files
                    pass
            if is_linked:
                os.unlink(old, dir_fd=old_at)
            else:
                os.rename(old, new, src_dir_fd=old_at, dst_dir_fd=new_at)
            os.fsync(new_at)
            os.fsync(old_at)

    def link(self, source: str, target: str) -> None:
        """Give a file a second name."""
        with self.open_parent(source) as (old_at, old), self.open_parent(target, make=True) as (new_at, new):
            os.link(old, new, src_dir_fd=old_at, dst_dir_fd=new_at, follow_symlinks=False)
            os.fsync(new_at)


def split_path(path: str) -> list[str]:
    """Split a path below a root into names. Raises ValueError if it leads out of the root."""
    names = path.split("/")
    if not path or any(name in ("", ".", "..") or "\0" in name for name in names):
        raise ValueError(f"{path!r} is not a path below a root")
    return names


class Step(Struct, frozen=True, array_like=True):
    """One rename of ``source`` to ``target``, paths below the root. Only with ``backup`` is a file at
    ``target`` replaced: it gets that second name first, so ``target`` is never missing. ``source_id`` and
    ``target_id`` identify the files there when the step is planned; None: there is none.
    """

    source: str
    target: str
    backup: str = ""
    source_id: FileId | None = None
    target_id: FileId | None = None

    def is_to_do(self, tree: Tree) -> bool:
        """Return whether the same files as when it was planned are at its paths."""
        return (tree.identify(self.source), tree.identify(self.target)) == (self.source_id, self.target_id)

    def is_done(self, tree: Tree) -> bool:
        return self.source_id is not None and tree.identify(self.target) == self.source_id

    def do(self, tree: Tree) -> None:
        """Do a step that is to do. Raises OSError."""
        if self.backup:
            tree.link(self.target, self.backup)
        tree.move(self.source, self.target, replacing=bool(self.backup))

    def take_back(self, tree: Tree) -> None:
        """Undo a step that is done. Raises OSError."""
        if self.backup:
            tree.move(self.backup, self.target, replacing=True)
        else:
            tree.move(self.target, self.source)


class Operation(Struct, frozen=True):
    """All steps of one command; ``number`` grows with time, ``at`` is in seconds since the epoch. The next
    command takes back an operation that is ``begun``: one that was interrupted, or whose undoing was.
    """

    number: int
    command: str
    at: float
    steps: tuple[Step, ...]
    status: Literal["begun", "done", "undone"] = "begun"
    schema: Literal["ckpt-tools/journal/v4"] = "ckpt-tools/journal/v4"


class Journal:
    """The journal and the renames of one root, of one process alone while it changes the tree. Paths are
    relative to the root. ``recovered`` are the rows of an answer for what an interrupted command had moved.
    """

    def __init__(self, tree: Tree, trusted: Trust) -> None:
        self.tree, self._trusted = tree, trusted
        self._directory = os.path.join(tree.root, STATE)
        self.recovered = list[Change]()

    @cached_property
    def operations(self) -> list[Operation]:
        """The operations that somebody needs, latest first. Raises CannotLook, and Untrusted if others can
        write the journal.
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
        hint = "make room, or make it writable"
        with explain_refusal(f"the journal {self._directory}/{NAME} cannot be written", hint):
            replace_file(self._directory, NAME, data, self._trusted)

    def _find_next_number(self) -> int:
        return 1 + max((op.number for op in self.operations), default=0)

    def name_directory(self, kind: str) -> str:
        """Return the path for files of the next operation: quarantine, trash, incoming or replaced."""
        return f"{STATE}/{kind}/{self._find_next_number():06d}"

    def run(self, command: str, steps: Iterable[Step], check: Callable[[], object] | None = None) -> int:
        """Write the steps into the journal, then do them, and return the operation's number; a step whose
        files are moved or written after that is left out. All is taken back if a step fails, or if ``check``,
        which is called at the end, raises CannotLook. Raises CannotLook, also for a source that is missing.
        """
        planned, identify = list[Step](), self.tree.identify
        for step in steps:
            with explain_refusal(f"{step.source} cannot be moved: nothing is done", _HINT):
                ids = {"source_id": identify(step.source), "target_id": identify(step.target)}
                if ids["source_id"] is None:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
                planned.append(replace(step, **ids))
        operation = Operation(self._find_next_number(), command, time.time(), tuple(planned))
        self._write(operation)
        try:
            for step in planned:
                with explain_refusal(f"{step.source} cannot become {step.target}: nothing is lost", _HINT):
                    if step.is_to_do(self.tree):
                        step.do(self.tree)
            if check:
                check()
        except CannotLook:
            self.take_back(operation)
            raise
        self._write(replace(operation, status="done"))
        return operation.number

    def take_back(self, operation: Operation, some: Sequence[Step] = ()) -> int:
        """Undo the steps of an operation that were done, or only ``some``, as an operation of their own;
        return its number. A file whose old path is taken by another one stays where it is, for a later undo.
        Raises CannotLook; then the next command goes on with it.
        """
        begun = replace(operation, status="begun")
        if some:
            others = tuple(step for step in operation.steps if step not in some)
            only_trackers = all(step.backup for step in others)
            rest = replace(operation, steps=others, status="undone" if only_trackers else "done")
            begun = replace(begun, number=self._find_next_number(), steps=tuple(some))
            self._write(rest, begun)
        elif operation.status != "begun":
            self._write(begun)
        blocked, hint = list[Step](), f"{_HINT}: the next command takes back what was begun"
        for step in reversed(begun.steps):
            with explain_refusal(f"{step.target} cannot be taken back: nothing is lost", hint):
                if not step.is_done(self.tree):
                    continue
                if not step.backup and self.tree.identify(step.source) not in (None, step.source_id):
                    blocked.insert(0, step)
                else:
                    step.take_back(self.tree)
        status: Literal["done", "undone"] = "done" if blocked and begun.command in UNDOABLE else "undone"
        self._write(replace(begun, steps=tuple(blocked), status=status))
        return begun.number

    def resume(self) -> None:
        """Take back all interrupted operations, the latest first. An interrupted undo is finished, not
        reversed: that could put away a checkpoint that a job resumes from by now.
        """
        root, why = self.tree.root, "a command was interrupted: it is taken back"
        for op in [op for op in self.operations if op.status == "begun"]:
            moved = [step for step in op.steps if not step.backup and step.is_done(self.tree)]
            self.take_back(op)
            back = [step for step in moved if not step.is_done(self.tree)]
            self.recovered += [Change(f"{root}/{s.target}", "moved", why, f"{root}/{s.source}") for s in back]
        self.sweep()

    def step_to_write(
        self, target: str, data: Iterable[bytes], *, like: str = "", backup_kind: str = "replaced"
    ) -> Step:
        """Write a file aside, with mode, times and attributes of ``target`` or ``like``; return the step that
        puts it at ``target``, and the old file below ``.ckpt/<backup_kind>``. Raises CannotLook.
        """
        with explain_refusal(f"{target} cannot be written: nothing is lost", _HINT):
            exists = self.tree.identify(target) is not None
            incoming = f"{self.name_directory('incoming')}/{target}"
            with self.tree.open_parent(incoming, make=True) as (parent, name):
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                with os.fdopen(os.open(name, flags, 0o600, dir_fd=parent), "wb") as new:
                    new.writelines(data)
                    new.flush()
                    example = like or (target if exists else f"{STATE}/lock")
                    shutil.copystat(os.path.join(self.tree.root, example), f"{self.tree.root}/{incoming}")
                    os.fsync(new.fileno())
        return Step(incoming, target, f"{self.name_directory(backup_kind)}/{target}" if exists else "")

    def sweep(self) -> str:
        """Remove what commands were writing or removing; return why some of it is still there, or ""."""
        paths = [os.path.join(self.tree.root, directory) for directory in (_INCOMING, _TRASH)]
        errors = list[str]()

        def keep(_: object, file: str, error: tuple[object, BaseException, object]) -> None:
            errors.append(f"{file}: {getattr(error[1], 'strerror', None) or error[1]}")

        for path in filter(os.path.lexists, paths):
            with suppress(OSError):
                for *_, fd in os.fwalk(path):
                    with suppress(OSError):  # its writer may have made it read-only
                        os.fchmod(fd, 0o700)
            shutil.rmtree(path, onerror=keep)
        return errors[0] if any(map(os.path.lexists, paths)) else ""


@contextmanager
def open_journal(root: str, trusted: Trust = OURS, *, apply: bool = True) -> Iterator[Journal]:
    """Yield the Journal of a root. With ``apply`` its directory is made, and an interrupted command is taken
    back first, so that its checkpoints are judged anew; without, nothing is written. Raises CannotLook, also
    if the root is missing or another command is at work, and Untrusted if others can write there.
    """
    root = os.path.realpath(root)
    hint = "name a directory that is there: nothing is made for one that is not"
    with explain_refusal(f"cannot list {root}", hint):
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    journal = Journal(Tree(root, fd), trusted)
    with ExitStack() as stack:
        stack.callback(os.close, fd)
        if not apply:
            yield journal
            return
        state = os.path.join(root, STATE)
        if os.path.islink(state):
            raise UsageError(f"{state} is a link", "move it away: what is changed lies below ROOT itself")

        def refuse(holder: str) -> CannotLook:
            return CannotLook(f"{holder} is changing this tree", "wait until it has ended")

        stack.enter_context(hold_lock(state, "lock", trusted, refuse))
        journal.resume()
        yield journal
        journal.sweep()
