"""A seal: what the bytes of a checkpoint's files were when it was sealed; and the results of sealing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct, field

from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Scalar

Text = Annotated[str, Meta(max_length=4096)]
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Hex = Annotated[str, Meta(pattern=r"^[0-9a-f]*\Z")]
Crc = Annotated[str, Meta(pattern=r"^[0-9a-f]{8}\Z")]
_NOTHING: Mapping[str, str] = {}
"""What most files have of the three: a seal names 100,000 files, and an empty dict takes 64 bytes."""


class SealedFile(Struct, frozen=True):
    """One file. ``path`` is relative to the directory that the seal is of, with "/"; ``size`` in bytes.

    ``digest`` is that of the whole, as ``Seal.algorithm`` says; ``crc32`` and ``crc32c`` are of the whole as
    well. ``chunks`` are the XXH3-128 of its chunks, ``chunk_crc32`` and ``chunk_crc32c`` their CRCs, each
    joined to one text of hexadecimal digits. ``counters`` are the numbers in it that tell which save it is
    of, ``also`` further digests of the whole by their names, ``tensors`` those of its tensors.
    """

    path: Text
    size: Count
    digest: Hex
    crc32: Crc
    crc32c: Crc
    chunks: Hex = ""
    chunk_crc32: Hex = ""
    chunk_crc32c: Hex = ""
    counters: Mapping[str, Scalar] = field(default_factory=lambda: _NOTHING)
    also: Mapping[str, Hex] = field(default_factory=lambda: _NOTHING)
    tensors: Mapping[str, Hex] = field(default_factory=lambda: _NOTHING)


class SealedCheckpoint(Struct, frozen=True):
    """What the files are, and where in training they were saved; ``parallel`` such as {"tp": 2}."""

    layout: Text | None = None
    run: Text | None = None
    kind: Text | None = None
    step: Count | None = None
    epoch: Count | None = None
    step_in_epoch: Count | None = None
    world_size: Count | None = None
    parallel: Mapping[str, Count] = field(default_factory=dict)


class Fragment(Struct, frozen=True):
    """The share of one rank in a seal that ``world_size`` ranks make."""

    rank: Count
    world_size: Count


class Seal(Struct, frozen=True):
    """The contents of a seal. ``beside`` are the other files of the checkpoint, if each file has a seal of
    its own: while one of those is there, this file is missed if it is gone. ``digest`` is that at the end of
    its text, of one that was read.
    """

    tool_version: str
    checkpoint: SealedCheckpoint
    algorithm: str
    files: tuple[SealedFile, ...]
    fragment: Fragment | None = None
    beside: tuple[str, ...] = ()
    digest: str = ""


STATES = ("sealed", "would-seal", "already", "merged", "broken", "unreadable", "unfinished", "in-use")
"""What may come of a checkpoint: in the order of the JSON's counts."""


class SealedOne(Struct, frozen=True):
    """The result for one checkpoint, or for one file that is sealed by itself: ``path`` is its directory or
    file, ``seal`` where its seal is (or would be), ``size`` the bytes of its ``files``.
    """

    path: str
    seal: str
    state: str
    label: str = ""
    files: int = 0
    size: int = 0
    findings: tuple[Finding, ...] = ()


class Sealing(Struct, frozen=True):
    """The results for everything below the roots."""

    roots: tuple[str, ...]
    checkpoints: tuple[SealedOne, ...] = ()
    bytes_read: int = 0
    seconds: float = 0.0
    dry_run: bool = False
    findings: tuple[Finding, ...] = ()

    def count(self, state: str) -> int:
        """How many ended so."""
        return sum(one.state == state for one in self.checkpoints)
