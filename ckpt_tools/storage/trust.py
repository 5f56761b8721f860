"""Whose orders count: what tells ckpt what to do is mine or root's, and writable by nobody else.

So is each directory above it, up to the first that others cannot write or that is sticky (there, others
cannot replace what is ours), and each link on the way. Everything is opened relative to a directory that is
open, and judged by what was opened: nothing can be exchanged between the look and the use.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from typing import NamedTuple

from msgspec import Struct, field

from ckpt_tools.errors import UsageError
from ckpt_tools.model.selection import Trust

__all__ = [
    "OURS",
    "Trust",
    "Untrusted",
    "absent",
    "check",
    "create",
    "directory",
    "make",
    "named",
    "read",
    "read_in",
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


class Untrusted(UsageError):
    """Somebody else could have written this: only the caller can say whether that is meant (exit 2).
    ``unfit``: it is ours, and nothing that can be read: no file, or far too large.
    """

    unfit = False


def _unfit(message: str, hint: str) -> Untrusted:
    error = Untrusted(message, hint)
    error.unfit = True
    return error


@contextmanager
def named(what: str) -> Iterator[None]:
    """Whatever is not to be trusted within is reported under the name of the setting that led to it."""
    try:
        yield
    except Untrusted as e:
        raise Untrusted(f"{what}: {e}", e.hint) from e


# ---- who may write and read


def owner(info: os.stat_result, trust: Trust) -> str:
    """Return why its owner is not believed; "" where it is ours, root's or of a trusted owner."""
    if info.st_uid in (0, os.geteuid()) or info.st_uid in trust.owners:
        return ""
    import pwd

    try:
        return f"belongs to {pwd.getpwuid(info.st_uid).pw_name} (uid {info.st_uid})"
    except KeyError:
        return f"belongs to uid {info.st_uid}"


def writers(fd: int, info: os.stat_result, trust: Trust) -> str:
    """Return who else may write it; "" when nobody."""
    mode, who = info.st_mode, ""
    if mode & stat.S_IWOTH:
        who = "everybody"
    elif mode & stat.S_IWGRP and not trust.group and not is_own_group(fd, info):
        import grp

        who = f"the group gid {info.st_gid}"
        with suppress(KeyError):
            who = f"the group {grp.getgrgid(info.st_gid).gr_name} (gid {info.st_gid})"
    # a ConfigMap is root's, of mode 0777, and mounted read-only
    if not who or (info.st_uid == 0 and os.fstatvfs(fd).f_flag & os.ST_RDONLY):
        return ""
    return f"may be written by {who} (mode {stat.S_IMODE(mode):04o})"


def is_own_group(fd: int, info: os.stat_result) -> bool:
    """Return whether its group is this user's own, as most Linux systems make one for every user: the same
    name, nobody else in it, and no access list, of which the group's bits would be the most (man 5 acl).
    """
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(info.st_gid)
    except KeyError:
        return False
    if (user.pw_gid, user.pw_name) != (group.gr_gid, group.gr_name) or set(group.gr_mem) - {user.pw_name}:
        return False
    try:
        return not os.getxattr(f"/proc/self/fd/{fd}", "system.posix_acl_access")
    except (OSError, AttributeError):
        return True


def _hint(info: os.stat_result, path: str, trust: Trust) -> str:
    """Return what makes it trusted, the narrowest first."""
    if owner(info, trust):
        return (
            f"use one of your own; or, if you trust all that uid {info.st_uid} writes, say --trust"
            f" owner={info.st_uid}"
        )
    place = shlex.quote(path if stat.S_ISDIR(info.st_mode) else os.path.dirname(path))
    who = "o" if info.st_mode & stat.S_IWOTH else "g"
    mend = f"chmod {who}-w {shlex.quote(path)}"
    if info.st_uid != os.geteuid():
        mend = "name one that only you can write"
    group = " or --trust group" if who == "g" else ""
    return f"{mend}; or, if you trust all who can write there, say --trust dir={place}{group}"


# ---- the way to a file


class _Step(NamedTuple):
    """One directory or file on the way, open."""

    fd: int
    path: str
    info: os.stat_result


