"""What is left of a torch.save archive that lost its end: the pickle is its first record."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ckpt_tools.formats.common.format import Anatomy, Damage
from ckpt_tools.formats.pickles.judged import read_judged
from ckpt_tools.formats.pickles.scalars import scalars
from ckpt_tools.model.finding import Finding
from ckpt_tools.storage import Source

_HEADER, _LONGEST = 30, 4096
"""Bytes of a local file header before its name, and of name and extra field at most."""


def keys_of_cut(source: Source) -> frozenset[str]:
    """The names at the top of the state; none where the pickle is damaged as well, or is not first.

    torch/serialization.py (_save) writes data.pkl before all storages. Raises OSError and ShortRead.
    """
    head = source.read(0, min(source.size, _HEADER + _LONGEST))
    name, extra = (int.from_bytes(head[at : at + 2], "little") for at in (26, 28))
    stored = head[:4] == b"PK\3\4" and head[8:10] == b"\0\0"
    if not stored or not head[_HEADER : _HEADER + name].endswith(b"/data.pkl"):
        return frozenset()
    anatomy = Anatomy()
    try:
        deque(_read(source, _HEADER + name + extra, anatomy), maxlen=0)
    except Damage:
        return frozenset()
    return frozenset(anatomy.keys)


def _read(source: Source, start: int, anatomy: Anatomy) -> Iterator[Finding]:
    pickled = yield from read_judged(source, start, source.size, anatomy)
    scalars(pickled.value, anatomy)
