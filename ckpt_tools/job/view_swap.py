"""A directory of links, put in its place whole: built aside and renamed, whoever else builds it; nothing that
is not ours is ever replaced or removed.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from ckpt_tools import __version__
from ckpt_tools.errors import CannotLook, UsageError
from ckpt_tools.job.process import Process
from ckpt_tools.job.view_inspect import MARKER, SCHEMA, holds, ours
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import OURS, Trust

_TRIES, _DAY = 1000, 86400
_EXCHANGE, _HERE = 2, -100
"""renameat2(2): RENAME_EXCHANGE, AT_FDCWD."""


def put(
    directory: str,
    links: Mapping[str, str],
    texts: Mapping[str, bytes],
    about: Mapping[str, object],
    trusted: Trust = OURS,
) -> None:
    """Let ``directory`` hold exactly these links and small files. Raises UsageError when something else is
    there, CannotLook when it cannot be written.
    """
    stamp = hashlib.sha256(
        repr((sorted(links.items()), sorted(texts.items()))).encode("utf-8", "surrogateescape")
    ).hexdigest()
    files = {**texts, MARKER: _marker(stamp, texts, about)}
    try:
        trust.make(os.path.dirname(directory), trusted)
        _believed(directory, trusted)
        _sweep(directory)
        for _ in range(_TRIES):
            if holds(directory, stamp, links, texts):
                return
            with _aside(directory) as new:
                _build(new, links, files)
                if _placed(new, directory):
                    return
    except OSError as e:
        raise CannotLook(
            f"the view {directory} could not be built: {e.strerror}",
            "make room, or name another directory with --view",
        ) from e
    raise CannotLook(
        f"the view {directory} is being replaced by others again and again",
        "give each job a directory of its own with --view",
    )


def _marker(stamp: str, texts: Mapping[str, bytes], about: Mapping[str, object]) -> bytes:
    """The file that says that ckpt has built a view, and what is in it."""
    note = {
        "schema": SCHEMA,
        "tool_version": __version__,
        **about,
        "content": stamp,
        "files": sorted(texts),
        "made_by": f"{socket.gethostname()}/{os.getpid()}",
        "made_at": time.time(),
    }
    return json.dumps(note, indent=1).encode()


def _believed(directory: str, trusted: Trust) -> None:
    """Raises Untrusted where others can write the view, or put another in its place. Raises OSError."""
    with trust.named("--view"):
        try:
            trust.check(directory, trusted)
        except FileNotFoundError:
            trust.absent(directory, trusted)


def _for_us_to_write(path: str, flags: int) -> int:
    """Opens a file that others cannot write whatever the umask says."""
    return os.open(path, flags, 0o644)


def _discard(path: str) -> None:
    """Remove a view, whole or half built, from a place aside; anything else stays."""
    with suppress(OSError, UsageError):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.listdir(fd) != [MARKER]:  # alone it may be half written: it comes first and goes last
                ours(fd, path)
        finally:
            os.close(fd)
        for entry in sorted(os.listdir(path), key=lambda name: name == MARKER):
            inside = os.path.join(path, entry)
            if os.path.isdir(inside) and not os.path.islink(inside):
                shutil.rmtree(inside)  # follows no links
            else:
                os.unlink(inside)
        os.rmdir(path)


@contextmanager
def _aside(directory: str) -> Iterator[str]:
    """A new directory in the same place, which is gone afterwards unless it was renamed."""
    path = f"{directory}.{_host()}.{os.getpid()}.{secrets.token_hex(4)}.tmp"
    os.mkdir(path, 0o755)
    try:
        yield path
    finally:
        _discard(path)


def _build(new: str, links: Mapping[str, str], files: Mapping[str, bytes]) -> None:
    made = {new}

    def place(name: str) -> str:
        path = f"{new}/{name}"
        if (home := os.path.dirname(path)) not in made:
            trust.make(home)
            made.add(home)
        return path

    for name in sorted(
        files, key=lambda n: n != MARKER
    ):  # first, so that what a killed builder leaves is known as ours
        with open(place(name), "xb", opener=_for_us_to_write) as f:
            f.write(files[name])
            f.flush()
            os.fsync(f.fileno())
    for name, path in links.items():
        os.symlink(path, place(name))


def _placed(new: str, directory: str) -> bool:
    """Put ``new`` where ``directory`` is; False when another builder was quicker and it must be looked at
    again.
    """
    try:
        if _moved(new, directory):
            return True
    except OSError as e:
        if e.errno == errno.EBUSY:
            raise UsageError(
                f"--view {directory} is a mount point, which cannot be replaced",
                f"name a directory in it: {directory}/view",
            ) from e
        raise
    if _exchanged(new, directory):
        _require_ours(new, directory, _exchanged)
        _discard(new)
        return True
    old = f"{new[:-4]}.old.tmp"  # no such call here (NFS, musl): for a moment there is no view
    try:
        os.rename(directory, old)
    except FileNotFoundError:
        return False
    _require_ours(old, directory, os.rename)
    try:
        return _moved(new, directory)
    finally:
        _discard(old)


def _moved(new: str, directory: str) -> bool:
    """Rename where nothing is, or an empty directory; False where something is."""
    try:
        os.rename(new, directory)
    except OSError as e:
        if e.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def _require_ours(old: str, directory: str, put_back: Callable[[str, str], object]) -> None:
    """What was there when we looked may have been replaced since, even by a file: what is not ours is put
    back. Raises OSError and UsageError.
    """
    try:
        fd = os.open(old, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            ours(fd, directory)
        finally:
            os.close(fd)
    except (OSError, UsageError):
        put_back(old, directory)
        raise


def _exchanged(a: str, b: str) -> bool:
    """Exchange two directories in one step; False where the system or the file system cannot."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    return bool(call(_HERE, os.fsencode(a), _HERE, os.fsencode(b), _EXCHANGE) == 0)


def _host() -> str:
    """Where a pid means something: this boot and this container of this machine."""
    return hashlib.sha256(Process.here().host.encode()).hexdigest()[:8]


def _sweep(directory: str) -> None:
    """Remove what killed builders left: those of this machine that run no more, others after a day."""
    parent, name = os.path.split(directory)
    pattern = re.compile(re.escape(name) + r"\.([0-9a-f]{8})\.(\d{1,9})\.[0-9a-f]{8}(\.old)?\.tmp")
    for entry in os.listdir(parent):
        if not (m := pattern.fullmatch(entry)):
            continue
        path = os.path.join(parent, entry)
        with suppress(OSError):
            if time.time() - os.lstat(path).st_mtime > _DAY or (m[1] == _host() and not _runs(int(m[2]))):
                _discard(path)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
