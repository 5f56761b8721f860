"""The header of an array as numpy.save writes it: a Python literal of type, order and shape. It is parsed and
never evaluated.

Facts: numpy/lib/_format_impl.py of NumPy 2.4 (``_write_array_header``, ``_read_array_header``).
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ckpt_tools.formats.common.format import Damage

_TOKEN = re.compile(
    r"""\ *(?:[ub]?(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
    r"""|(?P<number>(?:0|[1-9]\d{0,19})(?![\dA-KM-Za-z_])L?)|(?P<word>True|False)|(?P<mark>[\[\](){},:]))"""
)
_DEEP = 32
"""Levels of nested records at most."""
_CLOSES = {"[": "]", "(": ")"}
_KEYS = {"descr", "fortran_order", "shape"}
_DIMENSIONS = 64
HUGE = 1 << 62
_SIZES = {"int": (1, 2, 4, 8), "uint": (1, 2, 4, 8), "float": (2, 4, 8, 12, 16), "complex": (8, 16, 24, 32)}
_NUMBERS = {
    "b1": "bool",
    **{f"{kind[0]}{n}": f"{kind}{8 * n}" for kind, sizes in _SIZES.items() for n in sizes},
}
_TEXTS = {"S": 1, "a": 1, "V": 1, "U": 4}
"""Kinds of text, and their bytes for each character."""
_TYPE = re.compile(r"([<>=|]?)([a-zA-Z])(\d{0,18})(\[\w+(?:/\d+)?\])?")


class Element(NamedTuple):
    """The type of an array's elements: ``size`` is in bytes, ``objects`` is True for Python objects."""

    name: str
    size: int
    objects: bool = False


class Header(NamedTuple):
    """One header. ``is_canonical``: its text is exactly as NumPy writes it. ``descr`` is text[start:stop]."""

    element: Element
    fortran: bool
    shape: tuple[int, ...]
    is_canonical: bool
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Bytes of all elements; HUGE for more than any file has."""
        total = self.element.size
        for n in self.shape:
            total = min(total * n, HUGE)
        return 0 if 0 in self.shape else total


class _Literal:
    """A Python literal, read token by token; ``offset`` is the place of ``text`` in the file."""

    def __init__(self, text: str, offset: int) -> None:
        self.text, self.at, self.offset = text, 0, offset

    def make_damage(self, why: str) -> Damage:
        return Damage("bad-header", f"the header of an array {why}", self.offset + self.at)

    def skip(self, mark: str) -> bool:
        """Skip a mark if it is the next token; return True if it was."""
        found = _TOKEN.match(self.text, self.at)
        if found is None or found["mark"] != mark:
            return False
        self.at = found.end()
        return True

    def expect(self, mark: str) -> None:
        """Skip a mark. Raise Damage unless it is the next token."""
        if not self.skip(mark):
            raise self.make_damage(f"has no {mark!r} where one belongs")

    def read_value(self, depth: int = 0) -> Any:
        """Read a text, number, truth value, tuple or list of at most ``_DEEP`` levels. Raises Damage."""
        found = _TOKEN.match(self.text, self.at)
        if found is None:
            raise self.make_damage("is no Python literal")
        self.at = found.end()
        text, number, word, bracket = found.groups()
        if text is not None:
            return text[1:-1]
        if number is not None:
            return int(number.rstrip("L"))
        if word is not None:
            return word == "True"
        if bracket not in _CLOSES or depth >= _DEEP:
            raise self.make_damage("is nested in a way that NumPy does not write")
        out, comma = [], True
        while not self.skip(_CLOSES[bracket]):
            if not comma:
                raise self.make_damage("has no comma between two values")
            out.append(self.read_value(depth + 1))
            comma = self.skip(",")
        if bracket == "(" and len(out) == 1 and not comma:
            return out[0]
        return out if bracket == "[" else tuple(out)


def read_header(text: str, offset: int) -> Header:
    """Parse the text of a header, which lies at ``offset`` of the file. Raises Damage."""
    literal = _Literal(text, offset)
    entries: dict[str, Any] = {}
    literal.expect("{")
    start = stop = 0
    while not literal.skip("}"):
        key = literal.read_value()
        if type(key) is not str or key not in _KEYS or key in entries:
            why = "has a key that is not one of descr, fortran_order and shape, or one twice"
            raise literal.make_damage(why)
        literal.expect(":")
        begins = literal.at
        entries[key] = literal.read_value()
        if key == "descr":
            start, stop = begins, literal.at
        if not literal.skip(",") and text[literal.at : literal.at + 1] != "}":
            raise literal.make_damage("has no comma between two entries")
    padding = text[literal.at :]
    if padding.strip(" ") not in ("", "\n") or entries.keys() != _KEYS:
        raise literal.make_damage("does not end after descr, fortran_order and shape")
    shape, fortran = entries["shape"], entries["fortran_order"]
    if type(fortran) is not bool or not _is_shape(shape):
        raise literal.make_damage("gives no order or no shape")
    element = _read_element(entries["descr"], literal)
    canonical = "{" + "".join(f"{key!r}: {entries[key]!r}, " for key in sorted(entries)) + "}"
    is_canonical = canonical == text[: literal.at] and padding.endswith("\n")
    return Header(element, fortran, shape, is_canonical, start, stop)


def _is_shape(value: Any) -> bool:
    """Return whether a value is a tuple of lengths; the parser reads no negative number."""
    is_tuple = type(value) is tuple and len(value) <= _DIMENSIONS
    return is_tuple and all(type(n) is int and n < HUGE for n in value)


def _read_element(descr: Any, literal: _Literal) -> Element:
    """Return the type that a ``descr`` gives: a text, or the list of a record's fields. Raises Damage."""
    if type(descr) is str:
        if (element := element_of(descr)) is None:
            raise literal.make_damage(f"has the type {descr[:40]!r}, which NumPy does not have")
        return element
    if type(descr) is not list:
        raise literal.make_damage("has a type that is neither a text nor a list of fields")
    fields = list[Element]()
    for field in descr:  # (name, type) or (name, type, shape); the name may be a pair with its title
        if type(field) is not tuple or len(field) not in (2, 3):
            raise literal.make_damage("has a field that is not a name and a type")
        shape = field[2] if len(field) == 3 else ()
        shape = (shape,) if type(shape) is int else shape
        if not _is_shape(shape):
            raise literal.make_damage("has a field of no shape")
        element = _read_element(field[1], literal)
        fields.append(element._replace(size=Header(element, False, shape, False, 0, 0).nbytes))
    size = min(sum(f.size for f in fields), HUGE)
    return Element(f"V{size}", size, any(f.objects for f in fields))


def element_of(descr: str) -> Element | None:
    """Return the type of a text such as ``<f4``; None if NumPy has no such type."""
    found = _TYPE.fullmatch(descr)
    if found is None:
        return None
    order, kind, digits, unit = found.groups()
    size = int(digits or 0)
    if kind == "O":
        return Element("object", 8, True)
    if kind in "mM" and size == 8:
        return Element(descr, size)
    if unit or not digits:
        return None
    if kind in _TEXTS:
        return Element(descr, min(_TEXTS[kind] * size, HUGE))
    name = _NUMBERS.get(f"{kind}{size}")
    return Element(descr if order == ">" and size > 1 else name, size) if name else None
