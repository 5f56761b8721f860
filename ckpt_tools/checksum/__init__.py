"""Checksums over a Source: the bytes that they cover, and whether they match. Every byte is read once, by
several threads, in bounded memory.
"""

from __future__ import annotations

from ckpt_tools.checksum.combine import CRC32, CRC32C, Crc
from ckpt_tools.checksum.compare import Progress, mismatches
from ckpt_tools.checksum.sums import Crc32c, Deflated, Extent, Hash, Sum

__all__ = ["CRC32", "CRC32C", "Crc", "Crc32c", "Deflated", "Extent", "Hash", "Progress", "Sum", "mismatches"]
