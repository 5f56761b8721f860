"""Archives that people pack by hand, which begin like the archives of frameworks."""

from __future__ import annotations

from collections.abc import Iterator

from ckpt_tools.formats.archives.tar import NAMES
from ckpt_tools.storage import Source

BEGINNING = 4096
ENDING = 1 << 16
"""Bytes at the end of a zip in which the names of its members are looked for."""
_NAME = 30
"""The offset of the first record's name in a zip; its length is at offset 26 (APPNOTE 4.3.7)."""
_ZIP = b"PK\3\4"
_END = b"PK\5\6"
_ENTRY = b"PK\1\2"
_ENTRY_NAME = 46
"""The offset of the name in an entry of a zip's directory; its length is at offset 28 (APPNOTE 4.3.12)."""
_PAX = b"././@PaxHeader"
_BLOCK = 512


def is_hand_made(source: Source, head: bytes) -> bool:
    """Return whether a file is a zip that begins with a folder, or a tar without torch's members."""
    if not head.startswith((_ZIP, _PAX)):
        return False
    beginning = source.read(0, min(source.size, BEGINNING))
    if beginning.startswith(_ZIP):
        return read_first(beginning).endswith(b"/")
    return not has_member_of_torch(beginning)


def read_first(beginning: bytes) -> bytes:
    """Return the name of a zip's first record."""
    return beginning[_NAME : _NAME + int.from_bytes(beginning[26:28], "little")]


def has_member_of_torch(beginning: bytes) -> bool:
    """Return whether one of a tar's first headers has the name of a member of torch's."""
    names = (beginning[at : at + 100].partition(b"\0")[0] for at in range(0, len(beginning), _BLOCK))
    return any(name.decode("latin-1") in NAMES for name in names)


def read_names(ending: bytes) -> Iterator[str]:
    """Yield the names of the directory's entries in the last bytes of a zip."""
    at = ending.find(_ENTRY)
    while at >= 0:
        length = int.from_bytes(ending[at + 28 : at + 30], "little")
        yield ending[at + _ENTRY_NAME : at + _ENTRY_NAME + length].decode("utf-8", "replace")
        at = ending.find(_ENTRY, at + _ENTRY_NAME + length)


def is_whole(ending: bytes) -> bool:
    """Return whether the last bytes of a zip have its end record; else it was cut: its directory is lost."""
    return _END in ending
