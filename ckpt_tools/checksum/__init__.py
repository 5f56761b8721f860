"""Checksums over a Source: what they cover, and whether they match; bounded memory, several threads, every byte read once."""

from __future__ import annotations

from ckpt_tools.checksum._blocks import Blocks, Picked
from ckpt_tools.checksum._compare import blocks, mismatches
from ckpt_tools.checksum._crc import BUFFER, UNIT, InflateError, Progress
from ckpt_tools.checksum._sums import Crc32c, Deflated, Extent, Hash, Piece, Sum, covered, shifted
from ckpt_tools.checksum._work import Outcome, Watch

__all__ = [
    "BUFFER",
    "UNIT",
    "Blocks",
    "Crc32c",
    "Deflated",
    "Extent",
    "Hash",
    "InflateError",
    "Outcome",
    "Picked",
    "Piece",
    "Progress",
    "Sum",
    "Watch",
    "blocks",
    "covered",
    "mismatches",
    "shifted",
]
