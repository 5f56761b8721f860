"""Digests of whole files that a seal may have, by their names."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ckpt_tools.checksum import Hash
from ckpt_tools.formats.common.stored_digests import Digest, can_compare, maker
from ckpt_tools.model.seal import SealedFile
from ckpt_tools.model.store_checksum import NAMES


class Crc64Nvme:
    """CRC-64/NVME, as Amazon S3 keeps it. Raises ImportError without the package awscrt."""

    def __init__(self) -> None:
        self._crc: Any = import_module("awscrt.checksums").crc64nvme
        self._value = 0

    def update(self, data: memoryview | bytes, /) -> None:
        self._value = self._crc(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(8, "big")


def known_digests(file: SealedFile, algorithm: str = "") -> dict[str, bytes]:
    """The digests of a whole file that a seal has and stores keep as well; ``algorithm`` is that of the
    seal's own.
    """
    told = {"crc32": file.crc32, "crc32c": file.crc32c, **file.also, algorithm: file.digest}
    return {name: bytes.fromhex(text) for name, text in told.items() if name in NAMES}


def hash_of(name: str) -> Callable[[], Hash] | None:
    """What makes a running digest of that name; None where its package is not installed."""
    if name == "crc64nvme":
        return Crc64Nvme if find_spec("awscrt") else None
    return maker(Digest(name, b""), 0) if can_compare(name) else None
