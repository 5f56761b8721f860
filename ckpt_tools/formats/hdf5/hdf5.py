"""HDF5, as Keras writes ``.weights.h5``: the superblock, which says where the file ends. What lies behind it
is not interpreted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Anatomy, Damage, Format
from ckpt_tools.model.finding import Finding
from ckpt_tools.model.report import Guard, Level
from ckpt_tools.storage import Source

MAGIC = b"\x89HDF\r\n\x1a\n"
_NONE = (1 << 64) - 1  # HADDR_UNDEF
_MASK = (1 << 32) - 1


def lookup3(data: bytes) -> int:
    """Bob Jenkins' lookup3 (hashlittle, initial value 0) of at most a few hundred bytes: the checksum of
    HDF5's metadata.
    """

    def rot(x: int, k: int) -> int:
        return ((x << k) | (x >> (32 - k))) & _MASK

    a = b = c = (0xDEADBEEF + len(data)) & _MASK
    if not data:
        return c
    words = [
        int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4)
    ]  # a short last word is padded with zeros
    words += [0] * (-len(words) % 3)
    for i in range(0, len(words) - 3, 3):
        a, b, c = (a + words[i]) & _MASK, (b + words[i + 1]) & _MASK, (c + words[i + 2]) & _MASK
        for k in (4, 6, 8, 16, 19, 4):  # each step mixes c into a and moves on: (a, b, c) -> (b, c, a)
            a, c = ((a - c) & _MASK) ^ rot(c, k), (c + b) & _MASK
            a, b, c = b, c, a
    a, b, c = (a + words[-3]) & _MASK, (b + words[-2]) & _MASK, (c + words[-1]) & _MASK
    for k in (14, 11, 25, 16, 4, 14, 24):
        c = ((c ^ b) - rot(b, k)) & _MASK
        a, b, c = b, c, a
    return b


def _structure(source: Source, anatomy: Anatomy) -> Iterator[Finding]:
    head = source.read(0, min(source.size, 104))
    start, size = _superblock(head, source.size)
    base, second, end = struct.unpack_from("<QQQ", head, start)
    if base or (second != _NONE and second >= end) or not size <= end < 1 << 62:
        raise Damage("bad-header", "the addresses in the superblock contradict each other", start)
    if end > source.size:
        why = f"the superblock says that the file ends at byte {end}; it has {source.size}"
        raise Damage("truncated", why, source.size)
    if end < source.size:
        why = f"{source.size - end} bytes follow the end that the superblock names"
        yield finding("trailing-data", why, offset=end)
    yield finding("not-checksummed", "HDF5 keeps no checksum over its arrays")
    version = head[8]
    anatomy.metadata["superblock"] = version
    if version < 2:
        anatomy.explain(0, 16, "superblock: signature, versions, sizes")
        anatomy.explain(16, start - 16, "superblock: ranks of its trees, flags", Guard.UNPROTECTED)
        anatomy.explain(start, 24, "superblock: where the file begins and ends")
        anatomy.explain(start + 24, size - start - 24, "superblock: root group", Guard.UNPROTECTED)
    else:
        anatomy.explain(0, size, "superblock, under its own checksum")
    anatomy.explain(size, end - size, "groups and arrays", Guard.UNPROTECTED)


def _superblock(head: bytes, total: int) -> tuple[int, int]:
    """Where the addresses in the superblock begin, and how many bytes it has. Raises Damage."""
    short = Damage("truncated", f"the file has {total} bytes, less than its superblock", total)
    if len(head) < 48:
        raise short
    if not head.startswith(MAGIC):
        raise Damage("bad-header", "the file does not begin with HDF5's signature", 0)
    version = head[8]
    if version in (0, 1):
        start = 24 + 4 * version
        size = start + 72  # four addresses and the entry of the root group
        good = not any((head[9], head[10], head[11], head[12], head[15])) and head[13:15] == b"\x08\x08"
    elif version in (2, 3):
        start, size = 12, 48
        good = head[9:11] == b"\x08\x08"
        if lookup3(head[:44]) != int.from_bytes(head[44:48], "little"):
            raise Damage("crc-mismatch", "the superblock differs from its checksum", 0)
    else:
        raise Damage("bad-header", f"superblock version {version} is not known", 8)
    if not good:
        raise Damage("bad-header", "a field of the superblock has a value that the library never writes", 9)
    if len(head) < size:
        raise short
    return start, size


FORMAT = Format(
    name="hdf5",
    suffixes=(".h5", ".hdf5"),
    magic=lambda head: head.startswith(MAGIC),
    checks={Level.STRUCTURE: _structure},
    protects="the superblock names the end of the file; versions 2 and 3 carry a checksum over it",
    limits=(
        "groups and arrays are not interpreted",
        "no checksum covers the arrays unless a writer asked for Fletcher-32",
    ),
    reference="HDF5 File Format Specification 3.0, II.A Superblock; H5checksum.c (lookup3)",
    loader="",
)
