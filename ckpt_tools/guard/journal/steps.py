"""What a command does to a tree: single steps, each one rename, so that it is done or not, whatever dies
meanwhile; and whoever comes later sees which.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum

from msgspec import Struct

from ckpt_tools.guard.journal.renames import rename_to_free_name


class Identity(Struct, frozen=True):
    """Which file or directory it is, whatever it is called, and that nobody has written it since. A rename
    changes neither; the number of a device would not outlive a restart.
    """

    inode: int
    mtime_ns: int

    @classmethod
    def of(cls, info: os.stat_result) -> Identity:
        return cls(info.st_ino, info.st_mtime_ns)


class State(Enum):
    """How far a step is. ``GONE``: what it was about is not there any more, or something else is."""

    TO_DO = "to do"
    DONE = "done"
    GONE = "gone"


class Move(Struct, frozen=True):
    """Give what is at ``source`` the name ``target``, in one rename that never replaces anything; both are
    paths below the root. ``what`` is set when the step is planned.
    """

    source: str
    target: str
    what: Identity | None = None

    def planned(self, at: Tree) -> Move:
        """Raises OSError where nothing is at ``source``."""
        return Move(self.source, self.target, Identity.of(at.stat(self.source)))

    def state(self, at: Tree) -> State:
        if at.identity(self.source) == self.what:
            return State.TO_DO
        return State.DONE if at.identity(self.target) == self.what else State.GONE

    def do(self, at: Tree) -> None:
        at.make_above(self.target)
        with at.above(self.source) as (there, name), at.above(self.target) as (here, new):
            if at.identity(self.target) == self.what and self.what is not None:
                os.unlink(name, dir_fd=there)  # a file that was given its second name, and died there
            else:
                rename_to_free_name(name, new, there, here)
            os.fsync(here)
            os.fsync(there)

    def inverse(self) -> Move:
        return Move(self.target, self.source, self.what)


class Swap(Struct, frozen=True):
    """Put the file ``incoming`` in the place of the file ``target``, in one rename, and keep the old one as
    ``kept``; all are paths below the root. There is no moment without a file at ``target``.
    """

    target: str
    incoming: str
    kept: str
    old: Identity | None = None
    new: Identity | None = None

    def planned(self, at: Tree) -> Swap:
        """Raises OSError where either file is missing."""
        old, new = (Identity.of(at.stat(path)) for path in (self.target, self.incoming))
        return Swap(self.target, self.incoming, self.kept, old, new)

    def state(self, at: Tree) -> State:
        here = at.identity(self.target)
        if here == self.new:
            return State.DONE
        return State.TO_DO if here == self.old and at.identity(self.incoming) == self.new else State.GONE

    def do(self, at: Tree) -> None:
        at.make_above(self.kept)
        with (
            at.above(self.target) as (there, name),
            at.above(self.kept) as (away, kept),
            at.above(self.incoming) as (near, incoming),
        ):
            with suppress(FileExistsError):  # an earlier try died behind this line; or it is not ours
                os.link(name, kept, src_dir_fd=there, dst_dir_fd=away, follow_symlinks=False)
            if at.identity(self.kept) != self.old:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), self.kept)
            os.fsync(away)
            os.rename(incoming, name, src_dir_fd=near, dst_dir_fd=there)
            os.fsync(there)

    def inverse(self) -> Swap:
        return Swap(self.target, self.kept, self.incoming, self.new, self.old)


Step = Move | Swap


class Tree(Struct, frozen=True):
    """A root, opened: what lies below it is reached without following a link, so that nobody can lead a
    command out of it. All raise OSError.
    """

    root: str
    fd: int

    @contextmanager
    def above(self, path: str) -> Iterator[tuple[int, str]]:
        """The directory that ``path`` lies in, open, and the name in it."""
        *directories, name = parts(path)
        with ExitStack() as files:
            at = self.fd
            for directory in directories:
                at = os.open(
                    directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at
                )
                files.callback(os.close, at)
            yield at, name

    def stat(self, path: str) -> os.stat_result:
        with self.above(path) as (at, name):
            return os.stat(name, dir_fd=at, follow_symlinks=False)

    def identity(self, path: str) -> Identity | None:
        """None where nothing is."""
        try:
            return Identity.of(self.stat(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def make_above(self, path: str) -> None:
        """Make the directories that ``path`` is to lie in, with the rights of their like."""
        *directories, _ = parts(path)
        for n in range(1, len(directories) + 1):
            with self.above("/".join(directories[:n])) as (at, name):
                try:
                    os.mkdir(name, dir_fd=at)
                except FileExistsError:
                    if not stat.S_ISDIR(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
                        raise
                else:
                    os.fsync(at)


def parts(path: str) -> list[str]:
    """The names on a path below a root. Raises ValueError for one that leads out of it."""
    names = path.split("/")
    if not path or any(name in ("", ".", "..") or "\0" in name for name in names):
        raise ValueError(f"{path!r} is no path below a root")
    return names
