"""What the bytes are. A format's module is imported when a file may have that format: most runs meet one or
two.

``FORMATS``, all of them in the order in which magics are tried, and ``BY_NAME`` import all.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ckpt_tools.formats.common.format import HEAD, Anatomy, Check, Claim, Damage, Format, structure
from ckpt_tools.formats.named import NAMED, Names

if TYPE_CHECKING:
    FORMATS: tuple[Format, ...]
    BY_NAME: dict[str, Format]

names = Names(NAMED)
_loaded: dict[str, Format] = {}


def format_of(name: str) -> Format:
    """The format of that name. Raises KeyError."""
    found = _loaded.get(name)
    if found is None:
        if name not in names.order:
            raise KeyError(name)
        module = import_module(f"ckpt_tools.formats.{names.family[name]}.{name}")
        found = _loaded[name] = module.FORMAT
    return found


def hides_cuts(name: str | None) -> bool:
    """Whether a file of that format, cut between two of its records, looks whole."""
    return name is not None and format_of(name).hides_cuts


def __getattr__(name: str) -> object:
    if name == "FORMATS":
        return tuple(format_of(one) for one in names.order)
    if name == "BY_NAME":
        return {one: format_of(one) for one in names.order}
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "BY_NAME",
    "FORMATS",
    "HEAD",
    "Anatomy",
    "Check",
    "Claim",
    "Damage",
    "Format",
    "format_of",
    "hides_cuts",
    "names",
    "structure",
]
