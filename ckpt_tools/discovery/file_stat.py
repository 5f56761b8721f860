"""One entry of a directory: its size and time, and whether it is the file that its name stands for."""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple

from ckpt_tools.findings import finding, of_file
from ckpt_tools.model.finding import Finding
from ckpt_tools.storage.attempts import patiently
from ckpt_tools.storage.listing import entries_of
from ckpt_tools.storage.retry import ABSENT, is_directory, is_link, lstat, status
from ckpt_tools.storage.urls import real_path


class FileStat(NamedTuple):
    """``size`` is -1 when there is no such file to read; ``findings`` say why."""

    size: int
    mtime_ns: int
    findings: tuple[Finding, ...]


def stat_of(path: str | os.DirEntry[str]) -> FileStat:
    """Return the size and time of a file that should be a checkpoint. Of what has its name otherwise, and of
    a link, the time is when it was made: what it led to was saved by then.
    """
    try:
        st = status(path) if isinstance(path, str) else patiently(path.stat)
    except OSError as e:
        code = "dangling-link" if isinstance(e, ABSENT) and is_link(path) else "unreadable"
        code = "symlink-loop" if e.errno == errno.ELOOP else code
        of = os.path.basename(path) if code == "unreadable" else f"it leads to {real_path(os.fspath(path))}"
        why = of_file(finding(code, f"{of}: {e.strerror}"), os.fspath(path))
        return FileStat(-1, 0 if code == "unreadable" else _made_ns(path), (why,))
    if stat.S_ISREG(st.st_mode):
        return FileStat(st.st_size, st.st_mtime_ns, ())
    kind = "a directory" if stat.S_ISDIR(st.st_mode) else "a special file"
    text = f"there is {kind} where a checkpoint file belongs"
    return FileStat(-1, _made_ns(path), (finding("not-a-file", text),))


def _made_ns(path: str | os.DirEntry[str]) -> int:
    try:
        return lstat(os.fspath(path)).st_mtime_ns
    except OSError:
        return 0


def surely_directory(e: os.DirEntry[str]) -> bool:
    """Return True if it surely is a directory; what cannot be told is walked into, and the walk says why."""
    try:
        return is_directory(e)
    except OSError:
        return False


def holds_something(e: os.DirEntry[str]) -> bool:
    """Return True if it is a directory with entries, or may have some: some frameworks save into a directory
    named like a file; an empty one took a file's place.
    """
    try:
        return surely_directory(e) and bool(entries_of(e.path))
    except OSError:
        return True  # the walk says why it cannot be listed
