"""Whose files give orders, as ssh has it: a file that steers ckpt is ours or root's, and only we can write
it.

The same holds for each directory above it, up to the first that others cannot write or that is sticky (there,
others cannot replace our files), and for each link on the way. The opened file is judged first, then the way
to it: in directories that others cannot write nobody exchanges anything meanwhile.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property

from ckpt_tools.errors import UsageError
from ckpt_tools.model.selection import Trust as Trust  # noqa: PLC0414 - who trusts takes it from here

_LINKS = 40  # the most links on one path, as in Linux
_READ_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC
_KUBERNETES = "..data"
"""The link by which the kubelet exchanges a ConfigMap or Secret (pkg/volume/util/atomic_writer.go)."""
OURS = Trust()
"""Trusts the caller and root alone."""


class Untrusted(UsageError):
    """Somebody else could have written a file that steers ckpt; only the caller can say whether it is meant
    (exit 2). ``unfit``: the file is ours, but cannot be read as one: a pipe, a device, or far too large.
    """

    def __init__(self, message: str, hint: str = "", *, unfit: bool = False) -> None:
        super().__init__(message, hint)
        self.unfit = unfit


@contextmanager
def label(what: str) -> Iterator[None]:
    """Put ``what``, the setting that named a file, before the message of Untrusted raised in the block."""
    try:
        yield
    except Untrusted as e:
        raise Untrusted(f"{what}: {e}", e.hint) from e


def name_other_owner(info: os.stat_result, trust: Trust) -> str:
    """Return why the owner of a file is not trusted; "" if it is ours, root's or of a trusted owner."""
    if info.st_uid in (0, os.geteuid()) or info.st_uid in trust.owners:
        return ""
    return f"belongs to uid {info.st_uid}"


def _name_writers(path: str, info: os.stat_result, trust: Trust) -> str:
    """Return who else may write a file, as the end of a message; "" if nobody."""
    mode, who = info.st_mode, ""
    if mode & stat.S_IWOTH:
        who = "everybody"
    elif mode & stat.S_IWGRP and not trust.group and not is_own_group(info):
        who = f"the group {info.st_gid}"
    # a ConfigMap is root's, of mode 0777, and mounted read-only
    if not who or (info.st_uid == 0 and os.statvfs(path).f_flag & os.ST_RDONLY):
        return ""
    return f"may be written by {who} (mode {stat.S_IMODE(mode):04o})"


def is_own_group(info: os.stat_result) -> bool:
    """Return True if a file's group is this user's own: of the same name, with nobody else in it."""
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(info.st_gid)
    except KeyError:
        return False
    same = (user.pw_gid, user.pw_name) == (group.gr_gid, group.gr_name)
    return same and not set(group.gr_mem) - {user.pw_name}


class _PathWalk:
    """The ``steps`` from "/" to ``path``, (path, lstat) of each directory and last of the target, all links
    followed. ``mounted``: one link on the way belongs to a Kubernetes volume.
    """

    def __init__(self, path: str, trust: Trust) -> None:
        self.path, self.trust, self.mounted = path, trust, False
        self.steps: list[tuple[str, os.stat_result]] = []

    def walk(self) -> os.stat_result:
        """Fill ``steps``, return the target's lstat. Raise OSError, Untrusted for a link of somebody else."""
        path = self.path if os.path.isabs(self.path) else os.path.join(os.getcwd(), self.path)
        names, links = deque(["/", *path.split("/")]), 0
        while names:
            name = names.popleft()
            if name == "/":
                self.steps = [("/", os.lstat("/"))]
            elif name == "..":
                self.steps = self.steps[:-1] or self.steps
            elif name not in ("", "."):
                here = os.path.join(self.steps[-1][0], name)
                try:
                    info = os.lstat(here)
                    to = os.readlink(here) if stat.S_ISLNK(info.st_mode) else ""
                except OSError as e:
                    e.filename = self.path  # the whole path, not the component that failed
                    raise
                if stat.S_ISDIR(info.st_mode) or stat.S_ISREG(info.st_mode):
                    self.steps.append((here, info))
                    continue
                links += 1
                if links > _LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self.path)
                self._check_link(here, to, info)
                names.extendleft(reversed(["/"] * to.startswith("/") + to.split("/")))
        return self.steps[-1][1]

    def _check_link(self, here: str, to: str, info: os.stat_result) -> None:
        """Raise Untrusted unless ``here`` is our link to a path. A device or pipe is never opened: the mere
        opening may wait for ever, or rewind a tape.
        """
        self._require(name_other_owner(info, self.trust), f"the link {here}" if to else here, info)
        self.check_places(self.steps[-1:])
        if not to or (":[" in to and not to.startswith("/")):  # such as pipe:[123], behind /dev/fd/63
            raise Untrusted(f"{here} is not a regular file", "name a file of your own", unfit=True)
        is_volume = os.path.basename(here) == _KUBERNETES and info.st_uid == 0
        self.mounted = self.mounted or is_volume

    def check(self, info: os.stat_result) -> None:
        """Raise Untrusted unless only we and root can change the target and the directories above it."""
        path, above = self.steps[-1][0], self.steps[-2::-1]
        self._require(name_other_owner(info, self.trust) or _name_writers(path, info, self.trust), path, info)
        self.check_places(above)
        if stat.S_ISREG(info.st_mode) and info.st_nlink > 1 and above[0][1].st_mode & stat.S_ISVTX:
            why = f"has {info.st_nlink} hard links, in a directory where anybody can make one"
            self._require(why, path, info, f"copy it: cp {path} FILE")

    def check_places(self, above: Iterable[tuple[str, os.stat_result]]) -> None:
        """Raise Untrusted if others can exchange entries of these directories, given from the inside out."""
        for path, info in above:
            foreign = name_other_owner(info, self.trust)
            reason = foreign or _name_writers(path, info, self.trust)
            if not foreign and (not reason or info.st_mode & stat.S_ISVTX):
                return
            self._require(reason, path, info)

    def _require(self, reason: str, what: str, info: os.stat_result, hint: str = "") -> None:
        """Raise Untrusted if there is a ``reason``, unless the way leads through a trusted directory."""
        if reason and not any((step.st_dev, step.st_ino) in self._trusted_ids for _, step in self.steps):
            raise Untrusted(f"{what} {reason}", hint or self._make_hint(what, info))

    @cached_property
    def _trusted_ids(self) -> set[tuple[int, int]]:
        """Return (device, inode) of each directory that the user trusts."""
        found = set()
        for path in self.trust.directories:
            with suppress(OSError):
                info = os.stat(path)
                found.add((info.st_dev, info.st_ino))
        return found

    def _make_hint(self, path: str, info: os.stat_result) -> str:
        """Return how to make ``path`` trusted, the narrowest way first."""
        if name_other_owner(info, self.trust):
            uid = info.st_uid
            return f"use one of your own; or, if you trust all that uid {uid} writes, add --trust owner={uid}"
        place = shlex.quote(path if stat.S_ISDIR(info.st_mode) else os.path.dirname(path))
        who = "o" if info.st_mode & stat.S_IWOTH else "g"
        mend = f"chmod {who}-w {shlex.quote(path)}"
        if info.st_uid != os.geteuid():
            mend = "name one that only you can write"
        group = " or --trust group" if who == "g" else ""
        return f"{mend}; or, if you trust all who can write there, add --trust dir={place}{group}"


