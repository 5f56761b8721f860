"""What a store itself says about the bytes of an object: checksums that it keeps beside them."""

from __future__ import annotations

from msgspec import Struct


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