class _Walk(Struct, dict=True):
    """The way to ``path``, from the root directory on, after every link was followed. ``mounted``: a
    Kubernetes volume lies on it.
    """

    path: str
    trust: Trust
    files: ExitStack
    steps: list[_Step] = field(default_factory=list)
    mounted: bool = False

    def go(self) -> None:
        """Raises Untrusted for a link that somebody else put there, or could have, and OSError."""
        path = self.path if os.path.isabs(self.path) else os.path.join(os.getcwd(), self.path)
        names, links = deque(["/", *path.split("/")]), 0
        while names:
            name = names.popleft()
            if name == "/":
                self.steps = []
                self._enter(os.open("/", _PATH_ONLY), "/")
            elif name == "..":
                self.steps = self.steps[:-1] or self.steps
            elif name not in ("", "."):
                here = self.steps[-1]
                there = os.path.join(here.path, name)
                info = os.stat(name, dir_fd=here.fd, follow_symlinks=False)
                if stat.S_ISLNK(info.st_mode):
                    links += 1
                    if links > _LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self.path)
                    to = self._read_link(name, there, info)
                    names.extendleft(reversed(["/"] * to.startswith("/") + to.split("/")))
                elif stat.S_ISDIR(info.st_mode) or stat.S_ISREG(info.st_mode):
                    flags = _PATH_ONLY if stat.S_ISDIR(info.st_mode) else _TO_READ
                    self._enter(os.open(name, flags, dir_fd=here.fd), there)
                else:  # never opened: that alone may wait for ever, or rewind a tape
                    self._check_entry(there, info)
                    raise _unfit(f"{there} is no regular file", "name a file of your own")

    def _enter(self, fd: int, path: str) -> None:
        self.files.callback(os.close, fd)
        self.steps.append(_Step(fd, path, os.fstat(fd)))

    def _read_link(self, name: str, path: str, info: os.stat_result) -> str:
        self._check_entry(f"the link {path}", info)
        to = os.readlink(name, dir_fd=self.steps[-1].fd)
        if ":[" in to and not to.startswith("/"):
            raise _unfit(f"{path} is a pipe or a socket", "write it into a file of your own, and name that")
        self.mounted = self.mounted or (name == _KUBERNETES and info.st_uid == 0)
        return to

    def _is_vouched(self) -> bool:
        """Return whether what the walk has come to lies in a trusted directory: then so does all that
        matters. Asked only where something is wrong, because there may be thousands of these.
        """
        return any((step.info.st_dev, step.info.st_ino) in self._trusted for step in self.steps)

    @cached_property
    def _trusted(self) -> set[tuple[int, int]]:
        found = set()
        for path in self.trust.directories:
            try:
                info = os.stat(path)
            except OSError:
                continue
            found.add((info.st_dev, info.st_ino))
        return found

    def _check_entry(self, what: str, info: os.stat_result) -> None:
        """Raises Untrusted where somebody else has put it there, or could have: what is not opened."""
        here = self.steps[-1]
        if (reason := owner(info, self.trust)) and not self._is_vouched():
            raise Untrusted(f"{what} {reason}", _hint(info, here.path, self.trust))
        self.check_places([here])

    def check(self) -> None:
        """Raises Untrusted unless what was reached, and the directories above it as far as that matters, can
        be changed by us and root alone.
        """
        last, above = self.steps[-1], self.steps[:-1]
        reason = owner(last.info, self.trust) or writers(last.fd, last.info, self.trust)
        if reason and not self._is_vouched():
            raise Untrusted(f"{last.path} {reason}", _hint(last.info, last.path, self.trust))
        self.check_places(above[::-1])
        many = stat.S_ISREG(last.info.st_mode) and last.info.st_nlink > 1
        if many and above[-1].info.st_mode & stat.S_ISVTX and not self._is_vouched():
            raise Untrusted(
                f"{last.path} has {last.info.st_nlink} hard links, in a directory where anybody can make one",
                f"copy it: cp {last.path} FILE",
            )

    def check_places(self, above: list[_Step]) -> None:
        """Raises Untrusted where others can exchange what lies in them; ``above`` are directories from the
        inside out.
        """
        for step in above:
            strange = owner(step.info, self.trust)
            reason = strange or writers(step.fd, step.info, self.trust)
            if not strange and (not reason or step.info.st_mode & stat.S_ISVTX):
                return
            if self._is_vouched():
                return
            raise Untrusted(f"{step.path} {reason}", _hint(step.info, step.path, self.trust))


