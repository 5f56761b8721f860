"""Which decisions of long ago may go: those that no process can follow any more, as far as that can be known
on this machine.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from ckpt_tools.job.process import Process
from ckpt_tools.settings import checked_json
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import OURS, Trust, Untrusted

KEPT_DAYS = 30
_LOOKED_AT = 32
"""Old decisions that one start looks at, at most."""
_DECISION = re.compile(r"\d{1,9}\.json")
_TRIES, _PAUSE = 100, 0.01
"""How often, and after how many seconds, a process that is being started is asked again for its environment.
"""
_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD of linux/sched.h."""
_GONE = ".gone."
"""How the name of a directory that is being removed begins: no key does."""


def prune(directory: str, keep: str, now: float, trusted: Trust = OURS) -> None:
    """Remove old decisions below ``directory``, but for the key ``keep``. What cannot be read stays."""
    oldest = now - KEPT_DAYS * 86400
    with suppress(OSError):
        entries = [e for e in os.scandir(directory) if e.is_dir(follow_symlinks=False) and e.name != keep]
        for entry in entries:
            if entry.name.startswith(_GONE):
                shutil.rmtree(entry.path, ignore_errors=True)
        old = [e.path for e in entries if not e.name.startswith(_GONE) and _last_change(e.path) < oldest]
        if old and (exported := _exported()) is not None:
            first = secrets.randbelow(len(old))  # else those that stay would hide the others
            for path in [*old[first:], *old[:first]][:_LOOKED_AT]:
                if not _followed(path, exported, trusted):
                    _remove(path, trusted)


def _last_change(key: str) -> float:
    """When a decision under this key was made or taken the last time. Raises OSError."""
    with os.scandir(key) as entries:
        return max([os.stat(key).st_mtime, *(e.stat(follow_symlinks=False).st_mtime for e in entries)])


def _followed(key: str, exported: str, trusted: Trust) -> bool:
    """Whether a process may follow a decision under this key: it runs, somebody names it in its environment,
    or it is of a machine that nothing is known of.
    """
    if f"{key}{os.sep}" in exported:
        return True
    try:
        followers = list(_followers(key, trusted))
    except OSError:
        return True
    here = Process.here().host
    return any(host != here or any(map(Process.alive, processes)) for host, processes in followers)


def _followers(key: str, trusted: Trust) -> Iterator[tuple[str, list[str]]]:
    """(host, processes) of whoever made or took a decision; a decision that failed has started nothing.
    Raises OSError.
    """
    for name in os.listdir(key):
        path = os.path.join(key, name)
        if _DECISION.fullmatch(name):
            body = _json(path, trusted)
            about = body.get("decision")
            if isinstance(about, dict) and not body.get("error"):
                yield _follower(about)
        elif name.endswith(".taken"):
            for member in os.listdir(path):
                if taker := _json(os.path.join(path, member), trusted):
                    yield _follower(taker)


def _follower(note: dict[str, Any]) -> tuple[str, list[str]]:
    return str(note.get("host")), [p for p in (note.get("process"), note.get("agent")) if isinstance(p, str)]


def _json(path: str, trusted: Trust) -> dict[str, Any]:
    """What a file says; nothing where it is garbage, such as an empty claim of an earlier version. Raises
    OSError.
    """
    try:
        data = trust.read(path, checked_json.MOST, trusted)
    except Untrusted as e:  # it is not ours to judge, and so not ours to remove
        raise PermissionError(errno.EPERM, str(e), path) from e
    try:
        value = checked_json.parsed(data)
    except checked_json.NoJson:
        return {}
    return value if isinstance(value, dict) else {}


def _exported(proc: str = "/proc") -> str | None:
    """The decisions that processes of this machine name in their environment, one a line; those of other
    users cannot be read.

    None where a process stays between two programs, when it has no environment to be read (execve(2)).
    """
    found = set[str]()
    for pid in filter(str.isdigit, os.listdir(proc) if os.path.isdir(proc) else ()):
        with suppress(OSError):
            variables = _variables(f"{proc}/{pid}")
            if variables is None:
                return None
            found.update(
                os.fsdecode(v[len("CKPT_PLAN=") :]) for v in variables if v.startswith(b"CKPT_PLAN=")
            )
    return "\n".join(found)


def _variables(process: str) -> list[bytes] | None:
    """The environment of a process; None where it is just being started and stays so. Raises OSError."""
    for _ in range(_TRIES):
        if (data := _bytes(f"{process}/environ")) or not _starting(process):
            return data.split(b"\0")
        time.sleep(_PAUSE)
    return None


def _starting(process: str) -> bool:
    """Whether a process without words is neither dead nor the kernel's own (proc(5), stat: state and flags).
    Raises OSError.
    """
    if _bytes(f"{process}/cmdline"):
        return False
    fields = _bytes(f"{process}/stat").rpartition(b")")[2].split()
    return fields[0] not in (b"Z", b"X") and not int(fields[6]) & _KERNEL_THREAD


def _bytes(path: str) -> bytes:
    with open(path, "rb") as f:
        return f.read()


def _remove(key: str, trusted: Trust) -> None:
    """Remove a key whole: moved aside first, and only where nobody is deciding under it."""
    try:
        with trust.directory(key, trusted) as at:
            fd = trust.create("lock", os.O_RDWR, at, trusted)
    except Untrusted:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        aside = os.path.join(os.path.dirname(key), f"{_GONE}{secrets.token_hex(4)}")
        os.rename(key, aside)
    except BlockingIOError:
        return
    finally:
        os.close(fd)
    shutil.rmtree(aside, ignore_errors=True)
