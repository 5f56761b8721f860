"""Archives that people pack, which begin as those of frameworks do."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_tools.formats.archives.tar import NAMES
from ckpt_tools.storage import Source

BEGINNING = 4096
ENDING = 1 << 16
"""Bytes from the end on in which the names of a zip's members are looked for."""
_NAME = 30
"""Where a zip has the name of its first record, whose length is in the four bytes before that of an extra
field (APPNOTE 4.3.7).
"""
_ZIP = b"PK\3\4"
_END = b"PK\5\6"
_ENTRY = b"PK\1\2"
_ENTRY_NAME = 46
"""Where an entry of a zip's directory has its name, whose length is 18 bytes before (APPNOTE 4.3.12)."""
_PAX = b"././@PaxHeader"
_BLOCK = 512


def is_hand_made(source: Source, head: bytes) -> bool:
    """A zip whose first record is a directory, or a tar without a member of torch's at its beginning."""
    if not head.startswith((_ZIP, _PAX)):
        return False
    begins = source.read(0, min(source.size, BEGINNING))
    if begins.startswith(_ZIP):
        return first_name(begins).endswith(b"/")
    return not has_member_of_torch(begins)


def first_name(begins: bytes) -> bytes:
    """The name of a zip's first record."""
    return begins[_NAME : _NAME + int.from_bytes(begins[26:28], "little")]


def has_member_of_torch(begins: bytes) -> bool:
    """Whether a tar begins with a member of torch's."""
    blocks = (begins[at : at + 100].partition(b"\0")[0] for at in range(0, len(begins), _BLOCK))
    return any(name.decode("latin-1") in NAMES for name in blocks)


def names_at(ends: bytes) -> Iterator[str]:
    """The names in what is there of a zip's directory, which is its end."""
    at = ends.find(_ENTRY)
    while at >= 0:
        length = int.from_bytes(ends[at + 28 : at + 30], "little")
        yield ends[at + _ENTRY_NAME : at + _ENTRY_NAME + length].decode("utf-8", "replace")
        at = ends.find(_ENTRY, at + _ENTRY_NAME + length)


def is_whole(ends: bytes) -> bool:
    """Whether that is the end of a zip: of one that was cut nobody knows what was in it."""
    return _END in ends