@contextmanager
def _walked(path: str, trust: Trust) -> Iterator[_Walk]:
    with ExitStack() as files:
        walk = _Walk(path, trust, files)
        try:
            walk.go()
        except OSError as e:
            e.filename = path  # not the last name alone
            raise
        yield walk


# ---- what is trusted


def check(path: str, trust: Trust = OURS) -> None:
    """Raises Untrusted unless a file or directory is such a one, and OSError. For what is only looked at."""
    with _walked(path, trust) as walk:
        walk.check()


def read(path: str, limit: int, trust: Trust = OURS, *, private: bool = False) -> bytes:
    """Return the bytes of a regular file that only we or root could have written. ``private``: nobody else
    may read it either, as ssh wants its keys.

    Raises Untrusted, also for more than ``limit`` bytes, and OSError.
    """
    with _walked(path, trust) as walk:
        last = walk.steps[-1]
        if stat.S_ISDIR(last.info.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        walk.check()
        mode, given = last.info.st_mode, last.info.st_uid == 0 and (walk.mounted or os.geteuid() != 0)
        if private and mode & 0o077 and not given:  # what root gave to us is not ours to change
            raise Untrusted(
                f"{path} may be used by others than its owner (mode {stat.S_IMODE(mode):04o})",
                f"chmod 600 {path}",
            )
        return _read_bounded(last.fd, limit, path)


def read_in(at: int, path: str, limit: int, trust: Trust = OURS) -> bytes:
    """Return as ``read`` does the bytes of a file in a trusted directory that is open, without walking there
    again where nothing is wrong; no link is followed.
    """
    fd = os.open(os.path.basename(path), _TO_READ, dir_fd=at)
    try:
        info = os.fstat(fd)
        if stat.S_ISREG(info.st_mode) and not owner(info, trust) and not writers(fd, info, trust):
            return _read_bounded(fd, limit, path)
    finally:
        os.close(fd)
    return read(path, limit, trust)


def _read_bounded(fd: int, limit: int, path: str) -> bytes:
    parts, left = [], limit + 1
    while left and (part := os.read(fd, left)):
        parts.append(part)
        left -= len(part)
    if not left:
        raise _unfit(f"{path} is larger than {limit:,} bytes", "name the file that was meant")
    return b"".join(parts)


@contextmanager
def directory(path: str, trust: Trust = OURS) -> Iterator[int]:
    """A descriptor of a directory that only we or root can write, to list it and to open what lies in it.
    Raises Untrusted and OSError.
    """
    with _walked(path, trust) as walk:
        if not stat.S_ISDIR(walk.steps[-1].info.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        walk.check()
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=walk.steps[-1].fd)
        walk.files.callback(os.close, fd)
        yield fd


def absent(path: str, trust: Trust = OURS) -> None:
    """Nothing is at ``path``: raises Untrusted where somebody else could have taken it away, and OSError."""
    with ExitStack() as files:
        walk = _Walk(path, trust, files)
        try:
            walk.go()
        except FileNotFoundError:
            walk.check_places(walk.steps[::-1])


def make(path: str, trust: Trust = OURS) -> None:
    """Make a directory, and those above it, that others cannot write whatever the umask says; a trusted group
    may. Raises OSError.
    """
    mode, above = 0o775 if trust.group else 0o755, os.path.dirname(path)
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    except FileNotFoundError:
        if above in ("", path):
            raise
        make(above, trust)
        os.makedirs(path, mode, exist_ok=True)  # another process may have made it meanwhile


def create(name: str, flags: int, at: int, trust: Trust = OURS) -> int:
    """Open a file for writing in an open directory, where a planted link or pipe is not followed. Raises
    Untrusted and OSError.
    """
    safe = os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    fd = os.open(name, flags | safe, 0o664 if trust.group else 0o644, dir_fd=at)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        with suppress(OSError):
            name = os.path.join(os.readlink(f"/proc/self/fd/{at}"), name)
        raise Untrusted(f"{name} is no regular file", "remove it")
    return fd
