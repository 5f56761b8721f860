"""CRC-32C of the two kinds of tensor whose elements vary in length: it covers the lengths as numbers, not as
the varints that hold them.

    string:  length … | checksum of the lengths | bytes …          (lengths as u32; u64 from 4 GiB on)
    variant: (length | bytes | checksum of all so far) …            (lengths as u64)

Both are read from front to back in bounded memory. Facts: WriteStringTensor, WriteVariantTensor in
tensor_bundle.cc of TensorFlow 1.12 to 2.21;
checked against real files.
"""

from __future__ import annotations

import struct

from ckpt_tools.checksum import Crc32c
from ckpt_tools.formats.tensorflow.wire import unmasked


class _Elements:
    """What the two have in common. A stream that cannot be one of its kind has an empty digest, which no
    stored checksum equals.
    """

    def __init__(self, count: int, order: str) -> None:
        self.left, self.crc, self.bad = count, Crc32c(), False
        self.length = self.shift = 0
        self.check = b""
        self.order = "<" if order == "little" else ">"

    def digest(self) -> int | bytes:
        return b"" if self.bad or not self.done() else self.crc.digest()

    def done(self) -> bool:
        raise NotImplementedError

    def varint(self, byte: int) -> bool:
        """Take one more byte of a length; whether that was its last one."""
        self.length |= (byte & 0x7F) << self.shift
        self.shift += 7
        if byte >= 0x80:
            self.bad = self.bad or self.shift > 63
            return False
        self.bad = self.bad or self.length >> 64 > 0 or (self.shift > 7 and not byte)
        self.shift = 0
        return True

    def checksum(self, data: bytes) -> int:
        """Take the bytes of a checksum; how many those were. It covers what came before it, and is itself
        covered.
        """
        take = data[: 4 - len(self.check)]
        self.check += take
        if len(self.check) == 4:
            self.bad = (
                self.bad or unmasked(struct.unpack(self.order + "I", self.check)[0]) != self.crc.digest()
            )
            self.crc.update(self.check)
        return len(take)


class StringCrc(_Elements):
    """``count`` strings; ``order`` is "little" or "big"."""

    total = 0

    def update(self, data: memoryview | bytes, /) -> None:
        data, at, lengths = bytes(data), 0, bytearray()
        while self.left and at < len(data) and not self.bad:
            if self.varint(data[at]) and not self.bad:
                lengths += struct.pack(self.order + ("Q" if self.length >> 32 else "I"), self.length)
                self.total, self.length, self.left = self.total + self.length, 0, self.left - 1
            at += 1
        self.crc.update(bytes(lengths))
        if self.bad or self.left:
            return
        if len(self.check) < 4:
            at += self.checksum(data[at:])
        self.crc.update(data[at:])
        self.total -= len(data) - at

    def done(self) -> bool:
        return not self.left and len(self.check) == 4 and not self.total


class VariantCrc(_Elements):
    """``count`` variants; ``order`` is "little" or "big"."""

    body = False

    def update(self, data: memoryview | bytes, /) -> None:
        data, at = bytes(data), 0
        while at < len(data) and not self.bad:
            if not self.left:
                self.bad = True
            elif not self.body:
                if self.varint(data[at]) and not self.bad:
                    self.body = True
                    self.crc.update(struct.pack(self.order + "Q", self.length))
                at += 1
            elif self.length:
                part = data[at : at + self.length]
                self.crc.update(part)
                self.length, at = self.length - len(part), at + len(part)
            else:
                at += self.checksum(data[at : at + 4])
                if len(self.check) == 4:
                    self.check, self.body, self.left = b"", False, self.left - 1

    def done(self) -> bool:
        return not self.left and not self.body and not self.shift
