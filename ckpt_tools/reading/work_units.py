"""What is to be read: files, and units of work for an engine, of whole files or of ranges."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct, field

from ckpt_tools.formats import Claim
from ckpt_tools.model.report import Level

if TYPE_CHECKING:
    from ckpt_tools.checksum.remote import Content, Result
    from ckpt_tools.inspection.check import Told

UNIT = 256 * 1024 * 1024
"""Bytes of a unit of work: a tenth of a second on a fast node, and a thousand units per minute are little for
a scheduler.
"""
LARGEST, EACH, UNITS = 4 * 1024 * 1024 * 1024, 32, 20_000
"""Where there is much to read units are larger, up to ``LARGEST``: handing one out takes milliseconds of one
process, so that ``UNITS`` are enough for it. Up to there each worker gets ``EACH`` of them, so that all end
at about the same time."""
FILES = 256
"""Files in a unit at most."""
_ITEMS = 1 << 14
"""Ranges of one file in a unit at most."""


class Request(NamedTuple):
    """A file to read to ``level``; ``size`` and ``mtime_ns`` as its directory showed them."""

    path: str
    size: int
    mtime_ns: int
    level: Level
    expect: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()


class Open(Struct):
    """A file that is judged here: ``steps`` are those of an inspection, or of a pass that digests it. Of what
    they ``ask`` (Wanted) the ``content`` is out.
    """

    request: Request
    steps: Generator[Any, Told, Any]
    opened_ns: int
    ask: Any = None
    content: Any = None
    left: int = 0
    results: dict[int, Result] = field(default_factory=dict)
    wrong: OSError | None = None
    changed: bool = False


class Unit:
    """Work that is gathered until it is worth a call."""

    def __init__(self) -> None:
        self.files: list[tuple[Any, ...]] = []
        self.owners: list[tuple[Request | Open, tuple[int, ...]]] = []
        self.bytes = 0
        self.begun_ns = time.time_ns()

    def add(self, owner: Request | Open, numbers: tuple[int, ...], size: int, *sent: Any) -> None:
        self.files.append(sent)
        self.owners.append((owner, numbers))
        self.bytes += max(size, 0)


def unit_of(total: int, width: int) -> int:
    """Return the bytes of a unit when so many are to be read by so many workers."""
    return max(UNIT, min(LARGEST, max(total // (EACH * max(2, width)), total // UNITS)))


def portions(content: Content, room: int, unit: int) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield numbers of consecutive items, and their bytes: the first of about ``room`` bytes, the others of
    ``unit``.
    """
    numbers, size = list[int](), 0
    for i, length in enumerate(content.lengths):
        numbers.append(i)
        size += length
        if size >= room or len(numbers) >= _ITEMS:
            yield tuple(numbers), size
            numbers, size, room = [], 0, unit
    if numbers:
        yield tuple(numbers), size