def check(path: str, trust: Trust = OURS) -> None:
    """Raise Untrusted if others could change a file or directory, and OSError. Nothing is opened."""
    way = _PathWalk(path, trust)
    way.check(way.walk())


def read(path: str, limit: int, trust: Trust = OURS, *, private: bool = False) -> bytes:
    """Return the bytes of a regular file that only we or root could have written. ``private``: only its owner
    may read it, as ssh wants its keys. Raise Untrusted, also for more than ``limit`` bytes, and OSError.
    """
    way = _PathWalk(path, trust)
    if stat.S_ISDIR(way.walk().st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    with open(os.open(way.steps[-1][0], _READ_FLAGS), "rb") as file:
        info = os.fstat(file.fileno())
        way.check(info)
        from_root = info.st_uid == 0 and (way.mounted or os.geteuid() != 0)  # we cannot change its mode
        if private and info.st_mode & 0o077 and not from_root:
            text = f"{path} may be used by others than its owner (mode {stat.S_IMODE(info.st_mode):04o})"
            raise Untrusted(text, f"chmod 600 {path}")
        data = file.read(limit + 1) if info.st_size <= limit else b""
    if max(info.st_size, len(data)) > limit:
        raise Untrusted(f"{path} is larger than {limit:,} bytes", "name the file that was meant", unfit=True)
    return data


@contextmanager
def directory(path: str, trust: Trust = OURS) -> Iterator[int]:
    """Yield a descriptor of a directory that only we or root can write. Raise Untrusted and OSError."""
    way = _PathWalk(path, trust)
    if not stat.S_ISDIR(way.walk().st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    fd = os.open(way.steps[-1][0], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        way.check(os.fstat(fd))
        yield fd
    finally:
        os.close(fd)


def check_absent(path: str, trust: Trust = OURS) -> None:
    """If nothing is at ``path``, raise Untrusted if somebody else could have removed it. Raise OSError."""
    way = _PathWalk(path, trust)
    try:
        way.walk()
    except FileNotFoundError:
        way.check_places(way.steps[::-1])


def make(path: str, trust: Trust = OURS) -> None:
    """Make a directory and its parents, not writable by others whatever the umask. Raise OSError."""
    mode, above = 0o775 if trust.group else 0o755, os.path.dirname(path)
    if above not in ("", path) and not os.path.isdir(above):
        make(above, trust)
    try:
        os.mkdir(path, mode)
    except FileExistsError:  # another process may have made it meanwhile
        if not os.path.isdir(path):
            raise


def create(name: str, flags: int, at: int, trust: Trust = OURS) -> int:
    """Open a file for writing in the directory ``at``, through no planted link or pipe. Raise OSError."""
    safe = os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    fd = os.open(name, flags | safe, 0o664 if trust.group else 0o644, dir_fd=at)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        with suppress(OSError):
            name = os.path.join(os.readlink(f"/proc/self/fd/{at}"), name)
        raise Untrusted(f"{name} is not a regular file", "remove it")
    return fd
