"""The header of an array as numpy.save writes it: a Python literal of type, order and shape. It is parsed and
never evaluated.

Facts: numpy/lib/_format_impl.py of NumPy 2.4 (``_write_array_header``, ``_read_array_header``).
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ckpt_tools.formats.common.format import Damage

_ESCAPE = r"""\\(?:[\\'"nrt]|x[\da-f]{2}|u[\da-f]{4}|U[\da-f]{8})"""
_TOKEN = re.compile(
    rf"""\ *(?:u?(?:'(?:[^'\\]|{_ESCAPE})*'|"(?:[^"\\]|{_ESCAPE})*")"""
    r"""|(?P<number>0|[1-9]\d{0,19})(?![\dA-KM-Za-z_])L?|True|False|[\[\](){},:])"""
)
"""A token of the literals that NumPy writes, with the L of Python 2 behind a number."""
_KEYS = {"descr", "fortran_order", "shape"}
_DIMENSIONS = 64
HUGE = 1 << 62
_SIZES = {"int": (1, 2, 4, 8), "uint": (1, 2, 4, 8), "float": (2, 4, 8, 12, 16), "complex": (8, 16, 24, 32)}
NUMBERS = {
    "b1": "bool",
    **{f"{kind[0]}{n}": f"{kind}{8 * n}" for kind, sizes in _SIZES.items() for n in sizes},
}
"""NumPy's code of each type of numbers -> its name."""
_TEXTS = {"S": 1, "a": 1, "V": 1, "U": 4}
"""Kinds of text, and their bytes for each character."""
_TYPE = re.compile(r"([<>=|]?)([a-zA-Z])(\d{0,18})(\[\w+(?:/\d+)?\])?")


class Element(NamedTuple):
    """The type of an array's elements: ``size`` is in bytes, ``objects`` is True for Python objects."""

    name: str
    size: int
    objects: bool = False


class Header(NamedTuple):
    """One header. ``is_canonical``: its text is exactly as NumPy writes it, and text[start:stop] the type."""

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


def _make_damage(why: str, offset: int) -> Damage:
    return Damage("bad-header", f"the header of an array {why}", offset)


def _read_literal(text: str, offset: int) -> Any:
    """Return the value of a Python literal of texts, whole numbers, truth values, tuples, lists and dicts."""
    from ast import literal_eval  # not at the top: few files hold arrays of NumPy

    at, plain = 0, list[str]()
    while token := _TOKEN.match(text, at):
        at = token.end()
        plain.append(token["number"] or token[0])
    try:
        if at == len(text):
            return literal_eval("".join(plain))
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        pass
    raise _make_damage("is no Python literal as NumPy writes it", offset)


def read_header(text: str, offset: int) -> Header:
    """Parse the text of a header, which lies at ``offset`` of the file. Raises Damage."""
    written = text.rstrip(" \n")
    padding = text[len(written) :]
    entries = _read_literal(written, offset)
    if not isinstance(entries, dict) or entries.keys() != _KEYS or padding.count("\n") > 1:
        raise _make_damage("has something else than descr, fortran_order and shape", offset)
    descr, shape, fortran = entries["descr"], entries["shape"], entries["fortran_order"]
    if type(fortran) is not bool or not _is_shape(shape):
        raise _make_damage("gives no order or no shape", offset)
    canonical = "{" + "".join(f"{key!r}: {entries[key]!r}, " for key in sorted(entries)) + "}"
    is_canonical = canonical == written and padding.endswith("\n")
    start = len("{'descr':")
    stop = start + len(f" {descr!r}")
    return Header(_read_element(descr, offset), fortran, shape, is_canonical, start, stop)


def _is_shape(value: Any) -> bool:
    """Return whether a value is a tuple of lengths; the parser reads no negative number."""
    is_tuple = type(value) is tuple and len(value) <= _DIMENSIONS
    return is_tuple and all(type(n) is int and n < HUGE for n in value)


def _read_element(descr: Any, offset: int) -> Element:
    """Return the type that a ``descr`` gives: a text, or the list of a record's fields. Raises Damage."""
    if type(descr) is str:
        if (element := element_of(descr)) is None:
            raise _make_damage(f"has the type {descr[:40]!r}, which NumPy does not have", offset)
        return element
    if type(descr) is not list:
        raise _make_damage("has a type that is neither a text nor a list of fields", offset)
    fields = list[Element]()
    for field in descr:  # (name, type) or (name, type, shape); the name may be a pair with its title
        if type(field) is not tuple or len(field) not in (2, 3):
            raise _make_damage("has a field that is not a name and a type", offset)
        shape = field[2] if len(field) == 3 else ()
        shape = (shape,) if type(shape) is int else shape
        if not _is_shape(shape):
            raise _make_damage("has a field of no shape", offset)
        element = _read_element(field[1], offset)
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
    name = NUMBERS.get(f"{kind}{size}")
    return Element(descr if order == ">" and size > 1 else name, size) if name else None
