"""A seal: digests of a checkpoint's files when it was sealed; and the results of sealing."""

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
"""The value of three fields in most files: a seal names 100,000 files, an empty dict takes 64 bytes."""


class SealedFile(Struct, frozen=True):
    """One file of a seal."""

    path: Text  # relative to the seal's checkpoint directory, with "/"
    size: Count  # in bytes
    digest: Hex  # of the whole file, by ``Seal.algorithm``
    crc32: Crc  # of the whole file, as the next
    crc32c: Crc
    chunks: Hex = ""  # the XXH3-128 of its chunks, joined, as the next two
    chunk_crc32: Hex = ""
    chunk_crc32c: Hex = ""
    # the numbers in it that tell which save it is of
    counters: Mapping[str, Scalar] = field(default_factory=lambda: _NOTHING)
    also: Mapping[str, Hex] = field(default_factory=lambda: _NOTHING)  # further digests of the whole, by name
    tensors: Mapping[str, Hex] = field(default_factory=lambda: _NOTHING)  # the digests of its tensors


class SealedCheckpoint(Struct, frozen=True):
    """The checkpoint that a seal is of: where in training it was saved; ``parallel`` such as {"tp": 2}."""

    layout: Text | None = None
    run: Text | None = None
    kind: Text | None = None
    step: Count | None = None
    epoch: Count | None = None
    step_in_epoch: Count | None = None
    world_size: Count | None = None
    parallel: Mapping[str, Count] = field(default_factory=dict)


class Fragment(Struct, frozen=True):
    """Says that a seal is the share of one of ``world_size`` ranks."""

    rank: Count
    world_size: Count


class Seal(Struct, frozen=True):
    """The contents of a seal. ``beside``, if each file has its own seal: the checkpoint's other files; while
    one of them is there, this file is missed if it is gone. ``digest`` is at the end of a seal's text.
    """

    tool_version: str
    checkpoint: SealedCheckpoint
    algorithm: str
    files: tuple[SealedFile, ...]
    fragment: Fragment | None = None
    beside: tuple[str, ...] = ()
    digest: str = ""


STATES = ("sealed", "would-seal", "already", "merged", "broken", "unreadable", "unfinished", "in-use")
"""The outcomes of sealing a checkpoint, in the order of the JSON's counts."""


class SealedOne(Struct, frozen=True):
    """The result for one checkpoint, or one file with its own seal: ``path`` is its directory or file,
    ``seal`` is where its seal is (or would be), ``size`` the bytes of its ``files``.
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
        """Return how many results have a state."""
        return sum(one.state == state for one in self.checkpoints)


class StoreChecksum(Struct, frozen=True):
    """A store's checksum of an object: of all of its bytes, or (composite) of the checksums of ``parts``."""

    algorithm: str  # crc32, crc32c, crc64nvme, md5, sha1, sha256, sha512
    value: bytes  # of a CRC the highest byte first
    parts: tuple[int, ...] = ()  # sizes in bytes of an upload's parts, if it is composite
    part_values: tuple[bytes, ...] = ()  # checksums of the parts, as far as the store tells them
    weak: bool = False  # only equality proves anything: an ETag may be something else, or sizes are a guess
    claimed: bool = False  # only a difference does: the uploader said it, and it may never have been compared
    of_content: bool = False  # the store's encryption is known, and such an ETag is the MD5 of the contents

    @property
    def whole(self) -> bool:
        """Whether the checksum is of all bytes at once, and not composite."""
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
"""Algorithm -> its name for people."""
NOT_KEPT = "store-checksum-mismatch"
"""The code if readers get other bytes than the store has; with ``unreadable``, nobody knows its own bytes."""
