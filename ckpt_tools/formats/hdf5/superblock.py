"""HDF5's superblock, versions 0 to 3: where the file ends, and where its root group is."""

from __future__ import annotations

import struct
from typing import NamedTuple

from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.formats.hdf5.blocks import UNDEFINED
from ckpt_tools.formats.hdf5.checksums import lookup3
from ckpt_tools.formats.hdf5.old_groups import Ranks
from ckpt_tools.model.report import Guard
from ckpt_tools.storage import Source

MAGIC = b"\x89HDF\r\n\x1a\n"
_RANKS = Ranks(leaf=4, group=16, chunks=32)
"""What they are unless the file says otherwise."""


class Superblock(NamedTuple):
    """What it says: its version, its own bytes, the file's, the addresses of the root group and of its own
    extension, and what the entry of the root group remembers of it.
    """

    version: int
    size: int
    end: int
    root: int
    extension: int
    ranks: Ranks
    cached: bytes = b""
    open_for: int = 0
    """Flags that a writer sets, and clears when it closes the file."""


def superblock(source: Source, anatomy: Anatomy) -> Superblock:
    """Read the superblock. Raises Damage."""
    head = source.read(0, min(source.size, 104))
    start, size = _frame(head, source.size)
    base, second, end = struct.unpack_from("<QQQ", head, start)
    if base or (second != UNDEFINED and second >= end) or not size <= end < 1 << 62:
        raise Damage("bad-header", "the addresses in the superblock contradict each other", start)
    if end > source.size:
        why = f"the superblock says that the file ends at byte {end}; it has {source.size}"
        raise Damage("truncated", why, source.size)
    anatomy.metadata["superblock"] = version = head[8]
    if version >= 2:
        anatomy.explain(0, size, "superblock, under its own checksum")
        (root,) = struct.unpack_from("<Q", head, start + 24)
        return Superblock(version, size, end, root, second, _RANKS, open_for=head[11] if version == 3 else 0)
    anatomy.explain(0, 16, "superblock: signature, versions, sizes")
    anatomy.explain(16, start - 16, "superblock: ranks of its trees, flags", Guard.UNPROTECTED)
    anatomy.explain(start, 24, "superblock: where the file begins and ends")
    anatomy.explain(start + 24, size - start - 24, "superblock: root group", Guard.UNPROTECTED)
    leaf, group, _, chunks = struct.unpack_from("<HHIH", head, 16)
    root, cached = struct.unpack_from("<QI", head, start + 40)
    ranks = Ranks(leaf, group, chunks if version else _RANKS.chunks)
    return Superblock(
        version, size, end, root, UNDEFINED, ranks, head[start + 56 : start + 72] if cached == 1 else b""
    )


def _frame(head: bytes, total: int) -> tuple[int, int]:
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
