"""Locks on staged checkpoints that end with their holders: of whoever brings files to one, and of those who
use it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct

from ckpt_tools.job.waiting import Backoff
from ckpt_tools.storage import trust
from ckpt_tools.storage.trust import OURS, Trust

_FOREVER = float(1 << 40)


class Lock(Struct, frozen=True):
    """A file that is locked by whoever has it open: flock(2), which the kernel lets go of with the process,
    and which a command that is started inherits.
    """

    path: str
    trusted: Trust = OURS

    def _opened(self) -> int:
        home, name = os.path.split(self.path)
        with trust.directory(home, self.trusted) as at:
            return trust.create(name, os.O_RDWR, at, self.trusted)

    def _taken(self, how: int) -> int | None:
        """The file, open and locked; None where somebody else has it locked, or has removed it meanwhile."""
        fd = self._opened()
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.stat(self.path)):
                return fd
        except (BlockingIOError, FileNotFoundError):
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        return None

    def shared(self) -> int:
        """The file, open and locked with others who use the same, once nobody has it for himself alone: its
        removal takes no time. Raises OSError.
        """
        return self._waited(fcntl.LOCK_SH)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold it alone, once the one who has it is done or dead. Raises OSError."""
        fd = self._waited(fcntl.LOCK_EX)
        try:
            yield
        finally:
            os.close(fd)

    @contextmanager
    def idle(self) -> Iterator[bool]:
        """Whether nobody has it: then it is held alone. Raises OSError."""
        fd = self._taken(fcntl.LOCK_EX)
        try:
            yield fd is not None
        finally:
            if fd is not None:
                os.close(fd)

    def _waited(self, how: int) -> int:
        backoff = Backoff(_FOREVER)
        while (fd := self._taken(how)) is None:
            backoff.pause()
        return fd
