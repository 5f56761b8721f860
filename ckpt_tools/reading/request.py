"""A file that is to be read before anybody asks for its report, and what one worker does with it, wherever
that worker runs.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from ckpt_tools.cache.codec import pack
from ckpt_tools.formats import Claim
from ckpt_tools.inspection.check import inspect
from ckpt_tools.model.report import Level
from ckpt_tools.storage import counted


class Request(NamedTuple):
    """A file to read to ``level``; ``size`` and ``mtime_ns`` as its directory showed them."""

    path: str
    size: int
    mtime_ns: int
    level: Level
    expect: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()


class Answer(NamedTuple):
    """A report as the cache keeps it (None: it cannot be sent), of which file (``Identity``), opened when (ns
    since 1970), for how many bytes.
    """

    packed: bytes | None
    identity: tuple[int, ...] | None
    opened_ns: int
    bytes_read: int

    def encode(self) -> bytes:
        """A line of numbers, then the report."""
        line = " ".join(map(str, (self.opened_ns, self.bytes_read, *(self.identity or ()))))
        return line.encode() + b"\n" + (self.packed or b"")

    @classmethod
    def decode(cls, data: bytes) -> Answer:
        line, _, packed = data.partition(b"\n")
        opened_ns, bytes_read, *identity = map(int, line.split())
        return cls(packed or None, tuple(identity) or None, opened_ns, bytes_read)


def inspect_file(
    request: Request, require: tuple[str, ...], *, key: bytes | None = None, io: str = "pread"
) -> Answer:
    """The report on a file by one thread: many files are read at once."""
    opened_ns = time.time_ns()
    with counted() as read:
        report, anatomy = inspect(
            request.path,
            request.level,
            expect=request.expect,
            claims=request.claims,
            jobs=1,
            require=require,
            key=key,
            io=io,
        )
    identity = None if anatomy.identity is None else tuple(anatomy.identity)
    return Answer(pack(report, anatomy.places), identity, opened_ns, read.bytes)
