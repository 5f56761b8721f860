"""Whose orders count: what tells ckpt what to do must be ours or root's, and nobody else may be able to
change it.

The rule, for a file or directory and every directory that was walked to reach it: it belongs to this user, to
root or to a trusted owner, and nobody else may write it (ownership.py). The walk back ends at the first
directory above that others cannot write, or that is sticky (there, others cannot replace what is ours). A
link is followed only if it and the place it lies in pass. Everything is opened relative to a directory that
is already open, and judged by what was opened: nothing can be exchanged between the look and the use.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial

from msgspec import Struct, field

from ckpt_tools.model.selection import Trust
from ckpt_tools.storage.ownership import Opened, Untrusted, hint, owner, readers, unfit, writers

__all__ = [
    "OURS",
    "Place",
    "Trust",
    "Untrusted",
    "absent",
    "check",
    "create",
    "directory",
    "make",
    "named",
    "opened",
    "owner",
    "place",
    "read",
]

_LINKS = 40
"""Links on one path, as Linux counts them."""
_PATH_ONLY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TO_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
_KUBERNETES = "..data"
"""The link through which the kubelet exchanges all files of a ConfigMap or Secret at once
(pkg/volume/util/atomic_writer.go).
"""


OURS = Trust()
"""Nobody else."""


def read(path: str, limit: int, trust: Trust = OURS, *, private: bool = False) -> bytes:
    """The bytes of a regular file that only we or root could have written. ``private``: nobody else may read
    it either, as ssh wants its keys.

    Raises Untrusted, also for more than ``limit`` bytes, and OSError.
    """
    with opened(path, trust, private=private) as fd:
        return _bounded(fd, limit, path)


def _bounded(fd: int, limit: int, path: str) -> bytes:
    parts, left = [], limit + 1
    while left and (part := os.read(fd, left)):
        parts.append(part)
        left -= len(part)
    if not left:
        raise unfit(f"{path} is larger than {limit:,} bytes", "name the file that was meant")
    return b"".join(parts)


@contextmanager
def opened(path: str, trust: Trust = OURS, *, private: bool = False) -> Iterator[int]:
    """A descriptor of such a file, for reading. Raises Untrusted and OSError."""
    with _walked(path, trust) as walk:
        last = walk.steps[-1]
        _regular(last.info, path)
        walk.check()
        if private and (reason := readers(last.info, walk.mounted)):
            raise Untrusted(f"{path} {reason}", f"chmod 600 {path}")
        yield last.fd


def _regular(info: os.stat_result, path: str) -> None:
    """Raises OSError for a directory, which was never an order, and Untrusted for what may wait for somebody,
    or act, when it is read.
    """
    if stat.S_ISDIR(info.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(info.st_mode):
        raise Untrusted(f"{path} is no regular file", "name a file of your own")


@contextmanager
def directory(path: str, trust: Trust = OURS) -> Iterator[int]:
    """A descriptor of a directory that only we or root can write, to list it and to open what lies in it.
    Raises Untrusted and OSError.
    """
    with place(path, trust) as found:
        yield found.fd


class Place(Struct, frozen=True):
    """Such a directory, open: what lies in it is found without walking there again."""

    fd: int
    path: str
    trust: Trust
    vouched: Callable[[], bool]

    def read(self, name: str, limit: int) -> bytes:
        """The bytes of a file in it, as ``read`` has them; no link is followed."""
        fd = os.open(name, _TO_READ, dir_fd=self.fd)
        try:
            file = Opened(fd, os.path.join(self.path, name), os.fstat(fd), self.vouched)
            _regular(file.info, file.path)
            file.check(self.trust)
            return _bounded(fd, limit, file.path)
        finally:
            os.close(fd)


@contextmanager
def place(path: str, trust: Trust = OURS) -> Iterator[Place]:
    """A directory that only we or root can write, to come back to. Raises Untrusted and OSError."""
    with _walked(path, trust) as walk:
        if not stat.S_ISDIR(walk.steps[-1].info.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        walk.check()
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=walk.steps[-1].fd)
        walk.files.callback(os.close, fd)
        yield Place(fd, path, trust, walk.steps[-1].vouched)


def check(path: str, trust: Trust = OURS) -> None:
    """Raises Untrusted unless a file or directory is such a one, and OSError. For what is only looked at:
    what is read is to be ``opened``.
    """
    with _walked(path, trust) as walk:
        walk.check()


@contextmanager
def named(what: str) -> Iterator[None]:
    """Whatever is not to be trusted within is reported under the name of the setting that led to it."""
    try:
        yield
    except Untrusted as e:
        raise Untrusted(f"{what}: {e}", e.hint) from e


def absent(path: str, trust: Trust = OURS) -> None:
    """Nothing is at ``path``: raises Untrusted where somebody else could have taken it away.
    Raises OSError.
    """
    with ExitStack() as files:
        walk = _Walk(path, trust, files)
        try:
            walk.go(_absolute(path))
        except FileNotFoundError:
            walk.check_places(walk.steps[::-1])


def make(path: str, trust: Trust = OURS) -> None:
    """Make a directory, and those above it, that others cannot write whatever the umask says; a trusted group
    may. Raises OSError.
    """
    mode, above = 0o775 if trust.group else 0o755, os.path.dirname(path)
    try:
        _made(path, mode)
    except FileNotFoundError:
        if above in ("", path):
            raise
        if not os.path.isdir(above):  # else another process has made it meanwhile: nodes start together
            make(above, trust)
        _made(path, mode)


def _made(path: str, mode: int) -> None:
    """Make one directory, or find it there."""
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def create(name: str, flags: int, at: int, trust: Trust = OURS) -> int:
    """Open a file for writing in an open directory, where a planted link or pipe is not followed. Raises
    Untrusted and OSError.
    """
    safe = os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    fd = os.open(name, flags | safe, 0o664 if trust.group else 0o644, dir_fd=at)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Untrusted(f"{_path_of(at, name)} is no regular file", "remove it")
    return fd


def _path_of(at: int, name: str) -> str:
    """The path of a name in an open directory, as far as the system tells it."""
    try:
        return os.path.join(os.readlink(f"/proc/self/fd/{at}"), name)
    except OSError:
        return name


class _Walk(Struct, dict=True):
    """The way to ``path``, from the root directory on, after every link was followed."""

    path: str
    trust: Trust
    files: ExitStack
    steps: list[Opened] = field(default_factory=list)
    links: int = 0
    mounted: bool = False
    """Whether a Kubernetes volume lies on the way."""

    def start(self) -> None:
        self.steps = []
        self._push(os.open("/", _PATH_ONLY), "/")

    def go(self, path: str) -> None:
        """Walk on along ``path``, from the root directory where it is absolute."""
        if path.startswith("/"):
            self.start()
        for name in path.split("/"):
            if name == "..":
                self.steps = self.steps[:-1] or self.steps
            elif name not in ("", "."):
                self._enter(name)

    def _enter(self, name: str) -> None:
        here = self.steps[-1]
        there = os.path.join(here.path, name)
        info = os.stat(name, dir_fd=here.fd, follow_symlinks=False)
        if stat.S_ISLNK(info.st_mode):
            self._follow(name, there, info)
        elif stat.S_ISDIR(info.st_mode):
            self._push(os.open(name, _PATH_ONLY, dir_fd=here.fd), there)
        elif stat.S_ISREG(info.st_mode):
            self._push(os.open(name, _TO_READ, dir_fd=here.fd), there)
        else:  # never opened: that alone may wait for ever, or rewind a tape
            self._check_entry(there, info)
            raise unfit(f"{there} is no regular file", "name a file of your own")

    def _push(self, fd: int, path: str) -> None:
        self.files.callback(os.close, fd)
        info = os.fstat(fd)
        way = (info, *(step.info for step in self.steps))
        self.steps.append(Opened(fd, path, info, partial(self._lies_in_trusted, way)))

    def _lies_in_trusted(self, way: tuple[os.stat_result, ...]) -> bool:
        return any((info.st_dev, info.st_ino) in self._trusted for info in way)

    @cached_property
    def _trusted(self) -> frozenset[tuple[int, int]]:
        """What the trusted directories are now, those that are there."""
        return frozenset((info.st_dev, info.st_ino) for info in _existing(self.trust.directories))

    @property
    def _vouched(self) -> bool:
        """Whether what the walk has come to lies in a trusted directory: then so does all that matters."""
        return self.steps[-1].vouched()

    def _follow(self, name: str, path: str, info: os.stat_result) -> None:
        self.links += 1
        if self.links > _LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self.path)
        self._check_entry(f"the link {path}", info)
        here = self.steps[-1]
        to = os.readlink(name, dir_fd=here.fd)
        if ":[" in to and not to.startswith("/"):
            raise unfit(f"{path} is a pipe or a socket", "write it into a file of your own, and name that")
        self.mounted = self.mounted or (name == _KUBERNETES and info.st_uid == 0)
        self.go(to)

    def _check_entry(self, what: str, info: os.stat_result) -> None:
        """Raises Untrusted where somebody else has put it there, or could have: what is not opened."""
        here = self.steps[-1]
        if (reason := owner(info, self.trust)) and not self._vouched:
            raise Untrusted(f"{what} {reason}", hint(info, here.path, self.trust))
        self.check_places([here])

    def check(self) -> None:
        """Raises Untrusted unless what was reached, and the directories above it as far as that matters, can
        be changed by us and root alone.
        """
        last, above = self.steps[-1], self.steps[:-1]
        last.check(self.trust)
        self.check_places(above[::-1])
        if (
            above
            and above[-1].info.st_mode & stat.S_ISVTX
            and stat.S_ISREG(last.info.st_mode)
            and last.info.st_nlink > 1
            and not self._vouched
        ):
            raise Untrusted(
                f"{last.path} has {last.info.st_nlink} hard links, in a directory where anybody can make one",
                f"copy it: cp {last.path} FILE",
            )

    def check_places(self, above: list[Opened]) -> None:
        """Raises Untrusted where others can exchange what lies in them; ``above`` are directories from the
        inside out.
        """
        for step in above:
            strange = owner(step.info, self.trust)
            reason = strange or writers(step, self.trust)
            if not strange and (not reason or step.info.st_mode & stat.S_ISVTX):
                return
            if self._vouched:
                return
            raise Untrusted(f"{step.path} {reason}", hint(step.info, step.path, self.trust))


@contextmanager
def _walked(path: str, trust: Trust) -> Iterator[_Walk]:
    with ExitStack() as files:
        walk = _Walk(path, trust, files)
        try:
            walk.go(_absolute(path))
        except OSError as e:
            e.filename = path  # not the last name alone
            raise
        yield walk


def _absolute(path: str) -> str:
    return path if os.path.isabs(path) else os.path.join(os.getcwd(), path)


def _existing(paths: tuple[str, ...]) -> Iterator[os.stat_result]:
    for path in paths:
        try:
            yield os.stat(path)
        except OSError:
            continue
