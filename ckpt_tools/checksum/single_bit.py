"""Which bit was flipped, worked out from a stored CRC alone.

A CRC is linear: what a flipped bit adds to it is x^e modulo the CRC's polynomial, where e counts the bits
behind it (and 32 for the CRC itself). The powers of x repeat after the order of x: 2^32 - 1 for CRC-32,
whose polynomial is primitive, and 2^31 - 1 for CRC-32C, which has the factor x + 1. Below that, the
difference of two CRCs is that of one bit, or of none; the exponent is found by baby steps and giant steps,
in time of the square root.
"""

from __future__ import annotations

from functools import lru_cache

from msgspec import Struct

from ckpt_tools.checksum.combine import CRC32, CRC32C, Crc, power_of_x, times

POLYNOMIALS = {CRC32.name: 0xEDB88320, CRC32C.name: 0x82F63B78}
"""Reflected, as the tables of both are."""
_ORDERS = {CRC32.name: (1 << 32) - 1, CRC32C.name: (1 << 31) - 1}
_WIDTH = 32
_BABY = 1 << 16
_ONE, _X = 1 << 31, 1 << 30
"""x^0 and x^1: the coefficient of the lowest power is the highest bit."""


class Flip(Struct, frozen=True):
    """Bit ``bit`` (0 is the lowest) of the byte at ``offset`` of the bytes that the CRC covers."""

    offset: int
    bit: int


def longest(crc: Crc) -> int:
    """Bytes that a CRC may cover for one flipped bit to be told from all others: 512 MiB for CRC-32, 256 MiB
    for CRC-32C, less than the CRC itself; 0 for what is no such CRC.
    """
    return (_ORDERS.get(crc.name, _WIDTH) - _WIDTH) // 8


def flipped_bit(crc: Crc, difference: int, length: int) -> Flip | None:
    """The one bit of ``length`` bytes whose change makes that ``difference`` (exclusive or of the stored CRC
    and the one of the bytes); None where no single bit of them does, also where it lies in the stored CRC,
    and where the bytes are more than ``longest``.
    """
    if not 0 < length <= longest(crc):
        return None
    exponent = _logarithm(crc.name, difference, 8 * length + _WIDTH)
    if exponent is None or exponent < _WIDTH:
        return None
    behind = exponent - _WIDTH
    return Flip(length - 1 - behind // 8, 7 - behind % 8)


def odds(length: int) -> float:
    """The most probable that random damage of ``length`` bytes looks like one flipped bit."""
    return 8 * length / (1 << _WIDTH)


def _logarithm(name: str, value: int, below: int) -> int | None:
    """The least e below ``below`` with x^e = value, modulo the polynomial."""
    poly, table = POLYNOMIALS[name], _baby_steps(name)
    # x^-m is x^(order - m)
    back = power_of_x(poly, _ORDERS[name] - _BABY)
    for giant in range((below + _BABY - 1) // _BABY):
        baby = table.get(value)
        if baby is not None and giant * _BABY + baby < below:
            return giant * _BABY + baby
        value = times(poly, value, back)
    return None


@lru_cache(2)
def _baby_steps(name: str) -> dict[int, int]:
    """x^0 to x^(m-1), each with its exponent."""
    poly, value, out = POLYNOMIALS[name], _ONE, dict[int, int]()
    for exponent in range(_BABY):
        out[value] = exponent
        value = value >> 1 ^ poly if value & 1 else value >> 1
    return out
