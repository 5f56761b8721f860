"""Floating-point types as bit patterns: where their exponents are, which patterns are no numbers, and which
numbers somebody chose.
"""

from __future__ import annotations

import struct
from typing import NamedTuple


class Kind(NamedTuple):
    """How a float is laid out: bytes, bits of its mantissa, exponent bias. ``special`` is the smallest
    magnitude pattern that is no number.

    ``inf`` says whether that one is infinity (all above it are NaN). With ``fnuz`` the pattern of -0 is the
    only NaN.
    ``absurd`` is the power of two from which a value is absurd if it is also 2**``apart`` times the middle
    one; 0: such values are everyday.
    """

    width: int
    mantissa: int
    bias: int
    special: int
    inf: bool = True
    fnuz: bool = False
    absurd: int = 0
    apart: int = 0


KINDS = {
    "float64": Kind(8, 52, 1023, 0x7FF << 52, absurd=512, apart=512),
    "float32": Kind(4, 23, 127, 0xFF << 23, absurd=64, apart=64),
    "bfloat16": Kind(2, 7, 127, 0xFF << 7, absurd=64, apart=64),
    "float16": Kind(2, 10, 15, 0x1F << 10, absurd=9, apart=14),
    "float8_e5m2": Kind(1, 2, 15, 0x7C),
    "float8_e4m3fn": Kind(1, 3, 7, 0x7F, inf=False),
    "float8_e5m2fnuz": Kind(1, 2, 16, 0x80, inf=False, fnuz=True),
    "float8_e4m3fnuz": Kind(1, 3, 8, 0x80, inf=False, fnuz=True),
}
KINDS |= {"complex64": KINDS["float32"], "complex128": KINDS["float64"]}


def value(pattern: int, kind: Kind) -> float:
    """The number that a bit pattern stands for, if it is finite."""
    sign = pattern >> (8 * kind.width - 1)
    magnitude = pattern & ((1 << (8 * kind.width - 1)) - 1)
    exponent, fraction = magnitude >> kind.mantissa, magnitude & ((1 << kind.mantissa) - 1)
    scale = max(exponent, 1) - kind.bias - kind.mantissa
    number = (
        float(fraction | (1 << kind.mantissa if exponent else 0))
        * 2.0 ** max(scale, -1000)
        * 2.0 ** min(scale + 1000, 0)
    )
    return -number if sign else number


def chosen(kind: Kind) -> set[int]:
    """Magnitude patterns that programs write on purpose: each type's largest (and parts), d * 10**k."""
    largest = [
        value(k.special - 1, k) for k in (KINDS[n] for n in ("float64", "float32", "bfloat16", "float16"))
    ]
    digits = (
        range(1, 10) if kind.width > 2 else (1,)
    )  # of the few numbers that two bytes hold, too many are round
    numbers = [f * x for x in largest for f in (1.0, 0.5, 0.7)] + [
        d * 10.0**k for k in range(3, 308) for d in digits
    ]
    out = set()
    for x in numbers:
        if x <= value(kind.special - 1, kind):
            code = {8: "<d", 4: "<f", 2: "<f" if kind.bias == 127 else "<e"}[kind.width]
            raw = int.from_bytes(struct.pack(code, x), "little")
            cut = 16 if kind.width == 2 and kind.bias == 127 else 0
            out |= {raw >> cut, (raw + (1 << cut >> 1)) >> cut}  # bfloat16: cut off, and rounded
    return out
