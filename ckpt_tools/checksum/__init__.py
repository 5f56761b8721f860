"""Checksums over a Source: the bytes that they cover, and whether they match. Every byte is read once, by
several threads, in bounded memory.
"""

from __future__ import annotations

from ckpt_tools.checksum.combine import CRC32, CRC32C, Crc
from ckpt_tools.checksum.compare import (
    UNIT,
    Computed,
    InflateError,
    Outcome,
    Progress,
    Watch,
    digests,
    mismatches,
)
from ckpt_tools.checksum.sums import Crc32c, Deflated, Extent, Hash, Piece, Sum, covered, shifted
from ckpt_tools.storage.local import BUFFER
from ckpt_tools.storage.stalls import default_jobs

__all__ = [
    "BUFFER",
    "CRC32",
    "CRC32C",
    "UNIT",
    "Computed",
    "Crc",
    "Crc32c",
    "Deflated",
    "Extent",
    "Hash",
    "InflateError",
    "Outcome",
    "Piece",
    "Progress",
    "Sum",
    "Watch",
    "covered",
    "default_jobs",
    "digests",
    "mismatches",
    "shifted",
]
