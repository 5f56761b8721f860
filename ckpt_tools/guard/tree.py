"""What lies below a root, reached and renamed without following a link."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

from msgspec import Struct

_THREADS = 8
"""A file system works on so many removals at once; more wait for its locks."""
_NO_REPLACE = 1
"""renameat2(2): RENAME_NOREPLACE."""
_UNKNOWN = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM})
"""What file systems without it answer."""


class Identity(Struct, frozen=True, array_like=True):
    """Which file or directory it is, whatever it is called, and that nobody has written it since. A rename
    changes neither; the number of a device would not outlive a restart.
    """

    inode: int
    mtime_ns: int

    @classmethod
    def of(cls, info: os.stat_result) -> Identity:
        return cls(info.st_ino, info.st_mtime_ns)


class Tree(Struct, frozen=True):
    """A root, opened: what lies below it is reached without following a link, so that nobody can lead a
    command out of it. All raise OSError.
    """

    root: str
    fd: int

    @contextmanager
    def above(self, path: str) -> Iterator[tuple[int, str]]:
        """The directory that ``path`` lies in, open, and the name in it."""
        *directories, name = split_path(path)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        with ExitStack() as files:
            at = self.fd
            for directory in directories:
                at = os.open(directory, flags, dir_fd=at)
                files.callback(os.close, at)
            yield at, name

    def identity(self, path: str) -> Identity | None:
        """None where nothing is."""
        try:
            return Identity.of(self.stat(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def stat(self, path: str) -> os.stat_result:
        with self.above(path) as (at, name):
            return os.stat(name, dir_fd=at, follow_symlinks=False)

    def make_above(self, path: str) -> None:
        """Make the directories that ``path`` is to lie in, with the rights of their like."""
        directories = split_path(path)[:-1]
        for n in range(1, len(directories) + 1):
            with self.above("/".join(directories[:n])) as (at, name):
                try:
                    os.mkdir(name, dir_fd=at)
                    os.fsync(at)
                except FileExistsError:
                    if not stat.S_ISDIR(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
                        raise

    def remove_below(self, path: str) -> list[OSError]:
        """Remove all that lies below a directory: why what is left could not be removed. Nothing is there
        where ``path`` is not.
        """
        problems = list[OSError]()

        def remove(fd: int, names: Iterable[str], call: Callable[..., None] = os.unlink) -> None:
            for name in names:
                try:
                    call(name, dir_fd=fd)
                except FileNotFoundError:
                    pass
                except NotADirectoryError:  # a link to a directory
                    remove(fd, [name])
                except OSError as e:
                    problems.append(e)

        with ExitStack() as files, suppress(FileNotFoundError, NotADirectoryError):
            at, name = files.enter_context(self.above(path))
            os.stat(name, dir_fd=at, follow_symlinks=False)
            pool = files.enter_context(ThreadPoolExecutor(_THREADS))
            for _, below, names, fd in os.fwalk(name, topdown=False, onerror=problems.append, dir_fd=at):
                with suppress(OSError):  # a directory that its writer has closed for writing
                    if not os.access(".", os.W_OK | os.X_OK, dir_fd=fd):
                        os.fchmod(fd, 0o700)
                shares = (
                    [names] if len(names) < 64 * _THREADS else [names[i::_THREADS] for i in range(_THREADS)]
                )
                list((pool.map if len(shares) > 1 else map)(partial(remove, fd), shares))
                remove(fd, below, os.rmdir)
        return problems


def split_path(path: str) -> list[str]:
    """The names on a path below a root. Raises ValueError for one that leads out of it."""
    names = path.split("/")
    if not path or any(name in ("", ".", "..") or "\0" in name for name in names):
        raise ValueError(f"{path!r} is no path below a root")
    return names


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
