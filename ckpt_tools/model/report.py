"""A report: the result of one pass over one file, how deep the pass looked, what protects each byte."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct, field

from ckpt_tools.model.finding import Degree, Finding, Verdict, Word

Scalar = int | float | str | bool | None
"""A plain value found in a checkpoint's metadata."""
NO_METADATA: Mapping[str, Scalar] = {}


class Level(Degree):
    """How deep a check looks; each level includes the ones before it (docs/design.md section 6)."""

    PRESENCE = 0
    STRUCTURE = 1
    CONTENT = 2
    VALUES = 3
    LOAD = 4


class Guard(Word):
    """What notices a change in some bytes. Only ``checksum`` counts as coverage."""

    CHECKSUM = "checksum"
    """A checksum stored in the checkpoint covers them."""
    STRUCTURE = "structure"
    """No checksum covers them, but every changed bit contradicts something else, such as a length."""
    UNPROTECTED = "unprotected"
    """Some or all changes go unseen."""


class Region(NamedTuple):
    """A range of ``length`` bytes at ``offset`` of a file: what they are, and what protects them."""

    offset: int
    length: int
    what: str
    guard: Guard


class Unlisted(NamedTuple):
    """A dotted ``name`` in a pickle that no list of names that frameworks write has, and where it is first
    named. ``called``: loading the pickle calls it.
    """

    name: str
    called: bool
    offset: int


class Blank(NamedTuple):
    """How many tensors of a file have no elements, and how many hold only zeros. If others do not, only
    weights with two or more axes count.
    """

    empty: int = 0
    zeros: int = 0


class Held(NamedTuple):
    """What a file holds of a training state: a model's weights; something of an optimizer, such as its
    ``moments`` or nothing but ``settings``; only a scheduler's state.
    """

    weights: bool = False
    optimizer: bool = False
    moments: bool = False
    settings: bool = False
    scheduler: bool = False

    @property
    def trained(self) -> bool:
        """Whether the file holds the state of an optimizer, and not only its settings."""
        return self.optimizer and not self.settings


class Report(Struct, frozen=True):
    """The result of one pass over one file. ``coverage`` is the fraction (0.0 to 1.0) of bytes with a
    checksum.

    ``signature`` is a digest of the names, dtypes and shapes of the tensors in file order ("" if there are
    none). ``mode`` holds the permission bits. ``regions`` cover the whole file if they were requested
    (--explain-bytes). ``stats`` are the statistics of its tensors, from level values on. ``unlisted`` are the
    names in its pickles that are in no list. ``blank.zeros`` is counted from level content on; ``held`` is
    known from level structure on. ``pages`` are four XXH3-64 of 8 bytes each, b"" if nobody computed them:
    files of one size with different pages are different.
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
    """A piece of a larger tensor: per dimension its first index, ``start``, and ``stop``, behind its last."""

    start: tuple[int, ...]
    stop: tuple[int, ...]


class Tensor(Struct, frozen=True):
    """One tensor as its file describes it: ``shape`` in elements, ``offset`` in the file and ``nbytes`` in
    bytes.

    ``storage`` names the record that holds the bytes; ``offset`` is None if the file gives no place for them
    (meta tensors). ``pieces`` are the (offset, nbytes) of the bytes if they are not one range from ``offset``
    on; a piece of no bytes says that other data lies between them.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    offset: int | None = None
    storage: str = ""
    pieces: tuple[tuple[int, int], ...] = ()


class Stats(Struct, frozen=True):
    """Statistics of one tensor. ``count`` is how many numbers were looked at: a complex number is two, and
    bytes shared with an earlier tensor count there.

    ``min`` and ``max`` are of the finite ones, None if there are none. ``absurd`` is 0 if it was not decided
    (fewer than 64 numbers). ``magnitudes`` are (power of two, how many) of a sample of all that are neither
    zero, denormal nor special; (p, n) counts from p up to the next entry's p.
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
