"""One entry of a directory: its size and time, and whether it is the file that its name stands for."""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple

from ckpt_tools.findings import finding, of_file
from ckpt_tools.model.finding import Finding
from ckpt_tools.storage.listing import entries_of
from ckpt_tools.storage.retry import ABSENT, is_directory, is_link, lstat, patiently, status


class FileStat(NamedTuple):
    """``size`` is -1 when there is no such file to read; ``findings`` say why."""

    size: int
    mtime_ns: int
    findings: tuple[Finding, ...]


def stat_of(path: str | os.DirEntry[str]) -> FileStat:
    """Size and time of a file that should be a checkpoint."""
    try:
        st = status(path) if isinstance(path, str) else patiently(path.stat)
    except OSError as e:
        code = _code(path, e)
        since = 0 if code == "unreadable" else _made_ns(path)
        why = finding(code, f"{os.path.basename(path)}: {e.strerror}")
        return FileStat(-1, since, (of_file(why, os.fspath(path)),))
    if stat.S_ISREG(st.st_mode):
        return FileStat(st.st_size, st.st_mtime_ns, ())
    kind = "a directory" if stat.S_ISDIR(st.st_mode) else "a special file"
    text = f"there is {kind} where a checkpoint file belongs"
    return FileStat(-1, _made_ns(path), (finding("not-a-file", text),))


def _code(path: str | os.DirEntry[str], why: OSError) -> str:
    if why.errno == errno.ELOOP:
        return "symlink-loop"
    return "dangling-link" if isinstance(why, ABSENT) and is_link(path) else "unreadable"


def _made_ns(path: str | os.DirEntry[str]) -> int:
    """When what has the name of a file was made, or the link: what it led to was saved by then."""
    try:
        return lstat(os.fspath(path)).st_mtime_ns
    except OSError:
        return 0


def surely_directory(e: os.DirEntry[str]) -> bool:
    """Whether it surely is a directory; what cannot be told is walked into, and the walk says why."""
    try:
        return is_directory(e)
    except OSError:
        return False


def holds_something(e: os.DirEntry[str]) -> bool:
    """Whether it is a directory with entries: some frameworks save into a directory named like a file; an
    empty one took a file's place.

    One that cannot be listed may hold something; the walk says why it cannot.
    """
    if not surely_directory(e):
        return False
    try:
        return bool(entries_of(e.path))
    except OSError:
        return True
