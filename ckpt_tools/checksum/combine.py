"""CRCs: compute them, and combine those of two ranges, so that one huge range can be split over threads and
machines.

Find the one bit that was flipped, from the stored CRC and the computed one.

A CRC is linear: a flipped bit adds x^e modulo the CRC's polynomial to it, where e counts the bits behind the
flipped one (and 32 for the CRC itself). The powers of x repeat after the order of x: 2^32 - 1 for CRC-32,
whose polynomial is primitive, and 2^31 - 1 for CRC-32C, whose polynomial has the factor x + 1. For exponents
below the order, the difference of two CRCs is that of exactly one bit, or of none; baby steps and giant steps
find the exponent, in time of the square root.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache, lru_cache

from msgspec import Struct

try:  # Intel's isa-l: three to ten times zlib's speed, releases the GIL
    from isal.isal_zlib import crc32
except ImportError:  # pragma: no cover - platforms without an isal wheel
    crc32 = zlib.crc32


__all__ = ["crc32"]  # all else is defined here


class Crc(Struct, frozen=True):
    """One kind of CRC. ``update(data, start)`` goes on from ``start``, which is 0 at first.

    ``polynomial`` is reflected: its highest bit is the coefficient of the lowest power, which is 1 in every
    CRC, so it tells the width. ``order`` is that of x, 0 if nobody looks for flipped bits with this CRC.
    """

    name: str
    polynomial: int
    update: Callable[[memoryview | bytes, int], int]
    order: int = 0

    def __reduce__(self) -> str:
        return self.name.replace("-", "")  # pickled as the name of its constant: CRC32

    def combine(self, a: int, b: int, length: int) -> int:
        """Return the CRC of two joined ranges with the CRCs ``a`` and ``b``, the second of ``length`` bytes:
        ``a`` times x^(8·length), plus ``b``. Takes microseconds.
        """
        return times(self.polynomial, power_of_x(self.polynomial, 8 * length), a) ^ b if a else b


@lru_cache(256)  # almost all units of a file are of one length
def power_of_x(poly: int, exponent: int) -> int:
    """Return x^exponent modulo the polynomial; the coefficient of the lowest power is the highest bit."""
    product, k = 1 << poly.bit_length() - 1, 0
    while exponent:
        if exponent & 1:
            product = times(poly, _square(poly, k), product)
        exponent >>= 1
        k += 1
    return product


@lru_cache(256)
def _square(poly: int, k: int) -> int:
    """Return x^(2^k) modulo the polynomial."""
    if k == 0:
        return 1 << poly.bit_length() - 2
    half = _square(poly, k - 1)
    return times(poly, half, half)


def times(poly: int, a: int, b: int) -> int:
    """Return the product of two polynomials over GF(2), modulo ``poly``."""
    product, top = 0, 1 << poly.bit_length() - 1
    while a:
        if a & top:
            product ^= b
        a = (a & top - 1) << 1
        b = b >> 1 ^ poly if b & 1 else b >> 1
    return product


def crc32c(data: memoryview | bytes, start: int = 0) -> int:
    """Return the CRC-32C (Castagnoli), unmasked."""
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


def crc64nvme(data: memoryview | bytes, start: int = 0) -> int:
    """CRC-64/NVME, which Amazon S3 and Azure keep, by the package awscrt. Raises ImportError without it."""
    from awscrt.checksums import crc64nvme

    value: int = crc64nvme(data, start)
    return value


CRC32 = Crc("CRC-32", 0xEDB88320, crc32, order=(1 << 32) - 1)
CRC32C = Crc("CRC-32C", 0x82F63B78, crc32c, order=(1 << 31) - 1)
CRC64NVME = Crc("CRC-64-NVME", 0x9A6C9329AC4BC9B5, crc64nvme)

_WIDTH = 32
_BABY = 1 << 16


class Flip(Struct, frozen=True):
    """Bit ``bit`` (0 is the lowest) of the byte at ``offset`` of the bytes that the CRC covers."""

    offset: int
    bit: int


def find_longest(crc: Crc) -> int:
    """Return how many bytes a CRC may cover for each flipped bit to give another difference: 512 MiB for
    CRC-32 and 256 MiB for CRC-32C, less the CRC itself; 0 for any other CRC.
    """
    return max(0, crc.order - _WIDTH) // 8


def find_flipped_bit(crc: Crc, difference: int, length: int) -> Flip | None:
    """Return the one bit of ``length`` bytes whose flip makes this ``difference`` (exclusive or of the stored
    CRC and the computed one). None if no single bit of the bytes does, also if the flipped bit is one of the
    stored CRC, and for more bytes than ``find_longest``.
    """
    if not 0 < length <= find_longest(crc):
        return None
    # the difference is x^e: table has the e of small powers, and each giant step divides by x^_BABY
    table, highest = _list_baby_steps(crc.polynomial), 8 * length + _WIDTH
    step = power_of_x(crc.polynomial, crc.order - _BABY)  # x^-m is x^(order - m)
    for giant in range((highest + _BABY - 1) // _BABY):
        exponent = giant * _BABY + table.get(difference, highest)
        if exponent < highest:
            bits_behind = exponent - _WIDTH  # below 0: a bit of the stored CRC
            return None if bits_behind < 0 else Flip(length - 1 - bits_behind // 8, 7 - bits_behind % 8)
        difference = times(crc.polynomial, difference, step)
    return None


def odds(length: int) -> float:
    """Return the highest probability that random damage of ``length`` bytes looks like one flipped bit."""
    return 8 * length / (1 << _WIDTH)


@lru_cache(2)
def _list_baby_steps(poly: int) -> dict[int, int]:
    """Return {x^e modulo ``poly``: e} for all e from 0 to _BABY - 1."""
    value, out = power_of_x(poly, 0), dict[int, int]()
    for exponent in range(_BABY):
        out[value] = exponent
        value = value >> 1 ^ poly if value & 1 else value >> 1
    return out
