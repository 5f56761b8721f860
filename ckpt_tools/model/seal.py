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


class StoreChecksum(Struct, frozen=True):
    """``value`` by ``algorithm`` (crc32, crc32c, crc64nvme, md5, sha1, sha256, sha512), CRCs with the highest
    byte first.

    It is of all bytes; or, where ``parts`` has the sizes in bytes of the parts of an upload, of the checksums
    of these, joined (a composite checksum), which ``part_values`` has as far as the store tells them.
    ``weak``: only equality says anything, because a store may put something else in its place (an ETag), or
    the sizes of the parts are a guess. ``claimed``: only a difference does, because the store keeps what
    the uploader said and may never have compared it with the bytes. ``of_content``: the store says how it
    encrypts, and that such an ETag is the MD5 of the contents.
    """

    algorithm: str
    value: bytes
    parts: tuple[int, ...] = ()
    part_values: tuple[bytes, ...] = ()
    weak: bool = False
    claimed: bool = False
    of_content: bool = False

    @property
    def whole(self) -> bool:
        """Whether it is of all bytes at once."""
        return not self.parts


class StoreChecksums(Struct, frozen=True):
    """All that a store says of one version of an object, which has ``size`` bytes."""

    url: str
    size: int
    sums: tuple[StoreChecksum, ...] = ()


NAMES = {
    "crc32": "CRC-32",
    "crc32c": "CRC-32C",
    "crc64nvme": "CRC-64/NVME",
    "md5": "MD5",
    "sha1": "SHA-1",
    "sha256": "SHA-256",
    "sha512": "SHA-512",
}
"""What people call each."""
NOT_KEPT = "store-checksum-mismatch"
"""Others get other bytes than the store has; ``unreadable`` beside it: of its own nothing is known."""
