"""Reading the medium itself: past the page cache (O_DIRECT) where the file system can, else through it,
leaving it as it was.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from ckpt_tools.storage.buffers import BUFFER, second_buffer
from ckpt_tools.storage.local import LocalSource
from ckpt_tools.storage.retry import patiently

ALIGNED = 4096
"""Offsets, lengths and addresses that every device takes."""
_REFUSED = (errno.EINVAL, errno.EOPNOTSUPP)
_SAMPLES = 32


class DirectSource(LocalSource):
    """A file read past the page cache, a page or more at a time: what is compared is what lies on the medium,
    and what others have in the cache stays there.

    Where O_DIRECT is refused (some network file systems), a file that was not in the cache is dropped from it
    again.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.direct = -1
        self._drop: bool | None = None  # not known yet
        with suppress(OSError):  # refused, or there is no /proc
            # The file that is open, not whatever has its name by now.
            self.direct = os.open(
                f"/proc/self/fd/{self.fd}",
                os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | getattr(os, "O_DIRECT", 0),
            )

    def read(self, offset: int, length: int) -> bytes:
        data = bytearray(length)
        self.readinto(offset, memoryview(data))
        return bytes(data)

    def readinto(self, offset: int, buffer: memoryview) -> None:
        done, wanted, bounce = 0, len(buffer), second_buffer()
        while done < wanted:
            start = (offset + done) // ALIGNED * ALIGNED
            skip = offset + done - start
            n = min(BUFFER, -(-(skip + wanted - done) // ALIGNED) * ALIGNED)
            got = self._pages(bounce[:n], start) - skip
            if got <= 0:
                raise self.end_of_file(offset, wanted, done)
            got = min(got, wanted - done)
            buffer[done : done + got] = bounce[skip : skip + got]
            done += got
        self.count(wanted)

    def _pages(self, view: memoryview, start: int) -> int:
        """Read whole pages. A read that ends within a page has met the end of the file."""
        if self.direct >= 0:
            try:
                return patiently(os.preadv, self.direct, [view], start)
            except OSError as e:
                if e.errno not in _REFUSED:
                    raise
        if self._drop is None:
            self._drop = hasattr(os, "posix_fadvise") and not _is_cached(self)
        got = patiently(os.preadv, self.fd, [view], start)
        if self._drop:
            os.posix_fadvise(self.fd, start, len(view), os.POSIX_FADV_DONTNEED)
        return got

    def close(self) -> None:
        if self._drop:  # what was read ahead, too
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if self.direct >= 0:
            os.close(self.direct)
        super().close()


def _is_cached(source: LocalSource) -> bool:
    """Return whether single bytes all over the file can be had without waiting."""
    view = memoryview(bytearray(1))
    try:
        return all(
            os.preadv(source.fd, [view], (source.size - 1) * i // (_SAMPLES - 1), os.RWF_NOWAIT) == 1
            for i in range(_SAMPLES)
        )
    except OSError:  # EAGAIN: it would have to wait; EOPNOTSUPP: the file system cannot say
        return False
