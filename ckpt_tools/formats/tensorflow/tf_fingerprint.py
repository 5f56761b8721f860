"""``fingerprint.pb`` beside ``saved_model.pb``: hashes that tell which files belong to one export.

Facts: tensorflow/core/protobuf/fingerprint.proto, cc/saved_model/fingerprinting.cc of TensorFlow 2.21:
``checkpoint_hash`` is the hash of the bytes of ``variables.index``; the other hashes cover parts of the model
that only TensorFlow can put into their canonical form.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Claim, Damage, make_format
from ckpt_tools.formats.common.protobuf import Reader
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source

# ---- FarmHash's Fingerprint64 (farmhashna::Hash64), by which TensorFlow fingerprints the files of a model;
# here only for more than 64 bytes, as every index has more. Facts: google/farmhash src/farmhash.cc.

_MASK = (1 << 64) - 1
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F


class _State(NamedTuple):
    x: int
    y: int
    z: int
    v: tuple[int, int]
    w: tuple[int, int]


def _rotate(value: int, shift: int) -> int:
    """Return a 64-bit number rotated to the right by ``shift`` bits."""
    value &= _MASK
    return (value >> shift | value << (64 - shift)) & _MASK


def _shift_mix(value: int) -> int:
    """Return FarmHash's ShiftMix of the lowest 64 bits."""
    value &= _MASK
    return value ^ value >> 47


def _hash_16(u: int, v: int, mul: int) -> int:
    """Return FarmHash's HashLen16 of two 64-bit numbers."""
    a = _shift_mix((u ^ v) * mul)
    return _shift_mix((v ^ a) * mul) * mul & _MASK


def _weak_hash_32(words: tuple[int, ...], a: int, b: int) -> tuple[int, int]:
    """Return FarmHash's WeakHashLen32WithSeeds: the hash of four 64-bit words with two seeds."""
    a += words[0]
    c = a
    b = _rotate(b + a + words[3], 21)
    a += words[1] + words[2]
    return a + words[3] & _MASK, b + _rotate(a, 44) + c & _MASK


def _add_round(s: _State, words: tuple[int, ...], mul: int, factor: int) -> _State:
    """Mix 64 bytes (``words``) into the state; ``factor`` is 9 for the last 64 bytes, else 1."""
    x = _rotate(s.x + s.y + s.v[0] + words[1], 37) * mul
    y = _rotate(s.y + s.v[1] + words[6], 42) * mul
    x = (x ^ s.w[1] * factor) & _MASK
    y = y + s.v[0] * factor + words[5] & _MASK
    z = _rotate(s.z + s.w[0], 33) * mul & _MASK
    v = _weak_hash_32(words[:4], s.v[1] * mul, x + s.w[0])
    w = _weak_hash_32(words[4:], z + s.w[1], y + words[2])
    return _State(z, y, x, v, w)


def fingerprint64(data: bytes) -> int:
    """Return the fingerprint of data, 0 for up to 64 bytes; about 100 KB take a tenth of a second."""
    size = len(data)
    if size <= 64:
        return 0
    y, (first,) = 81 * _K1 + 113 & _MASK, struct.unpack_from("<Q", data)
    s = _State(81 * _K2 + first & _MASK, y, _shift_mix(y * _K2 + 113) * _K2 & _MASK, (0, 0), (0, 0))
    for at in range(0, (size - 1) // 64 * 64, 64):
        s = _add_round(s, struct.unpack_from("<8Q", data, at), _K1, 1)
    mul = _K1 + ((s.z & 0xFF) << 1)
    first = s.w[0] + (size - 1 & 63)
    v = s.v[0] + first & _MASK
    s = s._replace(v=(v, s.v[1]), w=(first + v & _MASK, s.w[1]))
    s = _add_round(s, struct.unpack_from("<8Q", data, size - 64), mul, 9)
    low = _hash_16(s.v[0], s.w[0], mul) + _shift_mix(s.y) * _K0 + s.z
    return _hash_16(low & _MASK, _hash_16(s.v[1], s.w[1], mul) + s.x & _MASK, mul)


_BEGIN = re.compile(rb"\x08[\x80-\xff]{0,9}[\x00-\x7f]\x10", re.DOTALL)
_NAMES = {
    1: "saved_model_checksum",
    2: "graph_def_program_hash",
    3: "signature_def_hash",
    4: "saved_object_graph_hash",
    5: "checkpoint_hash",
}
_VERSION, _LARGEST = 7, 4096
_INDEX, _MAX_INDEX = "variables/variables.index", 2 << 20


def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    """Read the hashes; ``anatomy.members`` gets a claim that compares ``variables.index`` with its hash."""
    if not source.size:
        raise Damage("empty-file", "the file has no bytes", 0)
    if source.size > _LARGEST:
        raise Damage("too-complex", f"a fingerprint of {source.size} bytes", 0)
    hashes, version = dict[str, int](), False
    for f in Reader(source).every(0, source.size, "truncated"):
        version = version or f.number == _VERSION
        if f.number in _NAMES and not f.packed:
            hashes[_NAMES[f.number]] = f.value
    if not version:
        raise Damage("truncated", f"it ends at byte {source.size} and has no version", source.size)
    anatomy.metadata |= {name: f"{value:016x}" for name, value in hashes.items()}
    if expected := hashes.get("checkpoint_hash"):
        anatomy.members[_INDEX] = Claim(FORMAT.name, partial(_check_index, expected), optional=True)
    anatomy.explain(0, source.size, "hashes: one of them is compared", Guard.UNPROTECTED)
    yield from ()


def _check_index(expected: int, source: Source, _anatomy: Anatomy) -> Iterator[Finding]:
    """Check that the index of the variables has the fingerprint ``expected``; a large index is not read."""
    if source.size <= _MAX_INDEX and (computed := fingerprint64(source.read(0, source.size))) != expected:
        why = f"fingerprint.pb beside the model says {expected:016x} of this file, it has {computed:016x}"
        yield finding("crc-mismatch", f"{why}: of another export, or damaged", offset=0)


FORMAT = make_format(
    "tf_fingerprint", lambda head: bool(_BEGIN.match(head)), _structure, distinct=False, loader=None
)
