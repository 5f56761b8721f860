"""Ciphers over a Source, by the optional package cryptography: random access to the plaintext, and GCM tags
as checksums.

The key is in no message and in no repr. Facts: NIST SP 800-38A and 38D; RFC 5652 section 6.3 (PKCS#7
padding).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

from msgspec import Struct

from ckpt_tools.storage import ShortRead, Source

UNIT = 16
"""Bytes of a cipher block of AES and SM4."""
KEYS = {"AES": (16, 24, 32), "SM4": (16,)}
"""Numbers of bytes that a key may have."""


class Block(NamedTuple):
    """``size`` bytes of ciphertext at offset ``at``, encrypted as one message; the tag may be empty."""

    at: int
    size: int
    iv: bytes
    iv_at: int
    tag: bytes = b""
    tag_at: int = 0


class Scheme(Struct, frozen=True):
    """A cipher and its key: AES-CBC, SM4-CBC, or AES-GCM with the IV's first ``nonce`` bytes as nonce."""

    mode: str
    key: bytes
    nonce: int = 12

    def __repr__(self) -> str:
        return f"Scheme({self.mode!r})"  # a key is for no log

    @property
    def fits(self) -> bool:
        """Return whether the key has a valid length for the cipher."""
        return len(self.key) in KEYS[self.mode[:3]]


def _load_cipher(scheme: Scheme) -> tuple[Any, Any, Any]:
    """Return (Cipher, modes, the algorithm with its key) of cryptography. Raise ImportError without it."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    if scheme.mode.startswith("AES"):
        return Cipher, modes, algorithms.AES(scheme.key)
    try:  # newer releases move old ciphers there
        from cryptography.hazmat.decrepit.ciphers import algorithms as decrepit
    except ImportError:
        return Cipher, modes, algorithms.SM4(scheme.key)
    sm4 = getattr(decrepit, "SM4", None) or algorithms.SM4
    return Cipher, modes, sm4(scheme.key)


def find_missing(scheme: Scheme) -> str:
    """Return which package is missing to decrypt, "" if none."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm

        cipher, modes, algorithm = _load_cipher(scheme)
    except ImportError:
        return "the package cryptography (pip install 'ckpt-tools[encrypted]')"
    try:
        cipher(algorithm, modes.ECB()).decryptor()
    except UnsupportedAlgorithm:
        return f"a cryptography whose OpenSSL has {scheme.mode[:3]} (pip install 'ckpt-tools[encrypted]')"
    return ""


@lru_cache(maxsize=64)
def _find_first_counter(scheme: Scheme, iv: bytes) -> int:
    """Return the counter that encrypts the first cipher block of a GCM message (NIST SP 800-38D: J0 + 1)."""
    cipher, modes, algorithm = _load_cipher(scheme)
    stream = cipher(algorithm, modes.GCM(iv[: scheme.nonce])).encryptor().update(bytes(UNIT))
    return int.from_bytes(cipher(algorithm, modes.ECB()).decryptor().update(stream), "big")


def decrypt(source: Source, scheme: Scheme, block: Block, offset: int, length: int) -> bytes:
    """Return ``length`` bytes of plaintext and padding from ``offset`` in a block; read 47 more at most."""
    first, stop = offset // UNIT, min(block.size, -(-(offset + length) // UNIT) * UNIT)
    at, plain = first * UNIT, b""
    cipher, modes, algorithm = _load_cipher(scheme)
    if scheme.mode.endswith("GCM"):
        data, start = source.read(block.at + at, stop - at), _find_first_counter(scheme, block.iv)
        while data:
            low = (start + first) & 0xFFFFFFFF  # the counter of a cipher block has 32 bits
            n = ((1 << 32) - low) * UNIT
            nonce = (start >> 32 << 32 | low).to_bytes(UNIT, "big")
            plain += cipher(algorithm, modes.CTR(nonce)).decryptor().update(data[:n])
            first, data = first + (1 << 32) - low, data[n:]
    else:
        before = UNIT if first else 0
        raw = source.read(block.at + at - before, stop - at + before)
        iv = raw[:UNIT] if first else block.iv
        plain = cipher(algorithm, modes.CBC(iv)).decryptor().update(raw[before:])
    return bytes(plain[offset - at : offset - at + length])


def count_padding(source: Source, scheme: Scheme, block: Block) -> int:
    """Return the number of bytes of PKCS#7 padding at the end of a CBC block, 0 if there is none."""
    last = decrypt(source, scheme, block, block.size - UNIT, UNIT)
    n = last[-1]
    return n if 1 <= n <= UNIT and last.endswith(bytes([n]) * n) else 0


class Decrypted:
    """The plaintext of blocks as a Source, without their ``paddings``; a ShortRead counts so as well."""

    def __init__(
        self, source: Source, scheme: Scheme, blocks: Sequence[Block], paddings: Sequence[int]
    ) -> None:
        self.source, self.scheme, self.blocks = source, scheme, blocks
        self.path = source.path
        self.starts = [0, *accumulate(b.size - p for b, p in zip(blocks, paddings, strict=True))]
        self.size = self.starts[-1]

    @property
    def bytes_read(self) -> int:
        return self.source.bytes_read

    def place(self, offset: int) -> int:
        """Return the file offset of the ciphertext of the plaintext byte at ``offset``."""
        i = min(bisect_right(self.starts, offset) - 1, len(self.blocks) - 1)
        return self.blocks[i].at + offset - self.starts[i]

    def read(self, offset: int, length: int) -> bytes:
        if offset < 0 or offset + length > self.size:
            raise ShortRead(offset, length, max(0, self.size - offset))
        out = b""
        i = bisect_right(self.starts, offset) - 1
        while len(out) < length:
            at = offset + len(out) - self.starts[i]
            n = min(length - len(out), self.starts[i + 1] - self.starts[i] - at)
            out += decrypt(self.source, self.scheme, self.blocks[i], at, n)
            i += 1
        return out

    def readinto(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self.read(offset, len(buffer))


class Tag:
    """A GCM tag as a checksum of nonce and ciphertext; its digest is the tag, or b"" if the tag is wrong."""

    def __init__(self, scheme: Scheme, tag: bytes) -> None:
        self._scheme, self._tag, self._nonce = scheme, tag, b""
        self._decryptor: Any = None

    def update(self, data: memoryview | bytes, /) -> None:
        """Take the next bytes: first the nonce, then the ciphertext."""
        if self._decryptor is None:
            take = self._scheme.nonce - len(self._nonce)
            self._nonce, data = self._nonce + bytes(data[:take]), data[take:]
            if len(self._nonce) < self._scheme.nonce:
                return
            cipher, modes, algorithm = _load_cipher(self._scheme)
            self._decryptor = cipher(algorithm, modes.GCM(self._nonce)).decryptor()
        self._decryptor.update(data)

    def digest(self) -> bytes:
        """Return the tag if it is right for the data that were given, else b""."""
        from cryptography.exceptions import InvalidTag

        try:
            self._decryptor.finalize_with_tag(self._tag)
        except InvalidTag:
            return b""
        return self._tag


def is_noise(sample: bytes) -> bool:
    """Return whether all byte values are about equally frequent, as after decryption with a wrong key."""
    n, squares = len(sample), sum(c * c for c in Counter(sample).values())
    return n < UNIT or squares * 256 / n - n < 255 + 10 * (2 * 255) ** 0.5  # chi-square test
