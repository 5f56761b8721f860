"""Who owns a file or directory that is open, and who else could change or read it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from msgspec import Struct

from ckpt_tools.errors import UsageError
from ckpt_tools.model.selection import Trust


class Untrusted(UsageError):
    """Somebody else could have written this: only the caller can say whether that is meant (exit 2). ``hint``
    says what to do. ``unfit``: it is ours, and nothing that can be read: no file, or far too large.
    """

    unfit = False


def unfit(message: str, hint: str) -> Untrusted:
    """What to raise for it. Nobody else has put it there, so it was meant."""
    error = Untrusted(message, hint)
    error.unfit = True
    return error


class Opened(Struct, frozen=True):
    """One directory or file on the way, open. ``vouched``: whether it lies in a trusted directory; there may
    be thousands of these, so that is only asked where something is wrong.
    """

    fd: int
    path: str
    info: os.stat_result
    vouched: Callable[[], bool]

    def check(self, trust: Trust) -> None:
        """Raises Untrusted where somebody else owns it or can write it."""
        if (reason := owner(self.info, trust) or writers(self, trust)) and not self.vouched():
            raise Untrusted(f"{self.path} {reason}", hint(self.info, self.path, trust))


def owner(info: os.stat_result, trust: Trust) -> str:
    """Why its owner is not believed; "" where it is ours, root's or of a trusted owner."""
    if info.st_uid in (0, os.geteuid()) or info.st_uid in trust.owners:
        return ""
    return f"belongs to {_user(info.st_uid)}"


def writers(step: Opened, trust: Trust) -> str:
    """Who else may write it; "" when nobody."""
    mode = step.info.st_mode
    who = ""
    if mode & stat.S_IWOTH:
        who = "everybody"
    elif mode & stat.S_IWGRP and not trust.group and not is_own_group(step):
        who = f"the group {_group(step.info.st_gid)}"
    # a ConfigMap is root's, of mode 0777, and mounted read-only
    if not who or (step.info.st_uid == 0 and _read_only(step.fd)):
        return ""
    return f"may be written by {who} (mode {stat.S_IMODE(mode):04o})"


def readers(info: os.stat_result, mounted: bool) -> str:
    """Who else may read it; "" when nobody, or where that is not ours to change: root gave it to us."""
    if not info.st_mode & 0o077 or (info.st_uid == 0 and (mounted or os.geteuid() != 0)):
        return ""
    return f"may be used by others than its owner (mode {stat.S_IMODE(info.st_mode):04o})"


def is_own_group(step: Opened) -> bool:
    """Whether its group is this user's own, as most Linux systems make one for every user: the same name, and
    nobody else in it.
    """
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(step.info.st_gid)
    except KeyError:
        return False
    alone = (
        user.pw_gid == group.gr_gid and user.pw_name == group.gr_name and set(group.gr_mem) <= {user.pw_name}
    )
    return alone and not _listed(step.fd)


def _listed(fd: int) -> bool:
    """Whether an access list names more users: then the group's bits are the most that any of them may do
    (man 5 acl).
    """
    try:
        return bool(os.getxattr(f"/proc/self/fd/{fd}", "system.posix_acl_access"))
    except (OSError, AttributeError):
        return False


def _read_only(fd: int) -> bool:
    try:
        return bool(os.fstatvfs(fd).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _user(uid: int) -> str:
    import pwd

    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _group(gid: int) -> str:
    import grp

    try:
        return f"{grp.getgrgid(gid).gr_name} (gid {gid})"
    except KeyError:
        return f"gid {gid}"


def hint(info: os.stat_result, path: str, trust: Trust) -> str:
    """What makes it trusted, the narrowest first."""
    import shlex

    if owner(info, trust):
        return (
            f"use one of your own; or, if you trust all that uid {info.st_uid} writes, say --trust-owner"
            f" {info.st_uid}"
        )
    ours = info.st_uid == os.geteuid()
    place = shlex.quote(path if stat.S_ISDIR(info.st_mode) else os.path.dirname(path))
    who = "o" if info.st_mode & stat.S_IWOTH else "g"
    group = " or --trust-group" if who == "g" else ""
    mend = f"chmod {who}-w {shlex.quote(path)}" if ours else "name one that only you can write"
    return f"{mend}; or, if you trust all who can write there, say --trust-dir {place}{group}"
