"""A rename that replaces nothing, in one step where the system has one."""

from __future__ import annotations

import ctypes
import errno
import os
import stat

_NO_REPLACE = 1
"""renameat2(2): RENAME_NOREPLACE."""
_UNKNOWN = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM})
"""What file systems without it answer."""


def rename_to_free_name(source: str, target: str, source_at: int, target_at: int) -> None:
    """Rename in open directories; raises FileExistsError where something has the new name, and OSError.

    Without renameat2(2) a file is given the new name before it loses the old one, and a directory is renamed:
    that replaces an empty directory at most.
    """
    if _renamed(source, target, source_at, target_at):
        return
    info = os.stat(source, dir_fd=source_at, follow_symlinks=False)
    if stat.S_ISDIR(info.st_mode):
        os.rename(source, target, src_dir_fd=source_at, dst_dir_fd=target_at)
        return
    os.link(source, target, src_dir_fd=source_at, dst_dir_fd=target_at, follow_symlinks=False)
    os.unlink(source, dir_fd=source_at)


def _renamed(source: str, target: str, source_at: int, target_at: int) -> bool:
    """False where the system or the file system cannot."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    if call(source_at, os.fsencode(source), target_at, os.fsencode(target), _NO_REPLACE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNKNOWN:
        return False
    raise OSError(number, os.strerror(number), target)
