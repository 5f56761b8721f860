"""What the elements of an HDF5 array are, and how many: the datatype and the dataspace message."""

from __future__ import annotations

from typing import NamedTuple

from ckpt_tools.formats.hdf5.blocks import Fields

(
    _INTEGER,
    _FLOAT,
    _TIME,
    _STRING,
    _BITS,
    _OPAQUE,
    _COMPOUND,
    _REFERENCE,
    _ENUM,
    _VARIABLE,
    _ARRAY,
    _COMPLEX,
) = range(12)
_BUILT = (_COMPOUND, _ENUM, _VARIABLE, _ARRAY)
_NAMED = {_TIME: "time", _STRING: "bytes", _BITS: "bitfield", _OPAQUE: "opaque", _REFERENCE: "reference"}
_FLOATS = {(2, 5): "float16", (2, 8): "bfloat16", (4, 8): "float32", (8, 11): "float64"}
_FLOATS |= {(1, 5): "float8_e5m2", (1, 4): "float8_e4m3fn"}
MAX_RANK = 32


class Elements(NamedTuple):
    """A type of elements by the name that other formats give it, and the bytes of one. ``variable``: what is
    in the array only says where in the file the elements lie.
    """

    name: str
    size: int
    variable: bool = False


def elements(f: Fields) -> Elements:
    """The type in a datatype message. Raises Damage."""
    head, low, middle, _ = f.numbers(1, 1, 1, 1)
    kind, version, size = head & 15, head >> 4, f.number(4)
    if not 1 <= version <= 5 or kind > _COMPLEX or not size:
        raise f.wrong(f"class {kind}, version {version}, {size} bytes")
    if kind in _BUILT:
        return _built(f, kind, size, low + 256 * middle)
    if kind == _COMPLEX:
        return Elements(f"complex{8 * size}", size)
    if kind not in (_INTEGER, _FLOAT):
        return Elements(f"{_NAMED[kind]}{size}", size)
    order = "big-endian " if low & 1 and size > 1 else ""
    if kind == _INTEGER:
        return Elements(f"{order}{'' if low & 8 else 'u'}int{8 * size}", size)
    exponent = f.numbers(2, 2, 1, 1)[3]
    return Elements(order + _FLOATS.get((size, exponent), f"float{8 * size}e{exponent}"), size)


def _built(f: Fields, kind: int, size: int, bits: int) -> Elements:
    """A type that is made of others."""
    if kind == _ENUM:  # h5py keeps truth values as an enumeration of two
        if f.data[f.at : f.at + 1] and f.data[f.at] & 15 != _INTEGER:
            raise f.wrong("an enumeration of what is no integer")
        base = elements(f)
        return Elements("bool" if size == 1 and bits == 2 else base.name, size)
    if kind == _VARIABLE:
        return Elements("string" if bits & 15 == 1 else "variable length", size, variable=True)
    return Elements(_complex(f, size) if kind == _COMPOUND else "array", size)


def _complex(f: Fields, size: int) -> str:
    """h5py keeps complex numbers as pairs called r and i."""
    pair = f.data[f.at :].startswith(b"r\0") and b"i\0" in f.data
    return f"complex{8 * size}" if pair and size in (8, 16) else f"compound{size}"


class Space(NamedTuple):
    """The shape of an array, and the largest it may grow to."""

    shape: tuple[int, ...]
    most: tuple[int, ...]


def space(f: Fields) -> Space:
    """The shapes in a dataspace message; one without any element is (0,). Raises Damage."""
    version, rank, flags = f.numbers(1, 1, 1)
    kind = f.number(5) and 0 if version == 1 else f.number(1)
    if version not in (1, 2) or rank > MAX_RANK or kind > 2:
        raise f.wrong(f"version {version}, rank {rank}, kind {kind}")
    if kind == 2:
        return Space((0,), (0,))
    now = tuple(f.numbers(*[8] * rank))
    return Space(now, tuple(f.numbers(*[8] * rank)) if flags & 1 else now)
