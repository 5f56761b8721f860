"""Compressed pickles of joblib.dump(compress=…), decoded as a whole: only then their names can be judged."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from msgspec.structs import replace

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.decode import decode_pieces
from ckpt_tools.formats.common.format import HEAD, Anatomy, Damage, make_format, structure
from ckpt_tools.formats.pickles.judged import judge_without_joblib
from ckpt_tools.formats.pickles.pickle_plain import magic as is_pickle
from ckpt_tools.formats.pickles.pickle_plain import read_plain
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import ShortRead, Source

_PIECE = 1 << 18
_RATIO, _FLOOR = 64, 64 << 20
"""The most bytes that a file may decode into: _RATIO for each byte of the file, but _FLOOR at least."""
_MEMORY = 100 << 20
"""Bytes of memory that xz may use: its highest preset needs 65 MiB."""
_ZFILE = 21
"""Bytes before the zlib data of joblib before 0.10: "ZF" and the decoded size as text."""


class _Codec(NamedTuple):
    """One compression: the first bytes of its data, and a function that makes its decoder (None: unread)."""

    name: str
    magic: bytes
    decoder: Callable[[], Any] | None


_CODECS = (
    *(_Codec("zlib", bytes((0x78, level)), zlib.decompressobj) for level in (0x01, 0x5E, 0x9C, 0xDA)),
    _Codec("gzip", b"\x1f\x8b\x08", lambda: zlib.decompressobj(31)),
    _Codec("bz2", b"BZh", bz2.BZ2Decompressor),
    _Codec("xz", b"\xfd7zXZ\0", lambda: lzma.LZMADecompressor(memlimit=_MEMORY)),
    _Codec("lzma", b"\x5d\0\0", lambda: lzma.LZMADecompressor(memlimit=_MEMORY)),
    _Codec("ZF", b"ZF0x", zlib.decompressobj),
    _Codec("lz4", b"\x04\x22\x4d\x18", None),
)


def _find_codec(head: bytes) -> _Codec | None:
    """Return the compression that begins as ``head`` does, None if joblib has no such one."""
    return next((c for c in _CODECS if head.startswith(c.magic)), None)


def magic(head: bytes) -> bool:
    """Return whether ``head`` begins with the magic of a compression that joblib knows."""
    return _find_codec(head) is not None


class _Decoding:
    """Iterates over a file's decoded pieces; ``at`` is the file offset reached, ``damage`` what ended it."""

    def __init__(self, source: Source, codec: _Codec) -> None:
        self.source, self.codec = source, codec
        self.at = 0
        if codec.name == "ZF":  # Python 2 wrote one blank more
            self.at = _ZFILE + (source.size > _ZFILE and source.read(_ZFILE, 1) == b" ")
        self.damage: Damage | None = None

    def __iter__(self) -> Iterator[bytes]:
        decoder = self.codec.decoder() if self.codec.decoder else None
        while decoder and not decoder.eof:
            raw = self.source.read(self.at, min(_PIECE, max(0, self.source.size - self.at)))
            if not raw:
                self.damage = Damage("truncated", f"the {self.codec.name} data has no end", self.at)
                return
            try:
                yield from decode_pieces(decoder, raw, _PIECE)
            except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError) as e:
                why = f"the {self.codec.name} data does not decode: {e}"
                self.damage = Damage("bad-compression", why, self.at)
                return
            self.at += len(raw) - len(decoder.unused_data)


class _Decoded:
    """The decoded bytes of a file as a source, which must be read from its beginning on."""

    def __init__(self, decoding: _Decoding, size: int) -> None:
        self.decoding, self.path, self.size = decoding, decoding.source.path, size
        self.pieces, self.at, self.data = iter(decoding), 0, bytearray()

    @property
    def bytes_read(self) -> int:
        return self.decoding.source.bytes_read

    def read(self, offset: int, length: int) -> bytes:
        self._forget(offset)
        while self.at + len(self.data) < offset + length:
            piece = next(self.pieces, b"")
            if not piece:
                raise ShortRead(offset, length, max(0, self.at + len(self.data) - offset))
            self.data += piece
            self._forget(offset)
        return bytes(self.data[:length])

    def readinto(self, offset: int, buffer: memoryview) -> None:
        buffer[:] = self.read(offset, len(buffer))

    def _forget(self, offset: int) -> None:
        """Drop the decoded bytes before ``offset``."""
        before = min(max(offset - self.at, 0), len(self.data))
        del self.data[:before]
        self.at += before


def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Decode a file to its end, unless that is too much, then check the pickle in it. Raise Damage."""
    codec = _find_codec(source.read(0, min(HEAD, source.size)))
    if codec is None:
        raise Damage("bad-header", "the file does not begin like compressed data", 0)
    if codec.decoder is None:
        raise Damage("unread-pickle", f"{codec.name} data is not read here, so nobody knows what it names", 0)
    decoding = _Decoding(source, codec)
    size, most = 0, max(_RATIO * source.size, _FLOOR)
    for piece in decoding:
        size += len(piece)
        if size > most:
            why = f"{codec.name} data that decodes into more than {most:,} bytes is not read"
            raise Damage("unread-pickle", why, 0)
    if decoding.damage:
        yield decoding.damage.finding
    elif decoding.at < source.size:
        why = f"{source.size - decoding.at:,} bytes follow the {codec.name} data"
        yield finding("trailing-data", why, offset=decoding.at)
    what = f"{codec.name} data: its checksum, if it has one, covers what it decodes into"
    anatomy.explain(0, source.size, what, Guard.UNPROTECTED)
    if not is_pickle(_Decoded(_Decoding(source, codec), size).read(0, min(HEAD, size))):
        yield finding("wrong-format", f"the {codec.name} data is not a pickle", offset=0)
        return

    def check_pickle(decoded: Source, inner_anatomy: Anatomy) -> Iterator[Finding]:
        pickled = yield from read_plain(decoded, inner_anatomy)
        if pickled.unpadded_arrays:
            yield from judge_without_joblib(_Decoded(_Decoding(source, codec), size))

    inner = Anatomy()
    for f in structure(_Decoded(_Decoding(source, codec), size), inner, check_pickle):
        yield replace(f, offset=None)
    anatomy.named(inner)
    anatomy.keys |= inner.keys
    anatomy.metadata.update(inner.metadata)
    anatomy.tensors += (replace(t, offset=None) for t in inner.tensors)


FORMAT = make_format("joblib", magic, _structure, distinct=False, unasked=True)
