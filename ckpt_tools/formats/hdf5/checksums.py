"""The two checksums of HDF5: lookup3 over its structures, Fletcher-32 over chunks of arrays."""

from __future__ import annotations

import struct
import sys
from array import array
from itertools import accumulate

_MASK = (1 << 32) - 1


class Lookup3:
    """Bob Jenkins' lookup3 (hashlittle, initial value 0); the last twelve bytes wait for ``digest``."""

    def __init__(self, length: int) -> None:
        start = (0xDEADBEEF + length) & _MASK
        self._abc = (start, start, start)
        self._rest = b""

    def update(self, data: memoryview | bytes, /) -> None:
        data = self._rest + bytes(data)
        mixed = (len(data) - 1) // 12 * 12 if data else 0
        self._mix(data[:mixed])
        self._rest = data[mixed:]

    def _mix(self, data: bytes) -> None:
        m, (a, b, c) = _MASK, self._abc
        for x, y, z in struct.iter_unpack("<III", data):
            a, b, c = (a + x) & m, (b + y) & m, (c + z) & m
            a = ((a - c) & m) ^ (c << 4 & m | c >> 28)
            c = (c + b) & m
            b = ((b - a) & m) ^ (a << 6 & m | a >> 26)
            a = (a + c) & m
            c = ((c - b) & m) ^ (b << 8 & m | b >> 24)
            b = (b + a) & m
            a = ((a - c) & m) ^ (c << 16 & m | c >> 16)
            c = (c + b) & m
            b = ((b - a) & m) ^ (a << 19 & m | a >> 13)
            a = (a + c) & m
            c = ((c - b) & m) ^ (b << 4 & m | b >> 28)
            b = (b + a) & m
        self._abc = a, b, c

    def digest(self) -> bytes:
        m = _MASK
        a, b, c = self._abc
        last = c
        if self._rest:
            x, y, z = struct.unpack("<III", self._rest.ljust(12, b"\0"))
            a, b, c = (a + x) & m, (b + y) & m, (c + z) & m
            for k in (14, 11, 25, 16, 4, 14, 24):  # each step mixes b into c and moves on
                c = ((c ^ b) - (b << k & m | b >> (32 - k))) & m
                a, b, c = b, c, a
            last = b
        return int(last).to_bytes(4, "little")


def lookup3(data: bytes) -> int:
    """lookup3 of bytes that are in memory."""
    running = Lookup3(len(data))
    running.update(data)
    return int.from_bytes(running.digest(), "little")


class Fletcher32:
    """Fletcher-32 over big-endian words of 16 bits (H5checksum.c), which keeps a sum of 65535."""

    def __init__(self) -> None:
        self._first = self._second = 0
        self._rest = b""

    def update(self, data: memoryview | bytes, /) -> None:
        if self._rest or len(data) % 2:
            data = self._rest + bytes(data)
            even = len(data) & ~1
            data, self._rest = data[:even], data[even:]
        words = array("H", bytes(data))
        if sys.byteorder == "little":
            words.byteswap()
        self._second += len(words) * self._first + sum(accumulate(words))
        self._first += sum(words)

    def digest(self) -> bytes:
        if self._rest:
            self.update(b"\0")
        first, second = ((s - 1) % 65535 + 1 if s else 0 for s in (self._first, self._second))
        return (second << 16 | first).to_bytes(4, "little")
