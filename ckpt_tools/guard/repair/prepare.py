"""The file that takes the place of a damaged one: written aside, with everything that belongs to the old one
but its damage.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress

from ckpt_tools.errors import CannotLook
from ckpt_tools.guard.journal import Store
from ckpt_tools.guard.repair.evidence import Mended
from ckpt_tools.guard.repair.patched import Patch

_FICLONE = 0x40049409
"""ioctl_ficlone(2): the file shares the blocks of another until one of them is written."""
_BLOCK = 8 << 20
_WITHOUT = frozenset({errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.ENOTTY})
"""What file systems answer that cannot share or copy by themselves."""


def prepared(store: Store, path: str, mended: Mended) -> str:
    """The new file for ``path``, below ``.ckpt/incoming``, on the disk; both paths are relative to the root.
    Raises CannotLook.
    """
    incoming = f"{store.place('incoming')}/{path}"
    try:
        store.tree.make_above(incoming)
        with store.tree.above(incoming) as (at, name):
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=at)
            try:
                _fill(fd, os.path.join(store.tree.root, path), mended)
                _dress(fd, os.path.join(store.tree.root, path))
                os.fsync(fd)
            finally:
                os.close(fd)
    except OSError as e:
        hint = "make room, or see that it can be written, then run it again"
        if e.errno == errno.EPERM:
            hint = (
                "run it as the owner of the files, or as root: a repaired file keeps its owner and attributes"
            )
        raise CannotLook(f"{path} could not be repaired, nothing is changed: {e.strerror}", hint) from e
    return incoming


def _fill(fd: int, damaged: str, mended: Mended) -> None:
    base = os.open(mended.whole or damaged, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _copy_whole(base, fd)
    finally:
        os.close(base)
    for patch in mended.patches:
        _apply(fd, patch)
    if mended.tail is not None:
        os.ftruncate(fd, mended.tail.offset)
        _apply(fd, mended.tail)


def _copy_whole(source: int, target: int) -> None:
    """Share the blocks where the file system can, else copy them."""
    with suppress(OSError):
        fcntl.ioctl(target, _FICLONE, source)
        return
    _copy(source, target, 0, os.fstat(source).st_size)


def _apply(fd: int, patch: Patch) -> None:
    if patch.data:
        _put(fd, patch.data, patch.offset)
        return
    source = os.open(patch.copy_of, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _copy(source, fd, patch.offset, patch.length)
    finally:
        os.close(source)


def _copy(source: int, target: int, offset: int, length: int) -> None:
    """The same bytes at the same place. Raises OSError, also where the source ends early."""
    end, by_kernel = offset + length, True
    while offset < end:
        n = min(_BLOCK, end - offset)
        if by_kernel:
            try:
                done = os.copy_file_range(source, target, n, offset, offset)
            except OSError as e:
                if e.errno not in _WITHOUT:
                    raise
                by_kernel = False
                continue
        else:
            done = _put(target, os.pread(source, n, offset), offset)
        if not done:
            raise OSError(errno.EIO, "the copy ends early")
        offset += done


def _put(fd: int, data: bytes, offset: int) -> int:
    view = memoryview(data)
    while view:
        n = os.pwrite(fd, view, offset)
        view, offset = view[n:], offset + n
    return len(data)


def _dress(fd: int, old: str) -> None:
    """Owner, mode, extended attributes and times of the old file. Raises OSError where one cannot be kept."""
    info = os.stat(old)
    new = os.fstat(fd)
    if (new.st_uid, new.st_gid) != (info.st_uid, info.st_gid):
        os.fchown(fd, info.st_uid, info.st_gid)
    os.fchmod(fd, info.st_mode & 0o7777)
    for name in _attributes(old):
        os.setxattr(fd, name, os.getxattr(old, name))
    os.utime(fd, ns=(info.st_atime_ns, info.st_mtime_ns))


def _attributes(path: str) -> list[str]:
    try:
        return os.listxattr(path)
    except OSError as e:
        if e.errno in _WITHOUT:
            return []
        raise
