"""What a format is: a frozen value with a name, a magic, checks by level, and its limits said aloud."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from ckpt_tools.checksum import Sum
from ckpt_tools.codes import finding
from ckpt_tools.model import Finding, Level, Scalar, Severity, Tensor
from ckpt_tools.storage import Source

HEAD = 64
"""Bytes of the file's beginning that a magic sees."""


class Damage(Exception):
    """Raised inside a check when nothing further can be read; verify turns it into its finding."""

    def __init__(self, code: str, message: str, offset: int | None = None, severity: Severity | None = None) -> None:
        super().__init__(message)
        self.finding: Finding = finding(code, message, offset=offset, severity=severity)


@dataclass
class Anatomy:
    """What a structure pass learns about one file; checks fill it in.

    ``metadata`` holds the scalars that matter (``epoch``, ``step_num``, ``args.world_size`` …), ``keys`` every top-level name
    (for --require), ``sums`` the stored checksums with the bytes they cover (the content level is to check them),
    ``globals`` every "module name" that a pickle in the file names, ``protected`` the bytes that a stored checksum covers.
    """

    metadata: dict[str, Scalar] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    tensors: list[Tensor] = field(default_factory=list)
    sums: list[Sum] = field(default_factory=list)
    globals: list[str] = field(default_factory=list)
    protected: int = 0


Check = Callable[[Source, Anatomy], Iterator[Finding]]
"""Yields findings and fills the anatomy. May raise Damage, ShortRead (a file that ends early) and OSError, nothing else."""


@dataclass(frozen=True)
class Format:
    """What some bytes are. ``magic`` sees the first HEAD bytes and the file's size; ``suffixes`` are the names that may hold it.

    ``protects`` says what protects what, ``limits`` what cannot be seen, ``reference`` where the facts come from.
    """

    name: str
    suffixes: tuple[str, ...]
    magic: Callable[[bytes], bool]
    checks: Mapping[Level, Check]
    protects: str
    limits: tuple[str, ...]
    reference: str


def structure(source: Source, anatomy: Anatomy, check: Check) -> Iterator[Finding]:
    """Run a check and turn Damage into its finding: what every caller of a structure check wants."""
    try:
        yield from check(source, anatomy)
    except Damage as e:
        yield e.finding
