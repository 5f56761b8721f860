"""The values of an OCDBT tree: which of them are the metadata of arrays, and so how the chunks beside those
are coded.

Facts: tensorstore 0.1.86, driver/zarr, driver/zarr3 (names of metadata and of chunks).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ckpt_tools.findings import finding
from ckpt_tools.formats.common.format import Damage
from ckpt_tools.formats.common.json_text import mapping, parse
from ckpt_tools.formats.tensorstore.ocdbt_nodes import Far
from ckpt_tools.formats.tensorstore.zarr_array import Array, Coding, array_of
from ckpt_tools.model.finding import Finding

_ARRAYS = (b".zarray", b"zarr.json")


class Value(NamedTuple):
    """A value in a data file: a chunk when ``coding`` is known."""

    offset: int
    length: int
    key: str
    coding: Coding | None


def arrays_in(leaves: Iterable[tuple[bytes, bytes]]) -> dict[str, Array | None]:
    """The arrays whose metadata lies inline in a leaf, by name; None for groups, and for what only is called
    like metadata (a CRC-32C covers it).
    """
    out: dict[str, Array | None] = {}
    known: dict[bytes, Array | None] = {}  # most arrays of a model look like many others
    for key, inline in leaves:
        name, _, last = key.rpartition(b"/")
        if last in _ARRAYS:
            if inline not in known:
                try:
                    known[inline] = array_of(mapping(parse(inline, [])))
                except Damage:
                    known[inline] = None
            out[_text(name)] = known[inline]
    return out


def _text(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")


def values_of(far: Iterable[Far], arrays: dict[str, Array | None]) -> Iterator[tuple[str, Value]]:
    """Values in files, each with the coding of the nearest array above it."""
    codings: dict[str, Coding | None] = {}
    for key, file, offset, length in far:
        name = _text(key)
        above = name.rpartition("/")[0]
        if above not in codings:
            parents = [above.rsplit("/", i)[0] for i in range(min(40, above.count("/") + 1))]
            found = next((a for p in parents if (a := arrays.get(p)) is not None), None)
            codings[above] = found.coding if found else None
        yield (
            file.path,
            Value(offset, length, name, None if key.rpartition(b"/")[2] in _ARRAYS else codings[above]),
        )


def apart(values: Iterable[Value]) -> Iterator[Value | Finding]:
    """Each place once, as bytes that many values claim would be read as often: a copied key names a chunk
    again, but none lies over another.
    """
    end, first = 0, None
    for v in sorted(values, key=lambda v: (v.offset, v.length, v.coding is None, v.key)):
        what = f"the value of {v.key[:200]!r}"
        if first is None or v[:2] != first[:2]:
            if v.offset < end and v.length:
                yield finding("bad-header", f"{what} lies over another, which ends at {end}", offset=v.offset)
                continue
            end, first = max(end, v.offset + v.length), v
            yield v
        elif v.coding not in (None, first.coding):
            yield finding(
                "bad-header",
                f"{what} is also that of {first.key[:200]!r}, whose array is coded otherwise",
                offset=v.offset,
            )
