"""A report: the result of one pass over one file, how deep the pass looked, and what protects each byte."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from typing import NamedTuple

from msgspec import Struct, field

from ckpt_tools.model.finding import Finding, Verdict

Scalar = int | float | str | bool | None
"""A plain value found in a checkpoint's metadata."""
NO_METADATA: Mapping[str, Scalar] = {}


class Level(IntEnum):
    """How deep a check looks; each level includes the ones before it (docs/design.md section 6)."""

    PRESENCE = 0
    STRUCTURE = 1
    CONTENT = 2
    VALUES = 3
    LOAD = 4

    def __str__(self) -> str:
        return self.name.lower()


class Guard(str, Enum):
    """What notices a change in some bytes. Only ``checksum`` counts as coverage."""

    CHECKSUM = "checksum"
    """A checksum stored in the checkpoint covers them."""
    STRUCTURE = "structure"
    """No checksum does, but every changed bit contradicts something else, such as a length."""
    UNPROTECTED = "unprotected"
    """Some or all changes go unseen."""

    def __str__(self) -> str:
        return self.value


class Region(NamedTuple):
    """``length`` bytes at ``offset`` of a file: what they are, and what protects them."""

    offset: int
    length: int
    what: str
    guard: Guard


class Unlisted(NamedTuple):
    """A dotted ``name`` in a pickle that is in no list of what frameworks write, and where it is first named;
    ``called`` says that loading the pickle calls it.
    """

    name: str
    called: bool
    offset: int


class Blank(NamedTuple):
    """How many tensors of a file have no elements, and how many hold nothing but zeros: of a file in which
    others do not, only weights with two axes or more.
    """

    empty: int = 0
    zeros: int = 0


class Held(NamedTuple):
    """What a file holds of a training state: the weights of a model; something of an optimizer, such as its
    ``moments`` or nothing but ``settings``; the state of a scheduler alone.
    """

    weights: bool = False
    optimizer: bool = False
    moments: bool = False
    settings: bool = False
    scheduler: bool = False

    @property
    def trained(self) -> bool:
        """Whether it holds the state of an optimizer, and not only its settings."""
        return self.optimizer and not self.settings


class Report(Struct, frozen=True):
    """The result of one pass over one file. ``coverage`` is the fraction of bytes that a stored checksum
    protects, 0.0 to 1.0.

    ``signature`` is a digest of the names, dtypes and shapes of the tensors in file order ("" when there are
    none). ``mode`` holds the permission bits. ``regions`` cover the whole file if they were requested
    (--explain-bytes). ``stats`` are the statistics of its tensors, from level values on. ``unlisted`` are the
    names in its pickles that are in no list. Of ``blank`` the zeros are counted from level content on;
    ``held`` is known from the structure on. ``pages`` are four XXH3-64 of 8 bytes each, b"" where nobody
    has worked them out: files of one size whose pages differ are different.
    """

    path: str
    format: str | None
    size: int
    verdict: Verdict
    level: Level
    coverage: float = 0.0
    metadata: Mapping[str, Scalar] = field(default_factory=lambda: NO_METADATA)
    findings: tuple[Finding, ...] = ()
    signature: str = ""
    tensors: int = 0
    bytes_read: int = 0
    mtime_ns: int = 0
    mode: int = 0
    regions: tuple[Region, ...] = ()
    stats: tuple[Stats, ...] = ()
    unlisted: tuple[Unlisted, ...] = ()
    blank: Blank = Blank()
    held: Held = Held()
    pages: bytes = b""


class Box(NamedTuple):
    """A piece of a larger tensor: ``stop`` is the first index behind it in each dimension."""

    start: tuple[int, ...]
    stop: tuple[int, ...]


class Tensor(Struct, frozen=True):
    """One tensor as its file describes it: ``shape`` in elements, ``offset`` and ``nbytes`` in bytes of the
    file.

    ``storage`` names the record that holds the bytes; ``offset`` is None when the file does not place them
    (meta tensors).
    ``pieces`` are the (offset, nbytes) of the bytes where they are not one run from ``offset`` on; one of no
    bytes says that other data lies between them.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    offset: int | None = None
    storage: str = ""
    pieces: tuple[tuple[int, int], ...] = ()


class Stats(Struct, frozen=True):
    """One tensor's numbers. ``count`` is how many were looked at: bytes that an earlier tensor shares count
    there, a complex number is two.

    ``min`` and ``max`` are over the finite ones, None when there are none. ``absurd`` is 0 where it was not
    decided (fewer than 64 numbers). ``magnitudes`` are (power of two, how many) of a sample of those that are
    neither zero, denormal nor special; with (p, n) begin those before the next p.
    """

    name: str
    dtype: str
    count: int
    nan: int
    inf: int
    denormal: int
    absurd: int
    zeros: int
    min: float | None
    max: float | None
    magnitudes: tuple[tuple[int, int], ...] = ()
