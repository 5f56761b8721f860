"""Files on their way: each is written beside the others under a name of its own, with the digest of every
cell that has arrived, so that what a killed process brought of a large file is not fetched again.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress

from ckpt_tools.job.staging.records import ASIDE
from ckpt_tools.job.staging.wanted import Wanted
from ckpt_tools.storage.stores.copies import Ledger
from ckpt_tools.storage.writes import write_all

_CELL = struct.Struct("<Q8s")
"""The number of a cell, and its XXH3-64."""
_MOST = 64 << 20
"""Bytes of such rows: sixteen terabytes of a file."""
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class Aside:
    """The directory in which files of the staged checkpoint ``part`` wait until they are whole."""

    def __init__(self, part: str) -> None:
        self._home = os.path.join(part, ASIDE)

    def prepare(self, wanted: Collection[Wanted]) -> None:
        """Keep what an earlier attempt brought of these files, and nothing else. Raises OSError."""
        os.makedirs(self._home, 0o755, exist_ok=True)
        known = {os.path.basename(p) for w in wanted if w.object.etag for p in (self.path(w), self._cells(w))}
        for name in set(os.listdir(self._home)) - known:
            os.unlink(os.path.join(self._home, name))

    def room(self, wanted: Collection[Wanted]) -> int:
        """Bytes on the disk that an earlier attempt has taken for these files."""
        taken = 0
        for w in wanted:
            with suppress(FileNotFoundError):
                taken += os.stat(self.path(w)).st_blocks * 512
        return taken

    def path(self, wanted: Wanted) -> str:
        """One name for one version of one object."""
        from xxhash import xxh3_128_hexdigest

        of = f"{wanted.url}\0{wanted.object[1:4]}"
        return os.path.join(self._home, xxh3_128_hexdigest(of.encode("utf-8", "surrogatepass")))

    def _cells(self, wanted: Wanted) -> str:
        return f"{self.path(wanted)}.cells"

    def forget(self, wanted: Wanted) -> None:
        """Have a file begin anew. Raises OSError."""
        for path in (self.path(wanted), self._cells(wanted)):
            with suppress(FileNotFoundError):
                os.unlink(path)

    @contextmanager
    def opened(self, wanted: Wanted) -> Iterator[tuple[int, Ledger]]:
        """The file, open for writing, and what is known of its cells. Raises OSError."""
        fd = os.open(self.path(wanted), _FLAGS, 0o644)
        try:
            cells = os.open(self._cells(wanted), _FLAGS | os.O_APPEND, 0o644)
            try:
                yield fd, _Cells(cells)
            finally:
                os.close(cells)
        finally:
            os.close(fd)

    def finish(self, wanted: Wanted, path: str) -> None:
        """Give a file that is whole its name. Raises OSError."""
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        os.rename(self.path(wanted), path)
        with suppress(OSError):
            os.unlink(self._cells(wanted))

    def remove(self) -> None:
        """What is left, once all files have their names."""
        shutil.rmtree(self._home, ignore_errors=True)


class _Cells(Ledger):
    """A row for each cell that arrived. The machine may have died since: a row whose cell has another digest
    by now counts for nothing, nor does one that was cut off.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        data = os.pread(fd, _MOST, 0)
        whole = len(data) - len(data) % _CELL.size
        os.ftruncate(fd, whole)
        super().__init__(dict(_CELL.iter_unpack(data[:whole])))

    def arrived(self, number: int, digest: bytes) -> None:
        write_all(self._fd, _CELL.pack(number, digest))
