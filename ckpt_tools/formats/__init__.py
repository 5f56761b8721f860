"""The formats of files. The module of a format is imported when a file may have the format: most runs meet
one or two.

``FORMATS`` (all formats, in the order in which magics are tried) and ``BY_NAME`` import all. Formats of
plug-ins (settings/plugins.py) go before those of this package.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING

from ckpt_tools.formats.common.format import HEAD, Anatomy, Check, Claim, Damage, Format, structure
from ckpt_tools.formats.named import MANIFESTS, NAMED, Named, Names
from ckpt_tools.model.report import Level
from ckpt_tools.settings import plugins

if TYPE_CHECKING:
    FORMATS: tuple[Format, ...]
    BY_NAME: dict[str, Format]

_loaded: dict[str, Format] = {}


def _list_plugins() -> tuple[Named, ...]:
    """Return a row for each format and manifest of installed packages; reject unsound ones."""
    names_taken = {row.name for row in NAMED}
    rows = list[Named]()
    for group in ("formats", MANIFESTS):
        for name, plugin in plugins.list_added(group, names_taken).items():
            fmt: Format = plugin.value
            if why := _find_defect(fmt):
                plugins.reject(group, name, why)
                continue
            names_taken.add(name)
            _loaded[name] = fmt
            family = MANIFESTS if group == MANIFESTS else "plugins"
            state = fmt.state and group != MANIFESTS
            rows.append(Named(name, family, tuple(fmt.suffixes), fmt.names, fmt.index, state))
    return tuple(rows)


def _find_defect(fmt: Format) -> str:
    """Return why a format of a plug-in cannot be used, "" if it can."""
    if Level.STRUCTURE not in fmt.checks:
        return "it has no check of the structure"
    if not all(s and type(s) is str for s in fmt.suffixes):
        return f"its suffixes are {fmt.suffixes!r}, of which one is empty or no text"
    try:
        re.compile(fmt.names)
    except (re.error, TypeError) as e:
        return f"its names are not a regular expression: {e}"
    return ""


names = Names(NAMED, _list_plugins)


def _forget_plugins() -> None:
    """Clear the formats by name, and all that are loaded: the plug-ins are to be looked for again."""
    names.forget()
    _loaded.clear()


plugins.register_cache(_forget_plugins)


def format_of(name: str) -> Format:
    """Return the format of that name. Raises KeyError."""
    found = _loaded.get(name)
    if found is None:
        if name not in names.family:
            raise KeyError(name)
        found = _loaded.get(name)  # ``names.family`` has loaded the plug-ins
    if found is None:
        module = import_module(f"ckpt_tools.formats.{names.family[name]}.{name}")
        found = _loaded[name] = module.FORMAT
    return found


def package_of(name: str) -> str | None:
    """Return the package that adds a format; None for a format of this package."""
    added = {**plugins.list_added(MANIFESTS), **plugins.list_added("formats")}
    return str(added[name].package) if name in added else None


def hides_cuts(name: str | None) -> bool:
    """Return True if a file of that format looks whole when it is cut between two records."""
    return name is not None and format_of(name).hides_cuts


def __getattr__(name: str) -> object:
    if name == "FORMATS":
        return tuple(map(format_of, names.order))
    if name == "BY_NAME":
        return {fmt: format_of(fmt) for fmt in names.order}
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
    "package_of",
    "structure",
]
