"""Which decisions of long ago may go: those that no process can follow any more, as far as that can be known
on this machine.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
from contextlib import suppress
from typing import Any

from ckpt_tools.job.process import Process
from ckpt_tools.settings import checked_json
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import OURS, Trust, Untrusted
from ckpt_tools.storage.writes import take_lock

KEPT_DAYS = 30
_LOOKED_AT = 32
"""Old decisions that one start looks at, at most."""
_DECISION = re.compile(r"\d{1,9}\.json")
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
        for path in secrets.SystemRandom().sample(old, min(len(old), _LOOKED_AT)):  # else some hide others
            if not _is_followed(path, trusted):
                _remove(path, trusted)


def _last_change(key: str) -> float:
    """When a decision under this key was made or taken the last time. Raises OSError."""
    with os.scandir(key) as entries:
        return max([os.stat(key).st_mtime, *(e.stat(follow_symlinks=False).st_mtime for e in entries)])


def _is_followed(key: str, trusted: Trust) -> bool:
    """Return whether a process may follow a decision under this key: it made or took one and runs, or is of
    a machine that nothing is known of. A decision that failed has started nothing.
    """
    here = Process.here().host
    try:
        for name in os.listdir(key):
            path, notes = os.path.join(key, name), []
            if _DECISION.fullmatch(name):
                body = _json(path, trusted)
                notes = [] if body.get("error") else [body.get("decision")]
            elif name.endswith(".taken"):
                notes = [_json(os.path.join(path, member), trusted) for member in os.listdir(path)]
            for note in notes:
                if isinstance(note, dict) and note:
                    processes = [str(note[by]) for by in ("process", "agent") if note.get(by)]
                    if note.get("host") != here or any(map(Process.alive, processes)):
                        return True
    except OSError:
        return True
    return False


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


def _remove(key: str, trusted: Trust) -> None:
    """Remove a key whole: moved aside first, and only where nobody is deciding under it."""
    try:
        fd = take_lock(os.path.join(key, "lock"), trusted)
    except Untrusted:
        return
    if fd is None:
        return
    try:
        aside = os.path.join(os.path.dirname(key), f"{_GONE}{secrets.token_hex(4)}")
        os.rename(key, aside)
    finally:
        os.close(fd)
    shutil.rmtree(aside, ignore_errors=True)
