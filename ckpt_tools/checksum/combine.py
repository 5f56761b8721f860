"""CRCs: what they are worked out with, and how those of two ranges become that of both, so that one huge
range can be split over threads and machines.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache, lru_cache

from msgspec import Struct

try:  # Intel's isa-l: three to ten times zlib's speed, releases the GIL
    from isal.isal_zlib import crc32, crc32_combine
except ImportError:  # pragma: no cover - platforms without an isal wheel
    crc32 = zlib.crc32

    def crc32_combine(a: int, b: int, length: int, /) -> int:
        return combine(0xEDB88320, a, b, length)


__all__ = ["crc32", "crc32_combine"]  # all else is defined here


class Crc(Struct, frozen=True):
    """A CRC. ``update(data, start)`` goes on from ``start``, which is 0 at first; ``combine(a, b, length)``
    is that of two joined ranges, the second of ``length`` bytes.
    """

    name: str
    update: Callable[[memoryview | bytes, int], int]
    combine: Callable[[int, int, int], int]

    def __reduce__(self) -> str:
        return self.name.replace("-", "")  # elsewhere it is what the same constant is there


def combine(poly: int, a: int, b: int, length: int) -> int:
    """CRC of two joined ranges, of a reflected polynomial: ``a`` moved on by ``length`` bytes of zeros, which
    are a factor x^(8·length). Microseconds.

    How wide the CRC is shows in the polynomial: the coefficient of the lowest power, which is 1 in every
    CRC's, is its highest bit.
    """
    return times(poly, _zeros(poly, length), a) ^ b if a else b


@lru_cache(256)  # almost all units of a file are of one length
def _zeros(poly: int, length: int) -> int:
    """x^(8·length) modulo the polynomial."""
    return power_of_x(poly, 8 * length)


def power_of_x(poly: int, exponent: int) -> int:
    """x^exponent modulo the polynomial; the coefficient of the lowest power is the highest bit."""
    product, k = 1 << poly.bit_length() - 1, 0
    while exponent:
        if exponent & 1:
            product = times(poly, _square(poly, k), product)
        exponent >>= 1
        k += 1
    return product


@lru_cache(256)
def _square(poly: int, k: int) -> int:
    """x^(2^k) modulo the polynomial."""
    if k == 0:
        return 1 << poly.bit_length() - 2
    half = _square(poly, k - 1)
    return times(poly, half, half)


def times(poly: int, a: int, b: int) -> int:
    """The product of two polynomials over GF(2), modulo a third."""
    product, top = 0, 1 << poly.bit_length() - 1
    rest = top - 1
    while a:
        if a & top:
            product ^= b
        a = (a & rest) << 1
        b = b >> 1 ^ poly if b & 1 else b >> 1
    return product


def crc32c(data: memoryview | bytes, start: int = 0) -> int:
    """CRC-32C (Castagnoli), unmasked."""
    return castagnoli()(data, start)


@cache
def castagnoli() -> Callable[[memoryview | bytes, int], int]:
    """Return the fastest CRC-32C that is installed."""
    try:
        from fastcrc.crc32 import iscsi

        iscsi(memoryview(b""), 0)  # before 0.4 it was slow, and took nothing but bytes
    except (ImportError, TypeError):
        from crc32c import crc32c as packaged

        return packaged
    return iscsi


def crc32c_combine(a: int, b: int, length: int) -> int:
    return combine(0x82F63B78, a, b, length)


def crc64nvme(data: memoryview | bytes, start: int = 0) -> int:
    """CRC-64/NVME, which Amazon S3 and Azure keep, by the package awscrt. Raises ImportError without it."""
    from awscrt.checksums import crc64nvme

    value: int = crc64nvme(data, start)
    return value


def crc64nvme_combine(a: int, b: int, length: int) -> int:
    return combine(0x9A6C9329AC4BC9B5, a, b, length)


CRC32 = Crc("CRC-32", crc32, crc32_combine)
CRC32C = Crc("CRC-32C", crc32c, crc32c_combine)
CRC64NVME = Crc("CRC-64-NVME", crc64nvme, crc64nvme_combine)
